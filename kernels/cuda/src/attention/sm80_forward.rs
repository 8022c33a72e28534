//! Attention over ragged sequences on the tensor cores: forward.
//!
//! ```text
//! P = softmax(scale · q kᵀ)      out = (P ∘ M) v      lse = ln Σ_key exp(scale · q kᵀ)              (see [`kernels::attention`])
//! ```
//!
//! A block computes 64 queries of one head of one sequence, each of its four warps 16 of them. The state of a query
//! (maximum, sum, output) is kept in that warp's registers. Keys and values are loaded 64 at a time into two stages of
//! shared memory.
//!
//! ```text
//! __global__ __launch_bounds__(128) forward(q, k, v, cu_seqlens, keys, out, lse, [mask], ld, head_size, scale) {
//!     b = blockIdx.z;  head = blockIdx.y;  first = 64 * blockIdx.x;  if (first >= length of b) return;
//!     copy q[64, D], k[64, D], v[64, D] of tile 0; commit;
//!     m = -inf;  l = 0;  o[16, D] = 0;                                        // a warp's 16 queries
//!     for (j = 0; j < ⌈keys / 64⌉; j++) {
//!         wait; __syncthreads();  copy k, v of tile j + 1; commit;
//!         s[16, 64] = q kᵀ;                                                   // mma, q from registers
//!         s = -inf beyond the keys;                                           // only in the last tile
//!         m' = max(m, rows of s);  p = exp2((s - m') · scale · log2 e);       // four lanes share a row: two shuffles
//!         l = l · exp2((m - m') ..) + Σ p;  o *= exp2((m - m') ..);  m = m';
//!         o += (p ∘ M) v;                                                     // the registers of s are the operand p
//!     }
//!     out = o / l;  lse = m · scale + ln l;
//! }
//!
//! shared memory: [q 64 x D] [k 64 x D] [v 64 x D] [k] [v], 16-byte chunks swizzled by `Tile::of_halves`;
//! D padded with zeros to 32, 64 or 128; the output is stored through q's tile, 16 bytes a lane
//! ```
//!
//! A lane holds columns 2t, 2t + 1 of each 8 of its rows g and g + 8 (t = lane mod 4, g = lane / 4). The bytes of its
//! keys of a tile are the 16 of one Philox counter a row, so no byte of the mask is computed twice or unused.
//!
//! Source: FlashAttention-2 (Dao 2023). Cost: 4·S·D FLOP a query and head; q and out are moved once, k and v once per
//! 64 queries (from L2). Budget: 168 registers with D ≤ 64 (three blocks a multiprocessor), 255 beyond.

use super::{
    arguments::AttentionArgs,
    sm80::{Flash, TILE},
    tile::{Copier, InputParams, Layout, Sequence, SoftmaxMask, Warp, required, scale_half},
};
use crate::arguments::Load as _;
use ptx::{Compare, Entry, F32, Fold, Global, Pair, Precision, Ptr, Reg, Special, U32, fragment::Load};

