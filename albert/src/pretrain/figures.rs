//! Metrics of a step and of an evaluation of pre-training, and their sums.

use engine::EngineError;
use engine::ops::{CrossEntropyOutput, LossReading};
use serde::{Deserialize, Serialize};

use super::loss::PretrainingLoss;
use super::sentence::Sentence;
use crate::mean::{Mean, Proportion};
use crate::train::{MicroBatchSums, StepFigures, bits};

/// Metrics of a step, or means over steps. Losses are in nats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PretrainFigures {
    /// Mean cross-entropy of the masked pieces.
    pub mlm_loss: f64,
    /// Share of the masked pieces that were predicted correctly.
    pub mlm_accuracy: f64,
    /// Sentence objective; pairs are not counted.
    #[serde(flatten)]
    pub sentence: Sentence,
}

/// Metrics on held-out text. Losses are in nats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeldOutFigures {
    /// Mean cross-entropy of the masked pieces.
    pub mlm_loss: f64,
    /// Share of the masked pieces that were predicted correctly.
    pub mlm_accuracy: f64,
    /// Number of masked pieces.
    pub masked: u64,
    /// Cross-entropy of the same pieces under the unigram frequencies of the training text.
    pub unigram_loss: f64,
    /// Mean cross-entropy of the masked pieces that are shown as `[MASK]`. The remaining ones are kept or replaced,
    /// and can be predicted without context; only context reduces this loss.
    pub hidden_loss: f64,
    /// Cross-entropy of those pieces under the unigram frequencies of the training text.
    pub hidden_unigram_loss: f64,
    /// Sentence objective.
    #[serde(flatten)]
    pub sentence: Sentence,
}

/// Sums of [`PretrainFigures`] over steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSums {
    #[serde(with = "bits")]
    mlm_loss: f64,
    #[serde(with = "bits")]
    mlm_accuracy: f64,
    #[serde(with = "bits")]
    sop_loss: f64,
    #[serde(with = "bits")]
    sop_accuracy: f64,
    sop_steps: u64,
}

impl StepFigures for PretrainFigures {
    type Sums = StepSums;

    fn add_to(&self, sums: &mut StepSums) {
        sums.mlm_loss += self.mlm_loss;
        sums.mlm_accuracy += self.mlm_accuracy;
        if let (Some(loss), Some(accuracy)) = (self.sentence.loss, self.sentence.accuracy) {
            sums.sop_loss += loss;
            sums.sop_accuracy += accuracy;
            sums.sop_steps += 1;
        }
    }

    fn mean(sums: &StepSums, steps: u64, last: &Self) -> Self {
        let of_sentences = |sum: f64| (sums.sop_steps > 0).then(|| sum / sums.sop_steps as f64);
        Self {
            mlm_loss: sums.mlm_loss / steps as f64,
            mlm_accuracy: sums.mlm_accuracy / steps as f64,
            sentence: Sentence {
                objective: last.sentence.objective,
                loss: of_sentences(sums.sop_loss),
                accuracy: of_sentences(sums.sop_accuracy),
                ..Sentence::default()
            },
        }
    }
}

/// Losses of a micro-batch in transfer to the host; `None` for a head that did not run.
#[derive(Debug, Default)]
pub struct LossReadings {
    mlm: Option<LossReading>,
    sentence: Option<LossReading>,
}

impl LossReadings {
    pub(super) fn begin(losses: &PretrainingLoss) -> Result<Self, EngineError> {
        let begin = |loss: &Option<CrossEntropyOutput>| loss.as_ref().map(CrossEntropyOutput::read_later).transpose();
        Ok(Self { mlm: begin(&losses.mlm)?, sentence: begin(&losses.sentence)? })
    }
}

/// Sums over the micro-batches of a step, or over the batches of an evaluation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub(super) mlm: Mean,
    pub(super) mlm_correct: Proportion,
    /// MLM over the pieces shown as `[MASK]`; only in evaluations.
    pub(super) hidden: Mean,
    pub(super) sentence: Mean,
    pub(super) sentence_correct: Proportion,
}

impl Tally {
    /// Adds a micro-batch, once its losses have arrived; returns the losses of the masked pieces.
    pub(super) fn add_losses(&mut self, losses: LossReadings) -> Result<Vec<f32>, EngineError> {
        let mut masked = Vec::new();
        if let Some(mlm) = losses.mlm {
            let correct;
            (masked, correct) = mlm.wait()?;
            self.mlm.add(masked.iter().map(|&x| f64::from(x)).sum(), masked.len() as u64);
            self.mlm_correct.add(correct as u64, masked.len() as u64);
        }
        if let Some(sentence) = losses.sentence {
            let (losses, correct) = sentence.wait()?;
            self.sentence.add(losses.iter().map(|&x| f64::from(x)).sum(), losses.len() as u64);
            self.sentence_correct.add(correct as u64, losses.len() as u64);
        }
        Ok(masked)
    }

