//! A run in a folder: steps, evaluations, checkpoints and reports until it is done, stopped, or has diverged.
//!
//! ```text
//! RUN/
//!   config.toml                     every setting, resolved
//!   metrics.jsonl  events.out.tfevents.*  curves.svg
//!   config.json  model.safetensors  tokenizer.json  tokenizer_config.json
//!                                   the best model so far (the last one saved if nothing is evaluated)
//!   last/                           pre-training: the model at the end, in the same layout
//!   task.json  report.html  predictions.jsonl  summary.json
//!                                   fine-tuning: the task; metrics and curves; the best model's predictions for the dev
//!                                   set; results of the finished run
//!   checkpoints/                    the last two training states
//! ```
//!
//! A resumed run ends with the same bits as an uninterrupted one: a checkpoint contains parameters, moments, the position
//! in the data and all counters; masks, dropout and the order of examples are functions of seed and step. A kill at any
//! moment costs only the steps since the last checkpoint.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use engine::io::write_atomically;
use engine::{Communicator, EngineError, trace};
use serde_json::json;

use super::lock::{FolderLock, claim_folder, claim_present, expect_folder};
use super::objective::{Evaluated, Position, ProgressOf, RecordOf, RunObjective};
use super::observer::{Observer, Started};
use super::overrides::SettingError;
use super::progress::Progress;
use super::records::{EvaluationRecord, METRICS, Record, StepReport};
use super::settings::Replan;
use super::trainer::Trainer;
use crate::checkpoint::{Checkpoints, LoadedState, StateHeader};
use crate::ranks::expect_alike;
use crate::report::{EventFile, Logged, MetricsLog, read_metrics};

/// Starting point of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartMode {
    /// From step 0, in a folder without a run.
    New,
    /// From the newest intact checkpoint of the folder, or from step 0 if there is none yet.
    Resume,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome<S> {
    /// All steps are done, or the patience is exhausted.
    Finished(S),
    /// `stop` was set during the run.
    Stopped {
        /// Results so far.
        summary: S,
        /// Checkpoint for resuming; `None` for fine-tuning with `run.checkpoint_interval = 0`.
        saved: Option<PathBuf>,
    },
    /// A loss or gradient was not finite, or the loss rose by `run.divergence_margin`. The state after that was not saved.
    Diverged {
        /// Message in one sentence.
        problem: String,
        /// Step that was not or should not have been done.
        step: u64,
        /// Last checkpoint, if there is one.
        checkpoint: Option<PathBuf>,
    },
}

/// Runs the trainer built by `build` in `folder`. `stop` may be set at any time, for example by a signal; it is checked
/// after every step. All ranks of `communicator` run the same; only the first writes files and makes decisions.
///
/// # Errors
/// Recipe, data and folder do not match, a resumed run has other settings, or a file cannot be written. Earlier
/// checkpoints are kept.
pub fn run<O: RunObjective>(
    (folder, mode): (&Path, StartMode),
    stop: &AtomicBool,
    observer: &mut dyn Observer<O>,
    communicator: Communicator,
    build: impl FnOnce() -> Result<Trainer<O>, O::Error>,
) -> Result<Outcome<O::Summary>, O::Error> {
    let mut run = Run::open(folder, mode, observer, communicator, build)?;
    let profile = observer.wants_profile();
    run.trainer.workspace().profile().set(profile);
    let outcome = loop {
        if run.is_done() {
            break Outcome::Finished(run.finish(observer)?);
        }
        if run.communicator.any("the stop request", stop.load(Ordering::Relaxed))? {
            if let Some(diverged) = run.finish_steps(0, observer)? {
                run.report()?;
                break diverged;
            }
            let keeps_state = O::KEEPS_STATE || run.trainer.settings.run.checkpoint_interval != Some(0);
            let saved = keeps_state.then(|| run.save(observer)).transpose()?;
            run.save_first_model()?;
            run.report()?;
            break Outcome::Stopped { summary: run.summary(), saved };
        }
        let step = run.trainer.step() + 1;
        if let Some(diverged) = trace::span("step", &[("step", step)], || run.step(observer))? {
            run.report()?;
            break diverged;
        }
    };
    if profile {
        observer.profiled(run.trainer.workspace().profile());
    }
    Ok(outcome)
}

