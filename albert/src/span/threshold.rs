//! From which null score on a question has no answer.
//!
//! A question whose null score is above the threshold has none, as in the official evaluation. (The released ALBERT
//! code takes one at the threshold for unanswerable as well, which at a tuned threshold undoes the very question that
//! it was tuned to.) A threshold that was tuned says on what, and figures on the same questions are to be called
//! tuned.

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::decode::Answers;
use crate::metrics::{EvaluationError, Gold, threshold_curve};

/// From which null score on there is no answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Threshold {
    /// There always is one, as in SQuAD 1.1.
    Never,
    /// A value that was given.
    Fixed(f64),
    /// The value with the best F1 on questions whose answers were known.
    Tuned {
        /// The value.
        value: f64,
        /// What it was tuned on, such as a file.
        on: String,
    },
}

impl Threshold {
    /// The value; infinite if there always is an answer.
    pub fn value(&self) -> f64 {
        match self {
            Self::Never => f64::INFINITY,
            Self::Fixed(value) | Self::Tuned { value, .. } => *value,
        }
    }

    /// What is answered: the best candidate's text, or nothing.
    pub fn answer<'a>(&self, answers: &'a Answers) -> &'a str {
        if answers.null_score > self.value() { "" } else { answers.best() }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("none"),
            Self::Fixed(value) => write!(f, "{value}"),
            Self::Tuned { value, on } => write!(f, "{value} (tuned on {on})"),
        }
    }
}

/// The threshold with the best F1 on questions whose answers are known; `on` names them. Of equal ones it is the
/// lowest; below all null scores if nothing is better than no answer at all.
///
/// Questions of equal null scores are answered together. (The official search counts them one by one, and may report
/// a figure that no threshold reaches.)
///
/// # Errors
/// As [`threshold_curve`].
///
/// # Panics
/// If there are not as many answers as questions.
pub fn tune(golds: &[Gold], answers: &[Answers], on: &str) -> Result<Threshold, EvaluationError> {
    assert_eq!(golds.len(), answers.len(), "answers to each question");
    let pairs = || golds.iter().zip(answers);
    let predictions: HashMap<String, String> =
        pairs().map(|(gold, answers)| (gold.id.clone(), answers.best().to_owned())).collect();
    let scores: Vec<(String, f64)> = pairs().map(|(gold, answers)| (gold.id.clone(), answers.null_score)).collect();
    let curve = threshold_curve(golds, &predictions, &scores)?;
    let best = curve.iter().fold(curve[0], |best, point| if point.f1 > best.f1 { *point } else { best });
    let value = best.threshold;
    Ok(Threshold::Tuned { value, on: on.to_owned() })
}
