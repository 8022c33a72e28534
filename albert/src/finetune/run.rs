//! A run in a folder: steps, evaluations, the best model, reports; resumable to the bit.
//!
//! ```text
//! RUN/
//!   config.toml  task.json                     every setting, resolved; what the model is for
//!   metrics.jsonl  curves.svg  report.html
//!   config.json  model.safetensors  tokenizer.json  tokenizer_config.json
//!                                              the best model by the task's first metric (the last, without a dev set)
//!   summary.json                               how it ended
//!   predictions.jsonl                          what that model says of the dev set
//!   checkpoints/                               the last two training states, where `run.checkpoint_interval` wants them
//! ```
//!
//! A resumed run ends with the bits of one that was never interrupted: a checkpoint holds parameters, moments and all
//! counters; the order of examples and dropout are functions of seed and step.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use engine::io::{hash64, write_atomically};
use engine::{Device, EngineError};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::feature::Feature;
use super::measure::{FEW_STEPS, collapse};
use super::observer::{EvaluationRecord, Observer, Record, Started, TrainRecord};
use super::prediction::{Prediction, answers, predictions};
use super::report::draw;
use super::start::labels_of;
use super::{Examples, Featurizer, FinetuneError, Measured, Recipe, Start, StepReport, Task, Trainer, chance, measure};
use crate::checkpoint::{Checkpoints, LoadReport, SaveFormat, StateHeader, save_model_as};
use crate::config::Family;
use crate::report::MetricsLog;
use crate::training::{Begin, FolderLock, claim_folder, claim_present, expect_folder};

const METRICS: &str = "metrics.jsonl";

/// What a run learns, and from what.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// What is to be predicted.
    pub task: &'a Task,
    /// Examples to learn from.
    pub train: &'a Examples,
    /// Examples to measure on, if there are any.
    pub dev: Option<&'a Examples>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// All steps are done, or no evaluation got better for long enough.
    Finished(Summary),
    /// It was told to stop.
    Stopped(Summary),
    /// It went wrong.
    Diverged {
        /// What was noticed, in one sentence.
        problem: String,
        /// The step that was not taken.
        step: u64,
    },
}

/// Figures of a run at its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The seed.
    pub seed: u64,
    /// Steps done.
    pub step: u64,
    /// Seconds of training, over all starts.
    pub seconds: f64,
    /// Whether it stopped because nothing got better.
    pub stopped_early: bool,
    /// Step of the best model.
    pub best_step: u64,
    /// What was measured of the best model; absent without a dev set.
    pub best: Option<Measured>,
    /// What looked like a collapse at the last evaluation, and what to try.
    pub collapse: Option<String>,
}

/// The name of the file that a finished run leaves.
const SUMMARY: &str = "summary.json";

impl Summary {
    /// How the run in `folder` ended; `None` if it is not finished.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn of_run(folder: &Path) -> Result<Option<Self>, FinetuneError> {
        let path = folder.join(SUMMARY);
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
        let summary = serde_json::from_str(&text);
        summary
            .map(Some)
            .map_err(|error| FinetuneError::Data(format!("{}: {error}; remove the folder", path.display())))
    }

    fn save(&self, folder: &Path) -> Result<(), FinetuneError> {
        let mut text = serde_json::to_string_pretty(self).expect("a summary has string keys");
        text.push('\n');
        Ok(write_atomically(folder.join(SUMMARY), |out| out.write_all(text.as_bytes()))?)
    }
}

/// What a run remembers between steps beside its tensors; part of every checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Progress {
    seconds: f64,
    best_step: u64,
    best: Option<Measured>,
    /// Evaluations since the best.
    worse: u64,
    /// Step of the last evaluation.
    evaluated: u64,
    collapse: Option<String>,
    /// Since the last record.
    window: Window,
    /// Since the last evaluation.
    since: Window,
}

/// Sums over steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Window {
    loss: f64,
    accuracy: f64,
    steps: u64,
    tokens: u64,
    seconds: f64,
}

