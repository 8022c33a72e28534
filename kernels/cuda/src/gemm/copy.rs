//! `cp.async` pipeline: copies of the k-tiles of A and B into the stages of shared memory.

use super::{
    position::{Operands, Side, Sizes, TilePosition},
    tiles::Blocking,
};
use ptx::{Address, B16, B32, Compare, Entry, Global, Ptr, Reg, S32, Shared, U32, U64};

/// One thread's copies of one operand: a chunk of 16 bytes in every `rows_at_once`-th row of a k-tile.
pub(super) struct Loader {
    side: Side,
    /// Source of the thread's chunk in the k-tile's first row; advances by `stride` per k-tile.
    from: Ptr<Global>,
    /// Bytes from `from` to the chunk of each of the thread's rows.
    rows: Vec<Reg<U32>>,
    /// Destination of the first chunk in the first stage.
    to: Ptr<Shared>,
    /// Bytes from a k-tile to the next.
    stride: Reg<U64>,
    /// Steps of k left: from the thread's chunk on if k runs along rows, else from its first row on. Decreases by the depth
    /// of each k-tile.
    left: Reg<S32>,
    /// Bytes of the chunk inside m or n, if k runs down columns.
    width: Option<Reg<U32>>,
}

impl Loader {
    pub(super) fn new(
        k: &Entry,
        side: Side,
        operands: &Operands,
        sizes: &Sizes,
        position: &TilePosition,
        base: Ptr<Shared>,
        thread: Reg<U32>,
    ) -> Self {
        let chunks = side.tile.chunks();
        assert!(side.rows_at_once().is_multiple_of(8) && side.tile.rows.is_multiple_of(side.rows_at_once()));
        let (row, chunk) = (k.shr(thread, chunks.ilog2()), k.and(thread, chunks - 1));
        let column = k.shl(chunk, 3);
        let to = side.tile.chunk_address(k, k.offset(base, side.offset), row, chunk);
        let matrix = operands.layer(k, sizes, side.operand);
        let (origin, extent) = (position.origin[side.operand], [sizes.m, sizes.n][side.operand]);
        let leading = sizes.leading[side.operand];
        let pitch = k.shl(leading, 1);
        let rows = (0..side.tile.rows / side.rows_at_once()).map(|i| k.add(row, i * side.rows_at_once()));
        let signed = |value: Reg<U32>| k.reinterpret::<U32, S32>(value);
        let at = |row, column| k.mov_pointer(k.index(k.index(matrix, row, pitch), column, 2u32));
        if side.along_k {
            // Rows past the last read the last row; their results are never stored.
            let last = k.sub(k.sub(extent, 1u32), origin);
            let first = k.add(position.k_begin, column);
            let rows = rows.map(|row| k.mul_lo(k.min_u32(row, last), pitch)).collect();
            let left = k.variable("left", signed(k.sub(position.k_end, first)));
            let stride = k.mov(u64::from(2 * side.tile.columns));
            Self { side, from: at(origin, first), rows, to, stride, left, width: None }
        } else {
            let first = k.add(origin, column);
            let rows = rows.map(|row| k.mul_lo(row, pitch)).collect();
            let width = bytes_left(k, signed(k.sub(extent, first)));
            let left = k.variable("left", signed(k.sub(k.sub(position.k_end, position.k_begin), row)));
            let stride = k.mul_wide(pitch, side.tile.rows);
            Self { side, from: at(position.k_begin, first), rows, to, stride, left, width: Some(width) }
        }
    }

