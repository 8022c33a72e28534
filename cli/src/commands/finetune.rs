//! `albert finetune`: trains a pre-trained model on the examples of a task.

use super::{
    plan::{self, DryRun, Planner},
    pretrain::{memory_text, tell_start, utf8},
    with_precision,
};
use crate::{
    input::LabeledFaults,
    numbers::whole,
    output::{program, results, tell},
    progress::{Progress, duration},
    ranks,
    roofline::{self, Profiling},
    running::Threads,
    signals,
    tracing::Tracing,
};
use albert::{
    checkpoint::ModelFolder,
    train::{EvaluationRecord, Observer, Outcome, Setting, StartMode, Started, StepReport, Worker},
};
use albert_tasks::{
    files::{Label, Problem},
    finetune::{
        self, DataFiles, DataSource, DevFigures, Examples, FinetuneDetails, FinetuneError, FinetuneFigures,
        FinetuneRecipe, FinetuneSources, FinetuneSummary, Finetuning, HeadOrigin, Loaded, Measured, Preset,
        SeedSummary, Task, TaskName,
    },
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use engine::{
    EngineError,
    profile::{Peak, Profile},
};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
};

/// Named hyperparameters.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PresetName {
    /// The paper's table, with the released correction of RACE for v2 models
    Paper,
    /// The paper's table as printed
    PaperV1,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert finetune classify --model runs/model --train films.tsv --dev more.tsv -o runs/film
  albert finetune mnli --model runs/albert-base --data glue -o runs/mnli optimizer.learning_rate=3e-5
  albert finetune squad2 --model runs/albert-base --data squad -o runs/squad --seeds 5")]
pub(crate) struct Arguments {
    /// cola, sst-2, mrpc, sts-b, qqp, mnli, mnli-mismatched, qnli, rte, wnli, squad1, squad2, race; or, in custom files,
    /// classify, regress, tag, choice, qa; with --resume the default is the run's
    #[arg(required_unless_present = "resume")]
    task: Option<String>,
    #[command(flatten)]
    faults: LabeledFaults,
    /// Pre-trained model folder; the task head is randomly initialized
    #[arg(long)]
    model: Option<PathBuf>,
    /// Fine-tuned model to start from instead of --model; its head is kept if the labels are the same
    #[arg(long)]
    from: Option<PathBuf>,
    /// Use only configuration and tokenizer of --model, with random weights: a baseline without pre-training
    #[arg(long, requires = "model", conflicts_with = "from")]
    from_scratch: bool,
    /// Folder of the examples: GLUE, SQuAD or RACE as published, or custom train and dev files
    #[arg(long, required_unless_present_any = ["train", "resume"], conflicts_with = "train")]
    data: Option<PathBuf>,
    /// File of the training examples, also .gz and .zst, instead of a folder
    #[arg(long, value_name = "FILE")]
    train: Option<PathBuf>,
    /// File of the dev examples [default: a share of the training examples]
    #[arg(long, value_name = "FILE", requires = "train")]
    dev: Option<PathBuf>,
    /// Run folder
    #[arg(short, long)]
    output: PathBuf,
    /// Named hyperparameters instead of the defaults for the model's size
    #[arg(long, value_enum)]
    preset: Option<PresetName>,
    /// Recipe in TOML; overrides the defaults or the preset
    #[arg(long)]
    recipe: Option<PathBuf>,
    /// Number of epochs; sets schedule.epochs
    #[arg(long, conflicts_with = "steps")]
    epochs: Option<f64>,
    /// Optimizer steps; sets schedule.steps
    #[arg(long, value_parser = whole::<1, u64>)]
    steps: Option<u64>,
    /// Settings that override the recipe, such as optimizer.learning_rate=3e-5
    #[arg(value_name = "SECTION.KEY=VALUE")]
    settings: Vec<Setting>,
    /// Override a setting, as the arguments do; may be repeated
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<Setting>,
    /// Number of runs with different seeds, one after another, each in OUTPUT/seed-N
    #[arg(long, default_value_t = 1, value_parser = whole::<1, u64>)]
    seeds: u64,
    /// Resume from the newest intact checkpoint in the folder, with the run's recipe; finished seeds are kept
    #[arg(long)]
    resume: bool,
    /// Device: cpu, cuda (the first GPU), cuda:N, or cuda-sim (a simulated GPU, for tests)
    #[arg(long, default_value = "cpu")]
    device: String,
    #[command(flatten)]
    threads: Threads,
    #[command(flatten)]
    dry_run: DryRun,
    /// Seed of the run, or of the first of several
    #[arg(long, value_parser = whole::<0, u64>)]
    seed: Option<u64>,
    #[command(flatten)]
    profile: Profiling,
    #[command(flatten)]
    trace: Tracing,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    ensure!((1..=1000).contains(&arguments.seeds), "--seeds {}: expected 1 to 1000", arguments.seeds);
    // Without a task, the first setting is parsed in its place.
    let named = arguments.task.as_ref().filter(|name| !(arguments.resume && name.contains('=')));
    let named: Option<TaskName> = named.map(|name| name.parse()).transpose()?;
    arguments.threads.choose();
    let recipe = recipe(arguments, named)?;
    let name = named.or(recipe.input.task).context("the run does not name its task; give it before the settings")?;
    let has_files = arguments.data.is_some() || arguments.train.is_some();
    let (data, train, dev) = if has_files {
        (&arguments.data, &arguments.train, &arguments.dev)
    } else {
        (&recipe.input.data, &recipe.input.train, &recipe.input.dev)
    };
    let files = match (data, train) {
        (Some(folder), _) => {
            ensure!(folder.is_dir(), "{}: no such folder; --data names the folder of the examples", folder.display());
            DataFiles::Folder(folder)
        }
        (None, train) => {
            let train = train.as_deref().context("no examples given: use --data DIR or --train FILE")?;
            DataFiles::Files { train, dev: dev.as_deref() }
        }
    };
    let Loaded { problem, train, dev, remarks } = DataSource { task: name, settings: &recipe.data }.load(files)?;
    remarks.iter().for_each(|remark| tell!("note: {remark}"));
    for (name, examples) in [("train", Some(&train)), ("dev", dev.as_ref())] {
        if let Some(examples) = examples {
            tell!("{name}: {}", counted(examples, &problem));
        }
    }
    let task = Task::new(name, problem, &recipe);
    let sources = FinetuneSources { task: &task, train: &train, dev: dev.as_ref() };
    ranks::run_traced(&arguments.device, &arguments.trace, |worker| {
        let stop = signals::stop_flag()?;
        if arguments.dry_run.is_dry {
            return dry_run(arguments, &recipe, &sources, worker, &stop);
        }
        if arguments.seeds > 1 {
            return run_seeds(arguments, &recipe, &sources, &worker, &stop);
        }
        let mode = if arguments.resume { StartMode::Resume } else { StartMode::New };
        let mut watch = Watch::new(worker.device.peak(), arguments.profile);
        let outcome = train_once(&recipe, &sources, &arguments.output, mode, worker, &mut watch, &stop)?;
        finish(&outcome, &arguments.output, &watch)
    })
}

