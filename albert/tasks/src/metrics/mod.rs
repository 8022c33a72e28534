//! Metrics of tasks.
//!
//! Sums are f64, in the order of the batches, so results do not depend on the number of threads.

mod answer_text;
mod confusion;
mod correlation;
mod entities;
#[cfg(test)]
mod golden_tests;
mod levels;
mod metric;
mod squad;

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

/// Σ x in NumPy's order: more than 128 values are halved at a multiple of 8; up to 128 are added in eight interleaved sums.
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
