//! Attention over ragged sequences on the tensor cores: backward, without atomics.
//!
//! ```text
//! δ  = Σ_d dout ∘ out            P = exp(scale · q kᵀ - lse)         dS = P ∘ (dout vᵀ ∘ M - δ)
//! dq = scale · dS k              dk = scale · dSᵀ q                  dv = (P ∘ M)ᵀ dout
//! ```
//!
//! dq is a sum over keys, dk and dv are sums over queries. A single kernel would have to accumulate one of them across
//! blocks, in the order in which blocks finish. Two kernels, each the only writer of its outputs, avoid that, but compute
//! the scores twice (seven products instead of five).
//!
//! ```text
//! queries   64 queries a block: q, dout resident; k, v streamed          dS [16 queries, 64 keys] a warp  dq += dS k
//! keys      64 keys a block: k, v resident; q, dout, lse, δ streamed     dSᵀ [16 keys, 64 queries] a warp  dk += dSᵀ q
//!           scores are computed transposed, so that Pᵀ and dSᵀ are operands in place        dv += (P ∘ M)ᵀ dout
//! delta     eight lanes a row
//! ```
//!
//! Transposed, a lane's keys are g and g + 8 of its warp's 16: two bytes of one word of a counter a query, and 14 would be
//! wasted. So a lane draws a counter of two queries, which have bytes for all warps, compares their bytes and shares the
//! results through shared memory as 32 bits:
//!
//! ```text
//! lane 4g + t of warp w draws counter t (of the block of 64 keys) of queries 16w + 2g and 16w + 2g + 1
//! bits [32 pairs of queries][4 counters] u32: bit 8·j + 4·(query mod 2) + w is byte j of word w, that is
//!                                             key 16w + 8·(j / 2) + 2t + j mod 2
//! ```
//!
//! Source: FlashAttention-2 (Dao 2023). Cost: 14·S·D FLOP a query and head.
//!
//! # Arguments
//!
//! ```text
//! delta     out, dout, delta, rows (T·A), head_size
//! queries   q, k, v, dout, cu_seqlens, keys, lse, delta, dq, [mask], ld, head_size, score_scale, gradient_ld
//! keys      q, k, v, dout, cu_seqlens, keys, lse, delta, dk, dv, [mask], ld, head_size, score_scale, gradient_ld
//! ```
//!
//! dout, like out, is [T, H]; rows of dq, dk and dv are `gradient_ld` elements apart.

use super::{
    arguments::{AttentionArgs, AttentionParams, DeltaArgs},
    sm80::{DELTA_LANES, Flash, PAIR_BYTES, THREADS, TILE},
    tile::{Copier, InputParams, Layout, Sequence, Sizes, SoftmaxMask, Warp, required, scale_half},
};
use crate::arguments::{Load as _, all};
use crate::dropout::Mask;
use ptx::{
    Compare, Entry, F32, Fold, Global, Pair, PointerParam, Ptr, Read, Reg, Shared, Special, U32, fragment::Load,
};

impl Flash {
    pub(super) fn delta(&self, k: &Entry) {
        let params = DeltaArgs::declare(k, &all);
        let [out, dout, delta] = [&params.out, &params.dout, &params.delta].map(|param| param.load(k));
        let (rows, head_size) = (params.rows.load(k), params.head_size.load(k));
        let thread = k.special(Special::TidX);
        let row = k.mad_lo(k.special(Special::CtaidX), THREADS / DELTA_LANES, k.shr(thread, DELTA_LANES.ilog2()));
        let lane = k.and(thread, DELTA_LANES - 1);
        // A group of lanes without a row computes the last one, because all lanes take part in the shuffles.
        let exists = k.lt(row, rows);
        let row = k.min_u32(row, k.sub(rows, 1u32));
        let first = k.mul_lo(row, head_size);
        let sum = k.variable("sum", 0.0f32);
        k.for_(k.shl(lane, 3), head_size, 8 * DELTA_LANES, |column| {
            let at = |matrix: Ptr<Global>| k.index(matrix, k.add(first, column), self.storage.bytes()).at(0);
            let load = |matrix| match self.aligned {
                true => k.load_elements(self.storage, at(matrix), 8, Read::Once),
                false => k.load_numbers_below(self.storage, at(matrix), 8, [column, head_size], Read::Once),
            };
            for (x, y) in load(out).into_iter().zip(load(dout)) {
                k.fma_into(sum, x, y, sum);
            }
        });
        let sum = k.fold_lanes(sum, DELTA_LANES, Fold::Sum);
        let writes = k.and(exists, k.setp(Compare::Eq, lane, 0u32));
        k.when(writes, || k.st(k.index(delta, row, 4u32).at(0), [sum]));
    }

