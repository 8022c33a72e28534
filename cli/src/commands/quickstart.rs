//! `albert quickstart`: from the built-in text to a trained model and a classifier, within a number of minutes.
//!
//! ```text
//! text ── vocabulary, shards ── pre-training ──> model
//!   └──── a few sentences with labels ── fine-tuning of the model ──> classifier ── held-out sentences
//! ```
//!
//! The split is by document: vocabulary, pre-training and fine-tuning use only the training documents, and every metric is
//! measured on the held-out ones. The number of pre-training steps is derived from the speed of the machine ([`deadline`]);
//! the run's `config.toml` records each change and its step (`schedule.steps`, `schedule.replans`): `albert pretrain
//! RUN/config.toml -o OTHER` reproduces the run bit by bit.

use super::{
    books, data, deadline, finetune,
    pretrain::{self, utf8},
    text, with_precision,
};
use crate::{
    output::{program, results, tell},
    precision::Precision,
    progress::duration,
    roofline::Profiling,
    running::Threads,
    signals,
    tracing::Tracing,
};
use albert::{
    checkpoint::ModelFolder,
    data::{CorpusSettings, Documents, Side, SplitSettings, Splitter},
    pretrain::PretrainRecipe,
    report::{RunLog, sections, write_html},
    tokenizer::{self, Tokenizer, TrainerConfig},
    train::{Outcome, Setting, StartMode},
};
use albert_tasks::{
    files::Text,
    finetune::{
        DataFiles, DataSource, Examples, FinetuneRecipe, FinetuneSources, Loaded, Prediction, Predictor, Task, TaskName,
    },
};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use engine::{Communicator, Cpu, Device, io::write_atomically};
use std::{
    fs,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

static RECIPE: &str = include_str!("quickstart.toml");
static TASK_RECIPE: &str = include_str!("quickstart-task.toml");

/// Pieces of the vocabulary.
const VOCABULARY: usize = 4096;
/// Share of the time after which pre-training ends.
const PRETRAINING: f64 = 0.88;
/// Number of held-out sentences to show.
const SHOWN: usize = 5;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert quickstart
  albert quickstart --minutes 20 -o runs/longer --precision auto")]
pub(crate) struct Arguments {
    /// Total time in minutes, from the text to the classified sentences
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
    #[command(flatten)]
    trace: Tracing,
    /// Settings that override the recipe of pre-training, such as model.hidden_size=128
    #[arg(value_name = "SECTION.KEY=VALUE")]
    settings: Vec<Setting>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let started = Instant::now();
    arguments.threads.choose();
    let budget = deadline::budget(arguments.minutes)?;
    let folder = &arguments.output;
    utf8(folder)?;
    if !arguments.resume {
        expect_free(folder)?;
    }
    let stop = signals::stop_flag()?;
    arguments.trace.start(0)?;
    let cpu = Cpu::detect()?;
    let device = Device::Cpu(cpu.clone());
    ensure!(
        arguments.precision != Precision::Is(engine::Precision::Int8),
        "--precision int8 has no backward pass; choose another"
    );
    if arguments.precision == Precision::Is(engine::Precision::F32) && device.multiplies_bf16_faster() {
        tell!("note: --precision auto trains in bf16, which this machine multiplies faster");
    }
    let mut settings = vec![Setting::new("compute.precision", arguments.precision.on(&device).name())?];
    settings.extend_from_slice(&arguments.settings);
    let own = folder.join("config.toml");
    let (recipe, deadline, mode) = if arguments.resume && own.exists() {
        let text = fs::read_to_string(&own).with_context(|| format!("{} cannot be read", own.display()))?;
        let recipe =
            PretrainRecipe::from_toml(&text, &arguments.settings).with_context(|| own.display().to_string())?;
        (recipe, None, StartMode::Resume)
    } else {
        prepare(folder, &cpu)?;
        settings.push(Setting::new("input.data", utf8(&folder.join("data"))?)?);
        settings.push(Setting::new("input.tokenizer", utf8(&folder.join("tokenizer.json"))?)?);
        let mut recipe = PretrainRecipe::from_toml(RECIPE, &settings)?;
        let mut deadline = None;
        tell!("3. pre-training");
        // An explicit number of steps disables the deadline.
        if !arguments.settings.iter().any(pretrain::sets_steps) {
            let sources = pretrain::inputs(&recipe)?;
            let end = started + budget.mul_f64(PRETRAINING);
            let (plan, found) = deadline::fitting(&recipe, &sources, &device.clone().into(), end, &stop)?;
            recipe = PretrainRecipe::from_toml(RECIPE, &[&plan[..], &settings[..]].concat())?;
            deadline = Some(found);
        }
        (recipe, deadline, StartMode::New)
    };
    let outcome = pretrain::train(&recipe, folder, mode, device.clone(), arguments.profile, deadline, &stop)?;
    let Outcome::Finished(_) = &outcome else { return Ok(pretrain::finish(&outcome, folder)) };
    match classifier(arguments, folder, &device, recipe.seed, &stop)? {
        Ending::Shown => {}
        Ending::Stopped => {
            tell!("resume with: {} quickstart --resume -o {}", program(), folder.display());
            return Ok(ExitCode::from(signals::INTERRUPTED));
        }
        Ending::Diverged(problem) => bail!("fine-tuning: {problem}"),
    }
    report(folder, started)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of the run and prints the next commands.
fn report(folder: &Path, started: Instant) -> Result<()> {
    let page = folder.join("report.html");
    let logs = [(folder.to_owned(), "pre-training"), (folder.join("classifier"), "fine-tuning")]
        .map(|(folder, name)| RunLog::read(&folder, name));
    let [first, second] = logs;
    write_html(&page, "quickstart", &sections(&[first?, second?]))?;
    let (program, place) = (program(), folder.display());
    tell!("{} in all; curves and settings: {}", duration(started.elapsed().as_secs_f64()), page.display());
    tell!(
        "next: {program} classify --model {place}/classifier \"He was buried with his fathers in the city of David.\""
    );
    tell!("      {program} finetune classify --model {place} --train FILE.tsv -o runs/mine    columns: text, label");
    Ok(())
}

/// Writes vocabulary, shards and the sentences of the classification task to the run's folder.
fn prepare(folder: &Path, cpu: &Cpu) -> Result<()> {
    tell!("1. vocabulary of {VOCABULARY} pieces, from the training documents");
    let split = SplitSettings::default();
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let [training, held_out] = documents(&split)?;
    let tokenizer = train_tokenizer(cpu, &training.concat())?;
    let json = tokenizer.to_json()?;
    write_atomically(folder.join("tokenizer.json"), |out| out.write_all(json.as_bytes()))?;
    tell!("2. data: documents to shards, one document in ten held out");
    let index = cpu.install(|| {
        albert::data::build(
            vec![text::all()],
            &folder.join("data"),
            &CorpusSettings::default(),
            &split,
            &tokenizer,
            &Communicator::default(),
        )
    })?;
    data::report(&index);
    let task = folder.join("task");
    books::write(&task, &books::splits(&training, &held_out))?;
    Ok(write_atomically(task.join("recipe.toml"), |out| out.write_all(TASK_RECIPE.as_bytes()))?)
}

/// Returns an error if the folder is not empty.
fn expect_free(folder: &Path) -> Result<()> {
    let place = folder.display();
    match fs::read_dir(folder) {
        Ok(mut entries) => ensure!(
            entries.next().is_none(),
            "{place} already exists; remove it (rm -r '{place}'), choose another --output, or continue its run with --resume"
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("{place} cannot be used as a folder")),
    }
    Ok(())
}

/// Sentences of the training documents and of the held-out ones.
fn documents(split: &SplitSettings) -> Result<[Vec<Vec<String>>; 2]> {
    let mut splitter = Splitter::new(split);
    let [mut training, mut held_out] = [vec![], vec![]];
    for document in Documents::new(vec![text::all()], &CorpusSettings::default())? {
        let document = document?;
        let sentences = document.sentences().map(str::to_owned).collect();
        match splitter.assign(document.content_hash()) {
            Side::Train => training.push(sentences),
            Side::HeldOut => held_out.push(sentences),
        }
    }
    Ok([training, held_out])
}

/// Trains a vocabulary on `lines`.
fn train_tokenizer(cpu: &Cpu, lines: &[String]) -> Result<Tokenizer> {
    let config = TrainerConfig { vocab_size: VOCABULARY, ..TrainerConfig::default() };
    Ok(cpu.install(|| tokenizer::train(lines, &config, |_| ()))?)
}

/// Result of fine-tuning.
enum Ending {
    Shown,
    Stopped,
    Diverged(String),
}

/// Fine-tunes the model in `folder` to classify sentences by book, and prints its predictions for held-out sentences.
fn classifier(
    arguments: &Arguments,
    folder: &Path,
    device: &Device,
    seed: u64,
    stop: &Arc<AtomicBool>,
) -> Result<Ending> {
    tell!("4. fine-tuning on a few labelled sentences: which book is a sentence from?");
    let (task, output) = (folder.join("task"), folder.join("classifier"));
    let name: TaskName = "classify".parse()?;
    let base = FinetuneRecipe::for_task(name, &ModelFolder::open(folder)?.config().config);
    let mut recipe =
        base.with(TASK_RECIPE, &[Setting::new("input.model", utf8(folder)?)?, Setting::new("seed", seed)?])?;
    recipe.compute.precision = with_precision(&recipe.compute, device, &output).precision;
    let loaded = DataSource { task: name, settings: &recipe.data }.load(DataFiles::Folder(&task))?;
    let Loaded { problem, train, dev, .. } = loaded;
    let own = output.join("config.toml");
    let mode = if arguments.resume { StartMode::Resume } else { StartMode::New };
    if mode == StartMode::Resume && own.exists() {
        recipe = FinetuneRecipe::from_toml(&fs::read_to_string(&own)?)?;
    }
    let sources_task = Task::new(name, problem, &recipe);
    let sources = FinetuneSources { task: &sources_task, train: &train, dev: dev.as_ref() };
    let mut watch = finetune::Watch::new(None, arguments.profile);
    let outcome = finetune::train_once(&recipe, &sources, &output, mode, device.clone().into(), &mut watch, stop)?;
    match outcome {
        Outcome::Finished(_) => {}
        Outcome::Stopped { .. } => return Ok(Ending::Stopped),
        Outcome::Diverged { problem, .. } => return Ok(Ending::Diverged(problem)),
    }
    show(&output, device)?;
    Ok(Ending::Shown)
}

/// Prints the predictions for the first held-out sentences, and the accuracy on all, next to that of a bag of words.
fn show(classifier: &Path, device: &Device) -> Result<()> {
    let [training, held_out] = documents(&SplitSettings::default())?;
    let [train, _, test] = books::splits(&training, &held_out);
    let mut predictor = Predictor::load(&[classifier.to_owned()], device)?;
    let text =
        |example: &books::Example| Text { id: String::new(), first: example.text.clone(), second: None, label: None };
    let predictions = predictor.predict(&Examples::Texts(test.iter().map(text).collect()))?;
    let labels = predictor.task().problem.labels().to_vec();
    let mut right = 0;
    let mut out = results();
    for (at, (example, prediction)) in test.iter().zip(&predictions).enumerate() {
        let Prediction::Class(probabilities) = prediction else { bail!("the classifier predicts classes") };
        let best = (0..labels.len()).max_by(|&a, &b| probabilities[a].total_cmp(&probabilities[b])).unwrap_or(0);
        let is_right = labels[best] == example.label();
        right += usize::from(is_right);
        if at < SHOWN {
            let verdict = if is_right { "right" } else { "wrong" };
            writeln!(out, "{verdict}: {} ({:.2})  {}", labels[best], probabilities[best], example.text)?;
        }
    }
    writeln!(
        out,
        "right: {right} of {} sentences of held-out documents, {:.1} %; a bag of words from the same {} sentences: {:.1} %",
        test.len(),
        100.0 * right as f64 / test.len() as f64,
        train.len(),
        100.0 * books::bag_of_words(&train, &test)
    )?;
    Ok(())
}
