//! `albert verify`: recomputes steps of a run and compares records and parameters with those of the run.

use super::{plan, pretrain::inputs, with_precision};
use crate::{
    output::tell,
    progress::{Progress, duration},
    ranks,
    running::Threads,
};
use albert::{
    checkpoint::Checkpoints,
    pretrain::{PretrainDetails, PretrainFigures, PretrainRecipe, Pretraining, pretrain},
    train::{METRICS, Observer, Outcome, StartMode, Started, StepReport, Worker},
};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use engine::io::Safetensors;
use serde_json::{Map, Value};
use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert verify runs/small
  albert verify runs/small --steps 9000..10000
  albert verify runs/hopper --steps 0..2 --device cuda-sim:90")]
pub(crate) struct Arguments {
    /// Run folder of pre-training, which is only read
    run: PathBuf,
    /// Steps to recompute, from a checkpoint (or 0, the start) to a checkpoint or the last step; by default from the second
    /// last checkpoint to the last
    #[arg(long, value_name = "A..B")]
    steps: Option<Steps>,
    /// Device: cpu for a run on CPUs, cuda or cuda-sim:90 (a simulated one, for small models) for a run on a Hopper GPU
    #[arg(long, default_value = "cpu")]
    device: String,
    #[command(flatten)]
    threads: Threads,
}

/// Steps A to B, of which A is already done.
#[derive(Clone, Debug)]
struct Steps(Range<u64>);

impl FromStr for Steps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
        let steps = numbers.filter(|steps| !steps.is_empty());
        steps
            .map(Self)
            .ok_or_else(|| "expected two numbers of steps, the first below the second, such as 90..100".into())
    }
}

/// Keys of a record that contain times, which differ between computations.
const TIMES: [&str; 3] = ["seconds", "tokens_per_second", "data_share"];

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    arguments.threads.choose();
    let run = &arguments.run;
    let config = run.join("config.toml");
    let text = fs::read_to_string(&config).with_context(|| {
        format!("{} cannot be read; expected the folder of a run of pre-training", config.display())
    })?;
    let recipe = PretrainRecipe::from_toml(&text, &[]).with_context(|| config.display().to_string())?;
    let steps = match &arguments.steps {
        Some(Steps(steps)) => steps.clone(),
        None => between_checkpoints(run)?,
    };
    let parameters = parameters_after(run, &recipe, steps.end)?;
    ranks::run(&arguments.device, |worker| {
        let ranks = worker.communicator.size();
        ensure!(ranks == 1, "verify runs in one process, not in {ranks}; a run of several ranks has the same bits");
        if let Some(gpu) = worker.device.gpu() {
            gpu.skip_race_search();
        }
        let folder = tempfile::tempdir()?;
        recompute(recipe, run, &steps, folder.path(), worker)?;
        let records = compare_records(run, folder.path(), &steps)?;
        let values = compare_parameters(&run.join(&parameters), &folder.path().join(&parameters), steps.end)?;
        let Range { start, end } = steps;
        tell!("steps {start} to {end} are confirmed: {records} records and {values} values, bit by bit");
        Ok(ExitCode::SUCCESS)
    })
}

/// Steps between the last two checkpoints, or from the start if there is only one.
fn between_checkpoints(run: &Path) -> Result<Range<u64>> {
    let checkpoints = Checkpoints::of_run(run).steps()?;
    match checkpoints[..] {
        [] => bail!("{} has no checkpoint; give the steps, such as --steps 0..100", run.display()),
        [only] => Ok(0..only),
        [last, before, ..] => Ok(before..last),
    }
}

/// File with the parameters after `step` steps, relative to the run.
fn parameters_after(run: &Path, recipe: &PretrainRecipe, step: u64) -> Result<PathBuf> {
    let checkpoints = Checkpoints::of_run(run);
    let mut files = vec![checkpoints.path(step)];
    if step == recipe.schedule.steps_after(step) {
        files.push(run.join("last/model.safetensors"));
    }
    if let Some(file) = files.iter().find(|file| file.exists()) {
        return Ok(file.strip_prefix(run)?.to_owned());
    }
    let steps: Vec<String> = checkpoints.steps()?.iter().map(u64::to_string).collect();
    bail!("{} has no parameters after step {step}; its checkpoints: {}", run.display(), steps.join(", "))
}

