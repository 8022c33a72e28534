//! Macrokernel: all register tiles of a block of A with a block of B.
//!
//! A full tile of f32 goes from registers to C, bias included; the rest of the epilogue runs at once, while the tile is
//! in L1. Partial tiles at the right edge, tiles of bf16 and quantized ones go through a buffer in L1, row by row, in masked
//! vectors. A matrix unit works on its own once it has its instructions: the epilogue of a tile follows those of the next
//! one, and overlaps them.

use super::blocks::{BlockA, BlockB, Panels, RowPanels, Steps};
use super::microkernel::{Destination, Microkernel, MicrokernelUser, NextTile, PanelA, PanelB, Part, Tile};
use crate::dropout::BLOCK;
use crate::extent::{area, index, span};
use crate::gemm::epilogue::{Mask, Position, Scales, Sums, TileEpilogue};
use crate::gemm::operand::Output;
use crate::pool::{Disjoint, part};
use crate::register_tile::for_height;
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
pub(super) struct Macrokernel<'a, A, GA, GB> {
    /// A.
    pub a: A,
    /// Columns of B for the block's steps.
    pub b: BlockB<'a, GB>,
    /// The thread's buffer for a packed panel of A.
    pub packed_a: &'a mut [GA],
    /// The thread's buffer for dropout multipliers: MR rows.
    pub mask: &'a mut [f32],
    /// Output and epilogue.
    pub tiles: Tiles<'a>,
}

/// Parameters shared by all register tiles of a macrokernel.
pub(super) struct Tiles<'a> {
    /// Steps of this block.
    pub steps: Steps,
    /// Steps of a chain.
    pub chain: usize,
    /// Parts of an operand.
    pub parts: usize,
    /// Rows that are not divided.
    pub row_unit: usize,
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
    /// Scales of quantized operands.
    pub scales: Option<Scales<'a>>,
    /// Epilogue of the last block.
    pub epilogue: TileEpilogue<'a>,
    /// The thread's buffer for partial sums of a task with bf16 C.
    pub partial_sums: Disjoint<'a, f32>,
    /// Columns of `partial_sums`.
    pub partial_columns: usize,
    /// The thread's buffers of MR x NR: for two tiles on their way to C, and for the sums on the way of each panel of a
    /// group.
    pub tile_buffer: Disjoint<'a, f32>,
    /// Panels of A of a group. One with dropout, whose mask is drawn for whole rows.
    pub group: usize,
    /// Steps that the tiles of a group multiply with a panel of B before the following steps.
    pub part: usize,
}

impl<M: Microkernel, A: RowPanels<M>> MicrokernelUser<M> for Macrokernel<'_, A, M::A, M::B> {
    /// Panels of A of a group are multiplied with a panel of B, one after the other, then with the next panel of B. A group of
    /// one panel stays in L1, and B streams from L2. Of a larger group, A streams from L2, and B stays in L1, in parts of a
    /// chain if all of its steps do not fit.
    #[inline(always)]
    fn run(self, m: M) {
        let Self { a, b, packed_a, mask, tiles } = self;
        let (simd, mr, nr) = (m.simd(), M::SIZE.rows, M::NR);
        let (rows, columns) = (tiles.rows.clone(), tiles.columns.clone());
        let first = columns.start / BLOCK * BLOCK;
        let width = (columns.end - first).next_multiple_of(BLOCK);
        let mut mask = Mask { multipliers: mask, width, origin: first };
        let dropout = if tiles.last { tiles.epilogue.dropout() } else { None };
        let (tiles_m, tiles_n) = (rows.len().div_ceil(mr), columns.len().div_ceil(nr));
        debug_assert!(tiles.group == 1 || dropout.is_none(), "a dropout mask needs whole rows");
        let mut pending = Pending::default();
        let groups = tiles_m.div_ceil(tiles.group);
        for group in 0..groups {
            let range = part(tiles_m, 1, groups, group);
            let (task, range) = ([rows.start, rows.len()], [range.start, range.end]);
            let panels = Panels { task, row_unit: tiles.row_unit, of: tiles_m, range };
            let a = a.block(m, tiles.steps, panels, packed_a);
            if let Some(dropout) = dropout {
                // The tile before has other rows.
                tiles.finish_pending(m, &mut pending, &mask);
                let (row, height) = panels.panel(range[0]);
                mask.draw(simd, dropout, row, height);
            }
            let group = Group { rows: panels.rows(), a: &a, b: &b, mask: &mask };
            let alone = tiles.group == 1;
            for j in 0..if alone { 1 } else { tiles_n } {
                let columns = if alone { 0..tiles_n } else { j..j + 1 };
                for start in (0..tiles.steps.depth.max(1)).step_by(tiles.part) {
                    for i in range[0]..range[1] {
                        let (row, height) = panels.panel(i);
                        let row = RowOfTiles { row, height, columns: columns.clone(), start, group: &group };
                        // The height is chosen once a row of tiles, not once a tile.
                        if const { M::BY_HEIGHT } {
                            for_height!(M::SIZE, height, |H, _NV| tiles.row_of_tiles::<M, H>(m, row, &mut pending));
                        } else {
                            tiles.row_of_tiles::<M, 0>(m, row, &mut pending);
                        }
                    }
                }
            }
        }
        tiles.finish_pending(m, &mut pending, &mask);
    }
}