/// Runs a few steps in a temporary folder and prints an estimate of the run.
fn dry_run(
    arguments: &Arguments,
    recipe: &FinetuneRecipe,
    sources: &FinetuneSources<'_>,
    worker: Worker,
    stop: &Arc<AtomicBool>,
) -> Result<ExitCode> {
    /// Files of a run.
    const FILES: &[&str] = &[
        "config.toml",
        "metrics.jsonl",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "task.json",
        "report.html",
        "predictions.jsonl",
        "summary.json",
    ];
    let evaluation = recipe.steps(sources.train.len())?.evaluation;
    let often = plan::Often { evaluation, checkpoint: recipe.run.checkpoint_interval.unwrap_or(0) };
    // As in a run: it takes half a second, and its memory is not freed.
    let _ = worker.device.peak();
    let mut planner = Planner::new(plan::DRY_RUN, recipe.batch.examples_per_step, Arc::clone(stop));
    let enough = Arc::clone(&planner.enough);
    let folder = tempfile::tempdir()?;
    let mut short = recipe.clone();
    // Longer than any run, so that nothing is evaluated.
    (short.evaluation.interval, short.run.checkpoint_interval) = (1 << 41, None);
    short.compute = with_precision(&recipe.compute, &worker.device, folder.path());
    let outcome = finetune::finetune(&short, sources, (folder.path(), StartMode::New), worker, &enough, &mut planner)?;
    if let Outcome::Diverged { problem, step, .. } = outcome {
        bail!("step {step}: {problem}");
    }
    planner.print(&arguments.output, FILES, often, None, arguments.dry_run.json)
}

