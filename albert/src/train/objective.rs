//! Interface between the training core and training tasks.

use std::path::Path;
use std::time::Duration;

use engine::{Communicator, Device, EngineError, Gradients, Tape};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::overrides::SettingError;
use super::progress::Progress;
use super::records::{EvaluationRecord, Figures, Record, StepFigures, StepReport};
use super::settings::{Replan, RunSettings, TrainSettings};
use crate::checkpoint::CheckpointError;
use crate::loaded::LoadedModel;
use crate::model::{ForwardOptions, Model};
use crate::report::ReportError;

/// Name of the memory plan of an evaluation.
pub const EVALUATE: &str = "evaluate";

/// Arguments of a forward pass that records for backward.
#[derive(Debug)]
pub struct Pass<'p, 'w> {
    /// Model to run.
    pub model: &'p Model,
    /// Tape of the step.
    pub tape: &'p Tape<'w>,
    /// Dropout and precision of the pass.
    pub options: &'p ForwardOptions,
}

/// Tokens of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchShape<'b> {
    /// First token of each sequence, and T `[B + 1]`.
    pub cu_seqlens: &'b [u32],
    /// Number of tokens whose vocabulary logits are computed.
    pub masked: usize,
    /// Lane of the step.
    pub lane: usize,
}

/// Device of a rank, and its connection to the other ranks.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Device of this rank.
    pub device: Device,
    /// Connection to the other ranks.
    pub communicator: Communicator,
}

impl Worker {
    /// Sets the timeout of `settings`, which are checked later.
    pub fn with_timeout(self, settings: &RunSettings) -> Self {
        let timeout = settings.communication_timeout.map(Duration::try_from_secs_f64);
        if let Some(Ok(timeout)) = timeout {
            self.communicator.set_timeout(timeout);
        }
        self
    }
}

impl From<Device> for Worker {
    /// A process that trains alone.
    fn from(device: Device) -> Self {
        Self { device, communicator: Communicator::default() }
    }
}

/// Sums over micro-batches, exchanged between ranks.
pub trait MicroBatchSums: Default {
    /// Number of values.
    const VALUES: usize;

    /// Appends the sums; counts are exact below 2⁵³.
    fn write(&self, values: &mut Vec<f64>);

    /// Adds sums written by `write`.
    fn add(&mut self, values: &[f64]);
}

/// Training task: batches, their loss, and evaluation.
pub trait Objective: Sized {
    /// Error of a run.
    type Error: From<EngineError>;
    /// A micro-batch.
    type Batch;
    /// Divisor of the loss of a micro-batch.
    type Denominator: Copy;
    /// Losses of a micro-batch in transfer from the device.
    type Losses: std::fmt::Debug;
    /// Sums of losses over the micro-batches of a step.
    type Sums: MicroBatchSums;
    /// Metrics of a step other than its loss.
    type Figures: StepFigures;
    /// Metrics of an evaluation.
    type Evaluation: Figures;
    /// State between evaluations, stored in every checkpoint.
    type State: Clone + Default + Serialize + DeserializeOwned;

    /// Fills the first elements of `room` with the micro-batches of step `step` (from 0) that are in the lanes of this rank,
    /// in order, and returns their number. An empty batch means "no batch".
    fn draw(&mut self, step: u64, room: &mut Vec<Self::Batch>) -> usize;

    /// Shape of a batch.
    fn shape(batch: &Self::Batch) -> BatchShape<'_>;

    /// Counts of micro-batches for the denominator, summed over ranks.
    fn counts(&self, batches: &[Self::Batch]) -> [u64; 2];

    /// Denominator of the effective batch with these [counts](Self::counts), so that the gradients of its micro-batches add
    /// up to the gradient of the batch.
    fn denominator(&self, counts: [u64; 2]) -> Self::Denominator;

    /// Runs forward and backward of a micro-batch, adds its gradients, and begins to read its losses, unless the run is dry.
    ///
    /// # Errors
    /// The engine failed.
    fn run(
        &self,
        pass: &Pass<'_, '_>,
        batch: &Self::Batch,
        denominator: Self::Denominator,
        gradients: &mut Gradients,
    ) -> Result<Self::Losses, EngineError>;

    /// Sums of the losses of a micro-batch, once they have arrived.
    ///
    /// # Errors
    /// The device failed.
    fn sums(losses: Self::Losses) -> Result<Self::Sums, EngineError>;

    /// Loss and metrics of a step; the loss is not finite if a sum is not.
    fn figures(&self, sums: &Self::Sums) -> (f64, Self::Figures);

    /// Largest batch, for the memory planner: no vector of any other batch is longer.
    fn largest(&self) -> Self::Batch;

    /// Plans the memory of evaluations as `EVALUATE` and returns its bytes.
    ///
    /// # Errors
    /// There is not enough memory.
    fn plan_evaluation(&self, loaded: &mut LoadedModel, settings: &TrainSettings) -> Result<usize, Self::Error>;

