//! All register tiles of a block of A with a block of B.
//!
//! A whole tile of f32 goes from the registers to C, bias included; what else follows its sums is done there at once,
//! while it is in L1. Tiles at the right edge and tiles of bf16 pass through a buffer in L1, row by row, in masked
//! vectors.

use super::blocks::{BlockA, BlockB};
use super::epilogue::{Finish, Mask, Place};
use super::product::{Left, Next, Right, product, write};
use super::tile::Tile;
use crate::dropout::BLOCK;
use crate::extent::{area, index, span};
use crate::pool::Disjoint;
use crate::register_tile::{RegisterTile, for_height};
use crate::simd::{DType, Element, Kernel, Simd};
use half::bf16;
use std::ops::Range;

/// C without its storage type.
#[derive(Clone, Copy)]
pub(super) enum Output<'a> {
    F32(Disjoint<'a, f32>),
    Bf16(Disjoint<'a, bf16>),
}

impl<'a> Output<'a> {
    pub(super) fn new<C: Element>(c: &'a mut [C]) -> Self {
        match C::DTYPE {
            DType::F32 => Self::F32(Disjoint::new(bytemuck::cast_slice_mut(c))),
            DType::Bf16 => Self::Bf16(Disjoint::new(bytemuck::cast_slice_mut(c))),
        }
    }
    /// # Safety
    /// No other thread writes these `count` elements from `start` on.
    #[inline(always)]
    unsafe fn load<S: Simd>(self, simd: S, start: usize, count: usize) -> S::F32 {
        // SAFETY: the caller's promise; the slice is gone when this returns.
        unsafe {
            match self {
                Self::F32(c) => f32::load_partial(simd, c.slice(start..start + count)),
                Self::Bf16(c) => bf16::load_partial(simd, c.slice(start..start + count)),
            }
        }
    }
    /// # Safety
    /// No other thread touches these `count` elements from `start` on.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd>(self, simd: S, start: usize, count: usize, value: S::F32) {
        // SAFETY: the caller's promise; the slice is gone when this returns.
        unsafe {
            match self {
                Self::F32(c) => f32::store_partial(simd, c.slice(start..start + count), value),
                Self::Bf16(c) => bf16::store_partial(simd, c.slice(start..start + count), value),
            }
        }
    }
    /// Stores, and gives the value as it was rounded.
    ///
    /// # Safety
    /// As [`store`](Self::store).
    #[inline(always)]
    pub(super) unsafe fn keep<S: Simd>(self, simd: S, start: usize, count: usize, value: S::F32) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe {
            self.store(simd, start, count, value);
            match self {
                Self::F32(_) => value,
                Self::Bf16(_) => self.load(simd, start, count),
            }
        }
    }
}

/// What a tile is added to.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Old {
    /// Nothing: it is the first block of the sum.
    Nothing,
    /// The values of C before the product.
    C,
    /// What the blocks of k before this one gave: in C if it is f32, else in the task's own buffer.
    Sums,
}

/// Part `i` of `parts` equal parts of `len` units of `unit` items; the last unit may be short.
#[inline(always)]
pub(crate) fn part(len: usize, unit: usize, parts: usize, i: usize) -> Range<usize> {
    let units = len.div_ceil(unit);
    let bound = |i: usize| (units * i / parts * unit).min(len);
    bound(i)..bound(i + 1)
}

/// All tiles of a block of A with a block of B.
pub(super) struct Sweep<'a> {
    /// A for the rows and steps.
    pub a: BlockA<'a>,
    /// B for the columns and steps.
    pub b: BlockB<'a>,
    /// The thread's buffer for a panel of A that has to be packed.
    pub packed_a: &'a mut [f32],
    /// The thread's buffer for the multipliers of a dropout: MR rows.
    pub mask: &'a mut [f32],
    /// Where the sums go.
    pub tiles: Tiles<'a>,
}

/// What all register tiles of a sweep share.
pub(super) struct Tiles<'a> {
    /// Steps of the sum in this block.
    pub depth: usize,
    /// Steps of a chain of the sum.
    pub chain: usize,
    /// Rows of C.
    pub rows: Range<usize>,
    /// Columns of C; the first is a multiple of NR.
    pub columns: Range<usize>,
    /// C of the whole product.
    pub c: Output<'a>,
    /// Where this element of the batch starts in `c`.
    pub c_start: usize,
    /// Elements from one row of C to the next.
    pub ldc: usize,
    /// What the tiles are added to.
    pub old: Old,
    /// Whether this block ends the sum.
    pub last: bool,
    /// What follows the sum.
    pub finish: Finish<'a>,
    /// The thread's buffer for sums of a task whose C is bf16, `task_columns` a row.
    pub sums: Disjoint<'a, f32>,
    /// The thread's buffer for a tile on its way to C, or for the sum of the chains before the last: MR x NR.
    pub spill: Disjoint<'a, f32>,
    /// Whether the tiles go down the columns of C first. Not with dropout, whose mask is drawn for whole rows.
    pub by_columns: bool,
}

