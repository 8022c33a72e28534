//! A run in a folder: steps, evaluations, the best model, reports; bit-exact when resumed.
//!
//! ```text
//! RUN/
//!   config.toml  task.json                     every setting, resolved; the task of the model
//!   metrics.jsonl  curves.svg  report.html
//!   config.json  model.safetensors  tokenizer.json  tokenizer_config.json
//!                                              the best model by the task's first metric (the last, without a dev set)
//!   summary.json                               result of the finished run
//!   predictions.jsonl                          predictions of the best model for the dev set
//!   checkpoints/                               the last two training states: one every `run.checkpoint_interval` steps and
//!                                              one when the run is stopped; none with an interval of 0
//! ```
//!
//! A resumed run ends with the same bits as an uninterrupted one: a checkpoint holds parameters, moments and all
//! counters; the order of examples and dropout are functions of seed and step.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use engine::io::{hash64, write_atomically};
use engine::{Device, EngineError};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::feature::Feature;
use super::measure::{Evaluated, FEW_STEPS, Measurer, collapse};
use super::observer::{EvaluationRecord, Observer, Record, Started, TrainRecord};
use super::prediction::{Prediction, answers, predictions};
use super::report::draw;
use super::start::{HeadOrigin, labels_of};
use super::trainer::rows_of;
use super::{
    Examples, Featurizer, FinetuneError, Measured, Recipe, Start, StepReport, Task, Trainer, baseline, chance, measure,
};
use crate::checkpoint::{Checkpoints, LoadReport, SaveFormat, StateHeader, save_model_as};
use crate::config::Family;
use crate::report::MetricsLog;
use crate::training::{Begin, FolderLock, claim_folder, claim_present, expect_folder};

const METRICS: &str = "metrics.jsonl";

/// Task and examples of a run.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// Task of the model.
    pub task: &'a Task,
    /// Training examples.
    pub train: &'a Examples,
    /// Dev examples, if there are any.
    pub dev: Option<&'a Examples>,
}

/// Outcome of [`finetune`].
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// All steps are done, or the patience is exhausted.
    Finished(Summary),
    /// `stop` was set.
    Stopped {
        /// Results so far.
        summary: Summary,
        /// Checkpoint for resuming; `None` with `run.checkpoint_interval = 0`.
        saved: Option<PathBuf>,
    },
    /// A loss or gradient norm was not finite.
    Diverged {
        /// Message in one sentence.
        problem: String,
        /// The step that was not taken.
        step: u64,
    },
}

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Seed of the run.
    pub seed: u64,
    /// Steps done.
    pub step: u64,
    /// Training time in seconds, including the time before a resumption.
    pub seconds: f64,
    /// True if the run stopped before its last step because the patience was exhausted.
    pub stopped_early: bool,
    /// Step of the best model.
    pub best_step: u64,
    /// Metrics of the best model; `None` without a dev set.
    pub best: Option<Measured>,
    /// Warning about a collapse at the last evaluation, with remedies.
    pub collapse: Option<String>,
}

/// Name of the summary file of a finished run.
const SUMMARY: &str = "summary.json";

