//! Backward pass, one task: one head of one sequence.
//!
//! ```text
//! for each 512 keys (fewer for D > 64):       K, V packed
//!   for each panel of 64 queries:             Q, dO packed and transposed; δ = Σ_d dO ∘ O
//!     for each 64 keys of them:
//!       Sᵀ[key, query]  = K · Qᵀ              tile in L1
//!       dPᵀ[key, query] = V · dOᵀ             tile in L1
//!       Pᵀ = exp(scale · Sᵀ - lse), dSᵀ = Pᵀ ∘ (dPᵀ - δ)   in place
//!       dV[key, d]   += Pᵀ · dO
//!       dK[key, d]   += dSᵀ · Q
//!       dQ[query, d] += dS · K
//!     scale · dQ -> dq          (longer sequences: accumulated in the caller's scratch first)
//!   scale · dK -> dk, dV -> dv
//! ```
//!
//! The order of all sums depends on the shape only; a task computes all of them, so threads share nothing.

use super::mask::{PanelMask, Store};
use super::multiply::{Multiplier, MultiplierUser, round};
use super::pack::{CHUNK, KEYS, Rows, at, chunk_widths, chunks, unpack_row};
use super::prefetch::PrefetchQueue;
use super::product::{Begin, Product};
use super::scores::{QUERIES, ScoreGradients};
use super::{Head, Output, scratch_of, split};
use crate::dropout::Dropout;
use crate::{
    Element,
    simd::{Kernel, MAX_LANES, Simd, reduce_sixteen},
};

/// Elements of each of K, V, dK and dV that a task holds at once: 128 KiB.
const RESIDENT: usize = 32 * 1024;

/// Keys that a task holds at once: 512 for D <= 64, at least one tile.
pub(in crate::attention) const fn resident_keys(d: usize) -> usize {
    let tiles = RESIDENT / (chunks(d) * CHUNK) / KEYS;
    KEYS * if tiles == 0 { 1 } else { tiles }
}

/// Floats of the buffers K, V, dK and dV of a task, of five matrices of a panel of queries, and of three tiles.
fn buffers(d: usize) -> [usize; 12] {
    let columns = chunks(d) * CHUNK;
    let (held, wide, tile) = (resident_keys(d) * columns, QUERIES * columns, KEYS * QUERIES);
    [held, held, held, held, wide, wide, wide, wide, wide, tile, tile, tile]
}

/// Floats of scratch per task.
pub(super) fn scratch_len(d: usize) -> usize {
    scratch_of(buffers(d))
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
    /// Accumulators of dQ, if the keys do not fit at once.
    pub(super) dq_sums: Option<Output<'a, f32>>,
    /// Prefetches for the next task.
    pub(super) prefetches: PrefetchQueue,
    pub(super) scratch: &'a mut [f32],
}

/// Scratch of a panel of queries.
struct Queries<'a> {
    q: &'a mut [f32],
    dout: &'a mut [f32],
    q_transposed: &'a mut [f32],
    dout_transposed: &'a mut [f32],
    dq: &'a mut [f32],
    /// -lse; -1000 if there is no query, so that P is nearly 0.
    shift: [f32; QUERIES],
    /// δ
    delta: [f32; QUERIES],
}

