//! `albert pretrain`: trains a model from a recipe, shards and a tokenizer.

use super::{
    deadline::{self, Deadline},
    plan::{self, DryRun, Planner},
    with_precision,
};
use crate::{
    numbers::whole,
    output::{program, tell},
    progress::{Progress, duration},
    ranks,
    roofline::{self, Profiling},
    running::Threads,
    signals,
    tracing::Tracing,
};
use albert::{
    checkpoint::{Heads, ModelFolder},
    cost::ParameterCounts,
    pretrain::{
        self, HeldOutFigures, PretrainDetails, PretrainError, PretrainFigures, PretrainRecipe, PretrainSources,
        PretrainSummary, Pretraining, RECIPES, settings_of,
    },
    tokenizer::Tokenizer,
    train::{
        EvaluationRecord, MemoryPlan, Observer, Outcome, Setting, StartMode, Started, StepReport, Trainer, Worker,
    },
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use engine::{
    EngineError,
    profile::{Peak, Profile},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert pretrain tiny --minutes 3 --data data --tokenizer tokenizer.json -o runs/tiny
  albert pretrain small --data data --tokenizer tokenizer.json -o runs/small
  albert pretrain mine.toml -o runs/mine schedule.steps=20000 optimizer.learning_rate=0.001
  albert pretrain --from albert-base-v2 --data data -o runs/further schedule.steps=5000
  albert pretrain --resume -o runs/mine")]
pub(crate) struct Arguments {
    /// Recipe in TOML, or the name of a built-in one; with --resume the run's own by default
    recipe: Option<String>,
    /// Settings that override the recipe, such as optimizer.learning_rate=0.001
    #[arg(value_name = "SECTION.KEY=VALUE")]
    settings: Vec<Setting>,
    /// Run folder
    #[arg(short, long)]
    output: PathBuf,
    /// Folder of shards; sets input.data
    #[arg(long)]
    data: Option<PathBuf>,
    /// Tokenizer that the shards were built with; sets input.tokenizer
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    /// Model to continue from, a Hugging Face folder or a Google checkpoint: its weights, its shape, and its tokenizer
    /// unless --tokenizer is given
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    from: Option<PathBuf>,
    /// Resume from the newest intact checkpoint in the folder
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    dry_run: DryRun,
    /// Duration, including evaluations: sets schedule.steps and the intervals by trial steps, and changes the steps if the
    /// speed changes. With --resume: time from now, with the run's own recipe
    #[arg(long, conflicts_with = "is_dry")]
    minutes: Option<f64>,
    /// Seed of the run; sets seed
    #[arg(long, value_parser = whole::<0, u64>)]
    seed: Option<u64>,
    #[command(flatten)]
    threads: Threads,
    /// Device: cpu, cuda (the first GPU), cuda:N, or cuda-sim (a simulated GPU, for tests)
    #[arg(long, default_value = "cpu")]
    device: String,
    #[command(flatten)]
    profile: Profiling,
    #[command(flatten)]
    trace: Tracing,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let started = Instant::now();
    arguments.threads.choose();
    let budget = arguments.minutes.map(deadline::budget).transpose()?;
    let first = arguments.recipe.as_ref().and_then(|word| word.parse().ok());
    if budget.is_some() && arguments.settings.iter().chain(&first).any(sets_steps) {
        bail!("--minutes sets schedule.steps; give one of them");
    }
    let mut recipe = recipe(arguments, &[])?;
    let mode = if arguments.resume { StartMode::Resume } else { StartMode::New };
    if arguments.device == "cpu" {
        let parameters = ParameterCounts::with_heads(&recipe.model, Heads::PRE_TRAINING);
        plan::expect_room(parameters, recipe.run.shard_optimizer)?;
    }
    ranks::run_traced(&arguments.device, &arguments.trace, |worker| {
        if recipe.fits_memory() {
            fit_batch(arguments, &mut recipe, &worker)?;
        }
        // Installed only here: before, a signal ends a rank immediately while it waits for its peers in the library.
        let stop = signals::stop_flag()?;
        if arguments.dry_run.is_dry {
            return dry_run(arguments, &recipe, worker, &stop);
        }
        let deadline = match budget {
            Some(budget) if arguments.resume => Some(Deadline::new(started + budget, 0.0)),
            Some(budget) => {
                recipe.compute = with_precision(&recipe.compute, &worker.device, &arguments.output);
                let sources = inputs(&recipe)?;
                let (plan, deadline) = deadline::fitting(&recipe, &sources, &worker, started + budget, &stop)?;
                let mut planned = self::recipe(arguments, &plan)?;
                planned.compute = recipe.compute.clone();
                if planned.fits_memory() {
                    planned.keep_batch_of(&recipe);
                }
                recipe = planned;
                Some(deadline)
            }
            None => None,
        };
        let outcome = train(&recipe, &arguments.output, mode, worker, arguments.profile, deadline, &stop)?;
        Ok(finish(&outcome, &arguments.output))
    })
}

/// True for the key `schedule.steps`.
pub(super) fn sets_steps(setting: &Setting) -> bool {
    setting.key() == "schedule.steps"
}

/// Sets the maximum tokens of a batch once: a resumed run keeps the number in its `config.toml`.
fn fit_batch(arguments: &Arguments, recipe: &mut PretrainRecipe, worker: &Worker) -> Result<()> {
    const AUTO: &str = "data.batch.max_tokens=auto";
    let own = arguments.output.join("config.toml");
    if arguments.resume && own.exists() {
        let text = fs::read_to_string(&own).with_context(|| format!("{} cannot be read", own.display()))?;
        let before = PretrainRecipe::from_toml(&text, &[]).with_context(|| own.display().to_string())?;
        recipe.keep_batch_of(&before);
        return Ok(());
    }
    let is_alone = worker.communicator.size() == 1 && arguments.device == "cpu";
    let memory = plan::available_memory().filter(|_| is_alone);
    let memory = memory.with_context(|| {
        format!("{AUTO} requires one process on a CPU under Linux; set the number of tokens instead")
    })?;
    // A fifth is reserved for the system and unplanned memory.
    let tokens = recipe.fit_batch(memory / 5 * 4)?;
    tell!("a batch of {tokens} tokens fits the memory (data.batch.max_tokens in config.toml)");
    Ok(())
}

/// Runs a few steps in a temporary folder and prints an estimate of the run.
fn dry_run(arguments: &Arguments, recipe: &PretrainRecipe, worker: Worker, stop: &Arc<AtomicBool>) -> Result<ExitCode> {
    let often =
        plan::Often { evaluation: recipe.evaluation.interval, checkpoint: recipe.run.checkpoint_interval.unwrap_or(0) };
    // As in a run: it takes half a second, and its memory is not freed.
    let peak = worker.device.peak();
    let folder = tempfile::tempdir()?;
    let mut short = recipe.clone();
    let sources = inputs(&short)?;
    short.compute = with_precision(&short.compute, &worker.device, folder.path());
    (short.evaluation.interval, short.run.checkpoint_interval) = (0, None);
    let (batch, longest) = (&mut short.data.batch, short.data.instances.max_sequence_length);
    let mut planned = None;
    if plan::is_long(&recipe.model, batch.max_tokens, longest, peak) && worker.communicator.size() == 1 {
        // The memory is planned for the run's own micro-batches.
        planned = Some(Trainer::<Pretraining>::new(recipe, &sources, worker.device.clone())?.memory().total());
        batch.max_tokens = longest;
    }
    let mut planner = Planner::new(plan::DRY_RUN, batch.sequences_per_step, Arc::clone(stop));
    let enough = Arc::clone(&planner.enough);
    let outcome = pretrain::pretrain(&short, &sources, (folder.path(), StartMode::New), worker, &enough, &mut planner)?;
    if let Outcome::Diverged { problem, step, .. } = outcome {
        bail!("step {step}: {problem}");
    }
    planner.print(&arguments.output, FILES, often, planned, arguments.dry_run.json)
}

/// Files of a run.
const FILES: &[&str] = &[
    "config.toml",
    "metrics.jsonl",
    "curves.svg",
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "last/",
    "checkpoints/",
];

/// Opens the shards of a recipe, with its tokenizer.
pub(super) fn inputs(recipe: &PretrainRecipe) -> Result<PretrainSources> {
    let input = &recipe.input;
    for (path, what, flag) in [
        (&input.data, "shards", "--data DIR or input.data in the recipe; albert data build creates them"),
        (&input.tokenizer, "tokenizer", "--tokenizer FILE or input.tokenizer in the recipe"),
    ] {
        ensure!(!path.as_os_str().is_empty(), "no {what} given: use {flag}");
    }
    let tokenizer = Tokenizer::load(&input.tokenizer)?;
    Ok(PretrainSources::open(&input.data, &tokenizer)?)
}

/// Recipe of the command line, overridden by the settings `plan`.
fn recipe(arguments: &Arguments, plan: &[Setting]) -> Result<PretrainRecipe> {
    let mut settings = [plan, &arguments.settings[..]].concat();
    let mut named = arguments.recipe.as_deref();
    // `albert pretrain --resume -o RUN schedule.steps=9`: the first word is a setting, not a recipe.
    if let Some(setting) = named.filter(|word| word.contains('=') && !Path::new(word).exists()) {
        settings.insert(plan.len(), setting.parse()?);
        named = None;
    }
    for (key, path) in [("input.data", &arguments.data), ("input.tokenizer", &arguments.tokenizer)] {
        if let Some(path) = path {
            settings.push(Setting::new(key, utf8(path)?)?);
        }
    }
    if let Some(folder) = &arguments.from {
        settings.splice(0..0, going_on(folder, arguments.tokenizer.is_none())?);
    }
    settings.extend(arguments.seed.map(|seed| Setting::new("seed", seed)).transpose()?);
    let own = arguments.output.join("config.toml");
    if arguments.resume && arguments.minutes.is_some() && own.exists() {
        named = None;
    }
    let file = match named {
        None if arguments.from.is_some() => return Ok(PretrainRecipe::from_toml("", &settings)?),
        None if arguments.resume => own,
        None => bail!("no recipe given; expected a TOML file or one of:\n{}", known_recipes()),
        Some(name) if RECIPES.iter().any(|recipe| recipe.name == name) => {
            return Ok(PretrainRecipe::named(name, &settings)?);
        }
        Some(path) if !Path::new(path).exists() => {
            bail!("no such file or built-in recipe: `{path}`; expected a TOML file or one of:\n{}", known_recipes())
        }
        Some(path) => PathBuf::from(path),
    };
    let text = fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?;
    PretrainRecipe::from_toml(&text, &settings).with_context(|| file.display().to_string())
}

/// Settings of a run that continues from the model in `folder`; with the path of its tokenizer if `with_tokenizer`.
fn going_on(folder: &Path, with_tokenizer: bool) -> Result<Vec<Setting>> {
    let mut settings = vec![Setting::new("input.start_from", utf8(folder)?)?];
    let files = ModelFolder::open(folder)?;
    settings.extend(settings_of(&files.config().config));
    // A model for one task lacks the heads of pre-training.
    let heads = ["predictions", "sop_classifier", "albert.pooler", "pooler"];
    let report = files.load(Heads::PRE_TRAINING, &heads, |_, _| Ok(()))?;
    if !report.fresh.is_empty() {
        tell!("{} lacks {}, which are initialized at random", folder.display(), report.fresh.join(", "));
        settings.push(Setting::new("input.fresh", &report.fresh)?);
    }
    if with_tokenizer {
        settings.push(Setting::new("input.tokenizer", utf8(files.path())?)?);
    }
    Ok(settings)
}

/// Checks that `config.toml` can record a path.
pub(super) fn utf8(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{}: the path must be UTF-8, because config.toml records it", path.display()))
}

/// Built-in recipes, one per line.
fn known_recipes() -> String {
    RECIPES.iter().map(|recipe| format!("  {:<8} {}", recipe.name, recipe.about)).collect::<Vec<_>>().join("\n")
}

/// Runs a recipe in `folder` with progress on standard error. A `deadline` may change the number of steps.
pub(crate) fn train(
    recipe: &PretrainRecipe,
    folder: &Path,
    mode: StartMode,
    worker: impl Into<Worker>,
    profile: Profiling,
    deadline: Option<Deadline>,
    stop: &Arc<AtomicBool>,
) -> Result<Outcome<PretrainSummary>> {
    let sources = inputs(recipe)?;
    let worker = worker.into();
    let mut recipe = recipe.clone();
    recipe.compute = with_precision(&recipe.compute, &worker.device, folder);
    let mut watch = Watch { deadline, ..Watch::new(worker.device.peak(), profile) };
    let outcome = pretrain::pretrain(&recipe, &sources, (folder, mode), worker, stop, &mut watch);
    watch.progress.finish();
    if let Some(before) = watch.before.filter(|before| *before != watch.steps) {
        tell!(
            "{} steps instead of the {before} planned at first fit the time (schedule.replans in config.toml)",
            watch.steps
        );
    }
    outcome.map_err(|error| match error {
        PretrainError::Engine(EngineError::Memory { .. }) => {
            anyhow!("{error}; lower data.batch.max_tokens or set compute.checkpointing=layer")
        }
        error => error.into(),
    })
}

/// Prints the outcome of a run and returns its exit code.
pub(crate) fn finish(outcome: &Outcome<PretrainSummary>, folder: &Path) -> ExitCode {
    let place = folder.display();
    match outcome {
        Outcome::Finished(summary) => {
            let early = if summary.stopped_early { ", stopped early: no improvement" } else { "" };
            tell!("done: {}{early}; the model is in {place}", describe(summary));
            tell!("next: {} fill-mask --model {place} \"A text with a [MASK].\"", program());
            tell!("      {} report {place}", program());
            ExitCode::SUCCESS
        }
        Outcome::Stopped { summary, .. } => {
            tell!(
                "stopped and saved: {}; the model is in {place}; resume with: {} pretrain --resume -o {place}",
                describe(summary),
                program()
            );
            ExitCode::from(signals::INTERRUPTED)
        }
        Outcome::Diverged { problem, step, checkpoint } => {
            tell!("error: step {step}: {problem}");
            match checkpoint {
                Some(path) => tell!("the last good checkpoint is {}", path.display()),
                None => tell!("no checkpoint exists yet"),
            }
            ExitCode::FAILURE
        }
    }
}

fn describe(summary: &PretrainSummary) -> String {
    format!("{} steps, {} tokens in {}", summary.step, summary.tokens, duration(summary.seconds))
}

/// Progress of a run on standard error.
pub(crate) struct Watch {
    progress: Progress,
    peak: Option<Peak>,
    profile: Profiling,
    smoothed: Smoothed,
    deadline: Option<Deadline>,
    /// Number of steps of the run, and the number planned before the first change.
    steps: u64,
    before: Option<u64>,
}

/// Means over about the last fifty steps.
#[derive(Clone, Copy, Default)]
struct Smoothed {
    weight: f64,
    loss: f64,
    mlm: f64,
    sop: f64,
}

impl Smoothed {
    const KEEP: f64 = 0.98;

    fn add(&mut self, report: &StepReport<PretrainFigures>) {
        let mix = |mean: &mut f64, value: f64| *mean = Self::KEEP * *mean + (1.0 - Self::KEEP) * value;
        mix(&mut self.weight, 1.0);
        mix(&mut self.loss, report.loss);
        mix(&mut self.mlm, report.figures.mlm_accuracy);
        mix(&mut self.sop, report.figures.sentence.accuracy.unwrap_or(0.0));
    }
}

impl Watch {
    /// `peak` is that of the device ([`Device::peak`]), measured once for all runs of a command.
    pub(crate) fn new(peak: Option<Peak>, profile: Profiling) -> Self {
        Self {
            progress: Progress::idle(),
            peak,
            profile,
            smoothed: Smoothed::default(),
            deadline: None,
            steps: 0,
            before: None,
        }
    }
}

impl Observer<Pretraining> for Watch {
    fn started(&mut self, started: &Started<'_, PretrainDetails>) {
        tell_start(started);
        let details = started.details;
        tell!(
            "{} parameters; {} instances per epoch; {} steps; {}",
            started.parameters,
            details.instances,
            started.steps,
            memory_text(&started.memory),
        );
        match (&details.no_evaluation, details.unigram_loss) {
            (Some(reason), _) => tell!("evaluation is off: {reason}"),
            (None, Some(loss)) => tell!(
                "evaluation on {} held-out sequences; unigram baseline {loss:.4} nats",
                details.evaluation_sequences
            ),
            (None, None) => {}
        }
        self.steps = started.steps;
        self.progress = Progress::new("step", started.step, started.steps);
    }

    fn micro_batch(&mut self, done: usize, all: usize) -> bool {
        self.progress.within(done, all);
        true
    }

    fn evaluating(&mut self) {
        self.progress.now("evaluating");
    }

    fn stepped(&mut self, report: &StepReport<PretrainFigures>) {
        self.smoothed.add(report);
        let Smoothed { weight, loss, mlm, sop } = self.smoothed;
        let name = report.figures.sentence.objective.name();
        let sentence = report
            .figures
            .sentence
            .accuracy
            .map_or(String::new(), |_| format!(", {name} {:.1} %", 100.0 * sop / weight));
        let line = format!(
            "loss {:.3}, MLM {:.1} %{sentence}, {:.0} tokens/s{}",
            loss / weight,
            100.0 * mlm / weight,
            report.tokens as f64 / report.seconds,
            roofline::share(self.peak, report.flops, report.seconds),
        );
        self.progress.step(report.step, &line);
    }

    fn replanned(&mut self, report: &StepReport<PretrainFigures>) -> Option<u64> {
        let steps = self.deadline.as_mut()?.replan(report.step, self.steps)?;
        self.before.get_or_insert(self.steps);
        self.steps = steps;
        self.progress.set_total(steps);
        Some(steps)
    }

    fn wants_profile(&self) -> bool {
        self.profile.on
    }

    fn profiled(&mut self, profile: &Profile) {
        self.progress.note(&profile.table(self.peak).to_string());
    }

    fn evaluated(&mut self, record: &EvaluationRecord<HeldOutFigures>, is_best: bool) {
        self.progress.note(&evaluation_line(record, is_best));
    }
}

/// Prints the start of a run: skipped checkpoints, warnings, truncated metrics, the checkpoint that it continues from.
pub(super) fn tell_start<D>(started: &Started<'_, D>) {
    for damaged in started.damaged {
        tell!("warning: {damaged}; using the previous checkpoint");
    }
    for warning in started.warnings {
        tell!("warning: {warning}");
    }
    for note in started.notes {
        tell!("note: {note}");
    }
    if let Some(path) = started.resumed_from {
        tell!("resuming from {} at step {}", path.display(), started.step);
    }
}

/// Planned memory as a phrase.
pub(super) fn memory_text(memory: &MemoryPlan) -> String {
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    format!("memory at the token budget {:.1} MiB (activations {:.1})", mib(memory.total()), mib(memory.step))
}

/// Formats an evaluation as one line.
pub(crate) fn evaluation_line(record: &EvaluationRecord<HeldOutFigures>, is_best: bool) -> String {
    let figures = &record.figures;
    let mut line = format!(
        "held out at step {}: MLM {:.4} nats, {:.4} below the unigram baseline of {:.4} ({:.4} below where \
         [MASK] is shown), accuracy {:.1} %",
        record.step,
        figures.mlm_loss,
        figures.unigram_loss - figures.mlm_loss,
        figures.unigram_loss,
        figures.hidden_unigram_loss - figures.hidden_loss,
        100.0 * figures.mlm_accuracy
    );
    let sentence = &figures.sentence;
    if let (Some(accuracy), Some(error)) = (sentence.accuracy, sentence.standard_error) {
        let (name, pairs) = (sentence.objective.name(), sentence.count);
        line += &format!("; {name} {:.1} ± {:.1} % of {pairs} pairs", 100.0 * accuracy, 100.0 * error);
    }
    if is_best {
        line += "; best so far";
    }
    line
}
