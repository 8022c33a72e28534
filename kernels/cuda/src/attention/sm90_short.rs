//! Attention's backward pass on Hopper for sequences of up to 128 tokens: all gradients in one kernel.
//!
//! If one block has all keys of a sequence, dq is summed within the block, without atomics or a second kernel:
//!
//! ```text
//! __global__ short(map_q, map_k, map_v, map_dout, cu_seqlens, keys, lse, delta, dq, dk, dv, [mask],          // 384 threads
//!                  ld, head_size, scale, gradient_ld, sequences) {
//!     head = blockIdx.y;
//!     if (warpgroup == 0) {                                              // the producer: a thread, two warps for lse, δ
//!         setmaxnreg.dec 24;
//!         for (b = blockIdx.x; b < sequences; b += gridDim.x) if (length of b > 0) {              // its n-th such sequence
//!             wait(empty[n % 2]);  q, k, v, dout [128, D], lse, δ [128] -> stage n % 2, completes on full[n % 2];
//!         }
//!     } else {                                                           // consumer g: keys, then queries 64·g .. + 64
//!         setmaxnreg.inc 240;
//!         for (the same sequences) {
//!             wait(full[n % 2]);  k, v [64, D] to registers;  dk[64, D] = dv[64, D] = 0;
//!             for (each 64 queries) {
//!                 sᵀ[64, 64] = k qᵀ;  dpᵀ[64, 64] = v doutᵀ;             // two groups of wgmma
//!                 pᵀ = exp2(sᵀ · scale · log2 e - lse · log2 e);  0 in rows that are not keys
//!                 dv += (p ∘ m)ᵀ dout;  dsᵀ = pᵀ ∘ (dpᵀ ∘ mᵀ - δ);  dsᵀ -> shared memory;  dk += dsᵀ q;
//!             }
//!             wait for the other consumer;                               // a named barrier of 256 threads
//!             dq[64, D] = ds[64, 128] k;  arrive(empty[n % 2]);          // wgmma, both operands in shared memory
//!             dq *= scale;  dk *= scale;  store dq, dk, dv
//! }   }   }
//!
//! shared memory: stage: [q, k, v, dout][128 x D], twice | dsᵀ [2][64 queries][128 keys x 64] | out [2][64 x D]
//!                | lse, δ | full[2], empty[2] | mask bits
//! ```
//!
//! dSᵀ is stored as computed, with a key per row, like k: both are MN-major operands of the product dq = dS k, so nothing is
//! transposed. A block processes several sequences; the loads of the next one overlap the products of the current one.
//!
//! Cost: 10·S·D FLOP a query and head, one exponential a score; 7·D elements of device memory traffic a token and head, 9·D
//! with δ. [`sm90_backward`](super::sm90_backward) takes 14·S·D and 12·D. Bound by memory: 128 tokens take 5140 cycles of a
//! multiprocessor for the bytes (without δ), 2560 for the products. Register budget: that of `gemm::sm90`.
//!
//! Limits: D of 64, sequences of up to 128 tokens, rows of whole 16-byte chunks ([`HopperShort::new`]). 128 rows are always
//! loaded; those after a sequence's end, or keys, contribute nothing unless they are inf or NaN.

use super::{
    arguments::{AttentionArgs, Parameters},
    sm80::{Flash, MASK_BYTES, Step, TILE},
    sm80_backward::QueryMask,
    sm90_pipeline::{self as pipeline, CONSUMERS},
    sm90_scores::{self as scores, QueryRow, ROW_BYTES},
    tile::{InputParams, Layout, Sequence, Sizes, SoftmaxMask, Warp, required, scale_half},
};
use crate::{
    hopper::{self, THREADS},
    program::{Name, Program},
};
use ptx::{
    Address, Barrier, BytesParam, Compare, Entry, F32, Fence, Global, Launch, Major, Pair, Param, PointerParam, Ptr,
    Reg, S32, Shared, Sm, Special, Storage, TensorMap, TensorMapError, U32, U64, fragment::Load,
};

