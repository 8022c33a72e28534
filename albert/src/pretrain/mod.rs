//! Pre-training: from shards to a model.
//!
//! * [`Recipe`]: every setting of a run, from TOML.
//! * [`Trainer`]: model, optimizer and data; one optimizer step at a time.
//! * [`pretrain`]: a run in a folder: steps, evaluations, checkpoints, reports; resumable to the bit.
//! * [`Observer`]: hears what the run does.

#[cfg(test)]
mod gpu_tests;
mod loss;
mod named;
mod objectives;
mod observer;
mod progress;
mod recipe;
#[cfg(test)]
mod recipe_tests;
mod run;
#[cfg(test)]
mod tests;
mod trainer;

pub use crate::training::{
    ActivationType, Begin, ComputeSettings, MemoryPlan, OptimizerKind, OptimizerSettings, Replan, ScheduleKind,
    ScheduleSettings,
};
pub use loss::{Denominators, LossWeights, PretrainingLoss, pretraining_loss};
pub use named::RECIPES;
pub use objectives::sentence_accuracy;
pub use observer::{NoopObserver, Observer, Started, StepReport};
pub use recipe::{EvaluationSettings, FirstValues, Input, LossSettings, OutputBias, Recipe, RunSettings};
pub use run::{Outcome, Sources, Summary, pretrain};
pub use trainer::Trainer;

use engine::EngineError;

use crate::checkpoint::CheckpointError;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::model::ModelError;
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

impl From<ModelError> for PretrainError {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Config(error) => Self::Config(error),
            ModelError::Engine(error) => Self::Engine(error),
        }
    }
}