/// Runs the steps in `folder`, from the run's checkpoint.
fn recompute(mut recipe: PretrainRecipe, run: &Path, steps: &Range<u64>, folder: &Path, worker: Worker) -> Result<()> {
    let mut mode = StartMode::New;
    if steps.start > 0 {
        let [from, to] = [run, folder].map(|run| Checkpoints::of_run(run).path(steps.start));
        // The message names a damaged file in the run, not its copy.
        Safetensors::open_checked(&from)?;
        fs::create_dir_all(to.parent().unwrap_or(folder))?;
        fs::copy(&from, &to).with_context(|| format!("{} cannot be copied", from.display()))?;
        let metrics = run.join(METRICS);
        fs::copy(&metrics, folder.join(METRICS)).with_context(|| format!("{} cannot be copied", metrics.display()))?;
        mode = StartMode::Resume;
    }
    let sources = inputs(&recipe)?;
    recipe.compute = with_precision(&recipe.compute, &worker.device, folder);
    let seconds = plan::seconds_of_step(&recipe, &worker.device);
    tell!("a step takes about {}; steps to recompute: {}", duration(seconds), steps.end - steps.start);
    let stop = AtomicBool::new(false);
    let mut watch = Watch { end: steps.end, stop: &stop, progress: Progress::idle() };
    let outcome = pretrain(&recipe, &sources, (folder, mode), worker, &stop, &mut watch);
    watch.progress.finish();
    match outcome? {
        Outcome::Diverged { problem, step, .. } => bail!("step {step}: {problem}"),
        Outcome::Finished(_) | Outcome::Stopped { .. } => Ok(()),
    }
}

/// Stops the run after step `end`.
struct Watch<'a> {
    end: u64,
    stop: &'a AtomicBool,
    progress: Progress,
}

impl Observer<Pretraining> for Watch<'_> {
    fn started(&mut self, started: &Started<'_, PretrainDetails>) {
        self.progress = Progress::new("step", started.step, self.end);
    }

    fn micro_batch(&mut self, done: usize, all: usize) -> bool {
        self.progress.within(done, all);
        true
    }

    fn stepped(&mut self, report: &StepReport<PretrainFigures>) {
        self.progress.step(report.step, &format!("loss {:.3}", report.loss));
        if report.step >= self.end {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Records of some steps, without times.
fn records(run: &Path, steps: &Range<u64>) -> Result<Vec<(u64, Map<String, Value>)>> {
    let path = run.join(METRICS);
    let text = fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut records = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let mut record: Map<String, Value> =
            serde_json::from_str(line).with_context(|| format!("{}, line {}: not a record", path.display(), i + 1))?;
        TIMES.iter().for_each(|key| _ = record.remove(*key));
        let step = record.get("step").and_then(Value::as_u64);
        let step = step.with_context(|| format!("{}, line {}: a record without step", path.display(), i + 1))?;
        if step > steps.start && step <= steps.end {
            records.push((step, record));
        }
    }
    Ok(records)
}

/// Compares the records of the steps; returns their number.
fn compare_records(run: &Path, recomputed: &Path, steps: &Range<u64>) -> Result<usize> {
    let (recorded, recomputed) = (records(run, steps)?, records(recomputed, steps)?);
    for ((step, recorded), (other, recomputed)) in recorded.iter().zip(&recomputed) {
        ensure!(step == other, "{METRICS} has a record of step {step} where the run wrote one of step {other}");
        for (key, value) in recomputed {
            let theirs = recorded.get(key).unwrap_or(&Value::Null);
            ensure!(theirs == value, "step {step}: {key} is {theirs} in {METRICS}, and {value} recomputed");
        }
        if let Some(key) = recorded.keys().find(|key| !recomputed.contains_key(*key)) {
            bail!("step {step}: {METRICS} has {key}, which the run did not write");
        }
    }
    let (theirs, ours) = (recorded.len(), recomputed.len());
    ensure!(theirs == ours, "{METRICS} has {theirs} records of these steps; the run wrote {ours}");
    Ok(ours)
}

/// Compares all tensors of two files; returns the number of their values.
fn compare_parameters(recorded: &Path, recomputed: &Path, step: u64) -> Result<usize> {
    let [recorded, recomputed] = [recorded, recomputed].map(Safetensors::open_checked);
    let (recorded, recomputed) = (recorded?, recomputed?);
    let (names, ours) = (recorded.names(), recomputed.names());
    let place = recorded.path().display();
    if let Some(name) = names.iter().chain(&ours).find(|name| !names.contains(name) || !ours.contains(name)) {
        bail!("step {step}: the tensor {name} is in one of {place} and the recomputed file only");
    }
    let (mut count, mut different, mut first) = (0, 0, None);
    for name in &names {
        let shape = recomputed.shape(name).unwrap_or_default();
        let (theirs, ours) = (recorded.floats(name, shape)?, recomputed.floats(name, shape)?);
        count += ours.len();
        let pairs = theirs.iter().zip(ours.iter()).enumerate();
        let mut differing = pairs.filter(|(_, (theirs, ours))| theirs.to_bits() != ours.to_bits());
        if let Some((at, (theirs, ours))) = differing.next() {
            different += 1 + differing.count();
            first.get_or_insert_with(|| {
                format!("element {at} of {name} (shape {shape:?}) is {theirs:e} there, and {ours:e} recomputed")
            });
        }
    }
    match first {
        Some(first) => bail!("step {step}: {place}: {first}; {different} of {count} values differ"),
        None => Ok(count),
    }
}