/// Supported head size.
const HEAD_SIZE: u32 = 64;
/// Maximum tokens of a sequence: two tiles.
pub(crate) const LONGEST: usize = (TILES * TILE) as usize;
/// Tiles of 64 rows per sequence.
const TILES: u32 = 2;
/// Bytes of a tile.
const TILE_BYTES: u32 = TILE * HEAD_SIZE * 2;
/// Stages of the pipeline, one sequence each; a power of two.
const STAGES: u32 = 2;
/// Tiles of a stage: those of q, k, v and dout.
const STAGE_TILES: u32 = 4 * TILES;
/// Warps of the producer's warpgroup that load lse and δ.
const FILLERS: u32 = TILE / 32;

/// Offset in shared memory, bytes, of dSᵀ: after the stages, two buffers of [query tile][key tile].
const SCORES: u32 = STAGES * STAGE_TILES * TILE_BYTES;
/// Offset of the output tiles, one per consumer.
const OUT: u32 = SCORES + 2 * TILES * TILES * TILE_BYTES;
/// Offset of -lse·log₂ e and δ, [stage][query tile].
const ROWS: u32 = OUT + CONSUMERS * TILE_BYTES;
/// Offset of the full barriers, one per stage.
const FULL: u32 = ROWS + STAGES * TILES * ROW_BYTES;
/// Offset of the empty barriers, one per stage.
const EMPTY: u32 = FULL + 8 * STAGES;
/// Offset of the mask bits with dropout, two tiles per consumer.
const BITS: u32 = EMPTY + 8 * STAGES;

/// Specialization of the backward pass for short sequences on Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HopperShort {
    /// Storage of q, k, v, dout and the gradients: 16 bits.
    pub storage: Storage,
    /// True if probabilities are dropped.
    pub dropout: bool,
}

impl HopperShort {
    /// Specialization for sequences of up to `longest` tokens and heads of `head_size` in rows `ld` elements apart (rows of
    /// the gradients start at multiples of 16 bytes as well); `None` if the shape is not supported.
    pub fn new(storage: Storage, head_size: usize, longest: usize, ld: usize, dropout: bool) -> Option<Self> {
        let supported = storage != Storage::F32 && head_size == HEAD_SIZE as usize && ld.is_multiple_of(8);
        (supported && longest <= LONGEST).then_some(Self { storage, dropout })
    }

    /// All specializations for bf16.
    pub fn all() -> Vec<Self> {
        [false, true].map(|dropout| Self { storage: Storage::Bf16, dropout }).to_vec()
    }

    /// Tensor maps of q, k, v and dout, as in [`HopperBackward::maps`](super::sm90_backward::HopperBackward::maps).
    ///
    /// # Errors
    /// If an address is not a multiple of 16 or `tokens` is 0.
    pub fn maps(
        &self,
        addresses: [u64; 4],
        tokens: usize,
        hidden: usize,
        ld: usize,
    ) -> Result<[TensorMap; 4], TensorMapError> {
        pipeline::backward_maps(self.storage, addresses, tokens, hidden, ld)
    }

    /// Name of the program; the tile is queries x keys x head size.
    pub fn name(&self) -> Name {
        let tile = format!("{LONGEST}x{LONGEST}x{HEAD_SIZE}");
        let variant = if self.dropout { "short_dropout" } else { "short" };
        Name::new("attention.backward", &[self.storage.name(), Sm::Sm90a.name(), &tile, variant])
    }

    /// Launch for `sequences` sequences of `heads` heads with about one block per multiprocessor: a block processes one head
    /// of every gridDim.x-th sequence. `None` if there is nothing to compute.
    pub fn launch(&self, sequences: usize, heads: usize, multiprocessors: usize) -> Option<Launch> {
        let blocks = sequences.min((multiprocessors / heads.max(1)).max(1));
        let shared_bytes = BITS + if self.dropout { CONSUMERS * 2 * MASK_BYTES } else { 0 };
        let launch = Launch { grid: [blocks as u32, heads as u32, 1], block: [THREADS, 1, 1], shared_bytes };
        (sequences > 0 && heads > 0).then_some(launch)
    }