/// Panels of A that are multiplied with each panel of B.
struct Group<'a, GA, GB> {
    rows: Range<usize>,
    a: &'a BlockA<'a, GA>,
    b: &'a BlockB<'a, GB>,
    mask: &'a Mask<'a>,
}

/// Tiles with the same rows, for steps of a block from `start` on.
struct RowOfTiles<'g, 'a, GA, GB> {
    row: usize,
    height: usize,
    /// Numbers of the tiles, from the first column on.
    columns: Range<usize>,
    start: usize,
    group: &'g Group<'a, GA, GB>,
}

/// Deferred epilogue of the previous tile.
#[derive(Default)]
struct Pending {
    tile: Option<SummedTile>,
    /// Buffer for the next tile: not that of `tile`.
    buffer: usize,
}

/// The epilogue of a tile, compiled once for all heights.
struct Finish<'t, 'a, M> {
    tiles: &'t Tiles<'a>,
    m: M,
    tile: &'t SummedTile,
    mask: &'t Mask<'t>,
}

impl<M: Microkernel> Kernel for Finish<'_, '_, M> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.tiles.finish(self.m, self.tile, self.mask);
    }
}

/// Memory in which a tile is summed.
#[derive(Clone, Copy)]
enum Place {
    /// C, if it is f32 and the tile is complete and not quantized.
    C,
    /// The thread's partial sums, if C is bf16 and each block of k is added to those before.
    PartialSums,
    /// A buffer: the first or the second.
    Buffer(usize),
}

/// A tile that has its sums of this block of k, but not its epilogue.
#[derive(Clone, Copy)]
struct SummedTile {
    row: usize,
    column: usize,
    height: usize,
    place: Place,
}

impl<'a> Tiles<'a> {
    /// Computes tiles of `height` rows, which is H if the kernel is compiled for each height, else H is 0.
    #[inline(always)]
    fn row_of_tiles<M: Microkernel, const H: usize>(
        &self,
        m: M,
        RowOfTiles { row, height, columns, start, group }: RowOfTiles<'_, '_, M::A, M::B>,
        pending: &mut Pending,
    ) {
        let height = if H > 0 { H } else { height };
        let depth = self.part.min(self.steps.depth - start);
        let part = Part { depth, chain: self.chain, first: start == 0, last: start + depth == self.steps.depth };
        // Rows before this tile's sums on the way.
        let on_the_way = if part.first && part.last { 0 } else { row - group.rows.start };
        let panel_a = group.a.part_of_panel(row - group.rows.start, height, start);
        for j in columns {
            let column = self.columns.start + j * M::NR;
            let panel_b = group.b.panel(j, start, column + M::NR <= self.columns.end);
            let tile = SummedTile { row, column, height, place: self.place::<M>(height, column, pending.buffer) };
            let next = self.next::<M>(&tile, part, &group.rows, panel_b);
            self.sum::<M, H>(m, &tile, part, on_the_way, (panel_a, panel_b), next);
            if !part.last {
                continue;
            }
            if M::DEFERS {
                self.finish_pending(m, pending, group.mask);
                *pending = Pending { tile: Some(tile), buffer: 1 - pending.buffer };
            } else if self.is_unfinished::<M>(&tile) {
                m.simd().vectorize(Finish { tiles: self, m, tile: &tile, mask: group.mask });
            }
        }
    }

