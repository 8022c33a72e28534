//! Code shared by the attention kernels: sequences, tiles of 64 rows in shared memory, products of fragments.

use super::arguments::AttentionParams;
use super::sm80::{Flash, THREADS, TILE};
use crate::arguments::Load;
use crate::{
    dropout::{Bytes, Mask, MaskParams},
    gemm::{
        copy::copy_elements,
        position::{lane_start, load_fragment},
    },
};
use ptx::{
    Address, Compare, Entry, F32, Global, Pair, Param, PointerParam, Ptr, Reg, Shared, Special, Storage, Tile, U32,
    fragment,
};

/// Declared parameters of the inputs: matrices (none with tensor maps), sequences and sizes.
pub(super) struct InputParams {
    matrices: Vec<PointerParam>,
    cu_seqlens: PointerParam,
    keys: PointerParam,
    sizes: [Param<U32>; 2],
}

/// Unwraps a parameter that the kernel declares.
pub(super) fn required<T>(param: &Option<T>) -> &T {
    param.as_ref().expect("the kernel has the parameter")
}

/// Sizes common to all kernels.
pub(super) struct Sizes {
    pub ld: Reg<U32>,
    pub head_size: Reg<U32>,
}

impl InputParams {
    pub(super) fn new(params: &AttentionParams) -> Self {
        let AttentionParams { q, k, v, dout, cu_seqlens, keys, ld, head_size, .. } = params;
        let matrices = [q, k, v, dout].into_iter().flatten().cloned().collect();
        let sizes = [ld, head_size].map(Param::clone);
        Self { matrices, cu_seqlens: cu_seqlens.clone(), keys: keys.clone(), sizes }
    }

    pub(super) fn sizes(&self, k: &Entry) -> Sizes {
        let [ld, head_size] = [0, 1].map(|i| self.sizes[i].load(k));
        Sizes { ld, head_size }
    }

    /// Address of q (0), k (1), v (2) or dout (3).
    pub(super) fn matrix(&self, k: &Entry, i: usize) -> Ptr<Global> {
        self.matrices[i].load(k)
    }
}

/// Sequence and head of a block.
#[derive(Clone, Copy)]
pub(super) struct Sequence {
    /// First token.
    pub start: Reg<U32>,
    /// Tokens.
    pub length: Reg<U32>,
    /// Tokens that are keys.
    pub keys: Reg<U32>,
    pub head: Reg<U32>,
    pub heads: Reg<U32>,
    /// First column of the head.
    pub column: Reg<U32>,
}

impl Sequence {
    pub(super) fn find(k: &Entry, inputs: &InputParams, sizes: &Sizes) -> Self {
        Self::of(k, inputs, sizes, k.special(Special::CtaidZ))
    }

    /// Sequence `b` and the block's head.
    pub(super) fn of(k: &Entry, inputs: &InputParams, sizes: &Sizes, b: Reg<U32>) -> Self {
        let [cu_seqlens, keys] = [&inputs.cu_seqlens, &inputs.keys].map(|param| param.load(k));
        let head = k.special(Special::CtaidY);
        let bounds = k.index(cu_seqlens, b, 4u32);
        let ([start], [end]) = (k.ld::<U32, 1>(bounds.at(0)), k.ld::<U32, 1>(bounds.at(4)));
        let [keys] = k.ld::<U32, 1>(k.index(keys, b, 4u32).at(0));
        let column = k.mul_lo(head, sizes.head_size);
        Self { start, length: k.sub(end, start), keys, head, heads: k.special(Special::NctaidY), column }
    }
}

/// Position of a thread in its warp and tile.
pub(super) struct Warp {
    pub thread: Reg<U32>,
    pub lane: Reg<U32>,
    /// First row of the warp in its tile.
    pub row: Reg<U32>,
    /// lane / 4: a fragment's row that the lane holds; the other is eight below.
    pub group: Reg<U32>,
    /// lane mod 4: index of the lane's pair of columns.
    pub pair: Reg<U32>,
}

impl Warp {
    pub(super) fn find(k: &Entry) -> Self {
        let thread = k.special(Special::TidX);
        let lane = k.and(thread, 31u32);
        let row = k.shl(k.shr(thread, 5), 4);
        Self { thread, lane, row, group: k.shr(lane, 2), pair: k.and(lane, 3u32) }
    }

    /// Indices of the lane's two rows, if the tile starts at row `first`.
    pub(super) fn rows(&self, k: &Entry, first: Reg<U32>) -> [Reg<U32>; 2] {
        let upper = k.add(k.add(first, self.row), self.group);
        [upper, k.add(upper, 8u32)]
    }
}

