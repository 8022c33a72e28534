//! Results of a run, and statistics over runs with the same recipe and different seeds.
//!
//! ```text
//! RUN/summary.json                 results of a finished run
//! RUN/seed-1/  seed-2/  ...        one run each
//! RUN/summary.json                 metrics of each, median, lowest and highest, standard deviation
//! ```
//!
//! On small data, fine-tuning results differ more between seeds than between most methods (Devlin et al. 2019; the
//! paper reports medians of five). The folders together can be used as an ensemble.

use std::path::Path;

use engine::io::write_atomically;
use serde::{Deserialize, Serialize};

use super::{FinetuneError, Measured, named};

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FinetuneSummary {
    /// Seed of the run.
    pub seed: u64,
    /// Number of completed steps.
    pub step: u64,
    /// Training time in seconds, including earlier starts of the run.
    pub seconds: f64,
    /// True if the run stopped before its last step because the patience was exhausted.
    pub stopped_early: bool,
    /// Step of the best model.
    pub best_step: u64,
    /// Metrics of the best model; `None` without a dev set.
    pub best: Option<Measured>,
    /// Warning about a collapse at the last evaluation, with remedies.
    pub collapse: Option<String>,
}

impl FinetuneSummary {
    /// Summary of the run in `folder`; `None` if it is not finished.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn of_run(folder: &Path) -> Result<Option<Self>, FinetuneError> {
        let path = folder.join(SUMMARY);
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
        let summary = serde_json::from_str(&text);
        summary
            .map(Some)
            .map_err(|error| FinetuneError::Data(format!("{}: {error}; remove the folder", path.display())))
    }

    pub(super) fn save(&self, folder: &Path) -> Result<(), FinetuneError> {
        write_summary(self, folder)
    }
}

/// Name of the summary file.
const SUMMARY: &str = "summary.json";

fn write_summary(summary: &impl Serialize, folder: &Path) -> Result<(), FinetuneError> {
    let mut text = serde_json::to_string_pretty(summary).expect("a summary has string keys");
    text.push('\n');
    Ok(write_atomically(folder.join(SUMMARY), |out| out.write_all(text.as_bytes()))?)
}

/// A metric over the seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
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
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeedSummary {
    /// Summary of each run.
    pub runs: Vec<FinetuneSummary>,
    /// Statistics of each metric over the runs, by name.
    #[serde(serialize_with = "named::serialize")]
    pub figures: Vec<(String, Spread)>,
}

impl Spread {
    /// Statistics of `values`, which must not be empty.
    pub(crate) fn new(values: Vec<f64>) -> Self {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let mean = values.iter().sum::<f64>() / n as f64;
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        Self {
            median: (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
            lowest: sorted[0],
            highest: sorted[n - 1],
            deviation: if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 },
            values,
        }
    }
}

impl SeedSummary {
    /// Computes statistics of every metric that all `runs` have.
    pub fn new(runs: Vec<FinetuneSummary>) -> Self {
        let of = |run: &FinetuneSummary, name: &str| {
            let figures = &run.best.as_ref()?.figures;
            figures.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
        };
        let names: Vec<String> = runs
            .first()
            .and_then(|run| run.best.as_ref())
            .map(|best| best.figures.iter().map(|(name, _)| name.clone()).collect())
            .unwrap_or_default();
        let figures = names
            .into_iter()
            .filter_map(|name| {
                let values = runs.iter().map(|run| of(run, &name)).collect::<Option<_>>()?;
                Some((name, Spread::new(values)))
            })
            .collect();
        Self { runs, figures }
    }

    /// Writes `summary.json` to `folder`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), FinetuneError> {
        write_summary(self, folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        let spread = Spread::new(vec![0.5, 0.9, 0.7]);
        assert_eq!((spread.median, spread.lowest, spread.highest), (0.7, 0.5, 0.9));
        assert!((spread.deviation - 0.2).abs() < 1e-12);
        assert_eq!(Spread::new(vec![1.0, 4.0]).median, 2.5);
        assert_eq!(Spread::new(vec![1.0]).deviation, 0.0);
    }
}
