//! Attention's forward pass on Hopper: products by `wgmma`, tiles loaded and stored by TMA, a persistent grid.
//!
//! ```text
//! P = softmax(scale · q kᵀ)      out = (P ∘ M) v      lse = ln Σ_key exp(scale · q kᵀ)              (see [`kernels::attention`])
//!
//! __global__ forward(map_q, map_k, map_v, map_out, cu_seqlens, keys, out, lse, [mask], ld, head_size, scale,
//!                    sequences, longest) {                             // C consumers: BQ = 64·C queries a tile, 128·(C + 1) threads
//!     head = blockIdx.y;  per = ⌈longest / BQ⌉;
//!     for (i = blockIdx.x; i < sequences · per; i += gridDim.x) {       // every warpgroup walks the same tiles
//!         b = i / per;  first = i % per · BQ;  if (first >= length of b) continue;       // its n-th tile of queries
//!         if (warpgroup == 0) {                                         // the producer: one thread
//!             wait(q empty[n % 2]);  copy q[BQ, D], completes on q full[n % 2];
//!             for (tile j of 128 keys) { wait(k empty[j % S]); copy k of tile j;  wait(v empty[j % S]); copy v of tile j; }
//!         } else if (this consumer's 64 queries start beyond the sequence) {
//!             release q and each k and v as they arrive;
//!         } else {
//!             wait(q full[n % 2]);  m = -inf;  l = 0;  o[64, D] = 0;
//!             wait(k full[0]);  s[64, 128] = q kᵀ;  arrive(k empty[0]);  p = softmax of s;  // wgmma, operands in shared memory
//!             for (tile j of 128 keys, from 1 on) {
//!                 wait(v full[(j - 1) % S]);  wait(k full[j % S]);
//!                 s[64, 128] = q kᵀ;                                    // tile j: one wgmma group
//!                 o += (p ∘ M) v;                                       // tile j - 1: a second group, p from registers
//!                 wait for s;  arrive(k empty[j % S]);                  // one lane of each warp
//!                 s = -inf beyond the keys;  m, l and s -> p as in `sm80_forward`, 16 rows a warp;
//!                 wait for o;  arrive(v empty[(j - 1) % S]);  o *= exp2((m before - m) ..);
//!             }
//!             arrive(q empty[n % 2]);  o += (p ∘ M) v;  arrive(v empty);               // the last tile
//!             out = o / l;  lse = m · scale + ln l;
//!             wait until TMA has read the previous out;  out -> shared memory;
//!             if (the warp's 16 rows belong to the sequence) TMA stores them;  else the lanes store the rows that do;
//! }   }   }
//!
//! shared memory: q [2][C][64 x D] | stage: k [128 x D], v [128 x D], S times | out [C][64 x D] | full and empty barriers
//! ```
//!
//! Three consumers if D is 64 and a sequence has more than 128 tokens, else two: [`HopperFlash::new`]. With D of 128, o and the
//! scores of three do not fit the registers. S is 4 for D of 64, 2 for D of 128. q, k and v of the next tile are loaded during
//! the products of the current one, and its out is stored during the products of the next. The order of tiles is fixed, so
//! the bits do not depend on the number of blocks; a tile past its sequence's end costs two cached loads.
//!
//! Boxes of q, k and v have 64, 128 and 128 rows x 64 columns, 128 bytes a row, chunks swizzled by the row modulo 8; those of
//! out have 16 rows. q and k are K-major operands, v is MN-major; `wgmma` supports both. The accumulator layout of `wgmma` in
//! a warp's registers is that of `mma`, so the code between the two products is shared with `sm80_forward`. The consumers
//! synchronize only through the pipeline: the exponentials of one overlap the products of the others. ptxas moves the
//! wait for o before the exponentials, so they do not overlap the second product of their own warpgroup.
//!
//! Cost: 4·S·D FLOP a query and head; k and v are loaded once per BQ queries. Per 64 queries x 128 keys with D = 64, in cycles of a
//! multiprocessor: products 512, 8192 exponentials 512 (16 a cycle), about 1600 warp instructions 400 (4 a cycle), shared
//! memory 320 for the operands and 85 for TMA's writes with three consumers (128 bytes a cycle). Register budget: that of
//! `gemm::sm90` with two consumers; with three 128 registers at the start, 32 and 160 after: 128 · (32 + 3 · 160) = 65 536.
//! Source: FlashAttention-3 (Shah et al. 2024).
//!
//! Limits: D of 64 or 128, rows of whole 16-byte chunks ([`HopperFlash::new`]), else [`super::sm80::Flash`]. Tensor maps
//! contain no sequence boundaries: up to 127 tokens after a sequence's keys are loaded. Their probability is 0, so they
//! contribute nothing unless their v is inf or NaN.

