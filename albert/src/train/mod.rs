//! Training core, shared by all objectives.
//!
//! ```text
//! recipe, data ──> objective (batches, loss, evaluation) ──> Trainer (one optimizer step at a time)
//!                                                              └> run (folder: steps, evaluations, checkpoints, reports)
//! ```
//!
//! * [`Objective`]: batches of a step, their loss, metrics and evaluation. [`RunObjective`]: its files and summary.
//!   Pre-training and fine-tuning are two objectives.
//! * [`Trainer`]: model, parameters, gradients, optimizer and workspace of an objective.
//! * `run`: a run in a folder, resumable with bit-identical results.
//! * [`Observer`]: callbacks of a run.
//! * `settings`: settings shared by all recipes, and their checks; `overrides`: applies `section.key=value` to a recipe.

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

pub use lock::FolderLock;
pub use memory::MemoryPlan;
pub use objective::{About, BatchShape, EVALUATE, Evaluated, MicroBatchSums, Objective, Pass, Position, ProgressOf};
pub use objective::{RecordOf, RunObjective, Worker};
pub use observer::{NoopObserver, Observer, Started};
pub use overrides::{Setting, SettingError, fingerprint, lay_over, parse, recipe_of, with_settings};
pub(crate) use overrides::{insert, lookup, remove};
pub use progress::{Progress, Window, bits};
pub use records::{EvaluationRecord, Figures, METRICS, Record, StepFigures, StepReport, TrainRecord};
pub use records::{evaluation_points, train_points};
pub use run::{Outcome, StartMode, run};
pub use settings::{ComputeSettings, EvaluationSettings, OptimizerKind, OptimizerSettings, Replan, RunSettings};
pub use settings::{ScheduleKind, ScheduleSettings, TrainPrecision, TrainSettings, check_decay, expect};
pub use trainer::Trainer;
