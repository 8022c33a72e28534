//! Definitions of the reductions.

use crate::check::Real;

/// Σ x
pub fn sum<R: Real>(x: &[R]) -> R {
    x.iter().fold(R::of(0.0), |sum, &x| sum + x)
}

/// Σ x²
pub fn sum_of_squares<R: Real>(x: &[R]) -> R {
    x.iter().fold(R::of(0.0), |sum, &x| sum + x * x)
}

/// Sum of each row of `x [T, columns]`.
pub fn row_sums<R: Real>(columns: usize, x: &[R]) -> Vec<R> {
    x.chunks(columns).map(sum).collect()
}

/// `out` plus the sum of each column of `x [T, columns]`.
pub fn column_sums<R: Real>(columns: usize, x: &[R], out: &[R]) -> Vec<R> {
    let mut out = out.to_vec();
    for row in x.chunks(columns.max(1)) {
        out.iter_mut().zip(row).for_each(|(out, &x)| *out = *out + x);
    }
    out
}
