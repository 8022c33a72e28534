//! Examples of the task kinds.
//!
//! ```text
//!            input                              label                         files
//! Text       one text or a pair                 class or number               GLUE, custom files
//! Tagged     words                              class of each word            CoNLL
//! Choice     passage, question, options         right option                  RACE, custom files
//! Question   passage, question                  span of the passage, or none  SQuAD 1.1, SQuAD 2.0
//! ```
//!
//! Labels are `None` (or empty) for files without labels, such as the test sets of GLUE.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::metrics::Level;

/// Task kind with its class names, by index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Problem {
    /// One class for a text or a pair.
    Classes {
        /// Class names.
        labels: Vec<String>,
    },
    /// Any number of classes for a text or a pair, each independent. Prediction only: no file layout has such labels.
    Labels {
        /// Class names.
        labels: Vec<String>,
    },
    /// A number for a text or a pair.
    Number,
    /// One class for each word.
    Tags {
        /// Class names.
        labels: Vec<String>,
    },
    /// One of several options.
    Choice,
    /// A span of a passage.
    Span {
        /// True if a question may have no answer.
        may_be_impossible: bool,
    },
}

impl Problem {
    /// Name of the problem, as a phrase for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Classes { .. } => "classification",
            Self::Labels { .. } => "multi-label classification",
            Self::Number => "regression",
            Self::Tags { .. } => "tagging",
            Self::Choice => "multiple choice",
            Self::Span { .. } => "answers in text",
        }
    }

    /// Class names; empty if the problem has none.
    pub fn labels(&self) -> &[String] {
        match self {
            Self::Classes { labels } | Self::Labels { labels } | Self::Tags { labels } => labels,
            Self::Number | Self::Choice | Self::Span { .. } => &[],
        }
    }
}

/// Label of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Label {
    /// Class index.
    Class(u32),
    /// Target of a regression.
    Number(f32),
}

/// One text, or a pair.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// Name of its prediction.
    pub id: String,
    /// The text, or the first text of a pair.
    pub first: String,
    /// The second text of a pair.
    pub second: Option<String>,
    /// Label, if known.
    pub label: Option<Label>,
}

/// Tagged words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// Name of its prediction.
    pub id: String,
    /// Words of the sentence.
    pub words: Vec<String>,
    /// Class of each word; empty if unknown.
    pub tags: Vec<u32>,
}

/// A passage, a question and options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of its prediction.
    pub id: String,
    /// Passage, shared by its examples.
    pub passage: Arc<str>,
    /// Question; `_` marks the position of the option.
    pub question: String,
    /// Options: four in RACE, two or more in custom files.
    pub options: Vec<String>,
    /// Index of the right option.
    pub answer: Option<u32>,
    /// School level, for RACE.
    pub level: Option<Level>,
}

/// A span of a passage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Text of the answer.
    pub text: String,
    /// Its first byte in the passage. (Files count characters.)
    pub start: usize,
}

/// A question about a passage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Name of its prediction.
    pub id: String,
    /// Passage, shared by its examples.
    pub passage: Arc<str>,
    /// Text of the question.
    pub question: String,
    /// Answers by annotators: one in training files, several in dev and test files. Empty if there is no answer or it is unknown.
    pub answers: Vec<Answer>,
    /// True if the passage contains no answer.
    pub is_impossible: bool,
}