/// One thread's share of the copies of a matrix's tiles to shared memory.
pub(super) struct Copier {
    tile: Tile,
    aligned: bool,
    /// Address of the thread's chunk in row `row` of the sequence.
    from: Ptr<Global>,
    /// Bytes from a row to the next.
    pitch: Reg<U32>,
    /// First row of the thread in a tile.
    row: Reg<U32>,
    /// Offset of its chunk from the tile's start, bytes.
    place: Reg<U32>,
    /// Bytes of the chunk that are inside the head.
    width: Reg<U32>,
}

impl Copier {
    pub(super) fn new(
        k: &Entry,
        kernel: &Flash,
        layout: &Layout,
        sizes: &Sizes,
        sequence: &Sequence,
        matrix: Ptr<Global>,
        thread: Reg<U32>,
    ) -> Self {
        Self::with_ld(k, kernel, layout, sizes.ld, sizes, sequence, matrix, thread)
    }

    /// [`Copier::new`] for a matrix with rows `ld` elements apart.
    pub(super) fn with_ld(
        k: &Entry,
        kernel: &Flash,
        layout: &Layout,
        ld: Reg<U32>,
        sizes: &Sizes,
        sequence: &Sequence,
        matrix: Ptr<Global>,
        thread: Reg<U32>,
    ) -> Self {
        let tile = layout.tile;
        let (row, chunk) = (k.shr(thread, tile.chunks().ilog2()), k.and(thread, tile.chunks() - 1));
        let pitch = k.shl(ld, 1);
        let column = k.shl(chunk, 3);
        let from = k.index(matrix, k.add(sequence.start, row), pitch);
        let from = k.index(from, k.add(sequence.column, column), 2u32);
        let zero = k.pointer(k.mov(0u32));
        let place = k.address_of(tile.chunk_address(k, zero, row, chunk));
        // min(max(D - column, 0), 8) elements in unsigned arithmetic: column is capped first.
        let left = k.sub(sizes.head_size, k.min_u32(column, sizes.head_size));
        let width = k.shl(k.min_u32(left, 8u32), 1);
        Self { tile, aligned: kernel.aligned, from, pitch, row, place, width }
    }

    /// Copies rows `first ..` of the sequence into the tile at `to`; rows from `end` on are filled with zeros.
    pub(super) fn copy(&self, k: &Entry, to: Ptr<Shared>, first: Reg<U32>, end: Reg<U32>) {
        let at_once = THREADS / self.tile.chunks();
        let to = k.offset(to, self.place);
        let row = k.add(first, self.row);
        for i in 0..self.tile.rows / at_once {
            let exists = k.lt(k.add(row, i * at_once), end);
            let bytes = k.selp(self.width, 0u32, exists);
            let from = k.index(self.from, k.add(first, i * at_once), self.pitch);
            let to = self.tile.step(i * at_once, 0).take(k, to);
            match self.aligned {
                true => k.cp_async_zero_fill(to, from.at(0), bytes),
                false => copy_elements(k, to, from, bytes),
            }
        }
    }
}

/// Layout of a tile: 64 rows of one head.
pub(super) struct Layout {
    pub tile: Tile,
}

impl Layout {
    pub(super) const fn new(padded: u32) -> Self {
        Self { tile: Tile::of_halves(TILE, padded) }
    }

    /// Address of this lane's first fragment in the tile at `base`, from row `row` on.
    pub(super) fn start(
        &self,
        k: &Entry,
        load: fragment::Load,
        base: Ptr<Shared>,
        warp: &Warp,
        row: Reg<U32>,
    ) -> Ptr<Shared> {
        let (lane_row, chunk) = lane_start(k, load, warp.lane);
        self.tile.chunk_address(k, base, k.add(row, lane_row), chunk)
    }

    /// s [16, W] += a [16, D] · (rows `first .. first + W` of b)ᵀ; `a` and `b` are [`Layout::start`] in the two tiles.
    pub(super) fn times_transposed<P: Pair>(
        &self,
        k: &Entry,
        s: &[Reg<F32>],
        a: Ptr<Shared>,
        b: Ptr<Shared>,
        first: u32,
    ) {
        for step in 0..self.tile.columns / 16 {
            let a: [Reg<P>; 4] = load_fragment(k, fragment::Load::A, &self.tile, a, 0, step);
            for (i, eight) in (first / 16..).zip(s.chunks_exact(8)) {
                let b = load_fragment(k, fragment::Load::BTransposed, &self.tile, b, i, step);
                multiply(k, eight, a, b);
            }
        }
    }

