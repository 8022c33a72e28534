//! `albert quickstart`: from the text inside the program to a trained model, within a number of minutes.
//!
//! The vocabulary is trained on the training documents alone, the split is by document, and the evaluation masks
//! held-out text under a fixed seed, so that no figure is measured on training text. The number of steps follows from the
//! speed of a few trial steps, and changes during the run if the machine becomes slower or faster ([`Deadline`]). The run's
//! `config.toml` records each change and its step (`schedule.steps`, `schedule.replans`):
//! `albert pretrain RUN/config.toml -o OTHER` repeats the run to the bit.

use super::{data, deadline::Deadline, fill_mask, pretrain, text};
use crate::{
    output::{results, tell},
    precision::Precision,
    progress::duration,
    roofline::Profiling,
    running::Threads,
    signals,
};
use albert::{
    data::{CorpusSettings, Documents, Side, SplitSettings, Splitter},
    fill_mask::MaskFiller,
    pretrain::{HeldOutFigures, PretrainFigures, PretrainRecipe, PretrainSources, Pretraining},
    tokenizer::{self, Tokenizer, TrainerConfig},
    train::{EvaluationRecord, Observer, Outcome, StartMode, StepReport},
};
use anyhow::{Context, Result, ensure};
use clap::Args;
use engine::{Communicator, Cpu, Device, io::write_atomically};
use std::{
    fs,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

static RECIPE: &str = include_str!("quickstart.toml");

/// Pieces of the vocabulary.
const VOCABULARY: usize = 4096;
/// Maximum steps of the trial that measures the speed, and its maximum share of the time; the first steps are slower and are
/// not counted if there are others.
const TRIAL_STEPS: u64 = 24;
const TRIAL_SHARE: f64 = 0.08;
const TRIAL_WARMUP: usize = 8;
/// Steps that take as long as an evaluation where the trial had no time for one: 680 held-out sequences against 64 a step,
/// without the backward pass.
const EVALUATION_STEPS: f64 = 4.0;
/// Share of the time left that steps are planned for; the speed of a shared machine varies.
const CAUTION: f64 = 0.93;
/// Maximum evaluations of a run, and their maximum share of its time.
const EVALUATIONS: f64 = 9.0;
const EVALUATION_SHARE: f64 = 0.15;
/// Training time in seconds below which a note says what to expect; after 240 s the fills were frequent words.
const SHORT: f64 = 600.0;
/// Held-out sentences to fill at the end, and their words.
const PROMPTS: usize = 5;
const WORDS: std::ops::RangeInclusive<usize> = 7..=14;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert quickstart
  albert quickstart --minutes 20 -o runs/longer --precision auto")]
pub(crate) struct Arguments {
    /// Total time in minutes, from the text to the filled masks
    #[arg(long, default_value_t = 3.5)]
    minutes: f64,
    /// Run folder; must not exist or be empty, unless --resume is given
    #[arg(short, long, default_value = "runs/quickstart")]
    output: PathBuf,
    /// Resume the run in the folder with its plan
    #[arg(long)]
    resume: bool,
    /// f32, bf16, bf16x3, bf16x6 or auto: bf16 if this machine multiplies it faster than f32
    #[arg(long, default_value = "f32")]
    precision: Precision,
    #[command(flatten)]
    threads: Threads,
    #[command(flatten)]
    profile: Profiling,
    /// Settings that override the recipe, such as model.hidden_size=128
    #[arg(value_name = "SECTION.KEY=VALUE")]
    settings: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let started = Instant::now();
    arguments.threads.choose();
    let minutes = arguments.minutes;
    ensure!(minutes > 0.0 && minutes <= 10_000.0, "--minutes {minutes}: expected more than 0, at most 10000");
    let folder = arguments.output.clone();
    if !arguments.resume {
        expect_free(&folder)?;
    }
    let stop = signals::stop_flag()?;
    let cpu = Cpu::detect()?;
    let device = Device::Cpu(cpu.clone());
    ensure!(
        arguments.precision != Precision::Is(engine::Precision::Int8),
        "--precision int8 has no backward pass; choose another"
    );
    if arguments.precision == Precision::Is(engine::Precision::F32) && device.multiplies_bf16_faster() {
        tell!("note: --precision auto trains in bf16, which this machine multiplies faster");
    }
    let precision = format!("compute.precision={:?}", arguments.precision.on(&device).name());
    let settings = [&[precision], &arguments.settings[..]].concat();
    let own = folder.join("config.toml");
    let (recipe, deadline, mode) = if arguments.resume && own.exists() {
        let text = fs::read_to_string(&own).with_context(|| format!("{} cannot be read", own.display()))?;
        let recipe =
            PretrainRecipe::from_toml(&text, &arguments.settings).with_context(|| own.display().to_string())?;
        (recipe, None, StartMode::Resume)
    } else {
        let (recipe, deadline) = prepare((arguments.minutes, &settings), &folder, &cpu, started, &stop)?;
        // An explicit number of steps has no deadline.
        let is_set = arguments.settings.iter().any(|setting| setting.trim_start().starts_with("schedule.steps"));
        (recipe, (!is_set).then_some(deadline), StartMode::New)
    };
    let outcome = pretrain::train(&recipe, &folder, mode, device, arguments.profile, deadline, &stop)?;
    let code = pretrain::finish(&outcome, &folder);
    if let Outcome::Finished(summary) = &outcome {
        show(&folder, cpu, summary.evaluation.as_ref())?;
        writeln!(
            results(),
            "the curve is {}; {} in all",
            folder.join("curves.svg").display(),
            duration(started.elapsed().as_secs_f64())
        )?;
        if summary.seconds < SHORT {
            tell!(
                "a run of a few minutes fills masks with \"the\", \"of\" and \",\", because frequent words are learned first; \
                 raise --minutes for a lower loss"
            );
        }
    }
    Ok(code)
}

/// Writes vocabulary and data to the run's folder and plans the run.
fn prepare(
    (minutes, settings): (f64, &[String]),
    folder: &Path,
    cpu: &Cpu,
    started: Instant,
    stop: &Arc<AtomicBool>,
) -> Result<(PretrainRecipe, Deadline)> {
    tell!("1. vocabulary of {VOCABULARY} pieces, from the training documents");
    let split = SplitSettings::default();
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let tokenizer = train_tokenizer(cpu, &split)?;
    let inputs = Inputs { tokenizer: folder.join("tokenizer.json"), data: folder.join("data") };
    let json = tokenizer.to_json()?;
    write_atomically(&inputs.tokenizer, |out| out.write_all(json.as_bytes()))?;
    tell!("2. data: documents to shards, one document in ten held out");
    let index = cpu.install(|| {
        albert::data::build(
            vec![text::all()],
            &inputs.data,
            &CorpusSettings::default(),
            &split,
            &tokenizer,
            &Communicator::default(),
        )
    })?;
    data::report(&index);
    tell!("3. speed of this machine");
    let budget = Duration::from_secs_f64(60.0 * minutes);
    let end = Instant::now() + budget.mul_f64(TRIAL_SHARE);
    let trial = trial(&inputs, &tokenizer, settings, cpu, (end, stop))?;
    let left = budget.as_secs_f64() - started.elapsed().as_secs_f64();
    let evaluations = (EVALUATION_SHARE * left / trial.evaluation).floor().clamp(1.0, EVALUATIONS);
    let steps = ((CAUTION * (left - evaluations * trial.evaluation) / trial.step) as u64).max(1);
    let recipe = inputs.recipe(settings, steps, evaluations as u64)?;
    tell!(
        "4. pre-training: {steps} steps of {:.0} ms, about {}",
        1000.0 * trial.step,
        duration(steps as f64 * trial.step)
    );
    Ok((recipe, Deadline::new(started + budget, trial.evaluation)))
}

/// Returns an error if the folder is not empty.
fn expect_free(folder: &Path) -> Result<()> {
    let place = folder.display();
    match fs::read_dir(folder) {
        Ok(mut entries) => ensure!(
            entries.next().is_none(),
            "{place} already exists; remove it, choose another --output, or continue its run with --resume"
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("{place} cannot be used as a folder")),
    }
    Ok(())
}

/// Sentences of the documents on one side of the split.
fn sentences(split: &SplitSettings, side: Side) -> Result<Vec<String>> {
    let mut splitter = Splitter::new(split);
    let mut sentences = Vec::new();
    for document in Documents::new(vec![text::all()], &CorpusSettings::default())? {
        let document = document?;
        if splitter.assign(document.content_hash()) == side {
            sentences.extend(document.sentences().map(str::to_owned));
        }
    }
    Ok(sentences)
}

/// Trains a vocabulary on the documents that are not held out.
fn train_tokenizer(cpu: &Cpu, split: &SplitSettings) -> Result<Tokenizer> {
    let lines = sentences(split, Side::Train)?;
    let config = TrainerConfig { vocab_size: VOCABULARY, ..TrainerConfig::default() };
    Ok(cpu.install(|| tokenizer::train(&lines, &config, |_| ()))?)
}

/// Paths of the run's inputs.
struct Inputs {
    tokenizer: PathBuf,
    data: PathBuf,
}

impl Inputs {
    /// Recipe of `steps` steps and `evaluations` evaluations, the last at the end.
    fn recipe(&self, settings: &[String], steps: u64, evaluations: u64) -> Result<PretrainRecipe> {
        let mut all = vec![
            format!("schedule.steps={steps}"),
            format!("schedule.warmup_steps={}", (steps / 10).clamp(1, 500)),
            format!("evaluation.interval={}", steps.div_ceil(evaluations)),
            format!("run.checkpoint_interval={}", (steps / 4).max(1)),
            format!("input.data={:?}", self.data.to_str().context("the folder's path must be UTF-8")?),
            format!("input.tokenizer={:?}", self.tokenizer.to_str().context("the folder's path must be UTF-8")?),
        ];
        all.extend_from_slice(settings);
        Ok(PretrainRecipe::from_toml(RECIPE, &all)?)
    }
}

/// Seconds of a step and of an evaluation.
struct Speed {
    step: f64,
    evaluation: f64,
}

/// Times the trial, and ends it when its share of the time is over or the user stops the program.
struct Clock<'s> {
    steps: Vec<f64>,
    last: Option<Instant>,
    evaluation: Option<f64>,
    end: Instant,
    user: &'s AtomicBool,
    enough: &'s AtomicBool,
}

