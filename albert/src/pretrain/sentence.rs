//! Metrics of the sentence objective, named after the objective in files: `sop_loss` or `nsp_loss`.

use serde::{Deserialize, Serialize};

use crate::data::Objective;

/// Sentence objective of the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SentenceObjective {
    /// Sentence-order prediction.
    #[default]
    Sop,
    /// Next-sentence prediction.
    Nsp,
}

impl SentenceObjective {
    /// Abbreviation, SOP or NSP.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sop => "SOP",
            Self::Nsp => "NSP",
        }
    }

    /// Description of the label, for legends.
    pub(super) fn meaning(self) -> &'static str {
        match self {
            Self::Sop => "sentence order",
            Self::Nsp => "next sentence",
        }
    }
}

impl From<Objective> for SentenceObjective {
    /// Without a sentence objective there are no metrics, and the name is irrelevant.
    fn from(objective: Objective) -> Self {
        match objective {
            Objective::Nsp => Self::Nsp,
            Objective::Sop | Objective::None => Self::Sop,
        }
    }
}

/// Metrics of the sentence objective. Its keys in JSON begin with `sop_` or `nsp_`; those without a value are omitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Keys", into = "Keys")]
pub struct Sentence {
    /// Objective that the metrics belong to.
    pub objective: SentenceObjective,
    /// Cross-entropy of the label in nats; `None` without the objective.
    pub loss: Option<f64>,
    /// Share of labels that were predicted correctly.
    pub accuracy: Option<f64>,
    /// Number of pairs; 0 if they are not counted.
    pub count: u64,
    /// Standard error of `accuracy`, if pairs are counted.
    pub standard_error: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Keys {
    #[serde(skip_serializing_if = "Option::is_none")]
    sop_loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sop_accuracy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sop_count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sop_standard_error: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nsp_loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nsp_accuracy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nsp_count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nsp_standard_error: Option<f64>,
}

impl From<Sentence> for Keys {
    fn from(Sentence { objective, loss, accuracy, count, standard_error }: Sentence) -> Self {
        let count = Some(count).filter(|count| *count > 0);
        match objective {
            SentenceObjective::Sop => Self {
                sop_loss: loss,
                sop_accuracy: accuracy,
                sop_count: count,
                sop_standard_error: standard_error,
                ..Self::default()
            },
            SentenceObjective::Nsp => Self {
                nsp_loss: loss,
                nsp_accuracy: accuracy,
                nsp_count: count,
                nsp_standard_error: standard_error,
                ..Self::default()
            },
        }
    }
}

impl From<Keys> for Sentence {
    fn from(keys: Keys) -> Self {
        let is_nsp = keys.nsp_loss.is_some() || keys.nsp_accuracy.is_some();
        let (objective, loss, accuracy, count, standard_error) = if is_nsp {
            (SentenceObjective::Nsp, keys.nsp_loss, keys.nsp_accuracy, keys.nsp_count, keys.nsp_standard_error)
        } else {
            (SentenceObjective::Sop, keys.sop_loss, keys.sop_accuracy, keys.sop_count, keys.sop_standard_error)
        };
        Self { objective, loss, accuracy, count: count.unwrap_or(0), standard_error }
    }
}
