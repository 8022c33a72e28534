//! Names of the tasks.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::FinetuneError;
use crate::files::GlueTask;
use crate::metrics::Metric;

/// A task by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TaskName {
    /// A GLUE task.
    Glue(GlueTask),
    /// RACE: reading comprehension of English examinations.
    Race,
    /// Classification of texts or pairs, custom files.
    Classify,
    /// Regression on texts or pairs, custom files.
    Regress,
    /// Classification of words, custom files.
    Tag,
    /// Multiple choice, custom files.
    Choice,
    /// SQuAD 1.1: answer spans; every question has an answer.
    Squad1,
    /// SQuAD 2.0: answer spans; questions may have no answer.
    Squad2,
    /// Answer spans, custom files; questions may have no answer.
    Qa,
}

impl TaskName {
    /// Tasks outside GLUE.
    const OTHERS: [Self; 8] =
        [Self::Squad1, Self::Squad2, Self::Race, Self::Classify, Self::Regress, Self::Tag, Self::Choice, Self::Qa];

    /// All tasks.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        GlueTask::ALL.into_iter().map(Self::Glue).chain(Self::OTHERS)
    }

    /// Name of the task on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Glue(task) => task.name(),
            Self::Race => "race",
            Self::Classify => "classify",
            Self::Regress => "regress",
            Self::Tag => "tag",
            Self::Choice => "choice",
            Self::Squad1 => "squad1",
            Self::Squad2 => "squad2",
            Self::Qa => "qa",
        }
    }

    /// True if answers are spans of passages.
    pub(crate) fn is_about_spans(self) -> bool {
        matches!(self, Self::Squad1 | Self::Squad2 | Self::Qa)
    }

    /// Metrics of the task; the first one selects checkpoints.
    pub fn metrics(self) -> Vec<Metric> {
        match self {
            Self::Glue(task) => task.metrics().to_vec(),
            Self::Regress => vec![Metric::Pearson, Metric::Spearman],
            Self::Classify => vec![Metric::Accuracy, Metric::MacroF1],
            Self::Tag => vec![Metric::EntityF1, Metric::Accuracy],
            Self::Race | Self::Choice => vec![Metric::Accuracy],
            Self::Squad1 | Self::Squad2 | Self::Qa => vec![Metric::SpanF1, Metric::ExactMatch],
        }
    }

    /// Extensions of the task's custom files.
    pub(super) fn own_endings(self) -> &'static [&'static str] {
        match self {
            Self::Classify | Self::Regress => &["tsv", "csv", "jsonl", "ndjson"],
            Self::Tag => &["conll", "txt", "tsv", "bio", "jsonl"],
            Self::Choice => &["jsonl", "ndjson", "json", "csv"],
            Self::Qa => &["json", "jsonl"],
            Self::Glue(_) | Self::Race | Self::Squad1 | Self::Squad2 => &[],
        }
    }
}

impl FromStr for TaskName {
    type Err = FinetuneError;

    fn from_str(name: &str) -> Result<Self, FinetuneError> {
        let name = name.to_lowercase();
        Self::OTHERS.into_iter().find(|task| task.name() == name).map_or_else(
            || {
                name.parse().map(Self::Glue).map_err(|_| {
                    let known: Vec<_> = Self::all().map(Self::name).collect();
                    FinetuneError::Data(format!("no task is called {name:?}; there are {}", known.join(", ")))
                })
            },
            Ok,
        )
    }
}

impl TryFrom<String> for TaskName {
    type Error = FinetuneError;

    fn try_from(name: String) -> Result<Self, FinetuneError> {
        name.parse()
    }
}

impl From<TaskName> for String {
    fn from(task: TaskName) -> Self {
        task.name().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for task in TaskName::all() {
            assert_eq!(task.name().parse::<TaskName>().unwrap(), task);
            assert!(!task.metrics().is_empty());
        }
        assert_eq!("SST-2".parse::<TaskName>().unwrap(), TaskName::Glue(GlueTask::Sst2));
        let message = "sst3".parse::<TaskName>().unwrap_err().to_string();
        assert!(message.contains("no task is called \"sst3\"; there are cola, sst-2"), "{message}");
    }
}