    /// Emits the program.
    pub fn program(&self) -> Program {
        let required_sass =
            &["HGMMA.64x64x16", "UTMALDG.2D", "ACQBULK", "SYNCS.PHASECHK", "USETMAXREG", "MUFU.EX2", "STSM.16.M88.4"];
        hopper::program(self.name(), self.storage, self, required_sass)
    }
}

impl hopper::Body for HopperShort {
    fn write<P: Pair>(&self, k: &Entry) {
        let arguments = Arguments::declare(k, self);
        let base = k.dynamic_shared(1024);
        let thread = k.special(Special::TidX);
        let warp = hopper::warp_number(k, thread);
        k.if_(k.setp(Compare::Eq, thread, 0u32), || {
            hopper::prefetch(k, &arguments.maps);
            for stage in 0..STAGES {
                k.mbarrier_init(base.at((FULL + 8 * stage) as i32), 1 + FILLERS);
                k.mbarrier_init(base.at((EMPTY + 8 * stage) as i32), 4 * CONSUMERS);
            }
            k.fence(Fence::MbarrierInit);
        });
        k.bar_sync();
        hopper::roles(
            k,
            warp,
            CONSUMERS,
            || {
                hopper::producer(k, warp, || produce(k, base, &arguments));
                k.if_(k.lt(k.sub(warp, 1u32), FILLERS), || fill_rows(k, base, &arguments, thread));
            },
            || {
                let (group, warp) = pipeline::consumer(k, warp, thread);
                Consumer::new(k, *self, base, group, warp).run::<P>(k, &arguments);
            },
        );
    }
}

/// Declared parameters.
struct Arguments {
    maps: [BytesParam; 4],
    inputs: InputParams,
    lse: PointerParam,
    delta: PointerParam,
    /// dq, dk, dv.
    gradients: [PointerParam; 3],
    mask: SoftmaxMask,
    sizes: Sizes,
    score_scale: Param<F32>,
    gradient_ld: Param<U32>,
    sequences: Param<U32>,
}

impl Arguments {
    fn declare(k: &Entry, kernel: &HopperShort) -> Self {
        let (dq, dk) = (true, true);
        let own = Parameters {
            maps: true,
            backward: true,
            computes_delta: false,
            dq,
            dk,
            dropout: kernel.dropout,
            sequences: true,
        };
        let params = AttentionArgs::declare(k, &|name| own.has(name));
        let (inputs, mask) = (InputParams::new(&params), SoftmaxMask::new(&params));
        let sizes = inputs.sizes(k);
        let maps = [&params.map_q, &params.map_k, &params.map_v, &params.map_dout];
        Self {
            maps: maps.map(|map| required(map).clone()),
            inputs,
            lse: params.lse,
            delta: required(&params.delta).clone(),
            gradients: [&params.dq, &params.dk, &params.dv].map(|gradient| required(gradient).clone()),
            mask,
            sizes,
            score_scale: params.score_scale,
            gradient_ld: required(&params.gradient_ld).clone(),
            sequences: required(&params.sequences).clone(),
        }
    }

    /// Calls `body` with each non-empty sequence of this block and its index among those.
    fn each_sequence(&self, k: &Entry, body: impl FnOnce(&Sequence, Reg<U32>)) {
        let index = k.variable("number", 0u32);
        let sequences = k.ld_param(self.sequences.clone());
        k.for_(k.special(Special::CtaidX), sequences, k.special(Special::NctaidX), |b| {
            let sequence = Sequence::of(k, &self.inputs, &self.sizes, b);
            k.if_(k.setp(Compare::Ne, sequence.length, 0u32), || {
                body(&sequence, index);
                k.add_into(index, index, 1u32);
            });
        });
    }
}

/// Stage of sequence `index`.
fn stage(k: &Entry, index: Reg<U32>) -> Reg<U32> {
    k.and(index, STAGES - 1)
}

/// Parity of the phase in which sequence `index` is in its stage.
fn parity(k: &Entry, index: Reg<U32>) -> Reg<U32> {
    k.and(k.shr(index, STAGES.ilog2()), 1u32)
}