    /// o [16, D] += p [16, W] · (rows `first .. first + W` of v); `p` as operands, `v` is [`Layout::start`] in its tile.
    pub(super) fn times<P: Pair>(&self, k: &Entry, o: &[Reg<F32>], p: &[[Reg<P>; 4]], v: Ptr<Shared>, first: u32) {
        for (step, &p) in (first / 16..).zip(p) {
            for (i, eight) in (0..).zip(o.chunks_exact(8)) {
                multiply(k, eight, p, load_fragment(k, fragment::Load::B, &self.tile, v, i, step));
            }
        }
    }

    /// Rounds accumulators [16, W] to A operands [16, 16]: the registers of two neighboring [16, 8] accumulators are those
    /// of one operand.
    pub(super) fn operand<P: Pair>(&self, k: &Entry, storage: Storage, s: &[Reg<F32>]) -> Vec<[Reg<P>; 4]> {
        let narrow = |low, high| k.reinterpret(k.narrow(storage, low, high));
        let of = |s: &[Reg<F32>]| [0, 2, 4, 6].map(|i| narrow(s[i], s[i + 1]));
        s.chunks_exact(8).map(of).collect()
    }

    /// Sets the scores of keys from `keys` on to -∞, if the tile at `key` has any: 64 keys, or as many as `s` has columns.
    pub(super) fn hide_beyond(&self, k: &Entry, s: &[Reg<F32>], key: Reg<U32>, keys: Reg<U32>, lane: Reg<U32>) {
        let tile = TILE.max(2 * s.len() as u32);
        k.if_(k.setp(Compare::Gt, k.add(key, tile), keys), || {
            let first = k.add(key, k.shl(k.and(lane, 3u32), 1));
            for (i, four) in (0..).zip(s.chunks_exact(4)) {
                for j in 0..2 {
                    let exists = k.lt(k.add(first, 8 * i + j), keys);
                    for s in [four[j as usize], four[j as usize + 2]] {
                        k.assign(s, k.selp(s, f32::NEG_INFINITY, exists));
                    }
                }
            }
        });
    }

    /// Rounds a warp's rows [16, D] and stores them to rows `first ..` of the sequence in `matrix`, with rows `pitch`
    /// elements apart, through the warp's own rows of the tile at `base`.
    pub(super) fn store_rows(
        &self,
        k: &Entry,
        kernel: &Flash,
        base: Ptr<Shared>,
        warp: &Warp,
        o: &[Reg<F32>],
        matrix: Ptr<Global>,
        pitch: Reg<U32>,
        first: Reg<U32>,
        sequence: &Sequence,
        sizes: &Sizes,
    ) {
        k.warp_sync();
        self.stage_rows(k, kernel.storage, base, warp, o);
        k.warp_sync();
        self.copy_rows(k, kernel, base, warp, matrix, pitch, first, sequence, sizes);
    }

    /// Rounds a warp's rows [16, D] and stores them in the warp's own rows of the tile at `base`.
    pub(super) fn stage_rows(&self, k: &Entry, storage: Storage, base: Ptr<Shared>, warp: &Warp, o: &[Reg<F32>]) {
        let tile = self.tile;
        let row = k.add(warp.row, warp.group);
        let start = tile.chunk_address(k, base, row, k.mov(0u32));
        let start = k.index(start, warp.pair, 4u32);
        for (i, four) in (0u32..).zip(o.chunks_exact(4)) {
            k.st(tile.step(0, 8 * i).take(k, start), [k.narrow(storage, four[0], four[1])]);
            k.st(tile.step(8, 8 * i).take(k, start), [k.narrow(storage, four[2], four[3])]);
        }
    }