use super::{
    arguments::{AttentionArgs, Parameters},
    sm80::{Flash, Step, TILE},
    sm80_forward::RowState,
    sm90_pipeline::{self as pipeline, Barriers, CONSUMERS, ROW},
    tile::{InputParams, Layout, RowMask, Sequence, Sizes, SoftmaxMask, Warp, required, scale_half},
};
use crate::{
    gemm::position,
    hopper::{self, threads},
    program::{Name, Program},
};
use ptx::{
    Address, BytesParam, Compare, Entry, F32, Fence, Generic, Global, Launch, Major, Pair, Param, PointerParam, Pred,
    Ptr, Reg, S32, Shared, Sm, Special, Storage, TensorMap, TensorMapError, U32, U64,
};

/// Keys per tile.
const KEYS: u32 = 128;
/// Stages of q.
const QUERY_STAGES: u32 = 2;
/// Bytes of 64 queries x 64 columns: a box of q, of a consumer.
const QUERY_BOX: u32 = TILE * ROW;
/// Bytes of 128 keys x 64 columns: a box of k or v.
const KEY_BOX: u32 = KEYS * ROW;
/// Queries of a warp: a box of out.
const WARP_ROWS: u32 = TILE / 4;

/// Specialization of the forward pass for Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HopperFlash {
    /// Storage of q, k, v and out: 16 bits.
    pub storage: Storage,
    /// D: 64 or 128.
    pub head_size: u32,
    /// Consumer warpgroups of 64 queries: 2, or 3 with D of 64.
    pub consumers: u32,
    /// True if probabilities are dropped.
    pub dropout: bool,
}

impl HopperFlash {
    /// Specialization for sequences of up to `longest` tokens and heads of `head_size` in rows `ld` elements apart; `None` if
    /// TMA or the tensor cores do not support the shape, which [`Flash`] then computes.
    pub fn new(storage: Storage, head_size: usize, longest: usize, ld: usize, dropout: bool) -> Option<Self> {
        let supported = storage != Storage::F32 && [64, 128].contains(&head_size) && ld.is_multiple_of(8);
        let consumers = if head_size == 64 && longest > (CONSUMERS * TILE) as usize { 3 } else { CONSUMERS };
        supported.then_some(Self { storage, head_size: head_size as u32, consumers, dropout })
    }

    /// All specializations for bf16, and two examples for f16.
    pub fn all() -> Vec<Self> {
        let of = |storage, (head_size, consumers), dropout| Self { storage, head_size, consumers, dropout };
        let tiles = [(64, 2), (64, 3), (128, 2)];
        let mut all: Vec<Self> =
            tiles.into_iter().flat_map(|tile| [false, true].map(|drops| of(Storage::Bf16, tile, drops))).collect();
        all.extend([(64, 2), (64, 3)].map(|tile| of(Storage::F16, tile, true)));
        all
    }

    /// Tensor maps of q, k, v and out at these addresses: `tokens` rows of `hidden` columns, those of q, k and v `ld` elements
    /// apart.
    ///
    /// # Errors
    /// If an address is not a multiple of 16 or `tokens` is 0; use [`Flash`] then.
    pub fn maps(
        &self,
        [q, k, v, out]: [u64; 4],
        tokens: usize,
        hidden: usize,
        ld: usize,
    ) -> Result<[TensorMap; 4], TensorMapError> {
        let map = |at, ld, rows| TensorMap::matrix(at, self.storage, [tokens, hidden], ld, rows);
        Ok([map(q, ld, TILE)?, map(k, ld, KEYS)?, map(v, ld, KEYS)?, map(out, hidden, WARP_ROWS)?])
    }