    /// Finishes the tile that a kernel has deferred.
    #[inline(always)]
    fn finish_pending<M: Microkernel>(&self, m: M, pending: &mut Pending, mask: &Mask<'_>) {
        if let Some(tile) = pending.tile.take() {
            m.simd().vectorize(Finish { tiles: self, m, tile: &tile, mask });
        }
    }

    /// False if a tile's sums are where they belong, with nothing to add.
    #[inline(always)]
    fn is_unfinished<M: Microkernel>(&self, tile: &SummedTile) -> bool {
        match tile.place {
            Place::C => self.last && self.epilogue.has_more(),
            Place::PartialSums => self.last,
            Place::Buffer(_) => true,
        }
    }

    /// Memory for the sums of a tile; `buffer` is the one that the previous tile does not occupy.
    #[inline(always)]
    fn place<M: Microkernel>(&self, height: usize, column: usize, buffer: usize) -> Place {
        let is_whole = column + M::NR <= self.columns.end && (!M::WHOLE || height == M::SIZE.rows);
        let is_only_block = self.last && self.addend != Addend::PartialSums;
        match self.c {
            Output::F32(_) if is_whole && !M::QUANTIZED => Place::C,
            Output::Bf16(_) if M::FROM_OLD_VALUES && !is_only_block => Place::PartialSums,
            _ => Place::Buffer(buffer),
        }
    }

    /// Computes a part of the sums of one tile, whose sums on the way follow those of `on_the_way` rows.
    #[inline(always)]
    fn sum<M: Microkernel, const H: usize>(
        &self,
        m: M,
        tile: &SummedTile,
        part: Part,
        on_the_way: usize,
        (panel_a, panel_b): (PanelA<'_, M::A>, PanelB<'_, M::B>),
        next: NextTile,
    ) {
        // Rows that a tile computes though they do not exist are not stored in C.
        let computed = if M::WHOLE { M::SIZE.rows } else { tile.height };
        panel_a.check(computed, part.depth, self.parts);
        panel_b.check(M::B_GROUPS, part.depth, self.parts);
        let mut to = self.destination::<M>(tile, on_the_way);
        if M::FROM_OLD_VALUES && self.addend != Addend::Nothing {
            match tile.place {
                Place::C => {}
                Place::PartialSums if self.addend == Addend::PartialSums => {}
                Place::PartialSums | Place::Buffer(_) => self.load_old_values::<M>(m.simd(), tile),
            }
            to.add = true;
        }
        // SAFETY: the checks bound the panels, `destination` the output and the buffers; rows are cut by MR.
        unsafe { m.tile::<H>(computed, part, panel_a, panel_b, next, to) };
    }

    /// Applies what is left of the epilogue to a tile, and stores it in C.
    #[inline(always)]
    fn finish<M: Microkernel>(&self, m: M, tile: &SummedTile, mask: &Mask<'_>) {
        match tile.place {
            Place::C => self.finish_tile(m, tile, mask),
            Place::PartialSums if !self.last => {}
            Place::PartialSums | Place::Buffer(_) => {
                if !self.finish_buffer(m, tile, mask) {
                    let (floats, start, leading) = self.own_memory::<M>(tile);
                    for i in 0..tile.height {
                        let has_dropout = self.last && self.epilogue.dropout().is_some();
                        let mask = if has_dropout { mask.row(i, tile.column) } else { &[] };
                        // SAFETY: the memory is this thread's, and no other reference to it is alive.
                        let sums = unsafe { &*floats.slice(start + i * leading..start + i * leading + M::NR) };
                        self.finish_row::<M>(m.simd(), tile.row + i, tile.column, sums, mask);
                    }
                }
            }
        }
    }

    /// The thread's memory of a tile that is not summed in C: floats, the tile's first, and those from a row to the next.
    #[inline(always)]
    fn own_memory<M: Tile>(&self, tile: &SummedTile) -> (Disjoint<'a, f32>, usize, usize) {
        match tile.place {
            Place::PartialSums => {
                (self.partial_sums, self.own_sums(tile.row, tile.column, 0).start, self.partial_columns)
            }
            Place::C => unreachable!("the tile is in C"),
            Place::Buffer(number) => (self.tile_buffer, number * M::SIZE.rows * M::NR, M::NR),
        }
    }

