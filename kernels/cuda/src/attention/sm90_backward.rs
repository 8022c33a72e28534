//! Attention's backward pass on Hopper: products by `wgmma`, tiles loaded by TMA, without atomics.
//!
//! ```text
//! δ  = Σ_d dout ∘ out            P = exp(scale · q kᵀ - lse)         dS = P ∘ (dout vᵀ ∘ M - δ)
//! dq = scale · dS k              dk = scale · dSᵀ q                  dv = (P ∘ M)ᵀ dout             (see [`kernels::attention`])
//! ```
//!
//! Two kernels, each the only writer of its outputs: `queries` first, which computes δ as well, then `keys`.
//!
//! ```text
//! __global__ keys(map_q, map_k, map_v, map_dout, cu_seqlens, keys, lse, delta, dk, dv, [mask],               // 384 threads
//!                 ld, head_size, scale, gradient_ld) {
//!     b = blockIdx.z;  head = blockIdx.y;  first = 128 * blockIdx.x;
//!     if (warpgroup == 0) {                                            // the producer: a thread, and two warps for lse, δ
//!         setmaxnreg.dec 24;  copy k, v [128, D], completes on ready;
//!         for (tile j of 64 queries) { wait(empty[j % 4]); q, dout, lse, δ -> stage j % 4, completes on full[j % 4]; }
//!     } else {                                                         // two consumers, 64 keys each
//!         setmaxnreg.inc 240;  wait(ready);  dk[64, D] = dv[64, D] = 0;
//!         for (tile j of 64 queries) {
//!             wait(full[j % 4]);
//!             sᵀ[64, 64] = k qᵀ;  dpᵀ[64, 64] = v doutᵀ;               // two groups of wgmma
//!             pᵀ = exp2(sᵀ · scale · log2 e - lse · log2 e);           // overlaps dpᵀ
//!             dv += (p ∘ m)ᵀ dout;                                     // wgmma, pᵀ from the accumulator registers of sᵀ
//!             dsᵀ = pᵀ ∘ (dpᵀ ∘ mᵀ - δ);                               // overlaps dv
//!             dk += dsᵀ q;  arrive(empty[j % 4]);
//!         }
//!         rows that are not keys = 0;  dk *= scale;  store dk and dv through the tiles of k and v
//! }   }
//! __global__ queries(…, dq, …)     the same with q and dout resident, k and v streamed:  s = q kᵀ, dp = dout vᵀ, dq += ds k
//!                                  before: δ of the consumer's rows, from out and dout in device memory, while TMA copies
//! ```
//!
//! A consumer's resident rows are the rows of its gradient accumulators. So P and dS (queries: dS) are rounded in place and
//! are the A operands, in registers, of the products that accumulate gradients. The products of S and dP read streamed tiles
//! K-major, the others MN-major: nothing is transposed, and shared memory holds only tiles, lse, δ and mask bits.
//! `sm90_pipeline` describes the pipeline.
//!
//! # Why two kernels
//!
//! dq is a sum over keys, dk and dv are sums over queries: a single kernel must accumulate one of them across blocks, in an
//! order that does not depend on block scheduling. For 64 queries x 64 keys with D = 64, in cycles of a multiprocessor (a
//! product takes 128; 4.3 TB/s of device memory are 22 bytes a cycle):
//!
//! ```text
//! two kernels                                7 products                                                           896
//! one, writes a partial dq per 128 keys      5 products, 640, overlapped with 8 KiB of f32 written, 367;
//!                                            another kernel reads them, 367                                      1007
//! one, adds to dq in the order of keys       5 products, 640; 8 KiB read and written, 735, unless they hit L2;
//!                                            a block waits for the blocks of earlier keys                      >= 735
//! ```
//!
//! The partial sums of the second variant take 4·S·H/128 bytes a token: with S = 512 as many as q, k, v, out, dout and all
//! gradients together. In the third variant the blocks of a sequence run one after another. Computing the scores twice
//! avoids both.
//!
//! Cost: 14·S·D FLOP a query and head; 12·D elements of device memory traffic a token and head, out for δ
//! included; dout for δ comes from a cache.
//! Register budget: that of `gemm::sm90`.
//! Source: FlashAttention-3 (Shah et al. 2024) for the roles; the transposed scores are FlashAttention-2's (Dao 2023).
//!
//! Limits: D of 64 or 128, rows of whole 16-byte chunks ([`HopperBackward::new`]), else [`super::sm80::Flash`]. As in
//! `sm90`, up to 63 tokens after a sequence's end (or keys) are loaded; they contribute nothing unless they are inf or NaN.

