//! Pre-training: from shards to a model.
//!
//! * [`Recipe`]: every setting of a run.

mod named;
mod recipe;
#[cfg(test)]
mod recipe_tests;

pub use named::RECIPES;
pub use recipe::{
    ActivationType, ComputeSettings, EvaluationSettings, Input, LossSettings, OptimizerKind, OptimizerSettings, Recipe,
    RunSettings, ScheduleKind, ScheduleSettings,
};

use engine::EngineError;

use crate::checkpoint::CheckpointError;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::report::ReportError;

/// Why a run cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum PretrainError {
    /// A setting of the recipe.
    #[error("recipe: {0}")]
    Recipe(String),
    /// A setting of the model.
    #[error("recipe: {0}")]
    Config(#[from] ConfigError),
    /// The data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A model or a state on disk.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A report.
    #[error(transparent)]
    Report(#[from] ReportError),
}
