//! Definition of dropout, element by element.

use super::Dropout;
use crate::check::Real;

/// y = x · m for `x [T, columns]`.
pub fn apply<R: Real>(dropout: &Dropout, columns: usize, x: &[R]) -> Vec<R> {
    let scale = R::of(1.0) / (R::of(1.0) - R::of(f64::from(dropout.rate)));
    let keep = |i: usize| dropout.keeps((i / columns) as u64, i % columns);
    x.iter().enumerate().map(|(i, &x)| if keep(i) { x * scale } else { R::of(0.0) }).collect()
}