impl<X: Element> MultiplierUser for Backward<'_, X> {
    #[inline(always)]
    fn run<S: Simd, M: Multiplier>(mut self, simd: S, multiplier: M) {
        let head = self.head;
        let d = head.size;
        let resident = resident_keys(d);
        let [k, v, dk, dv, q, dout, q_transposed, dout_transposed, dq, p, ds, m] =
            split(std::mem::take(&mut self.scratch), buffers(d));
        let (shift, delta) = ([0.0; QUERIES], [0.0; QUERIES]);
        let mut queries = Queries { q, dout, q_transposed, dout_transposed, dq, shift, delta };
        for start in (0..head.keys).step_by(resident) {
            let n = resident.min(head.keys - start);
            self.k.skip(start).pack(simd, n, d, resident, M::BLOCK, k);
            self.v.skip(start).pack(simd, n, d, resident, M::BLOCK, v);
            for row in (0..head.length).step_by(QUERIES) {
                let rows = QUERIES.min(head.length - row);
                self.load::<S, M>(simd, row, rows, &mut queries);
                for tile in (0..n).step_by(KEYS) {
                    let of_tile = at(0, resident, tile)..;
                    simd.vectorize(Panel {
                        multiplier,
                        d,
                        keys: KEYS.min(n - tile),
                        queries: rows,
                        first_keys: tile == 0,
                        first_queries: row == 0,
                        start: start + tile,
                        scale: head.scale,
                        mask: head.mask(row),
                        capacity: resident,
                        k: &k[of_tile.clone()],
                        v: &v[of_tile.clone()],
                        dk: &mut dk[of_tile.clone()],
                        dv: &mut dv[of_tile],
                        panel: &mut queries,
                        p,
                        ds,
                        m,
                        prefetches: &mut self.prefetches,
                    });
                }
                self.write_dq(simd, row, rows, start, start + n == head.keys, queries.dq);
            }
            // On tiles P is not scaled.
            let scale = head.dropout.filter(|_| M::ROUNDS).map_or(1.0, Dropout::scale);
            for i in 0..n {
                unpack_row(simd, dk, resident, i, head.scale, self.dk.row(start + i, d));
                unpack_row(simd, dv, resident, i, scale, self.dv.row(start + i, d));
            }
        }
        // Tokens that are not keys do not affect other outputs: their dk and dv are 0.
        for token in head.keys..head.length {
            self.dk.row(token, d).fill(X::from_f32(0.0));
            self.dv.row(token, d).fill(X::from_f32(0.0));
        }
    }
}

impl<X: Element> Backward<'_, X> {
    /// Packs and transposes the queries from `row` on and their gradients; computes δ and loads lse.
    #[inline(always)]
    fn load<S: Simd, M: Multiplier>(&self, simd: S, row: usize, rows: usize, queries: &mut Queries<'_>) {
        let d = self.head.size;
        self.q.skip(row).pack(simd, rows, d, QUERIES, M::BLOCK, queries.q);
        self.dout.skip(row).pack(simd, rows, d, QUERIES, M::BLOCK, queries.dout);
        // Transposed from the packed rows: those of the batch compete for the same lines of L1.
        for (c, width) in chunk_widths(d) {
            let (from, to) = (at(c, QUERIES, 0), c * CHUNK * QUERIES);
            for (packed, transposed) in
                [(&*queries.q, &mut *queries.q_transposed), (&*queries.dout, &mut *queries.dout_transposed)]
            {
                let packed = Rows { values: packed, start: from, ld: CHUNK };
                packed.pack_transposed(simd, rows, (0, width), M::BLOCK, &mut transposed[to..]);
            }
        }
        queries.shift.fill(-1000.0);
        queries.delta.fill(0.0);
        for i in 0..rows {
            queries.shift[i] = -self.lse.row(row + i, 1)[0];
            let out = self.out.row(row + i, d);
            // Column c is added to lane c % 16, whatever LANES is.
            let mut delta = [simd.zero(); MAX_LANES];
            for first in (0..d).step_by(MAX_LANES) {
                let dout = &queries.dout[at(first / CHUNK, QUERIES, i) + first % CHUNK..][..MAX_LANES];
                for v in 0..MAX_LANES / S::LANES {
                    let column = first + v * S::LANES;
                    // Packed rows are padded to whole vectors only.
                    if column >= d {
                        break;
                    }
                    let out = if column + S::LANES <= d {
                        X::load(simd, &out[column..])
                    } else {
                        X::load_partial(simd, &out[column..])
                    };
                    delta[v] = simd.mul_add(out, simd.load(&dout[v * S::LANES..]), delta[v]);
                }
            }
            queries.delta[i] = reduce_sixteen::<S>(delta, |a, b| simd.add(a, b), |a| simd.reduce_sum(a));
        }
    }

    /// Adds dQ of the queries from `row` on to the sum over earlier keys, if any, and writes scale · dQ after the last
    /// keys.
    #[inline(always)]
    fn write_dq<S: Simd>(&mut self, simd: S, row: usize, rows: usize, start: usize, last: bool, dq: &mut [f32]) {
        let d = self.head.size;
        for i in 0..rows {
            if let Some(sums) = &mut self.dq_sums {
                let sums = sums.row(row + i, d);
                for (c, sums) in sums.chunks_mut(CHUNK).enumerate() {
                    for (sum, new) in sums.iter_mut().zip(&mut dq[at(c, QUERIES, i)..][..CHUNK]) {
                        *sum = if start == 0 { *new } else { *sum + *new };
                        *new = *sum;
                    }
                }
            }
            if last {
                unpack_row(simd, dq, QUERIES, i, self.head.scale, self.dq.row(row + i, d));
            }
        }
    }
}

