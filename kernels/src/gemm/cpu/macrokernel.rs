//! Macrokernel: all register tiles of a block of A with a block of B.
//!
//! A full tile of f32 goes from registers to C, bias included; the rest of the epilogue runs at once, while the tile is
//! in L1. Partial tiles at the right edge and tiles of bf16 go through a buffer in L1, row by row, in masked vectors.

use super::blocks::{BlockA, BlockB};
use super::microkernel::{NextTile, PanelA, PanelB, product, write};
use crate::dropout::BLOCK;
use crate::extent::{area, index, span};
use crate::gemm::epilogue::{Mask, Position, TileEpilogue};
use crate::gemm::operand::Output;
use crate::pool::{Disjoint, part};
use crate::register_tile::{RegisterTile, for_height};
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Source of the values that a tile is added to.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Addend {
    /// None: first block of k.
    Nothing,
    /// The values of C before the product.
    C,
    /// Partial sums of the previous blocks of k: in C if it is f32, else in the task's own buffer.
    PartialSums,
}

/// Arguments of the macrokernel.
pub(super) struct Macrokernel<'a> {
    /// Rows of A for the block's steps of k.
    pub a: BlockA<'a>,
    /// Columns of B for the block's steps of k.
    pub b: BlockB<'a>,
    /// The thread's buffer for a packed panel of A.
    pub packed_a: &'a mut [f32],
    /// The thread's buffer for dropout multipliers: MR rows.
    pub mask: &'a mut [f32],
    /// Output and epilogue.
    pub tiles: Tiles<'a>,
}

/// Parameters shared by all register tiles of a macrokernel.
pub(super) struct Tiles<'a> {
    /// Steps of k in this block.
    pub depth: usize,
    /// Steps of k in a chain.
    pub chain: usize,
    /// Rows of C.
    pub rows: Range<usize>,
    /// Columns of C; the first is a multiple of NR.
    pub columns: Range<usize>,
    /// C of all products of the batch.
    pub c: Output<'a>,
    /// Start of this product's C in `c`.
    pub c_start: usize,
    /// Leading dimension of C.
    pub ldc: usize,
    /// Source of the values that the tiles are added to.
    pub addend: Addend,
    /// True if this is the last block of k.
    pub last: bool,
    /// Epilogue of the last block.
    pub epilogue: TileEpilogue<'a>,
    /// The thread's buffer for partial sums of a task with bf16 C.
    pub partial_sums: Disjoint<'a, f32>,
    /// Columns of `partial_sums`.
    pub partial_columns: usize,
    /// The thread's buffer for a tile on its way to C, or for the sum of the previous chains: MR x NR.
    pub tile_buffer: Disjoint<'a, f32>,
    /// True if the loop runs over the tiles of a column before the next column. Never with dropout, whose mask is drawn for
    /// whole rows.
    pub by_columns: bool,
}

impl Kernel for Macrokernel<'_> {
    type Output = ();
    /// By rows: each panel of A stays in L1 and is multiplied with all panels of B, which stream from L2. C is written
    /// row by row, so its pages and cache lines are accessed in order. By columns (few rows, and a packed B beyond L2):
    /// each panel of B is multiplied with all of A, which stays in L2, while the next panel of B is prefetched.
    ///
    /// Panels of A have nearly equal heights, at most MR.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { a, b, packed_a, mask, tiles } = self;
        let tile = RegisterTile::of::<S>();
        let (mr, nr) = (tile.rows, tile.columns(S::LANES));
        let (rows, columns) = (tiles.rows.clone(), tiles.columns.clone());
        let first = columns.start / BLOCK * BLOCK;
        let width = (columns.end - first).next_multiple_of(BLOCK);
        let mut mask = Mask { multipliers: mask, width, origin: first };
        let dropout = if tiles.last { tiles.epilogue.dropout() } else { None };
        let (tiles_m, tiles_n) = (rows.len().div_ceil(mr), columns.len().div_ceil(nr));
        debug_assert!(!tiles.by_columns || dropout.is_none(), "a dropout mask needs whole rows");
        for at in 0..tiles_m * tiles_n {
            let (i, j) = if tiles.by_columns { (at % tiles_m, at / tiles_m) } else { (at / tiles_n, at % tiles_n) };
            let panel = part(rows.len(), 1, tiles_m, i);
            let (row, column, height) = (rows.start + panel.start, columns.start + j * nr, panel.len());
            let is_new = tiles.by_columns || j == 0;
            let panel_a = a.panel(simd, panel.start, height, is_new, packed_a);
            if let Some(dropout) = dropout.filter(|_| is_new) {
                mask.draw(simd, dropout, row, height);
            }
            let panel_b = b.panel(j, column + nr <= columns.end);
            let written = if S::EMULATED {
                tiles.rows_of_tile(simd, height, panel_a, panel_b, row, column)
            } else {
                for_height!(RegisterTile::of::<S>(), height, |H, NV| {
                    tiles.tile::<S, H, NV>(simd, panel_a, panel_b, row, column)
                })
            };
            if written {
                tiles.finish_tile(simd, height, row, column, &mask);
            } else {
                for i in 0..height {
                    let mask = if dropout.is_some() { mask.row(i, column) } else { &[] };
                    // SAFETY: the buffer is this thread's, and no other reference to it is alive.
                    let sums = unsafe { &*tiles.tile_buffer.slice(i * nr..(i + 1) * nr) };
                    tiles.finish_row(simd, row + i, column, sums, mask);
                }
            }
        }
    }
}