impl Kernel for Sweep<'_> {
    type Output = ();
    /// Panel after panel of A, which stays in L1, against all panels of B, which stream from L2: C is written row by
    /// row, so that its pages and lines are met in order. Few rows with a B that comes from further away go the other way
    /// round: panel after panel of B against all of A, which stays in L2, while the next panel of B is on its way.
    ///
    /// Panels of A are as equal in height as can be, none above MR.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { a, b, packed_a, mask, tiles } = self;
        let tile = Tile::of_lanes(S::LANES);
        let (rows, columns) = (tiles.rows.clone(), tiles.columns.clone());
        let first = columns.start / BLOCK * BLOCK;
        let width = (columns.end - first).next_multiple_of(BLOCK);
        let mut mask = Mask { multipliers: mask, width, origin: first };
        let dropout = if tiles.last { tiles.finish.dropout() } else { None };
        let (down, across) = (rows.len().div_ceil(tile.mr), columns.len().div_ceil(tile.nr));
        debug_assert!(!tiles.by_columns || dropout.is_none(), "a mask is drawn for whole rows");
        for at in 0..down * across {
            let (i, j) = if tiles.by_columns { (at % down, at / down) } else { (at / across, at % across) };
            let panel = part(rows.len(), 1, down, i);
            let (row, column, height) = (rows.start + panel.start, columns.start + j * tile.nr, panel.len());
            let is_new = tiles.by_columns || j == 0;
            let left = a.panel(simd, panel.start, height, is_new, packed_a);
            if let Some(dropout) = dropout.filter(|_| is_new) {
                mask.draw(simd, dropout, row, height);
            }
            let right = b.panel(j, column + tile.nr <= columns.end);
            let written = if S::EMULATED {
                tiles.rows_of_tile(simd, height, left, right, row, column)
            } else {
                for_height!(RegisterTile::of::<S>(), height, |H, NV| {
                    tiles.tile::<S, H, NV>(simd, left, right, row, column)
                })
            };
            if written {
                tiles.finish_tile(simd, height, row, column, &mask);
            } else {
                for i in 0..height {
                    let mask = if dropout.is_some() { mask.row(i, column) } else { &[] };
                    // SAFETY: the buffer is this thread's, and no other reference to it is alive.
                    let sums = unsafe { &*tiles.spill.slice(i * tile.nr..(i + 1) * tile.nr) };
                    tiles.finish_row(simd, row + i, column, sums, mask);
                }
            }
        }
    }
}

impl<'a> Tiles<'a> {
    /// Computes one tile of H rows; true if it is written, false if it waits in `spill`.
    #[inline(always)]
    fn tile<S: Simd, const H: usize, const NV: usize>(
        &self,
        simd: S,
        left: Left<'_>,
        right: Right<'_>,
        row: usize,
        column: usize,
    ) -> bool {
        let (width, depth) = (NV * S::LANES, self.depth);
        left.check(H, depth);
        right.check(width, depth);
        assert!(self.spill.len() >= area(H, width));
        let (out, ldc, bias, direct) = self.destination(width, H, row, column);
        let next = self.next(row, H, column, width, right);
        // SAFETY: the checks hold the lengths of the panels, the assert that of `spill`, `destination` that of the output.
        unsafe {
            let sums = product::<S, H, NV>(simd, [depth, self.chain], left, right, next, self.spill.ptr(0));
            write(simd, sums, out, ldc, direct && self.old != Old::Nothing, bias);
        }
        direct
    }

    /// What follows the tile of `height` rows at this place: the one beside it, or first of the panel below; by columns the
    /// one below it, or first of the panel beside, whose numbers of B are then asked for in as many parts as there are rows.
    #[inline(always)]
    fn next(&self, row: usize, height: usize, column: usize, width: usize, right: Right<'_>) -> Next {
        let (mut b, mut lines) = (right.b.as_ptr(), 0);
        let (below, beside) = (row + height < self.rows.end, column + width < self.columns.end);
        let (next_row, next_column) = match self.by_columns {
            true if below => (row + height, column),
            true => (self.rows.start, column + width),
            false if beside => (row, column + width),
            false => (row + height, self.columns.start),
        };
        if self.by_columns {
            let panel = self.depth.wrapping_mul(right.along);
            lines = (panel / self.rows.len()).div_ceil(16);
            b = b.wrapping_add(panel.wrapping_add((row - self.rows.start).wrapping_mul(panel) / self.rows.len()));
        }
        match self.c {
            Output::F32(c) => {
                // Possibly behind the last row: an address to prefetch, no more.
                let at = next_row.wrapping_mul(self.ldc).wrapping_add(next_column);
                let c = c.ptr(0).cast_const().wrapping_add(self.c_start.wrapping_add(at));
                let matrix = if self.last { self.finish.matrix() } else { None };
                Next { c, matrix: matrix.map_or(c, |matrix| matrix.wrapping_add(at)), ldc: self.ldc, b, lines }
            }
            Output::Bf16(_) => Next { b, lines, ..Next::NONE },
        }
    }