    /// Name of the program; the tile is queries x keys x head size.
    pub fn name(&self) -> Name {
        let tile = format!("{}x{KEYS}x{}", self.queries(), self.head_size);
        let parts = [self.storage.name(), Sm::Sm90a.name(), &tile, "dropout"];
        Name::new("attention.forward", &parts[..if self.dropout { 4 } else { 3 }])
    }

    /// Launch for `sequences` sequences of at most `longest` tokens and `heads` heads with about one block per
    /// multiprocessor: a block processes every gridDim.x-th tile of one head. `None` if there is nothing to compute.
    pub fn launch(&self, sequences: usize, longest: usize, heads: usize, multiprocessors: usize) -> Option<Launch> {
        let tiles = sequences * longest.div_ceil(self.queries() as usize);
        let blocks = tiles.min((multiprocessors / heads.max(1)).max(1)) as u32;
        let (grid, block) = ([blocks, heads as u32, 1], [threads(self.consumers), 1, 1]);
        (blocks > 0 && heads > 0).then_some(Launch { grid, block, shared_bytes: self.shared_bytes() })
    }

    /// Emits the program.
    pub fn program(&self) -> Program {
        let required_sass =
            &["HGMMA.64x128x16", "UTMALDG.2D", "ACQBULK", "UTMASTG.2D", "SYNCS.PHASECHK", "USETMAXREG", "MUFU.EX2"];
        hopper::program(self.name(), self.storage, self, required_sass)
    }

    /// Queries per tile.
    const fn queries(&self) -> u32 {
        self.consumers * TILE
    }

    /// Boxes of 64 columns per row.
    const fn boxes(&self) -> u32 {
        self.head_size / 64
    }

    /// Bytes of a tile of queries.
    const fn query_bytes(&self) -> u32 {
        self.consumers * self.boxes() * QUERY_BOX
    }

    /// Bytes of a tile of k or v.
    const fn key_bytes(&self) -> u32 {
        self.boxes() * KEY_BOX
    }

    /// Stages of k and v: 128 KiB.
    const fn stages(&self) -> u32 {
        4 / self.boxes()
    }

    /// Offset of the first stage of k and v, after those of q.
    const fn keys_at(&self) -> u32 {
        QUERY_STAGES * self.query_bytes()
    }

    /// Offset of the output tiles.
    const fn out_at(&self) -> u32 {
        self.keys_at() + self.stages() * 2 * self.key_bytes()
    }

    /// Offset of the barriers: those of q, then those of k and v.
    const fn barriers_at(&self) -> u32 {
        self.out_at() + self.query_bytes()
    }

    const fn shared_bytes(&self) -> u32 {
        self.barriers_at() + 2 * 8 * (QUERY_STAGES + 2 * self.stages())
    }
}

impl hopper::Body for HopperFlash {
    fn consumers(&self) -> u32 {
        self.consumers
    }

    fn write<P: Pair>(&self, k: &Entry) {
        let arguments = Arguments::declare(k, self);
        let shared = SharedMemory::new(self, k.dynamic_shared(1024));
        let thread = k.special(Special::TidX);
        let warp = hopper::warp_number(k, thread);
        k.if_(k.setp(Compare::Eq, thread, 0u32), || {
            hopper::prefetch(k, &arguments.maps);
            shared.queries.init(k, 1, 4 * self.consumers);
            shared.keys.init(k, 1, 4 * self.consumers);
            k.fence(Fence::MbarrierInit);
        });
        k.bar_sync();
        hopper::roles(
            k,
            warp,
            self.consumers,
            || hopper::producer(k, warp, || produce(k, &shared, &arguments)),
            || {
                let (group, warp) = pipeline::consumer(k, warp, thread);
                Consumer::new(k, shared, &arguments, group, warp).run::<P>(k);
            },
        );
    }
}