impl Summary {
    /// Summary of the run in `folder`; `None` if it is not finished.
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

/// State of a run besides its tensors; part of every checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Progress {
    seconds: f64,
    best_step: u64,
    best: Option<Measured>,
    /// Evaluations since the best one.
    worse: u64,
    /// Step of the last evaluation.
    evaluated: u64,
    collapse: Option<String>,
    /// Sums since the last record.
    window: Window,
    /// Sums since the last evaluation.
    since: Window,
    /// Number of metrics records at the time of the checkpoint; absent in checkpoints of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    records: Option<u64>,
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

/// Runs fine-tuning in `folder`. `stop` may be set at any time, for instance by a signal; it is checked after every
/// step.
///
/// # Errors
/// Recipe, examples, model and folder do not match, a resumed run has other settings, or a file cannot be written.
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
            let keeps_state = run.trainer.recipe().run.checkpoint_interval != Some(0);
            let saved = keeps_state.then(|| run.save(observer)).transpose()?;
            run.draw()?;
            break Outcome::Stopped { summary: run.summary(), saved };
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
    /// Number of truncated pieces of each dev example.
    dev_cut: Vec<usize>,
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
        // Locked before anything is read: another process may still be writing its state there.
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
        let (family, tokenizer, report) = (start.family, start.tokenizer.to_files()?, start.report.clone());
        let head = start.head.clone();
        let chance = chance(problem, &train.list);
        let cut = [train.cut(), dev.cut()];
        let inexact = train.inexact.iter().map(|&at| sources.train.id(at).to_owned()).collect::<Vec<_>>();
        let mut trainer = Trainer::new(recipe, problem, start, train.list, &dev.list, device)?;
        let fingerprint = recipe.fingerprint();
        let mut progress = Progress::default();
        if let Some(found) = &found {
            found.expect_config(&fingerprint)?;
            found.expect_inputs(&inputs)?;
            trainer.restore(found)?;
            progress = serde_json::from_value(found.header.progress.clone())
                .map_err(|error| FinetuneError::Recipe(format!("{}: bad counters: {error}", found.path.display())))?;
        }
        let lock = claimed.map_or_else(|| claim_folder(folder), Ok)?;
        let text = recipe.to_toml();
        write_atomically(folder.join("config.toml"), |out| out.write_all(text.as_bytes()))?;
        sources.task.of_examples(sources.train).save(folder)?;
        if found.is_some() {
            checkpoints.tidy(trainer.step())?;
        }
        // Without a checkpoint the run starts over, and records of an earlier attempt are dropped.
        let counted = if found.is_some() { progress.records } else { Some(0) };
        let (log, cut_off) = MetricsLog::resume::<Record>(&metrics, trainer.step(), counted)?;
        let run = Self {
            trainer,
            sources,
            dev: dev.list,
            dev_cut: dev.truncated,
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
        run.tell(&report, &head, cut, &inexact, cut_off.as_deref(), observer);
        Ok(run)
    }

    fn tell(
        &self,
        report: &LoadReport,
        head: &HeadOrigin,
        cut: [usize; 2],
        inexact: &[String],
        note: Option<&str>,
        observer: &mut dyn Observer,
    ) {
        observer.started(&Started {
            seed: self.trainer.recipe().seed,
            parameters: self.trainer.params().len(),
            report,
            head,
            step: self.trainer.step(),
            steps: self.trainer.steps(),
            examples: self.sources.train.len(),
            cut,
            inexact,
            note,
            dev_examples: self.sources.dev.map_or(0, Examples::len),
            chance: self.chance,
            baseline: baseline(&self.sources.task.problem),
            memory: self.trainer.memory(),
        });
    }

    fn is_done(&self) -> bool {
        let patience = self.trainer.recipe().evaluation.patience;
        self.trainer.step() >= self.trainer.steps().total || (patience > 0 && self.progress.worse >= patience)
    }

    /// Runs one step, then logging, evaluation and checkpoint if due. Returns an outcome if the run diverged.
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
        let (log, save) = (due(run.log_interval), due(run.checkpoint_interval.unwrap_or(0)));
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

    /// Evaluates the model on the dev set and saves it if it is the best so far.
    fn evaluate(&mut self, observer: &mut dyn Observer) -> Result<(), FinetuneError> {
        let Some(examples) = self.sources.dev else { return Ok(()) };
        let (measured, lines) = self.predict(examples)?;
        let step = self.trainer.step();
        let since = std::mem::take(&mut self.progress.since);
        let steps = self.trainer.steps();
        let train_loss = since.mean(since.loss);
        // The last evaluation may follow the previous one after a single step, whose loss is mostly noise.
        let judged = (since.steps >= steps.evaluation.min(FEW_STEPS)).then_some(train_loss);
        let is_best = self.progress.best.as_ref().is_none_or(|best| measured.is_better_than(best));
        let patience = self.trainer.recipe().evaluation.patience;
        let is_over = step >= steps.total || (patience > 0 && !is_best && self.progress.worse + 1 >= patience);
        let evaluated = Evaluated {
            problem: &self.sources.task.problem,
            measured: &measured,
            loss: judged,
            chance: self.chance,
            step,
            is_warm: step >= steps.warmup && since.steps > 0,
            is_last: is_over,
        };
        let collapse = collapse(self.trainer.recipe(), evaluated);
        self.progress.evaluated = step;
        // One warning per collapse, not per evaluation.
        let is_news = self.progress.collapse.is_none();
        self.progress.collapse.clone_from(&collapse);
        self.progress.worse += 1;
        if is_best {
            self.progress.worse = 0;
            self.progress.best_step = step;
            self.progress.best = Some(measured.clone());
            self.save_model()?;
            write_atomically(self.folder.join("predictions.jsonl"), |out| out.write_all(lines.as_bytes()))?;
        }
        let (seconds, collapse) = (self.progress.seconds, collapse.filter(|_| is_news));
        let record = EvaluationRecord { step, measured, train_loss, is_best, collapse, seconds };
        self.log.append(&Record::Evaluation(record.clone()))?;
        observer.evaluated(&record);
        self.draw()
    }

