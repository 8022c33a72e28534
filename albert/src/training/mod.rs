//! Shared by pre-training and fine-tuning: settings of optimizer, schedule and computation, overrides of a recipe, training
//! state, resuming, the lock of the run folder.

mod begin;
mod lock;
mod overrides;
mod settings;
mod state;

pub use begin::Begin;
pub use settings::{
    ActivationType, ComputeSettings, OptimizerKind, OptimizerSettings, Replan, ScheduleKind, ScheduleSettings,
};
pub use state::MemoryPlan;

pub(crate) use begin::expect_finite;
pub(crate) use lock::FolderLock;
pub(crate) use overrides::{insert, lookup, one_line, parse, set};
pub(crate) use settings::{Update, expect};
pub(crate) use state::{claim_folder, claim_present, expect_folder, restore_state, save_state};
