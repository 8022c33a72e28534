//! Confusion counts and their metrics.
//!
//! ```text
//!                 predicted
//!                 0   1   2        precision of k = C[k][k] / Σ column k      F1 = 2·C[k][k] / (Σ row k + Σ column k)
//!      truth  0   5   1   0        recall of k    = C[k][k] / Σ row k
//!             1   0   4   2
//!             2   1   0   6        accuracy = Σ C[k][k] / n
//! ```
//!
//! Matthews' coefficient for any number of classes is R_K of Gorodkin 2004: (c·n - t·p) / √((n² - p·p)·(n² - t·t)), with the
//! diagonal sum c, the row sums t and the column sums p; for two classes it is the classical one. Quotients with a zero
//! denominator are 0. Expressions are ordered as in scikit-learn, with equal digits (`golden_tests`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::pairwise_sum;

/// Count of a pair of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairCount {
    /// True class.
    pub truth: u32,
    /// Predicted class.
    pub predicted: u32,
    /// Number of examples.
    pub count: u64,
}

/// Counts of true and predicted classes. Memory: 16 bytes a class and one map entry for each pair that occurs, at
/// most one per example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Confusion {
    /// By (truth, prediction).
    pairs: BTreeMap<(u32, u32), u64>,
    /// `[C]` Row sums.
    truths: Vec<u64>,
    /// `[C]` Column sums.
    predictions: Vec<u64>,
    correct: u64,
    total: u64,
}

impl Confusion {
    /// Empty counts.
    pub(crate) fn new(classes: usize) -> Self {
        Self { pairs: BTreeMap::new(), truths: vec![0; classes], predictions: vec![0; classes], correct: 0, total: 0 }
    }

    /// Counts an example.
    ///
    /// # Panics
    /// If a class is not below the number of classes.
    pub(crate) fn add(&mut self, truth: u32, prediction: u32) {
        self.truths[truth as usize] += 1;
        self.predictions[prediction as usize] += 1;
        *self.pairs.entry((truth, prediction)).or_default() += 1;
        self.correct += u64::from(truth == prediction);
        self.total += 1;
    }

    /// Number of classes.
    pub(crate) fn classes(&self) -> usize {
        self.truths.len()
    }

    /// Examples of `truth` with the prediction `prediction`.
    pub(crate) fn count(&self, truth: usize, prediction: usize) -> u64 {
        let pair = u32::try_from(truth).ok().zip(u32::try_from(prediction).ok());
        pair.and_then(|pair| self.pairs.get(&pair)).copied().unwrap_or(0)
    }

    /// Pairs that occur, by truth and then by prediction.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = PairCount> {
        self.pairs.iter().map(|(&(truth, predicted), &count)| PairCount { truth, predicted, count })
    }

    /// All examples.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Examples of a class.
    pub(crate) fn truths(&self, class: usize) -> u64 {
        self.truths[class]
    }

    /// Examples predicted as a class.
    pub(crate) fn predictions(&self, class: usize) -> u64 {
        self.predictions[class]
    }

    /// Number of correct examples.
    pub(crate) fn correct(&self) -> u64 {
        self.correct
    }

    /// Share of correct examples.
    pub(crate) fn accuracy(&self) -> f64 {
        ratio(self.correct(), self.total())
    }

    /// Harmonic mean of precision and recall.
    pub(crate) fn f1(&self, class: usize) -> f64 {
        ratio(2 * self.count(class, class), self.truths(class) + self.predictions(class))
    }

    /// Mean F1 of all classes that occur as true or predicted class.
    pub(crate) fn macro_f1(&self) -> f64 {
        let is_seen = |&class: &usize| self.truths(class) + self.predictions(class) > 0;
        let scores: Vec<f64> = (0..self.classes()).filter(is_seen).map(|class| self.f1(class)).collect();
        if scores.is_empty() { 0.0 } else { pairwise_sum(&scores) / scores.len() as f64 }
    }

    /// Matthews' correlation coefficient.
    pub(crate) fn matthews(&self) -> f64 {
        // Integers, exact in f64 while n² is below 2^53: 94 million examples.
        let n = self.total() as f64;
        let truths: Vec<f64> = self.truths.iter().map(|&count| count as f64).collect();
        let predictions: Vec<f64> = self.predictions.iter().map(|&count| count as f64).collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let covariance = self.correct() as f64 * n - dot(&truths, &predictions);
        let of_predictions = n * n - dot(&predictions, &predictions);
        let of_truths = n * n - dot(&truths, &truths);
        let variances = of_predictions * of_truths;
        if variances == 0.0 { 0.0 } else { covariance / variances.sqrt() }
    }
}

/// a / b, or 0 for b = 0.
pub(super) fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_that_do_not_occur_take_no_memory() {
        // 4,000,000 classes squared are 1.6e13 pairs; only those that occur may be stored.
        let mut confusion = Confusion::new(4_000_000);
        for class in 0..1_000 {
            confusion.add(class * 4_000, class * 3_999);
        }
        assert_eq!(confusion.outcomes().count(), 1_000);
        assert_eq!((confusion.correct(), confusion.total()), (1, 1_000));
        assert_eq!((confusion.count(4_000, 3_999), confusion.count(3_999, 4_000)), (1, 0));
        assert_eq!(confusion.accuracy(), 0.001);
        assert!(confusion.macro_f1() > 0.0 && confusion.matthews() > 0.0);
    }
}
