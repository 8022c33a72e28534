//! Pearson and Spearman correlation.
//!
//! ```text
//! Pearson    r = Σ (x-x̄)(y-ȳ) / √(Σ (x-x̄)² · Σ (y-ȳ)²)
//! Spearman   Pearson of the ranks; equal values have the mean of their ranks
//! ```
//!
//! Sums are compensated (Neumaier 1974), so r is correct to 2 ulp (of r, or of 1 if the numerator cancels) in any order.
//! SciPy's last digits depend on the summation order of its BLAS and differ by its own error (bounds in `golden_tests`).
//!
//! `None` (undefined) for fewer than two values or constant values.

/// Compensated sum.
#[derive(Clone, Copy, Default)]
struct Sum {
    sum: f64,
    error: f64,
}

impl Sum {
    fn add(&mut self, x: f64) {
        let sum = self.sum + x;
        self.error += if self.sum.abs() >= x.abs() { (self.sum - sum) + x } else { (x - sum) + self.sum };
        self.sum = sum;
    }

    /// Adds x·y with the rounding error of the product.
    fn add_product(&mut self, x: f64, y: f64) {
        let product = x * y;
        self.add(product);
        self.error += x.mul_add(y, -product);
    }

    fn value(self) -> f64 {
        self.sum + self.error
    }
}

/// Mean in twice the precision of f64, as a pair of summands.
fn mean(values: &[f64]) -> (f64, f64) {
    let mut sum = Sum::default();
    values.iter().for_each(|&x| sum.add(x));
    let n = values.len() as f64;
    let mean = sum.value() / n;
    let mut rest = Sum::default();
    values.iter().for_each(|&x| rest.add(x - mean));
    (mean, rest.value() / n)
}

/// Pearson's correlation coefficient.
///
/// # Panics
/// If `x` and `y` differ in length.
pub(crate) fn pearson(x: &[f64], y: &[f64]) -> Option<f64> {
    assert_eq!(x.len(), y.len(), "x and y must have equal length");
    let is_constant = |values: &[f64]| values.iter().all(|&value| value == values[0]);
    if x.len() < 2 || is_constant(x) || is_constant(y) {
        return None;
    }
    let ((mean_x, rest_x), (mean_y, rest_y)) = (mean(x), mean(y));
    let (mut xy, mut xx, mut yy) = (Sum::default(), Sum::default(), Sum::default());
    for (&x, &y) in x.iter().zip(y) {
        let (x, y) = ((x - mean_x) - rest_x, (y - mean_y) - rest_y);
        xy.add_product(x, y);
        xx.add_product(x, x);
        yy.add_product(y, y);
    }
    let r = xy.value() / (xx.value().sqrt() * yy.value().sqrt());
    // For two points, r is 1 or -1.
    let r = if x.len() == 2 { r.round() } else { r.clamp(-1.0, 1.0) };
    r.is_finite().then_some(r)
}

/// Spearman's rank correlation.
///
/// # Panics
/// If `x` and `y` differ in length.
pub(crate) fn spearman(x: &[f64], y: &[f64]) -> Option<f64> {
    assert_eq!(x.len(), y.len(), "x and y must have equal length");
    if x.iter().chain(y).any(|value| value.is_nan()) {
        return None;
    }
    pearson(&ranks(x), &ranks(y))
}

/// Rank of each value, from 1; equal values have the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    // 0 and -0 are equal and adjacent.
    for equal in order.chunk_by(|&a, &b| values[a] == values[b]).scan(0, |before, equal| {
        *before += equal.len();
        Some((*before - equal.len(), equal))
    }) {
        let (before, equal) = equal;
        let rank = before as f64 + (equal.len() + 1) as f64 / 2.0;
        equal.iter().for_each(|&at| ranks[at] = rank);
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pair_and_nan_have_no_correlation() {
        assert_eq!(pearson(&[1.0], &[2.0]), None);
        assert_eq!(spearman(&[1.0, f64::NAN], &[2.0, 3.0]), None);
    }
}
