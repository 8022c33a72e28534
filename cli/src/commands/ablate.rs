//! `albert ablate`: pre-trains and fine-tunes a plan of recipes into one table.

use super::finetune::Watch as FinetuningWatch;
use super::pretrain::Watch as PretrainingWatch;
use crate::{
    output::{results, tell},
    ranks,
    roofline::Profiling,
    signals,
    tracing::Tracing,
};
use albert::{
    pretrain::Pretraining,
    train::{Observer, Worker},
};
use albert_tasks::{
    ablate::{self, Budget, RunOutcome, Stage, Watcher},
    finetune::Finetuning,
};
use anyhow::{Context, Result};
use clap::Args;
use std::{fs, io::Write, path::PathBuf, process::ExitCode};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert ablate plan.toml -o runs/ablation
  mpirun -n 4 albert ablate plan.toml -o runs/ablation")]
pub(crate) struct Arguments {
    /// Plan in TOML: seeds, shared settings, tasks, sections of rows
    plan: PathBuf,
    /// Folder for the runs and the table; finished runs are kept, and several processes, or the ranks of a launcher, may share
    /// the folder
    #[arg(short, long)]
    output: PathBuf,
    /// Device: cpu, cuda (the first GPU), cuda:N, or cuda-sim (a simulated GPU, for tests)
    #[arg(long, default_value = "cpu")]
    device: String,
    #[command(flatten)]
    profile: Profiling,
    #[command(flatten)]
    trace: Tracing,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let path = &arguments.plan;
    let plan = fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    // Ranks share the runs through the folder, like processes started one by one.
    ranks::run_traced(&arguments.device, &arguments.trace, |Worker { device, communicator }| {
        let stop = signals::stop_flag()?;
        let peak = device.peak();
        let mut watch = Watch {
            pretraining: PretrainingWatch::new(peak, arguments.profile),
            finetuning: FinetuningWatch::new(peak, arguments.profile),
        };
        let ended = ablate::ablate(&plan, &arguments.output, &device, &stop, &mut watch)?;
        let timeout = communicator.set_timeout(ranks::LONGEST_RUN);
        let is_stopped = communicator.any("outcomes of runs", ended == RunOutcome::Stopped)?;
        communicator.set_timeout(timeout);
        let ended = match ended {
            _ if is_stopped => RunOutcome::Stopped,
            // Ranks of one launcher end together, so those runs are also done.
            RunOutcome::Elsewhere(_) if communicator.size() > 1 => RunOutcome::Finished,
            ended => ended,
        };
        finish(arguments, ended)
    })
}

/// Prints the table.
fn finish(arguments: &Arguments, ended: RunOutcome) -> Result<ExitCode> {
    let table = arguments.output.join("table.md");
    let table = fs::read_to_string(&table).with_context(|| format!("{} cannot be read", table.display()))?;
    write!(results(), "{table}")?;
    match ended {
        RunOutcome::Finished => Ok(ExitCode::SUCCESS),
        RunOutcome::Elsewhere(runs) => {
            tell!("{runs} runs are in progress in other processes, which will complete the table");
            Ok(ExitCode::SUCCESS)
        }
        RunOutcome::Stopped => {
            let (path, output) = (arguments.plan.display(), arguments.output.display());
            tell!("stopped and saved; resume with: albert ablate {path} -o {output}");
            Ok(ExitCode::from(signals::INTERRUPTED))
        }
    }
}

/// Progress of the runs on standard error.
struct Watch {
    pretraining: PretrainingWatch,
    finetuning: FinetuningWatch,
}

impl Watcher for Watch {
    fn planned(&mut self, budgets: &[Budget], seeds: usize, done: usize) {
        tell!("{} recipes under {seeds} seeds; {done} stages are done", budgets.len());
        for Budget { name, steps, sequences, tokens, parameters, flops } in budgets {
            tell!(
                "  {name}: {:.2} M parameters, {steps} steps of {sequences} sequences, at most {tokens} tokens, \
                 {:.2} TFLOP",
                *parameters as f64 / 1e6,
                flops / 1e12
            );
        }
    }

    fn begins(&mut self, Stage { number, of, row, seed, task }: Stage<'_>) {
        tell!("[{number}/{of}] {row}, seed {seed}: {}", task.unwrap_or("pre-training"));
    }

    fn pretraining(&mut self) -> &mut dyn Observer<Pretraining> {
        &mut self.pretraining
    }

    fn finetuning(&mut self) -> &mut dyn Observer<Finetuning> {
        &mut self.finetuning
    }
}
