//! What a run remembers between steps beside its tensors, and when it has gone wrong.

use serde::{Deserialize, Serialize};

use super::observer::StepReport;
use crate::metrics::{Mean, Proportion};
use crate::report::{Sentence, TrainRecord};

/// f64 as its bits: a number that decides what comes next must come back from JSON exactly.
mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        value.to_bits().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        u64::deserialize(deserializer).map(f64::from_bits)
    }
}

/// Counters and figures of a run; part of every checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    /// Tokens seen.
    pub(super) tokens: u64,
    /// Seconds of training, over all starts.
    #[serde(with = "bits")]
    pub(super) seconds: f64,
    /// Lowest held-out loss so far; infinite before the first evaluation.
    #[serde(with = "bits")]
    pub(super) best: f64,
    /// Step of the last evaluation.
    pub(super) evaluated: u64,
    /// Sums since the last record of the metrics.
    pub(super) window: Window,
    /// See [`Monitor`].
    pub(super) monitor: Monitor,
    /// Records of the metrics that the checkpoint counts on; absent in checkpoints of programs that did not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) records: Option<u64>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            tokens: 0,
            seconds: 0.0,
            best: f64::INFINITY,
            evaluated: 0,
            window: Window::default(),
            monitor: Monitor::new(),
            records: None,
        }
    }
}

/// Sums over steps, weighted as the steps were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Window {
    #[serde(with = "bits")]
    loss: f64,
    #[serde(with = "bits")]
    mlm_loss: f64,
    #[serde(with = "bits")]
    mlm_accuracy: f64,
    #[serde(with = "bits")]
    sop_loss: f64,
    #[serde(with = "bits")]
    sop_accuracy: f64,
    sop_steps: u64,
    steps: u64,
    tokens: u64,
    #[serde(with = "bits")]
    seconds: f64,
    /// Absent in checkpoints of programs that did not measure it.
    #[serde(with = "bits", default)]
    data_seconds: f64,
}

impl Window {
    pub(super) fn add(&mut self, report: &StepReport) {
        self.loss += report.loss;
        self.mlm_loss += report.mlm_loss;
        self.mlm_accuracy += report.mlm_accuracy;
        if let (Some(loss), Some(accuracy)) = (report.sentence.loss, report.sentence.accuracy) {
            self.sop_loss += loss;
            self.sop_accuracy += accuracy;
            self.sop_steps += 1;
        }
        self.steps += 1;
        self.tokens += report.tokens;
        self.seconds += report.seconds;
        self.data_seconds += report.data_seconds;
    }

    /// The record of the window that `last` closes, and an empty window.
    pub(super) fn close(&mut self, last: &StepReport, tokens: u64, seconds: f64) -> TrainRecord {
        let window = std::mem::take(self);
        let mean = |sum: f64, count: u64| (count > 0).then(|| sum / count as f64);
        let over_steps = |sum: f64| mean(sum, window.steps).unwrap_or(0.0);
        let over_time = |sum: f64| if window.seconds > 0.0 { sum / window.seconds } else { 0.0 };
        TrainRecord {
            step: last.step,
            loss: over_steps(window.loss),
            mlm_loss: over_steps(window.mlm_loss),
            mlm_accuracy: over_steps(window.mlm_accuracy),
            sentence: Sentence {
                objective: last.sentence.objective,
                loss: mean(window.sop_loss, window.sop_steps),
                accuracy: mean(window.sop_accuracy, window.sop_steps),
                ..Sentence::default()
            },
            learning_rate: last.learning_rate,
            gradient_norm: last.gradient_norm,
            tokens,
            tokens_per_second: over_time(window.tokens as f64),
            data_share: over_time(window.data_seconds),
            seconds,
        }
    }
}

/// Notices that a run diverges: the loss, smoothed over about fifty steps, has risen far above its lowest value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Monitor {
    #[serde(with = "bits")]
    smoothed: f64,
    #[serde(with = "bits")]
    lowest: f64,
    steps: u64,
}

