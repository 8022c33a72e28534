//! Product of f32 operands with fused multiply-adds (SIMT): each sum is one chain in order of p.
//!
//! ```text
//! 256 threads, a tile of 64 x 64, k-tiles of 16; thread (ty, tx) computes rows 4·ty .. +4, columns 4·tx .. +4
//!
//! k-tile 0 -> registers -> stage 0; __syncthreads();
//! for (i = 0; i < k_tiles; i++) {
//!     k-tile i + 1 -> registers                                   // in flight while this one is multiplied
//!     for (p = 0; p < 16; p++) sum[4][4] += A[p][4·ty ..] * B[p][4·tx ..];     // two loads of 16 bytes, 16 multiply-adds
//!     registers -> stage (i + 1) % 2; __syncthreads();
//! }
//!
//! a stage: A as [16][64 + 4], B as [16][64 + 4]; four padding elements spread the p of a column over the banks
//! ```
//!
//! The tensor cores have no f32: their tf32 loses 13 bits. This kernel is for parity with the CPU and for operands kept
//! in f32, not for speed: at best half of the 67 TFLOP/s that an H200 has without tensor cores.

use super::{
    epilogue::{EpilogueEmitter, EpilogueOptions},
    position::{Operands, ProductArgs, Sizes, TilePosition},
    tiles::Blocking,
};
use ptx::{Entry, F32, Global, Pred, Ptr, Reg, Shared, Special, Storage, U32, U64};

/// Blocking of this kernel.
const BLOCKING: Blocking = Blocking::SINGLE;
/// Bytes from one p of a k-tile to the next.
const PITCH: u32 = (BLOCKING.m + 4) * 4;
/// Bytes of one operand's k-tile.
const SLICE: u32 = BLOCKING.k * PITCH;
/// Shared memory of a block.
pub(super) const SHARED_BYTES: u32 = BLOCKING.stages * 2 * SLICE;
/// Elements of one operand's k-tile that a thread copies.
const COPIED: u32 = BLOCKING.m * BLOCKING.k / BLOCKING.threads();

/// One thread's copies of one operand.
struct Loader {
    along_k: bool,
    from: Vec<Ptr<Global>>,
    /// True if the thread's column exists. `None` along k, where rows past the last read the last row.
    exists: Option<Reg<Pred>>,
    /// p of the thread's first element; advances with the k-tiles.
    depth: Reg<U32>,
    end: Reg<U32>,
    stride: Reg<U64>,
    to: Ptr<Shared>,
}

impl Loader {
    fn new(
        k: &Entry,
        operand: usize,
        along_k: bool,
        operands: &Operands,
        sizes: &Sizes,
        position: &TilePosition,
        base: Ptr<Shared>,
    ) -> Self {
        let thread = k.special(Special::TidX);
        let matrix = operands.layer(k, sizes, operand);
        let (origin, extent) = (position.origin[operand], [sizes.m, sizes.n][operand]);
        let pitch = k.shl(sizes.leading[operand], 2);
        let base = k.offset(base, operand as u32 * SLICE);
        let at = |row, column| k.mov_pointer(k.index(k.index(matrix, row, pitch), column, 4u32));
        let end = position.k_end;
        if along_k {
            // p = thread mod 16, rows thread / 16, + 16, ...
            let (row, p) = (k.shr(thread, 4), k.and(thread, 15u32));
            let depth = k.variable("depth", k.add(position.k_begin, p));
            let last = k.sub(extent, 1u32);
            let from = (0..COPIED).map(|i| at(k.min_u32(k.add(k.add(origin, row), 16 * i), last), depth)).collect();
            let to = k.index(k.index(base, p, PITCH), row, 4u32);
            Self { along_k, from, exists: None, depth, end, stride: k.mov(u64::from(4 * BLOCKING.k)), to }
        } else {
            // Column thread mod 64, p = thread / 64, + 4, ...
            let (p, column) = (k.shr(thread, 6), k.and(thread, 63u32));
            let depth = k.variable("depth", k.add(position.k_begin, p));
            let column_of_c = k.add(origin, column);
            let from = (0..COPIED).map(|i| at(k.add(depth, 4 * i), column_of_c)).collect();
            let to = k.index(k.index(base, p, PITCH), column, 4u32);
            let exists = Some(k.lt(column_of_c, extent));
            Self { along_k, from, exists, depth, end, stride: k.mul_wide(pitch, BLOCKING.k), to }
        }
    }

