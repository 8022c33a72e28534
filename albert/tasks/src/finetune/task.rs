//! `task.json`: properties of a fine-tuned model's task that `config.json` cannot store.

use std::path::Path;

use albert::checkpoint::{CheckpointError, ModelFolder, TaskHead};
use albert::config::ProblemType;
use albert::tokenizer::Tokenizer;
use engine::EngineError;
use engine::io::write_atomically;
use serde::{Deserialize, Serialize};

use super::{DataSettings, Examples, FinetuneError, FinetuneRecipe, SpanHead, SpanRecipe, TaskName, TextSettings};
use crate::files::{Problem, Text};
use crate::metrics::Metric;

/// File name in a model folder.
pub(crate) const TASK_FILE: &str = "task.json";

/// Task of a fine-tuned model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Name of the task; for third-party models, the task of custom files (`squad2` for span heads).
    pub name: TaskName,
    /// Problem, with its labels.
    pub problem: Problem,
    /// Metrics; the first one selects checkpoints.
    pub metrics: Vec<Metric>,
    /// Length limits of sequences.
    pub text: TextSettings,
    /// Settings for answer spans; ignored for other problems.
    #[serde(default)]
    pub span: SpanRecipe,
    /// Column names of its files.
    pub data: DataSettings,
    /// True if trained on pairs of texts; `None` if unknown, or if the problem is not about texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<bool>,
}

impl Task {
    /// Task `name` with the settings of `recipe`.
    pub fn new(name: TaskName, problem: Problem, recipe: &FinetuneRecipe) -> Self {
        let (text, span, data) = (recipe.text.clone(), recipe.span.clone(), recipe.data.clone());
        // Without B- and I- labels there are no entities.
        let has_entities =
            |labels: &[String]| labels.iter().any(|label| label.starts_with("B-") || label.starts_with("I-"));
        let metrics = match &problem {
            Problem::Tags { labels } if !has_entities(labels) => vec![Metric::Accuracy, Metric::MacroF1],
            _ => name.metrics(),
        };
        Self { name, problem, metrics, text, span, data, pairs: None }
    }

    /// This task, with `pairs` set according to `examples`.
    #[must_use]
    pub(crate) fn of_examples(&self, examples: &Examples) -> Self {
        let pairs = match examples {
            Examples::Texts(list) => list.first().map(|text| text.second.is_some()),
            _ => None,
        };
        Self { pairs, ..self.clone() }
    }

    /// Checks that texts fit the model: no pair for a model of single texts, no single text for a model of pairs, no
    /// empty text. One text of a GLUE pair may be empty, as in the published files.
    ///
    /// # Errors
    /// The first text that does not fit the model.
    pub(super) fn expect(&self, examples: &Examples) -> Result<(), FinetuneError> {
        let Examples::Texts(list) = examples else { return Ok(()) };
        let is_glue = matches!(self.name, TaskName::Glue(_));
        let is_empty = |text: &str| text.trim().is_empty();
        for Text { id, first, second, .. } in list {
            let problem = match (self.pairs, second) {
                (Some(true), None) => "the model was trained on pairs, but this is one text; give a second one",
                (Some(false), Some(_)) => "the model was trained on single texts, but this is a pair; leave one out",
                (_, None) if is_empty(first) => "the text is empty; there is nothing to predict from",
                (_, Some(second)) if is_empty(first) && (!is_glue || is_empty(second)) => {
                    "the first text is empty; there is nothing to predict from"
                }
                _ => continue,
            };
            let name = if id.is_empty() { String::new() } else { format!("example {id:?}: ") };
            return Err(FinetuneError::Data(format!("{name}{problem}")));
        }
        Ok(())
    }