/// Number of examples, and of those with each label; only the largest if there are many.
fn counted(examples: &Examples, problem: &Problem) -> String {
    const SHOWN: usize = 20;
    let mut text = format!("{} examples", examples.len());
    let labels = problem.labels();
    let mut counts = vec![0usize; labels.len()];
    match examples {
        Examples::Texts(list) => list.iter().for_each(|one| {
            if let Some(Label::Class(class)) = one.label {
                counts[class as usize] += 1;
            }
        }),
        Examples::Tagged(list) => list.iter().flat_map(|one| &one.tags).for_each(|&tag| counts[tag as usize] += 1),
        _ => {}
    }
    let mut both: Vec<(&String, usize)> = labels.iter().zip(counts).collect();
    if both.len() > SHOWN {
        both.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    }
    let shown: Vec<String> =
        both.iter().take(SHOWN).map(|(label, count)| format!("{} {count}", finetune::escaped(label))).collect();
    if !shown.is_empty() {
        let more = both.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        text += &format!(", labels: {}{more}", shown.join(", "));
    }
    text
}

/// Recipe of the run: the defaults for the model's size or the preset, overridden by the file, and then by the settings.
fn recipe(arguments: &Arguments, task: Option<TaskName>) -> Result<FinetuneRecipe> {
    let mut settings = Vec::new();
    settings.extend(arguments.epochs.map(|epochs| Setting::new("schedule.epochs", epochs)).transpose()?);
    settings.extend(arguments.steps.map(|steps| Setting::new("schedule.steps", steps)).transpose()?);
    let skips = arguments.faults.skips();
    settings.extend((skips > 0).then(|| Setting::new("data.max_errors", skips)).transpose()?);
    settings.extend(arguments.seed.map(|seed| Setting::new("seed", seed)).transpose()?);
    if let Some(word) = arguments.task.as_ref().filter(|name| arguments.resume && name.contains('=')) {
        settings.push(word.parse()?);
    }
    settings.extend(arguments.set.iter().chain(&arguments.settings).cloned());
    let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()));
    if arguments.resume {
        let run = if arguments.seeds > 1 { arguments.output.join("seed-1") } else { arguments.output.clone() };
        let path = run.join("config.toml");
        let own = FinetuneRecipe::from_toml(&read(&path)?).with_context(|| path.display().to_string())?;
        return Ok(own.with("", &settings)?);
    }
    for path in arguments.model.iter().chain(&arguments.from) {
        utf8(path)?;
    }
    let task = task.context("no task given")?;
    let Some(folder) = arguments.from.as_ref().or(arguments.model.as_ref()) else {
        bail!("no model given: use --model DIR, or --from DIR for a fine-tuned one");
    };
    let config = &ModelFolder::open(folder)?.config().config.clone();
    let mut base = match arguments.preset {
        None => FinetuneRecipe::for_task(task, config),
        Some(name) => {
            let preset = match name {
                PresetName::Paper => Preset::Paper,
                PresetName::PaperV1 => Preset::PaperV1,
            };
            FinetuneRecipe::preset(preset, task, config)
                .with_context(|| format!("the paper lists no settings for `{}`; omit --preset", task.name()))?
        }
    };
    base.input.model.clone_from(&arguments.model);
    base.input.from.clone_from(&arguments.from);
    base.input.from_scratch = arguments.from_scratch;
    base.input.task = Some(task);
    base.input.data.clone_from(&arguments.data);
    base.input.train.clone_from(&arguments.train);
    base.input.dev.clone_from(&arguments.dev);
    match &arguments.recipe {
        None => Ok(base.with("", &settings)?),
        Some(path) => base.with(&read(path)?, &settings).with_context(|| path.display().to_string()),
    }
}

pub(super) fn train_once(
    recipe: &FinetuneRecipe,
    sources: &FinetuneSources<'_>,
    folder: &Path,
    mode: StartMode,
    worker: Worker,
    watch: &mut Watch,
    stop: &AtomicBool,
) -> Result<Outcome<FinetuneSummary>> {
    let compute = with_precision(&recipe.compute, &worker.device, folder);
    let recipe = &FinetuneRecipe { compute, ..recipe.clone() };
    let outcome = finetune::finetune(recipe, sources, (folder, mode), worker, stop, watch);
    watch.progress.finish();
    outcome.map_err(|error| match error {
        FinetuneError::Engine(EngineError::Memory { .. }) => {
            anyhow!("{error}; lower batch.max_tokens or set compute.checkpointing=layer")
        }
        error => error.into(),
    })
}