    /// Loads the thread's elements of the next k-tile, zero outside the operand, and advances.
    fn load(&self, k: &Entry) -> Vec<Reg<F32>> {
        let element = |(i, &from): (u32, &Ptr<Global>)| {
            let value = k.mov(0.0f32);
            let within = match self.exists {
                None => k.lt(self.depth, self.end),
                Some(exists) => k.and(exists, k.lt(k.add(self.depth, 4 * i), self.end)),
            };
            k.when(within, || k.ld_into(from.at(0), [value]));
            k.advance(from, self.stride);
            value
        };
        let values = (0u32..).zip(&self.from).map(element).collect();
        k.add_into(self.depth, self.depth, BLOCKING.k);
        values
    }

    fn store(&self, k: &Entry, stage: Reg<U32>, values: Vec<Reg<F32>>) {
        let to = k.offset(self.to, stage);
        let step = if self.along_k { 16 * 4 } else { 4 * PITCH };
        for (i, value) in (0..).zip(values) {
            k.st(to.at(i * step as i32), [value]);
        }
    }
}

/// Emits the product; `along_k` as in [`Side`](super::position::Side), of A and B.
pub(super) fn product(k: &Entry, options: EpilogueOptions, along_k: [bool; 2]) {
    let params = ProductArgs::declare(k, &|name| options.has(name));
    let operands = Operands::new(&params, Storage::F32, options.output);
    let sizes = Sizes::load(k, &params);
    let epilogue = EpilogueEmitter::new(options, params.epilogue);
    let position = TilePosition::find(k, BLOCKING, &sizes);
    let base = k.dynamic_shared(128);
    let loaders = [0, 1].map(|side| Loader::new(k, side, along_k[side], &operands, &sizes, &position, base));
    let thread = k.special(Special::TidX);
    let (down, along) = (k.shr(thread, 4), k.and(thread, 15u32));
    let (rows, columns) = (k.index(base, down, 16), k.index(k.offset(base, SLICE), along, 16));
    let sums = k.registers::<F32>("acc", 16);
    sums.iter().for_each(|&sum| k.assign(sum, 0.0f32));

    k.comment("the first slice");
    let stage = k.variable::<U32>("stage", 0u32);
    loaders.iter().for_each(|loader| loader.store(k, stage, loader.load(k)));
    k.bar_sync();
    k.comment("every slice, the next one under way");
    k.for_(0u32, position.k_tiles, 1u32, |_| {
        let next = loaders.each_ref().map(|loader| loader.load(k));
        let (rows, columns) = (k.offset(rows, stage), k.offset(columns, stage));
        for p in 0..BLOCKING.k {
            let at = (p * PITCH) as i32;
            let (a, b) = (k.ld::<F32, 4>(rows.at(at)), k.ld::<F32, 4>(columns.at(at)));
            for (i, &sum) in sums.iter().enumerate() {
                k.fma_into(sum, a[i / 4], b[i % 4], sum);
            }
        }
        k.assign(stage, k.sub(2 * SLICE, stage));
        loaders.iter().zip(next).for_each(|(loader, values)| loader.store(k, stage, values));
        k.bar_sync();
    });

    k.comment("sums -> shared memory");
    let tile = EpilogueEmitter::tile(BLOCKING);
    for (i, sums) in (0u32..).zip(sums.chunks_exact(4)) {
        let row = k.mad_lo(down, 4, i);
        k.st(tile.chunk_address(k, base, row, along).at(0), [sums[0], sums[1], sums[2], sums[3]]);
    }
    k.bar_sync();
    epilogue.write(k, BLOCKING, &operands, base, thread, &sizes, &position);
}
