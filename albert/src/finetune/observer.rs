//! Callbacks of a fine-tuning run and the records of its metrics.jsonl.

use std::path::Path;

use engine::profile::Profile;
use serde::{Deserialize, Serialize};

use super::{HeadOrigin, Measured, StepReport, Steps};
use crate::checkpoint::LoadReport;
use crate::report::Logged;
use crate::training::MemoryPlan;

/// What is known before the first step.
#[derive(Clone, Debug, PartialEq)]
pub struct Started<'a> {
    /// The seed of the run.
    pub seed: u64,
    /// Parameters of the model.
    pub parameters: usize,
    /// What became of every tensor; what is fresh has to be learnt from nothing.
    pub report: &'a LoadReport,
    /// Origin of the head's parameters.
    pub head: &'a HeadOrigin,
    /// Step that the run goes on from; 0 at its beginning.
    pub step: u64,
    /// All steps.
    pub steps: Steps,
    /// Examples to train on.
    pub examples: usize,
    /// Examples of which something did not fit the longest sequence, of those to train on and of the dev set.
    pub cut: [usize; 2],
    /// Ids of the questions to train on whose answer begins or ends inside a piece, or is of no piece at all.
    pub inexact: &'a [String],
    /// Records of the metrics that a resumed run lost or cut off.
    pub note: Option<&'a str>,
    /// Examples to measure on.
    pub dev_examples: usize,
    /// Training loss of the constant answer that `baseline` names.
    pub chance: f64,
    /// What `chance` is the loss of, for a sentence.
    pub baseline: &'static str,
    /// Memory that the run will hold at its peak.
    pub memory: MemoryPlan,
}

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// What training met since the record before.
    Train(TrainRecord),
    /// What the model does on the dev set.
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

/// Means over the steps since the record before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainRecord {
    /// Optimizer steps done.
    pub step: u64,
    /// Mean loss.
    pub loss: f64,
    /// Share of classes that were right; absent for numbers.
    pub accuracy: Option<f64>,
    /// Rate of the last step.
    pub learning_rate: f64,
    /// Global norm of the last step's gradient before clipping.
    pub gradient_norm: f64,
    /// Speed since the record before.
    pub tokens_per_second: f64,
    /// Seconds of training since the run began.
    pub seconds: f64,
}

/// An evaluation on the dev set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRecord {
    /// Optimizer steps done.
    pub step: u64,
    /// What was measured.
    pub measured: Measured,
    /// Mean training loss since the evaluation before.
    pub train_loss: f64,
    /// Whether it is the best so far.
    pub is_best: bool,
    /// What looks like a collapse, and what to try; at the first of the evaluations that look like it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse: Option<String>,
    /// Seconds of training since the run began.
    pub seconds: f64,
}

/// Hears what a run does; every method may be left out.
pub trait Observer {
    /// The first step is about to begin.
    fn started(&mut self, started: &Started<'_>) {
        let _ = started;
    }
    /// A step is done.
    fn stepped(&mut self, report: &StepReport) {
        let _ = report;
    }
    /// The model was measured; if it is the best so far, it was saved as the run's model.
    fn evaluated(&mut self, record: &EvaluationRecord) {
        let _ = record;
    }
    /// Whether kernels are to be measured, which makes small steps slower.
    fn wants_profile(&self) -> bool {
        false
    }
    /// The run is over, and its kernels were measured, as [`Self::wants_profile`] asked for.
    fn profiled(&mut self, profile: &Profile) {
        let _ = profile;
    }
    /// A checkpoint is on disk.
    fn saved(&mut self, step: u64, path: &Path) {
        let _ = (step, path);
    }
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoopObserver;

impl Observer for NoopObserver {}
