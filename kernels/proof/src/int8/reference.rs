//! Definition of the layer in 8-bit integers. It includes the quantization, in f32; the rest is exact in f64 and a naive
//! implementation in f32.

use crate::check::Real;
use kernels::int8::LEVELS;

/// Quantized elements, and their scale and offset: x ≈ scale · q + offset.
struct Row {
    q: Vec<f32>,
    scale: f32,
    offset: f32,
}

/// Quantizes a row of finite activations to 0 ..= 255.
fn activations(x: &[f32]) -> Row {
    let low = x.iter().copied().fold(f32::INFINITY, f32::min);
    let width = x.iter().copied().fold(f32::NEG_INFINITY, f32::max) - low;
    let inverse = LEVELS / width;
    match inverse.is_finite() && !x.is_empty() {
        true => {
            let q = x.iter().map(|x| ((x - low) * inverse).round_ties_even()).collect();
            Row { q, scale: width / LEVELS, offset: low }
        }
        false => Row { q: vec![0.0; x.len()], scale: 0.0, offset: if x.is_empty() { 0.0 } else { low } },
    }
}

/// Quantizes a row of weights to -127 ..= 127.
fn weights(w: &[f32]) -> Row {
    let greatest = w.iter().fold(0f32, |greatest, x| greatest.max(x.abs()));
    let inverse = if greatest > 0.0 { 127.0 / greatest } else { 0.0 };
    Row { q: w.iter().map(|x| (x * inverse).round_ties_even()).collect(), scale: greatest / 127.0, offset: 0.0 }
}

/// x·Wᵀ \[m, n\] for x \[m, k\] and W \[n, k\], both quantized.
pub fn product<R: Real>([m, n, k]: [usize; 3], x: &[f32], w: &[f32]) -> Vec<R> {
    let row = |matrix: &[f32], i: usize| matrix[i * k..][..k].to_vec();
    let of = |x: f32| R::of(f64::from(x));
    let weights: Vec<Row> = (0..n).map(|j| weights(&row(w, j))).collect();
    let mut y = Vec::with_capacity(m * n);
    for x in (0..m).map(|i| activations(&row(x, i))) {
        for w in &weights {
            let products = x.q.iter().zip(&w.q).fold(R::of(0.0), |sum, (&q, &v)| sum + of(q) * of(v));
            let sum = w.q.iter().fold(R::of(0.0), |sum, &v| sum + of(v));
            y.push(of(x.scale) * of(w.scale) * products + of(x.offset) * (of(w.scale) * sum));
        }
    }
    y
}
