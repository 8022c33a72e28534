//! Callbacks of a run.

use std::path::Path;

use engine::profile::Profile;

use super::memory::MemoryPlan;
use super::objective::RunObjective;
use super::records::{EvaluationRecord, StepReport};

/// Description of a run before its first step.
#[derive(Clone, Debug, PartialEq)]
pub struct Started<'a, D> {
    /// Number of parameters of the model.
    pub parameters: usize,
    /// Step from which the run continues; 0 for a new run.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Number of sequences or examples of an evaluation; 0 without one.
    pub evaluated: usize,
    /// Planned peak memory of the run.
    pub memory: MemoryPlan,
    /// Damaged checkpoints that were skipped, each with the reason.
    pub damaged: &'a [String],
    /// Possibly unintended settings of a new run.
    pub warnings: &'a [String],
    /// Messages about a resumed run: lost or truncated metrics records, a state of an earlier version.
    pub notes: &'a [String],
    /// Checkpoint from which the run continues.
    pub resumed_from: Option<&'a Path>,
    /// Details of the objective.
    pub details: &'a D,
}

/// Callbacks of a run; the default implementations do nothing.
pub trait Observer<O: RunObjective> {
    /// Called before the first step.
    fn started(&mut self, started: &Started<'_, O::Details>) {
        let _ = started;
    }
    /// Called before the first micro-batch of a step and after each, with the number of completed ones and the number of all on
    /// this rank. False aborts the step and ends the run without saving, if the process trains alone.
    fn micro_batch(&mut self, done: usize, all: usize) -> bool {
        let _ = (done, all);
        true
    }
    /// Called after each step.
    fn stepped(&mut self, report: &StepReport<O::Figures>) {
        let _ = report;
    }
    /// Called after each step: returns the new number of steps of the whole run if it is to change. The change becomes
    /// part of the run's recipe (`schedule.replans`).
    fn replanned(&mut self, report: &StepReport<O::Figures>) -> Option<u64> {
        let _ = report;
        None
    }
    /// Called before each evaluation.
    fn evaluating(&mut self) {}
    /// Called after each evaluation; if `is_best`, the model is the best so far and already saved as the run's model.
    fn evaluated(&mut self, record: &EvaluationRecord<O::Evaluation>, is_best: bool) {
        let _ = (record, is_best);
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

impl<O: RunObjective> Observer<O> for NoopObserver {}
