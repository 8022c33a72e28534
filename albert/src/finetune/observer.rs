//! Callbacks of a fine-tuning run and the records of its metrics.jsonl.

use std::path::Path;

use engine::profile::Profile;
use serde::{Deserialize, Serialize};

use super::{HeadOrigin, Measured, StepReport, Steps};
use crate::checkpoint::LoadReport;
use crate::report::Logged;
use crate::training::MemoryPlan;

/// Description of a run before its first step.
#[derive(Clone, Debug, PartialEq)]
pub struct Started<'a> {
    /// Seed of the run.
    pub seed: u64,
    /// Number of parameters of the model.
    pub parameters: usize,
    /// Loaded, ignored and randomly initialized tensors.
    pub report: &'a LoadReport,
    /// Origin of the head's parameters.
    pub head: &'a HeadOrigin,
    /// Step from which the run continues; 0 for a new run.
    pub step: u64,
    /// Numbers of steps of the run.
    pub steps: Steps,
    /// Number of training examples.
    pub examples: usize,
    /// Number of truncated examples of the training set and of the dev set.
    pub cut: [usize; 2],
    /// Ids of training questions whose answer starts or ends inside a piece, or is covered by no piece.
    pub inexact: &'a [String],
    /// Message about metrics records that a resumed run lost or cut off.
    pub note: Option<&'a str>,
    /// Number of dev examples.
    pub dev_examples: usize,
    /// Training loss of the constant answer named by `baseline`.
    pub chance: f64,
    /// Baseline with the loss `chance`, as a phrase for messages.
    pub baseline: &'static str,
    /// Planned peak memory of the run.
    pub memory: MemoryPlan,
}

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// Training since the previous record.
    Train(TrainRecord),
    /// Evaluation on the dev set.
    Evaluation(EvaluationRecord),
}

impl Logged for Record {
    fn step(&self) -> u64 {
        match self {
            Self::Train(record) => record.step,
            Self::Evaluation(record) => record.step,
        }
    }
}

/// Means over the steps since the previous record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainRecord {
    /// Optimizer steps done.
    pub step: u64,
    /// Mean loss.
    pub loss: f64,
    /// Accuracy on the training examples, 0 to 1; `None` for numbers and answers.
    pub accuracy: Option<f64>,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Global norm of the last step's gradient before clipping.
    pub gradient_norm: f64,
    /// Tokens per second since the previous record.
    pub tokens_per_second: f64,
    /// Seconds of training since the start of the run.
    pub seconds: f64,
}

/// An evaluation on the dev set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRecord {
    /// Optimizer steps done.
    pub step: u64,
    /// Metrics on the dev set.
    pub measured: Measured,
    /// Mean training loss since the previous evaluation.
    pub train_loss: f64,
    /// True if the model is the best so far.
    pub is_best: bool,
    /// Warning about a collapse, with remedies; set at the first of consecutive evaluations that show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse: Option<String>,
    /// Seconds of training since the start of the run.
    pub seconds: f64,
}

/// Callbacks of a fine-tuning run; the default implementations do nothing.
pub trait Observer {
    /// Called before the first step.
    fn started(&mut self, started: &Started<'_>) {
        let _ = started;
    }
    /// Called after each step.
    fn stepped(&mut self, report: &StepReport) {
        let _ = report;
    }
    /// Called after each evaluation; the best model so far is already saved.
    fn evaluated(&mut self, record: &EvaluationRecord) {
        let _ = record;
    }
    /// True to profile kernels, which slows down small steps.
    fn wants_profile(&self) -> bool {
        false
    }
    /// Called at the end of a run with [`Self::wants_profile`].
    fn profiled(&mut self, profile: &Profile) {
        let _ = profile;
    }
    /// Called when a checkpoint is on disk.
    fn saved(&mut self, step: u64, path: &Path) {
        let _ = (step, path);
    }
}

/// Observer that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoopObserver;

impl Observer for NoopObserver {}
