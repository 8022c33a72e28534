//! How often which class was taken for which, and what follows from it.
//!
//! ```text
//!                 predicted
//!                 0   1   2        precision of k = C[k][k] / Σ column k      F1 = 2·C[k][k] / (Σ row k + Σ column k)
//!      truth  0   5   1   0        recall of k    = C[k][k] / Σ row k
//!             1   0   4   2
//!             2   1   0   6        accuracy = Σ C[k][k] / n
//! ```
//!
//! Matthews' coefficient for any number of classes is R_K of Gorodkin 2004, with c the diagonal's sum, t the rows'
//! sums and p the columns': (c·n - t·p) / √((n² - p·p)·(n² - t·t)); of two classes it is the classical one. A figure
//! whose denominator is 0 is 0. Expressions are ordered as in scikit-learn, whose digits come out (`golden_tests`).

use serde::{Deserialize, Serialize};

use super::pairwise_sum;

/// Counts of truth against prediction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confusion {
    classes: usize,
    /// `[classes, classes]`: rows are the truth.
    counts: Vec<u64>,
}

impl Confusion {
    /// Nothing counted yet.
    pub fn new(classes: usize) -> Self {
        Self { classes, counts: vec![0; classes * classes] }
    }

    /// Counts an example.
    ///
    /// # Panics
    /// If a class is not below the number of classes.
    pub fn add(&mut self, truth: u32, prediction: u32) {
        let (truth, prediction) = (truth as usize, prediction as usize);
        assert!(truth < self.classes && prediction < self.classes, "class {truth} or {prediction} of {}", self.classes);
        self.counts[truth * self.classes + prediction] += 1;
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// How often `truth` was taken for `prediction`.
    pub fn count(&self, truth: usize, prediction: usize) -> u64 {
        self.counts[truth * self.classes + prediction]
    }

    /// All examples.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Examples of a class.
    pub fn truths(&self, class: usize) -> u64 {
        (0..self.classes).map(|other| self.count(class, other)).sum()
    }

    /// Examples that were taken for a class.
    pub fn predictions(&self, class: usize) -> u64 {
        (0..self.classes).map(|other| self.count(other, class)).sum()
    }

    /// Examples that were right.
    pub fn correct(&self) -> u64 {
        (0..self.classes).map(|class| self.count(class, class)).sum()
    }

    /// Share of examples that were right.
    pub fn accuracy(&self) -> f64 {
        ratio(self.correct(), self.total())
    }

    /// Share of what was taken for a class that is of it.
    pub fn precision(&self, class: usize) -> f64 {
        ratio(self.count(class, class), self.predictions(class))
    }

    /// Share of what is of a class that was taken for it.
    pub fn recall(&self, class: usize) -> f64 {
        ratio(self.count(class, class), self.truths(class))
    }

    /// Harmonic mean of precision and recall.
    pub fn f1(&self, class: usize) -> f64 {
        ratio(2 * self.count(class, class), self.truths(class) + self.predictions(class))
    }

    /// Mean of the F1 of all classes that are true or predicted at least once.
    pub fn macro_f1(&self) -> f64 {
        let is_seen = |&class: &usize| self.truths(class) + self.predictions(class) > 0;
        let scores: Vec<f64> = (0..self.classes).filter(is_seen).map(|class| self.f1(class)).collect();
        if scores.is_empty() { 0.0 } else { pairwise_sum(&scores) / scores.len() as f64 }
    }

    /// Matthews' correlation coefficient.
    pub fn matthews(&self) -> f64 {
        // Whole numbers: exact in f64 as long as n² is below 2^53, that is for 94 million examples.
        let n = self.total() as f64;
        let truths: Vec<f64> = (0..self.classes).map(|class| self.truths(class) as f64).collect();
        let predictions: Vec<f64> = (0..self.classes).map(|class| self.predictions(class) as f64).collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let covariance = self.correct() as f64 * n - dot(&truths, &predictions);
        let of_predictions = n * n - dot(&predictions, &predictions);
        let of_truths = n * n - dot(&truths, &truths);
        let variances = of_predictions * of_truths;
        if variances == 0.0 { 0.0 } else { covariance / variances.sqrt() }
    }
}

/// a / b, or 0 where b is.
pub(super) fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}
