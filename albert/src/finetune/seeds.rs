//! The same run under several seeds, each in a folder of its own, and what they have in common.
//!
//! ```text
//! RUN/seed-1/  seed-2/  ...        a run each (see `run`)
//! RUN/summary.json                 figures of each, median, lowest and highest, standard deviation
//! ```
//!
//! Fine-tuning on little data varies from seed to seed by more than most methods differ by (Devlin et al. 2019; the paper
//! reports medians of five). Run together, the folders are an ensemble.

use std::path::Path;

use engine::io::write_atomically;
use serde::{Deserialize, Serialize};

use super::{FinetuneError, Summary};

/// A figure over the seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Its name.
    pub name: String,
    /// One value a seed, in their order.
    pub values: Vec<f64>,
    /// The middle one; of an even number the mean of both.
    pub median: f64,
    /// The lowest.
    pub lowest: f64,
    /// The highest.
    pub highest: f64,
    /// √(Σ (x - mean)² / (n - 1)); 0 of one.
    pub deviation: f64,
}

/// Several runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeedSummary {
    /// Each run.
    pub runs: Vec<Summary>,
    /// Each figure over them.
    pub figures: Vec<Spread>,
}

impl Spread {
    /// The spread of `values`, of which there is at least one.
    pub fn new(name: &str, values: Vec<f64>) -> Self {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let mean = values.iter().sum::<f64>() / n as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Self {
            name: name.to_owned(),
            median: (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
            lowest: sorted[0],
            highest: sorted[n - 1],
            deviation: if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 },
            values,
        }
    }
}

impl SeedSummary {
    /// The spread of every figure that all `runs` have.
    pub fn new(runs: Vec<Summary>) -> Self {
        let of = |run: &Summary, name: &str| {
            let figures = &run.best.as_ref()?.figures;
            figures.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
        };
        let names: Vec<String> = runs
            .first()
            .and_then(|run| run.best.as_ref())
            .map(|best| best.figures.iter().map(|(name, _)| name.clone()).collect())
            .unwrap_or_default();
        let figures = names
            .iter()
            .filter_map(|name| Some(Spread::new(name, runs.iter().map(|run| of(run, name)).collect::<Option<_>>()?)))
            .collect();
        Self { runs, figures }
    }

    /// Writes `summary.json` to `folder`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), FinetuneError> {
        let mut text = serde_json::to_string_pretty(self).expect("a summary has string keys");
        text.push('\n');
        Ok(write_atomically(folder.join("summary.json"), |out| out.write_all(text.as_bytes()))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        let spread = Spread::new("accuracy", vec![0.5, 0.9, 0.7]);
        assert_eq!((spread.median, spread.lowest, spread.highest), (0.7, 0.5, 0.9));
        assert!((spread.deviation - 0.2).abs() < 1e-12);
        assert_eq!(Spread::new("accuracy", vec![1.0, 4.0]).median, 2.5);
        assert_eq!(Spread::new("accuracy", vec![1.0]).deviation, 0.0);
    }
}
