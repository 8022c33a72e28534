//! Cost of a run, from a few of its own steps in a temporary folder: for `--dry-run` and `--minutes`.
//!
//! ```text
//! time = start + steps · t(step) + evaluations · t(evaluation) + checkpoints · t(checkpoint)
//! ```
//!
//! The median step is used. If a time limit interrupts the first step, its micro-batches are extrapolated. Evaluations are not
//! run: the estimate is a third of the training time for as many sequences, since a backward pass costs two forward passes.

use crate::{
    output::{results, tell},
    progress::{Progress, duration},
};
use albert::{
    config::AlbertConfig,
    cost::{Flops, Recompute, Workload},
    pretrain::PretrainRecipe,
    train::{Observer, RunObjective, Started, StepReport},
};
use anyhow::{Context, Result, bail};
use clap::Args;
use engine::{Device, Precision, profile::Peak};
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

/// Number of steps that are not counted if there are more: they fill caches.
const WARM_UP: usize = 2;
/// Steps and time of a dry run: it ends after both minima, or at the limit within a step.
pub(crate) const DRY_RUN: Extent =
    Extent { steps: 10, least: Duration::from_secs(6), limit: Duration::from_secs(12), is_announced: true };
/// Seconds of a micro-batch above which a dry run measures shorter ones.
const LONG_MICRO_BATCH: f64 = 1.5;
/// Share of the peak that products of a training step are expected to reach, used only for the decision about short micro-batches.
const EXPECTED_SHARE: f64 = 0.4;
/// Floating-point operations per second of a simulated GPU in f32, and in bf16, on tensor cores.
const SIMULATED: [f64; 2] = [3e7, 1.5e8];

/// Flags of a dry run.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DryRun {
    /// Run a few steps, print the estimated cost of the run, and write nothing
    #[arg(long = "dry-run", conflicts_with = "resume")]
    pub(crate) is_dry: bool,
    /// With --dry-run: print JSON
    #[arg(long, requires = "is_dry")]
    pub(crate) json: bool,
}

/// Extent of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) steps: usize,
    pub(crate) least: Duration,
    pub(crate) limit: Duration,
    /// True to print an estimate after the first step.
    pub(crate) is_announced: bool,
}

/// Wall and CPU time since the last event, in seconds.
#[derive(Clone, Copy, Default)]
struct Took {
    wall: f64,
    processor: f64,
}

impl Took {
    fn times(self, factor: f64) -> Self {
        Self { wall: factor * self.wall, processor: factor * self.processor }
    }
}

/// Intervals in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Often {
    /// Steps between evaluations; 0: one at the end.
    pub(crate) evaluation: u64,
    /// Steps between checkpoints; 0: one at the end.
    pub(crate) checkpoint: u64,
}

/// Details that the run reports before its first step.
#[derive(Clone, Copy, Default)]
struct About {
    parameters: usize,
    steps: u64,
    memory: usize,
    evaluated: usize,
}

/// Measures the first steps of a run and ends it.
pub(crate) struct Planner {
    /// Flag that ends the run; set by the planner.
    pub(crate) enough: Arc<AtomicBool>,
    /// Flag that ends the run; set by the user.
    stop: Arc<AtomicBool>,
    extent: Extent,
    /// Sequences of a step, used if no step was completed.
    sequences: usize,
    begun: Instant,
    last: (Instant, Duration),
    /// Start of the micro-batches of the current step.
    batches_begun: (Instant, Duration),
    about: Option<About>,
    start: Took,
    steps: Vec<Took>,
    /// Tokens and sequences of the steps.
    tokens: [u64; 2],
    /// Step interrupted by the limit: an estimate of the whole step, and the number of completed and of all micro-batches.
    part: Option<(Took, usize, usize)>,
    checkpoint: Took,
    progress: Progress,
}

impl Planner {
    /// Planner of a run with `sequences` per step, which the user ends by setting `stop`.
    pub(crate) fn new(extent: Extent, sequences: usize, stop: Arc<AtomicBool>) -> Self {
        let now = (Instant::now(), processor_time());
        Self {
            enough: Arc::default(),
            stop,
            extent,
            sequences,
            begun: now.0,
            last: now,
            batches_begun: now,
            about: None,
            start: Took::default(),
            steps: vec![],
            tokens: [0; 2],
            part: None,
            checkpoint: Took::default(),
            progress: Progress::idle(),
        }
    }