impl<'a> Tiles<'a> {
    /// Computes one tile of H rows. Returns true if it is in C, false if it is in `tile_buffer`.
    #[inline(always)]
    fn tile<S: Simd, const H: usize, const NV: usize>(
        &self,
        simd: S,
        panel_a: PanelA<'_>,
        panel_b: PanelB<'_>,
        row: usize,
        column: usize,
    ) -> bool {
        let (width, depth) = (NV * S::LANES, self.depth);
        panel_a.check(H, depth);
        panel_b.check(width, depth);
        assert!(self.tile_buffer.len() >= area(H, width));
        let (out, ldc, bias, direct) = self.destination(width, H, row, column);
        let next = self.next(row, H, column, width, panel_b);
        // SAFETY: the checks bound the panels, the assert bounds `tile_buffer`, `destination` bounds the output.
        unsafe {
            let acc = product::<S, H, NV>(simd, [depth, self.chain], panel_a, panel_b, next, self.tile_buffer.ptr(0));
            write(simd, acc, out, ldc, direct && self.addend != Addend::Nothing, bias);
        }
        direct
    }

    /// Addresses to prefetch during the tile of `height` rows at (`row`, `column`). By rows the next tile is the one to
    /// the right, or the first of the panel below. By columns it is the one below, or the first of the next panel of B;
    /// each row of a tile then prefetches an equal part of that panel.
    #[inline(always)]
    fn next(&self, row: usize, height: usize, column: usize, width: usize, panel_b: PanelB<'_>) -> NextTile {
        let (mut b, mut lines) = (panel_b.b.as_ptr(), 0);
        let (below, beside) = (row + height < self.rows.end, column + width < self.columns.end);
        let (next_row, next_column) = match self.by_columns {
            true if below => (row + height, column),
            true => (self.rows.start, column + width),
            false if beside => (row, column + width),
            false => (row + height, self.columns.start),
        };
        if self.by_columns {
            let panel = self.depth.wrapping_mul(panel_b.k_stride);
            lines = (panel / self.rows.len()).div_ceil(16);
            b = b.wrapping_add(panel.wrapping_add((row - self.rows.start).wrapping_mul(panel) / self.rows.len()));
        }
        match self.c {
            Output::F32(c) => {
                // May be past the last row: the address is only prefetched.
                let at = next_row.wrapping_mul(self.ldc).wrapping_add(next_column);
                let c = c.ptr(0).cast_const().wrapping_add(self.c_start.wrapping_add(at));
                let matrix = if self.last { self.epilogue.matrix() } else { None };
                NextTile { c, matrix: matrix.map_or(c, |matrix| matrix.wrapping_add(at)), ldc: self.ldc, b, lines }
            }
            Output::Bf16(_) => NextTile { b, lines, ..NextTile::NONE },
        }
    }

