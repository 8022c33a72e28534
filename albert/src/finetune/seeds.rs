//! Statistics over runs with the same recipe and different seeds.
//!
//! ```text
//! RUN/seed-1/  seed-2/  ...        one run each (see `run`)
//! RUN/summary.json                 figures of each, median, lowest and highest, standard deviation
//! ```
//!
//! On small data, fine-tuning results differ more between seeds than between most methods (Devlin et al. 2019; the
//! paper reports medians of five). The folders together can be used as an ensemble.

use std::path::Path;

use engine::io::write_atomically;
use serde::{Deserialize, Serialize};

use super::{FinetuneError, Summary};

/// A figure over the seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Name of the figure.
    pub name: String,
    /// One value per seed, in the order of the seeds.
    pub values: Vec<f64>,
    /// Median; the mean of the two middle values for an even number of values.
    pub median: f64,
    /// Lowest value.
    pub lowest: f64,
    /// Highest value.
    pub highest: f64,
    /// Sample standard deviation √(Σ (x - mean)² / (n - 1)); 0 for one value.
    pub deviation: f64,
}

/// Summary of several runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeedSummary {
    /// Summary of each run.
    pub runs: Vec<Summary>,
    /// Statistics of each figure over the runs.
    pub figures: Vec<Spread>,
}

impl Spread {
    /// Statistics of `values`, which must not be empty.
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
    /// Statistics of every figure that all `runs` have.
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