use super::{
    arguments::{AttentionArgs, Parameters},
    sm80::{DELTA_LANES, Flash, MASK_BYTES, Step, TILE},
    sm80_backward::QueryMask,
    sm90_pipeline::{self as pipeline, CONSUMERS, Producer, RESIDENT, STAGES, SharedLayout, SharedMemory},
    sm90_scores::{self as scores, QueryRow, ROW_BYTES},
    tile::{InputParams, Layout, Sequence, Sizes, SoftmaxMask, Warp, required, scale_half},
};
use crate::{
    dropout::Mask,
    hopper,
    program::{Name, Program},
};
use ptx::{
    Barrier, BytesParam, Compare, Entry, F32, Fold, Global, Launch, Major, Pair, Param, PointerParam, Ptr, Read, Reg,
    Shared, Sm, Special, Storage, TensorMap, TensorMapError, U32, U64,
};

/// Warps of the producer's warpgroup that load lse and δ, one query per lane.
const FILLERS: u32 = TILE / 32;

/// Resident rows of a block, whose gradients it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// q and dout; computes dq.
    Queries,
    /// k and v; computes dk and dv.
    Keys,
}

/// Specialization of the backward pass for Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HopperBackward {
    /// Kernel.
    pub side: Side,
    /// Storage of q, k, v, dout and the gradients: 16 bits.
    pub storage: Storage,
    /// D: 64 or 128.
    pub head_size: u32,
    /// True if probabilities are dropped.
    pub dropout: bool,
}

impl HopperBackward {
    /// Specialization for heads of `head_size` in rows `ld` elements apart (rows of the gradients start at multiples of 16
    /// bytes as well); `None` if TMA or the tensor cores do not support the shape, which [`Flash`] then computes.
    pub fn new(side: Side, storage: Storage, head_size: usize, ld: usize, dropout: bool) -> Option<Self> {
        let supported = storage != Storage::F32 && [64, 128].contains(&head_size) && ld.is_multiple_of(8);
        supported.then_some(Self { side, storage, head_size: head_size as u32, dropout })
    }

    /// All specializations for bf16, and one example of each kernel for f16.
    pub fn all() -> Vec<Self> {
        let of = |side, storage, head_size, dropout| Self { side, storage, head_size, dropout };
        let mut all = Vec::new();
        for side in [Side::Queries, Side::Keys] {
            for head_size in [64, 128] {
                all.extend([false, true].map(|drops| of(side, Storage::Bf16, head_size, drops)));
            }
            all.push(of(side, Storage::F16, 64, true));
        }
        all
    }

    /// Tensor maps of q, k, v and dout at these addresses: `tokens` rows of `hidden` columns, `ld` elements apart, those of
    /// dout `hidden` elements.
    ///
    /// # Errors
    /// If an address is not a multiple of 16 or `tokens` is 0; use [`Flash`] then.
    pub fn maps(
        &self,
        addresses: [u64; 4],
        tokens: usize,
        hidden: usize,
        ld: usize,
    ) -> Result<[TensorMap; 4], TensorMapError> {
        pipeline::backward_maps(self.storage, addresses, tokens, hidden, ld)
    }

