//! Definition of dropout, element by element.

use crate::check::Real;
use kernels::dropout::Dropout;

/// Factor of kept elements.
pub fn scale<R: Real>(dropout: &Dropout) -> R {
    R::of(256.0) / R::of(f64::from(256 - dropout.threshold()))
}

/// y = x · m for `x [T, columns]`.
pub fn apply<R: Real>(dropout: &Dropout, columns: usize, x: &[R]) -> Vec<R> {
    let scale = scale(dropout);
    let keep = |i: usize| dropout.keeps((i / columns) as u64, i % columns);
    x.iter().enumerate().map(|(i, &x)| if keep(i) { x * scale } else { R::of(0.0) }).collect()
}