/// Declared parameters.
struct Arguments {
    kernel: HopperFlash,
    /// q, k, v and out.
    maps: [BytesParam; 4],
    inputs: InputParams,
    out: PointerParam,
    lse: PointerParam,
    mask: SoftmaxMask,
    sizes: Sizes,
    score_scale: Param<F32>,
    sequences: Param<U32>,
    longest: Param<U32>,
}

impl Arguments {
    fn declare(k: &Entry, kernel: &HopperFlash) -> Self {
        let (dq, dk) = (false, false);
        let own = Parameters {
            maps: true,
            backward: false,
            computes_delta: false,
            dq,
            dk,
            dropout: kernel.dropout,
            sequences: true,
        };
        let params = AttentionArgs::declare(k, &|name| own.has(name));
        let (inputs, mask) = (InputParams::new(&params), SoftmaxMask::new(&params));
        let sizes = inputs.sizes(k);
        let maps = [&params.map_q, &params.map_k, &params.map_v, &params.map_out];
        Self {
            kernel: *kernel,
            maps: maps.map(|map| required(map).clone()),
            inputs,
            out: required(&params.out).clone(),
            lse: params.lse,
            mask,
            sizes,
            score_scale: params.score_scale,
            sequences: required(&params.sequences).clone(),
            longest: required(&params.longest).clone(),
        }
    }

    /// Calls `body` with the sequence, the first query and the index of each non-empty tile of this block.
    fn each_tile(&self, k: &Entry, body: impl FnOnce(&Sequence, Reg<U32>, Reg<U32>)) {
        let queries = self.kernel.queries();
        let index = k.variable("number", 0u32);
        let of_sequence = position::tiles(k, k.ld_param(self.longest.clone()), queries);
        let all = k.mul_lo(of_sequence, k.ld_param(self.sequences.clone()));
        k.for_(k.special(Special::CtaidX), all, k.special(Special::NctaidX), |tile| {
            let b = k.div_u32(tile, of_sequence);
            let first = k.mul_lo(k.sub(tile, k.mul_lo(b, of_sequence)), queries);
            let sequence = Sequence::of(k, &self.inputs, &self.sizes, b);
            k.if_(k.lt(first, sequence.length), || {
                body(&sequence, first, index);
                k.add_into(index, index, 1u32);
            });
        });
    }
}

/// A block's shared memory.
#[derive(Clone, Copy)]
struct SharedMemory {
    base: Ptr<Shared>,
    /// Barriers of q.
    queries: Barriers,
    /// Barriers of k (part 0) and v (part 1).
    keys: Barriers,
}

impl SharedMemory {
    fn new(kernel: &HopperFlash, base: Ptr<Shared>) -> Self {
        let at = kernel.barriers_at();
        let queries = Barriers { base, at, stages: QUERY_STAGES, parts: 1 };
        let keys = Barriers { base, at: at + 2 * 8 * QUERY_STAGES, stages: kernel.stages(), parts: 2 };
        Self { base, queries, keys }
    }
}