struct Run<O: RunObjective> {
    trainer: Trainer<O>,
    communicator: Communicator,
    folder: PathBuf,
    checkpoints: Checkpoints,
    /// Present on the first rank only; other ranks do not write.
    files: Option<Files>,
    progress: ProgressOf<O>,
    last_evaluation: Option<EvaluationRecord<O::Evaluation>>,
    /// Step of the newest checkpoint.
    saved: Option<u64>,
}

/// Work due after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Due {
    evaluation: bool,
    checkpoint: bool,
}

/// Files that a run appends to.
struct Files {
    log: MetricsLog,
    events: EventFile,
    _lock: FolderLock,
}

/// Rejects ranks whose runs would begin with other settings, inputs or parameters than the first.
fn expect_same_start<O: RunObjective>(trainer: &mut Trainer<O>, communicator: &Communicator) -> Result<(), O::Error> {
    let (step, parameters) = (trainer.step(), trainer.hash()?);
    let start = json!({
        "config": trainer.objective.fingerprint(step),
        "inputs": trainer.objective.about().inputs,
        "parameters": format!("{parameters:016x}"),
        "step": step,
    });
    Ok(expect_alike(communicator, start)?)
}

impl<O: RunObjective> Run<O> {
    fn open(
        folder: &Path,
        mode: StartMode,
        observer: &mut dyn Observer<O>,
        communicator: Communicator,
        build: impl FnOnce() -> Result<Trainer<O>, O::Error>,
    ) -> Result<Self, O::Error> {
        let (metrics, checkpoints) = (folder.join(METRICS), Checkpoints::of_run(folder));
        let claimed = if communicator.is_first() { Self::claim(folder, mode, &checkpoints)? } else { None };
        // Other ranks read the state only after the first has the lock.
        communicator.barrier("the run's folder")?;
        let state = if mode == StartMode::Resume { checkpoints.newest()? } else { None };
        let mut trainer = build()?;
        let mut progress = Progress::default();
        if let Some(state) = &state {
            state.expect_config(&trainer.objective.fingerprint(state.header.step))?;
            state.expect_inputs(&trainer.objective.about().inputs)?;
            trainer.restore(state)?;
            trainer.objective.seek(&state.header.cursor)?;
            progress = serde_json::from_value(state.header.progress.clone())
                .map_err(|error| SettingError(format!("{}: its counters: {error}", state.path.display())))?;
        }
        let step = trainer.step();
        if communicator.size() > 1 {
            expect_same_start(&mut trainer, &communicator)?;
        }
        let mut notes = Vec::new();
        let files = if communicator.is_first() {
            let lock = claimed.map_or_else(|| claim_folder(folder), Ok)?;
            write_config(&trainer.objective, folder)?;
            trainer.objective.prepare(folder)?;
            if state.is_some() {
                checkpoints.tidy(step)?;
            }
            // Without a checkpoint the run restarts, and records of an earlier attempt are dropped.
            let counted = if state.is_some() { progress.records } else { Some(0) };
            let (log, note) = MetricsLog::resume::<RecordOf<O>>(&metrics, step, counted)?;
            notes.extend(state.as_ref().and_then(LoadedState::earlier_version).into_iter().chain(note));
            Some(Files { log, events: EventFile::create(folder, step)?, _lock: lock })
        } else {
            None
        };
        // Other ranks read the records only after the first has truncated them to the state.
        communicator.barrier("the run's records")?;
        let mut run = Self {
            trainer,
            communicator,
            folder: folder.to_owned(),
            checkpoints,
            files,
            progress,
            last_evaluation: None,
            saved: state.as_ref().map(|_| step),
        };
        run.last_evaluation = run.records()?.into_iter().rev().find_map(|record| match record {
            Record::Evaluation(record) => Some(record),
            Record::Train(_) => None,
        });
        run.report_start(state.as_ref(), &notes, observer);
        Ok(run)
    }