    /// Copies the next k-tile into the stage `stage` bytes after the first, zero-filled outside the operand, and
    /// advances.
    pub(super) fn issue(&self, k: &Entry, stage: Reg<U32>) {
        let stage = k.offset(self.to, stage);
        let along = self.width.is_none().then(|| bytes_left(k, self.left));
        for (i, &bytes) in self.rows.iter().enumerate() {
            let from = k.offset(self.from, k.cvt_u64(bytes));
            let row = i as u32 * self.side.rows_at_once();
            let bytes = along.unwrap_or_else(|| {
                let exists = k.setp(Compare::Gt, self.left, row as i32);
                k.selp(self.width.expect("width is set unless k runs along rows"), 0u32, exists)
            });
            let to = self.side.tile.step(row, 0).take(k, stage);
            match self.side.aligned {
                true => k.cp_async_zero_fill(to, from.at(0), bytes),
                false => copy_elements(k, to, from, bytes),
            }
        }
        k.advance(self.from, self.stride);
        let depth = if self.side.along_k { self.side.tile.columns } else { self.side.tile.rows };
        k.add_into(self.left, self.left, -(depth as i32));
    }
}

/// Valid bytes, 0 to 16, of a chunk of 16-bit elements of which `elements` remain.
fn bytes_left(k: &Entry, elements: Reg<S32>) -> Reg<U32> {
    let within = k.max_s32(k.min_s32(elements, 8), 0);
    k.shl(k.reinterpret::<S32, U32>(within), 1)
}

/// Copies a chunk of 16-bit elements one by one through registers, for unaligned rows.
pub(crate) fn copy_elements(k: &Entry, to: Address<Shared>, from: Ptr<Global>, bytes: Reg<U32>) {
    let element = |i: u32| {
        let value: Reg<B16> = k.split(k.mov::<B32>(0u32))[0];
        let exists = k.setp(Compare::Gt, bytes, 2 * i);
        k.when(exists, || k.ld_into(from.at(2 * i as i32), [value]));
        value
    };
    let halves: [Reg<B16>; 8] = std::array::from_fn(|i| element(i as u32));
    let words: [Reg<B32>; 4] = std::array::from_fn(|i| k.join(halves[2 * i], halves[2 * i + 1]));
    k.st(to, words);
}

/// Pipeline of `blocking.stages` stages.
pub(super) struct Pipeline<'a> {
    pub k: &'a Entry,
    pub blocking: Blocking,
    pub stage_bytes: u32,
    pub loaders: &'a [Loader; 2],
}

impl Pipeline<'_> {
    /// Streams the k-tiles through the stages and calls `multiply` with the byte offset of each k-tile's stage.
    /// Afterwards all threads may reuse shared memory.
    pub(super) fn run(&self, position: &TilePosition, multiply: impl FnOnce(Reg<U32>)) {
        let Self { k, blocking, .. } = *self;
        let ahead = blocking.stages - 1;
        k.comment("the first slices");
        let write = k.variable::<U32>("write", 0u32);
        for i in 0..ahead {
            k.if_(k.setp(Compare::Gt, position.k_tiles, i), || self.issue(write));
            self.commit();
        }
        let read = k.variable::<U32>("read", 0u32);
        k.comment("every slice, with the copy of a later one beside it");
        k.for_(0u32, position.k_tiles, 1u32, |i| {
            if self.copies_are_asynchronous() {
                k.cp_async_wait(ahead - 1);
            }
            k.bar_sync();
            k.if_(k.lt(k.add(i, ahead), position.k_tiles), || self.issue(write));
            self.commit();
            multiply(read);
            self.advance(read);
        });
        // All copies have been waited for: none was issued past the last k-tile.
        k.bar_sync();
    }

    /// True if copies are `cp.async`. Unaligned rows go through registers and need only the barrier.
    fn copies_are_asynchronous(&self) -> bool {
        self.loaders.iter().any(|loader| loader.side.aligned)
    }

    fn commit(&self) {
        if self.copies_are_asynchronous() {
            self.k.cp_async_commit();
        }
    }

    fn issue(&self, write: Reg<U32>) {
        self.loaders.iter().for_each(|loader| loader.issue(self.k, write));
        self.advance(write);
    }

    /// Advances `stage` to the next stage, wrapping after the last.
    fn advance(&self, stage: Reg<U32>) {
        let k = self.k;
        let next = k.add(stage, self.stage_bytes);
        let end = k.setp(Compare::Eq, next, self.stage_bytes * self.blocking.stages);
        k.assign(stage, k.selp(0u32, next, end));
    }
}