/// Runs one seed after another and summarizes them. Ranks share the seeds: each of n ranks trains every n-th.
fn run_seeds(
    arguments: &Arguments,
    recipe: &FinetuneRecipe,
    sources: &FinetuneSources<'_>,
    worker: &Worker,
    stop: &AtomicBool,
) -> Result<ExitCode> {
    let Worker { device, communicator } = worker;
    let folder = |number: u64| arguments.output.join(format!("seed-{number}"));
    let is_mine = |number: &u64| (number - 1) % communicator.size() as u64 == communicator.rank() as u64;
    let (mut failed, mut stopped) = (false, false);
    let (first, peak) = (recipe.seed, device.peak());
    for number in (1..=arguments.seeds).filter(is_mine) {
        let folder = folder(number);
        if arguments.resume && FinetuneSummary::of_run(&folder)?.is_some() {
            tell!("seed {number} of {} is already done", arguments.seeds);
            continue;
        }
        tell!("seed {number} of {}", arguments.seeds);
        let recipe = FinetuneRecipe { seed: first + number - 1, ..recipe.clone() };
        let mode = if arguments.resume { StartMode::Resume } else { StartMode::New };
        let mut watch = Watch::new(peak, arguments.profile);
        let outcome = train_once(&recipe, sources, &folder, mode, device.clone().into(), &mut watch, stop)?;
        match outcome {
            Outcome::Finished(_) => {}
            Outcome::Stopped { .. } => {
                finish(&outcome, &folder, &watch)?;
                stopped = true;
                break;
            }
            // The remaining seeds still run.
            Outcome::Diverged { .. } => {
                finish(&outcome, &folder, &watch)?;
                failed = true;
            }
        }
    }
    // Ranks finish at different times.
    let timeout = communicator.set_timeout(ranks::LONGEST_RUN);
    let [failed, stopped] = communicator.sum_counts("outcomes of seeds", [failed, stopped].map(u64::from))?;
    communicator.set_timeout(timeout);
    if stopped > 0 {
        return Ok(ExitCode::from(signals::INTERRUPTED));
    }
    let code = if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if !communicator.is_first() {
        return Ok(code);
    }
    let mut runs = Vec::new();
    for number in 1..=arguments.seeds {
        runs.extend(FinetuneSummary::of_run(&folder(number))?);
    }
    summarize(runs, &arguments.output)?;
    Ok(code)
}

/// Prints the spread of `runs` over seeds and writes it to `folder`.
fn summarize(runs: Vec<FinetuneSummary>, folder: &Path) -> Result<()> {
    let seeds = runs.len();
    let collapsed = runs.iter().filter(|run| run.collapse.is_some()).count();
    let summary = SeedSummary::new(runs);
    summary.save(folder)?;
    let mut out = results();
    for (name, spread) in &summary.figures {
        let values = spread.values.iter().map(|value| format!("{value:.4}")).collect::<Vec<_>>().join(" ");
        writeln!(
            out,
            "{name}: median {:.4}, from {:.4} to {:.4}, standard deviation {:.4} over {} seeds ({values})",
            spread.median,
            spread.lowest,
            spread.highest,
            spread.deviation,
            spread.values.len()
        )?;
    }
    if collapsed > 0 {
        tell!("warning: {collapsed} of {seeds} seeds collapsed; see the advice above");
    }
    tell!("metrics written to {}", folder.join("summary.json").display());
    Ok(())
}

