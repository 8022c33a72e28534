//! Thresholds on null scores.
//!
//! A question whose null score is above the threshold has no answer, as in the official evaluation. (In the released ALBERT
//! code, this also applies to a null score equal to the threshold, which drops the question that a tuned threshold comes
//! from.) A tuned threshold stores the name of its data; scores on the same data must be labeled as tuned.

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::decode::Answers;
use crate::metrics::{EvaluationError, Gold, threshold_curve};

/// Threshold on null scores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Threshold {
    /// No threshold: every question has an answer, as in SQuAD 1.1.
    Never,
    /// A given value.
    Fixed(f64),
    /// The value with the best F1 on some data.
    Tuned {
        /// Tuned threshold.
        value: f64,
        /// Name of the data, such as a file.
        on: String,
    },
}

impl Threshold {
    /// The value; infinite for [`Self::Never`].
    pub(crate) fn value(&self) -> f64 {
        match self {
            Self::Never => f64::INFINITY,
            Self::Fixed(value) | Self::Tuned { value, .. } => *value,
        }
    }

    /// Text of the best candidate, or empty.
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

/// Finds the threshold with the best F1 on questions with known answers, called `on`; the lowest of equal ones. It is below
/// all null scores if "no answer" is best for every question.
///
/// Questions with equal null scores are answered together. (The official search counts them one by one and may report a score
/// that no threshold reaches.)
///
/// # Errors
/// As [`threshold_curve`].
///
/// # Panics
/// If the numbers of answers and questions differ.
pub(crate) fn tune(golds: &[Gold], answers: &[Answers], on: &str) -> Result<Threshold, EvaluationError> {
    assert_eq!(golds.len(), answers.len(), "one answer for each question");
    let pairs = || golds.iter().zip(answers);
    let predictions: HashMap<String, String> =
        pairs().map(|(gold, answers)| (gold.id.clone(), answers.best().to_owned())).collect();
    let scores: Vec<(String, f64)> = pairs().map(|(gold, answers)| (gold.id.clone(), answers.null_score)).collect();
    let curve = threshold_curve(golds, &predictions, &scores)?;
    let best = curve.iter().fold(curve[0], |best, point| if point.f1 > best.f1 { *point } else { best });
    let value = best.threshold;
    Ok(Threshold::Tuned { value, on: on.to_owned() })
}