    /// Buffers for the micro-batches of a step, and the bytes of them and of the data.
    fn room(&self) -> (Vec<Self::Batch>, usize);
}

/// Result of [`RunObjective::evaluate`].
#[derive(Debug)]
pub struct Evaluated<E> {
    /// Metrics of the record.
    pub figures: E,
    /// True if the model is the best so far.
    pub is_best: bool,
    /// Files to write next to the best model: name and content.
    pub files: Vec<(&'static str, String)>,
}

/// Description of a run.
#[derive(Debug)]
pub struct About<D> {
    /// Details for [`super::Started`].
    pub details: D,
    /// Warnings about possibly unintended settings of a new run.
    pub warnings: Vec<String>,
    /// Fingerprints of the data and other inputs that determine the results.
    pub inputs: Value,
    /// Number of sequences or examples to evaluate on; 0: nothing is evaluated.
    pub evaluated: usize,
}

/// Position of a run.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Number of completed steps.
    pub step: u64,
    /// Number of steps of the whole run.
    pub steps: u64,
    /// Number of evaluations without improvement after which the run stops; 0: never.
    pub patience: u64,
}

impl Position {
    /// True if all steps are done, or `worse` evaluations without improvement exhaust the patience.
    pub fn is_over(&self, worse: u64) -> bool {
        self.step >= self.steps || (self.patience > 0 && worse >= self.patience)
    }

    /// True if the patience is exhausted before all steps are done.
    pub fn stopped_early(&self, worse: u64) -> bool {
        self.step < self.steps && self.is_over(worse)
    }
}

/// [`Progress`] of an objective.
pub type ProgressOf<O> = Progress<<<O as Objective>::Figures as StepFigures>::Sums, <O as Objective>::State>;

/// [`Record`] of an objective.
pub type RecordOf<O> = Record<<O as Objective>::Figures, <O as Objective>::Evaluation>;

/// Files, evaluation and summary of an objective, for a run in a folder.
pub trait RunObjective: Objective<Error: From<CheckpointError> + From<ReportError> + From<SettingError>> {
    /// Details for the observer before the first step.
    type Details;
    /// Results of a run.
    type Summary;

    /// True for runs over a corpus, which write a checkpoint at each stop and their last model to `last/`, and whose
    /// records count tokens and the time spent waiting for data. False for runs that keep only the best model.
    const KEEPS_STATE: bool;

    /// Description of the run.
    fn about(&self) -> &About<Self::Details>;

    /// Adds a step to the state.
    fn stepped(&self, state: &mut Self::State, report: &StepReport<Self::Figures>) {
        let _ = (state, report);
    }

    /// Evaluates the model on all ranks together; `None` if [`About::evaluated`] is 0.
    ///
    /// # Errors
    /// The engine failed, or the data cannot be evaluated.
    fn evaluate(
        &mut self,
        loaded: &mut LoadedModel,
        settings: &TrainSettings,
        communicator: &Communicator,
        progress: &mut ProgressOf<Self>,
        position: Position,
    ) -> Result<Option<Evaluated<Self::Evaluation>>, Self::Error>;

    /// Content of `config.toml`.
    fn config(&self) -> String;

    /// Settings that determine the results of a run after `step` steps, without later changes of the number of steps.
    fn fingerprint(&self, step: u64) -> Value;

    /// Position in the data, for a checkpoint.
    fn cursor(&self) -> Value {
        Value::Null
    }

    /// Continues from a cursor.
    ///
    /// # Errors
    /// The data has no such position.
    fn seek(&mut self, cursor: &Value) -> Result<(), Self::Error> {
        let _ = cursor;
        Ok(())
    }

    /// Records a change of the number of steps in the recipe.
    ///
    /// # Errors
    /// The change is not possible.
    fn replan(&mut self, replan: Replan) -> Result<(), Self::Error>;

    /// Writes the files of a new run other than its recipe.
    ///
    /// # Errors
    /// A file cannot be written.
    fn prepare(&self, folder: &Path) -> Result<(), Self::Error> {
        let _ = folder;
        Ok(())
    }

    /// Writes the model with its tokenizer to `folder`; the parameters are on the host.
    ///
    /// # Errors
    /// A file cannot be written.
    fn save_model(&self, loaded: &LoadedModel, folder: &Path) -> Result<(), CheckpointError>;

    /// Draws the reports of a run from its records.
    ///
    /// # Errors
    /// A file cannot be written.
    fn report(&self, folder: &Path, records: &[RecordOf<Self>], state: &Self::State) -> Result<(), ReportError>;

    /// Results of the run at `position`, with `last` as the last evaluation.
    fn summary(
        &self,
        position: Position,
        progress: &ProgressOf<Self>,
        last: Option<&EvaluationRecord<Self::Evaluation>>,
    ) -> Self::Summary;

    /// Writes the results of a finished run.
    ///
    /// # Errors
    /// A file cannot be written.
    fn finish(&self, folder: &Path, summary: &Self::Summary) -> Result<(), Self::Error> {
        let _ = (folder, summary);
        Ok(())
    }
}
