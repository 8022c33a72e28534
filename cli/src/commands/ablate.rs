//! `albert ablate`: pre-trains and fine-tunes a plan of recipes into one table.

use super::finetune::Watch as FinetuningWatch;
use super::pretrain::Watch as PretrainingWatch;
use crate::{
    output::{results, tell},
    roofline::Profiling,
    signals,
};
use albert::{
    ablate::{self, Budget, RunOutcome, Stage, Watcher},
    finetune::Finetuning,
    pretrain::Pretraining,
    train::Observer,
};
use anyhow::{Context, Result};
use clap::Args;
use engine::{Cpu, Device};
use std::{fs, io::Write, path::PathBuf, process::ExitCode};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Plan in TOML: seeds, shared settings, tasks, sections of rows
    plan: PathBuf,
    /// Folder for the runs and the table; finished runs are kept, and several processes may share the folder
    #[arg(short, long)]
    output: PathBuf,
    /// Device: cpu, cuda (the first GPU), cuda:N, or cuda-sim (a simulated GPU, for tests)
    #[arg(long, default_value = "cpu")]
    device: String,
    #[command(flatten)]
    profile: Profiling,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let path = &arguments.plan;
    let plan = fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let stop = signals::stop_flag()?;
    let device = Device::named(&arguments.device, Cpu::detect()?)?;
    let peak = device.peak();
    let mut watch = Watch {
        pretraining: PretrainingWatch::new(peak, arguments.profile),
        finetuning: FinetuningWatch::new(peak, arguments.profile),
    };
    let ended = ablate::ablate(&plan, &arguments.output, &device, &stop, &mut watch)?;
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
            let (path, output) = (path.display(), arguments.output.display());
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