    /// Name of the program; the tile is resident rows x streamed rows x head size.
    pub fn name(&self) -> Name {
        let tile = format!("{RESIDENT}x{TILE}x{}", self.head_size);
        let side = match self.side {
            Side::Queries => "queries",
            Side::Keys => "keys",
        };
        let variant = format!("{side}{}", if self.dropout { "_dropout" } else { "" });
        Name::new("attention.backward", &[self.storage.name(), Sm::Sm90a.name(), &tile, &variant])
    }

    /// Launch for `sequences` sequences of at most `longest` tokens and `heads` heads; `None` if one of them is 0.
    pub fn launch(&self, sequences: usize, longest: usize, heads: usize) -> Option<Launch> {
        self.shared_layout().launch(sequences, longest, heads)
    }

    /// True if the resident tiles fit into the consumers' registers together with the accumulators.
    fn keeps_in_registers(&self) -> bool {
        self.head_size == 64 || self.side == Side::Queries
    }

    fn shared_layout(&self) -> SharedLayout {
        let more = match (self.side, self.dropout) {
            (Side::Queries, _) => 0,
            (Side::Keys, false) => STAGES * ROW_BYTES,
            (Side::Keys, true) => STAGES * ROW_BYTES + CONSUMERS * 2 * MASK_BYTES,
        };
        SharedLayout { boxes: self.head_size / 64, resident: 2, more }
    }

    /// Emits the program.
    pub fn program(&self) -> Program {
        let required_sass = &["HGMMA.64x64x16", "UTMALDG.2D", "ACQBULK", "SYNCS.PHASECHK", "USETMAXREG", "MUFU.EX2"];
        hopper::program(self.name(), self.storage, self, required_sass)
    }
}

impl hopper::Body for HopperBackward {
    fn write<P: Pair>(&self, k: &Entry) {
        let arguments = Arguments::declare(k, self);
        let shared = SharedMemory { base: k.dynamic_shared(1024), layout: self.shared_layout() };
        let thread = k.special(Special::TidX);
        let fillers = if self.side == Side::Keys { 1 + FILLERS } else { 1 };
        let warp = shared.init(k, thread, fillers, &arguments.maps);
        let produce = |sequence: &Sequence, first, end| {
            let [q, keys, values, dout] = &arguments.maps;
            let (resident, streamed) = match self.side {
                Side::Queries => ([q, dout], [keys, values]),
                Side::Keys => ([keys, values], [q, dout]),
            };
            let producer = Producer { shared, resident: &resident, streamed };
            hopper::producer(k, warp, || producer.run(k, sequence, first, end));
            if self.side == Side::Keys {
                let fills = k.lt(k.sub(warp, 1u32), FILLERS);
                k.if_(fills, || fill_rows(k, shared, &arguments, sequence, thread, end));
            }
        };
        let consume = |sequence: &Sequence, first, end| {
            let (group, warp) = pipeline::consumer(k, warp, thread);
            let first = k.mad_lo(group, TILE, first);
            let consumer = Consumer { kernel: *self, shared, group, first, warp, sequence, end };
            let sums = match self.side {
                Side::Queries => consumer.queries::<P>(k, &arguments),
                Side::Keys => consumer.keys::<P>(k, &arguments),
            };
            consumer.store(k, &sums, &arguments);
        };
        // Each role finds its rows, because lengths are in device memory and the wait for earlier kernels precedes them.
        let (side, arguments) = (self.side, &arguments);
        hopper::roles(
            k,
            warp,
            CONSUMERS,
            || arguments.resident(k, side, produce),
            || arguments.resident(k, side, consume),
        );
    }
}

/// Declared parameters.
struct Arguments {
    maps: [BytesParam; 4],
    inputs: InputParams,
    /// out and dout, where δ is computed.
    rows: Option<[PointerParam; 2]>,
    lse: PointerParam,
    delta: PointerParam,
    gradients: Vec<PointerParam>,
    mask: SoftmaxMask,
    sizes: Sizes,
    score_scale: Param<F32>,
    gradient_ld: Param<U32>,
}