    /// The same, one row after the other: the same numbers to the bit from little code.
    #[inline(always)]
    fn rows_of_tile<S: Simd>(
        &self,
        simd: S,
        height: usize,
        left: Left<'_>,
        right: Right<'_>,
        row: usize,
        column: usize,
    ) -> bool {
        let (width, depth) = (Tile::of_lanes(S::LANES).nr, self.depth);
        left.check(height, depth);
        right.check(width, depth);
        assert!(self.spill.len() >= area(height, width));
        let (out, ldc, bias, direct) = self.destination(width, height, row, column);
        for i in 0..height {
            let left = Left { a: &left.a[(i * left.down).min(left.a.len())..], ..left };
            let waiting = self.spill.ptr(i * width);
            for_height!(RegisterTile::new(1, RegisterTile::of::<S>().vectors), 1, |H, NV| {
                // SAFETY: as in `tile`: `width` is NV vectors, and row i of `spill` is free until row i of the tile goes there.
                unsafe {
                    let sums = product::<S, H, NV>(simd, [depth, self.chain], left, right, Next::NONE, waiting);
                    write(simd, sums, out.add(i * ldc), ldc, direct && self.old != Old::Nothing, bias);
                }
            });
        }
        direct
    }

    /// Where a tile goes, with its leading dimension and the bias to add: C itself if the tile is whole and f32, else
    /// `spill`, which holds a tile. Valid for `height` rows of `width` floats, which are this task's alone.
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
                (c.ptr(at), self.ldc, self.finish.bias(self.last).map(|bias| &bias[column..]), true)
            }
            _ => (self.spill.ptr(0), width, None, false),
        }
    }

    /// Does what is left for a whole tile of f32 whose sum is complete.
    #[inline(always)]
    fn finish_tile<S: Simd>(&self, simd: S, height: usize, row: usize, column: usize, mask: &Mask<'_>) {
        if let Output::F32(c) = self.c
            && self.last
            && self.finish.has_more()
        {
            let nr = Tile::of_lanes(S::LANES).nr;
            let start = row * self.ldc + column;
            // SAFETY: `destination` found the tile within C, and `Epilogue::check` the epilogue's matrices as long as C;
            // batches, which begin elsewhere in C, have no epilogue with matrices. A task's rectangle is its own.
            unsafe {
                let place = [start, self.ldc, column];
                self.finish.finish_tile(simd, c, place, [height, nr / S::LANES], mask);
            }
        }
    }

    /// Adds a row of a tile to what was there, finishes it if the sum is complete, and stores it.
    #[inline(always)]
    fn finish_row<S: Simd>(&self, simd: S, row: usize, column: usize, sums: &[f32], mask: &[f32]) {
        for first in (0..sums.len().min(self.columns.end - column)).step_by(S::LANES) {
            let column = column + first;
            let count = S::LANES.min(self.columns.end - column);
            let place = Place { column, at: row * self.ldc + column, count };
            let at = self.c_start + place.at;
            let own = (row - self.rows.start) * Tile::of_lanes(S::LANES).task_columns + column - self.columns.start;
            let own = own..own + count;
            let mut value = simd.load(&sums[first..]);
            // SAFETY: a task touches its own rectangle of C and its like alone, and its thread's own buffer of sums.
            unsafe {
                match (self.old, self.c) {
                    (Old::Nothing, _) => {}
                    (Old::Sums, Output::Bf16(_)) => {
                        value = simd.add(simd.load_partial(self.sums.slice(own.clone())), value);
                    }
                    _ => value = simd.add(self.c.load(simd, at, count), value),
                }
                if self.last {
                    let mask = if mask.is_empty() { mask } else { &mask[first..] };
                    self.c.store(simd, at, count, self.finish.apply(simd, value, place, mask));
                } else if let Output::F32(_) = self.c {
                    self.c.store(simd, at, count, value);
                } else {
                    simd.store_partial(self.sums.slice(own), value);
                }
            }
        }
    }
}