    /// Addresses to prefetch during a part of a tile: C of the tile to the right, or of the first of the panel below; in a
    /// group of several panels of the tile below, or of the first of the next columns. Then the tiles of a column also prefetch
    /// an equal share each of the B after their own.
    #[inline(always)]
    fn next<M: Microkernel>(
        &self,
        tile: &SummedTile,
        part: Part,
        rows: &Range<usize>,
        b: PanelB<'_, M::B>,
    ) -> NextTile {
        let SummedTile { row, column, height, .. } = *tile;
        let (right, below) = (column + M::NR, row + height);
        let (next_row, next_column) = match self.group == 1 {
            true if right < self.columns.end => (row, right),
            true => (below, self.columns.start),
            false if below < rows.end => (below, column),
            false if !part.last => (rows.start, column),
            false if right < self.columns.end => (rows.start, right),
            false => (rows.end, self.columns.start),
        };
        let start = b.b.as_ptr().cast::<u8>();
        let step = b.k_stride.wrapping_mul(self.parts * size_of::<M::B>());
        let (b, b_step) = if self.group > 1 && b.k_stride == M::B_GROUPS {
            let after = step.wrapping_mul(part.depth);
            let share = after.wrapping_mul(row - rows.start) / rows.len();
            (start.wrapping_add(after.wrapping_add(share)), (step.wrapping_mul(height) / rows.len()).max(1))
        } else {
            (start, 0)
        };
        match self.c {
            Output::F32(c) if part.last || next_row == rows.start => {
                // May be past the last row: the address is only prefetched.
                let at = next_row.wrapping_mul(self.ldc).wrapping_add(next_column);
                let c = c.ptr(0).cast_const().wrapping_add(self.c_start.wrapping_add(at));
                let matrix = if self.last { self.epilogue.matrix() } else { None };
                NextTile { c, matrix: matrix.map_or(c, |matrix| matrix.wrapping_add(at)), ldc: self.ldc, b, b_step }
            }
            _ => NextTile { b, b_step, ..NextTile::NONE },
        }
    }

