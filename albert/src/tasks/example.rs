//! Examples of the five kinds of problem.
//!
//! ```text
//! Text       one text or a pair                 a class, or a number          GLUE, files of one's own
//! Tagged     words                              a class for each word         CoNLL
//! Choice     a passage, a question, options     the right option              RACE
//! Question   a passage, a question              a part of the passage, or     SQuAD 1.1, SQuAD 2.0
//!                                               that there is no answer
//! ```
//!
//! What is to be predicted is `None` (or empty) in files without it, such as the test sets of GLUE.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What is to be predicted, with the names of the classes in the order of their indices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Problem {
    /// One of `labels` for a text or a pair.
    Classes {
        /// Names, by index.
        labels: Vec<String>,
    },
    /// Any number of `labels` for a text or a pair, each by itself. Models of this kind predict; no layout of files has
    /// such labels yet, so they are neither trained nor evaluated.
    Labels {
        /// Names, by index.
        labels: Vec<String>,
    },
    /// A number for a text or a pair.
    Number,
    /// One of `labels` for each word.
    Tags {
        /// Names, by index.
        labels: Vec<String>,
    },
    /// One of several options.
    Choice,
    /// A part of a passage.
    Span {
        /// Whether there may be no answer.
        may_be_impossible: bool,
    },
}

/// What is right about a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Label {
    /// Index of a class.
    Class(u32),
    /// A number.
    Number(f32),
}

/// One text, or a pair.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// The name that a prediction is written under.
    pub id: String,
    /// The text, or the first of a pair.
    pub first: String,
    /// The second of a pair.
    pub second: Option<String>,
    /// What is right.
    pub label: Option<Label>,
}

/// Words, each with a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// The name that a prediction is written under.
    pub id: String,
    /// The words.
    pub words: Vec<String>,
    /// The class of each; empty if unknown.
    pub tags: Vec<u32>,
}

/// Which part of RACE an example is of; its accuracies are reported apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Middle school.
    Middle,
    /// High school.
    High,
}

/// A passage, a question and options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The name that a prediction is written under.
    pub id: String,
    /// The passage; examples of one passage share it.
    pub passage: Arc<str>,
    /// The question; where it has `_`, the option belongs there.
    pub question: String,
    /// The options: four in RACE, two or more in files of one's own.
    pub options: Vec<String>,
    /// Index of the right one.
    pub answer: Option<u32>,
    /// Which part of RACE.
    pub level: Option<Level>,
}

/// A part of a passage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Byte of the passage at which it starts. (Files count characters.)
    pub start: usize,
}

/// A question about a passage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The name that a prediction is written under.
    pub id: String,
    /// The passage; examples of one passage share it.
    pub passage: Arc<str>,
    /// The question.
    pub question: String,
    /// What people gave as answers: one in training files, several in others. Empty if there is none, or none is known.
    pub answers: Vec<Answer>,
    /// Whether the passage holds no answer.
    pub is_impossible: bool,
}