/// Barrier of sequence `index` in the array at offset `first`.
fn barrier(k: &Entry, base: Ptr<Shared>, first: u32, index: Reg<U32>) -> Address<Shared> {
    k.slot(base, stage(k, index), 8).at(first as i32)
}

/// Waits until the previous sequence in the stage of sequence `index` has been read.
fn wait_empty(k: &Entry, base: Ptr<Shared>, index: Reg<U32>) {
    // A wait for the other parity passes on a new barrier.
    k.mbarrier_wait(barrier(k, base, EMPTY, index), k.xor(parity(k, index), 1u32));
}

/// Code of the producer thread: loads q, k, v and dout of the block's sequences into the stages.
fn produce(k: &Entry, base: Ptr<Shared>, arguments: &Arguments) {
    let maps = [0, 1, 2, 3].map(|i| k.address_of_param(&arguments.maps[i]));
    let signed = |value: Reg<U32>| k.reinterpret::<U32, S32>(value);
    arguments.each_sequence(k, |sequence, index| {
        wait_empty(k, base, index);
        let full = barrier(k, base, FULL, index);
        k.mbarrier_arrive_expect(full, STAGE_TILES * TILE_BYTES);
        let to = k.index(base, stage(k, index), STAGE_TILES * TILE_BYTES);
        let column = signed(sequence.column);
        for tile in 0..TILES {
            let row = if tile == 0 { sequence.start } else { k.add(sequence.start, tile * TILE) };
            for (i, map) in (0..).zip(maps) {
                k.tensor_load(to.at(((i * TILES + tile) * TILE_BYTES) as i32), map, [column, signed(row)], full);
            }
        }
    });
}

/// Code of the filler warps: stores -lse·log₂ e and δ of each sequence's queries to the stages.
fn fill_rows(k: &Entry, base: Ptr<Shared>, arguments: &Arguments, thread: Reg<U32>) {
    let own = k.sub(thread, 32u32);
    let arrives = k.setp(Compare::Eq, k.and(thread, 31u32), 0u32);
    let vectors = [&arguments.lse, &arguments.delta].map(|param| pointer(k, param));
    arguments.each_sequence(k, |sequence, index| {
        let rows = [0, TILE].map(|first| QueryRow::load(k, vectors, sequence, k.add(own, first)));
        wait_empty(k, base, index);
        let to = k.offset(k.index(base, stage(k, index), TILES * ROW_BYTES), ROWS);
        for (tile, row) in (0..).zip(&rows) {
            row.store(k, k.offset(to, tile * ROW_BYTES), own);
        }
        k.warp_sync();
        let full = barrier(k, base, FULL, index);
        k.when(arrives, || k.mbarrier_arrive(full));
    });
}

/// Global pointer in parameter `param`.
fn pointer(k: &Entry, param: &PointerParam) -> Ptr<Global> {
    k.cvta_to_global(k.ld_param_pointer(param.clone()))
}

/// Consumer warpgroup: 64 keys, then 64 queries.
struct Consumer {
    kernel: HopperShort,
    base: Ptr<Shared>,
    /// Index of the consumer: 0 or 1.
    group: Reg<U32>,
    /// First key, and first query, of the consumer.
    first: Reg<U32>,
    warp: Warp,
    layout: Layout,
    /// Barrier of both consumers: dSᵀ is complete.
    both: Barrier,
    /// Barrier of each consumer: the mask is drawn.
    drawn: Option<Barrier>,
    /// Descriptors of tile 0 of shared memory, K-major and MN-major.
    k_major: Reg<U64>,
    mn_major: Reg<U64>,
}

impl Consumer {
    fn new(k: &Entry, kernel: HopperShort, base: Ptr<Shared>, group: Reg<U32>, warp: Warp) -> Self {
        let both = k.named_barrier("all of ds is there");
        let drawn = kernel.dropout.then(|| k.named_barriers("the mask is drawn", CONSUMERS));
        let [k_major, mn_major] =
            [pipeline::k_major(), pipeline::mn_major(TILE)].map(|constant| k.matrix_descriptor(base, constant));
        let (first, layout) = (k.mul_lo(group, TILE), Layout::new(HEAD_SIZE));
        Self { kernel, base, group, first, warp, layout, both, drawn, k_major, mn_major }
    }

