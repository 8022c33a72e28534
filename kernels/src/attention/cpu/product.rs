//! Microkernel of attention's products: matrices in scratch memory whose rows are 64 elements apart.
//!
//! ```text
//! C[i, x] (+)= Σ_p A[i, p] · B[p, x]        x along the lanes
//!
//!            NV vectors                     per p: NV loads of B, H broadcasts of A,
//!          ┌────────┬────────┐              H·NV fused multiply-adds into H·NV registers
//!   H ≤ MR │ sums   │ sums   │
//!   rows   │ in     │ regis- │              AVX-512: MR = 14, NV = 2      A is read along rows or down columns:
//!          │        │  ters  │              AVX2:    MR = 6,  NV = 2      only the queries are transposed
//!          └────────┴────────┘
//! ```
//!
//! The row stride is a constant, so the compiler folds it into the addresses. It also avoids the cache conflicts of
//! rows of a batch, which are often a power of two apart and compete for the same lines of L1.

use super::pack::CHUNK;
use super::prefetch::PrefetchQueue;
use crate::extent::span;
use crate::register_tile::{RegisterTile, for_height};
use crate::simd::{Kernel, Simd, from_fn};

/// Initial value of the accumulators.
#[derive(Clone, Copy)]
pub(super) enum Begin<'a> {
    /// Zero: the output is overwritten.
    Zero,
    /// Old values of C.
    Old,
    /// Old values of C, times a factor per row.
    Scaled(&'a [f32]),
}

/// C = `begin` + A · B. Element (i, p) of A is `a[p * CHUNK + i]` if `TRANSPOSED`, else `a[i * CHUNK + p]`.
pub(super) struct Product<'a, const TRANSPOSED: bool> {
    /// Rows and columns of C; columns are rounded up to whole vectors.
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Terms of each sum.
    pub(super) terms: usize,
    pub(super) a: &'a [f32],
    pub(super) b: &'a [f32],
    pub(super) begin: Begin<'a>,
    pub(super) c: &'a mut [f32],
    /// Prefetches issued between register tiles.
    pub(super) prefetches: &'a mut PrefetchQueue,
}

/// Register tile of S; a single row with emulated lanes, to keep the code small.
const fn tile_of<S: Simd>() -> RegisterTile {
    let tile = RegisterTile::of::<S>();
    if S::EMULATED { RegisterTile::new(1, tile.vectors) } else { tile }
}

/// Computes the product in f32, each sum one chain.
impl<const TRANSPOSED: bool> Kernel for Product<'_, TRANSPOSED> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let Self { rows, columns, terms, .. } = self;
        if rows == 0 || columns == 0 || terms == 0 {
            return;
        }
        let (left_rows, left_columns) = if TRANSPOSED { (terms, rows) } else { (rows, terms) };
        let width = columns.next_multiple_of(S::LANES);
        assert!(width <= CHUNK && left_columns <= CHUNK);
        assert!(self.a.len() >= span(left_rows, left_columns, CHUNK));
        assert!(self.b.len() >= span(terms, width, CHUNK));
        assert!(self.c.len() >= span(rows, width, CHUNK));
        if let Begin::Scaled(factors) = self.begin {
            assert!(factors.len() >= rows);
        }
        let RegisterTile { rows: most, vectors } = const { tile_of::<S>() };
        let tiles = rows.div_ceil(most);
        for i in 0..tiles {
            let row = rows * i / tiles;
            let height = rows * (i + 1) / tiles - row;
            let mut x = 0;
            while x < width {
                let whole = x + vectors * S::LANES <= width;
                for_height!(tile_of::<S>(), height, |H, NV| {
                    // SAFETY: by the asserts above rows row..row + H are in bounds, and so are columns x..x + NV·LANES
                    // of a full tile and x..x + LANES, because `width` is a multiple of LANES.
                    unsafe {
                        if whole {
                            self.tile::<S, H, NV>(simd, row, x);
                        } else {
                            self.tile::<S, H, 1>(simd, row, x);
                        }
                    }
                });
                self.prefetches.prefetch_some();
                x += if whole { vectors * S::LANES } else { S::LANES };
            }
        }
    }
}

impl<const TRANSPOSED: bool> Product<'_, TRANSPOSED> {
    /// Computes rows `row..row + H` and NV vectors of columns from `x` on.
    ///
    /// # Safety
    /// They are within C, and A and B hold all their terms.
    #[inline(always)]
    unsafe fn tile<S: Simd, const H: usize, const NV: usize>(&mut self, simd: S, row: usize, x: usize) {
        let c = self.c[row * CHUNK + x..].as_mut_ptr();
        let mut sums = [[simd.zero(); NV]; H];
        // SAFETY: the caller's promise, here and below.
        unsafe {
            match self.begin {
                Begin::Zero => {}
                Begin::Old => {
                    for (i, row_sums) in sums.iter_mut().enumerate() {
                        *row_sums = from_fn(|v| simd.load_ptr(c.add(i * CHUNK + v * S::LANES)));
                    }
                }
                Begin::Scaled(factors) => {
                    for (i, row_sums) in sums.iter_mut().enumerate() {
                        let factor = simd.splat(*factors.get_unchecked(row + i));
                        *row_sums = from_fn(|v| simd.mul(simd.load_ptr(c.add(i * CHUNK + v * S::LANES)), factor));
                    }
                }
            }
            let (row_step, step) = if TRANSPOSED { (1, CHUNK) } else { (CHUNK, 1) };
            let mut a = self.a.as_ptr().add(row * row_step);
            let mut b = self.b.as_ptr().add(x);
            for _ in 0..self.terms {
                let vectors: [S::F32; NV] = from_fn(|v| simd.load_ptr(b.add(v * S::LANES)));
                for (i, row_sums) in sums.iter_mut().enumerate() {
                    let factor = simd.splat(*a.add(i * row_step));
                    for v in 0..NV {
                        row_sums[v] = simd.mul_add(factor, vectors[v], row_sums[v]);
                    }
                }
                a = a.wrapping_add(step);
                b = b.wrapping_add(CHUNK);
            }
            for (i, row_sums) in sums.iter().enumerate() {
                for (v, &sum) in row_sums.iter().enumerate() {
                    simd.store_ptr(c.add(i * CHUNK + v * S::LANES), sum);
                }
            }
        }
    }
}
