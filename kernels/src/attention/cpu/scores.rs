//! Operations on a tile of scores [key, query] between its products. Lanes are queries, rows have 64 queries, so maxima
//! and sums run down the columns.

use super::exponential::exp;
use super::pack::CHUNK;
use crate::simd::Simd;

/// Queries of a panel: elements in a row of a tile.
pub(super) const QUERIES: usize = CHUNK;

/// Rows reduced together, each into its own maximum (or sum): enough to hide the latency of an operation.
const TOGETHER: usize = 8;

/// Reduces eight values to one, pairwise.
#[inline(always)]
fn fold<V: Copy>([a, b, c, d, e, f, g, h]: [V; TOGETHER], two: impl Fn(V, V) -> V) -> V {
    two(two(two(a, b), two(c, d)), two(two(e, f), two(g, h)))
}

/// Greatest score of each query, for whole vectors of `queries` queries.
#[inline(always)]
pub(super) fn maxima<S: Simd>(simd: S, tile: &[f32], queries: usize, max: &mut [f32; QUERIES]) {
    for x in (0..queries).step_by(S::LANES) {
        let mut greatest = [simd.splat(f32::NEG_INFINITY); TOGETHER];
        for rows in tile.chunks(TOGETHER * CHUNK) {
            for (greatest, row) in greatest.iter_mut().zip(rows.chunks_exact(CHUNK)) {
                *greatest = simd.max(*greatest, simd.load(&row[x..]));
            }
        }
        simd.store(&mut max[x..], fold(greatest, |a, b| simd.max(a, b)));
    }
}

/// Computes P = exp(scale · s + shift) in place and the sum of each query, for whole vectors of `queries` queries.
#[inline(always)]
pub(super) fn exponentials<S: Simd>(
    simd: S,
    tile: &mut [f32],
    queries: usize,
    scale: f32,
    shift: &[f32; QUERIES],
    total: &mut [f32; QUERIES],
) {
    let scale = simd.splat(scale);
    for x in (0..queries).step_by(S::LANES) {
        let shift = simd.load(&shift[x..]);
        let mut sums = [simd.zero(); TOGETHER];
        for rows in tile.chunks_mut(TOGETHER * CHUNK) {
            for (sum, row) in sums.iter_mut().zip(rows.chunks_exact_mut(CHUNK)) {
                let p = exp(simd, simd.mul_add(scale, simd.load(&row[x..]), shift));
                *sum = simd.add(*sum, p);
                simd.store(&mut row[x..], p);
            }
        }
        simd.store(&mut total[x..], fold(sums, |a, b| simd.add(a, b)));
    }
}

/// Operands of the gradient of a tile's scores.
pub(super) struct ScoreGradients<'a> {
    /// Scores before, P ∘ M after; without the scale of M unless `scales`.
    pub(super) probabilities: &'a mut [f32],
    /// dP before, dS after.
    pub(super) gradients: &'a mut [f32],
    /// M; empty without dropout.
    pub(super) mask: &'a [f32],
    /// True if P that is kept is scaled, false if what it is multiplied with will be.
    pub(super) scales: bool,
    /// δ of each query.
    pub(super) delta: &'a [f32; QUERIES],
}

impl ScoreGradients<'_> {
    /// Computes P = exp(scale · s + shift) of the scores in `probabilities`, and dS = P ∘ (dP ∘ M - δ), for whole
    /// vectors of `queries` queries.
    #[inline(always)]
    pub(super) fn compute<S: Simd>(self, simd: S, queries: usize, scale: f32, shift: &[f32; QUERIES]) {
        let Self { probabilities, gradients, mask, scales, delta } = self;
        let scale = simd.splat(scale);
        for x in (0..queries).step_by(S::LANES) {
            let (shift, delta) = (simd.load(&shift[x..]), simd.load(&delta[x..]));
            let rows = probabilities.chunks_exact_mut(CHUNK).zip(gradients.chunks_exact_mut(CHUNK));
            for (i, (p_row, gradient)) in rows.enumerate() {
                let p = exp(simd, simd.mul_add(scale, simd.load(&p_row[x..]), shift));
                let dp = simd.load(&gradient[x..]);
                let (kept, difference) = if mask.is_empty() {
                    (p, simd.sub(dp, delta))
                } else {
                    let m = simd.load(&mask[i * CHUNK + x..]);
                    let kept =
                        if scales { simd.mul(p, m) } else { simd.select(simd.lt(simd.zero(), m), p, simd.zero()) };
                    (kept, simd.sub(simd.mul(dp, m), delta))
                };
                simd.store(&mut p_row[x..], kept);
                simd.store(&mut gradient[x..], simd.mul(p, difference));
            }
        }
    }
}