impl Window {
    fn add(&mut self, report: &StepReport) {
        self.loss += report.loss;
        self.accuracy += report.accuracy.unwrap_or(0.0);
        self.steps += 1;
        self.tokens += report.tokens;
        self.seconds += report.seconds;
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / self.steps.max(1) as f64
    }
}

/// Fine-tunes in `folder`. `stop` may be set at any time, by a signal for instance; it is looked at after every step.
///
/// # Errors
/// Recipe, examples, model and folder do not belong together, resuming was asked for with other settings, or a file
/// cannot be written.
pub fn finetune(
    recipe: &Recipe,
    sources: &Sources<'_>,
    folder: &Path,
    begin: Begin,
    device: Device,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Outcome, FinetuneError> {
    let mut run = Run::open(recipe, sources, folder, begin, device, observer)?;
    let profile = observer.wants_profile();
    run.trainer.workspace().profile().set(profile);
    let outcome = loop {
        if run.is_done() {
            break Outcome::Finished(run.finish(observer)?);
        }
        if stop.load(Ordering::Relaxed) {
            if run.trainer.recipe().run.checkpoint_interval > 0 {
                run.save(observer)?;
            }
            run.draw()?;
            break Outcome::Stopped(run.summary());
        }
        if let Some(diverged) = run.step(observer)? {
            run.draw()?;
            break diverged;
        }
    };
    if profile {
        observer.profiled(run.trainer.workspace().profile());
    }
    Ok(outcome)
}

struct Run<'s> {
    trainer: Trainer,
    sources: &'s Sources<'s>,
    dev: Vec<Feature>,
    chance: f64,
    family: Family,
    tokenizer: Vec<(&'static str, Vec<u8>)>,
    folder: PathBuf,
    checkpoints: Checkpoints,
    log: MetricsLog,
    progress: Progress,
    fingerprint: serde_json::Value,
    inputs: serde_json::Value,
    _lock: FolderLock,
}

impl<'s> Run<'s> {
    fn open(
        recipe: &Recipe,
        sources: &'s Sources<'s>,
        folder: &Path,
        begin: Begin,
        device: Device,
        observer: &mut dyn Observer,
    ) -> Result<Self, FinetuneError> {
        expect_folder(folder)?;
        // Before anything in it is read: what another process still writes must not be taken for the run's last state.
        let claimed = claim_present(folder)?;
        let (metrics, checkpoints) = (folder.join(METRICS), Checkpoints::of_run(folder));
        if begin == Begin::New && (metrics.exists() || folder.join("model.safetensors").exists()) {
            return Err(FinetuneError::Recipe(format!(
                "{} already holds a run; resume it, or choose another folder",
                folder.display()
            )));
        }
        let found = if begin == Begin::Resume { checkpoints.newest()? } else { None };
        let problem = &sources.task.problem;
        let cpu = device.processor().clone();
        let start = Start::load(recipe, problem, &cpu)?;
        let text = &recipe.text;
        let featurizer = Featurizer {
            tokenizer: &start.tokenizer,
            problem,
            max_sequence_length: text.max_sequence_length,
            max_question_length: text.max_question_length,
            stride: recipe.span.stride,
            keep_windows: false,
        };
        let train = cpu.install(|| featurizer.features(sources.train))?;
        let featurizer = Featurizer { keep_windows: true, ..featurizer };
        let dev = cpu.install(|| sources.dev.map(|dev| featurizer.features(dev)).transpose())?.unwrap_or_default();
        let inputs = json!({ "examples": format!("{:016x}", fingerprint_of(&train.list)) });
        let (family, tokenizer, report) = (start.family, start.tokenizer.to_files(), start.report.clone());
        let chance = chance(problem, &train.list);
        let cut = [train.cut, dev.cut];
        let inexact = train.inexact.iter().map(|&at| sources.train.id(at).to_owned()).collect::<Vec<_>>();
        let mut trainer = Trainer::new(recipe, problem, start, train.list, &dev.list, device)?;
        let fingerprint = recipe.fingerprint();
        let mut progress = Progress::default();
        if let Some(found) = &found {
            found.expect_config(&fingerprint)?;
            found.expect_inputs(&inputs)?;
            trainer.restore(found)?;
            progress = serde_json::from_value(found.header.progress.clone())
                .map_err(|error| FinetuneError::Recipe(format!("{}: its counters: {error}", found.path.display())))?;
        }
        let lock = claimed.map_or_else(|| claim_folder(folder), Ok)?;
        let text = recipe.to_toml();
        write_atomically(folder.join("config.toml"), |out| out.write_all(text.as_bytes()))?;
        sources.task.save(folder)?;
        let log = MetricsLog::resume::<Record>(&metrics, trainer.step())?;
        let run = Self {
            trainer,
            sources,
            dev: dev.list,
            chance,
            family,
            tokenizer,
            folder: folder.to_owned(),
            checkpoints,
            log,
            progress,
            fingerprint,
            inputs,
            _lock: lock,
        };
        run.tell(&report, cut, &inexact, observer);
        Ok(run)
    }

    fn tell(&self, report: &LoadReport, cut: [usize; 2], inexact: &[String], observer: &mut dyn Observer) {
        observer.started(&Started {
            seed: self.trainer.recipe().seed,
            parameters: self.trainer.params().len(),
            report,
            step: self.trainer.step(),
            steps: self.trainer.steps(),
            examples: self.sources.train.len(),
            cut,
            inexact,
            dev_examples: self.sources.dev.map_or(0, Examples::len),
            chance: self.chance,
            memory: self.trainer.memory(),
        });
    }

    fn is_done(&self) -> bool {
        let patience = self.trainer.recipe().evaluation.patience;
        self.trainer.step() >= self.trainer.steps().total || (patience > 0 && self.progress.worse >= patience)
    }

    /// One step and what is due after it; tells if the run went wrong.
    fn step(&mut self, observer: &mut dyn Observer) -> Result<Option<Outcome>, FinetuneError> {
        let report = match self.trainer.train_step() {
            Ok(report) => report,
            Err(FinetuneError::Engine(error @ EngineError::NotFinite { .. })) => {
                return Ok(Some(Outcome::Diverged { problem: error.to_string(), step: self.trainer.step() + 1 }));
            }
            Err(error) => return Err(error),
        };
        self.progress.seconds += report.seconds;
        self.progress.window.add(&report);
        self.progress.since.add(&report);
        observer.stepped(&report);
        let (step, run) = (report.step, &self.trainer.recipe().run);
        let due = |interval: u64| interval > 0 && step.is_multiple_of(interval);
        let (log, save) = (due(run.log_interval), due(run.checkpoint_interval));
        if log {
            self.record(&report)?;
        }
        if due(self.trainer.steps().evaluation) {
            self.evaluate(observer)?;
        }
        if save {
            self.save(observer)?;
        }
        Ok(None)
    }

    fn record(&mut self, last: &StepReport) -> Result<(), FinetuneError> {
        let window = std::mem::take(&mut self.progress.window);
        let record = TrainRecord {
            step: last.step,
            loss: window.mean(window.loss),
            accuracy: last.accuracy.map(|_| window.mean(window.accuracy)),
            learning_rate: last.learning_rate,
            gradient_norm: last.gradient_norm,
            tokens_per_second: window.tokens as f64 / window.seconds.max(1e-9),
            seconds: self.progress.seconds,
        };
        Ok(self.log.append(&Record::Train(record))?)
    }

    /// Measures the model on the dev set, and keeps it if it is the best.
    fn evaluate(&mut self, observer: &mut dyn Observer) -> Result<(), FinetuneError> {
        let Some(examples) = self.sources.dev else { return Ok(()) };
        let task = self.sources.task;
        let predictions = match examples {
            Examples::Questions(questions) => {
                let scores = self.trainer.window_scores(&self.dev)?;
                answers(questions, &self.dev, &scores, &task.span.decode)
            }
            _ => {
                let scores = self.trainer.scores(&self.dev)?;
                predictions(&task.problem, examples.len(), &self.dev, &scores)
            }
        };
        let Some(measured) = measure(task, examples, &predictions)? else {
            return Err(FinetuneError::Data(
                "no example of the dev set has a label, so nothing can be measured".into(),
            ));
        };
        let step = self.trainer.step();
        let since = std::mem::take(&mut self.progress.since);
        let steps = self.trainer.steps();
        let train_loss = since.mean(since.loss);
        // The last evaluation of a run may come a step after the one before, and the loss of one step is mostly noise.
        let judged = (since.steps >= steps.evaluation.min(FEW_STEPS)).then_some(train_loss);
        let is_warm = step >= steps.warmup && since.steps > 0;
        let collapse = collapse(self.trainer.recipe(), &measured, judged, self.chance, step, is_warm);
        let is_best = self.progress.best.as_ref().is_none_or(|best| measured.main() > best.main());
        self.progress.evaluated = step;
        self.progress.collapse.clone_from(&collapse);
        self.progress.worse += 1;
        if is_best {
            self.progress.worse = 0;
            self.progress.best_step = step;
            self.progress.best = Some(measured.clone());
            self.save_model()?;
            self.write_predictions(examples, &predictions)?;
        }
        let seconds = self.progress.seconds;
        let record = EvaluationRecord { step, measured, train_loss, is_best, collapse, seconds };
        self.log.append(&Record::Evaluation(record.clone()))?;
        observer.evaluated(&record);
        self.draw()
    }

    fn write_predictions(&self, examples: &Examples, predictions: &[Prediction]) -> Result<(), FinetuneError> {
        let task = self.sources.task;
        write_atomically(self.folder.join("predictions.jsonl"), |out| {
            predictions
                .iter()
                .enumerate()
                .try_for_each(|(at, prediction)| writeln!(out, "{}", prediction.to_json(examples.id(at), task)))
        })?;
        Ok(())
    }

    fn save_model(&mut self) -> Result<(), FinetuneError> {
        self.trainer.download()?;
        for (name, content) in &self.tokenizer {
            write_atomically(self.folder.join(name), |out| out.write_all(content))?;
        }
        let (params, model) = (self.trainer.params(), self.trainer.model());
        let labels = labels_of(&self.sources.task.problem);
        let format = SaveFormat { family: self.family, labels, ..SaveFormat::default() };
        save_model_as(&self.folder, model.config(), model.heads(), format, |name| {
            params.values(params.find(name).expect("the store was built from the same list"))
        })?;
        Ok(())
    }

    /// Writes a checkpoint of the run as it is.
    fn save(&mut self, observer: &mut dyn Observer) -> Result<(), FinetuneError> {
        let step = self.trainer.step();
        let header = StateHeader {
            version: StateHeader::VERSION,
            step,
            config: self.fingerprint.clone(),
            cursor: serde_json::Value::Null,
            inputs: self.inputs.clone(),
            progress: serde_json::to_value(&self.progress).expect("counters have string keys"),
        };
        let path = self.trainer.save(&self.checkpoints, &header)?;
        observer.saved(step, &path);
        Ok(())
    }

    fn finish(&mut self, observer: &mut dyn Observer) -> Result<Summary, FinetuneError> {
        if self.sources.dev.is_none() {
            self.save_model()?;
        } else if self.progress.evaluated != self.trainer.step() {
            self.evaluate(observer)?;
        }
        if self.trainer.recipe().run.checkpoint_interval > 0 {
            self.save(observer)?;
        }
        self.draw()?;
        let summary = self.summary();
        summary.save(&self.folder)?;
        Ok(summary)
    }

    fn draw(&self) -> Result<(), FinetuneError> {
        draw(&self.folder, self.sources.task, self.progress.best.as_ref(), self.trainer.recipe())
    }

    fn summary(&self) -> Summary {
        let Progress { seconds, best_step, best, collapse, .. } = self.progress.clone();
        let step = self.trainer.step();
        let stopped_early = step < self.trainer.steps().total && self.is_done();
        Summary { seed: self.trainer.recipe().seed, step, seconds, stopped_early, best_step, best, collapse }
    }
}

/// A hash over what is trained on, so that a run is not resumed on other examples.
fn fingerprint_of(features: &[Feature]) -> u64 {
    features.iter().fold(0, |hash, feature| {
        let text = format!("{hash:016x} {:?} {:?}", feature.content, feature.target);
        hash64(text.as_bytes())
    })
}
