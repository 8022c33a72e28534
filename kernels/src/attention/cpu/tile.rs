//! Products of small matrices in scratch memory, register tile by register tile.
//!
//! Every product of attention, forward and backward, is C[i, x] = Σ_p A[i, p] · B[p, x] with x along the lanes: a tile
//! of MR rows and NV vectors of C stays in registers, each step loads NV vectors of B and broadcasts MR numbers of A.
//! The steps of A differ (see [`Left`]), so nothing but the queries has to be transposed.

use crate::simd::Simd;

/// Row `i`, term `p` of the left operand is `values[i * row_step + p * step]`.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub(super) values: &'a [f32],
    pub(super) row_step: usize,
    pub(super) step: usize,
}

/// Term `p` of the right operand is the vectors at `values[p * step..]`.
#[derive(Clone, Copy)]
pub(super) struct Right<'a> {
    pub(super) values: &'a [f32],
    pub(super) step: usize,
}

/// Adds the product over `terms` terms to the tile `sums`.
#[inline(always)]
pub(super) fn multiply<S: Simd, const MR: usize, const NV: usize>(
    simd: S,
    mut sums: [[S::F32; NV]; MR],
    terms: usize,
    left: Left<'_>,
    right: Right<'_>,
) -> [[S::F32; NV]; MR] {
    if terms == 0 {
        return sums;
    }
    assert!((MR - 1) * left.row_step + (terms - 1) * left.step < left.values.len());
    assert!((terms - 1) * right.step + NV * S::LANES <= right.values.len());
    let (a, b) = (left.values.as_ptr(), right.values.as_ptr());
    for p in 0..terms {
        let mut vectors = [simd.zero(); NV];
        for (v, vector) in vectors.iter_mut().enumerate() {
            // SAFETY: p < terms and v < NV; the second assertion says that LANES floats from here are in `values`.
            *vector = unsafe { simd.load_ptr(b.add(p * right.step + v * S::LANES)) };
        }
        for (i, row) in sums.iter_mut().enumerate() {
            // SAFETY: i < MR and p < terms; the first assertion says that the last such index is in `values`.
            let x = simd.splat(unsafe { *a.add(i * left.row_step + p * left.step) });
            for (sum, &vector) in row.iter_mut().zip(&vectors) {
                *sum = simd.mul_add(x, vector, *sum);
            }
        }
    }
    sums
}

/// What is done to each tile of MR rows.
pub(super) trait RowTiles<S: Simd> {
    /// Rows `row..row + MR`.
    fn tile<const MR: usize>(&mut self, simd: S, row: usize);
}

/// Covers `rows` rows with tiles that are as high as the registers allow: with NV = 2, 12 · 2 sums of 32 registers,
/// 6 · 2 of 16, two vectors and one broadcast beside them.
#[inline(always)]
pub(super) fn for_row_tiles<S: Simd>(simd: S, rows: usize, tiles: &mut impl RowTiles<S>) {
    let mut row = 0;
    if S::REGISTERS >= 32 {
        while row + 12 <= rows {
            tiles.tile::<12>(simd, row);
            row += 12;
        }
    } else {
        while row + 6 <= rows {
            tiles.tile::<6>(simd, row);
            row += 6;
        }
    }
    while row + 4 <= rows {
        tiles.tile::<4>(simd, row);
        row += 4;
    }
    while row < rows {
        tiles.tile::<1>(simd, row);
        row += 1;
    }
}
