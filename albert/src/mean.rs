//! Running means and proportions, with standard errors.
//!
//! ```text
//! mean = Σ x / n          accuracy p̂ = correct / n          standard error of p̂ = √(p̂·(1 - p̂) / n)
//! ```
//!
//! Sums are f64, in the order of the batches, so results do not depend on the number of threads. The standard error assumes
//! independent trials.

use serde::{Deserialize, Serialize};

/// Running mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mean {
    /// Sum of the values, Σ x.
    pub sum: f64,
    /// Number of values, n.
    pub count: u64,
}

impl Mean {
    /// Adds `count` values with the sum `sum`.
    pub fn add(&mut self, sum: f64, count: u64) {
        self.sum += sum;
        self.count += count;
    }

    /// Mean Σ x / n; `None` for n = 0.
    pub fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// Running proportion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proportion {
    /// Number of correct trials.
    pub correct: u64,
    /// Number of trials.
    pub count: u64,
}

impl Proportion {
    /// Adds `count` trials, of which `correct` were correct.
    pub fn add(&mut self, correct: u64, count: u64) {
        debug_assert!(correct <= count, "{correct} right of {count}");
        self.correct += correct;
        self.count += count;
    }

    /// Proportion p̂; `None` for n = 0.
    pub fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.correct as f64 / self.count as f64)
    }

    /// Standard error √(p̂·(1 - p̂) / n); `None` for n = 0.
    pub fn standard_error(&self) -> Option<f64> {
        self.value().map(|p| (p * (1.0 - p) / self.count as f64).sqrt())
    }
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
