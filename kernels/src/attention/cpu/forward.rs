//! Forward pass, one task: a block of queries of one head against all keys of their sequence.
//!
//! ```text
//! for each 64 keys:                    K, V packed once for the block's queries
//!   for each panel of 64 queries:      Qᵀ packed and transposed the first time
//!     Sᵀ[key, query] = K · Qᵀ          tile in L1
//!     P = exp(scale · Sᵀ - M)          M the running maximum of scale · Sᵀ; old sums are rescaled
//!     O[query, d]   += Pᵀ · V
//!     with the last keys: O / Σ P -> out,   M + ln Σ P -> lse
//! ```
//!
//! Lanes are queries, so maximum and sum run down the columns of the tile, without reductions across lanes.

use super::exponential::{exp, ln};
use super::mask::{Multiply, PanelMask};
use super::multiply::{Multiplier, MultiplierUser, round};
use super::pack::{CHUNK, KEYS, Rows, at, chunk_widths, chunks, unpack_row};
use super::prefetch::PrefetchQueue;
use super::product::{Begin, Product};
use super::scores::{QUERIES, exponentials, maxima};
use super::{Head, Output, scratch_of, split};
use crate::dropout::Dropout;
use crate::{
    Element,
    simd::{Kernel, Simd},
};

/// Queries of a task: enough to amortize packing the keys, few enough to divide a long sequence among threads.
pub(in crate::attention) const BLOCK: usize = 256;
const _: () = assert!(BLOCK.is_multiple_of(QUERIES));

/// Floats of the buffers K, V, Qᵀ and O of a task, and of a tile.
fn buffers(d: usize) -> [usize; 5] {
    let columns = chunks(d) * CHUNK;
    [KEYS * columns, KEYS * columns, BLOCK * columns, BLOCK * columns, KEYS * QUERIES]
}

/// Floats of scratch per task.
pub(super) fn scratch_len(d: usize) -> usize {
    scratch_of(buffers(d))
}

/// One task of the forward pass.
pub(super) struct Forward<'a, X> {
    pub(super) head: Head,
    /// First query and number of queries, within the sequence.
    pub(super) first: usize,
    pub(super) queries: usize,
    pub(super) q: Rows<'a, X>,
    pub(super) k: Rows<'a, X>,
    pub(super) v: Rows<'a, X>,
    pub(super) out: Output<'a, X>,
    pub(super) lse: Output<'a, f32>,
    /// Prefetches for the next task.
    pub(super) prefetches: PrefetchQueue,
    pub(super) scratch: &'a mut [f32],
}

/// Running M and Σ exp(scale · s - M) of each query of a panel.
#[derive(Clone, Copy)]
struct Running {
    max: [f32; QUERIES],
    total: [f32; QUERIES],
}

impl<X: Element> MultiplierUser for Forward<'_, X> {
    #[inline(always)]
    fn run<S: Simd, M: Multiplier>(self, simd: S, multiplier: M) {
        let Self { head, first, queries, q, k, v, mut out, mut lse, mut prefetches, scratch } = self;
        let d = head.size;
        let columns = chunks(d) * CHUNK;
        let [keys, values, transposed, outputs, tile] = split(scratch, buffers(d));
        let mut running = [Running { max: [f32::NEG_INFINITY; QUERIES], total: [0.0; QUERIES] }; BLOCK / QUERIES];
        for start in (0..head.keys).step_by(KEYS) {
            let n = KEYS.min(head.keys - start);
            k.skip(start).pack(simd, n, d, KEYS, M::BLOCK, keys);
            v.skip(start).pack(simd, n, d, KEYS, M::BLOCK, values);
            for (row, running) in (0..queries).step_by(QUERIES).zip(&mut running) {
                let (panel, rows) = (row * columns..(row + QUERIES) * columns, QUERIES.min(queries - row));
                let transposed = &mut transposed[panel.clone()];
                if start == 0 {
                    for (c, width) in chunk_widths(d) {
                        let to = &mut transposed[c * CHUNK * QUERIES..];
                        q.skip(row).pack_transposed(simd, rows, (c * CHUNK, width), M::BLOCK, to);
                    }
                }
                let outputs = &mut outputs[panel];
                simd.vectorize(Panel {
                    multiplier,
                    d,
                    keys: n,
                    queries: rows,
                    start,
                    scale: head.scale,
                    mask: head.mask(first + row),
                    k: keys,
                    v: values,
                    transposed,
                    outputs: &mut *outputs,
                    running: &mut *running,
                    tile,
                    prefetches: &mut prefetches,
                });
                // Stored before the next panel, so that the stores overlap its products.
                if start + n == head.keys {
                    let scale = head.dropout.filter(|_| M::ROUNDS).map_or(1.0, Dropout::scale);
                    finish(simd, (d, scale), (first + row, rows), outputs, running, (&mut out, &mut lse));
                }
            }
        }
    }
}