impl Arguments {
    fn declare(k: &Entry, kernel: &HopperBackward) -> Self {
        let (dq, dk) = (kernel.side == Side::Queries, kernel.side == Side::Keys);
        let (computes_delta, dropout) = (dq, kernel.dropout);
        let own = Parameters { maps: true, backward: true, computes_delta, dq, dk, dropout, sequences: false };
        let params = AttentionArgs::declare(k, &|name| own.has(name));
        let (inputs, mask) = (InputParams::new(&params), SoftmaxMask::new(&params));
        let sizes = inputs.sizes(k);
        let maps = [&params.map_q, &params.map_k, &params.map_v, &params.map_dout];
        Self {
            maps: maps.map(|map| required(map).clone()),
            inputs,
            rows: params.out.zip(params.dout).map(|(out, dout)| [out, dout]),
            lse: params.lse,
            delta: required(&params.delta).clone(),
            gradients: [params.dq, params.dk, params.dv].into_iter().flatten().collect(),
            mask,
            sizes,
            score_scale: params.score_scale,
            gradient_ld: required(&params.gradient_ld).clone(),
        }
    }

    /// Sequence of the block, and its first resident row.
    fn block(&self, k: &Entry) -> (Sequence, Reg<U32>) {
        let sequence = Sequence::find(k, &self.inputs, &self.sizes);
        (sequence, k.mul_lo(k.special(Special::CtaidX), RESIDENT))
    }

    /// Calls `body` with [`Arguments::block`] and the number of streamed rows, if the block has resident rows.
    fn resident(&self, k: &Entry, side: Side, body: impl FnOnce(&Sequence, Reg<U32>, Reg<U32>)) {
        let (sequence, first) = self.block(k);
        // dk and dv of tokens that are not keys are 0: no queries are streamed if the block has no key.
        let end = match side {
            Side::Queries => sequence.keys,
            Side::Keys => k.selp(sequence.length, 0u32, k.lt(first, sequence.keys)),
        };
        k.if_(k.lt(first, sequence.length), || body(&sequence, first, end));
    }

    fn scale(&self, k: &Entry) -> Reg<F32> {
        k.ld_param(self.score_scale.clone())
    }
}

/// Global pointer in parameter `param`.
fn pointer(k: &Entry, param: &PointerParam) -> Ptr<Global> {
    k.cvta_to_global(k.ld_param_pointer(param.clone()))
}

/// Address of -lse·log₂ e and δ of tile `tile`.
fn rows_of(k: &Entry, shared: SharedMemory, tile: Reg<U32>) -> Ptr<Shared> {
    k.offset(k.index(shared.base, pipeline::stage(k, tile), ROW_BYTES), shared.layout.more())
}

/// Code of the filler warps: stores -lse·log₂ e and δ of queries `0 .. end` to the stages, 64 queries at a time.
fn fill_rows(
    k: &Entry,
    shared: SharedMemory,
    arguments: &Arguments,
    sequence: &Sequence,
    thread: Reg<U32>,
    end: Reg<U32>,
) {
    let own = k.sub(thread, 32u32);
    let arrives = k.setp(Compare::Eq, k.and(thread, 31u32), 0u32);
    let vectors = [&arguments.lse, &arguments.delta].map(|param| pointer(k, param));
    let tile = k.variable("tile", 0u32);
    k.for_(0u32, end, TILE, |first| {
        let row = QueryRow::load(k, vectors, sequence, k.add(first, own));
        shared.barriers().wait_empty(k, tile, 0);
        row.store(k, rows_of(k, shared, tile), own);
        k.warp_sync();
        let full = shared.barriers().full(k, tile, 0);
        k.when(arrives, || k.mbarrier_arrive(full));
        k.add_into(tile, tile, 1u32);
    });
}

/// Consumer warpgroup: 64 of the resident rows.
struct Consumer<'a> {
    kernel: HopperBackward,
    shared: SharedMemory,
    /// Index of the consumer: 0 or 1.
    group: Reg<U32>,
    /// First row of the consumer, counted from the start of the sequence.
    first: Reg<U32>,
    warp: Warp,
    sequence: &'a Sequence,
    /// Number of streamed rows.
    end: Reg<U32>,
}

