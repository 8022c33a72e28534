//! Metrics of tasks.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A metric. Larger is better, and every value is a fraction: 0 to 1, or -1 to 1 for a correlation; `percent` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Share of correct examples.
    Accuracy,
    /// F1 of class 1 in a problem of two classes.
    F1,
    /// Mean F1 of all classes.
    MacroF1,
    /// Matthews' correlation coefficient.
    Matthews,
    /// Pearson's correlation coefficient.
    Pearson,
    /// Spearman's rank correlation.
    Spearman,
    /// Share of SQuAD questions with an exact answer; the official scripts print percent.
    ExactMatch,
    /// Mean word F1 of SQuAD answers; the official scripts print percent.
    SpanF1,
    /// F1 of named entities.
    EntityF1,
}

impl Metric {
    /// Name in files and tables: `accuracy`, `f1`, `macro_f1`, `matthews`, `pearson`, `spearman`, `exact`,
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

/// Formats a fraction in percent, without the sign: `percent(0.4567, 1)` is `45.7`. Tables print metrics only with this
/// function, so that no value is scaled twice.
pub(crate) fn percent(fraction: f64, digits: usize) -> String {
    format!("{:.digits$}", 100.0 * fraction)
}

#[cfg(test)]
mod tests {
    use super::Metric::*;

    #[test]
    fn reports_know_the_meaning_of_every_metric() {
        for metric in [Accuracy, F1, MacroF1, Matthews, Pearson, Spearman, ExactMatch, SpanF1, EntityF1] {
            assert!(!albert::report::meaning(metric.name()).is_empty(), "{metric}");
        }
    }
}
