//! The two kinds of product that end in memory: Sᵀ-like tiles (lanes are queries) and sums over a tile (lanes are the
//! columns of a head).

use super::exponential::exp;
use super::pack::{CHUNK, at, chunk_widths};
use super::tile::{Left, Right, RowTiles, for_row_tiles, multiply};
use crate::simd::Simd;

/// Vectors of queries in a panel.
pub(super) const PANEL_VECTORS: usize = 2;
/// Keys of a tile: the tile of a panel, 128 x 32 numbers at most, stays in L1.
pub(super) const KEYS: usize = 128;
/// The most queries that a panel has on any instruction set.
pub(super) const MAX_PANEL: usize = PANEL_VECTORS * 16;

/// Queries of a panel.
pub(super) const fn panel<S: Simd>() -> usize {
    PANEL_VECTORS * S::LANES
}

/// Rows of a head, packed: `values` begins with the first of them, there is room for `capacity` in a chunk.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    pub(super) values: &'a [f32],
    pub(super) capacity: usize,
}

/// What becomes of a vector of Xᵀ[key, query] = Σ_d rows[key, d] · columns[d, query].
pub(super) trait Finish<S: Simd> {
    /// Takes the sums of the queries of vector `v` with `key`.
    fn finish(&mut self, simd: S, key: usize, v: usize, sum: S::F32);
}

/// Xᵀ of all keys against the queries in NV vectors.
struct Scores<'a, F, const NV: usize> {
    d: usize,
    rows: Packed<'a>,
    columns: &'a [f32],
    finish: F,
}

impl<S: Simd, F: Finish<S>, const NV: usize> RowTiles<S> for Scores<'_, F, NV> {
    #[inline(always)]
    fn tile<const MR: usize>(&mut self, simd: S, row: usize) {
        let mut sums = [[simd.zero(); NV]; MR];
        for (c, width) in chunk_widths(self.d) {
            let left = Left { values: &self.rows.values[at(c, self.rows.capacity, row)..], row_step: CHUNK, step: 1 };
            let right = Right { values: &self.columns[c * CHUNK * panel::<S>()..], step: panel::<S>() };
            sums = multiply(simd, sums, width, left, right);
        }
        for (i, row_sums) in sums.iter().enumerate() {
            for (v, &sum) in row_sums.iter().enumerate() {
                self.finish.finish(simd, row + i, v, sum);
            }
        }
    }
}

/// Xᵀ[key, query] = Σ_d rows[key, d] · columns[d, query] for `keys` keys and the first `queries` queries, each vector
/// given to `finish`.
#[inline(always)]
pub(super) fn scores<S: Simd>(
    simd: S,
    (keys, queries): (usize, usize),
    d: usize,
    rows: Packed<'_>,
    columns: &[f32],
    finish: impl Finish<S>,
) {
    if queries <= S::LANES {
        for_row_tiles(simd, keys, &mut Scores::<_, 1> { d, rows, columns, finish });
    } else {
        for_row_tiles(simd, keys, &mut Scores::<_, PANEL_VECTORS> { d, rows, columns, finish });
    }
}

/// What a sum begins with.
#[derive(Clone, Copy)]
pub(super) enum Begin<'a> {
    /// Zero: the output is overwritten.
    Zero,
    /// What is there.
    Old,
    /// What is there, times a number of each row.
    Scaled(&'a [f32]),
}

/// NV vectors of columns of `out` [rows, CHUNK].
struct Sums<'a, const NV: usize> {
    begin: Begin<'a>,
    left: Left<'a>,
    right: Right<'a>,
    terms: usize,
    out: &'a mut [f32],
}