    fn lap(&mut self) -> Took {
        let now = (Instant::now(), processor_time());
        let took = between(self.last, now);
        self.last = now;
        took
    }

    /// Median wall and CPU seconds of a step.
    fn step(&self) -> Result<Took> {
        let warm_up = WARM_UP.min(self.steps.len().saturating_sub(1));
        let median = |of: fn(&Took) -> f64| {
            let mut all: Vec<f64> = self.steps[warm_up..].iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied()
        };
        match (median(|took| took.wall), median(|took| took.processor), self.part) {
            (Some(wall), Some(processor), _) => Ok(Took { wall, processor }),
            (_, _, Some((whole, ..))) => Ok(whole),
            _ => bail!("the run has no steps to measure"),
        }
    }

    /// Wall and CPU seconds of an evaluation.
    fn evaluation(&self) -> Result<Took> {
        let evaluated = self.about.map_or(0, |about| about.evaluated);
        let sequences = match self.steps.len() {
            0 => self.sequences as f64,
            steps => self.tokens[1] as f64 / steps as f64,
        };
        Ok(self.step()?.times(evaluated as f64 / sequences.max(1.0) / 3.0))
    }

    /// Seconds of a step and of an evaluation.
    pub(crate) fn seconds(&self) -> Result<(f64, f64)> {
        Ok((self.step()?.wall, self.evaluation()?.wall))
    }

    /// Wall and CPU seconds of the whole run.
    fn total(&self, often: Often) -> Result<Took> {
        let steps = self.about.map_or(0, |about| about.steps);
        let count = |interval: u64| if interval == 0 { 1.0 } else { steps.div_ceil(interval) as f64 };
        let parts = [
            self.start,
            self.step()?.times(steps as f64),
            self.evaluation()?.times(count(often.evaluation)),
            self.checkpoint.times(count(often.checkpoint)),
        ];
        Ok(parts
            .into_iter()
            .fold(Took::default(), |a, b| Took { wall: a.wall + b.wall, processor: a.processor + b.processor }))
    }

    /// Prints the plan of a run in `folder`, which will contain `files`. `planned` is the memory plan of the run, if it
    /// differs from that of the measured steps.
    pub(crate) fn print(
        &self,
        folder: &Path,
        files: &[&str],
        often: Often,
        planned: Option<usize>,
        as_json: bool,
    ) -> Result<ExitCode> {
        let About { parameters, steps, memory: measured, .. } =
            self.about.context("the run has no steps to measure")?;
        let (total, step) = (self.total(often)?, self.step()?);
        let tokens = match (self.tokens[0], self.steps.len()) {
            (_, 0) => None,
            (tokens, count) => Some(tokens as f64 / count as f64),
        };
        let peak = memory::peak().map_or(measured, |bytes| bytes as usize);
        let used = peak + planned.unwrap_or(measured).saturating_sub(measured);
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
                "seconds": total.wall,
                "processor_seconds": total.processor,
                "seconds_per_step": step.wall,
                "files": files,
            });
            writeln!(out, "{plan}")?;
            return Ok(ExitCode::SUCCESS);
        }
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let of_machine = machine.map_or(String::new(), |bytes| format!(" of {:.0} MiB", mib(bytes)));
        let measured = match self.part {
            Some((_, done, all)) if self.steps.is_empty() => format!("{done} of {all} micro-batches of a step"),
            _ => format!("{} steps", self.steps.len()),
        };
        writeln!(out, "parameters     {}", super::info::thousands(parameters as u64))?;
        writeln!(out, "steps          {}", super::info::thousands(steps))?;
        if let Some(tokens) = tokens {
            writeln!(out, "tokens a step  {tokens:.0}")?;
        }
        writeln!(out, "memory         {:.0} MiB{of_machine}", mib(used as u64))?;
        writeln!(
            out,
            "time           {}, {} of CPU time; {measured} measured, {:.3} s a step",
            duration(total.wall),
            duration(total.processor),
            step.wall
        )?;
        writeln!(out, "files          {}", files.join(", "))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn between(from: (Instant, Duration), to: (Instant, Duration)) -> Took {
    Took { wall: (to.0 - from.0).as_secs_f64(), processor: to.1.saturating_sub(from.1).as_secs_f64() }
}