/// Writes out, times `scale`, and lse of a panel.
#[inline(always)]
fn finish<S: Simd, X: Element>(
    simd: S,
    (d, scale): (usize, f32),
    (first, rows): (usize, usize),
    outputs: &[f32],
    Running { max, total }: &Running,
    (out, lse): (&mut Output<'_, X>, &mut Output<'_, f32>),
) {
    for (i, total) in total[..rows].iter().enumerate() {
        unpack_row(simd, outputs, QUERIES, i, scale / total, out.row(first + i, d));
    }
    let mut logs = [0.0; QUERIES];
    for x in (0..rows).step_by(S::LANES) {
        let log = ln(simd, simd.load(&total[x..]));
        simd.store(&mut logs[x..], simd.add(simd.load(&max[x..]), log));
    }
    for (i, &log) in logs[..rows].iter().enumerate() {
        lse.row(first + i, 1)[0] = log;
    }
}

/// A panel of queries against a tile of keys. Not generic over storage, so that it is compiled once per instruction
/// set.
struct Panel<'a, M> {
    multiplier: M,
    d: usize,
    keys: usize,
    queries: usize,
    /// Index of the first key in its sequence.
    start: usize,
    scale: f32,
    mask: Option<PanelMask>,
    k: &'a [f32],
    v: &'a [f32],
    transposed: &'a [f32],
    outputs: &'a mut [f32],
    running: &'a mut Running,
    tile: &'a mut [f32],
    prefetches: &'a mut PrefetchQueue,
}

impl<M: Multiplier> Kernel for Panel<'_, M> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { multiplier, d, keys, queries, scale, running, prefetches, .. } = self;
        let (whole, rows) = (self.tile, keys * CHUNK);
        for (c, width) in chunk_widths(d) {
            multiplier.multiply(
                simd,
                Product::<false> {
                    rows: keys,
                    columns: queries,
                    terms: width,
                    a: &self.k[at(c, KEYS, 0)..],
                    b: &self.transposed[c * CHUNK * QUERIES..],
                    begin: if c == 0 { Begin::Zero } else { Begin::Old },
                    c: &mut *whole,
                    prefetches: &mut *prefetches,
                },
            );
        }
        let tile = &mut whole[..rows];
        let mut factors = [0.0; QUERIES];
        simd.vectorize(Softmax {
            tile: &mut *tile,
            queries,
            scale,
            first: self.start == 0,
            running,
            factors: &mut factors,
        });
        if let Some(mask) = &self.mask {
            // On tiles P stays exact in bf16 where it is 1: the outputs are scaled.
            let kept = if M::ROUNDS { 1.0 } else { mask.dropout.scale() };
            mask.apply(simd, (keys, queries), self.start, kept, &mut Multiply(tile));
        }
        if M::ROUNDS {
            round(simd, whole, keys, queries);
        }
        for (c, width) in chunk_widths(d) {
            multiplier.multiply(
                simd,
                Product::<true> {
                    rows: queries,
                    columns: width,
                    terms: keys,
                    a: &*whole,
                    b: &self.v[at(c, KEYS, 0)..],
                    begin: if self.start == 0 { Begin::Zero } else { Begin::Scaled(&factors) },
                    c: &mut self.outputs[at(c, QUERIES, 0)..],
                    prefetches: &mut *prefetches,
                },
            );
        }
    }
}

/// Turns the scores of a tile into P and updates the panel's maxima and sums.
struct Softmax<'a> {
    tile: &'a mut [f32],
    queries: usize,
    scale: f32,
    /// True for the first tile of keys.
    first: bool,
    running: &'a mut Running,
    /// Factors of the old sums.
    factors: &'a mut [f32; QUERIES],
}

impl Kernel for Softmax<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { tile, queries, scale, first, running: Running { max, total }, factors } = self;
        let (mut greatest, mut shift, mut sums) = ([0.0; QUERIES], [0.0; QUERIES], [0.0; QUERIES]);
        maxima(simd, tile, queries, &mut greatest);
        for x in (0..queries).step_by(S::LANES) {
            let old = simd.load(&max[x..]);
            let new = simd.max(old, simd.mul(simd.load(&greatest[x..]), simd.splat(scale)));
            simd.store(&mut shift[x..], simd.neg(new));
            simd.store(&mut max[x..], new);
            let kept = if first { simd.zero() } else { exp(simd, simd.sub(old, new)) };
            simd.store(&mut factors[x..], kept);
        }
        exponentials(simd, tile, queries, scale, &shift, &mut sums);
        for x in (0..queries).step_by(S::LANES) {
            let old = simd.mul(simd.load(&total[x..]), simd.load(&factors[x..]));
            simd.store(&mut total[x..], simd.add(old, simd.load(&sums[x..])));
        }
    }
}