/// Prints the outcome of a run, except warnings already printed by `watch`, and returns its exit code.
fn finish(outcome: &Outcome<FinetuneSummary>, folder: &Path, watch: &Watch) -> Result<ExitCode> {
    let place = folder.display();
    match outcome {
        Outcome::Finished(summary) => {
            let early = if summary.stopped_early { ", stopped early: no improvement" } else { "" };
            tell!("done: {} steps in {}{early}; the model is in {place}", summary.step, duration(summary.seconds));
            if let Some(best) = &summary.best {
                writeln!(results(), "best at step {}: {}", summary.best_step, figures(best))?;
            }
            tell!("next: {} evaluate --model {place} --data DIR --split test", program());
            tell!("      {} report {place}", program());
            if let Some(collapse) =
                summary.collapse.as_ref().filter(|&collapse| watch.warned.as_ref() != Some(collapse))
            {
                tell!("warning: {collapse}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Outcome::Stopped { summary, saved } => {
            match saved {
                Some(path) => tell!(
                    "stopped at step {} and saved as {}; the model is in {place}; add --resume to the command to continue",
                    summary.step,
                    path.display()
                ),
                None => tell!(
                    "stopped at step {}; the model is in {place}; the run cannot be resumed, because \
                     run.checkpoint_interval is 0; remove that setting to resume stopped runs",
                    summary.step
                ),
            }
            Ok(ExitCode::from(signals::INTERRUPTED))
        }
        Outcome::Diverged { problem, step, .. } => {
            tell!("error: step {step}: {problem}; lower optimizer.learning_rate or optimizer.clip_norm");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Formats metrics as one line.
pub(super) fn figures(measured: &Measured) -> String {
    let figures: Vec<_> = measured.figures.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
    let loss = measured.loss.map_or(String::new(), |loss| format!(", loss {loss:.4}"));
    format!("{}{loss} on {} examples", figures.join(", "), measured.count)
}

/// Progress of a run on standard error.
pub(crate) struct Watch {
    progress: Progress,
    peak: Option<Peak>,
    profile: Profiling,
    loss: f64,
    weight: f64,
    /// The last warning.
    warned: Option<String>,
}

impl Watch {
    /// `peak` is that of the device ([`Device::peak`]), measured once for all runs of a command.
    pub(crate) fn new(peak: Option<Peak>, profile: Profiling) -> Self {
        Self { progress: Progress::idle(), peak, profile, loss: 0.0, weight: 0.0, warned: None }
    }
}

impl Observer<Finetuning> for Watch {
    fn started(&mut self, started: &Started<'_, FinetuneDetails>) {
        tell_start(started);
        let details = started.details;
        let report = &details.report;
        tell!("loaded {} tensors; randomly initialized: {}", report.loaded.len(), listed(&report.fresh));
        match &details.head {
            // Listed above.
            HeadOrigin::Initialized => {}
            head => tell!("{head}"),
        }
        if !report.ignored.is_empty() {
            tell!("ignored: {}", listed(&report.ignored));
        }
        tell!(
            "{} parameters; {} examples, {} in the dev set; {} steps, {} of warm-up, seed {}; {}; {} has a loss of {:.4}",
            started.parameters,
            details.examples,
            details.dev_examples,
            started.steps,
            details.warmup,
            details.seed,
            memory_text(&started.memory),
            details.baseline,
            details.chance,
        );
        if details.cut != [0, 0] {
            tell!(
                "truncated to text.max_sequence_length: {} training examples, {} dev examples",
                details.cut[0],
                details.cut[1]
            );
        }
        if let [first, ..] = &details.inexact[..] {
            tell!(
                "{} questions have an answer that does not align with token boundaries, such as {first:?}: it is widened to \
                 whole tokens, or counts as no answer if it has none",
                details.inexact.len()
            );
        }
        self.progress = Progress::new("step", started.step, started.steps);
    }

    fn micro_batch(&mut self, done: usize, all: usize) -> bool {
        self.progress.within(done, all);
        true
    }

    fn evaluating(&mut self) {
        self.progress.now("evaluating the dev set");
    }

    fn stepped(&mut self, report: &StepReport<FinetuneFigures>) {
        const KEEP: f64 = 0.95;
        self.weight = KEEP * self.weight + (1.0 - KEEP);
        self.loss = KEEP * self.loss + (1.0 - KEEP) * report.loss;
        let line = format!(
            "loss {:.4}, {:.0} tokens/s{}",
            self.loss / self.weight,
            report.tokens as f64 / report.seconds,
            roofline::share(self.peak, report.flops, report.seconds),
        );
        self.progress.step(report.step, &line);
    }

    fn evaluated(&mut self, record: &EvaluationRecord<DevFigures>, is_best: bool) {
        let best = if is_best { "; best so far" } else { "" };
        self.progress.note(&format!("dev set at step {}: {}{best}", record.step, figures(&record.figures.measured)));
        if let Some(collapse) = &record.figures.collapse {
            self.progress.note(&format!("warning: {collapse}"));
            self.warned = Some(collapse.clone());
        }
    }

    fn wants_profile(&self) -> bool {
        self.profile.on
    }

    fn profiled(&mut self, profile: &Profile) {
        self.progress.note(&profile.table(self.peak).to_string());
    }
}

/// Lists all names: random initialization is never silent.
fn listed(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}