impl<O: RunObjective> Observer<O> for Planner {
    fn started(&mut self, started: &Started<'_, O::Details>) {
        let Started { parameters, steps, evaluated, .. } = *started;
        self.about = Some(About { parameters, steps, memory: started.memory.total(), evaluated });
        self.start = self.lap();
        if self.extent.is_announced {
            tell!("measuring up to {} steps", self.extent.steps);
            self.progress = Progress::new("step", 0, self.extent.steps as u64);
        }
    }

    fn micro_batch(&mut self, done: usize, all: usize) -> bool {
        let now = (Instant::now(), processor_time());
        if done == 0 {
            self.batches_begun = now;
        }
        let is_over = self.begun.elapsed() >= self.extent.limit || self.stop.load(Relaxed);
        if done == all || done == 0 {
            return true;
        }
        self.progress.within(done, all);
        if is_over && self.steps.is_empty() {
            let each = between(self.batches_begun, now).times(1.0 / done as f64);
            self.part = Some((each.times(all as f64), done, all));
        }
        !is_over
    }

    fn stepped(&mut self, report: &StepReport<O::Figures>) {
        let took = self.lap();
        self.steps.push(took);
        self.tokens = [self.tokens[0] + report.tokens, self.tokens[1] + report.sequences];
        let elapsed = self.begun.elapsed();
        let is_enough = self.steps.len() >= self.extent.steps && elapsed >= self.extent.least;
        if is_enough || elapsed >= self.extent.limit || self.stop.load(Relaxed) {
            self.enough.store(true, Relaxed);
        }
        let steps = self.about.map_or(0, |about| about.steps);
        let line = format!("{:.2} s, so about {} in all", took.wall, duration(took.wall * steps as f64));
        if self.extent.is_announced && self.steps.len() == 1 {
            tell!("first step: {line}");
        } else if self.extent.is_announced && self.steps.len() <= self.extent.steps {
            self.progress.step(report.step, &line);
        }
    }

    fn saved(&mut self, _: u64, _: &Path) {
        self.checkpoint = self.lap();
    }
}

/// True if a micro-batch of `tokens` tokens, in sequences of `longest`, is so slow on a device with this peak that a dry run
/// should measure single sequences.
pub(crate) fn is_long(config: &AlbertConfig, tokens: usize, longest: usize, peak: Option<Peak>) -> bool {
    let workload = Workload { sequences: tokens / longest, sequence_length: longest, masked_per_sequence: longest / 8 };
    let flops = Flops::training(config, &workload, Recompute::Cheap);
    peak.is_some_and(|peak| flops > LONG_MICRO_BATCH * EXPECTED_SHARE * peak.flops)
}

/// Seconds of a training step; a device without a known peak is a simulated GPU.
pub(crate) fn seconds_of_step(recipe: &PretrainRecipe, device: &Device) -> f64 {
    let sequence_length = recipe.data.instances.max_sequence_length;
    let sequences = recipe.data.batch.sequences_per_step;
    let workload = Workload { sequences, sequence_length, masked_per_sequence: sequence_length / 8 };
    let flops = Flops::training(&recipe.model, &workload, Recompute::Cheap);
    let is_bf16 = recipe.compute.precision.on(device) == Precision::Bf16;
    flops / device.peak().map_or(SIMULATED[usize::from(is_bf16)], |peak| EXPECTED_SHARE * peak.flops)
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

/// Rejects a model whose parameters and gradients, and moments unless ranks share them, do not fit into the CPU's memory.
pub(crate) fn expect_room(parameters: u64, shares_moments: bool) -> Result<()> {
    let least = parameters * if shares_moments { 8 } else { 16 };
    if let Some(available) = available_memory().filter(|&available| least > available) {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        bail!(
            "training {} parameters requires {:.1} GiB of memory, but {:.1} GiB are free; choose a smaller model",
            super::info::thousands(parameters),
            gib(least),
            gib(available)
        );
    }
    Ok(())
}