    /// Destination of a tile. Valid for the computed rows of NR floats, which only this task accesses.
    #[inline(always)]
    fn destination<M: Microkernel>(&self, tile: &SummedTile, on_the_way: usize) -> Destination<'a> {
        let (rows, width) = (M::SIZE.rows, M::NR);
        let partial = (2 * rows + on_the_way) * width;
        assert!(partial + area(rows, width) <= self.tile_buffer.len());
        let partial = self.tile_buffer.ptr(partial);
        if let (Output::F32(c), Place::C) = (self.c, tile.place) {
            let at = index(tile.row, self.ldc, tile.column).saturating_add(self.c_start);
            assert!(span(tile.height, width, self.ldc) <= c.len().saturating_sub(at));
            let (add, bias) = (self.addend != Addend::Nothing, self.epilogue.bias_in_registers(self.last));
            let bias = bias.map(|bias| &bias[tile.column..]);
            return Destination { c: c.ptr(at), ldc: self.ldc, add, bias, partial };
        }
        let (floats, start, leading) = self.own_memory::<M>(tile);
        assert!(start.saturating_add(span(rows, width, leading)) <= floats.len());
        Destination { c: floats.ptr(start), ldc: leading, add: false, bias: None, partial }
    }

    /// Applies the rest of the epilogue to a tile in C after the last block.
    #[inline(always)]
    fn finish_tile<M: Microkernel>(&self, m: M, tile: &SummedTile, mask: &Mask<'_>) {
        if let Output::F32(c) = self.c
            && self.last
            && !M::QUANTIZED
            && self.epilogue.has_more()
        {
            let position = [tile.row * self.ldc + tile.column, self.ldc, tile.column];
            // SAFETY: `destination` bounds the tile in C, and `Epilogue::check` requires the epilogue's matrices to be
            // as long as C; batches, which start elsewhere in C, have no epilogue with matrices. Only this task
            // accesses its rectangle.
            unsafe {
                let first = c.ptr(position[0]).cast_const();
                let sums = Sums { first, leading: self.ldc, bias: None };
                self.epilogue.finish_tile(m.simd(), sums, c.ptr(0), position, [tile.height, M::SIZE.vectors], mask);
            }
        }
    }

    /// Applies the epilogue to a tile outside of C and stores it, if C is bf16 and the tile has all its columns and its last
    /// sums; otherwise returns false.
    #[inline(always)]
    fn finish_buffer<M: Microkernel>(&self, m: M, tile: &SummedTile, mask: &Mask<'_>) -> bool {
        let SummedTile { row, column, height, .. } = *tile;
        let Output::Bf16(c) = self.c else { return false };
        let has_all_sums = self.last && (self.addend == Addend::Nothing || M::FROM_OLD_VALUES);
        if !has_all_sums || M::QUANTIZED || column + M::NR > self.columns.end {
            return false;
        }
        let position = [self.c_start + row * self.ldc + column, self.ldc, column];
        assert!(position[0].saturating_add(span(height, M::NR, self.ldc)) <= c.len());
        let bias = self.epilogue.bias_in_registers(true);
        let (floats, start, leading) = self.own_memory::<M>(tile);
        let sums = Sums { first: floats.ptr(start), leading, bias };
        // SAFETY: the assert bounds the tile in C. `Epilogue::check` requires the epilogue's matrices to be as long as C and stored
        // as it is; batches, which start elsewhere in C, have no epilogue with matrices. Only this task accesses its rectangle,
        // and its own memory holds the tile (`destination`).
        unsafe {
            self.epilogue.finish_tile(m.simd(), sums, c.ptr(0), position, [height, M::SIZE.vectors], mask);
        }
        true
    }

    /// Position of `count` columns of a row in the thread's buffer of partial sums.
    #[inline(always)]
    fn own_sums(&self, row: usize, column: usize, count: usize) -> Range<usize> {
        let start = (row - self.rows.start) * self.partial_columns + column - self.columns.start;
        start..start + count
    }

    /// Old values of `count` columns of a row, to which sums are added.
    ///
    /// # Safety
    /// Only this task accesses the columns of C and of the buffer.
    #[inline(always)]
    unsafe fn old_values<S: Simd>(&self, simd: S, row: usize, column: usize, count: usize) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe {
            match (self.addend, self.c) {
                (Addend::PartialSums, Output::Bf16(_)) => {
                    simd.load_partial(self.partial_sums.slice(self.own_sums(row, column, count)))
                }
                _ => self.c.load(simd, self.c_start + row * self.ldc + column, count),
            }
        }
    }

    /// Loads the old values of a tile that is not computed in C; zeros where C has no rows or columns.
    #[inline(always)]
    fn load_old_values<M: Tile>(&self, simd: M::Simd, tile: &SummedTile) {
        let (floats, start, leading) = self.own_memory::<M>(tile);
        for i in 0..M::SIZE.rows {
            for at in (0..M::NR).step_by(M::Simd::LANES) {
                let (row, column) = (tile.row + i, tile.column + at);
                let count = M::Simd::LANES.min(self.columns.end.saturating_sub(column));
                // SAFETY: the memory is this thread's, and no other reference to it is alive; a task accesses only its
                // rectangle of C.
                unsafe {
                    let exists = i < tile.height && count > 0;
                    let old = if exists { self.old_values(simd, row, column, count) } else { simd.zero() };
                    let to = start + i * leading + at;
                    simd.store(floats.slice(to..to + M::Simd::LANES), old);
                }
            }
        }
    }

    /// Scales a row of a tile if it is quantized, adds the old values, applies the epilogue after the last block, and stores
    /// the row.
    #[inline(always)]
    fn finish_row<M: Tile>(&self, simd: M::Simd, row: usize, column: usize, sums: &[f32], mask: &[f32]) {
        for first in (0..sums.len().min(self.columns.end - column)).step_by(M::Simd::LANES) {
            let column = column + first;
            let count = M::Simd::LANES.min(self.columns.end - column);
            let position = Position { column, at: row * self.ldc + column, count };
            let at = self.c_start + position.at;
            let own = self.own_sums(row, column, count);
            let mut value = simd.load(&sums[first..]);
            if M::STORES_INTEGERS {
                value = simd.int_to_float(simd.as_bits(value));
            }
            if let Some(scales) = self.scales {
                value = scales.apply(simd, value, row, column..column + count);
            }
            // SAFETY: a task accesses only its rectangle of C and of the matrices like C, and its thread's buffer of
            // sums.
            unsafe {
                if !M::FROM_OLD_VALUES && self.addend != Addend::Nothing {
                    value = simd.add(self.old_values(simd, row, column, count), value);
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