    /// Locks `folder`, if it exists, and rejects the folder of another run.
    fn claim(folder: &Path, mode: StartMode, checkpoints: &Checkpoints) -> Result<Option<FolderLock>, O::Error> {
        expect_folder(folder)?;
        // Lock before reading: another process may still be writing its state.
        let claimed = claim_present(folder)?;
        let is_used = || -> Result<bool, O::Error> {
            let has_model = !O::KEEPS_STATE && folder.join("model.safetensors").exists();
            Ok(folder.join(METRICS).exists() || has_model || !checkpoints.steps()?.is_empty())
        };
        if mode == StartMode::New && is_used()? {
            let problem = format!(
                "{0} already contains a run; resume it (--resume), remove it (rm -r '{0}'), or choose another folder",
                folder.display()
            );
            return Err(SettingError(problem).into());
        }
        Ok(claimed)
    }

    fn report_start(&self, state: Option<&LoadedState>, notes: &[String], observer: &mut dyn Observer<O>) {
        let about = self.trainer.objective.about();
        observer.started(&Started {
            parameters: self.trainer.params().len(),
            step: self.trainer.step(),
            steps: self.position().steps,
            evaluated: about.evaluated,
            memory: self.trainer.memory(),
            damaged: state.map_or(&[], |state| &state.damaged),
            warnings: if state.is_none() { &about.warnings } else { &[] },
            notes,
            resumed_from: state.map(|state| state.path.as_path()),
            details: &about.details,
        });
    }

    fn position(&self) -> Position {
        let (step, settings) = (self.trainer.step(), &self.trainer.settings);
        let patience = settings.evaluation.patience.unwrap_or(0);
        Position { step, steps: settings.schedule.steps_after(step), patience }
    }

    fn is_done(&self) -> bool {
        self.position().is_over(self.progress.worse)
    }

    /// Changes the number of steps, and writes it to `config.toml` before it takes effect, so that a kill does not lose the decision.
    fn replan(&mut self, steps: u64) -> Result<(), O::Error> {
        let replan = Replan { after: self.trainer.step(), steps };
        self.trainer.objective.replan(replan)?;
        self.trainer.settings.schedule.replans.push(replan);
        if self.files.is_none() {
            return Ok(());
        }
        write_config(&self.trainer.objective, &self.folder)
    }

    /// The new number of steps requested by the first rank's observer.
    fn replanned(
        &self,
        report: &StepReport<O::Figures>,
        observer: &mut dyn Observer<O>,
    ) -> Result<Option<u64>, EngineError> {
        let wanted = if self.communicator.is_first() { observer.replanned(report) } else { None };
        let [wanted] = self.communicator.sum_counts("the number of steps", [wanted.unwrap_or(0)])?;
        Ok(Some(wanted).filter(|steps| *steps > 0))
    }

    /// Begins a step, finishes the steps before it, then evaluates and saves if due. Returns an outcome if the run diverged.
    fn step(&mut self, observer: &mut dyn Observer<O>) -> Result<Option<Outcome<O::Summary>>, O::Error> {
        let is_alone = self.communicator.size() == 1;
        if !self.trainer.begin_step_while(&mut |done, all| observer.micro_batch(done, all) || !is_alone)? {
            let diverged = self.finish_steps(0, observer)?;
            return Ok(Some(diverged.unwrap_or_else(|| Outcome::Stopped { summary: self.summary(), saved: None })));
        }
        if let Some(diverged) = self.finish_steps(self.trainer.steps_ahead(), observer)? {
            return Ok(Some(diverged));
        }
        if self.due() != Due::default()
            && let Some(diverged) = self.finish_steps(0, observer)?
        {
            return Ok(Some(diverged));
        }
        // The number of steps may have changed in between.
        let Due { evaluation, checkpoint } = self.due();
        if evaluation {
            self.evaluate(observer)?;
        }
        if checkpoint {
            self.save(observer)?;
        }
        Ok(None)
    }

    /// Work due after the newest step.
    fn due(&self) -> Due {
        let (step, settings) = (self.trainer.step(), &self.trainer.settings);
        let due = |interval: u64| interval > 0 && step.is_multiple_of(interval);
        // The last step includes everything that the end of the run requires, so that its checkpoint is written after the
        // last evaluation.
        let is_last = step >= settings.schedule.steps_after(step);
        Due {
            evaluation: is_last || due(settings.evaluation.interval),
            checkpoint: (is_last && O::KEEPS_STATE) || due(settings.run.checkpoint_interval.unwrap_or(0)),
        }
    }

