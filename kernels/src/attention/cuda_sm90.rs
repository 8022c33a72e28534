//! Attention's forward pass on Hopper: scores and outputs by `wgmma`, keys and values by the copy engine.
//!
//! ```text
//! P = softmax(scale · q kᵀ)      out = (P ∘ M) v      lse = ln Σ_key exp(scale · q kᵀ)              (see [`super`])
//!
//! __global__ forward(map_q, map_k, map_v, cu_seqlens, keys, out, lse, [mask], ld, head_size, scale) {     // 384 threads
//!     b = blockIdx.z;  head = blockIdx.y;  first = 128 * blockIdx.x;  if (first >= length of b) return;
//!     if (warpgroup == 0) {                                            // the producer: one thread
//!         setmaxnreg.dec 24;  copy q[128, D], counted at queries;
//!         for (j, every 64 keys) { wait(empty[j % 4]); expect bytes on full[j % 4]; copy k, v -> stage j % 4; }
//!     } else {                                                         // two consumers, 64 queries each
//!         setmaxnreg.inc 240;  wait(queries);  m = -inf;  l = 0;  o[64, D] = 0;
//!         for (j, every 64 keys) {
//!             wait(full[j % 4]);
//!             s[64, 64] = q kᵀ;                                        // wgmma, both from shared memory
//!             s = -inf beyond the keys;  m, l, o and s -> p as in `cuda`, a warp 16 rows;
//!             o += (p ∘ M) v;                                          // wgmma, p from the registers of s
//!             arrive(empty[j % 4]);                                    // one lane of each of the eight warps
//!         }
//!         out = o / l;  lse = m · scale + ln l;
//! }   }
//!
//! shared memory: q [2][64 x D] | stage: k [64 x D], v [64 x D], four times | out [2][64 x D] | queries, full[4], empty[4]
//! ```
//!
//! q, k, v lie as boxes of 64 rows x 64 columns, 128 bytes a row, chunks exchanged by the row modulo 8: k runs along the
//! rows of q and k, and down those of v, both of which `wgmma` takes. The sums of `wgmma` lie in a warp's registers as those
//! of `mma` do, so what happens between the two products is what `cuda` does. The two consumers are tied together by the
//! ring alone: one's exponentials run beside the other's products.
//!
//! Cost: 4·S·D FLOP a query and head; k and v once for every 128 queries. Of 64 queries and keys with D of 64 the products
//! take 256 cycles, the 4096 exponentials as many of their unit, and 1512 instructions of warps 378. Budget: as the product's (`gemm::cuda_sm90`).
//! Source: FlashAttention-3 (Shah et al. 2024), without its overlap within a warpgroup.
//!
//! Limits: D of 64 or 128, rows of whole 16-byte chunks ([`HopperFlash::new`]), else [`super::cuda::Flash`]. The copy engine
//! knows no sequences: up to 63 tokens behind a sequence's keys are read and count nothing, unless they are not finite.

use super::{
    cuda::{Flash, RowState, Step, TILE},
    cuda_tile::{Gathered, Layout, Sequence, Sizes, SoftmaxMask, Warp},
};
use crate::{
    operation::{Launch, Name, Program},
    ptx::{
        Address, Bf16x2, BytesParam, Compare, DescriptorSwizzle, Entry, F16x2, F32, Fence, Global, Lane, Major, Module,
        Pair, Ptr, Reg, S32, Shared, Sm, Special, Storage, TensorMap, TensorMapError, U32, U64, descriptor,
    },
};

/// Queries of a block.
const QUERIES: u32 = 2 * TILE;
/// Threads of a block.
const THREADS: u32 = 384;
/// Stages of the ring, a power of two.
const STAGES: u32 = 4;
/// Bytes of 64 x 64 numbers.
const BOX: u32 = 64 * 128;
/// Registers of a thread when the kernel begins.
const REGISTERS: u32 = 168;

/// One specialisation of the forward pass for Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HopperFlash {
    /// Storage of q, k, v and out: 16 bits.
    pub storage: Storage,
    /// D: 64 or 128.
    pub head_size: u32,
    /// Whether probabilities are dropped.
    pub dropout: bool,
}

/// What lies where in shared memory, in bytes from its start.
#[derive(Clone, Copy)]
struct Plan {
    /// Boxes of 64 columns that a row has.
    boxes: u32,
}

