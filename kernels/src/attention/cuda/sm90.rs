//! Attention's forward pass on Hopper: scores and outputs by `wgmma`, keys and values by TMA.
//!
//! ```text
//! P = softmax(scale · q kᵀ)      out = (P ∘ M) v      lse = ln Σ_key exp(scale · q kᵀ)              (see [`super`])
//!
//! __global__ forward(map_q, map_k, map_v, cu_seqlens, keys, out, lse, [mask], ld, head_size, scale) {     // 384 threads
//!     b = blockIdx.z;  head = blockIdx.y;  first = 128 * blockIdx.x;  if (first >= length of b) return;
//!     if (warpgroup == 0) {                                            // the producer: one thread
//!         setmaxnreg.dec 24;  copy q[128, D], counted at ready;
//!         for (j, every 64 keys) { wait(empty[j % 4]); expect bytes on full[j % 4]; copy k, v -> stage j % 4; }
//!     } else {                                                         // two consumers, 64 queries each
//!         setmaxnreg.inc 240;  wait(ready);  m = -inf;  l = 0;  o[64, D] = 0;
//!         wait(full[0]);  s[64, 64] = q kᵀ;  p = softmax of s;         // wgmma, q from registers, k from shared memory
//!         for (j, every 64 keys but the first) {
//!             wait(full[j % 4]);
//!             s[64, 64] = q kᵀ;                                        // of these keys: a group of wgmma
//!             o += (p ∘ M) v;                                          // of those before: another, p from registers
//!             s = -inf beyond the keys;  m, l and s -> p as in `cuda`, a warp 16 rows;         // while o is under way
//!             arrive(empty[(j - 1) % 4]);                              // one lane of each of the eight warps
//!             o *= exp2((m before - m) ..);                            // when it is there
//!         }
//!         o += (p ∘ M) v;                                              // of the last keys
//!         out = o / l;  lse = m · scale + ln l;
//! }   }
//!
//! shared memory: q [2][64 x D] | stage: k [64 x D], v [64 x D], four times | out [2][64 x D] | ready, full[4], empty[4]
//! ```
//!
//! q, k, v lie as boxes of 64 rows x 64 columns, 128 bytes a row, chunks exchanged by the row modulo 8: k runs along the
//! rows of q and k, and down those of v, both of which `wgmma` takes. The sums of `wgmma` lie in a warp's registers as those
//! of `mma` do, so what happens between the two products is what `cuda` does. The exponentials of one tile run beside the last
//! product of the tile before, and beside the products of the other consumer; the ring alone ties the two together.
//!
//! Cost: 4·S·D FLOP a query and head; k and v once for every 128 queries. Of 64 queries and keys with D of 64 the products
//! take 256 cycles, the 4096 exponentials as many of their unit, and 1000 instructions of warps 250. Budget: as the product's
//! (`gemm::cuda::sm90`).
//! Source: FlashAttention-3 (Shah et al. 2024).
//!
//! Limits: D of 64 or 128, rows of whole 16-byte chunks ([`HopperFlash::new`]), else [`super::sm80::Flash`]. TMA
//! knows no sequences: up to 63 tokens behind a sequence's keys are read and count nothing, unless they are not finite.

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
    operation::{Name, Program},
};
use ptx::{
    Compare, Entry, F32, Global, Launch, Major, Pair, Ptr, Reg, Sm, Special, Storage, TensorMap, TensorMapError, U32,
    U64,
};

/// One specialization of the forward pass for Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HopperFlash {
    /// Storage of q, k, v and out: 16 bits.
    pub storage: Storage,
    /// D: 64 or 128.
    pub head_size: u32,
    /// Whether probabilities are dropped.
    pub dropout: bool,
}

impl HopperFlash {
    /// The specialization for heads of `head_size` in rows `ld` apart; `None` where TMA or the tensor cores
    /// cannot serve. Then [`Flash`] computes it.
    pub fn new(storage: Storage, head_size: usize, ld: usize, dropout: bool) -> Option<Self> {
        let supported = storage != Storage::F32 && [64, 128].contains(&head_size) && ld.is_multiple_of(8);
        supported.then_some(Self { storage, head_size: head_size as u32, dropout })
    }

    /// Every specialization but those of f16, of which there is one example.
    pub fn all() -> Vec<Self> {
        let of = |storage, head_size, dropout| Self { storage, head_size, dropout };
        let mut all: Vec<Self> =
            [64, 128].into_iter().flat_map(|d| [false, true].map(|drops| of(Storage::Bf16, d, drops))).collect();
        all.push(of(Storage::F16, 64, true));
        all
    }

    /// Tensor maps of q, k and v, which begin at these addresses: `tokens` rows, `ld` numbers apart,
    /// of `hidden` columns.
    ///
    /// # Errors
    /// An address is no multiple of 16, or there is no token; then [`Flash`] computes it.
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

    /// The name; the tile is queries by keys by head size.
    pub fn name(&self) -> Name {
        let tile = format!("{RESIDENT}x{TILE}x{}", self.head_size);
        let parts = [self.storage.name(), Sm::Sm90a.name(), &tile, "dropout"];
        Name::new("attention.forward", &parts[..if self.dropout { 4 } else { 3 }])
    }

    /// The grid for `sequences` sequences, the longest of `longest` tokens, of `heads` heads; `None` where there is nothing
    /// to compute.
    pub fn launch(&self, sequences: usize, longest: usize, heads: usize) -> Option<Launch> {
        self.shared_layout().launch(sequences, longest, heads)
    }

    fn shared_layout(&self) -> SharedLayout {
        let boxes = self.head_size / 64;
        // Behind the stages the output of both consumers.
        SharedLayout { boxes, resident: 1, more: CONSUMERS * SharedLayout { boxes, resident: 1, more: 0 }.tile_bytes() }
    }

    /// The program.
    pub fn program(&self) -> Program {
        let required_sass = &["HGMMA.64x64x16", "UTMALDG.2D", "SYNCS.PHASECHK", "USETMAXREG", "MUFU.EX2"];
        hopper::program(self.name(), self.storage, self, required_sass)
    }
}

impl hopper::Body for HopperFlash {
    fn write<P: Pair>(&self, k: &Entry) {
        let (dq, dk) = (false, false);
        let own = Parameters { maps: true, backward: false, dq, dk, dropout: self.dropout, sequences: false };
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

/// A warpgroup with 64 queries.
struct Consumer {
    kernel: HopperFlash,
    shared: SharedMemory,
    /// Which of the two.
    group: Reg<U32>,
    warp: Warp,
    /// Its first query in the sequence.
    first: Reg<U32>,
    /// The descriptors of k and v in the first stage.
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
        // The exponentials of the scores that are there; gives what earlier sums are to be scaled by.
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

    /// The operand `i` in `stage`, `bytes` further.
    fn operand(&self, k: &Entry, i: usize, stage: Reg<U32>, bytes: u32) -> Reg<U64> {
        pipeline::advance(k, self.shared.at_stage(k, self.operands[i], stage), bytes)
    }

    /// Starts, as a group, s [64, 64] = q [64, D] · kᵀ.
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