    /// Finishes steps until at most `most` are in flight. Returns an outcome if the run diverged; later steps are then dropped.
    fn finish_steps(
        &mut self,
        most: usize,
        observer: &mut dyn Observer<O>,
    ) -> Result<Option<Outcome<O::Summary>>, O::Error> {
        while self.trainer.steps_in_flight() > most {
            let report = match self.trainer.finish_step() {
                Ok(report) => report,
                Err(error @ EngineError::NotFinite { step, .. }) => {
                    return Ok(Some(self.diverged(error.to_string(), step)));
                }
                Err(error) => return Err(error.into()),
            };
            self.progress.tokens += report.tokens;
            self.progress.seconds += report.seconds;
            self.progress.window.add(&report);
            self.trainer.objective.stepped(&mut self.progress.objective, &report);
            observer.stepped(&report);
            if let Some(steps) = self.replanned(&report, observer)? {
                self.replan(steps)?;
            }
            let margin = self.trainer.settings.run.divergence_margin;
            if let Some(above) = self.progress.monitor.watch(report.loss, margin) {
                let problem = format!(
                    "the smoothed loss is {above:.2} nats above its lowest value at step {} (`run.divergence_margin` is \
                     {margin}); resume from the last checkpoint with another seed, or lower the learning rate",
                    report.step
                );
                return Ok(Some(self.diverged(problem, report.step + 1)));
            }
            let interval = self.trainer.settings.run.log_interval;
            if interval > 0 && report.step.is_multiple_of(interval) {
                self.record(&report)?;
            }
        }
        Ok(None)
    }

    fn diverged(&self, problem: String, step: u64) -> Outcome<O::Summary> {
        let checkpoint = self.saved.map(|step| self.checkpoints.path(step));
        Outcome::Diverged { problem, step, checkpoint }
    }

    /// Writes the record of the window that ends with `last`.
    fn record(&mut self, last: &StepReport<O::Figures>) -> Result<(), O::Error> {
        let mut record = std::mem::take(&mut self.progress.window).record(last);
        record.seconds = self.progress.seconds;
        record.tokens = O::KEEPS_STATE.then_some(self.progress.tokens);
        record.data_share = record.data_share.filter(|_| O::KEEPS_STATE);
        self.write(&Record::Train(record))
    }

    fn write(&mut self, record: &RecordOf<O>) -> Result<(), O::Error> {
        let Some(Files { log, events, .. }) = &mut self.files else { return Ok(()) };
        log.append(record)?;
        Ok(events.scalars(record.step(), &record.scalars())?)
    }

    /// Evaluates the model and saves it if it is the best so far.
    fn evaluate(&mut self, observer: &mut dyn Observer<O>) -> Result<(), O::Error> {
        let position = self.position();
        if self.communicator.size() > 1 {
            let hash = self.trainer.hash()?;
            expect_same_hash::<O::Error>(&self.communicator, &format!("parameters at step {}", position.step), hash)?;
        }
        if self.trainer.objective.about().evaluated > 0 {
            observer.evaluating();
        }
        let Trainer { objective, loaded, settings, .. } = &mut self.trainer;
        let (communicator, progress) = (&self.communicator, &mut self.progress);
        let evaluate = || objective.evaluate(loaded, settings, communicator, progress, position);
        let evaluated = trace::span("evaluation", &[], evaluate)?;
        let Some(Evaluated { figures, is_best, files }) = evaluated else { return Ok(()) };
        self.progress.evaluated = position.step;
        self.progress.worse = if is_best { 0 } else { self.progress.worse + 1 };
        if is_best {
            self.save_model(&self.folder.clone())?;
        }
        if is_best && self.files.is_some() {
            for (name, content) in files {
                write_atomically(self.folder.join(name), |out| out.write_all(content.as_bytes()))?;
            }
        }
        let record = EvaluationRecord { step: position.step, figures, seconds: self.progress.seconds };
        self.write(&Record::Evaluation(record.clone()))?;
        observer.evaluated(&record, is_best);
        self.last_evaluation = Some(record);
        self.report()
    }

    fn save_model(&mut self, folder: &Path) -> Result<(), O::Error> {
        if self.files.is_none() {
            return Ok(());
        }
        self.trainer.download()?;
        Ok(self.trainer.objective.save_model(&self.trainer.loaded, folder)?)
    }

