//! Counters of a run between steps, stored in every checkpoint, and detection of divergence.

use serde::{Deserialize, Serialize};

use super::records::{StepFigures, StepReport, TrainRecord};

/// Stores an f64 as the integer of its bits: a value that controls a resumed run must be read back exactly, including
/// infinity. Decimal numbers, which older versions of fine-tuning wrote, can also be read.
pub mod bits {
    use std::fmt;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serialize, Serializer};

    /// Writes the bits as an integer.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        value.to_bits().serialize(serializer)
    }

    /// Reads the bits, or a number with a decimal point.
    ///
    /// # Errors
    /// The value is neither.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        struct Bits;
        impl Visitor<'_> for Bits {
            type Value = f64;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the bits of a number, or the number with a decimal point")
            }
            fn visit_u64<E: Error>(self, bits: u64) -> Result<f64, E> {
                Ok(f64::from_bits(bits))
            }
            fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
                Ok(value)
            }
        }
        deserializer.deserialize_any(Bits)
    }
}

/// Counters of a run, with the sums `S` of its steps' metrics and the state `P` of its objective; part of every
/// checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress<S, P> {
    /// Number of tokens processed; 0 in fine-tuning states of older versions.
    #[serde(default)]
    pub tokens: u64,
    /// Seconds of training, including earlier starts of the run.
    #[serde(with = "bits")]
    pub seconds: f64,
    /// Step of the last evaluation.
    pub evaluated: u64,
    /// Number of evaluations since the best one.
    #[serde(default)]
    pub worse: u64,
    /// Sums since the last record.
    pub window: Window<S>,
    #[serde(default)]
    pub(crate) monitor: Monitor,
    /// Number of metrics records at the time of the checkpoint; absent in checkpoints of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// State of the objective.
    #[serde(flatten)]
    pub objective: P,
}

impl<S: Default, P: Default> Default for Progress<S, P> {
    fn default() -> Self {
        Self {
            tokens: 0,
            seconds: 0.0,
            evaluated: 0,
            worse: 0,
            window: Window::default(),
            monitor: Monitor::default(),
            records: None,
            objective: P::default(),
        }
    }
}

/// Sums over steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window<S> {
    /// Sum of the losses.
    #[serde(with = "bits")]
    pub loss: f64,
    /// Sums of the metrics.
    #[serde(flatten)]
    pub figures: S,
    /// Number of steps.
    pub steps: u64,
    pub(crate) tokens: u64,
    #[serde(with = "bits")]
    pub(crate) seconds: f64,
    /// Missing in checkpoints of older versions.
    #[serde(with = "bits", default)]
    pub(crate) data_seconds: f64,
}

impl<S> Window<S> {
    /// Adds the metrics of a step.
    pub fn add<F: StepFigures<Sums = S>>(&mut self, report: &StepReport<F>) {
        self.loss += report.loss;
        report.figures.add_to(&mut self.figures);
        self.steps += 1;
        self.tokens += report.tokens;
        self.seconds += report.seconds;
        self.data_seconds += report.data_seconds;
    }

    /// Mean loss; 0 without steps.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.steps.max(1) as f64
    }

    /// Record of the window that ends with `last`, without the totals of the run.
    pub(crate) fn record<F: StepFigures<Sums = S>>(&self, last: &StepReport<F>) -> TrainRecord<F> {
        let over_time = |sum: f64| if self.seconds > 0.0 { sum / self.seconds } else { 0.0 };
        TrainRecord {
            step: last.step,
            loss: self.mean_loss(),
            figures: F::mean(&self.figures, self.steps.max(1), &last.figures),
            learning_rate: last.learning_rate,
            gradient_norm: last.gradient_norm,
            tokens: None,
            tokens_per_second: over_time(self.tokens as f64),
            data_share: Some(over_time(self.data_seconds)),
            seconds: 0.0,
        }
    }
}

/// Detector of divergence: the loss, smoothed over about fifty steps, has risen far above its lowest value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Monitor {
    #[serde(with = "bits")]
    smoothed: f64,
    #[serde(with = "bits")]
    lowest: f64,
    steps: u64,
}

/// Weight of a step in the smoothed loss.
const EMA_WEIGHT: f64 = 0.02;
/// Number of steps before the smoothed loss is used.
const WARMUP_STEPS: u64 = 50;

impl Default for Monitor {
    fn default() -> Self {
        Self { smoothed: 0.0, lowest: f64::INFINITY, steps: 0 }
    }
}

impl Monitor {
    /// Adds the loss of a step. Returns the difference between the smoothed loss and its lowest value if it exceeds
    /// `margin` (0: never).
    pub(crate) fn watch(&mut self, loss: f64, margin: f64) -> Option<f64> {
        self.steps += 1;
        // The mean of the first steps, then an exponential average.
        let weight = EMA_WEIGHT.max(1.0 / self.steps as f64);
        self.smoothed += weight * (loss - self.smoothed);
        if self.steps == 1 {
            // About ln V, so that a run that diverges from the first step is detected.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rising_loss_is_noticed_and_a_noisy_one_is_not() {
        let mut monitor = Monitor::default();
        for step in 0..5000u64 {
            let noise = [0.0, 1.5, -1.5][step as usize % 3];
            assert_eq!(monitor.watch(10.0 - 1e-3 * step as f64 + noise, 2.0), None, "step {step}");
        }
        let risen = (0..200).find_map(|_| monitor.watch(9.0, 2.0));
        assert!(risen.is_some_and(|above| above > 2.0), "{risen:?}");
        let mut at_once = Monitor::default();
        assert!((0..60).any(|step| at_once.watch(if step == 0 { 8.0 } else { 40.0 }, 2.0).is_some()));
        let mut off = Monitor::default();
        assert!((0..500).all(|step| off.watch(f64::from(step), 0.0).is_none()));
    }
}
