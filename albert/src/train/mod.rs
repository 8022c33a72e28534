//! Training core, shared by all objectives.
//!
//! ```text
//! recipe, data ──> objective (batches, loss, evaluation) ──> Trainer (one optimizer step at a time)
//!                                                              └> run (folder: steps, evaluations, checkpoints, reports)
//! ```
//!
//! * [`Objective`]: batches of a step, their loss, figures and evaluation. [`RunObjective`]: its files and summary.
//!   Pre-training and fine-tuning are two objectives.
//! * [`Trainer`]: model, parameters, gradients, optimizer and workspace of an objective.
//! * `run`: a run in a folder, resumable to the bit.
//! * [`Observer`]: callbacks of a run.

mod lock;
mod memory;
mod objective;
mod observer;
mod overrides;
mod progress;
mod records;
mod run;
mod settings;
mod trainer;

pub use memory::MemoryPlan;
pub use objective::{About, BatchShape, Evaluated, MicroBatchSums, Position};
pub use objective::{Objective, Pass, RunObjective, Worker};
pub use observer::{NoopObserver, Observer, Started};
pub use overrides::SettingError;
pub use overrides::{Setting, with_settings};
pub use progress::Progress;
pub use records::{EvaluationRecord, Figures, StepReport, TrainRecord};
pub use records::{Record, StepFigures};
pub use run::{Outcome, StartMode};
pub use settings::{ComputeSettings, OptimizerKind};
pub use settings::{
    EvaluationSettings, OptimizerSettings, Replan, RunSettings, ScheduleKind, ScheduleSettings, TrainPrecision,
    TrainSettings,
};

pub use trainer::Trainer;

pub(crate) use lock::FolderLock;
pub(crate) use objective::{EVALUATE, ProgressOf, RecordOf};
pub(crate) use overrides::{fingerprint, insert, lay_over, lookup, parse, recipe_of, remove};
pub(crate) use progress::{Window, bits};
pub(crate) use records::{METRICS, evaluation_points, train_points};
pub(crate) use run::run;
pub(crate) use settings::{check_decay, expect};