/// Code of the producer thread: loads q, k and v of the block's tiles.
fn produce(k: &Entry, shared: &SharedMemory, arguments: &Arguments) {
    let SharedMemory { base, queries, keys } = *shared;
    let kernel = &arguments.kernel;
    let maps = [0, 1, 2].map(|i| k.address_of_param(&arguments.maps[i]));
    let signed = |value: Reg<U32>| k.reinterpret::<U32, S32>(value);
    let load = |to: Ptr<Shared>, size: u32, map: Ptr<Generic>, sequence: &Sequence, row, full: Address<Shared>| {
        for i in 0..kernel.boxes() {
            let column = if i == 0 { sequence.column } else { k.add(sequence.column, 64 * i) };
            k.tensor_load(to.at((i * size) as i32), map, [signed(column), signed(row)], full);
        }
    };
    let tile = k.variable("tile", 0u32);
    arguments.each_tile(k, |sequence, first, index| {
        queries.wait_empty(k, index, 0);
        let full = queries.full(k, index, 0);
        k.mbarrier_arrive_expect(full, kernel.query_bytes());
        let to = k.index(base, queries.stage(k, index), kernel.query_bytes());
        let first = k.add(sequence.start, first);
        for group in 0..kernel.consumers {
            let row = if group == 0 { first } else { k.add(first, group * TILE) };
            load(k.offset(to, group * kernel.boxes() * QUERY_BOX), QUERY_BOX, maps[0], sequence, row, full);
        }
        k.for_(0u32, sequence.keys, KEYS, |key| {
            let to = k.index(base, keys.stage(k, tile), 2 * kernel.key_bytes());
            let row = k.add(sequence.start, key);
            for part in [0, 1] {
                keys.wait_empty(k, tile, part);
                let full = keys.full(k, tile, part);
                k.mbarrier_arrive_expect(full, kernel.key_bytes());
                let to = k.offset(to, kernel.keys_at() + part * kernel.key_bytes());
                load(to, KEY_BOX, maps[1 + part as usize], sequence, row, full);
            }
            k.add_into(tile, tile, 1u32);
        });
    });
}

/// Consumer warpgroup: 64 queries of each tile.
struct Consumer<'a> {
    arguments: &'a Arguments,
    shared: SharedMemory,
    /// Index of the consumer.
    group: Reg<U32>,
    warp: Warp,
    /// True if this lane arrives for its warp, and stores its rows of out.
    leads: Reg<Pred>,
    /// Index of the tile of keys among those of the block.
    tile: Reg<U32>,
    /// Descriptors of this consumer's q, of k and of v in their first stages.
    operands: [Reg<U64>; 3],
    /// o: 64 x D.
    o: Vec<Reg<F32>>,
    /// Scores, then probabilities: 64 x 128.
    s: Vec<Reg<F32>>,
}

impl<'a> Consumer<'a> {
    fn new(k: &Entry, shared: SharedMemory, arguments: &'a Arguments, group: Reg<U32>, warp: Warp) -> Self {
        let kernel = &arguments.kernel;
        let (base, leads) = (shared.base, k.setp(Compare::Eq, warp.lane, 0u32));
        let q = k.matrix_descriptor(k.index(base, group, kernel.boxes() * QUERY_BOX), pipeline::k_major());
        let keys = k.matrix_descriptor(k.offset(base, kernel.keys_at()), pipeline::k_major());
        let values = k.offset(base, kernel.keys_at() + kernel.key_bytes());
        let values = k.matrix_descriptor(values, pipeline::mn_major(KEYS));
        let o = k.registers("o", (kernel.head_size / 2) as usize);
        let (s, tile) = (k.registers("score", (KEYS / 2) as usize), k.variable("tile", 0u32));
        Self { arguments, shared, group, warp, leads, tile, operands: [q, keys, values], o, s }
    }

    fn run<P: Pair>(&self, k: &Entry) {
        let SharedMemory { queries, .. } = self.shared;
        self.arguments.each_tile(k, |sequence, first, index| {
            let first = k.mad_lo(self.group, TILE, first);
            queries.wait_full(k, index, 0);
            k.if_else(
                k.lt(first, sequence.length),
                || self.attend::<P>(k, sequence, first, index),
                || {
                    k.comment("no query of this warpgroup exists");
                    self.release(k, queries.empty(k, index, 0));
                    k.for_(0u32, sequence.keys, KEYS, |_| {
                        for part in [0, 1] {
                            self.shared.keys.wait_full(k, self.tile, part);
                            self.release(k, self.shared.keys.empty(k, self.tile, part));
                        }
                        k.add_into(self.tile, self.tile, 1u32);
                    });
                },
            );
        });
        k.comment("shared memory is in use until the last stores have read it");
        k.bulk_wait_read(0);
    }

    /// Arrives at `empty` for the warp, whose lanes have all waited for the bytes.
    fn release(&self, k: &Entry, empty: Address<Shared>) {
        k.warp_sync();
        k.when(self.leads, || k.mbarrier_arrive(empty));
    }