    /// [`Self::tile`] one row at a time: the same bits from less code.
    #[inline(always)]
    fn rows_of_tile<S: Simd>(
        &self,
        simd: S,
        height: usize,
        panel_a: PanelA<'_>,
        panel_b: PanelB<'_>,
        row: usize,
        column: usize,
    ) -> bool {
        let (width, depth) = (RegisterTile::of::<S>().columns(S::LANES), self.depth);
        panel_a.check(height, depth);
        panel_b.check(width, depth);
        assert!(self.tile_buffer.len() >= area(height, width));
        let (out, ldc, bias, direct) = self.destination(width, height, row, column);
        for i in 0..height {
            let panel_a = PanelA { a: &panel_a.a[(i * panel_a.row_stride).min(panel_a.a.len())..], ..panel_a };
            let partial = self.tile_buffer.ptr(i * width);
            for_height!(RegisterTile::new(1, RegisterTile::of::<S>().vectors), 1, |H, NV| {
                // SAFETY: as in `tile`: `width` is NV vectors, and row i of `tile_buffer` is unused until row i of the tile
                // is stored.
                unsafe {
                    let acc = product::<S, H, NV>(simd, [depth, self.chain], panel_a, panel_b, NextTile::NONE, partial);
                    write(simd, acc, out.add(i * ldc), ldc, direct && self.addend != Addend::Nothing, bias);
                }
            });
        }
        direct
    }

    /// Address and leading dimension to store a tile to, the bias to add, and true if the address is in C: C itself if
    /// the tile is complete and f32, else `tile_buffer`, which holds a tile. Valid for `height` rows of `width` floats,
    /// which only this task accesses.
    #[inline(always)]
    fn destination(
        &self,
        width: usize,
        height: usize,
        row: usize,
        column: usize,
    ) -> (*mut f32, usize, Option<&'a [f32]>, bool) {
        let whole = column + width <= self.columns.end;
        match (whole, self.c) {
            (true, Output::F32(c)) => {
                let at = index(row, self.ldc, column).saturating_add(self.c_start);
                assert!(span(height, width, self.ldc) <= c.len().saturating_sub(at));
                (c.ptr(at), self.ldc, self.epilogue.bias_in_registers(self.last).map(|bias| &bias[column..]), true)
            }
            _ => (self.tile_buffer.ptr(0), width, None, false),
        }
    }

    /// Applies the rest of the epilogue to a full tile of f32 after the last block.
    #[inline(always)]
    fn finish_tile<S: Simd>(&self, simd: S, height: usize, row: usize, column: usize, mask: &Mask<'_>) {
        if let Output::F32(c) = self.c
            && self.last
            && self.epilogue.has_more()
        {
            let nr = RegisterTile::of::<S>().columns(S::LANES);
            let start = row * self.ldc + column;
            // SAFETY: `destination` bounds the tile in C, and `Epilogue::check` requires the epilogue's matrices to be
            // as long as C; batches, which start elsewhere in C, have no epilogue with matrices. Only this task
            // accesses its rectangle.
            unsafe {
                let position = [start, self.ldc, column];
                self.epilogue.finish_tile(simd, c, position, [height, nr / S::LANES], mask);
            }
        }
    }

    /// Adds the old values to a row of a tile, applies the epilogue after the last block, and stores the row.
    #[inline(always)]
    fn finish_row<S: Simd>(&self, simd: S, row: usize, column: usize, sums: &[f32], mask: &[f32]) {
        for first in (0..sums.len().min(self.columns.end - column)).step_by(S::LANES) {
            let column = column + first;
            let count = S::LANES.min(self.columns.end - column);
            let position = Position { column, at: row * self.ldc + column, count };
            let at = self.c_start + position.at;
            let own = (row - self.rows.start) * self.partial_columns + column - self.columns.start;
            let own = own..own + count;
            let mut value = simd.load(&sums[first..]);
            // SAFETY: a task accesses only its rectangle of C and of the matrices like C, and its thread's buffer of
            // sums.
            unsafe {
                match (self.addend, self.c) {
                    (Addend::Nothing, _) => {}
                    (Addend::PartialSums, Output::Bf16(_)) => {
                        value = simd.add(simd.load_partial(self.partial_sums.slice(own.clone())), value);
                    }
                    _ => value = simd.add(self.c.load(simd, at, count), value),
                }
                if self.last {
                    let mask = if mask.is_empty() { mask } else { &mask[first..] };
                    self.c.store(simd, at, count, self.epilogue.apply(simd, value, position, mask));
                } else if let Output::F32(_) = self.c {
                    self.c.store(simd, at, count, value);
                } else {
                    simd.store_partial(self.partial_sums.slice(own), value);
                }
            }
        }
    }
}