    /// Saves the current model while no evaluation has selected one, so that a stopped or killed run leaves a model.
    fn save_first_model(&mut self) -> Result<(), O::Error> {
        if self.progress.evaluated == 0 { self.save_model(&self.folder.clone()) } else { Ok(()) }
    }

    /// Writes a checkpoint of the current state, unless this step has one.
    fn save(&mut self, observer: &mut dyn Observer<O>) -> Result<PathBuf, O::Error> {
        let step = self.trainer.step();
        if self.saved == Some(step) {
            return Ok(self.checkpoints.path(step));
        }
        self.saved = Some(step);
        if self.files.is_some() {
            self.trainer.download()?;
        }
        let moments = self.trainer.moments()?;
        let Some(Files { log, .. }) = &mut self.files else { return Ok(self.checkpoints.path(step)) };
        // Records counted by the checkpoint must be on disk before it.
        log.sync()?;
        self.progress.records = Some(log.records());
        let objective = &self.trainer.objective;
        let header = StateHeader {
            version: StateHeader::VERSION,
            step,
            config: objective.fingerprint(step),
            cursor: objective.cursor(),
            inputs: objective.about().inputs.clone(),
            progress: serde_json::to_value(&self.progress).expect("counters have string keys"),
        };
        let path = self.trainer.save(&self.checkpoints, &header, &moments)?;
        self.save_first_model()?;
        observer.saved(step, &path);
        Ok(path)
    }

    fn finish(&mut self, observer: &mut dyn Observer<O>) -> Result<O::Summary, O::Error> {
        if self.trainer.objective.about().evaluated == 0 {
            self.save_model(&self.folder.clone())?;
        } else if self.progress.evaluated != self.trainer.step() {
            // The number of steps was changed to the completed ones, or an older version saved before it evaluated.
            self.evaluate(observer)?;
            self.saved = None;
        }
        if O::KEEPS_STATE {
            self.save_model(&self.folder.join("last"))?;
        }
        let keeps_state = match self.trainer.settings.run.checkpoint_interval {
            _ if O::KEEPS_STATE => true,
            // Otherwise a state written at an earlier stop would remain, older than the run.
            None => self.checkpoints.newest()?.is_some(),
            Some(interval) => interval > 0,
        };
        // Only the first rank inspects the folder.
        let keeps_state = self.communicator.any("the save request", keeps_state && self.files.is_some())?;
        if keeps_state {
            self.save(observer)?;
        }
        self.report()?;
        let summary = self.summary();
        if self.files.is_some() {
            self.trainer.objective.finish(&self.folder, &summary)?;
        }
        // The first rank may still be writing; other ranks must not end before it.
        self.communicator.barrier("the end of the run")?;
        Ok(summary)
    }

    fn records(&self) -> Result<Vec<RecordOf<O>>, O::Error> {
        Ok(read_metrics(&self.folder.join(METRICS))?)
    }

    fn report(&self) -> Result<(), O::Error> {
        if self.files.is_none() {
            return Ok(());
        }
        Ok(self.trainer.objective.report(&self.folder, &self.records()?, &self.progress.objective)?)
    }

    fn summary(&self) -> O::Summary {
        self.trainer.objective.summary(self.position(), &self.progress, self.last_evaluation.as_ref())
    }
}

/// Rejects ranks whose `hash` differs: some rank computed other bits, and the model would depend on the rank that saves.
fn expect_same_hash<E>(communicator: &Communicator, what: &str, hash: u64) -> Result<(), E>
where
    E: From<EngineError> + From<SettingError>,
{
    let all = communicator.gather(what, &hash.to_le_bytes())?;
    match all.iter().position(|theirs| *theirs != all[0]) {
        None => Ok(()),
        Some(other) => Err(SettingError(format!(
            "the {what} differ between rank 0 and rank {other}; `albert doctor --verify` on both machines shows which machine is wrong"
        ))
        .into()),
    }
}

fn write_config<O: RunObjective>(objective: &O, folder: &Path) -> Result<(), O::Error> {
    let text = objective.config();
    Ok(write_atomically(folder.join("config.toml"), |out| out.write_all(text.as_bytes()))?)
}
