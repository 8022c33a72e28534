//! Fine-tuning: from a pre-trained model and examples to a model of a task.
//!
//! ```text
//! example ── `feature` ──> sequences ── `batch` ──> ragged batch ── `loss` ──> gradients ── `trainer` ──> step
//!                                                                └> scores ── `prediction` ──> metrics, answers
//! ```
//!
//! * [`Recipe`]: every setting of a run, from TOML.
//! * [`Trainer`]: model, optimizer and examples; one optimizer step at a time.
//! * [`finetune`]: a run in a folder: steps, evaluations, the best model, reports; resumable to the bit.
//! * [`Predictor`]: fine-tuned models in use, alone or as an ensemble.

mod batch;
mod feature;
mod loss;
mod measure;
mod observer;
mod prediction;
mod predictor;
mod presets;
mod recipe;
mod report;
mod run;
#[cfg(test)]
mod run_tests;
mod seeds;
mod source;
#[cfg(test)]
mod span_tests;
mod start;
mod task;
#[cfg(test)]
mod tests;
mod trainer;

pub use crate::training::Begin;
pub use batch::{Batch, Budget, Order};
pub use feature::{Content, Feature, Features, Featurizer, Target};
pub use measure::{Measured, baseline, chance, measure};
pub use observer::{EvaluationRecord, NoopObserver, Observer, Record, Started, TrainRecord};
pub use prediction::{Gold, Prediction, average, gold, threshold_of};
pub use predictor::{Predictor, members_of};
pub use presets::Preset;
pub use recipe::{
    BatchSettings, DropoutSettings, EvaluationSettings, Input, Recipe, RunSettings, ScheduleSettings, SpanHead,
    SpanRecipe, Steps, TextSettings,
};
pub use report::{confusion_section, rows, threshold_panel};
pub use run::{Outcome, Sources, Summary, finetune};
pub use seeds::{SeedSummary, Spread};
pub use source::{DataSettings, DataSource, ExampleReader, Loaded, TaskName};
pub use start::{HeadOrigin, Start};
pub use task::{TASK_FILE, Task};
pub use trainer::{StepReport, Trainer};

use engine::EngineError;

use crate::checkpoint::CheckpointError;
use crate::config::ConfigError;
use crate::finite::NotFinite;
use crate::metrics::EvaluationError;
use crate::model::ModelError;
use crate::report::ReportError;
use crate::tasks::{Choice, Problem, Question, Tagged, TaskError, Text};
use crate::tokenizer::TokenizerError;

/// Why a run cannot start or go on, or a model not be used.
#[derive(Debug, thiserror::Error)]
pub enum FinetuneError {
    /// A setting of the recipe.
    #[error("recipe: {0}")]
    Recipe(String),
    /// The examples do not fit the problem.
    #[error("{0}")]
    Data(String),
    /// A file of examples.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// Questions that cannot be measured.
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    /// A setting of the model.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A model or a state on disk.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model's tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A score is NaN or infinite.
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    /// A report.
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
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Texts(list) => list.len(),
            Self::Tagged(list) => list.len(),
            Self::Choices(list) => list.len(),
            Self::Questions(list) => list.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The id of example `at`.
    pub fn id(&self, at: usize) -> &str {
        match self {
            Self::Texts(list) => &list[at].id,
            Self::Tagged(list) => &list[at].id,
            Self::Choices(list) => &list[at].id,
            Self::Questions(list) => &list[at].id,
        }
    }

    /// What they are, in a sentence.
    fn name(&self) -> &'static str {
        match self {
            Self::Texts(_) => "texts",
            Self::Tagged(_) => "tagged words",
            Self::Choices(_) => "questions with options",
            Self::Questions(_) => "questions about passages",
        }
    }
}

/// What a problem is called, in a sentence.
fn name_of(problem: &Problem) -> &'static str {
    match problem {
        Problem::Classes { .. } => "classification",
        Problem::Labels { .. } => "classification with several labels at once",
        Problem::Number => "regression",
        Problem::Tags { .. } => "tagging",
        Problem::Choice => "multiple choice",
        Problem::Span { .. } => "answers in text",
    }
}
