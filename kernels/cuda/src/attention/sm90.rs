//! Attention's forward pass on Hopper: products by `wgmma`, tiles loaded by TMA.
//!
//! ```text
//! P = softmax(scale · q kᵀ)      out = (P ∘ M) v      lse = ln Σ_key exp(scale · q kᵀ)              (see [`kernels::attention`])
//!
//! __global__ forward(map_q, map_k, map_v, cu_seqlens, keys, out, lse, [mask], ld, head_size, scale) {     // 384 threads
//!     b = blockIdx.z;  head = blockIdx.y;  first = 128 * blockIdx.x;  if (first >= length of b) return;
//!     if (warpgroup == 0) {                                            // the producer: one thread
//!         setmaxnreg.dec 24;  copy q[128, D], completes on ready;
//!         for (tile j of 64 keys) { wait(empty[j % 4]); k, v of tile j -> stage j % 4, completes on full[j % 4]; }
//!     } else {                                                         // two consumers, 64 queries each
//!         setmaxnreg.inc 240;  wait(ready);  m = -inf;  l = 0;  o[64, D] = 0;
//!         wait(full[0]);  s[64, 64] = q kᵀ;  p = softmax of s;         // wgmma, q from registers, k from shared memory
//!         for (tile j of 64 keys, from 1 on) {
//!             wait(full[j % 4]);
//!             s[64, 64] = q kᵀ;                                        // tile j: one wgmma group
//!             o += (p ∘ M) v;                                          // tile j - 1: a second group, p from registers
//!             wait for s;  s = -inf beyond the keys;
//!             m, l and s -> p as in `sm80_forward`, 16 rows a warp;    // overlaps the second group
//!             wait for o;  arrive(empty[(j - 1) % 4]);                 // one lane of each of the eight warps
//!             o *= exp2((m before - m) ..);
//!         }
//!         o += (p ∘ M) v;                                              // the last tile
//!         out = o / l;  lse = m · scale + ln l;
//! }   }
//!
//! shared memory: q [2][64 x D] | stage: k [64 x D], v [64 x D], four times | out [2][64 x D] | ready, full[4], empty[4]
//! ```
//!
//! Tiles of q, k and v are boxes of 64 rows x 64 columns, 128 bytes a row, chunks swizzled by the row modulo 8. q and k are
//! K-major operands, v is MN-major; `wgmma` supports both. The accumulator layout of `wgmma` in a warp's registers is that
//! of `mma`, so the code between the two products is shared with `sm80_forward`. The exponentials of a tile overlap the
//! second product of the previous tile and the products of the other consumer. The consumers synchronize only through the
//! pipeline.
//!
//! Cost: 4·S·D FLOP a query and head; k and v are loaded once per 128 queries. Per 64 queries x 64 keys with D = 64, in
//! cycles of a multiprocessor: products 256, 4096 exponentials 256 (16 a cycle), about 1000 warp instructions 250 (4 a
//! cycle). Register budget: that of `gemm::sm90`.
//! Source: FlashAttention-3 (Shah et al. 2024).
//!
//! Limits: D of 64 or 128, rows of whole 16-byte chunks ([`HopperFlash::new`]), else [`super::sm80::Flash`]. Tensor maps
//! contain no sequence boundaries: up to 63 tokens after a sequence's keys are loaded. Their probability is 0, so they
//! contribute nothing unless their v is inf or NaN.

use super::{
    arguments::{AttentionArgs, Parameters},
    sm80::{Flash, Step, TILE},
    sm80_forward::RowState,
    sm90_pipeline::{self as pipeline, CONSUMERS, Producer, RESIDENT, SharedLayout, SharedMemory},
    tile::{InputParams, Layout, Sequence, Sizes, SoftmaxMask, Warp, required, scale_half},
};
use crate::{
    arguments::Load as _,
    hopper,
    program::{Name, Program},
};
use ptx::{
    Compare, Entry, F32, Global, Launch, Major, Pair, Ptr, Reg, Sm, Special, Storage, TensorMap, TensorMapError, U32,
    U64,
};

/// Specialization of the forward pass for Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HopperFlash {
    /// Storage of q, k, v and out: 16 bits.
    pub storage: Storage,
    /// D: 64 or 128.
    pub head_size: u32,
    /// True if probabilities are dropped.
    pub dropout: bool,
}

impl HopperFlash {
    /// Specialization for heads of `head_size` in rows `ld` elements apart; `None` if TMA or the tensor cores do not support
    /// the shape, which [`Flash`] then computes.
    pub fn new(storage: Storage, head_size: usize, ld: usize, dropout: bool) -> Option<Self> {
        let supported = storage != Storage::F32 && [64, 128].contains(&head_size) && ld.is_multiple_of(8);
        supported.then_some(Self { storage, head_size: head_size as u32, dropout })
    }