    /// Rows of the streamed tile that a warp processes at a time: fewer if the accumulators of D columns fill the
    /// registers.
    fn width(&self) -> u32 {
        if self.padded == 128 { 32 } else { TILE }
    }

    pub(super) fn queries<P: Pair>(&self, k: &Entry) {
        let ([lse, delta, dq], kernel) = self.prologue(k, |p| [&p.lse, required(&p.delta), required(&p.dq)]);
        let Prologue { sequence, first, scale, base, .. } = &kernel;
        k.if_(k.lt(*first, sequence.length), || {
            let Operands { warp, copiers: [q, keys, values, dout], tiles } = kernel.operands(k, self);
            let (layout, tile, zero) = (&kernel.layout, kernel.layout.tile.bytes(), k.mov(0u32));
            q.copy(k, tiles[0], *first, sequence.length);
            dout.copy(k, tiles[1], *first, sequence.length);
            keys.copy(k, tiles[2], zero, sequence.keys);
            values.copy(k, tiles[3], zero, sequence.keys);
            k.cp_async_commit();

            let [q_at, dout_at] = [0, 1].map(|i| layout.start(k, Load::A, tiles[i], &warp, warp.row));
            let [k_at, v_at] = [2, 3].map(|i| layout.start(k, Load::BTransposed, tiles[i], &warp, zero));
            let k_mn_at = layout.start(k, Load::B, tiles[2], &warp, zero);
            let sums = k.registers::<F32>("dq", (self.padded / 2) as usize);
            sums.iter().for_each(|&sum| k.assign(sum, 0.0f32));
            let scores = ["score", "dp"].map(|name| k.registers::<F32>(name, (self.width() / 2) as usize));
            let factor = k.mul(*scale, std::f32::consts::LOG2_E);
            let rows = warp.rows(k, *first);
            let last = k.sub(sequence.length, 1u32);
            let of_row = |vector: Ptr<Global>, row| {
                let token = k.add(sequence.start, k.min_u32(row, last));
                k.ld::<F32, 1>(k.index(vector, k.mad_lo(token, sequence.heads, sequence.head), 4u32).at(0))[0]
            };
            let minus_lse = rows.map(|row| k.mul(of_row(lse, row), -std::f32::consts::LOG2_E));
            let delta = rows.map(|row| of_row(delta, row));
            let mask = kernel.mask.load(k, sequence, rows);
            let offset = k.variable::<U32>("stage", 0u32);
            k.for_(0u32, sequence.keys, TILE, |key| {
                k.cp_async_wait(0);
                k.bar_sync();
                let next = k.xor(offset, 2 * tile);
                let following = k.add(key, TILE);
                k.if_(k.lt(following, sequence.keys), || {
                    keys.copy(k, k.offset(tiles[2], next), following, sequence.keys);
                    values.copy(k, k.offset(tiles[3], next), following, sequence.keys);
                });
                k.cp_async_commit();
                let mask = mask.draw(k, key, warp.lane);
                let [k_at, v_at, k_mn_at] = [k_at, v_at, k_mn_at].map(|at| k.offset(at, offset));
                for part in (0..TILE).step_by(self.width() as usize) {
                    let [s, dp] = &scores;
                    k.comment("s = q k^T; dp = dout v^T");
                    s.iter().chain(dp).for_each(|&x| k.assign(x, 0.0f32));
                    layout.times_transposed::<P>(k, s, q_at, k_at, part);
                    layout.times_transposed::<P>(k, dp, dout_at, v_at, part);
                    layout.hide_beyond(k, s, k.add(key, part), sequence.keys, warp.lane);
                    let of_mask = |i: usize| mask.as_ref().map(|mask| mask.factor(k, (part / 2) as usize + i));
                    score_gradients(k, &scores, factor, minus_lse, delta, &of_mask);
                    k.comment("dq += ds k");
                    layout.times::<P>(k, &sums, &layout.operand::<P>(k, self.storage, s), k_mn_at, part);
                }
                k.assign(offset, next);
            });
            k.cp_async_wait(0);
            (0..2).for_each(|half| scale_half(k, &sums, half, *scale));
            kernel.store(k, self, *base, &warp, &sums, dq);
        });
    }

