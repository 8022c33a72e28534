//! `--dry-run`: what a run will take, from a few of its own steps in a folder that is removed afterwards.
//!
//! ```text
//! time = start + steps · t(step) + evaluations · t(evaluation) + checkpoints · t(checkpoint)
//! ```
//!
//! The steps are those of the run, with its data; the median of their times is taken, and the resident set of the process.

use crate::{output::results, progress::duration};
use albert::train::{EvaluationRecord, Observer, RunObjective, Started, StepReport};
use anyhow::{Result, bail};
use clap::Args;
use engine::Device;
use measure::{clock::processor_time, memory};
use serde_json::json;
use std::{
    fs,
    io::Write,
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Steps between two evaluations and two checkpoints of a dry run.
pub(crate) const INTERVAL: u64 = 8;
/// Steps that are not counted: they fill caches.
const WARM_UP: usize = 2;
/// Least steps and time of a dry run.
const STEPS: usize = 10;
const LEAST: Duration = Duration::from_secs(6);

/// The flags of a dry run.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DryRun {
    /// Print what the run will take, from a few steps of it, and write nothing
    #[arg(long = "dry-run", conflicts_with = "resume")]
    pub(crate) is_dry: bool,
    /// With --dry-run: print JSON
    #[arg(long, requires = "is_dry")]
    pub(crate) json: bool,
}

/// Wall and processor time since the last event.
#[derive(Clone, Copy, Default)]
struct Took {
    wall: f64,
    processor: f64,
}

/// Intervals of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Often {
    /// Steps between evaluations; 0: one at the end.
    pub(crate) evaluation: u64,
    /// Steps between checkpoints; 0: one at the end.
    pub(crate) checkpoint: u64,
}

/// Watches a dry run, and ends it when it has seen enough.
pub(crate) struct Planner {
    stop: Arc<AtomicBool>,
    begun: (Instant, Duration),
    last: (Instant, Duration),
    started: Option<(usize, u64, usize)>,
    start: Took,
    steps: Vec<Took>,
    tokens: Vec<u64>,
    evaluation: Took,
    checkpoint: Took,
}

impl Planner {
    /// A planner of a run on `device` that sets `stop`.
    pub(crate) fn new(device: &Device, stop: Arc<AtomicBool>) -> Self {
        let now = (Instant::now(), processor_time());
        // As a run does: it takes half a second, and memory that stays.
        let _ = device.peak();
        let none = Took::default();
        Self {
            stop,
            begun: now,
            last: now,
            started: None,
            start: none,
            steps: vec![],
            tokens: vec![],
            evaluation: none,
            checkpoint: none,
        }
    }

    fn lap(&mut self) -> Took {
        let now = (Instant::now(), processor_time());
        let (wall, processor) = (now.0 - self.last.0, now.1.saturating_sub(self.last.1));
        self.last = now;
        Took { wall: wall.as_secs_f64(), processor: processor.as_secs_f64() }
    }

    /// Prints the plan of a run in `folder`, which will hold `files`.
    pub(crate) fn print(&self, folder: &Path, files: &[&str], often: Often, as_json: bool) -> Result<ExitCode> {
        let Some((parameters, steps, planned)) = self.started.filter(|_| !self.steps.is_empty()) else {
            bail!("the run has no steps to measure")
        };
        let median = |of: fn(&Took) -> f64| {
            let warm_up = WARM_UP.min(self.steps.len() - 1);
            let mut all: Vec<f64> = self.steps[warm_up..].iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let count = |interval: u64| if interval == 0 { 1 } else { steps.div_ceil(interval) };
        let total = |of: fn(&Took) -> f64| {
            of(&self.start)
                + steps as f64 * median(of)
                + count(often.evaluation) as f64 * of(&self.evaluation)
                + count(often.checkpoint) as f64 * of(&self.checkpoint)
        };
        let (seconds, processor) = (total(|took| took.wall), total(|took| took.processor));
        let tokens = self.tokens.iter().sum::<u64>() as f64 / self.tokens.len() as f64;
        let used = memory::peak().map_or(planned, |bytes| bytes as usize);
        let machine = available_memory();
        let files: Vec<String> = files.iter().map(|name| folder.join(name).display().to_string()).collect();
        let mut out = results();
        if as_json {
            let plan = json!({
                "parameters": parameters,
                "steps": steps,
                "tokens_per_step": tokens,
                "memory_bytes": used,
                "machine_memory_bytes": machine,
                "seconds": seconds,
                "processor_seconds": processor,
                "seconds_per_step": median(|took| took.wall),
                "files": files,
            });
            writeln!(out, "{plan}")?;
            return Ok(ExitCode::SUCCESS);
        }
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let of_machine = machine.map_or(String::new(), |bytes| format!(" of {:.0} MiB", mib(bytes)));
        writeln!(out, "parameters     {}", super::info::thousands(parameters as u64))?;
        writeln!(out, "steps          {}", super::info::thousands(steps))?;
        writeln!(out, "tokens a step  {tokens:.0}")?;
        writeln!(out, "memory         {:.0} MiB{of_machine}", mib(used as u64))?;
        writeln!(
            out,
            "time           {}, {} of the processor; {} steps measured, {:.3} s each",
            duration(seconds),
            duration(processor),
            self.steps.len(),
            median(|took| took.wall)
        )?;
        writeln!(out, "files          {}", files.join(", "))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl<O: RunObjective> Observer<O> for Planner {
    fn started(&mut self, started: &Started<'_, O::Details>) {
        self.started = Some((started.parameters, started.steps, started.memory.total()));
        self.start = self.lap();
    }

    fn stepped(&mut self, report: &StepReport<O::Figures>) {
        let took = self.lap();
        self.steps.push(took);
        self.tokens.push(report.tokens);
        if self.steps.len() >= STEPS && self.begun.0.elapsed() >= LEAST {
            self.stop.store(true, Relaxed);
        }
    }

    fn evaluated(&mut self, _: &EvaluationRecord<O::Evaluation>, _: bool) {
        self.evaluation = self.lap();
    }

    fn saved(&mut self, _: u64, _: &Path) {
        self.checkpoint = self.lap();
    }
}

/// Bytes that this process may use: free memory, and the limit of its control group if that is less.
pub(crate) fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let free = 1024 * line.split_whitespace().next()?.parse::<u64>().ok()?;
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit = limits.iter().find_map(|path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    Some(limit.map_or(free, |limit| free.min(limit)))
}

/// Refuses a model on the CPU whose parameters and gradients alone, and the moments unless ranks share them, do not fit the
/// memory.
pub(crate) fn expect_room(parameters: u64, shares_moments: bool) -> Result<()> {
    let least = parameters * if shares_moments { 8 } else { 16 };
    if let Some(available) = available_memory().filter(|&available| least > available) {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        bail!(
            "{} parameters with what training needs for each take {:.1} GiB of memory, and {:.1} GiB are free; choose a smaller model",
            super::info::thousands(parameters),
            gib(least),
            gib(available)
        );
    }
    Ok(())
}