/// A block's shared memory.
#[derive(Clone, Copy)]
struct Places {
    base: Ptr<Shared>,
    plan: Plan,
}

impl Plan {
    /// k and v of a tile.
    const fn stage_bytes(self) -> u32 {
        2 * self.boxes * BOX
    }

    /// The first stage, behind q of both consumers.
    const fn stages(self) -> u32 {
        2 * self.boxes * BOX
    }

    const fn out(self) -> u32 {
        self.stages() + STAGES * self.stage_bytes()
    }

    const fn queries(self) -> u32 {
        self.out() + 2 * self.boxes * BOX
    }

    const fn full(self) -> u32 {
        self.queries() + 8
    }

    const fn empty(self) -> u32 {
        self.full() + 8 * STAGES
    }

    const fn bytes(self) -> u32 {
        self.empty() + 8 * STAGES
    }
}

impl Places {
    /// The barrier of tile `tile` among those that begin `first` bytes behind the start.
    fn barrier(self, k: &Entry, first: u32, tile: Reg<U32>) -> Address<Shared> {
        k.slot(self.base, k.and(tile, STAGES - 1), 8).at(first as i32)
    }
}

/// The parity of the phase in which tile `tile` goes through its stage.
fn parity(k: &Entry, tile: Reg<U32>) -> Reg<U32> {
    k.and(k.shr(tile, STAGES.ilog2()), 1u32)
}

impl HopperFlash {
    /// The specialisation for heads of `head_size` in rows `ld` apart; `None` where the copy engine or the tensor cores
    /// cannot serve. Then [`Flash`] computes it.
    pub fn new(storage: Storage, head_size: usize, ld: usize, dropout: bool) -> Option<Self> {
        let served = storage != Storage::F32 && [64, 128].contains(&head_size) && ld.is_multiple_of(8);
        served.then_some(Self { storage, head_size: head_size as u32, dropout })
    }

    /// Every specialisation but those of f16, of which there is one example.
    pub fn all() -> Vec<Self> {
        let of = |storage, head_size, dropout| Self { storage, head_size, dropout };
        let mut all: Vec<Self> =
            [64, 128].into_iter().flat_map(|d| [false, true].map(|drops| of(Storage::Bf16, d, drops))).collect();
        all.push(of(Storage::F16, 64, true));
        all
    }

    /// What the copy engine must be told of q, k and v, which begin at these addresses: `tokens` rows, `ld` numbers apart,
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
        let tile = format!("{QUERIES}x{TILE}x{}", self.head_size);
        let parts = [self.storage.name(), Sm::Sm90a.name(), &tile, "dropout"];
        Name::new("attention.forward", &parts[..if self.dropout { 4 } else { 3 }])
    }

    /// The grid for `sequences` sequences, the longest of `longest` tokens, of `heads` heads; `None` where there is nothing
    /// to compute.
    pub fn launch(&self, sequences: usize, longest: usize, heads: usize) -> Option<Launch> {
        let grid = [longest.div_ceil(QUERIES as usize) as u32, heads as u32, sequences as u32];
        let filled = grid.iter().all(|&n| n > 0);
        filled.then_some(Launch { grid, block: [THREADS, 1, 1], shared_bytes: self.plan().bytes() })
    }

    fn plan(&self) -> Plan {
        Plan { boxes: self.head_size / 64 }
    }

    /// The program.
    pub fn program(&self) -> Program {
        let name = self.name();
        let mut module = Module::new(Sm::Sm90a);
        module.entry(&name.entry(), [THREADS, 1, 1], |k| {
            k.resident_blocks(1);
            match self.storage {
                Storage::F16 => self.forward::<F16x2>(k),
                _ => self.forward::<Bf16x2>(k),
            }
        });
        let machine = &["HGMMA.64x64x16", "UTMALDG.2D", "SYNCS.PHASECHK", "USETMAXREG", "MUFU.EX2"];
        Program::new(name, &module, REGISTERS).made_of(machine)
    }

    fn forward<P: Pair>(&self, k: &Entry) {
        let maps = ["map_q", "map_k", "map_v"].map(|name| k.tensor_map_param(name));
        let gathered = Gathered::declare(k, &[]);
        let (out, lse) = (k.load_pointer("out"), k.load_pointer("lse"));
        let mask = SoftmaxMask::declare(k, self.dropout);
        let sizes = gathered.sizes(k);
        let scale = k.load_param::<F32>("score_scale");
        let places = Places { base: k.dynamic_shared(1024), plan: self.plan() };
        let thread = k.special(Special::TidX);
        k.comment("the same for all lanes, so that roles are whole warps");
        let warp = k.shfl(k.shr(thread, 5), Lane::Number(0));
        k.if_(k.setp(Compare::Eq, thread, 0u32), || {
            k.mbarrier_init(places.base.at(places.plan.queries() as i32), 1);
            for stage in 0..STAGES {
                k.mbarrier_init(places.base.at((places.plan.full() + 8 * stage) as i32), 1);
                k.mbarrier_init(places.base.at((places.plan.empty() + 8 * stage) as i32), 8);
            }
            k.fence(Fence::MbarrierInit);
        });
        k.bar_sync();
        let sequence = Sequence::find(k, &gathered, &sizes);
        let first = k.mul_lo(k.special(Special::CtaidX), QUERIES);
        k.if_(k.lt(first, sequence.length), || {
            k.if_else(
                k.lt(warp, 4u32),
                || {
                    k.comment("the producer");
                    k.setmaxnreg_dec(24);
                    k.if_(k.setp(Compare::Eq, warp, 0u32), || {
                        let one = k.elect();
                        k.if_(one, || produce(k, places, &maps, &sequence, first));
                    });
                },
                || {
                    k.comment("the consumers");
                    k.setmaxnreg_inc(240);
                    let consumer = Consumer::new(k, *self, places, warp, thread, first);
                    consumer.run::<P>(k, &sequence, &sizes, &mask, scale, out, lse);
                },
            );
        });
    }
}

