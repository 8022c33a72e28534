//! Reports of steps and the records of `metrics.jsonl`, for any objective.

use std::fmt::Debug;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::report::Logged;

/// Name of the metrics file in a run folder.
pub const METRICS: &str = "metrics.jsonl";

/// Named metrics of a record.
pub trait Figures: Clone + Debug + PartialEq + Serialize + DeserializeOwned {}

impl<F: Clone + Debug + PartialEq + Serialize + DeserializeOwned> Figures for F {}

/// Metrics of a step other than its loss.
pub trait StepFigures: Figures + Copy + Default {
    /// Sums over steps; part of every checkpoint.
    type Sums: Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned;

    /// Adds the metrics of a step to `sums`.
    fn add_to(&self, sums: &mut Self::Sums);

    /// Means over `steps` steps that end with `last`.
    fn mean(sums: &Self::Sums, steps: u64, last: &Self) -> Self;
}

/// Report of one optimizer step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepReport<F> {
    /// Number of completed steps, including this one.
    pub step: u64,
    /// Loss that backward started from, as a mean over the effective batch.
    pub loss: f64,
    /// Metrics of the objective.
    pub figures: F,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// Global norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Number of tokens of the step.
    pub tokens: u64,
    /// Number of sequences of the step.
    pub sequences: u64,
    /// Floating-point operations of this rank's matrix products in the step (see `cost`).
    pub flops: f64,
    /// Duration of the step in seconds.
    pub seconds: f64,
    /// Part of `seconds` in which the step waited for its batches.
    pub data_seconds: f64,
}

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record<F, E> {
    /// Training since the previous record.
    Train(TrainRecord<F>),
    /// Metrics of an evaluation.
    Evaluation(EvaluationRecord<E>),
}

/// Means over the steps since the previous record. Losses are in nats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainRecord<F> {
    /// Number of completed optimizer steps.
    pub step: u64,
    /// Mean loss.
    pub loss: f64,
    /// Metrics of the objective.
    #[serde(flatten)]
    pub figures: F,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Global norm of the last step's gradient before clipping.
    pub gradient_norm: f64,
    /// Tokens processed since the start of the run; pre-training only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Tokens per second since the previous record.
    pub tokens_per_second: f64,
    /// Share of that time in which steps waited for their batches; pre-training only, and missing in logs of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_share: Option<f64>,
    /// Seconds of training since the start of the run, including earlier starts.
    pub seconds: f64,
}

/// Metrics of the model on data that it is not trained on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRecord<E> {
    /// Number of completed optimizer steps.
    pub step: u64,
    /// Metrics of the objective.
    #[serde(flatten)]
    pub figures: E,
    /// Seconds of training since the start of the run, including earlier starts.
    pub seconds: f64,
}

impl<F: Figures, E: Figures> Logged for Record<F, E> {
    fn step(&self) -> u64 {
        match self {
            Self::Train(record) => record.step,
            Self::Evaluation(record) => record.step,
        }
    }
}

impl<F: Figures, E: Figures> Record<F, E> {
    /// Scalars of the record for TensorBoard, by tag: its kind and the name in `metrics.jsonl`.
    pub(crate) fn scalars(&self) -> Vec<(String, f64)> {
        let mut scalars = Vec::new();
        let kind = match self {
            Self::Train(_) => "train",
            Self::Evaluation(_) => "evaluation",
        };
        add_scalars(kind, "", &serde_json::to_value(self).expect("a record has string keys"), &mut scalars);
        scalars
    }
}

/// Adds the number `name`, or the numbers in an object or in a list of (name, number).
fn add_scalars(kind: &str, name: &str, value: &Value, out: &mut Vec<(String, f64)>) {
    match value {
        Value::Number(number) if name != "step" => {
            out.extend(number.as_f64().map(|number| (format!("{kind}/{name}"), number)));
        }
        Value::Object(object) => object.iter().for_each(|(name, value)| add_scalars(kind, name, value, out)),
        Value::Array(list) => {
            for pair in list {
                if let Some([Value::String(name), number @ Value::Number(_)]) = pair.as_array().map(|pair| &pair[..]) {
                    add_scalars(kind, name, number, out);
                }
            }
        }
        _ => {}
    }
}

/// Points (step, value) of the training records, for a curve.
pub fn train_points<F, E>(records: &[Record<F, E>], value: impl Fn(&TrainRecord<F>) -> Option<f64>) -> Vec<(f64, f64)> {
    let points = records.iter().filter_map(|record| match record {
        Record::Train(record) => Some((record.step as f64, value(record)?)),
        Record::Evaluation(_) => None,
    });
    points.collect()
}

/// Points (step, value) of the evaluations, for a curve.
pub fn evaluation_points<F, E>(
    records: &[Record<F, E>],
    value: impl Fn(&EvaluationRecord<E>) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let points = records.iter().filter_map(|record| match record {
        Record::Evaluation(record) => Some((record.step as f64, value(record)?)),
        Record::Train(_) => None,
    });
    points.collect()
}
