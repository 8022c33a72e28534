//! Definition of softmax.

use crate::check::Real;

/// y = softmax of each row of `x` [T, columns].
pub fn forward<R: Real>(columns: usize, x: &[R]) -> Vec<R> {
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks(columns) {
        let max = row.iter().fold(row[0], |m, &x| m.max(x));
        let exps: Vec<R> = row.iter().map(|&x| (x - max).exp()).collect();
        let sum = exps.iter().fold(R::of(0.0), |sum, &e| sum + e);
        y.extend(exps.into_iter().map(|e| e / sum));
    }
    y
}

/// dx from y and dy.
pub fn backward<R: Real>(columns: usize, y: &[R], dy: &[R]) -> Vec<R> {
    let mut dx = Vec::with_capacity(y.len());
    for (y, dy) in y.chunks(columns).zip(dy.chunks(columns)) {
        let dot = y.iter().zip(dy).fold(R::of(0.0), |sum, (&y, &dy)| sum + y * dy);
        dx.extend(y.iter().zip(dy).map(|(&y, &dy)| y * (dy - dot)));
    }
    dx
}
