//! The metrics that tasks are reported in.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A metric. More is better, and every value is a fraction: 0 to 1, or -1 to 1 for a correlation. [`percent`] prints
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Share of examples that were right, from 0 to 1.
    Accuracy,
    /// F1 of class 1 among two, from 0 to 1.
    F1,
    /// Mean of the F1 of all classes, from 0 to 1.
    MacroF1,
    /// Matthews' correlation coefficient, from -1 to 1.
    Matthews,
    /// Pearson's correlation coefficient, from -1 to 1.
    Pearson,
    /// Spearman's rank correlation, from -1 to 1.
    Spearman,
    /// Share of questions of SQuAD with exactly one of the answers given by people, from 0 to 1; the official scripts
    /// print it in percent.
    ExactMatch,
    /// Mean F1 of the words of answers of SQuAD, from 0 to 1; the official scripts print it in percent.
    SpanF1,
    /// F1 of named entities, each right as a whole or not at all, from 0 to 1.
    EntityF1,
}

impl Metric {
    /// The name in files and tables: `accuracy`, `f1`, `macro_f1`, `matthews`, `pearson`, `spearman`, `exact`,
    /// `span_f1`, `entity_f1`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::F1 => "f1",
            Self::MacroF1 => "macro_f1",
            Self::Matthews => "matthews",
            Self::Pearson => "pearson",
            Self::Spearman => "spearman",
            Self::ExactMatch => "exact",
            Self::SpanF1 => "span_f1",
            Self::EntityF1 => "entity_f1",
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A fraction in percent, without the sign: `percent(0.4567, 1)` is `45.7`. Tables print metrics through this function
/// alone, so that no figure is scaled twice.
pub fn percent(fraction: f64, digits: usize) -> String {
    format!("{:.digits$}", 100.0 * fraction)
}