impl<S: Simd, const NV: usize> RowTiles<S> for Sums<'_, NV> {
    #[inline(always)]
    fn tile<const MR: usize>(&mut self, simd: S, row: usize) {
        let mut sums = [[simd.zero(); NV]; MR];
        let old = |i: usize, v: usize| (row + i) * CHUNK + v * S::LANES;
        match self.begin {
            Begin::Zero => {}
            Begin::Old => {
                for (i, row_sums) in sums.iter_mut().enumerate() {
                    for (v, sum) in row_sums.iter_mut().enumerate() {
                        *sum = simd.load(&self.out[old(i, v)..]);
                    }
                }
            }
            Begin::Scaled(factors) => {
                for (i, row_sums) in sums.iter_mut().enumerate() {
                    let factor = simd.splat(factors[row + i]);
                    for (v, sum) in row_sums.iter_mut().enumerate() {
                        *sum = simd.mul(simd.load(&self.out[old(i, v)..]), factor);
                    }
                }
            }
        }
        let left = Left { values: &self.left.values[row * self.left.row_step..], ..self.left };
        sums = multiply(simd, sums, self.terms, left, self.right);
        for (i, row_sums) in sums.iter().enumerate() {
            for (v, &sum) in row_sums.iter().enumerate() {
                simd.store(&mut self.out[old(i, v)..], sum);
            }
        }
    }
}

/// out[row, x] = begin + Σ_p left[row, p] · right[p, x] for the `d` columns of a head.
#[inline(always)]
pub(super) fn sums<S: Simd>(
    simd: S,
    (rows, terms): (usize, usize),
    d: usize,
    begin: Begin<'_>,
    left: Left<'_>,
    right: Packed<'_>,
    (out, capacity): (&mut [f32], usize),
) {
    for (c, width) in chunk_widths(d) {
        let out = &mut out[at(c, capacity, 0)..at(c, capacity, rows)];
        let from = &right.values[at(c, right.capacity, 0)..];
        let mut x = 0;
        while x < width {
            let (out, right) = (&mut out[x..], Right { values: &from[x..], step: CHUNK });
            if width - x > S::LANES {
                for_row_tiles(simd, rows, &mut Sums::<2> { begin, left, right, terms, out });
                x += 2 * S::LANES;
            } else {
                for_row_tiles(simd, rows, &mut Sums::<1> { begin, left, right, terms, out });
                x += S::LANES;
            }
        }
    }
}

/// Stores scores in a tile [key, query] and keeps the greatest of each query.
pub(super) struct StoreWithMax<'a> {
    pub(super) tile: &'a mut [f32],
    pub(super) max: &'a mut [f32],
}

impl<S: Simd> Finish<S> for StoreWithMax<'_> {
    #[inline(always)]
    fn finish(&mut self, simd: S, key: usize, v: usize, sum: S::F32) {
        simd.store(&mut self.tile[key * panel::<S>() + v * S::LANES..], sum);
        let max = &mut self.max[v * S::LANES..];
        let greater = simd.max(simd.load(max), sum);
        simd.store(max, greater);
    }
}

/// P = exp(scale·s + shift), stored in a tile.
pub(super) struct Probabilities<'a> {
    pub(super) tile: &'a mut [f32],
    pub(super) scale: f32,
    /// -lse of each query.
    pub(super) shift: &'a [f32],
}

impl<S: Simd> Finish<S> for Probabilities<'_> {
    #[inline(always)]
    fn finish(&mut self, simd: S, key: usize, v: usize, sum: S::F32) {
        let shift = simd.load(&self.shift[v * S::LANES..]);
        let p = exp(simd, simd.mul_add(simd.splat(self.scale), sum, shift));
        simd.store(&mut self.tile[key * panel::<S>() + v * S::LANES..], p);
    }
}

/// dS = P ∘ (dP ∘ M - δ), stored in a tile; P becomes P ∘ M.
pub(super) struct ScoreGradients<'a> {
    pub(super) tile: &'a mut [f32],
    pub(super) probabilities: &'a mut [f32],
    pub(super) mask: Option<&'a [f32]>,
    /// -δ of each query.
    pub(super) minus_delta: &'a [f32],
}

impl<S: Simd> Finish<S> for ScoreGradients<'_> {
    #[inline(always)]
    fn finish(&mut self, simd: S, key: usize, v: usize, sum: S::F32) {
        let at = key * panel::<S>() + v * S::LANES;
        let p = simd.load(&self.probabilities[at..]);
        let minus_delta = simd.load(&self.minus_delta[v * S::LANES..]);
        let difference = match self.mask {
            None => simd.add(sum, minus_delta),
            Some(mask) => {
                let m = simd.load(&mask[at..]);
                simd.store(&mut self.probabilities[at..], simd.mul(p, m));
                simd.mul_add(sum, m, minus_delta)
            }
        };
        simd.store(&mut self.tile[at..], simd.mul(p, difference));
    }
}