/// Share of the smoothed loss that a step replaces.
const EMA_WEIGHT: f64 = 0.02;
/// Steps before the smoothed loss is trusted.
const WARMUP_STEPS: u64 = 50;

impl Monitor {
    fn new() -> Self {
        Self { smoothed: 0.0, lowest: f64::INFINITY, steps: 0 }
    }

    /// Takes the loss of a step; tells by how much the smoothed loss is above its lowest value if that is more than
    /// `margin` (0: never).
    pub(super) fn watch(&mut self, loss: f64, margin: f64) -> Option<f64> {
        self.steps += 1;
        // The mean of the first steps, then an exponential average.
        let renewal = EMA_WEIGHT.max(1.0 / self.steps as f64);
        self.smoothed += renewal * (loss - self.smoothed);
        if self.steps == 1 {
            // About ln V: where a run that blows up at once has come from.
            self.lowest = loss;
        }
        if self.steps < WARMUP_STEPS {
            return None;
        }
        self.lowest = self.lowest.min(self.smoothed);
        let above = self.smoothed - self.lowest;
        (margin > 0.0 && above > margin).then_some(above)
    }
}

/// Sums over the micro-batches of a step, or over the batches of an evaluation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) mlm: Mean,
    pub(super) mlm_correct: Proportion,
    /// MLM over the pieces shown as `[MASK]`; of evaluations alone.
    pub(super) hidden: Mean,
    pub(super) sop: Mean,
    pub(super) sop_correct: Proportion,
    pub(super) tokens: u64,
    pub(super) sequences: u64,
    pub(super) flops: f64,
    /// Seconds of waiting for batches.
    pub(super) data_seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(step: u64) -> StepReport {
        let loss = 0.1 * step as f64;
        StepReport {
            step,
            loss,
            mlm_loss: loss / 3.0,
            sentence: Sentence { loss: Some(0.7), ..Sentence::default() },
            tokens: 10,
            seconds: 0.1,
            data_seconds: 0.001 * step as f64,
            ..Default::default()
        }
    }

    #[test]
    fn comes_back_from_json_to_the_bit() {
        let mut progress = Progress::new();
        for step in 0..100 {
            progress.window.add(&report(step));
            progress.monitor.watch(1.0 / (1.0 + step as f64), 1.0);
        }
        let text = serde_json::to_string(&progress).unwrap();
        assert_eq!(serde_json::from_str::<Progress>(&text).unwrap(), progress);
        assert_eq!(progress.best, f64::INFINITY);
    }

    #[test]
    fn a_window_is_the_mean_of_its_steps() {
        let mut window = Window::default();
        (1..=4).for_each(|step| window.add(&report(step)));
        let record = window.close(&report(4), 40, 0.4);
        assert!((record.loss - 0.25).abs() < 1e-12, "{}", record.loss);
        assert!((record.tokens_per_second - 100.0).abs() < 1e-9);
        assert!((record.data_share - 0.025).abs() < 1e-12, "{}", record.data_share);
        // The sentence accuracy was never there, so its loss does not count either.
        assert_eq!((record.sentence.loss, record.sentence.accuracy), (None, None));
        assert_eq!(window, Window::default());
    }

    #[test]
    fn a_rising_loss_is_noticed_and_a_noisy_one_is_not() {
        let mut monitor = Monitor::new();
        for step in 0..5000u64 {
            let noise = [0.0, 1.5, -1.5][step as usize % 3];
            assert_eq!(monitor.watch(10.0 - 1e-3 * step as f64 + noise, 2.0), None, "step {step}");
        }
        let risen = (0..200).find_map(|_| monitor.watch(9.0, 2.0));
        assert!(risen.is_some_and(|above| above > 2.0), "{risen:?}");
        let mut at_once = Monitor::new();
        assert!((0..60).any(|step| at_once.watch(if step == 0 { 8.0 } else { 40.0 }, 2.0).is_some()));
        let mut off = Monitor::new();
        assert!((0..500).all(|step| off.watch(f64::from(step), 0.0).is_none()));
    }
}