    /// `descriptor` of tile 0 moved to tile `index` of shared memory.
    fn tile(&self, k: &Entry, descriptor: Reg<U64>, index: Reg<U32>) -> Reg<U64> {
        k.mad_wide(index, TILE_BYTES / 16, descriptor)
    }

    fn run<P: Pair>(&self, k: &Entry, arguments: &Arguments) {
        let Self { base, ref warp, .. } = *self;
        let sums = ["dq", "dk", "dv"].map(|name| k.registers::<F32>(name, (HEAD_SIZE / 2) as usize));
        let both = ["score", "dp"].map(|name| k.registers::<F32>(name, (TILE / 2) as usize));
        let arrives = k.setp(Compare::Eq, warp.lane, 0u32);
        let scale = k.ld_param(arguments.score_scale.clone());
        let factor = k.mul(scale, std::f32::consts::LOG2_E);
        arguments.each_sequence(k, |sequence, index| {
            k.mbarrier_wait(barrier(k, base, FULL, index), parity(k, index));
            let tiles = k.mul_lo(stage(k, index), STAGE_TILES);
            // Two alternating buffers: a consumer can start the next sequence while the other still reads this one's dSᵀ.
            let ds = k.mad_lo(k.and(index, 1u32), TILES * TILES, k.mov(SCORES / TILE_BYTES));
            self.keys::<P>(k, arguments, sequence, (index, tiles, ds), &sums, &both, factor);
            k.comment("dq = ds k");
            k.fence(Fence::AsyncShared);
            k.bar_sync_some(self.both, 128 * CONSUMERS);
            let exists = k.lt(self.first, sequence.length);
            k.if_(exists, || self.queries::<P>(k, &sums[0], tiles, ds));
            // All lanes of the warp have read lse and δ of the stage.
            k.warp_sync();
            let empty = barrier(k, base, EMPTY, index);
            k.when(arrives, || k.mbarrier_arrive(empty));
            k.comment("dq *= scale; dk *= scale; out they go");
            k.if_(exists, || self.store(k, arguments, sequence, &sums, scale));
        });
    }

    /// Computes dk and dv of this warpgroup's keys, and stores their rows of dSᵀ to shared memory.
    fn keys<P: Pair>(
        &self,
        k: &Entry,
        arguments: &Arguments,
        sequence: &Sequence,
        (index, tiles, ds): (Reg<U32>, Reg<U32>, Reg<U32>),
        [_, dk, dv]: &[Vec<Reg<F32>>; 3],
        both: &[Vec<Reg<F32>>; 2],
        factor: Reg<F32>,
    ) {
        let Self { base, group, ref warp, ref layout, .. } = *self;
        let storage = self.kernel.storage;
        dk.iter().chain(dv).for_each(|&sum| k.assign(sum, 0.0f32));
        let [keys, values] = [1, 2].map(|i| {
            let own = k.add(k.add(tiles, group), i * TILES);
            pipeline::fragments::<P>(k, 1, k.index(base, own, TILE_BYTES), warp)
        });
        k.for_(0u32, sequence.length, TILE, |query| {
            let tile = k.shr(query, TILE.ilog2());
            let (q, dout) = (k.add(tiles, tile), k.add(k.add(tiles, tile), 3 * TILES));
            k.comment("s^T = k q^T; dp^T = v dout^T");
            let starts = [q, dout].map(|index| self.tile(k, self.k_major, index));
            pipeline::multiply_k_major::<P>(k, both, [&keys, &values], starts);
            let mask = self.drawn.zip(arguments.mask.mask(k)).map(|(drawn, mask)| {
                let place = k.mad_lo(group, 2, tile);
                let bits = QueryMask::new(k, k.offset(k.index(base, place, MASK_BYTES), BITS), warp);
                bits.draw(k, &mask, query, self.first, sequence, warp);
                k.bar_sync_of(drawn, group, 128);
                (bits, mask)
            });
            let factors = |i| mask.as_ref().map(|(bits, mask)| bits.factors(k, mask, i));
            let rows = k.mad_lo(stage(k, index), TILES, tile);
            let rows = k.index(k.offset(k.index(base, rows, ROW_BYTES), ROWS), warp.pair, 8u32);
            k.wgmma_wait(1);
            self.hide_rows(k, &both[0], sequence);
            let dropped = scores::probabilities(k, &both[0], rows, factor, &factors);
            k.comment("dv += (p m)^T dout");
            let p = layout.operand::<P>(k, storage, &dropped);
            pipeline::accumulate_mn_major(k, dv, &p, self.tile(k, self.mn_major, dout));
            k.wgmma_wait(1);
            scores::gradients(k, both, rows, &factors);
            let gradients = layout.operand::<P>(k, storage, &both[0]);
            let to = k.mad_lo(tile, TILES, k.add(ds, group));
            let to = layout.start(k, Load::A, k.index(base, to, TILE_BYTES), warp, warp.row);
            for (step, &gradients) in (0..).zip(&gradients) {
                k.stmatrix(layout.tile.step(0, 16 * step).take(k, to), gradients);
            }
            k.comment("dk += ds^T q");
            pipeline::accumulate_mn_major(k, dk, &gradients, self.tile(k, self.mn_major, q));
            k.wgmma_wait(0);
        });
    }