    /// All specializations for bf16, and one example for f16.
    pub fn all() -> Vec<Self> {
        let of = |storage, head_size, dropout| Self { storage, head_size, dropout };
        let mut all: Vec<Self> =
            [64, 128].into_iter().flat_map(|d| [false, true].map(|drops| of(Storage::Bf16, d, drops))).collect();
        all.push(of(Storage::F16, 64, true));
        all
    }

    /// Tensor maps of q, k and v at these addresses: `tokens` rows of `hidden` columns, `ld` elements apart.
    ///
    /// # Errors
    /// If an address is not a multiple of 16 or `tokens` is 0; use [`Flash`] then.
    pub fn maps(
        &self,
        addresses: [u64; 3],
        tokens: usize,
        hidden: usize,
        ld: usize,
    ) -> Result<[TensorMap; 3], TensorMapError> {
        let [q, k, v] = addresses.map(|at| TensorMap::matrix(at, self.storage, [tokens, hidden], ld, TILE));
        Ok([q?, k?, v?])
    }

    /// Name of the program; the tile is queries x keys x head size.
    pub fn name(&self) -> Name {
        let tile = format!("{RESIDENT}x{TILE}x{}", self.head_size);
        let parts = [self.storage.name(), Sm::Sm90a.name(), &tile, "dropout"];
        Name::new("attention.forward", &parts[..if self.dropout { 4 } else { 3 }])
    }

    /// Launch for `sequences` sequences of at most `longest` tokens and `heads` heads; `None` if one of them is 0.
    pub fn launch(&self, sequences: usize, longest: usize, heads: usize) -> Option<Launch> {
        self.shared_layout().launch(sequences, longest, heads)
    }

    fn shared_layout(&self) -> SharedLayout {
        let boxes = self.head_size / 64;
        // After the stages: the output tiles of both consumers.
        SharedLayout { boxes, resident: 1, more: CONSUMERS * SharedLayout { boxes, resident: 1, more: 0 }.tile_bytes() }
    }

    /// Emits the program.
    pub fn program(&self) -> Program {
        let required_sass = &["HGMMA.64x64x16", "UTMALDG.2D", "SYNCS.PHASECHK", "USETMAXREG", "MUFU.EX2"];
        hopper::program(self.name(), self.storage, self, required_sass)
    }
}

impl hopper::Body for HopperFlash {
    fn write<P: Pair>(&self, k: &Entry) {
        let (dq, dk) = (false, false);
        let own = Parameters {
            maps: true,
            backward: false,
            computes_delta: false,
            dq,
            dk,
            dropout: self.dropout,
            sequences: false,
        };
        let params = AttentionArgs::declare(k, &|name| own.has(name));
        let maps = [&params.map_q, &params.map_k, &params.map_v].map(required);
        let inputs = InputParams::new(&params);
        let (out, lse) = (required(&params.out).load(k), params.lse.load(k));
        let mask = SoftmaxMask::new(&params);
        let sizes = inputs.sizes(k);
        let scale = params.score_scale.load(k);
        let shared = SharedMemory { base: k.dynamic_shared(1024), layout: self.shared_layout() };
        let thread = k.special(Special::TidX);
        let warp = shared.init(k, thread, 1);
        let sequence = Sequence::find(k, &inputs, &sizes);
        let first = k.mul_lo(k.special(Special::CtaidX), RESIDENT);
        k.if_(k.lt(first, sequence.length), || {
            hopper::roles(
                k,
                warp,
                || {
                    k.if_(k.setp(Compare::Eq, warp, 0u32), || {
                        let one = k.elect();
                        let [q, keys, values] = maps;
                        let producer = Producer { shared, resident: &[q], streamed: [keys, values] };
                        k.if_(one, || producer.run(k, &sequence, first, sequence.keys));
                    });
                },
                || {
                    let consumer = Consumer::new(k, *self, shared, warp, thread, first);
                    consumer.run::<P>(k, &sequence, &sizes, &mask, scale, out, lse);
                },
            );
        });
    }
}

/// Consumer warpgroup: 64 queries.
struct Consumer {
    kernel: HopperFlash,
    shared: SharedMemory,
    /// Index of the consumer: 0 or 1.
    group: Reg<U32>,
    warp: Warp,
    /// First query of the consumer, counted from the start of the sequence.
    first: Reg<U32>,
    /// Descriptors of k and v in stage 0.
    operands: [Reg<U64>; 2],
}

impl Consumer {
    fn new(
        k: &Entry,
        kernel: HopperFlash,
        shared: SharedMemory,
        warp: Reg<U32>,
        thread: Reg<U32>,
        first: Reg<U32>,
    ) -> Self {
        let (group, warp) = pipeline::consumer(k, warp, thread);
        let operands = [shared.streamed(k, 0, pipeline::k_major()), shared.streamed(k, 1, pipeline::mn_major())];
        let first = k.mad_lo(group, TILE, first);
        Self { kernel, shared, group, warp, first, operands }
    }

