//! P and dS of Hopper's backward kernels with keys down the rows: transposed, in the accumulator registers of `wgmma`.
//!
//! ```text
//! pᵀ = exp2(sᵀ · scale · log2 e - lse · log2 e)          dsᵀ = pᵀ ∘ (dpᵀ ∘ mᵀ - δ)
//! ```
//!
//! A lane holds queries 2t, 2t + 1 of each eight (t = lane mod 4), so lse and δ belong to its columns. They are loaded
//! from shared memory, [-lse·log₂ e 64][δ 64] a tile, both queries at once; the eight lanes with the same t read the
//! same bytes.

use super::{sm80::TILE, tile::Sequence};
use ptx::{Entry, F32, Global, Ptr, Reg, Shared, U32};

/// Bytes of -lse·log₂ e and δ of a tile of queries.
pub(super) const ROW_BYTES: u32 = 2 * TILE * 4;
/// Bytes from -lse·log₂ e of a query to its δ.
const DELTA: i32 = 4 * TILE as i32;

/// -lse·log₂ e and δ of one query, to be stored to shared memory.
pub(super) struct QueryRow {
    minus_lse: Reg<F32>,
    delta: Reg<F32>,
}

impl QueryRow {
    /// Loads from lse and δ [T, A]. A query past the sequence's end gets p = 0 and δ = 0.
    pub(super) fn load(k: &Entry, vectors: [Ptr<Global>; 2], sequence: &Sequence, query: Reg<U32>) -> Self {
        let place = k.mad_lo(k.add(sequence.start, query), sequence.heads, sequence.head);
        let exists = k.lt(query, sequence.length);
        let (lse, delta) = (k.mov::<F32>(f32::INFINITY), k.mov::<F32>(0.0f32));
        let [from_lse, from_delta] = vectors.map(|vector| k.index(vector, place, 4u32).at(0));
        k.when(exists, || {
            k.ld_into(from_lse, [lse]);
            k.ld_into(from_delta, [delta]);
        });
        Self { minus_lse: k.mul(lse, -std::f32::consts::LOG2_E), delta }
    }

    /// Stores them as query `own` of the tile at `rows`.
    pub(super) fn store(&self, k: &Entry, rows: Ptr<Shared>, own: Reg<U32>) {
        let to = k.index(rows, own, 4u32);
        k.st(to.at(0), [self.minus_lse]);
        k.st(to.at(DELTA), [self.delta]);
    }
}

/// Dropout factors of a lane's four elements of the i-th eight queries; `None` without dropout.
pub(super) type Factors<'a> = &'a dyn Fn(u32) -> Option<[Reg<F32>; 4]>;

/// Replaces the scores by Pᵀ and returns (P ∘ M)ᵀ. `rows` is the address of the lane's first two queries.
pub(super) fn probabilities(
    k: &Entry,
    s: &[Reg<F32>],
    rows: Ptr<Shared>,
    factor: Reg<F32>,
    factors: Factors<'_>,
) -> Vec<Reg<F32>> {
    k.comment("p^T = exp2(s^T * scale * log2 e - lse * log2 e)");
    let mut dropped = Vec::with_capacity(s.len());
    for (i, four) in (0..).zip(s.chunks_exact(4)) {
        let minus_lse: [Reg<F32>; 2] = k.ld(rows.at(32 * i as i32));
        let factors = factors(i);
        for (j, &s) in four.iter().enumerate() {
            k.assign(s, k.ex2_approx(k.fma(s, factor, minus_lse[j % 2])));
            dropped.push(factors.map_or(s, |factors| k.mul(s, factors[j])));
        }
    }
    dropped
}

/// Replaces Pᵀ by dSᵀ.
pub(super) fn gradients(k: &Entry, [p, dp]: &[Vec<Reg<F32>>; 2], rows: Ptr<Shared>, factors: Factors<'_>) {
    k.comment("ds^T = p^T (dp^T m - delta)");
    for (i, (p, dp)) in (0..).zip(p.chunks_exact(4).zip(dp.chunks_exact(4))) {
        let delta: [Reg<F32>; 2] = k.ld(rows.at(32 * i as i32 + DELTA));
        let factors = factors(i);
        for j in 0..4 {
            let gradient = factors.map_or(dp[j], |factors| k.mul(dp[j], factors[j]));
            k.assign(p[j], k.mul(p[j], k.sub(gradient, delta[j % 2])));
        }
    }
}