/// Resident tile as the A operand of a product.
enum Resident<P: Pair> {
    /// Fragments of 16 columns, which saves shared-memory bandwidth for the streamed tiles.
    Registers { fragments: Vec<[Reg<P>; 4]>, tile: Ptr<Shared> },
    /// Descriptor, if the accumulators leave no registers.
    Shared(Reg<U64>),
}

/// Resident tiles, and descriptors of the streamed tiles in stage 0, K-major and MN-major.
struct Operands<P: Pair> {
    resident: [Resident<P>; 2],
    k_major: [Reg<U64>; 2],
    mn_major: [Reg<U64>; 2],
}

impl<P: Pair> Operands<P> {
    /// Waits for the resident tiles and loads them.
    fn new(k: &Entry, consumer: &Consumer<'_>) -> Self {
        let Consumer { kernel, shared, group, .. } = *consumer;
        let k_major = [0, 1].map(|i| shared.streamed(k, i, pipeline::k_major()));
        let mn_major = [0, 1].map(|i| shared.streamed(k, i, pipeline::mn_major(TILE)));
        shared.wait_ready(k);
        let resident = [0, 1].map(|i| {
            let tile = shared.resident_tile(k, i, group);
            if kernel.keeps_in_registers() {
                let registers = k.registers::<P>("resident", (kernel.head_size / 4) as usize);
                let fragments = registers.chunks_exact(4).map(|four| [four[0], four[1], four[2], four[3]]).collect();
                Resident::Registers { fragments, tile }
            } else {
                Resident::Shared(k.matrix_descriptor(tile, pipeline::k_major()))
            }
        });
        let operands = Self { resident, k_major, mn_major };
        operands.load(k, consumer);
        operands
    }

    fn load(&self, k: &Entry, consumer: &Consumer<'_>) {
        let Consumer { shared, ref warp, .. } = *consumer;
        for resident in &self.resident {
            if let Resident::Registers { fragments, tile } = resident {
                let loaded = pipeline::fragments::<P>(k, shared.layout.boxes, *tile, warp);
                let pairs = fragments.iter().flatten().zip(loaded.iter().flatten());
                pairs.for_each(|(&to, &from)| k.assign(to, from));
            }
        }
    }

    /// Keeps ptxas from giving the fragments' registers to ds: loads them again on a condition that never holds.
    ///
    /// ptxas 12.9 and 13.0 take a fragment that only products in a loop read for dead after its product, so that all tiles
    /// but the first are multiplied by something else (seen on an H200: dq of D = 64 was wrong). A use behind the product
    /// that would take the registers prevents it. `.ci/assemble.py` looks for such registers in the machine code, and sees that
    /// ptxas of CUDA 13.3 needs no such use (triton#9433); drivers have the ptxas of their own CUDA.
    fn keep(&self, k: &Entry, consumer: &Consumer<'_>, streamed: Reg<U32>) {
        k.if_(k.setp(Compare::Eq, streamed, u32::MAX), || self.load(k, consumer));
    }
}