    fn run<P: Pair>(
        &self,
        k: &Entry,
        sequence: &Sequence,
        sizes: &Sizes,
        mask: &SoftmaxMask,
        scale: Reg<F32>,
        out: Ptr<Global>,
        lse: Ptr<Global>,
    ) {
        let Self { kernel, shared, ref warp, first, .. } = *self;
        let layout = Layout::new(kernel.head_size);
        let o = k.registers::<F32>("o", (kernel.head_size / 2) as usize);
        let s = k.registers::<F32>("score", (TILE / 2) as usize);
        let state = [0, 1].map(|_| RowState::new(k));
        o.iter().for_each(|&o| k.assign(o, 0.0f32));
        let factor = k.mul(scale, std::f32::consts::LOG2_E);
        let rows = warp.rows(k, first);
        let mask = mask.load(k, sequence, rows);
        let arrives = k.setp(Compare::Eq, warp.lane, 0u32);
        let tile = k.variable("tile", 0u32);
        shared.wait_ready(k);
        let q = pipeline::fragments::<P>(k, shared.layout.boxes, shared.resident_tile(k, 0, self.group), warp);
        let p = k.registers::<P>("kept", (TILE / 4) as usize);
        let operand = || p.chunks_exact(4).map(|p| [p[0], p[1], p[2], p[3]]).collect::<Vec<_>>();
        // Replaces the scores of the tile at `key` by probabilities; returns the rescaling factors of the accumulators.
        let softmax = |key| {
            layout.hide_beyond(k, &s, key, sequence.keys, warp.lane);
            k.comment("p = exp2((s - max) * scale * log2 e)");
            let shrink = [0, 1].map(|half| state[half].update(k, &s, half, factor));
            mask.apply(k, &s, key, warp.lane);
            shrink
        };
        let keep = || {
            let rounded = layout.operand::<P>(k, kernel.storage, &s);
            p.iter().zip(rounded.into_iter().flatten()).for_each(|(&p, rounded)| k.assign(p, rounded));
        };
        k.comment("the first keys: s = q k^T");
        shared.wait_full(k, tile);
        self.scores(k, &s, &q, pipeline::stage(k, tile));
        k.wgmma_wait(0);
        softmax(k.mov(0u32));
        keep();
        k.for_(TILE, sequence.keys, TILE, |key| {
            let next = k.add(tile, 1u32);
            shared.wait_full(k, next);
            k.comment("s = q k^T of these keys; o += p v of those before");
            self.scores(k, &s, &q, pipeline::stage(k, next));
            pipeline::accumulate_mn_major(k, &o, &operand(), self.operand(k, 1, pipeline::stage(k, tile), 0));
            k.wgmma_wait(1);
            let shrink = softmax(key);
            k.wgmma_wait(0);
            let empty = shared.empty(k, tile);
            k.when(arrives, || k.mbarrier_arrive(empty));
            (0..2).for_each(|half| scale_half(k, &o, half, shrink[half]));
            keep();
            k.assign(tile, next);
        });
        k.comment("o += p v of the last keys");
        pipeline::accumulate_mn_major(k, &o, &operand(), self.operand(k, 1, pipeline::stage(k, tile), 0));
        k.wgmma_wait(0);
        k.comment("out = o / l; lse = m * scale + ln l");
        RowState::finish_rows(k, &state, scale, &o, sequence, warp, rows, lse);
        let hidden = k.mul_lo(sequence.heads, sizes.head_size);
        let place = k.offset(k.index(shared.base, self.group, layout.tile.bytes()), shared.layout.more());
        let (padded, dropout) = (kernel.head_size, kernel.dropout);
        let plain = Flash { step: Step::Forward, storage: kernel.storage, padded, dropout, aligned: true };
        layout.store_rows(k, &plain, place, warp, &o, out, hidden, first, sequence, sizes);
    }

    /// Descriptor of operand `i` (0: k, 1: v) in `stage`, advanced by `bytes`.
    fn operand(&self, k: &Entry, i: usize, stage: Reg<U32>, bytes: u32) -> Reg<U64> {
        pipeline::advance(k, self.shared.at_stage(k, self.operands[i], stage), bytes)
    }

    /// Starts s [64, 64] = q [64, D] · kᵀ as one `wgmma` group.
    fn scores<P: Pair>(&self, k: &Entry, s: &[Reg<F32>], q: &[[Reg<P>; 4]], stage: Reg<U32>) {
        let of_step = |step| (self.operand(k, 0, stage, pipeline::k_major_step(step)), k.condition(step > 0));
        let steps: Vec<_> = (0..self.kernel.head_size / 16).map(of_step).collect();
        k.wgmma_fence();
        for (&q, (keys, adds)) in q.iter().zip(steps) {
            k.wgmma_registers::<P>(s, q, (keys, Major::K), adds);
        }
        k.wgmma_commit();
    }
}