    /// Sets the scores of this lane's rows that are not keys to -∞, if the warpgroup has such rows.
    fn hide_rows(&self, k: &Entry, s: &[Reg<F32>], sequence: &Sequence) {
        let end = k.add(self.first, TILE);
        k.if_(k.setp(Compare::Gt, end, sequence.keys), || {
            for (half, row) in self.warp.rows(k, self.first).into_iter().enumerate() {
                let is_key = k.lt(row, sequence.keys);
                for four in s.chunks_exact(4) {
                    four[2 * half..2 * half + 2]
                        .iter()
                        .for_each(|&s| k.assign(s, k.selp(s, f32::NEG_INFINITY, is_key)));
                }
            }
        });
    }

    /// Computes dq [64, D] = dS [64, 128] · k of this warpgroup's queries, and waits for it.
    fn queries<P: Pair>(&self, k: &Entry, dq: &[Reg<F32>], tiles: Reg<U32>, ds: Reg<U32>) {
        let ds = self.tile(k, self.mn_major, k.mad_lo(self.group, TILES, ds));
        let keys = self.tile(k, self.mn_major, k.add(tiles, TILES));
        let at =
            |from, step: u32| pipeline::advance(k, from, step / 4 * TILE_BYTES + pipeline::mn_major_step(step % 4));
        let adds = [false, true].map(|adds| k.condition(adds));
        let steps: Vec<_> = (0..TILES * TILE / 16).map(|step| (at(ds, step), at(keys, step))).collect();
        k.wgmma_fence();
        for (step, (ds, keys)) in steps.into_iter().enumerate() {
            k.wgmma::<P>(dq, (ds, Major::Mn), (keys, Major::Mn), adds[usize::from(step > 0)]);
        }
        k.wgmma_commit();
        k.wgmma_wait(0);
    }

    /// Multiplies dq and dk by the score scale and stores the gradients.
    fn store(&self, k: &Entry, arguments: &Arguments, sequence: &Sequence, sums: &[Vec<Reg<F32>>; 3], scale: Reg<F32>) {
        let Self { kernel: HopperShort { storage, dropout }, base, group, first, ref warp, ref layout, .. } = *self;
        let plain = Flash { step: Step::Forward, storage, padded: HEAD_SIZE, dropout, aligned: true };
        let place = k.offset(k.index(base, group, TILE_BYTES), OUT);
        let pitch = k.ld_param(arguments.gradient_ld.clone());
        for (i, (sums, gradient)) in sums.iter().zip(&arguments.gradients).enumerate() {
            if i < 2 {
                (0..2).for_each(|half| scale_half(k, sums, half, scale));
            }
            let to = pointer(k, gradient);
            layout.store_rows(k, &plain, place, warp, sums, to, pitch, first, sequence, &arguments.sizes);
        }
    }
}