    pub(super) fn keys<P: Pair>(&self, k: &Entry) {
        let ([lse, delta, dk, dv], kernel) =
            self.prologue(k, |p| [&p.lse, required(&p.delta), required(&p.dk), required(&p.dv)]);
        let Prologue { sequence, first, scale, base, .. } = &kernel;
        k.if_(k.lt(*first, sequence.length), || {
            let Operands { warp, copiers: [q, keys, values, dout], tiles } = kernel.operands(k, self);
            let (layout, tile, zero) = (&kernel.layout, kernel.layout.tile.bytes(), k.mov(0u32));
            let rows = QueryRows::new(k, k.offset(*base, 6 * tile), sequence, lse, delta, &warp);
            keys.copy(k, tiles[0], *first, sequence.keys);
            values.copy(k, tiles[1], *first, sequence.keys);
            q.copy(k, tiles[2], zero, sequence.length);
            dout.copy(k, tiles[3], zero, sequence.length);
            k.cp_async_commit();
            rows.copy(k, zero, zero, sequence.length);

            let [k_at, v_at] = [0, 1].map(|i| layout.start(k, Load::A, tiles[i], &warp, warp.row));
            let [q_at, dout_at] = [2, 3].map(|i| layout.start(k, Load::BTransposed, tiles[i], &warp, zero));
            let [q_mn_at, dout_mn_at] = [2, 3].map(|i| layout.start(k, Load::B, tiles[i], &warp, zero));
            let [dk_sums, dv_sums] = ["dk", "dv"].map(|name| k.registers::<F32>(name, (self.padded / 2) as usize));
            dk_sums.iter().chain(&dv_sums).for_each(|&sum| k.assign(sum, 0.0f32));
            let scores = ["score", "dp"].map(|name| k.registers::<F32>(name, (self.width() / 2) as usize));
            let factor = k.mul(*scale, std::f32::consts::LOG2_E);
            let mask = kernel.mask.mask(k).map(|mask| (rows.bits(k, &warp), mask));
            let offset = k.variable::<U32>("stage", 0u32);
            // The gradients of tokens that are not keys are 0: the loop is empty if the block has no key.
            let queries = k.selp(sequence.length, 0u32, k.lt(*first, sequence.keys));
            k.for_(0u32, queries, TILE, |query| {
                k.cp_async_wait(0);
                k.bar_sync();
                let next = k.xor(offset, 2 * tile);
                let following = k.add(query, TILE);
                k.if_(k.lt(following, sequence.length), || {
                    q.copy(k, k.offset(tiles[2], next), following, sequence.length);
                    dout.copy(k, k.offset(tiles[3], next), following, sequence.length);
                    rows.copy(k, next, following, sequence.length);
                });
                k.cp_async_commit();
                if let Some((bits, mask)) = &mask {
                    bits.draw(k, mask, query, *first, sequence, &warp);
                    k.bar_sync();
                }
                let [q_at, dout_at, q_mn_at, dout_mn_at] =
                    [q_at, dout_at, q_mn_at, dout_mn_at].map(|at| k.offset(at, offset));
                for part in (0..TILE).step_by(self.width() as usize) {
                    if self.width() < TILE {
                        // Not for synchronization: it keeps the compiler from loading the fragments of later parts
                        // early, for which there are no registers.
                        k.warp_sync();
                    }
                    let [s, dp] = &scores;
                    k.comment("s^T = k q^T; dp^T = v dout^T");
                    s.iter().chain(dp).for_each(|&x| k.assign(x, 0.0f32));
                    layout.times_transposed::<P>(k, s, k_at, q_at, part);
                    layout.times_transposed::<P>(k, dp, v_at, dout_at, part);
                    rows.score_gradients(k, &scores, factor, mask.as_ref(), offset, part, &warp);
                    k.comment("dv += (p m)^T dout; dk += ds^T q");
                    layout.times::<P>(k, &dv_sums, &layout.operand::<P>(k, self.storage, s), dout_mn_at, part);
                    layout.times::<P>(k, &dk_sums, &layout.operand::<P>(k, self.storage, dp), q_mn_at, part);
                }
                k.assign(offset, next);
            });
            k.cp_async_wait(0);
            for (half, row) in warp.rows(k, *first).into_iter().enumerate() {
                scale_half(k, &dk_sums, half, *scale);
                let is_key = k.lt(row, sequence.keys);
                for four in dk_sums.chunks_exact(4).chain(dv_sums.chunks_exact(4)) {
                    four[2 * half..2 * half + 2].iter().for_each(|&x| k.assign(x, k.selp(x, 0.0f32, is_key)));
                }
            }
            // All threads have read k and v: their tiles are reused for the results.
            k.bar_sync();
            for (i, (sums, matrix)) in [(dk_sums, dk), (dv_sums, dv)].into_iter().enumerate() {
                kernel.store(k, self, tiles[i], &warp, &sums, matrix);
            }
        });
    }

