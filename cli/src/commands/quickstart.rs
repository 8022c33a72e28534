//! `albert quickstart`: the whole path on text that the program carries, within a number of minutes.
//!
//! The vocabulary is trained on the training documents alone, the split is by document, and the evaluation masks
//! held-out text the default way under a fixed seed: the figures at the end are honest. The number of steps is chosen
//! once, from the speed of a few trial steps; it is written to `config.toml`, so the run can be repeated to the bit.

use super::{data, fill_mask, pretrain};
use crate::{progress::duration, roofline::Profiling, signals};
use albert::{
    data::{CorpusSettings, Dataset, Documents, Side, Source, SplitSettings, Splitter, Vocabulary},
    fill_mask::MaskFiller,
    pretrain::{Begin, Observer, Outcome, Recipe, Sources, StepReport},
    report::EvaluationRecord,
    tokenizer::{self, Tokenizer, TrainerConfig},
};
use anyhow::{Context, Result, ensure};
use clap::Args;
use engine::{Cpu, Device};
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

/// English in the public domain, one sentence a line, blank lines between documents: novels of Jane Austen, the CIA World
/// Factbook, the manual of SQLite, the World English Bible, Spurgeon's Treasury of David.
static TEXT: &[u8] = include_bytes!("../../data/public_domain.txt");
static RECIPE: &str = include_str!("quickstart.toml");

/// Pieces of the vocabulary.
const VOCABULARY: usize = 4096;
/// Steps of the trial that measures the speed; the first ones are slower and are not counted.
const TRIAL_STEPS: u64 = 24;
const TRIAL_WARMUP: u64 = 8;
/// Share of the time left that steps are planned for; speed varies while others use the machine.
const CAUTION: f64 = 0.93;
/// Sentences that show what the model has learnt.
const EXAMPLES: [&str; 3] = [
    "The [MASK] of the country is bordered by the sea.",
    "She was very [MASK] to see her sister.",
    "And the [MASK] said to Moses, go to the people.",
];

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Time for everything, from the text to the filled masks
    #[arg(long, default_value_t = 3.5)]
    minutes: f64,
    /// Folder of the run; must not hold a run
    #[arg(short, long, default_value = "runs/quickstart")]
    output: PathBuf,
    #[command(flatten)]
    profile: Profiling,
    /// Settings over the recipe's, such as model.hidden_size=128
    #[arg(value_name = "SECTION.KEY=VALUE")]
    settings: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let started = Instant::now();
    let minutes = arguments.minutes;
    ensure!(minutes > 0.0 && minutes <= 10_000.0, "--minutes {minutes}: expected more than 0, at most 10000");
    let folder = free_folder(&arguments.output)?;
    let stop = signals::stop_flag()?;
    let cpu = Cpu::detect()?;
    eprintln!("1. vocabulary of {VOCABULARY} pieces, from the training documents");
    let split = SplitSettings::default();
    let tokenizer = train_tokenizer(&cpu, &split)?;
    let inputs = Inputs { tokenizer: folder.join("tokenizer.json"), data: folder.join("data") };
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    tokenizer.save(&inputs.tokenizer)?;
    eprintln!("2. data: documents to shards, one document in ten held out");
    let index = cpu.enter(|| {
        albert::data::build(vec![source()], &inputs.data, &CorpusSettings::default(), &split, &tokenizer, |_| ())
    })?;
    data::report(&index);
    eprintln!("3. speed of this machine");
    let trial = trial(&inputs, &tokenizer, &arguments.settings, &cpu, &stop)?;
    let left = 60.0 * minutes - started.elapsed().as_secs_f64() - trial.evaluation;
    let steps = ((CAUTION * left / trial.step) as u64).max(TRIAL_STEPS);
    let recipe = inputs.recipe(&arguments.settings, steps)?;
    eprintln!(
        "4. pre-training: {steps} steps of {:.0} ms, about {}",
        1000.0 * trial.step,
        duration(steps as f64 * trial.step)
    );
    let outcome = pretrain::train(&recipe, &folder, Begin::New, Device::Cpu(cpu.clone()), arguments.profile, &stop)?;
    let code = pretrain::finish(&outcome, &folder);
    if let Outcome::Finished(summary) = &outcome {
        eprintln!("5. what it learnt");
        show(&folder, cpu, summary.evaluation.as_ref())?;
        println!(
            "the curve is {}; {} in all",
            folder.join("curves.svg").display(),
            duration(started.elapsed().as_secs_f64())
        );
    }
    Ok(code)
}

