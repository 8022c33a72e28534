//! Fine-tuning of a pre-trained model on the examples of a task.
//!
//! ```text
//! example ── `feature` ──> sequences ── `batch` ──> ragged batch ── `loss` ──> gradients ── `train` ──> step
//!                                                                └> scores ── `prediction` ──> metrics, answers
//! ```
//!
//! * [`FinetuneRecipe`]: every setting of a run, from TOML.
//! * [`Finetuning`]: batches, losses and evaluation, for the training core in [`albert::train`].
//! * [`finetune`]: a run in a folder.
//! * [`Predictor`]: inference with a fine-tuned model or an ensemble.

mod batch;
mod feature;
mod figures;
mod held_out;
mod loss;
mod measure;
mod named;
mod objective;
mod prediction;
mod predictor;
mod presets;
mod recipe;
mod report;
mod run;
#[cfg(test)]
mod run_tests;
mod scorer;
mod source;
#[cfg(test)]
mod span_tests;
mod start;
mod summary;
mod task;
mod task_name;
#[cfg(test)]
mod tests;

pub use batch::{Batch, Budget};
pub(crate) use feature::{Features, Featurizer};
pub use figures::{DevFigures, FinetuneFigures};
pub use measure::{Measured, measure};
pub(crate) use measure::{baseline, chance};
pub use objective::{FinetuneDetails, FinetuneSources, Finetuning};
pub use prediction::{Gold, Offsets, Prediction, average, escaped, gold, threshold_of};
pub use predictor::{OfExample, Predictor, members_of};
pub use presets::Preset;
pub use recipe::{BatchSettings, DropoutSettings, FinetuneInput, FinetuneRecipe, Steps};
pub use recipe::{FinetuneSchedule, SpanHead, SpanRecipe, TextSettings};

pub use report::{confusion_section, rows, threshold_panel};
pub use run::finetune;
pub use source::{DataFiles, DataSettings, DataSource, ExampleReader, Loaded, Portion};
pub use start::{HeadOrigin, Start};
pub use summary::{FinetuneSummary, SeedSummary, Spread};
pub use task::Task;
pub use task_name::TaskName;

/// A line of `metrics.jsonl`.
pub(crate) type FinetuneRecord = Record<FinetuneFigures, DevFigures>;

use albert::checkpoint::CheckpointError;
use albert::config::ConfigError;
use albert::finite::NotFinite;
use albert::model::ModelError;
use albert::report::ReportError;
use albert::tokenizer::TokenizerError;
use albert::train::{Record, SettingError};
use engine::EngineError;
use serde_json::{Map, Value, json};

use crate::files::{Choice, Question, Tagged, TaskError, Text};
use crate::metrics::EvaluationError;

/// Error of fine-tuning, evaluation or prediction.
#[derive(Debug, thiserror::Error)]
pub enum FinetuneError {
    /// A setting of the recipe is invalid.
    #[error("recipe: {0}")]
    Recipe(String),
    /// The examples do not fit the problem.
    #[error("{0}")]
    Data(String),
    /// A file of examples cannot be read.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// Questions cannot be evaluated.
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    /// The configuration of the model is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A model or a training state cannot be loaded or saved.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The tokenizer cannot be loaded or does not fit the model.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A score is NaN or infinite.
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    /// A report cannot be read or written.
    #[error(transparent)]
    Report(#[from] ReportError),
}

impl From<ModelError> for FinetuneError {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Config(error) => Self::Config(error),
            ModelError::Engine(error) => Self::Engine(error),
        }
    }
}

impl From<SettingError> for FinetuneError {
    fn from(SettingError(problem): SettingError) -> Self {
        Self::Recipe(problem)
    }
}

/// Examples of one kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Examples {
    /// Texts or pairs.
    Texts(Vec<Text>),
    /// Sentences of words.
    Tagged(Vec<Tagged>),
    /// Questions with options.
    Choices(Vec<Choice>),
    /// Questions about passages.
    Questions(Vec<Question>),
}

impl Examples {
    /// Number of examples.
    pub fn len(&self) -> usize {
        match self {
            Self::Texts(list) => list.len(),
            Self::Tagged(list) => list.len(),
            Self::Choices(list) => list.len(),
            Self::Questions(list) => list.len(),
        }
    }

    /// True if there are no examples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Id of example `at`.
    pub fn id(&self, at: usize) -> &str {
        match self {
            Self::Texts(list) => &list[at].id,
            Self::Tagged(list) => &list[at].id,
            Self::Choices(list) => &list[at].id,
            Self::Questions(list) => &list[at].id,
        }
    }

    /// Returns example `at` alone.
    #[must_use]
    pub(crate) fn one(&self, at: usize) -> Self {
        self.some(&[at])
    }

    /// Returns the examples at some indices.
    #[must_use]
    pub(crate) fn some(&self, at: &[usize]) -> Self {
        fn of<E: Clone>(list: &[E], at: &[usize]) -> Vec<E> {
            at.iter().map(|&at| list[at].clone()).collect()
        }
        match self {
            Self::Texts(list) => Self::Texts(of(list, at)),
            Self::Tagged(list) => Self::Tagged(of(list, at)),
            Self::Choices(list) => Self::Choices(of(list, at)),
            Self::Questions(list) => Self::Questions(of(list, at)),
        }
    }

    /// Text that contains the answers to example `at`; empty for other examples.
    pub fn passage(&self, at: usize) -> &str {
        if let Self::Questions(list) = self { &list[at].passage } else { "" }
    }

    /// Fields of example `at` without its labels.
    pub fn input(&self, at: usize) -> Map<String, Value> {
        let fields = match self {
            Self::Texts(list) => {
                let Text { first, second, .. } = &list[at];
                vec![("text", Some(json!(first))), ("text_b", second.as_ref().map(|second| json!(second)))]
            }
            Self::Tagged(list) => vec![("words", Some(json!(list[at].words)))],
            Self::Choices(list) => {
                let Choice { passage, question, options, .. } = &list[at];
                let passage = ("passage", Some(json!(**passage)));
                vec![passage, ("question", Some(json!(question))), ("options", Some(json!(options)))]
            }
            Self::Questions(list) => {
                let Question { passage, question, .. } = &list[at];
                vec![("question", Some(json!(question))), ("context", Some(json!(**passage)))]
            }
        };
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    /// Adds the examples of `other`, which are of the same kind.
    ///
    /// # Panics
    /// If they are of another kind.
    pub fn append(&mut self, other: Self) {
        match (self, other) {
            (Self::Texts(list), Self::Texts(more)) => list.extend(more),
            (Self::Tagged(list), Self::Tagged(more)) => list.extend(more),
            (Self::Choices(list), Self::Choices(more)) => list.extend(more),
            (Self::Questions(list), Self::Questions(more)) => list.extend(more),
            (of, other) => panic!("{} cannot follow {}", other.name(), of.name()),
        }
    }

    /// Name of the kind of examples, as a phrase for messages.
    fn name(&self) -> &'static str {
        match self {
            Self::Texts(_) => "texts",
            Self::Tagged(_) => "tagged words",
            Self::Choices(_) => "questions with options",
            Self::Questions(_) => "questions about passages",
        }
    }
}
