//! Metrics of tasks, and means and proportions with standard errors.
//!
//! ```text
//! mean = Σ x / n          accuracy p̂ = correct / n          standard error of p̂ = √(p̂·(1 - p̂) / n)
//! ```
//!
//! Sums are f64, in the order of the batches, so results do not depend on the number of threads. The standard error assumes
//! independent trials.

mod answer_text;
mod confusion;
mod correlation;
mod entities;
#[cfg(test)]
mod golden_tests;
mod levels;
mod metric;
mod squad;

use serde::{Deserialize, Serialize};

pub(crate) use confusion::Confusion;
pub use confusion::PairCount;
pub(crate) use correlation::{pearson, spearman};
pub(crate) use entities::EntityCounts;
pub use levels::Level;
pub(crate) use levels::LevelAccuracy;
pub use metric::Metric;
pub(crate) use metric::percent;
pub use squad::EvaluationError;
pub(crate) use squad::{Gold, ThresholdPoint, evaluate_squad1, evaluate_squad2, threshold_curve};

/// Running mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mean {
    /// Σ x.
    pub sum: f64,
    /// n.
    pub count: u64,
}

impl Mean {
    /// Adds `count` values that sum to `sum`.
    pub(crate) fn add(&mut self, sum: f64, count: u64) {
        self.sum += sum;
        self.count += count;
    }

    /// Σ x / n; `None` for n = 0.
    pub(crate) fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// Running proportion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Proportion {
    /// Right trials.
    pub correct: u64,
    /// All trials.
    pub count: u64,
}

impl Proportion {
    /// Adds `count` trials, of which `correct` were right.
    pub(crate) fn add(&mut self, correct: u64, count: u64) {
        debug_assert!(correct <= count, "{correct} right of {count}");
        self.correct += correct;
        self.count += count;
    }

    /// p̂; `None` for n = 0.
    pub(crate) fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.correct as f64 / self.count as f64)
    }

    /// √(p̂·(1 - p̂) / n); `None` for n = 0.
    pub(crate) fn standard_error(&self) -> Option<f64> {
        self.value().map(|p| (p * (1.0 - p) / self.count as f64).sqrt())
    }
}

/// Σ x in NumPy's order: more than 128 values are halved at a multiple of 8; up to 128 are eight interleaved sums.
fn pairwise_sum(x: &[f64]) -> f64 {
    const MOST: usize = 128;
    if x.len() < 8 {
        return x.iter().fold(0.0, |sum, x| sum + x);
    }
    if x.len() <= MOST {
        let (eights, rest) = x.split_at(x.len() / 8 * 8);
        let mut sums = [0.0; 8];
        for eight in eights.chunks_exact(8) {
            sums.iter_mut().zip(eight).for_each(|(sum, x)| *sum += x);
        }
        let [a, b, c, d, e, f, g, h] = sums;
        return rest.iter().fold(((a + b) + (c + d)) + ((e + f) + (g + h)), |sum, x| sum + x);
    }
    let half = x.len() / 2;
    let (left, right) = x.split_at(half - half % 8);
    pairwise_sum(left) + pairwise_sum(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_no_mean_and_parts_add_up_to_the_whole() {
        let (mut mean, mut proportion) = (Mean::default(), Proportion::default());
        assert_eq!((mean.value(), proportion.value()), (None, None));
        for (sum, correct, count) in [(1.5, 2, 3), (0.0, 0, 0), (6.0, 1, 2)] {
            mean.add(sum, count);
            proportion.add(correct, count);
        }
        assert_eq!(mean.value(), Some(1.5));
        assert_eq!(proportion.value(), Some(0.6));
        let proportion = Proportion { correct: 550, count: 1000 };
        assert!((proportion.standard_error().unwrap() - (0.55f64 * 0.45 / 1000.0).sqrt()).abs() < 1e-15);
    }
}