    /// Declares and loads the parameters of a kernel, including `vectors`, and finds the block's sequence.
    fn prologue<const N: usize>(
        &self,
        k: &Entry,
        vectors: impl FnOnce(&AttentionParams) -> [&PointerParam; N],
    ) -> ([Ptr<Global>; N], Prologue) {
        let params = AttentionArgs::declare(k, &|name| self.parameters().has(name));
        let inputs = InputParams::new(&params);
        let vectors = vectors(&params).map(|param| param.load(k));
        let mask = SoftmaxMask::new(&params);
        let sizes = inputs.sizes(k);
        let (scale, gradient_ld) = (params.score_scale.load(k), required(&params.gradient_ld).load(k));
        let (base, layout) = (k.dynamic_shared(128), Layout::new(self.padded));
        let sequence = Sequence::find(k, &inputs, &sizes);
        let first = k.mul_lo(k.special(Special::CtaidX), TILE);
        (vectors, Prologue { inputs, sizes, mask, scale, gradient_ld, base, layout, sequence, first })
    }
}

/// State common to the queries' and the keys' kernel.
struct Prologue {
    inputs: InputParams,
    sizes: Sizes,
    mask: SoftmaxMask,
    scale: Reg<F32>,
    gradient_ld: Reg<U32>,
    /// Address of the tiles in shared memory.
    base: Ptr<Shared>,
    layout: Layout,
    sequence: Sequence,
    /// First row of the block's tile in its sequence.
    first: Reg<U32>,
}

/// Thread position, and copiers of q, k, v and dout with the addresses of the first four tiles.
struct Operands {
    warp: Warp,
    copiers: [Copier; 4],
    tiles: [Ptr<Shared>; 4],
}

impl Prologue {
    fn operands(&self, k: &Entry, flash: &Flash) -> Operands {
        let Self { inputs, sizes, layout, sequence, .. } = self;
        let warp = Warp::find(k);
        let hidden = k.mul_lo(sequence.heads, sizes.head_size);
        let [q, keys, values] =
            [0, 1, 2].map(|i| Copier::new(k, flash, layout, sizes, sequence, inputs.matrix(k, i), warp.thread));
        let dout = inputs.matrix(k, 3);
        let dout = Copier::with_ld(k, flash, layout, hidden, sizes, sequence, dout, warp.thread);
        let tiles = [0, 1, 2, 3].map(|i| k.offset(self.base, i * layout.tile.bytes()));
        Operands { warp, copiers: [q, keys, values, dout], tiles }
    }