/// `wanted`, or the first of `wanted-2`, `wanted-3`, ... that does not exist yet.
fn free_folder(wanted: &Path) -> Result<PathBuf> {
    let name = wanted.file_name().context("--output must name a folder")?.to_string_lossy().into_owned();
    let numbered = |n: u32| if n == 1 { wanted.to_owned() } else { wanted.with_file_name(format!("{name}-{n}")) };
    let free = (1..10_000).map(numbered).find(|folder| !folder.exists());
    free.with_context(|| format!("{} and all numbered folders beside it exist; remove some", wanted.display()))
}

fn source() -> Source {
    Source::Memory { name: "the program's public-domain text".to_owned(), text: Arc::from(TEXT) }
}

/// A vocabulary of the documents that will not be held out.
fn train_tokenizer(cpu: &Cpu, split: &SplitSettings) -> Result<Tokenizer> {
    let mut splitter = Splitter::new(split);
    let mut lines = Vec::new();
    for document in Documents::new(vec![source()], &CorpusSettings::default())? {
        let document = document?;
        if splitter.assign(document.content_hash()) == Side::Train {
            lines.extend(document.sentences().map(str::to_owned));
        }
    }
    let config = TrainerConfig { vocab_size: VOCABULARY, ..TrainerConfig::default() };
    Ok(cpu.enter(|| tokenizer::train(&lines, &config, |_| ()))?)
}

/// Where the run's inputs are.
struct Inputs {
    tokenizer: PathBuf,
    data: PathBuf,
}

impl Inputs {
    /// The recipe for `steps` steps.
    fn recipe(&self, settings: &[String], steps: u64) -> Result<Recipe> {
        let mut all = vec![
            format!("schedule.steps={steps}"),
            format!("schedule.warmup_steps={}", (steps / 10).clamp(1, 500)),
            format!("evaluation.interval={}", (steps / 8).max(1)),
            format!("run.checkpoint_interval={}", (steps / 4).max(1)),
            format!("input.data={:?}", self.data.to_str().context("the folder's path must be UTF-8")?),
            format!("input.tokenizer={:?}", self.tokenizer.to_str().context("the folder's path must be UTF-8")?),
        ];
        all.extend_from_slice(settings);
        Ok(Recipe::from_toml(RECIPE, &all)?)
    }
}

/// Seconds of a step and of all evaluations of a run.
struct Speed {
    step: f64,
    evaluation: f64,
}

/// Listens to the trial.
#[derive(Default)]
struct Clock {
    steps: Vec<f64>,
    last: Option<Instant>,
    evaluation: f64,
}

impl Observer for Clock {
    fn stepped(&mut self, report: &StepReport) {
        if report.step > TRIAL_WARMUP {
            self.steps.push(report.seconds);
        }
        self.last = Some(Instant::now());
    }

    fn evaluated(&mut self, _: &EvaluationRecord, _: bool) {
        self.evaluation = self.last.map_or(0.0, |last| last.elapsed().as_secs_f64());
    }
}

/// Trains a few steps in a folder that is removed again.
fn trial(
    inputs: &Inputs,
    tokenizer: &Tokenizer,
    settings: &[String],
    cpu: &Cpu,
    stop: &Arc<AtomicBool>,
) -> Result<Speed> {
    let folder = inputs.data.with_file_name("trial");
    let mut recipe = inputs.recipe(settings, TRIAL_STEPS)?.with_vocabulary(tokenizer.vocab_size())?;
    recipe.evaluation.interval = 0;
    recipe.run.checkpoint_interval = 0;
    let vocabulary = Arc::new(Vocabulary::of(tokenizer)?);
    let dataset = Dataset::open(&inputs.data, &vocabulary)?;
    let sources = Sources { dataset: &dataset, vocabulary: &vocabulary, tokenizer: &tokenizer.to_files() };
    let mut clock = Clock::default();
    let device = Device::Cpu(cpu.clone());
    albert::pretrain::pretrain(&recipe, &sources, &folder, Begin::New, device, stop, &mut clock)?;
    fs::remove_dir_all(&folder).with_context(|| format!("{} cannot be removed", folder.display()))?;
    clock.steps.sort_by(f64::total_cmp);
    let step = clock.steps.get(clock.steps.len() / 2).copied().unwrap_or(1.0);
    // Eight during the run and one at the end.
    Ok(Speed { step, evaluation: 9.0 * clock.evaluation })
}

/// Fills masks and says how far below the baseline the model ended.
fn show(folder: &Path, cpu: Cpu, evaluation: Option<&EvaluationRecord>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut filler = MaskFiller::load(folder, Device::Cpu(cpu))?;
    for text in EXAMPLES {
        fill_mask::print(&mut out, text, &filler.fill(text, 5)?)?;
    }
    drop(out);
    let record = evaluation.context("the run ended without an evaluation")?;
    println!("{}", pretrain::evaluation_line(record, false));
    Ok(())
}