    /// Computes out and lse of the queries from `first` on.
    fn attend<P: Pair>(&self, k: &Entry, sequence: &Sequence, first: Reg<U32>, index: Reg<U32>) {
        let Self { arguments, shared: SharedMemory { queries, keys, .. }, ref warp, leads, tile, ref o, .. } = *self;
        let kernel = &arguments.kernel;
        let scale = k.ld_param(arguments.score_scale.clone());
        let factor = k.mul(scale, std::f32::consts::LOG2_E);
        let state = [0, 1].map(|_| RowState::new(k));
        o.iter().for_each(|&o| k.assign(o, 0.0f32));
        let rows = warp.rows(k, first);
        let mask = arguments.mask.load(k, sequence, rows);
        let q = k.mad_wide(queries.stage(k, index), kernel.query_bytes() / 16, self.operands[0]);
        let p = k.registers::<P>("kept", (KEYS / 4) as usize);
        // o += p v of the tile of keys that p is of.
        let accumulate = || {
            let p: Vec<_> = p.chunks_exact(4).map(|p| [p[0], p[1], p[2], p[3]]).collect();
            pipeline::accumulate_mn_major(k, o, &p, self.operand(k, 2, tile));
        };
        let release = |tile, part| {
            let empty = keys.empty(k, tile, part);
            k.when(leads, || k.mbarrier_arrive(empty));
        };
        k.comment("the first keys: s = q k^T");
        keys.wait_full(k, tile, 0);
        self.scores::<P>(k, q, tile);
        k.wgmma_wait(0);
        release(tile, 0);
        let zero = k.mov(0u32);
        self.softmax(k, &state, zero, sequence.keys, factor);
        self.keep(k, &p, &mask, zero);
        k.for_(KEYS, sequence.keys, KEYS, |key| {
            let next = k.add(tile, 1u32);
            keys.wait_full(k, tile, 1);
            keys.wait_full(k, next, 0);
            k.comment("s = q k^T of these keys; o += p v of those before");
            self.scores::<P>(k, q, next);
            accumulate();
            k.wgmma_wait(1);
            release(next, 0);
            let shrink = self.softmax(k, &state, key, sequence.keys, factor);
            k.wgmma_wait(0);
            release(tile, 1);
            (0..2).for_each(|half| scale_half(k, o, half, shrink[half]));
            self.keep(k, &p, &mask, key);
            k.assign(tile, next);
        });
        let read = queries.empty(k, index, 0);
        k.when(leads, || k.mbarrier_arrive(read));
        k.comment("o += p v of the last keys");
        keys.wait_full(k, tile, 1);
        accumulate();
        k.wgmma_wait(0);
        release(tile, 1);
        k.add_into(tile, tile, 1u32);
        k.comment("out = o / l; lse = m * scale + ln l");
        RowState::finish_rows(k, &state, scale, o, sequence, warp, rows, pointer(k, &arguments.lse));
        self.store(k, sequence, first);
    }

    /// Replaces the scores of the tile at `key` by probabilities; returns the rescaling factors of the accumulators.
    fn softmax(
        &self,
        k: &Entry,
        state: &[RowState; 2],
        key: Reg<U32>,
        keys: Reg<U32>,
        factor: Reg<F32>,
    ) -> [Reg<F32>; 2] {
        Layout::new(64).hide_beyond(k, &self.s, key, keys, self.warp.lane);
        k.comment("p = exp2((s - max) * scale * log2 e)");
        [0, 1].map(|half| state[half].update(k, &self.s, half, factor))
    }

    /// Drops and rounds the probabilities to `p`. Their mask is drawn after the product that reads `p`, whose registers are
    /// free then.
    fn keep<P: Pair>(&self, k: &Entry, p: &[Reg<P>], mask: &RowMask, key: Reg<U32>) {
        for (i, s) in (0..).zip(self.s.chunks_exact((TILE / 2) as usize)) {
            mask.apply(k, s, if i == 0 { key } else { k.add(key, i * TILE) }, self.warp.lane);
        }
        let rounded = Layout::new(64).operand::<P>(k, self.arguments.kernel.storage, &self.s);
        p.iter().zip(rounded.into_iter().flatten()).for_each(|(&p, rounded)| k.assign(p, rounded));
    }

