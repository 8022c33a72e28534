//! The definition, in f64, and what a plain f32 program would give.

use super::{Gemm, Layout};
use crate::simd::Element;

/// A[i, p] as it lies.
fn a_at(spec: &Gemm, i: usize, p: usize) -> usize {
    if spec.a == Layout::Normal { i * spec.lda + p } else { p * spec.lda + i }
}

/// B[p, j] as it lies.
fn b_at(spec: &Gemm, p: usize, j: usize) -> usize {
    if spec.b == Layout::Normal { p * spec.ldb + j } else { j * spec.ldb + p }
}

/// Σ_p A[i, p]·B[p, j] for all i, j: [m, n].
pub(super) fn product<A: Element, B: Element>(spec: &Gemm, a: &[A], b: &[B]) -> Vec<f64> {
    let term = |i, j, p| f64::from(a[a_at(spec, i, p)].to_f32()) * f64::from(b[b_at(spec, p, j)].to_f32());
    let element = |i, j| (0..spec.k).map(|p| term(i, j, p)).sum();
    (0..spec.m).flat_map(|i| (0..spec.n).map(move |j| (i, j))).map(|(i, j)| element(i, j)).collect()
}

/// The same in f32, added in the plain order.
pub(super) fn naive<A: Element, B: Element>(spec: &Gemm, a: &[A], b: &[B]) -> Vec<f32> {
    let term = |i, j, p| a[a_at(spec, i, p)].to_f32() * b[b_at(spec, p, j)].to_f32();
    let element = |i, j| (0..spec.k).fold(0.0f32, |sum, p| sum + term(i, j, p));
    (0..spec.m).flat_map(|i| (0..spec.n).map(move |j| (i, j))).map(|(i, j)| element(i, j)).collect()
}
