//! Backward, one task: one head of one sequence.
//!
//! ```text
//! for each 512 keys (fewer for D > 64):       K, V packed; dK = dV = 0
//!   for each panel of 2·LANES queries:        Q, dO packed and transposed; δ = Σ_d dO ∘ O
//!     for each 128 keys of them:
//!       Pᵀ[key, query]  = exp(scale · K·Qᵀ - lse) in L1
//!       dSᵀ[key, query] = Pᵀ ∘ (V · dOᵀ - δ)  tile in L1
//!       dV[key, d]   += Pᵀ · dO
//!       dK[key, d]   += dSᵀ · Q
//!       dQ[query, d] += dS · K
//!     scale · dQ -> dq          (longer sequences: summed in the caller's scratch first)
//!   scale · dK -> dk, dV -> dv
//! ```
//!
//! The order of all sums follows from the shape; one task does them all, so nothing is shared between threads.

use super::mask::{PanelMask, Store};
use super::pack::{CHUNK, Rows, at, chunk_widths, chunks, transpose, unpack_row};
use super::products::{Begin, KEYS, MAX_PANEL, Packed, Probabilities, ScoreGradients, panel, scores, sums};
use super::tile::Left;
use super::{Head, Output, split};
use crate::simd::{Element, Kernel, Simd};

/// Numbers of each of K, V, dK and dV that a task holds at once: 128 KiB.
const RESIDENT: usize = 32 * 1024;

/// Keys that a task holds at once: 512 for D <= 64, at least one tile.
pub(in crate::attention) const fn resident_keys(d: usize) -> usize {
    let tiles = RESIDENT / (chunks(d) * CHUNK) / KEYS;
    KEYS * if tiles == 0 { 1 } else { tiles }
}

/// Floats of scratch of a task.
pub(super) fn scratch_len(d: usize) -> usize {
    let columns = chunks(d) * CHUNK;
    4 * resident_keys(d) * columns + 5 * MAX_PANEL * columns + 3 * KEYS * MAX_PANEL
}

/// One task of the backward pass.
pub(super) struct Backward<'a, X> {
    pub(super) head: Head,
    pub(super) q: Rows<'a, X>,
    pub(super) k: Rows<'a, X>,
    pub(super) v: Rows<'a, X>,
    pub(super) out: Rows<'a, X>,
    pub(super) dout: Rows<'a, X>,
    pub(super) lse: Rows<'a, f32>,
    pub(super) dq: Output<'a, X>,
    pub(super) dk: Output<'a, X>,
    pub(super) dv: Output<'a, X>,
    /// Where dQ is summed if the keys do not fit at once.
    pub(super) dq_sums: Option<Output<'a, f32>>,
    pub(super) scratch: &'a mut [f32],
}

/// Scratch of a panel of queries.
struct Queries<'a> {
    q: &'a mut [f32],
    dout: &'a mut [f32],
    q_transposed: &'a mut [f32],
    dout_transposed: &'a mut [f32],
    dq: &'a mut [f32],
    /// -lse; far below zero where there is no query.
    shift: [f32; MAX_PANEL],
    minus_delta: [f32; MAX_PANEL],
}

impl<X: Element> Kernel for Backward<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let (head, w) = (self.head, panel::<S>());
        let d = head.size;
        let (columns, resident) = (chunks(d) * CHUNK, resident_keys(d));
        let (held, wide) = (resident * columns, MAX_PANEL * columns);
        let [k, v, dk, dv, q, dout, q_transposed, dout_transposed, dq, p, ds, m] = split(
            std::mem::take(&mut self.scratch),
            [
                held,
                held,
                held,
                held,
                wide,
                wide,
                wide,
                wide,
                wide,
                KEYS * MAX_PANEL,
                KEYS * MAX_PANEL,
                KEYS * MAX_PANEL,
            ],
        );
        let mut queries = Queries {
            q,
            dout,
            q_transposed,
            dout_transposed,
            dq,
            shift: [0.0; MAX_PANEL],
            minus_delta: [0.0; MAX_PANEL],
        };
        for start in (0..head.keys).step_by(resident) {
            let n = resident.min(head.keys - start);
            self.k.skip(start).pack(simd, n, d, resident, k);
            self.v.skip(start).pack(simd, n, d, resident, v);
            dk.fill(0.0);
            dv.fill(0.0);
            for row in (0..head.length).step_by(w) {
                let rows = w.min(head.length - row);
                self.load(simd, row, rows, &mut queries);
                for tile in (0..n).step_by(KEYS) {
                    simd.vectorize(Panel {
                        d,
                        keys: KEYS.min(n - tile),
                        queries: rows,
                        first: tile == 0,
                        start: start + tile,
                        scale: head.scale,
                        mask: head.mask(row),
                        capacity: resident,
                        k: &k[at(0, resident, tile)..],
                        v: &v[at(0, resident, tile)..],
                        dk: &mut dk[at(0, resident, tile)..],
                        dv: &mut dv[at(0, resident, tile)..],
                        panel: &mut queries,
                        p,
                        ds,
                        m,
                    });
                }
                self.write_dq(simd, row, rows, start, start + n == head.keys, queries.dq);
            }
            for i in 0..n {
                unpack_row(simd, dk, resident, i, head.scale, self.dk.row(start + i, d));
                unpack_row(simd, dv, resident, i, 1.0, self.dv.row(start + i, d));
            }
        }
        // What is no key has no part in any output but its own.
        for token in head.keys..head.length {
            self.dk.row(token, d).fill(X::from_f32(0.0));
            self.dv.row(token, d).fill(X::from_f32(0.0));
        }
    }
}

