//! Pre-training: from shards to a model.
//!
//! * [`PretrainRecipe`]: every setting of a run, from TOML.
//! * [`Pretraining`]: batches, losses and evaluation, for the training core in [`crate::train`].
//! * [`pretrain`]: a run in a folder.
//!
//! `objective` builds the trainer from the recipe.

mod figures;
#[cfg(test)]
mod gpu_tests;
mod initial;
mod loss;
mod named;
mod objective;
mod recipe;
#[cfg(test)]
mod recipe_tests;
mod report;
mod run;
mod sentence;
#[cfg(test)]
mod tests;

pub use figures::{HeldOutFigures, PretrainFigures};
pub use loss::{Denominators, LossWeights, PretrainingLoss, pretraining_loss};
pub use named::{NamedRecipe, RECIPES};
pub use objective::{PretrainDetails, PretrainSources, PretrainSummary, Pretraining};
pub use recipe::OutputBias;
pub use recipe::{FirstValues, LossSettings, PretrainInput, PretrainRecipe, settings_of};
pub use run::pretrain;
pub use run::sentence_accuracy;
pub use sentence::{Sentence, SentenceObjective};

/// A line of `metrics.jsonl`.
pub type PretrainRecord = Record<PretrainFigures, HeldOutFigures>;

use engine::EngineError;

use crate::checkpoint::CheckpointError;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::model::ModelError;
use crate::report::ReportError;
use crate::tokenizer::TokenizerError;
use crate::train::{Record, SettingError};

/// Error of pre-training.
#[derive(Debug, thiserror::Error)]
pub enum PretrainError {
    /// A setting of the recipe is invalid.
    #[error("recipe: {0}")]
    Recipe(String),
    /// The configuration of the model is invalid.
    #[error("recipe: {0}")]
    Config(#[from] ConfigError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The tokenizer cannot be written.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A model or a training state cannot be loaded or saved.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A report cannot be read or written.
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

impl From<SettingError> for PretrainError {
    fn from(SettingError(problem): SettingError) -> Self {
        Self::Recipe(problem)
    }
}
