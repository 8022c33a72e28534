//! The run: steps, evaluations, checkpoints and reports until it is done, told to stop, or gone wrong.
//!
//! ```text
//! RUN/
//!   config.toml                     every setting, resolved
//!   metrics.jsonl  events.out.tfevents.*  curves.svg
//!   config.json  model.safetensors  tokenizer.json  tokenizer_config.json
//!                                   the best model so far (the last, if nothing is evaluated)
//!   last/                           the model at the end, in the same layout
//!   checkpoints/                    the last two training states
//! ```
//!
//! A resumed run ends with the bits of one that was never interrupted: the checkpoint holds parameters, moments, the
//! place in the data and all counters; masks and dropout are functions of seed, step and place. A kill at any moment
//! costs the steps since the last checkpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::io::write_atomically;
use engine::{Device, EngineError};
use serde_json::json;

use super::observer::{Observer, Started, StepReport};
use super::progress::Progress;
use super::trainer::Trainer;
use super::{PretrainError, Recipe};
use crate::checkpoint::{Checkpoints, LoadedState, StateHeader, save_model};
use crate::data::{Baseline, Batch, DataError, Dataset, EvaluationSet, Side, Unigram, Vocabulary};
use crate::report::{EvaluationRecord, EventFile, MetricsLog, Record, Sentence, read_metrics, write_curves};
use crate::training::{Begin, FolderLock, claim_folder, claim_present, expect_folder};

/// What a run reads beside its recipe.
#[derive(Clone, Debug)]
pub struct Sources<'a> {
    /// The shards.
    pub dataset: &'a Dataset,
    /// The vocabulary that they were made with.
    pub vocabulary: &'a Arc<Vocabulary>,
    /// The files of the tokenizer, to be kept with the model: names and texts.
    pub tokenizer: &'a [(&'static str, Vec<u8>)],
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// All steps are done.
    Finished(Summary),
    /// It was told to stop, and everything is saved.
    Stopped(Summary),
    /// It went wrong; nothing of what went wrong was saved.
    Diverged {
        /// What was noticed, in one sentence.
        problem: String,
        /// The step that was not or should not have been taken.
        step: u64,
        /// The last good checkpoint, if there is one.
        checkpoint: Option<PathBuf>,
    },
}

/// Figures of a run at its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Steps done.
    pub step: u64,
    /// Tokens seen.
    pub tokens: u64,
    /// Seconds of training, over all starts.
    pub seconds: f64,
    /// The last evaluation, if there was one.
    pub evaluation: Option<EvaluationRecord>,
}