impl<X: Element> Backward<'_, X> {
    /// Packs and transposes the queries from `row` on and their gradients, and takes δ and lse.
    #[inline(always)]
    fn load<S: Simd>(&self, simd: S, row: usize, rows: usize, queries: &mut Queries<'_>) {
        let (d, w) = (self.head.size, panel::<S>());
        self.q.skip(row).pack(simd, rows, d, w, queries.q);
        self.dout.skip(row).pack(simd, rows, d, w, queries.dout);
        for (c, width) in chunk_widths(d) {
            let (from, to) = (at(c, w, 0), c * CHUNK * w);
            transpose(&queries.q[from..], rows, width, w, &mut queries.q_transposed[to..]);
            transpose(&queries.dout[from..], rows, width, w, &mut queries.dout_transposed[to..]);
        }
        queries.shift.fill(-1000.0);
        queries.minus_delta.fill(0.0);
        for i in 0..rows {
            queries.shift[i] = -self.lse.row(row + i, 1)[0];
            let out = self.out.row(row + i, d);
            let mut delta = simd.zero();
            for (c, out) in out.chunks(CHUNK).enumerate() {
                let dout = &queries.dout[at(c, w, i)..][..CHUNK];
                for (out, dout) in out.chunks(S::LANES).zip(dout.chunks(S::LANES)) {
                    let out = if out.len() == S::LANES { X::load(simd, out) } else { X::load_partial(simd, out) };
                    delta = simd.mul_add(out, simd.load(dout), delta);
                }
            }
            queries.minus_delta[i] = -simd.reduce_sum(delta);
        }
    }

    /// Writes scale · dQ of the queries from `row` on, or adds it to what earlier keys gave.
    #[inline(always)]
    fn write_dq<S: Simd>(&mut self, simd: S, row: usize, rows: usize, start: usize, last: bool, dq: &mut [f32]) {
        let (d, w) = (self.head.size, panel::<S>());
        for i in 0..rows {
            if let Some(sums) = &mut self.dq_sums {
                let sums = sums.row(row + i, d);
                for (c, sums) in sums.chunks_mut(CHUNK).enumerate() {
                    for (sum, new) in sums.iter_mut().zip(&mut dq[at(c, w, i)..][..CHUNK]) {
                        *sum = if start == 0 { *new } else { *sum + *new };
                        *new = *sum;
                    }
                }
            }
            if last {
                unpack_row(simd, dq, w, i, self.head.scale, self.dq.row(row + i, d));
            }
        }
    }
}

/// A panel of queries against a tile of keys. Not generic over storage, so that it is compiled once per instruction
/// set.
struct Panel<'a, 'b> {
    d: usize,
    keys: usize,
    queries: usize,
    /// The tile is the first of those that add to dQ.
    first: bool,
    /// Index of the first key in its sequence.
    start: usize,
    scale: f32,
    mask: Option<PanelMask>,
    /// Keys that k, v, dk and dv have room for.
    capacity: usize,
    k: &'a [f32],
    v: &'a [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    panel: &'a mut Queries<'b>,
    p: &'a mut [f32],
    ds: &'a mut [f32],
    m: &'a mut [f32],
}

impl Kernel for Panel<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (shape, d, w, capacity) = ((self.keys, self.queries), self.d, panel::<S>(), self.capacity);
        let finish = Probabilities { tile: self.p, scale: self.scale, shift: &self.panel.shift };
        scores(simd, shape, d, Packed { values: self.k, capacity }, self.panel.q_transposed, finish);
        if let Some(mask) = &self.mask {
            mask.apply(simd, shape, self.start, &mut Store(self.m));
        }
        let finish = ScoreGradients {
            tile: self.ds,
            probabilities: self.p,
            mask: self.mask.is_some().then_some(self.m),
            minus_delta: &self.panel.minus_delta,
        };
        scores(simd, shape, d, Packed { values: self.v, capacity }, self.panel.dout_transposed, finish);

        let by_key = |values| Left { values, row_step: w, step: 1 };
        let dout = Packed { values: self.panel.dout, capacity: w };
        sums(simd, shape, d, Begin::Old, by_key(self.p), dout, (self.dv, capacity));
        let q = Packed { values: self.panel.q, capacity: w };
        sums(simd, shape, d, Begin::Old, by_key(self.ds), q, (self.dk, capacity));
        let begin = if self.first { Begin::Zero } else { Begin::Old };
        let by_query = Left { values: self.ds, row_step: 1, step: w };
        let k = Packed { values: self.k, capacity };
        sums(simd, (self.queries, self.keys), d, begin, by_query, k, (self.panel.dq, w));
    }
}
