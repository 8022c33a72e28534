//! Results of the stages of a run, the content of `result.json`.

use std::collections::BTreeMap;

use albert::mean::Proportion;
use serde::{Deserialize, Serialize};

/// Result of pre-training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PretrainResult {
    /// Number of steps.
    pub steps: u64,
    /// Tokens processed.
    pub tokens: u64,
    /// Training time in seconds.
    pub seconds: f64,
    /// Masked-token accuracy on held-out text, 0 to 1.
    pub mlm_accuracy: Option<f64>,
    /// Next-sentence accuracy on held-out text; `None` for a model without a sentence objective.
    pub nsp: Option<Proportion>,
    /// Sentence-order accuracy on held-out text; `None` for a model without a sentence objective.
    pub sop: Option<Proportion>,
}

/// Result of fine-tuning on one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskResult {
    /// Name of the metric.
    pub metric: String,
    /// Best dev score, as a fraction like every [`crate::metrics::Metric`].
    pub score: f64,
    /// Training time in seconds.
    pub seconds: f64,
}

/// Results of the finished stages of a row under one seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunResult {
    /// Fingerprint of the pre-training recipe.
    pub recipe: serde_json::Value,
    /// Result of pre-training.
    pub pretrained: Option<PretrainResult>,
    /// Results of fine-tuning, by task name.
    pub tasks: BTreeMap<String, TaskResult>,
    /// Message of a diverged stage; later stages are then skipped.
    pub problem: Option<String>,
}