    /// Descriptor of operand `i` (1: k, 2: v) of tile `tile`.
    fn operand(&self, k: &Entry, i: usize, tile: Reg<U32>) -> Reg<U64> {
        let bytes = 2 * self.arguments.kernel.key_bytes();
        k.mad_wide(self.shared.keys.stage(k, tile), bytes / 16, self.operands[i])
    }

    /// Starts s [64, 128] = q [64, D] · kᵀ as one `wgmma` group.
    fn scores<P: Pair>(&self, k: &Entry, q: Reg<U64>, tile: Reg<U32>) {
        let keys = self.operand(k, 1, tile);
        let at = |from, rows, step| pipeline::advance(k, from, pipeline::k_major_step(step, rows));
        let of_step = |step| (at(q, TILE, step), at(keys, KEYS, step), k.condition(step > 0));
        let steps: Vec<_> = (0..self.arguments.kernel.head_size / 16).map(of_step).collect();
        k.wgmma_fence();
        for (q, keys, adds) in steps {
            k.wgmma::<P>(&self.s, (q, Major::K), (keys, Major::K), adds);
        }
        k.wgmma_commit();
    }

    /// Stores the warp's rows of out: by TMA if all of them belong to the sequence.
    fn store(&self, k: &Entry, sequence: &Sequence, first: Reg<U32>) {
        let Self { arguments, shared, group, ref warp, leads, ref o, .. } = *self;
        let kernel = &arguments.kernel;
        let layout = Layout::new(64);
        let place = k.offset(k.index(shared.base, group, kernel.boxes() * QUERY_BOX), kernel.out_at());
        // Boxes of 64 columns: their place, their columns of the sequence's head, their accumulators.
        let boxes: Vec<_> = (0..kernel.boxes())
            .zip(o.chunks_exact((TILE / 2) as usize))
            .map(|(i, o)| {
                let column = if i == 0 { sequence.column } else { k.add(sequence.column, 64 * i) };
                (k.offset(place, i * QUERY_BOX), Sequence { column, ..*sequence }, o)
            })
            .collect();
        k.comment("the store of the tile before has read its bytes");
        k.bulk_wait_read(0);
        k.warp_sync();
        for &(place, _, o) in &boxes {
            layout.stage_rows(k, kernel.storage, place, warp, o);
        }
        k.fence(Fence::AsyncShared);
        k.warp_sync();
        let row = k.add(first, warp.row);
        k.if_else(
            k.setp(Compare::Le, k.add(row, WARP_ROWS), sequence.length),
            || {
                k.if_(leads, || {
                    let map = k.address_of_param(&arguments.maps[3]);
                    let signed = |value: Reg<U32>| k.reinterpret::<U32, S32>(value);
                    let token = signed(k.add(sequence.start, row));
                    for &(place, Sequence { column, .. }, _) in &boxes {
                        let from = k.index(place, warp.row, ROW);
                        k.tensor_store(map, [signed(column), token], from.at(0));
                    }
                    k.bulk_commit();
                });
            },
            || {
                let hidden = k.mul_lo(sequence.heads, arguments.sizes.head_size);
                let (padded, dropout) = (kernel.head_size, kernel.dropout);
                let plain = Flash { step: Step::Forward, storage: kernel.storage, padded, dropout, aligned: true };
                let out = pointer(k, &arguments.out);
                for (place, sequence, _) in &boxes {
                    layout.copy_rows(k, &plain, *place, warp, out, hidden, first, sequence, &arguments.sizes);
                }
            },
        );
    }
}

/// Global pointer in parameter `param`.
fn pointer(k: &Entry, param: &PointerParam) -> Ptr<Global> {
    k.cvta_to_global(k.ld_param_pointer(param.clone()))
}