impl Observer<Pretraining> for Clock<'_> {
    fn stepped(&mut self, report: &StepReport<PretrainFigures>) {
        self.steps.push(report.seconds);
        self.last = Some(Instant::now());
        let is_enough = self.steps.len() >= 2 && Instant::now() >= self.end;
        self.enough.store(is_enough || self.user.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn evaluated(&mut self, _: &EvaluationRecord<HeldOutFigures>, _: bool) {
        self.evaluation = self.last.map(|last| last.elapsed().as_secs_f64());
    }
}

/// Trains a few steps in a temporary folder.
fn trial(
    inputs: &Inputs,
    tokenizer: &Tokenizer,
    settings: &[String],
    cpu: &Cpu,
    (end, stop): (Instant, &AtomicBool),
) -> Result<Speed> {
    let folder = inputs.data.with_file_name("trial");
    // Left by a killed attempt.
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("{} cannot be removed", folder.display()))?;
    }
    let mut recipe = inputs.recipe(settings, TRIAL_STEPS, 1)?;
    recipe.evaluation.interval = 0;
    recipe.run.checkpoint_interval = Some(0);
    let sources = PretrainSources::open(&inputs.data, tokenizer)?;
    let enough = AtomicBool::new(false);
    let mut clock = Clock { steps: Vec::new(), last: None, evaluation: None, end, user: stop, enough: &enough };
    let device = Device::Cpu(cpu.clone());
    albert::pretrain::pretrain(&recipe, &sources, &folder, StartMode::New, device, &enough, &mut clock)?;
    fs::remove_dir_all(&folder).with_context(|| format!("{} cannot be removed", folder.display()))?;
    let warm = clock.steps.split_off(TRIAL_WARMUP.min(clock.steps.len() - 1));
    let step = median(warm);
    let evaluation = clock.evaluation.unwrap_or(EVALUATION_STEPS * step);
    Ok(Speed { step, evaluation })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Held-out sentences, evenly spread, whose longest word that is a single piece is masked, and that word.