/// Pre-trains in `folder`. `stop` may be set at any time, by a signal for instance; it is looked at after every step.
///
/// # Errors
/// The recipe, the data and the folder do not belong together, resuming was asked for with other settings, or a file
/// cannot be written. Checkpoints that were there stay.
pub fn pretrain(
    recipe: &Recipe,
    sources: &Sources<'_>,
    folder: &Path,
    begin: Begin,
    device: Device,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Outcome, PretrainError> {
    let mut run = Run::open(recipe, sources, folder, begin, device, observer)?;
    let profile = observer.wants_profile();
    run.trainer.workspace().profile().set(profile);
    let outcome = loop {
        if run.is_done() {
            break Outcome::Finished(run.finish(observer)?);
        }
        if stop.load(Ordering::Relaxed) {
            run.save(observer)?;
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

/// Held-out text, with its baseline.
pub(super) struct HeldOut {
    pub(super) set: EvaluationSet,
    pub(super) batch: Batch,
    baseline: Baseline,
}

struct Run<'s> {
    trainer: Trainer,
    sources: &'s Sources<'s>,
    folder: PathBuf,
    checkpoints: Checkpoints,
    held_out: Option<HeldOut>,
    log: MetricsLog,
    events: EventFile,
    progress: Progress,
    last_evaluation: Option<EvaluationRecord>,
    fingerprint: serde_json::Value,
    saved: Option<u64>,
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
    ) -> Result<Self, PretrainError> {
        expect_folder(folder)?;
        // Before anything in it is read: what another process still writes must not be taken for the run's last state.
        let claimed = claim_present(folder)?;
        let checkpoints = Checkpoints::of_run(folder);
        let metrics = folder.join(METRICS);
        if begin == Begin::New && (metrics.exists() || !checkpoints.steps()?.is_empty()) {
            return Err(PretrainError::Recipe(format!(
                "{} already holds a run; resume it, or choose another folder",
                folder.display()
            )));
        }
        let found = if begin == Begin::Resume { checkpoints.newest()? } else { None };
        let mut trainer = Trainer::new(recipe, sources.dataset, sources.vocabulary, device)?;
        let fingerprint = trainer.recipe().fingerprint();
        let inputs = inputs(sources);
        let mut progress = Progress::new();
        if let Some(found) = &found {
            found.expect_config(&trainer.recipe().fingerprint_after(found.header.step))?;
            found.expect_inputs(&inputs)?;
            trainer.restore(found, sources.dataset, sources.vocabulary)?;
            progress = serde_json::from_value(found.header.progress.clone())
                .map_err(|error| PretrainError::Recipe(format!("{}: its counters: {error}", found.path.display())))?;
        }
        let (held_out, no_evaluation) = held_out(trainer.recipe(), sources)?;
        let step = trainer.step();
        let lock = claimed.map_or_else(|| claim_folder(folder), Ok)?;
        let text = trainer.recipe().to_toml();
        write_atomically(folder.join("config.toml"), |out| out.write_all(text.as_bytes()))?;
        if found.is_some() {
            checkpoints.tidy(step)?;
        }
        // Without a checkpoint the run begins anew, and nothing counts on what an earlier attempt has logged.
        let counted = if found.is_some() { progress.records } else { Some(0) };
        let (log, cut) = MetricsLog::resume::<Record>(&metrics, step, counted)?;
        let events = EventFile::create(folder, step)?;
        let run = Self {
            trainer,
            sources,
            folder: folder.to_owned(),
            checkpoints,
            held_out,
            log,
            events,
            progress,
            last_evaluation: last_evaluation(&metrics)?,
            fingerprint,
            saved: found.as_ref().map(|_| step),
            _lock: lock,
        };
        run.tell(found.as_ref(), no_evaluation.as_deref(), cut.as_deref(), observer);
        Ok(run)
    }

    fn tell(
        &self,
        found: Option<&LoadedState>,
        no_evaluation: Option<&str>,
        note: Option<&str>,
        observer: &mut dyn Observer,
    ) {
        observer.started(&Started {
            parameters: self.trainer.params().len(),
            step: self.trainer.step(),
            steps: self.steps(),
            instances: self.trainer.instances(),
            evaluation_sequences: self.held_out.as_ref().map_or(0, |held_out| held_out.set.sequences()),
            unigram_loss: self.held_out.as_ref().and_then(|held_out| held_out.baseline.all.value()),
            memory: self.trainer.memory(),
            no_evaluation,
            damaged: found.map_or(&[], |found| &found.damaged),
            warnings: if found.is_none() { self.trainer.recipe().warnings() } else { &[] },
            note,
            resumed_from: found.map(|found| found.path.as_path()),
        });
    }

    fn is_done(&self) -> bool {
        self.trainer.step() >= self.steps()
    }

    fn steps(&self) -> u64 {
        self.trainer.recipe().schedule.steps_after(self.trainer.step())
    }

    /// Changes the number of steps, in `config.toml` before it takes effect: a kill costs no decision.
    fn replan(&mut self, steps: u64) -> Result<(), PretrainError> {
        self.trainer.replan(steps)?;
        self.fingerprint = self.trainer.recipe().fingerprint();
        let text = self.trainer.recipe().to_toml();
        Ok(write_atomically(self.folder.join("config.toml"), |out| out.write_all(text.as_bytes()))?)
    }

    /// One step and what is due after it; tells if the run went wrong.
    fn step(&mut self, observer: &mut dyn Observer) -> Result<Option<Outcome>, PretrainError> {
        let report = match self.trainer.train_step() {
            Ok(report) => report,
            Err(PretrainError::Engine(error @ EngineError::NotFinite { .. })) => {
                return Ok(Some(self.diverged(error.to_string())));
            }
            Err(error) => return Err(error),
        };
        self.progress.tokens += report.tokens;
        self.progress.seconds += report.seconds;
        self.progress.window.add(&report);
        observer.stepped(&report);
        if let Some(steps) = observer.replanned(&report) {
            self.replan(steps)?;
        }
        let margin = self.trainer.recipe().run.divergence_margin;
        if let Some(above) = self.progress.monitor.watch(report.loss, margin) {
            let problem = format!(
                "the smoothed loss is {above:.2} nats above its lowest value at step {} (`run.divergence_margin` is \
                 {margin}); resume from the last checkpoint with another seed, or lower the learning rate",
                report.step
            );
            return Ok(Some(self.diverged(problem)));
        }
        let (step, recipe) = (report.step, self.trainer.recipe());
        // What the end of the run needs is part of its last step, so that its checkpoint has seen the last evaluation.
        let is_last = step >= recipe.schedule.steps;
        let due = |interval: u64| is_last || interval > 0 && step.is_multiple_of(interval);
        let (log, evaluate, save) = (
            step.is_multiple_of(recipe.run.log_interval),
            due(recipe.evaluation.interval),
            due(recipe.run.checkpoint_interval),
        );
        if log {
            self.record(&report)?;
        }
        if evaluate {
            self.evaluate(observer)?;
        }
        if save {
            self.save(observer)?;
        }
        Ok(None)
    }

    fn diverged(&self, problem: String) -> Outcome {
        let checkpoint = self.saved.map(|step| self.checkpoints.path(step));
        Outcome::Diverged { problem, step: self.trainer.step() + 1, checkpoint }
    }

    fn record(&mut self, report: &StepReport) -> Result<(), PretrainError> {
        let record = self.progress.window.close(report, self.progress.tokens, self.progress.seconds);
        self.write(&Record::Train(record))
    }

    fn write(&mut self, record: &Record) -> Result<(), PretrainError> {
        self.log.append(record)?;
        Ok(self.events.append(record)?)
    }

    /// Measures the model on the held-out text, and keeps it if it is the best.
    fn evaluate(&mut self, observer: &mut dyn Observer) -> Result<(), PretrainError> {
        let Some(held_out) = &mut self.held_out else { return Ok(()) };
        let tally = self.trainer.evaluate(&mut held_out.set, &mut held_out.batch)?;
        let record = EvaluationRecord {
            step: self.trainer.step(),
            mlm_loss: tally.mlm.value().unwrap_or(0.0),
            mlm_accuracy: tally.mlm_correct.value().unwrap_or(0.0),
            masked: tally.mlm.count,
            unigram_loss: held_out.baseline.all.value().unwrap_or(0.0),
            hidden_loss: tally.hidden.value().unwrap_or(0.0),
            hidden_unigram_loss: held_out.baseline.hidden.value().unwrap_or(0.0),
            sentence: Sentence {
                objective: self.trainer.recipe().data.instances.objective.into(),
                loss: tally.sop.value(),
                accuracy: tally.sop_correct.value(),
                count: tally.sop.count,
                standard_error: tally.sop_correct.standard_error(),
            },
            seconds: self.progress.seconds,
        };
        // The loss that is trained decides: the MLM loss, unless it has no weight.
        let loss = match record.sentence.loss {
            Some(sop) if self.trainer.recipe().loss.mlm_weight == 0.0 => sop,
            _ => record.mlm_loss,
        };
        let is_best = loss < self.progress.best;
        self.progress.evaluated = record.step;
        if is_best {
            self.progress.best = loss;
            self.save_model(&self.folder.clone())?;
        }
        self.write(&Record::Evaluation(record.clone()))?;
        observer.evaluated(&record, is_best);
        self.last_evaluation = Some(record);
        self.draw()
    }

    fn save_model(&mut self, folder: &Path) -> Result<(), PretrainError> {
        self.trainer.download()?;
        let (params, model) = (self.trainer.params(), self.trainer.model());
        Ok(save_model(folder, model.config(), model.heads(), self.sources.tokenizer, |name| {
            params.values(params.find(name).expect("the store was built from the same list"))
        })?)
    }

    /// Writes a checkpoint of the run as it is.
    fn save(&mut self, observer: &mut dyn Observer) -> Result<(), PretrainError> {
        let step = self.trainer.step();
        if self.saved == Some(step) {
            return Ok(());
        }
        // What the checkpoint counts on is on disk before it.
        self.log.sync()?;
        self.progress.records = Some(self.log.records());
        let header = StateHeader {
            version: StateHeader::VERSION,
            step,
            config: self.fingerprint.clone(),
            cursor: serde_json::to_value(self.trainer.cursor()).expect("a cursor has string keys"),
            inputs: inputs(self.sources),
            progress: serde_json::to_value(&self.progress).expect("counters have string keys"),
        };
        let path = self.trainer.save(&self.checkpoints, &header)?;
        self.saved = Some(step);
        observer.saved(step, &path);
        Ok(())
    }

    fn finish(&mut self, observer: &mut dyn Observer) -> Result<Summary, PretrainError> {
        // The last step has evaluated, and a program that did not do so has written this checkpoint.
        if self.held_out.is_some() && self.progress.evaluated != self.trainer.step() {
            self.evaluate(observer)?;
            self.saved = None;
        }
        if self.held_out.is_none() {
            self.save_model(&self.folder.clone())?;
        }
        self.save_model(&self.folder.join("last"))?;
        self.save(observer)?;
        self.draw()?;
        Ok(self.summary())
    }

    fn draw(&self) -> Result<(), PretrainError> {
        let records = read_metrics(&self.folder.join(METRICS))?;
        Ok(write_curves(&self.folder.join("curves.svg"), &records)?)
    }

    fn summary(&self) -> Summary {
        Summary {
            step: self.trainer.step(),
            tokens: self.progress.tokens,
            seconds: self.progress.seconds,
            evaluation: self.last_evaluation.clone(),
        }
    }
}

const METRICS: &str = "metrics.jsonl";

/// Fingerprints of what decides the numbers beside the recipe.
fn inputs(sources: &Sources<'_>) -> serde_json::Value {
    json!({
        "tokenizer": format!("{:016x}", sources.vocabulary.fingerprint()),
        "data": format!("{:016x}", data_fingerprint(sources.dataset)),
    })
}

/// A hash over the index of the data, which holds the checksum of every shard.
fn data_fingerprint(dataset: &Dataset) -> u64 {
    let text = serde_json::to_string(&dataset.index().train).expect("an index has string keys");
    engine::io::hash64(text.as_bytes())
}

fn last_evaluation(metrics: &Path) -> Result<Option<EvaluationRecord>, PretrainError> {
    let records = read_metrics(metrics)?;
    Ok(records.into_iter().rev().find_map(|record| match record {
        Record::Evaluation(record) => Some(record),
        Record::Train(_) => None,
    }))
}

/// The held-out set with its baseline; or why there is none.
pub(super) fn held_out(
    recipe: &Recipe,
    sources: &Sources<'_>,
) -> Result<(Option<HeldOut>, Option<String>), PretrainError> {
    let shards = Arc::clone(sources.dataset.side(Side::HeldOut));
    match EvaluationSet::new(shards, Arc::clone(sources.vocabulary), &recipe.data) {
        Ok(mut set) => {
            let unigram = Unigram::of(sources.dataset.side(Side::Train), sources.vocabulary.size());
            let baseline = set.baseline(&unigram);
            let batch = Batch::new(set.settings());
            Ok((Some(HeldOut { set, batch, baseline }), None))
        }
        Err(error @ DataError::NoInstances { .. }) => Ok((None, Some(error.to_string()))),
        Err(error) => Err(error.into()),
    }
}