    /// Writes `task.json` to `folder`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), FinetuneError> {
        let mut text = serde_json::to_string_pretty(self).expect("a task has string keys");
        text.push('\n');
        Ok(write_atomically(folder.join(TASK_FILE), |out| out.write_all(text.as_bytes()))?)
    }

    /// Task of the model in a folder: from its `task.json`, or else from the head in its weights, the labels in its
    /// `config.json` and the length limit of `tokenizer`.
    ///
    /// # Errors
    /// The file is damaged, the model has no task head, or its labels have missing or equal names.
    pub(crate) fn of_folder(files: &ModelFolder, tokenizer: &Tokenizer) -> Result<Self, FinetuneError> {
        let path = files.path().join(TASK_FILE);
        let wrong = |problem: String| {
            FinetuneError::Checkpoint(CheckpointError::Folder { path: files.path().to_owned(), problem })
        };
        if path.is_file() {
            let text =
                std::fs::read_to_string(&path).map_err(|error| EngineError::io(&path, "read the task", error))?;
            return serde_json::from_str(&text)
                .map_err(|error| wrong(format!("{TASK_FILE} cannot be used: {error}; fine-tune the model again")));
        }
        let reading = files.config();
        if let Some(problem) = &reading.labels_problem {
            return Err(wrong(format!("{problem}; correct config.json")));
        }
        let twice = (1..reading.labels.len()).find(|&at| reading.labels[..at].contains(&reading.labels[at]));
        if let (Some(at), Some(TaskHead::Sequence { .. })) = (twice, files.heads().task) {
            let problem = format!("`id2label` has several classes with the name {:?}", reading.labels[at]);
            return Err(wrong(format!("{problem}; rename one of them in config.json")));
        }
        let named = |count: usize| match reading.labels.len() {
            0 => (0..count).map(|at| format!("LABEL_{at}")).collect(),
            _ => reading.labels.clone(),
        };
        let (problem, name) = match files.heads().task {
            Some(TaskHead::Sequence { labels })
                if reading.problem_type == Some(ProblemType::MultiLabelClassification) =>
            {
                (Problem::Labels { labels: named(labels) }, TaskName::Classify)
            }
            Some(TaskHead::Sequence { labels: 2.. }) if reading.problem_type == Some(ProblemType::Regression) => {
                let problem = "its config.json sets `problem_type` = \"regression\" with several outputs; only one \
                               output is supported";
                return Err(wrong(problem.into()));
            }
            Some(TaskHead::Sequence { labels: 1 }) => (Problem::Number, TaskName::Regress),
            Some(TaskHead::Sequence { labels }) => (Problem::Classes { labels: named(labels) }, TaskName::Classify),
            Some(TaskHead::Token { labels }) => (Problem::Tags { labels: named(labels) }, TaskName::Tag),
            Some(TaskHead::Choice) => (Problem::Choice, TaskName::Choice),
            Some(TaskHead::Span | TaskHead::SquadV2) => (Problem::Span { may_be_impossible: true }, TaskName::Squad2),
            None => {
                let problem = "the model has no head for this; `albert finetune` makes one from it";
                return Err(wrong(problem.into()));
            }
        };
        let mut defaults = FinetuneRecipe::for_task(name, &reading.config);
        let longest = defaults.text.max_sequence_length;
        defaults.text.max_sequence_length = longest.min(tokenizer.longest().unwrap_or(longest));
        Ok(Self::new(name, problem, &defaults))
    }
}

/// Head for a problem; [`Task::of_folder`] is the inverse.
pub(super) fn head_of(problem: &Problem, span: &SpanRecipe) -> Result<TaskHead, FinetuneError> {
    let labels = |labels: &[String]| match labels.len() {
        0 | 1 => {
            Err(FinetuneError::Data(format!("{} of {} classes; expected at least two", problem.name(), labels.len())))
        }
        count => Ok(count),
    };
    Ok(match problem {
        Problem::Classes { labels: names } | Problem::Labels { labels: names } => {
            TaskHead::Sequence { labels: labels(names)? }
        }
        Problem::Number => TaskHead::Sequence { labels: 1 },
        Problem::Tags { labels: names } => TaskHead::Token { labels: labels(names)? },
        Problem::Choice => TaskHead::Choice,
        Problem::Span { may_be_impossible } => match span.head {
            Some(SpanHead::Logits) => TaskHead::Span,
            Some(SpanHead::Released) => TaskHead::SquadV2,
            None if *may_be_impossible => TaskHead::SquadV2,
            None => TaskHead::Span,
        },
    })
}