/// A panel of queries against a tile of keys. Not generic over storage, so that it is compiled once per instruction
/// set.
struct Panel<'a, 'b, M> {
    multiplier: M,
    d: usize,
    keys: usize,
    queries: usize,
    /// True if the tile is the first that adds to dQ.
    first_keys: bool,
    /// True if the panel is the first that adds to dK and dV.
    first_queries: bool,
    /// Index of the first key in its sequence.
    start: usize,
    scale: f32,
    mask: Option<PanelMask>,
    /// Rows of the buffers k, v, dk and dv.
    capacity: usize,
    k: &'a [f32],
    v: &'a [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    panel: &'a mut Queries<'b>,
    p: &'a mut [f32],
    ds: &'a mut [f32],
    m: &'a mut [f32],
    prefetches: &'a mut PrefetchQueue,
}

impl<M: Multiplier> Kernel for Panel<'_, '_, M> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { multiplier, d, keys, queries, capacity, panel, prefetches, .. } = self;
        let (p, ds, tile) = (self.p, self.ds, ..keys * CHUNK);
        for (c, width) in chunk_widths(d) {
            let begin = if c == 0 { Begin::Zero } else { Begin::Old };
            for (a, b, tile) in [(self.k, &panel.q_transposed, &mut *p), (self.v, &panel.dout_transposed, &mut *ds)] {
                let (a, b) = (&a[at(c, capacity, 0)..], &b[c * CHUNK * QUERIES..]);
                let prefetches = &mut *prefetches;
                multiplier.multiply(
                    simd,
                    Product::<false> { rows: keys, columns: queries, terms: width, a, b, begin, c: tile, prefetches },
                );
            }
        }
        if let Some(mask) = &self.mask {
            mask.apply(simd, (keys, queries), self.start, mask.dropout.scale(), &mut Store(&mut self.m[tile]));
        }
        let mask = if self.mask.is_some() { &self.m[tile] } else { &[] };
        let (probabilities, gradients) = (&mut p[tile], &mut ds[tile]);
        simd.vectorize(Gradients {
            scores: ScoreGradients { probabilities, gradients, mask, scales: !M::ROUNDS, delta: &panel.delta },
            queries,
            scale: self.scale,
            shift: &panel.shift,
        });
        if M::ROUNDS {
            round(simd, p, keys, queries);
            round(simd, ds, keys, queries);
        }

        let begin = if self.first_queries { Begin::Zero } else { Begin::Old };
        for (c, columns) in chunk_widths(d) {
            for (a, b, sums) in [(&*p, &panel.dout, &mut *self.dv), (&*ds, &panel.q, &mut *self.dk)] {
                let (b, c) = (&b[at(c, QUERIES, 0)..], &mut sums[at(c, capacity, 0)..]);
                let prefetches = &mut *prefetches;
                let product = Product::<false> { rows: keys, columns, terms: queries, a, b, begin, c, prefetches };
                multiplier.multiply(simd, product);
            }
            multiplier.multiply(
                simd,
                Product::<true> {
                    rows: queries,
                    columns,
                    terms: keys,
                    a: &*ds,
                    b: &self.k[at(c, capacity, 0)..],
                    begin: if self.first_keys { Begin::Zero } else { Begin::Old },
                    c: &mut panel.dq[at(c, QUERIES, 0)..],
                    prefetches: &mut *prefetches,
                },
            );
        }
    }
}

/// Computes P ∘ M and dS of a tile.
struct Gradients<'a> {
    scores: ScoreGradients<'a>,
    queries: usize,
    scale: f32,
    shift: &'a [f32; QUERIES],
}

impl Kernel for Gradients<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.scores.compute(simd, self.queries, self.scale, self.shift);
    }
}