    /// Stores the block's rows of a gradient through the tile at `place`.
    fn store(&self, k: &Entry, flash: &Flash, place: Ptr<Shared>, warp: &Warp, sums: &[Reg<F32>], to: Ptr<Global>) {
        let Self { gradient_ld, first, sequence, sizes, layout, .. } = self;
        layout.store_rows(k, flash, place, warp, sums, to, *gradient_ld, *first, sequence, sizes);
    }
}

/// Replaces the scores by dS.
fn score_gradients(
    k: &Entry,
    [s, dp]: &[Vec<Reg<F32>>; 2],
    factor: Reg<F32>,
    minus_lse: [Reg<F32>; 2],
    delta: [Reg<F32>; 2],
    factors: &dyn Fn(usize) -> Option<Reg<F32>>,
) {
    k.comment("ds = p (dp m - delta)");
    for (i, (&s, &dp)) in s.iter().zip(dp).enumerate() {
        let half = i / 2 % 2;
        let p = k.ex2_approx(k.fma(s, factor, minus_lse[half]));
        let dp = factors(i).map_or(dp, |factor| k.mul(dp, factor));
        k.assign(s, k.mul(p, k.sub(dp, delta[half])));
    }
}

/// Values per query of a tile in the keys' kernel: -lse·log₂ e, δ, and the mask.
struct QueryRows {
    /// Two stages of [lse 64, δ 64], then the bits of the mask.
    base: Ptr<Shared>,
    /// Source of this thread's copies: lse or δ of one query.
    from: Ptr<Global>,
    is_delta: Reg<ptx::Pred>,
    query: Reg<U32>,
    place: Ptr<Shared>,
    heads: Reg<U32>,
}

impl QueryRows {
    fn new(
        k: &Entry,
        base: Ptr<Shared>,
        sequence: &Sequence,
        lse: Ptr<Global>,
        delta: Ptr<Global>,
        warp: &Warp,
    ) -> Self {
        let query = k.and(warp.thread, TILE - 1);
        let is_delta = k.setp(Compare::Ge, warp.thread, TILE);
        let from = k.pointer(k.selp(k.address_of(delta), k.address_of(lse), is_delta));
        let from = k.index(from, k.mad_lo(sequence.start, sequence.heads, sequence.head), 4u32);
        let place = k.index(base, warp.thread, 4u32);
        Self { base, from, is_delta, query, place, heads: sequence.heads }
    }

    /// Offset in `base` of the stage whose tiles are at `offset` bytes (0, or two tiles) from the first stage's.
    fn stage(&self, k: &Entry, offset: Reg<U32>) -> Reg<U32> {
        k.selp(0u32, PAIR_BYTES, k.setp(Compare::Eq, offset, 0u32))
    }

    /// Copies lse and δ of queries `first .. first + 64`; a query from `end` on gets p = 0 and δ = 0.
    fn copy(&self, k: &Entry, offset: Reg<U32>, first: Reg<U32>, end: Reg<U32>) {
        let query = k.add(first, self.query);
        let value = k.selp(0.0f32, f32::INFINITY, self.is_delta);
        let from = k.index(self.from, k.mul_lo(query, self.heads), 4u32);
        k.when(k.lt(query, end), || k.ld_into(from.at(0), [value]));
        let scaled = k.selp(value, k.mul(value, -std::f32::consts::LOG2_E), self.is_delta);
        k.st(k.offset(self.place, self.stage(k, offset)).at(0), [scaled]);
    }

    /// Loads -lse·log₂ e and δ of the lane's two queries of the `i`-th eight.
    fn of_eight(&self, k: &Entry, offset: Reg<U32>, i: u32, warp: &Warp) -> ([Reg<F32>; 2], [Reg<F32>; 2]) {
        let at = k.index(k.offset(self.base, self.stage(k, offset)), warp.pair, 8u32);
        let bytes = 32 * i as i32;
        (k.ld(at.at(bytes)), k.ld(at.at(bytes + 4 * TILE as i32)))
    }

