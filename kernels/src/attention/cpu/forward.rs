//! Forward, one task: the queries of a block against all keys of their sequence, one head.
//!
//! ```text
//! for each 128 keys:                     K, V packed once for the block's queries
//!   for each panel of 2·LANES queries:   Qᵀ packed and transposed once
//!     Sᵀ[key, query] = K · Qᵀ            tile in L1, the maximum taken from the registers
//!     P = exp(scale · Sᵀ - M)             M the running maximum; old sums are scaled to it
//!     O[query, d]   += Pᵀ · V
//! O / Σ P -> out,   M + ln Σ P -> lse
//! ```
//!
//! Because queries are the lanes, maximum and sum go down the columns of the tile: no sums over lanes.

use super::exponential::{exp, ln};
use super::mask::{Multiply, PanelMask};
use super::pack::{CHUNK, Rows, at, chunk_widths, chunks, transpose, unpack_row};
use super::products::{Begin, KEYS, MAX_PANEL, Packed, StoreWithMax, panel, scores, sums};
use super::tile::Left;
use super::{Head, Output, split};
use crate::simd::{Element, Kernel, Simd};

/// Queries of a task: enough to pay for packing the keys, few enough to give a long sequence to several threads.
pub(in crate::attention) const QUERIES: usize = 256;
// A block is a whole number of panels on every instruction set.
const _: () = assert!(QUERIES.is_multiple_of(MAX_PANEL));

/// Floats of scratch of a task.
pub(super) fn scratch_len(d: usize) -> usize {
    let c = chunks(d) * CHUNK;
    2 * KEYS * c + 2 * QUERIES * c + KEYS * MAX_PANEL + 2 * QUERIES
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
    pub(super) scratch: &'a mut [f32],
}

impl<X: Element> Kernel for Forward<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { head, first, queries, q, k, v, mut out, mut lse, scratch } = self;
        let (d, w) = (head.size, panel::<S>());
        let columns = chunks(d) * CHUNK;
        let [keys, values, transposed, outputs, tile, maxima, totals] = split(
            scratch,
            [KEYS * columns, KEYS * columns, QUERIES * columns, QUERIES * columns, KEYS * MAX_PANEL, QUERIES, QUERIES],
        );
        for row in (0..queries).step_by(w) {
            let rows = w.min(queries - row);
            for (c, width) in chunk_widths(d) {
                // The tile is free until the first product.
                q.skip(row).pack_chunk(simd, rows, c * CHUNK, width, tile);
                transpose(tile, rows, width, w, &mut transposed[row * columns + c * CHUNK * w..]);
            }
        }
        maxima.fill(f32::NEG_INFINITY);
        totals.fill(0.0);
        for start in (0..head.keys).step_by(KEYS) {
            let n = KEYS.min(head.keys - start);
            k.skip(start).pack(simd, n, d, KEYS, keys);
            v.skip(start).pack(simd, n, d, KEYS, values);
            for row in (0..queries).step_by(w) {
                simd.vectorize(Panel {
                    d,
                    keys: n,
                    queries: w.min(queries - row),
                    start,
                    scale: head.scale,
                    mask: head.mask(first + row),
                    k: keys,
                    v: values,
                    transposed: &transposed[row * columns..(row + w) * columns],
                    outputs: &mut outputs[row * columns..(row + w) * columns],
                    maxima: &mut maxima[row..row + w],
                    totals: &mut totals[row..row + w],
                    tile,
                });
            }
        }
        for row in (0..queries).step_by(w) {
            let rows = w.min(queries - row);
            let packed = &outputs[row * columns..];
            for i in 0..rows {
                let out = out.row(first + row + i, head.size);
                unpack_row(simd, packed, w, i, 1.0 / totals[row + i], out);
            }
            let mut logs = [0.0; MAX_PANEL];
            for x in (0..w).step_by(S::LANES) {
                let log = ln(simd, simd.load(&totals[row + x..]));
                let max = simd.load(&maxima[row + x..]);
                simd.store(&mut logs[x..], simd.add(max, log));
            }
            for (i, &log) in logs[..rows].iter().enumerate() {
                lse.row(first + row + i, 1)[0] = log;
            }
        }
    }
}

/// A panel of queries against a tile of keys. Not generic over storage, so that it is compiled once per instruction
/// set.
struct Panel<'a> {
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
    /// scale times the greatest score so far.
    maxima: &'a mut [f32],
    /// Sums of exponentials so far.
    totals: &'a mut [f32],
    tile: &'a mut [f32],
}

impl Kernel for Panel<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (shape, w) = ((self.keys, self.queries), panel::<S>());
        let mut max = [f32::NEG_INFINITY; MAX_PANEL];
        let finish = StoreWithMax { tile: self.tile, max: &mut max };
        scores(simd, shape, self.d, Packed { values: self.k, capacity: KEYS }, self.transposed, finish);

        let mut factors = [0.0; MAX_PANEL];
        let scale = simd.splat(self.scale);
        for x in (0..self.queries).step_by(S::LANES) {
            let old = simd.load(&self.maxima[x..]);
            let new = simd.max(old, simd.mul(simd.load(&max[x..]), scale));
            let factor = exp(simd, simd.sub(old, new));
            let mut total = simd.mul(simd.load(&self.totals[x..]), factor);
            let shift = simd.neg(new);
            for column in self.tile[x..].chunks_mut(w).take(self.keys) {
                let p = exp(simd, simd.mul_add(scale, simd.load(column), shift));
                total = simd.add(total, p);
                simd.store(column, p);
            }
            simd.store(&mut self.maxima[x..], new);
            simd.store(&mut self.totals[x..], total);
            simd.store(&mut factors[x..], factor);
        }
        if let Some(mask) = &self.mask {
            mask.apply(simd, shape, self.start, &mut Multiply(self.tile));
        }
        let begin = if self.start == 0 { Begin::Zero } else { Begin::Scaled(&factors) };
        let left = Left { values: self.tile, row_step: 1, step: w };
        let right = Packed { values: self.v, capacity: KEYS };
        sums(simd, (self.queries, self.keys), self.d, begin, left, right, (self.outputs, w));
        debug_assert!(self.outputs.len() >= at(0, w, self.queries));
    }
}