impl Consumer<'_> {
    /// Starts s [64, 64] = (resident tile 0) · (streamed tile 0)ᵀ, and dp likewise from tiles 1, each as one `wgmma` group.
    fn scores<P: Pair>(&self, k: &Entry, operands: &Operands<P>, [s, dp]: &[Vec<Reg<F32>>; 2], stage: Reg<U32>) {
        let steps = self.kernel.head_size / 16;
        let k_major_steps = |tile| {
            (0..steps).map(|step| pipeline::advance(k, tile, pipeline::k_major_step(step, TILE))).collect::<Vec<_>>()
        };
        let products = [(s, 0), (dp, 1)].map(|(sums, i)| {
            let descriptors = match &operands.resident[i] {
                Resident::Registers { .. } => Vec::new(),
                Resident::Shared(tile) => k_major_steps(*tile),
            };
            (
                sums,
                &operands.resident[i],
                descriptors,
                k_major_steps(self.shared.at_stage(k, operands.k_major[i], stage)),
            )
        });
        let adds = [false, true].map(|adds| k.condition(adds));
        k.wgmma_fence();
        for (sums, resident, descriptors, streamed) in products {
            for (step, &streamed) in streamed.iter().enumerate() {
                let (streamed, adds) = ((streamed, Major::K), adds[usize::from(step > 0)]);
                match resident {
                    Resident::Registers { fragments, .. } => {
                        k.wgmma_registers::<P>(sums, fragments[step], streamed, adds)
                    }
                    Resident::Shared(_) => k.wgmma::<P>(sums, (descriptors[step], Major::K), streamed, adds),
                }
            }
            k.wgmma_commit();
        }
    }

    /// Starts sums [64, D] += x [64, 64] · tile as one `wgmma` group; `mn_major` is the tile's descriptor in stage 0.
    fn add<P: Pair>(&self, k: &Entry, sums: &[Reg<F32>], x: &[[Reg<P>; 4]], mn_major: Reg<U64>, stage: Reg<U32>) {
        pipeline::accumulate_mn_major(k, sums, x, self.shared.at_stage(k, mn_major, stage));
    }

    /// Calls `body` with the index, first row and stage of each streamed tile, then releases the stage.
    fn each_tile(&self, k: &Entry, body: impl FnOnce(Reg<U32>, Reg<U32>, Reg<U32>)) {
        let Self { shared, ref warp, end, .. } = *self;
        let arrives = k.setp(Compare::Eq, warp.lane, 0u32);
        let tile = k.variable("tile", 0u32);
        k.for_(0u32, end, TILE, |row| {
            shared.barriers().wait_full(k, tile, 0);
            body(tile, row, pipeline::stage(k, tile));
            if self.kernel.side == Side::Keys {
                // All lanes of the warp have read lse and δ of the stage.
                k.warp_sync();
            }
            let empty = shared.barriers().empty(k, tile, 0);
            k.when(arrives, || k.mbarrier_arrive(empty));
            k.add_into(tile, tile, 1u32);
        });
    }

    /// Accumulators of D columns, initialized to zero.
    fn sums(&self, k: &Entry, name: &'static str) -> Vec<Reg<F32>> {
        let sums = k.registers::<F32>(name, (self.kernel.head_size / 2) as usize);
        sums.iter().for_each(|&sum| k.assign(sum, 0.0f32));
        sums
    }

    /// Computes dq of this warpgroup's queries, without the score scale.
    fn queries<P: Pair>(&self, k: &Entry, arguments: &Arguments) -> Vec<Vec<Reg<F32>>> {
        let Self { ref warp, sequence, .. } = *self;
        let layout = Layout::new(self.kernel.head_size);
        let rows = warp.rows(k, self.first);
        let last = k.sub(sequence.length, 1u32);
        let tokens = rows.map(|row| k.add(sequence.start, k.min_u32(row, last)));
        let delta = self.delta(k, arguments, rows, tokens);
        let lse = pointer(k, &arguments.lse);
        let minus_lse = tokens.map(|token| {
            let [lse] = k.ld::<F32, 1>(k.index(lse, k.mad_lo(token, sequence.heads, sequence.head), 4u32).at(0));
            k.mul(lse, -std::f32::consts::LOG2_E)
        });
        let operands = Operands::new(k, self);
        let dq = self.sums(k, "dq");
        let scores = ["score", "dp"].map(|name| k.registers::<F32>(name, (TILE / 2) as usize));
        let [s, dp] = &scores;
        let factor = k.mul(arguments.scale(k), std::f32::consts::LOG2_E);
        let mask = arguments.mask.load(k, sequence, rows);
        self.each_tile(k, |tile, key, stage| {
            k.comment("s = q k^T; dp = dout v^T");
            self.scores::<P>(k, &operands, &scores, stage);
            let mask = mask.draw(k, key, warp.lane);
            k.wgmma_wait(1);
            layout.hide_beyond(k, s, key, sequence.keys, warp.lane);
            for (i, &s) in s.iter().enumerate() {
                k.assign(s, k.ex2_approx(k.fma(s, factor, minus_lse[i / 2 % 2])));
            }
            k.wgmma_wait(0);
            k.comment("ds = p (dp m - delta)");
            for (i, (&s, &dp)) in s.iter().zip(dp).enumerate() {
                let gradient = mask.as_ref().map_or(dp, |mask| k.mul(dp, mask.factor(k, i)));
                k.assign(s, k.mul(s, k.sub(gradient, delta[i / 2 % 2])));
            }
            k.comment("dq += ds k");
            let ds = layout.operand::<P>(k, self.kernel.storage, s);
            self.add(k, &dq, &ds, operands.mn_major[0], stage);
            k.wgmma_wait(0);
            operands.keep(k, self, tile);
        });
        vec![dq]
    }

    /// Computes δ of this lane's two rows and stores it for the kernel of the keys. Four lanes have a row; each adds up the columns of
    /// two of the eight lanes of the δ kernel of `sm80_backward`, in its order: the same bits.
    fn delta(&self, k: &Entry, arguments: &Arguments, rows: [Reg<U32>; 2], tokens: [Reg<U32>; 2]) -> [Reg<F32>; 2] {
        let Self { kernel: HopperBackward { storage, head_size, .. }, ref warp, sequence, .. } = *self;
        let matrices = arguments.rows.as_ref().expect("declared for the queries");
        let [out, dout] = matrices.each_ref().map(|matrix| pointer(k, matrix));
        let delta = pointer(k, &arguments.delta);
        let hidden = k.mul_lo(sequence.heads, head_size);
        let own = k.mad_lo(warp.pair, 8, sequence.column);
        let leads = k.setp(Compare::Eq, warp.pair, 0u32);
        [0, 1].map(|i| {
            let first = k.mad_lo(tokens[i], hidden, own);
            let [low, high] = [0, 8 * DELTA_LANES / 2].map(|column| {
                (column..head_size).step_by(8 * DELTA_LANES as usize).fold(k.mov(0.0f32), |sum, column| {
                    let load = |matrix| {
                        let at = k.index(matrix, first, storage.bytes()).at((column * storage.bytes()) as i32);
                        k.load_elements(storage, at, 8, Read::Once)
                    };
                    load(out).into_iter().zip(load(dout)).fold(sum, |sum, (x, y)| k.fma(x, y, sum))
                })
            });
            let sum = k.fold_lanes(k.add(low, high), DELTA_LANES / 2, Fold::Sum);
            let writes = k.and(leads, k.lt(rows[i], sequence.length));
            let place = k.index(delta, k.mad_lo(tokens[i], sequence.heads, sequence.head), 4u32);
            k.when(writes, || k.st(place.at(0), [sum]));
            sum
        })
    }

    /// Computes dk, without the score scale, and dv of this warpgroup's keys.
    fn keys<P: Pair>(&self, k: &Entry, arguments: &Arguments) -> Vec<Vec<Reg<F32>>> {
        let Self { shared, ref warp, .. } = *self;
        let layout = Layout::new(self.kernel.head_size);
        let operands = Operands::new(k, self);
        let [dk, dv] = ["dk", "dv"].map(|name| self.sums(k, name));
        let both = ["score", "dp"].map(|name| k.registers::<F32>(name, (TILE / 2) as usize));
        let s = &both[0];
        let factor = k.mul(arguments.scale(k), std::f32::consts::LOG2_E);
        let drawn = self.kernel.dropout.then(|| k.named_barriers("the mask is drawn", CONSUMERS));
        self.each_tile(k, |tile, query, stage| {
            // The Philox round keys are recomputed for every tile: registers are scarcer than instructions.
            let draw = || {
                drawn.zip(arguments.mask.mask(k)).map(|(drawn, mask)| (self.draw(k, &mask, drawn, tile, query), mask))
            };
            // D = 64: drawn while the products run; D = 128: before them, because the accumulators leave no registers.
            let early = if self.kernel.head_size > 64 { draw() } else { None };
            k.comment("s^T = k q^T; dp^T = v dout^T");
            self.scores::<P>(k, &operands, &both, stage);
            let mask = early.or_else(draw);
            let factors = |i| mask.as_ref().map(|(bits, mask)| bits.factors(k, mask, i));
            let rows = k.index(rows_of(k, shared, tile), warp.pair, 8u32);
            k.wgmma_wait(1);
            let dropped = scores::probabilities(k, s, rows, factor, &factors);
            k.comment("dv += (p m)^T dout");
            let p = layout.operand::<P>(k, self.kernel.storage, &dropped);
            self.add(k, &dv, &p, operands.mn_major[1], stage);
            k.wgmma_wait(1);
            scores::gradients(k, &both, rows, &factors);
            k.comment("dk += ds^T q");
            let ds = layout.operand::<P>(k, self.kernel.storage, s);
            self.add(k, &dk, &ds, operands.mn_major[0], stage);
            k.wgmma_wait(0);
        });
        vec![dk, dv]
    }

    /// Draws the warpgroup's mask for the tile of queries at `query`, and synchronizes the warpgroup. Tiles alternate
    /// between two buffers, so that a warp can draw the next tile's mask while others still read this one's.
    fn draw(&self, k: &Entry, mask: &Mask, drawn: Barrier, tile: Reg<U32>, query: Reg<U32>) -> QueryMask {
        let Self { shared, group, ref warp, sequence, first, .. } = *self;
        let place = k.mad_lo(group, 2, k.and(tile, 1u32));
        let bits = k.index(shared.base, place, MASK_BYTES);
        let bits = QueryMask::new(k, k.offset(bits, shared.layout.more() + STAGES * ROW_BYTES), warp);
        bits.draw(k, mask, query, first, sequence, warp);
        k.bar_sync_of(drawn, group, 128);
        bits
    }

    /// Multiplies the first gradient (dq or dk) by the score scale and stores the gradients through the resident tiles.
    fn store(&self, k: &Entry, sums: &[Vec<Reg<F32>>], arguments: &Arguments) {
        let Self { kernel, shared, group, ref warp, .. } = *self;
        let HopperBackward { storage, head_size: padded, dropout, .. } = kernel;
        // Recomputed: the accumulators leave no registers to keep it.
        let (sequence, first) = arguments.block(k);
        let (first, scale) = (k.mad_lo(group, TILE, first), arguments.scale(k));
        for (half, row) in warp.rows(k, first).into_iter().enumerate() {
            scale_half(k, &sums[0], half, scale);
            if kernel.side == Side::Keys {
                let is_key = k.lt(row, sequence.keys);
                for four in sums.iter().flat_map(|sums| sums.chunks_exact(4)) {
                    four[2 * half..2 * half + 2].iter().for_each(|&x| k.assign(x, k.selp(x, 0.0f32, is_key)));
                }
            }
        }
        // D = 64 (one box a row): the box and the output tile have the same layout, so a warp overwrites only its own rows.
        if kernel.head_size > 64 {
            let read = k.named_barriers("all warps have read the resident tiles", CONSUMERS);
            k.bar_sync_of(read, group, 128);
        }
        let (layout, gradient_ld) = (Layout::new(padded), k.ld_param(arguments.gradient_ld.clone()));
        let plain = Flash { step: Step::Forward, storage, padded, dropout, aligned: true };
        for (i, (sums, gradient)) in (0..).zip(sums.iter().zip(&arguments.gradients)) {
            let (place, to) = (shared.resident_tile(k, i, group), pointer(k, gradient));
            layout.store_rows(k, &plain, place, warp, sums, to, gradient_ld, first, &sequence, &arguments.sizes);
        }
    }
}