impl Flash {
    pub(super) fn forward<P: Pair>(&self, k: &Entry) {
        let params = AttentionArgs::declare(k, &|name| self.parameters().has(name));
        let inputs = InputParams::new(&params);
        let (out, lse) = (required(&params.out).load(k), params.lse.load(k));
        let mask = SoftmaxMask::new(&params);
        let sizes = inputs.sizes(k);
        let scale = params.score_scale.load(k);
        let (base, layout) = (k.dynamic_shared(128), Layout::new(self.padded));
        let sequence = Sequence::find(k, &inputs, &sizes);
        let first = k.mul_lo(k.special(Special::CtaidX), TILE);
        k.if_(k.lt(first, sequence.length), || {
            let warp = Warp::find(k);
            let copier = |matrix| Copier::new(k, self, &layout, &sizes, &sequence, matrix, warp.thread);
            let [q, keys, values] = [0, 1, 2].map(|i| copier(inputs.matrix(k, i)));
            let stage = layout.tile.bytes();
            q.copy(k, k.offset(base, 0u32), first, sequence.length);
            let (k_base, v_base) = (k.offset(base, stage), k.offset(base, 2 * stage));
            let zero = k.mov(0u32);
            keys.copy(k, k_base, zero, sequence.keys);
            values.copy(k, v_base, zero, sequence.keys);
            k.cp_async_commit();

            let q_at = layout.start(k, Load::A, base, &warp, warp.row);
            let k_at = layout.start(k, Load::BTransposed, k_base, &warp, zero);
            let v_at = layout.start(k, Load::B, v_base, &warp, zero);
            let o = k.registers::<F32>("o", (self.padded / 2) as usize);
            let s = k.registers::<F32>("score", (TILE / 2) as usize);
            let state = [0, 1].map(|_| RowState::new(k));
            o.iter().for_each(|&o| k.assign(o, 0.0f32));
            let factor = k.mul(scale, std::f32::consts::LOG2_E);
            let rows = warp.rows(k, first);
            let mask = mask.load(k, &sequence, rows);
            let offset = k.variable::<U32>("stage", 0u32);
            k.for_(0u32, sequence.keys, TILE, |key| {
                k.cp_async_wait(0);
                k.bar_sync();
                let next = k.xor(offset, 2 * stage);
                let following = k.add(key, TILE);
                k.if_(k.lt(following, sequence.keys), || {
                    keys.copy(k, k.offset(k_base, next), following, sequence.keys);
                    values.copy(k, k.offset(v_base, next), following, sequence.keys);
                });
                k.cp_async_commit();
                k.comment("s = q k^T");
                s.iter().for_each(|&s| k.assign(s, 0.0f32));
                layout.times_transposed::<P>(k, &s, q_at, k.offset(k_at, offset), 0);
                layout.hide_beyond(k, &s, key, sequence.keys, warp.lane);
                k.comment("p = exp2((s - max) * scale * log2 e)");
                for (half, state) in state.iter().enumerate() {
                    let shrink = state.update(k, &s, half, factor);
                    scale_half(k, &o, half, shrink);
                }
                mask.apply(k, &s, key, warp.lane);
                k.comment("o += p v");
                layout.times::<P>(k, &o, &layout.operand::<P>(k, self.storage, &s), k.offset(v_at, offset), 0);
                k.assign(offset, next);
            });
            k.comment("out = o / l; lse = m * scale + ln l");
            k.cp_async_wait(0);
            RowState::finish_rows(k, &state, scale, &o, &sequence, &warp, rows, lse);
            let hidden = k.mul_lo(sequence.heads, sizes.head_size);
            layout.store_rows(k, self, base, &warp, &o, out, hidden, first, &sequence, &sizes);
        });
    }
}

/// Running maximum and sum of one row of a lane.
pub(super) struct RowState {
    max: Reg<F32>,
    sum: Reg<F32>,
}

impl RowState {
    pub(super) fn new(k: &Entry) -> Self {
        Self { max: k.variable("max", f32::NEG_INFINITY), sum: k.variable("sum", 0.0f32) }
    }

    /// Replaces the scores of half `half` by exponentials and updates the state; returns the outputs' rescaling factor.
    pub(super) fn update(&self, k: &Entry, s: &[Reg<F32>], half: usize, factor: Reg<F32>) -> Reg<F32> {
        let own: Vec<Reg<F32>> = s.chunks_exact(4).flat_map(|four| four[2 * half..2 * half + 2].to_vec()).collect();
        let greatest = own[1..].iter().fold(own[0], |max, &s| k.max(max, s));
        let greatest = k.max(self.max, k.fold_lanes(greatest, 4, Fold::Max));
        let minus = k.mul(greatest, k.neg(factor));
        let shrink = k.ex2_approx(k.fma(self.max, factor, minus));
        k.assign(self.max, greatest);
        for &s in &own {
            k.assign(s, k.ex2_approx(k.fma(s, factor, minus)));
        }
        let mut sums = own;
        while sums.len() > 1 {
            sums = sums.chunks(2).map(|pair| k.add(pair[0], pair[1])).collect();
        }
        k.fma_into(self.sum, self.sum, shrink, sums[0]);
        shrink
    }

    /// Divides the outputs of both halves of a warp's rows by their sums, and writes lse of existing rows.
    pub(super) fn finish_rows(
        k: &Entry,
        state: &[RowState; 2],
        scale: Reg<F32>,
        o: &[Reg<F32>],
        sequence: &Sequence,
        warp: &Warp,
        rows: [Reg<U32>; 2],
        lse: Ptr<Global>,
    ) {
        for (half, state) in state.iter().enumerate() {
            let (inverse, lse_of) = state.finish(k, scale);
            scale_half(k, o, half, inverse);
            let token = k.add(sequence.start, rows[half]);
            let writes = k.and(k.lt(rows[half], sequence.length), k.setp(Compare::Eq, warp.pair, 0u32));
            let at = k.index(lse, k.mad_lo(token, sequence.heads, sequence.head), 4u32);
            k.when(writes, || k.st(at.at(0), [lse_of]));
        }
    }

    /// 1 / l and lse.
    fn finish(&self, k: &Entry, scale: Reg<F32>) -> (Reg<F32>, Reg<F32>) {
        let sum = k.fold_lanes(self.sum, 4, Fold::Sum);
        let log = k.ln(sum, Precision::Single);
        (k.reciprocal(sum, Precision::Single), k.fma(self.max, scale, log))
    }
}