fn prompts(tokenizer: &Tokenizer) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for sentence in sentences(&SplitSettings::default(), Side::HeldOut)? {
        let words: Vec<&str> = sentence.split(' ').collect();
        if !WORDS.contains(&words.len()) {
            continue;
        }
        let mut longest: Option<usize> = None;
        for (at, word) in words.iter().enumerate() {
            let is_longer = longest.is_none_or(|longest| word.len() > words[longest].len());
            if is_longer && word.bytes().all(|c| c.is_ascii_lowercase()) && tokenizer.encode(word)?.len() == 1 {
                longest = Some(at);
            }
        }
        if let Some(at) = longest {
            let masked = [&words[..at], &["[MASK]"], &words[at + 1..]].concat().join(" ");
            all.push((masked, words[at].to_owned()));
        }
    }
    ensure!(all.len() >= PROMPTS, "the held-out text has {} sentences to fill", all.len());
    let step = all.len() / PROMPTS;
    Ok(all.into_iter().skip(step / 2).step_by(step).take(PROMPTS).collect())
}

/// Prints held-out sentences with filled masks beside the words that were there, and the loss relative to the baseline.
fn show(folder: &Path, cpu: Cpu, evaluation: Option<&EvaluationRecord<HeldOutFigures>>) -> Result<()> {
    let mut out = results();
    let mut filler = MaskFiller::load(folder, Device::Cpu(cpu))?;
    for (text, word) in prompts(&Tokenizer::load(folder)?)? {
        let candidates = filler.fill(&text, 5)?.concat();
        writeln!(out, "{text}\n    {word}: {}", fill_mask::line(&candidates))?;
    }
    let record = evaluation.context("the run ended without an evaluation")?;
    writeln!(out, "{}", pretrain::evaluation_line(record, false))?;
    Ok(())
}