    /// Metrics on the dev set, and its predictions as JSON lines.
    fn predict(&mut self, examples: &Examples) -> Result<(Measured, String), FinetuneError> {
        let task = self.sources.task;
        let mut lines = String::new();
        let mut write = |first: usize, predictions: &[Prediction], cut: &[usize]| {
            for (at, prediction) in (first..).zip(predictions) {
                lines += &prediction.to_json(examples.id(at), task, cut[at]);
                lines.push('\n');
            }
        };
        if let Examples::Questions(questions) = examples {
            let scores = self.trainer.window_scores(&self.dev)?;
            let predictions = answers(questions, &self.dev, &scores, &task.span.decode);
            write(0, &predictions, &self.dev_cut);
            let measured = measure(task, examples, &predictions)?.expect("questions are measured");
            return Ok((measured, lines));
        }
        let mut measurer = Measurer::new(task, examples);
        let (mut rest, mut first) = (&self.dev[..], 0);
        while first < examples.len() {
            let part = part_of(rest, labels_of(&task.problem).len());
            rest = &rest[part.len()..];
            let end = rest.first().map_or(examples.len(), |next| next.example);
            let scores = self.trainer.scores(part)?;
            let predictions = predictions(&task.problem, first..end, part, &scores);
            measurer.add(first, &predictions);
            write(first, &predictions, &self.dev_cut);
            first = end;
        }
        let measured = measurer.finish().ok_or_else(|| {
            FinetuneError::Data("no example of the dev set has a label; nothing can be measured".into())
        })?;
        Ok((measured, lines))
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

    /// Writes a checkpoint of the current state.
    fn save(&mut self, observer: &mut dyn Observer) -> Result<PathBuf, FinetuneError> {
        let step = self.trainer.step();
        // Records that the checkpoint counts must be on disk before it.
        self.log.sync()?;
        self.progress.records = Some(self.log.records());
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
        Ok(path)
    }

    fn finish(&mut self, observer: &mut dyn Observer) -> Result<Summary, FinetuneError> {
        if self.sources.dev.is_none() {
            self.save_model()?;
        } else if self.progress.evaluated != self.trainer.step() {
            self.evaluate(observer)?;
        }
        let keeps_state = match self.trainer.recipe().run.checkpoint_interval {
            // A state written at an earlier stop would otherwise stay older than the run.
            None => self.checkpoints.newest()?.is_some(),
            Some(interval) => interval > 0,
        };
        if keeps_state {
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

/// Maximum number of scores that an evaluation holds at a time: 64 MiB.
const SCORES: usize = 1 << 24;

/// Longest prefix of `features` of whole examples with at most [`SCORES`] scores over `classes` classes; at least one
/// example.
fn part_of(features: &[Feature], classes: usize) -> &[Feature] {
    let (mut end, mut rows) = (0, 0);
    for example in features.chunk_by(|a, b| a.example == b.example) {
        rows += example.iter().map(rows_of).sum::<usize>();
        if end > 0 && rows.saturating_mul(classes.max(1)) > SCORES {
            break;
        }
        end += example.len();
    }
    &features[..end]
}

/// Hash of the training features, so that a run is not resumed with other examples.
fn fingerprint_of(features: &[Feature]) -> u64 {
    features.iter().fold(0, |hash, feature| {
        let text = format!("{hash:016x} {:?} {:?}", feature.content, feature.target);
        hash64(text.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::super::feature::{Content, Target};
    use super::*;
    use crate::tasks::Sequence;

    #[test]
    fn parts_are_of_whole_examples_and_bounded() {
        let feature = |example| Feature {
            example,
            content: Content::One(Sequence { ids: vec![0; 4], second: 4 }),
            target: Target::Words { first: 0, pieces: vec![1, 2], tags: vec![0, 0] },
        };
        // Two features per example, two rows per feature.
        let features: Vec<Feature> = (0..200).map(|at| feature(at / 2)).collect();
        assert_eq!(part_of(&features, 2).len(), 200);
        // Ten examples have 40 rows.
        assert_eq!(part_of(&features, SCORES / 40).len(), 20);
        assert_eq!(part_of(&features, SCORES / 39).len(), 18);
        assert_eq!(part_of(&features, usize::MAX).len(), 2);
        assert_eq!(part_of(&features[..0], 2).len(), 0);
    }
}