/// The thread that fills the ring.
fn produce(k: &Entry, places: Places, maps: &[BytesParam; 3], sequence: &Sequence, first: Reg<U32>) {
    let signed = |value: Reg<U32>| k.reinterpret::<U32, S32>(value);
    let maps = [0, 1, 2].map(|i| k.address_of_param(&maps[i]));
    let columns: Vec<Reg<S32>> = (0..places.plan.boxes).map(|i| signed(k.add(sequence.column, 64 * i))).collect();
    let load = |to: Ptr<Shared>, number: u32, map: usize, row: Reg<U32>, barrier: Address<Shared>| {
        for (i, &column) in (0..).zip(&columns) {
            k.tensor_load(
                to.at(((number * places.plan.boxes + i) * BOX) as i32),
                maps[map],
                [column, signed(row)],
                barrier,
            );
        }
    };
    let queries = places.base.at(places.plan.queries() as i32);
    k.mbarrier_arrive_expect(queries, 2 * places.plan.boxes * BOX);
    let row = k.add(sequence.start, first);
    load(places.base, 0, 0, row, queries);
    load(places.base, 1, 0, k.add(row, TILE), queries);
    let tile = k.variable("tile", 0u32);
    k.for_(0u32, sequence.keys, TILE, |key| {
        // A fresh barrier is in its first phase: that before is over.
        k.mbarrier_wait(places.barrier(k, places.plan.empty(), tile), k.xor(parity(k, tile), 1u32));
        let full = places.barrier(k, places.plan.full(), tile);
        k.mbarrier_arrive_expect(full, places.plan.stage_bytes());
        let stage = k.index(places.base, k.and(tile, STAGES - 1), places.plan.stage_bytes());
        let stage = k.offset(stage, places.plan.stages());
        let row = k.add(sequence.start, key);
        load(stage, 0, 1, row, full);
        load(stage, 1, 2, row, full);
        k.add_into(tile, tile, 1u32);
    });
}

/// A warpgroup with 64 queries.
struct Consumer {
    kernel: HopperFlash,
    places: Places,
    /// Which of the two.
    group: Reg<U32>,
    warp: Warp,
    /// Its first query in the sequence.
    first: Reg<U32>,
    /// The descriptors of q, and of k and v in the first stage.
    operands: [Reg<U64>; 3],
}