    /// Second half of [`Layout::store_rows`]: copies the warp's rows of the tile at `base` to `matrix`.
    pub(super) fn copy_rows(
        &self,
        k: &Entry,
        kernel: &Flash,
        base: Ptr<Shared>,
        warp: &Warp,
        matrix: Ptr<Global>,
        pitch: Reg<U32>,
        first: Reg<U32>,
        sequence: &Sequence,
        sizes: &Sizes,
    ) {
        let tile = self.tile;
        let chunks = tile.chunks();
        let (lane_row, chunk) = (k.shr(warp.lane, chunks.ilog2()), k.and(warp.lane, chunks - 1));
        let column = k.shl(chunk, 3);
        let row = k.add(warp.row, lane_row);
        let at_once = 32 / chunks;
        let end = k.add(sequence.column, sizes.head_size);
        for i in 0..16 / at_once {
            let row = k.add(row, i * at_once);
            let from = tile.chunk_address(k, base, row, chunk);
            let token = k.add(k.add(sequence.start, first), row);
            let place = k.add(sequence.column, column);
            let to: Address<Global> = k.index(k.index(matrix, token, k.shl(pitch, 1)), place, 2u32).at(0);
            let exists = k.and(k.lt(k.add(first, row), sequence.length), k.lt(place, end));
            k.if_(exists, || {
                let words = k.ld::<ptx::B32, 4>(from.at(0));
                if kernel.aligned {
                    k.st(to, words);
                    return;
                }
                for (i, half) in (0..).zip(words.into_iter().flat_map(|word| k.split(word))) {
                    k.when(k.lt(k.add(place, i), end), || k.st(to.plus(2 * i as i32), [half]));
                }
            });
        }
    }
}

/// Multiplies one half (0: rows g, 1: rows g + 8) of the fragments by `factor`.
pub(super) fn scale_half(k: &Entry, fragments: &[Reg<F32>], half: usize, factor: Reg<F32>) {
    for four in fragments.chunks_exact(4) {
        for &x in &four[2 * half..2 * half + 2] {
            k.mul_into(x, x, factor);
        }
    }
}

/// Two neighboring accumulators [16, 8] += a · b.
fn multiply<P: Pair>(k: &Entry, sums: &[Reg<F32>], a: [Reg<P>; 4], b: [Reg<P>; 4]) {
    k.mma([sums[0], sums[1], sums[2], sums[3]], a, [b[0], b[1]]);
    k.mma([sums[4], sums[5], sums[6], sums[7]], a, [b[2], b[3]]);
}

/// Declared parameters of the probabilities' dropout, if any.
pub(super) struct SoftmaxMask(Option<MaskParams>);

/// Dropout of the lane's two rows of probabilities.
pub(super) struct RowMask(Option<(Mask, Bytes, [Reg<U32>; 2])>);

/// Dropout of the lane's probabilities of 64 keys: the words of one counter for each of its two rows.
pub(super) struct TileMask {
    bytes: Bytes,
    words: [[Reg<U32>; 4]; 2],
}

impl SoftmaxMask {
    pub(super) fn new(params: &AttentionParams) -> Self {
        Self(params.dropout.clone())
    }

    pub(super) fn mask(&self, k: &Entry) -> Option<Mask> {
        self.0.clone().map(|params| params.load(k))
    }

    /// Loads the mask of the lane's `rows`, counted from the start of the sequence.
    pub(super) fn load(&self, k: &Entry, sequence: &Sequence, rows: [Reg<U32>; 2]) -> RowMask {
        let of = |row| k.mad_lo(k.add(sequence.start, row), sequence.heads, sequence.head);
        RowMask(self.mask(k).map(|mask| {
            let bytes = mask.bytes(k);
            (mask, bytes, rows.map(of))
        }))
    }
}

impl RowMask {
    /// Draws the mask of keys `key .. key + 64`; `None` without dropout.
    pub(super) fn draw(&self, k: &Entry, key: Reg<U32>, lane: Reg<U32>) -> Option<TileMask> {
        let (mask, bytes, rows) = self.0.as_ref()?;
        // The lane's keys 2t, 2t + 1 of every eight of the tile, t = lane mod 4, are the bytes of counter 4·(key / 64) + t.
        let counter = k.add(k.shr(key, 4), k.and(lane, 3u32));
        Some(TileMask { bytes: *bytes, words: rows.map(|row| mask.words(k, row, counter)) })
    }

    /// Multiplies probabilities by the mask.
    pub(super) fn apply(&self, k: &Entry, p: &[Reg<F32>], key: Reg<U32>, lane: Reg<U32>) {
        if let Some(mask) = self.draw(k, key, lane) {
            p.iter().enumerate().for_each(|(i, &p)| k.mul_into(p, p, mask.factor(k, i)));
        }
    }
}

impl TileMask {
    /// Factor of the lane's probability in register `i` of the tile. The comparison is emitted here, because a tile's words
    /// take 8 registers and its factors 32.
    pub(super) fn factor(&self, k: &Entry, i: usize) -> Reg<F32> {
        let (eight, half, odd) = (i / 4, i / 2 % 2, i % 2);
        self.bytes.multiplier(k, self.words[half][eight / 2], eight % 2 * 2 + odd)
    }
}
