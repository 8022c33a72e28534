//! Callbacks of a pre-training run.

use std::path::Path;

use engine::profile::Profile;

use crate::report::{EvaluationRecord, Sentence};
use crate::training::MemoryPlan;

/// What is known before the first step.
#[derive(Clone, Debug, PartialEq)]
pub struct Started<'a> {
    /// Parameters of the model.
    pub parameters: usize,
    /// Steps done so far: 0, or those of the checkpoint that the run goes on from.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Instances of an epoch.
    pub instances: usize,
    /// Held-out sequences that an evaluation takes.
    pub evaluation_sequences: usize,
    /// Cross-entropy of the held-out masked pieces under the frequencies of the training text; `None` without held-out
    /// text.
    pub unigram_loss: Option<f64>,
    /// Memory that the run will hold at its peak.
    pub memory: MemoryPlan,
    /// Why nothing is evaluated, if so.
    pub no_evaluation: Option<&'a str>,
    /// Checkpoints that were damaged and passed over, each with the reason.
    pub damaged: &'a [String],
    /// Settings of a run at its beginning that may not be what was meant ([`super::Recipe::warnings`]).
    pub warnings: &'a [String],
    /// Records of the metrics that a resumed run lost or cut off.
    pub note: Option<&'a str>,
    /// The checkpoint that the run goes on from.
    pub resumed_from: Option<&'a Path>,
}

/// One optimizer step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepReport {
    /// Steps done, this one included.
    pub step: u64,
    /// Weighted sum of both losses, nats.
    pub loss: f64,
    /// Mean cross-entropy of the masked pieces.
    pub mlm_loss: f64,
    /// Share of masked pieces that were guessed.
    pub mlm_accuracy: f64,
    /// The sentence objective; pairs are not counted.
    pub sentence: Sentence,
    /// The rate of the step.
    pub learning_rate: f64,
    /// Global norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Tokens of the step.
    pub tokens: u64,
    /// Sequences of the step.
    pub sequences: u64,
    /// Floating-point operations of the step's matrix products (see `cost`).
    pub flops: f64,
    /// Seconds that the step took.
    pub seconds: f64,
    /// Of these, how long it waited for its batches.
    pub data_seconds: f64,
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
    /// Asked after every step: the number of steps that the whole run shall have from now on, where it is to change. The
    /// change becomes part of the run's recipe (`schedule.replans`).
    fn replanned(&mut self, report: &StepReport) -> Option<u64> {
        let _ = report;
        None
    }
    /// The model was measured; `is_best` says that it is the best so far and was saved as the run's model.
    fn evaluated(&mut self, record: &EvaluationRecord, is_best: bool) {
        let _ = (record, is_best);
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