impl Consumer {
    fn new(k: &Entry, kernel: HopperFlash, places: Places, warp: Reg<U32>, thread: Reg<U32>, first: Reg<U32>) -> Self {
        let group = k.sub(k.shr(warp, 2), 1u32);
        let (thread, lane) = (k.and(thread, 127u32), k.and(thread, 31u32));
        let row = k.shl(k.and(warp, 3u32), 4);
        let along = descriptor(16, 1024, DescriptorSwizzle::Bytes128);
        let down = descriptor(BOX, 1024, DescriptorSwizzle::Bytes128);
        let q = k.index(places.base, group, places.plan.boxes * BOX);
        let [keys, values] = [0, places.plan.boxes * BOX].map(|at| k.offset(places.base, places.plan.stages() + at));
        let operands =
            [k.matrix_descriptor(q, along), k.matrix_descriptor(keys, along), k.matrix_descriptor(values, down)];
        let first = k.mad_lo(group, TILE, first);
        let warp = Warp { thread, lane, row, group: k.shr(lane, 2), pair: k.and(lane, 3u32) };
        Self { kernel, places, group, warp, first, operands }
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
        let Self { kernel, places, ref warp, first, .. } = *self;
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
        k.mbarrier_wait(places.base.at(places.plan.queries() as i32), 0u32);
        k.for_(0u32, sequence.keys, TILE, |key| {
            k.mbarrier_wait(places.barrier(k, places.plan.full(), tile), parity(k, tile));
            let stage = k.and(tile, STAGES - 1);
            k.comment("s = q k^T");
            self.scores::<P>(k, &s, stage);
            layout.hide_beyond(k, &s, key, sequence.keys, warp.lane);
            k.comment("p = exp2((s - max) * scale * log2 e)");
            for (half, state) in state.iter().enumerate() {
                state.absorb(k, &s, &o, half, factor);
            }
            mask.apply(k, &s, key, warp.lane);
            k.comment("o += p v");
            self.outputs::<P>(k, &o, &layout.operand::<P>(k, kernel.storage, &s), stage);
            let empty = places.barrier(k, places.plan.empty(), tile);
            k.when(arrives, || k.mbarrier_arrive(empty));
            k.add_into(tile, tile, 1u32);
        });
        k.comment("out = o / l; lse = m * scale + ln l");
        RowState::finish_rows(k, &state, scale, &o, sequence, warp, rows, lse);
        let hidden = k.mul_lo(sequence.heads, sizes.head_size);
        let place = k.offset(k.index(places.base, self.group, layout.tile.bytes()), places.plan.out());
        let (padded, dropout) = (kernel.head_size, kernel.dropout);
        let plain = Flash { step: Step::Forward, storage: kernel.storage, padded, dropout, aligned: true };
        layout.store_rows(k, &plain, place, warp, &o, out, hidden, first, sequence, sizes);
    }

    /// The operand `i` in `stage`, `bytes` further.
    fn operand(&self, k: &Entry, i: usize, stage: Option<Reg<U32>>, bytes: u32) -> Reg<U64> {
        let at = match stage {
            Some(stage) => k.mad_wide(stage, self.places.plan.stage_bytes() / 16, self.operands[i]),
            None => self.operands[i],
        };
        if bytes == 0 { at } else { k.add(at, u64::from(bytes / 16)) }
    }

    /// s [64, 64] = q [64, D] · kᵀ, waited for.
    fn scores<P: Pair>(&self, k: &Entry, s: &[Reg<F32>], stage: Reg<U32>) {
        let steps: Vec<_> = (0..self.kernel.head_size / 16)
            .map(|step| {
                let bytes = step / 4 * BOX + step % 4 * 32;
                (self.operand(k, 0, None, bytes), self.operand(k, 1, Some(stage), bytes), k.condition(step > 0))
            })
            .collect();
        k.wgmma_fence();
        for (q, keys, adds) in steps {
            k.wgmma::<P>(s, (q, Major::K), (keys, Major::K), adds);
        }
        k.wgmma_commit();
        k.wgmma_wait(0);
    }

    /// o [64, D] += p [64, 64] · v, waited for.
    fn outputs<P: Pair>(&self, k: &Entry, o: &[Reg<F32>], p: &[[Reg<P>; 4]], stage: Reg<U32>) {
        let adds = k.condition(true);
        let values: Vec<_> = (0..TILE / 16).map(|step| self.operand(k, 2, Some(stage), step * 16 * 128)).collect();
        k.wgmma_fence();
        for (&p, values) in p.iter().zip(values) {
            k.wgmma_registers::<P>(o, p, (values, Major::Mn), adds);
        }
        k.wgmma_commit();
        k.wgmma_wait(0);
    }
}
