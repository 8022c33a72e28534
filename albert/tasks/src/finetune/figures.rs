//! Metrics of a step and of an evaluation of fine-tuning.

use albert::mean::{Mean, Proportion};
use albert::train::{MicroBatchSums, StepFigures, bits};
use serde::{Deserialize, Serialize};

use super::Measured;

/// Metrics of a step, or means over steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FinetuneFigures {
    /// Accuracy on the training examples, 0 to 1; `None` for numbers and answers.
    pub accuracy: Option<f64>,
}

/// Metrics on the dev set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DevFigures {
    /// Result of the measurement.
    pub measured: Measured,
    /// Mean training loss since the previous evaluation.
    pub train_loss: f64,
    /// True if the model is the best so far.
    pub is_best: bool,
    /// Warning about a collapse, with remedies; set at the first of consecutive evaluations that show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse: Option<String>,
}

/// Sums of [`FinetuneFigures`] over steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSums {
    #[serde(with = "bits")]
    accuracy: f64,
}

/// Sums over the micro-batches of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossSums {
    pub(super) loss: Mean,
    pub(super) correct: Proportion,
}

impl MicroBatchSums for LossSums {
    const VALUES: usize = 4;

    fn write(&self, values: &mut Vec<f64>) {
        let Self { loss, correct } = self;
        values.extend([loss.sum, loss.count as f64, correct.correct as f64, correct.count as f64]);
    }

    fn add(&mut self, values: &[f64]) {
        self.loss.add(values[0], values[1] as u64);
        self.correct.add(values[2] as u64, values[3] as u64);
    }
}

impl StepFigures for FinetuneFigures {
    type Sums = StepSums;

    fn add_to(&self, sums: &mut StepSums) {
        sums.accuracy += self.accuracy.unwrap_or(0.0);
    }

    fn mean(sums: &StepSums, steps: u64, last: &Self) -> Self {
        Self { accuracy: last.accuracy.map(|_| sums.accuracy / steps as f64) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::objective::FinetuneState;
    use super::*;
    use albert::train::Progress;

    type OwnProgress = Progress<StepSums, FinetuneState>;

    /// Counters in the format of older versions, with decimal numbers.
    #[test]
    fn older_progress_is_read_and_written_as_bits() {
        let window = |loss: &str| format!(r#"{{"loss":{loss},"accuracy":0.5,"steps":3,"tokens":5,"seconds":0.0}}"#);
        let text = format!(
            r#"{{"seconds":1.25,"best_step":8,"best":null,"worse":2,"evaluated":9,"collapse":null,"window":{},"since":{},
            "records":4}}"#,
            window("0.1"),
            window("0.30000000000000004")
        );
        let progress: OwnProgress = serde_json::from_str(&text).unwrap();
        assert_eq!((progress.seconds, progress.worse, progress.evaluated, progress.records), (1.25, 2, 9, Some(4)));
        assert_eq!((progress.window.loss, progress.window.figures.accuracy, progress.window.steps), (0.1, 0.5, 3));
        assert_eq!((progress.objective.best_step, progress.objective.since.loss), (8, 0.1 + 0.2));
        let again = serde_json::to_string(&progress).unwrap();
        assert!(again.contains(&format!(r#""loss":{}"#, 0.1f64.to_bits())), "{again}");
        assert_eq!(serde_json::from_str::<OwnProgress>(&again).unwrap(), progress);
        let unknown = text.replacen(r#""tokens":5"#, r#""tokens":5,"other":1"#, 1);
        let error = serde_json::from_str::<OwnProgress>(&unknown).unwrap_err().to_string();
        assert!(error.contains("unknown field `other`"), "{error}");
    }
}
