//! Definition of the cross-entropy loss and of its projection.

use crate::check::Real;
use kernels::cross_entropy::IGNORED;
use std::ops::Range;

/// Offsets of `rows` rows of `classes` logits, then the end of the last.
pub fn equal(rows: usize, classes: usize) -> Vec<u32> {
    (0..=rows).map(|row| (row * classes) as u32).collect()
}

/// Range of each row's logits: row m from `offsets`\[m\] to `offsets`\[m + 1\].
pub fn ranges(offsets: &[u32]) -> impl Iterator<Item = Range<usize>> {
    offsets.windows(2).map(|pair| pair[0] as usize..pair[1] as usize)
}

/// Losses `[M]` and normalizers [M, 2] of rows of `logits`.
pub fn rows_forward<R: Real>(offsets: &[u32], logits: &[R], labels: &[u32]) -> (Vec<R>, Vec<R>) {
    let row = |(range, &label): (Range<usize>, &u32)| {
        let z = &logits[range];
        let max = z.iter().fold(z[0], |m, &z| m.max(z));
        let sum = z.iter().fold(R::of(0.0), |sum, &z| sum + (z - max).exp());
        let loss = if label == IGNORED { R::of(0.0) } else { max + sum.ln() - z[label as usize] };
        (loss, [max, R::of(1.0) / sum])
    };
    let (losses, norms): (Vec<R>, Vec<[R; 2]>) = ranges(offsets).zip(labels).map(row).unzip();
    (losses, norms.concat())
}

/// Gradient of the logits.
pub fn rows_backward<R: Real>(offsets: &[u32], logits: &[R], labels: &[u32], norms: &[R], dlosses: &[R]) -> Vec<R> {
    let element = |row: usize, (class, &z): (u32, &R)| {
        if labels[row] == IGNORED {
            return R::of(0.0);
        }
        let onehot = R::of(if labels[row] == class { 1.0 } else { 0.0 });
        ((z - norms[2 * row]).exp() * norms[2 * row + 1] - onehot) * dlosses[row]
    };
    let rows = ranges(offsets).enumerate();
    rows.flat_map(|(row, range)| (0..).zip(&logits[range]).map(move |z| element(row, z))).collect()
}

/// Logits [M, V] of hidden [M, width], weight [V, width] and bias `[V]`.
pub fn logits<R: Real>(width: usize, hidden: &[R], weight: &[R], bias: &[R]) -> Vec<R> {
    let dot = |a: &[R], b: &[R]| a.iter().zip(b).fold(R::of(0.0), |sum, (&a, &b)| sum + a * b);
    let row = |h: &[R]| weight.chunks(width).zip(bias).map(|(w, &b)| dot(h, w) + b).collect::<Vec<R>>();
    hidden.chunks(width).flat_map(row).collect()
}

/// Gradients of a projection.
#[derive(Clone, Debug)]
pub struct Gradients<R> {
    /// [M, E]
    pub dhidden: Vec<R>,
    /// [V, E]
    pub dweight: Vec<R>,
    /// `[V]`
    pub dbias: Vec<R>,
}

/// Gradients of hidden, weight and bias (not yet added to older ones) from those of the logits.
pub fn projection_backward<R: Real>(width: usize, hidden: &[R], weight: &[R], dlogits: &[R]) -> Gradients<R> {
    let classes = weight.len() / width;
    let zeros = |len| vec![R::of(0.0); len];
    let mut out = Gradients { dhidden: zeros(hidden.len()), dweight: zeros(weight.len()), dbias: zeros(classes) };
    for (i, &dz) in dlogits.iter().enumerate() {
        let (row, class) = (i / classes * width, i % classes * width);
        out.dbias[i % classes] = out.dbias[i % classes] + dz;
        for e in 0..width {
            out.dhidden[row + e] = out.dhidden[row + e] + dz * weight[class + e];
            out.dweight[class + e] = out.dweight[class + e] + dz * hidden[row + e];
        }
    }
    out
}