    fn bits(&self, k: &Entry, warp: &Warp) -> QueryMask {
        QueryMask::new(k, k.offset(self.base, 2 * PAIR_BYTES), warp)
    }

    /// Replaces the scores by (P ∘ M)ᵀ and dP by dSᵀ.
    fn score_gradients(
        &self,
        k: &Entry,
        [s, dp]: &[Vec<Reg<F32>>; 2],
        factor: Reg<F32>,
        mask: Option<&(QueryMask, Mask)>,
        offset: Reg<U32>,
        part: u32,
        warp: &Warp,
    ) {
        k.comment("p^T; ds^T = p^T (dp^T m - delta)");
        for (i, (s, dp)) in (part / 8..).zip(s.chunks_exact(4).zip(dp.chunks_exact(4))) {
            let (minus_lse, delta) = self.of_eight(k, offset, i, warp);
            let factors = mask.map(|(bits, mask)| bits.factors(k, mask, i));
            for j in 0..4 {
                let p = k.ex2_approx(k.fma(s[j], factor, minus_lse[j % 2]));
                let (dropped, gradient) = match &factors {
                    Some(factors) => (k.mul(p, factors[j]), k.mul(dp[j], factors[j])),
                    None => (p, dp[j]),
                };
                k.assign(s[j], dropped);
                k.assign(dp[j], k.mul(p, k.sub(gradient, delta[j % 2])));
            }
        }
    }
}

/// Mask of 64 queries and 64 keys in shared memory, drawn by four warps, read transposed.
pub(super) struct QueryMask {
    /// The bits that this lane draws.
    own: Ptr<Shared>,
    /// The bits of the lane's first pair of queries and its counter.
    pair: Ptr<Shared>,
    /// Bit of the lane's first key in them.
    bit: Reg<U32>,
}

impl QueryMask {
    /// The mask with its bits at `base`.
    pub(super) fn new(k: &Entry, base: Ptr<Shared>, warp: &Warp) -> Self {
        let counter = k.index(base, k.shr(warp.group, 1), 4u32);
        Self {
            own: k.index(k.index(base, warp.row, 8u32), warp.lane, 4u32),
            pair: k.index(counter, warp.pair, 16u32),
            bit: k.mad_lo(k.and(warp.group, 1u32), 8, k.shr(warp.row, 4)),
        }
    }

    /// Draws a counter of two of the queries of the tile at `query` for the keys at `key`, for every lane.
    pub(super) fn draw(
        &self,
        k: &Entry,
        mask: &Mask,
        query: Reg<U32>,
        key: Reg<U32>,
        sequence: &Sequence,
        warp: &Warp,
    ) {
        let counter = k.add(k.shr(key, 4), warp.pair);
        let token = k.add(k.add(sequence.start, query), k.mad_lo(warp.group, 2, warp.row));
        let row = k.mad_lo(token, sequence.heads, sequence.head);
        let [even, odd] = [row, k.add(row, sequence.heads)].map(|row| mask.words(k, row, counter));
        let words = std::array::from_fn(|i| if i < 4 { even[i] } else { odd[i - 4] });
        k.st(self.own.at(0), [mask.whole_words(k).kept(k, words)]);
    }

    /// Dropout factors of the lane's four elements of the `i`-th eight queries, in register order.
    pub(super) fn factors(&self, k: &Entry, mask: &Mask, i: u32) -> [Reg<F32>; 4] {
        let [bits] = k.ld::<U32, 1>(self.pair.at(64 * i as i32));
        let own = k.shr(bits, self.bit);
        // Key g of the even and the odd query, key g + 8 of both.
        [0, 4, 16, 20].map(|bit| {
            let kept = k.setp(Compare::Ne, k.and(own, 1u32 << bit), 0u32);
            k.selp(mask.scale(), 0.0f32, kept)
        })
    }
}