    /// Adds the losses of masked pieces that are shown as `[MASK]`.
    pub(super) fn add_hidden(&mut self, hidden: &[bool], masked: &[f32]) {
        for (_, &loss) in hidden.iter().zip(masked).filter(|(is_hidden, _)| **is_hidden) {
            self.hidden.add(f64::from(loss), 1);
        }
    }
}

impl MicroBatchSums for Tally {
    const VALUES: usize = 10;

    fn write(&self, values: &mut Vec<f64>) {
        values.extend([self.hidden.sum, self.hidden.count as f64]);
        for (mean, correct) in [(self.mlm, self.mlm_correct), (self.sentence, self.sentence_correct)] {
            values.extend([mean.sum, mean.count as f64, correct.correct as f64, correct.count as f64]);
        }
    }

    fn add(&mut self, values: &[f64]) {
        self.hidden.add(values[0], values[1] as u64);
        let (mlm, sentence) = values[2..].split_at(4);
        for (mean, proportion, values) in
            [(&mut self.mlm, &mut self.mlm_correct, mlm), (&mut self.sentence, &mut self.sentence_correct, sentence)]
        {
            mean.add(values[0], values[1] as u64);
            proportion.add(values[2] as u64, values[3] as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::objective::Best;
    use super::*;
    use crate::train::{Progress, StepReport, Window};

    type OwnProgress = Progress<StepSums, Best>;

    fn report(step: u64) -> StepReport<PretrainFigures> {
        let loss = 0.1 * step as f64;
        let sentence = Sentence { loss: Some(0.7), ..Sentence::default() };
        StepReport {
            step,
            loss,
            figures: PretrainFigures { mlm_loss: loss / 3.0, sentence, ..Default::default() },
            tokens: 10,
            seconds: 0.1,
            data_seconds: 0.001 * step as f64,
            ..Default::default()
        }
    }

    #[test]
    fn progress_is_read_back_to_the_bit() {
        let mut progress = OwnProgress::default();
        for step in 0..100 {
            progress.window.add(&report(step));
            progress.monitor.watch(1.0 / (1.0 + step as f64), 1.0);
        }
        let text = serde_json::to_string(&progress).unwrap();
        assert_eq!(serde_json::from_str::<OwnProgress>(&text).unwrap(), progress);
        assert_eq!(progress.objective.loss, f64::INFINITY);
        let unknown = text.replacen('{', r#"{"other":1,"#, 1);
        let error = serde_json::from_str::<OwnProgress>(&unknown).unwrap_err().to_string();
        assert!(error.contains("unknown field `other`"), "{error}");
    }

    /// Counters in the format of older versions.
    #[test]
    fn older_progress_is_read() {
        let text = r#"{"tokens":7,"seconds":4608083138725491507,"best":9218868437227405312,"evaluated":3,"window":
            {"loss":4611686018427387904,"mlm_loss":0,"mlm_accuracy":0,"sop_loss":0,"sop_accuracy":0,"sop_steps":2,"steps":3,
            "tokens":5,"seconds":0},"monitor":{"smoothed":0,"lowest":9218868437227405312,"steps":1}}"#;
        let progress: OwnProgress = serde_json::from_str(text).unwrap();
        assert_eq!((progress.tokens, progress.seconds, progress.objective.loss), (7, 1.2, f64::INFINITY));
        assert_eq!((progress.window.loss, progress.window.steps, progress.records), (2.0, 3, None));
    }

    #[test]
    fn a_window_is_the_mean_of_its_steps() {
        let mut window = Window::default();
        (1..=4).for_each(|step| window.add(&report(step)));
        let record = window.record(&report(4));
        assert!((record.loss - 0.25).abs() < 1e-12, "{}", record.loss);
        assert!((record.tokens_per_second - 100.0).abs() < 1e-9);
        let share = record.data_share.unwrap();
        assert!((share - 0.025).abs() < 1e-12, "{share}");
        // There was no accuracy, so the loss does not count either.
        assert_eq!((record.figures.sentence.loss, record.figures.sentence.accuracy), (None, None));
    }
}
