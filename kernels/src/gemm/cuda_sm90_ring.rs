//! The ring of Hopper's product: which slices go through it, who fills it and who empties it.

use super::{
    cuda::GROUP,
    cuda_epilogue::{Finish, LanePlace, Target, fragment_start, store_fragment},
    cuda_place::{WarpPlace, tile_origin, tiles},
    cuda_sm90::{CONSUMER_WARPS, HopperTile},
};
use crate::ptx::{
    Address, BytesParam, Compare, DescriptorSwizzle, Entry, F32, Fence, Generic, Global, Major, Pair, Param,
    PointerParam, Pred, Ptr, Reg, S32, Shared, Special, Swizzle, Tile, U32, U64, descriptor,
};

/// Bytes of 64 numbers: a row of a box.
const ROW: u32 = 128;
/// Bytes from one group of eight rows to the next: a period of the exchange.
const EIGHT_ROWS: u32 = 8 * ROW;
/// Bytes of 64 rows: what a consumer reads of A, and of B where k runs down.
const BOX: u32 = 64 * ROW;
/// The sums of a warp on their way to the epilogue.
const SUMS: Tile = Tile::new(16, 64, 4, Swizzle::Reversed);

/// The ring in shared memory, as a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    pub tile: HopperTile,
    /// Whether k runs along the rows in memory, of A and of B.
    pub along_k: [bool; 2],
}

impl Ring {
    /// Bytes of A in a stage.
    const A: u32 = HopperTile::M * ROW;

    const fn stage_bytes(self) -> u32 {
        Self::A + self.tile.n * ROW
    }

    const fn sums(self) -> u32 {
        self.tile.stages * self.stage_bytes()
    }

    const fn full(self) -> u32 {
        self.sums() + CONSUMER_WARPS * SUMS.bytes()
    }

    const fn empty(self) -> u32 {
        self.full() + 8 * self.tile.stages
    }

    /// Shared memory of a block.
    pub(super) const fn shared_bytes(self) -> u32 {
        self.empty() + 8 * self.tile.stages
    }

    /// Makes the barriers, for one thread: full after one arrival and all bytes, empty when `warps` have read.
    pub(super) fn initialise(self, k: &Entry, base: Ptr<Shared>, warps: u32) {
        k.comment("the barriers of the ring");
        for stage in 0..self.tile.stages {
            k.mbarrier_init(base.at((self.full() + 8 * stage) as i32), 1);
            k.mbarrier_init(base.at((self.empty() + 8 * stage) as i32), warps);
        }
        k.fence(Fence::MbarrierInit);
    }
}

/// A place in the ring that moves on with the slices.
struct Place {
    ring: Ring,
    stage: Reg<U32>,
    /// The parity of the phase to wait for.
    parity: Reg<U32>,
}

impl Place {
    fn first(k: &Entry, ring: Ring, parity: u32) -> Self {
        Self { ring, stage: k.variable("stage", 0u32), parity: k.variable("parity", parity) }
    }

    /// The stage's barrier among those that begin `first` bytes behind `base`.
    fn barrier(&self, k: &Entry, base: Ptr<Shared>, first: u32) -> Address<Shared> {
        k.slot(base, self.stage, 8).at(first as i32)
    }

    /// To the next stage; from the last to the first, with the other parity.
    fn advance(&self, k: &Entry) {
        let next = k.add(self.stage, 1u32);
        let wraps = k.setp(Compare::Eq, next, self.ring.tile.stages);
        k.assign(self.stage, k.selp(0u32, next, wraps));
        k.when(wraps, || k.xor_into(self.parity, self.parity, 1u32));
    }
}

/// The tiles of a launch and the slices of k, shared out among its blocks.
pub(super) struct Schedule {
    tile: HopperTile,
    m: Reg<U32>,
    n: Reg<U32>,
    k: Reg<U32>,
    leading: Param<U32>,
    k_step: Param<U32>,
    k_chunk: Param<U32>,
    layers: Param<U32>,
    stride_c: Param<U32>,
}

/// One tile of one layer.
struct Work {
    /// First row and first column of C.
    origin: [Reg<U32>; 2],
    layer: Reg<U32>,
    /// First p of the sums.
    k_begin: Reg<U32>,
    /// Slices of k.
    slices: Reg<U32>,
}

impl Schedule {
    pub(super) fn declare(k: &Entry, tile: HopperTile) -> Self {
        let [m, n, depth] = ["m", "n", "k"].map(|name| k.load_param(name));
        let leading = k.param("ldc");
        let [k_step, k_chunk, layers, stride_c] =
            ["k_step", "k_chunk", "layers", "stride_c"].map(|name| k.param::<U32>(name));
        Self { tile, m, n, k: depth, leading, k_step, k_chunk, layers, stride_c }
    }

    /// Calls `body` with every tile of this block: every so many as there are blocks, layer after layer.
    fn each(&self, k: &Entry, body: impl FnOnce(&Work)) {
        let size = [HopperTile::M, self.tile.n];
        let grid = [tiles(k, self.m, size[0]), tiles(k, self.n, size[1])];
        let in_layer = k.mul_lo(grid[0], grid[1]);
        let all = k.mul_lo(in_layer, k.ld_param(self.layers.clone()));
        k.for_(k.special(Special::CtaidX), all, k.special(Special::NctaidX), |unit| {
            let layer = k.div_u32(unit, in_layer);
            let index = k.sub(unit, k.mul_lo(layer, in_layer));
            let origin = tile_origin(k, size, grid, index, GROUP);
            let k_begin = k.mul_lo(layer, k.ld_param(self.k_step.clone()));
            let k_end = k.min_u32(k.add(k_begin, k.ld_param(self.k_chunk.clone())), self.k);
            let slices = tiles(k, k.sub(k_end, k_begin), HopperTile::K);
            body(&Work { origin, layer, k_begin, slices });
        });
    }
}

/// The thread that fills the ring.
pub(super) struct Producer<'a> {
    pub ring: Ring,
    pub base: Ptr<Shared>,
    pub maps: &'a [BytesParam; 2],
}

impl Producer<'_> {
    pub(super) fn run(&self, k: &Entry, schedule: &Schedule) {
        let Self { ring, base, .. } = *self;
        let maps = [0, 1].map(|operand| k.address_of_param(&self.maps[operand]));
        // A fresh barrier is in its first phase: that before is over.
        let place = Place::first(k, ring, 1);
        schedule.each(k, |work| {
            let depth = k.variable("depth", work.k_begin);
            k.for_(0u32, work.slices, 1u32, |_| {
                k.mbarrier_wait(place.barrier(k, base, ring.empty()), place.parity);
                let full = place.barrier(k, base, ring.full());
                k.mbarrier_arrive_expect(full, ring.stage_bytes());
                let stage = k.index(base, place.stage, ring.stage_bytes());
                for operand in [0, 1] {
                    self.load(k, operand, maps[operand], stage, work.origin[operand], depth, full);
                }
                k.add_into(depth, depth, HopperTile::K);
                place.advance(k);
            });
        });
    }

    /// Starts the copies of one operand's part of a slice.
    fn load(
        &self,
        k: &Entry,
        operand: usize,
        map: Ptr<Generic>,
        stage: Ptr<Shared>,
        origin: Reg<U32>,
        depth: Reg<U32>,
        full: Address<Shared>,
    ) {
        let signed = |value: Reg<U32>| k.reinterpret::<U32, S32>(value);
        let (start, extent) = [(0, HopperTile::M), (Ring::A, self.ring.tile.n)][operand];
        if self.ring.along_k[operand] {
            k.tensor_load(stage.at(start as i32), map, [signed(depth), signed(origin)], full);
        } else {
            for i in 0..extent / 64 {
                let column = if i == 0 { origin } else { k.add(origin, 64 * i) };
                k.tensor_load(stage.at((start + i * BOX) as i32), map, [signed(column), signed(depth)], full);
            }
        }
    }
}

/// A warpgroup that multiplies 64 rows of each tile.
pub(super) struct Consumer {
    ring: Ring,
    base: Ptr<Shared>,
    /// Of the eight warps that multiply.
    warp: Reg<U32>,
    lane: Reg<U32>,
    /// Whether this lane arrives for its warp.
    arrives: Reg<Pred>,
    /// The descriptors of A's rows and of B in the first stage.
    operands: [Reg<U64>; 2],
}

impl Consumer {
    /// For warp `warp` of the eight.
    pub(super) fn new(k: &Entry, ring: Ring, base: Ptr<Shared>, thread: Reg<U32>, warp: Reg<U32>) -> Self {
        let lane = k.and(thread, 31u32);
        let arrives = k.setp(Compare::Eq, lane, 0u32);
        // Where k runs down, 64 columns are a box of their own.
        let constant = [0, 1].map(|operand| {
            let leading = if ring.along_k[operand] { 16 } else { BOX };
            descriptor(leading, EIGHT_ROWS, DescriptorSwizzle::Bytes128)
        });
        let a = k.index(base, k.shr(warp, 2), BOX);
        let b = k.offset(base, Ring::A);
        let operands = [k.matrix_descriptor(a, constant[0]), k.matrix_descriptor(b, constant[1])];
        Self { ring, base, warp, lane, arrives, operands }
    }

    pub(super) fn run<P: Pair>(&self, k: &Entry, schedule: &Schedule, finish: &Finish, c: PointerParam) {
        let Self { ring, base, .. } = *self;
        let c = k.cvta_to_global(k.ld_param_pointer(c));
        let sums = k.registers::<F32>("acc", (ring.tile.n / 2) as usize);
        let place = Place::first(k, ring, 0);
        let last = k.variable("last", 0u32);
        schedule.each(k, |work| {
            k.for_(0u32, work.slices, 1u32, |slice| {
                k.mbarrier_wait(place.barrier(k, base, ring.full()), place.parity);
                let adds = k.setp(Compare::Ne, slice, 0u32);
                self.multiply::<P>(k, &sums, place.stage, adds);
                k.comment("the slice before has been read");
                k.wgmma_wait(1);
                self.release(k, last, k.and(self.arrives, adds));
                k.assign(last, place.stage);
                place.advance(k);
            });
            k.wgmma_wait(0);
            self.release(k, last, self.arrives);
            self.finish(k, schedule, finish, c, work, &sums);
        });
    }

    /// Starts sums (+)= A · B of the slice in `stage`, as one group; the old sums count if `adds`.
    fn multiply<P: Pair>(&self, k: &Entry, sums: &[Reg<F32>], stage: Reg<U32>, adds: Reg<Pred>) {
        let start = self.operands.map(|operand| k.mad_wide(stage, self.ring.stage_bytes() / 16, operand));
        let always = k.condition(true);
        let steps = (0..HopperTile::K / 16).map(|step| {
            [0, 1].map(|operand| {
                let (major, bytes) = if self.ring.along_k[operand] { (Major::K, 32) } else { (Major::Mn, 16 * ROW) };
                let at = start[operand];
                (if step == 0 { at } else { k.add(at, u64::from(step * bytes / 16)) }, major)
            })
        });
        let steps: Vec<_> = steps.collect();
        k.wgmma_fence();
        for (step, [a, b]) in steps.into_iter().enumerate() {
            k.wgmma::<P>(sums, a, b, if step == 0 { adds } else { always });
        }
        k.wgmma_commit();
    }

    /// This warp reads stage `stage` no more, if `condition`.
    fn release(&self, k: &Entry, stage: Reg<U32>, condition: Reg<Pred>) {
        let empty = k.slot(self.base, stage, 8).at(self.ring.empty() as i32);
        k.when(condition, || k.mbarrier_arrive(empty));
    }

    /// The epilogue of the warp's 16 rows of the tile.
    fn finish(&self, k: &Entry, schedule: &Schedule, finish: &Finish, c: Ptr<Global>, work: &Work, sums: &[Reg<F32>]) {
        k.comment("16 rows of this warp, 64 columns at a time: epilogue, C");
        let LanePlace { row, half } = LanePlace::find(k, self.lane);
        let mine = k.index(k.offset(self.base, self.ring.sums()), self.warp, SUMS.bytes());
        let zero = k.mov(0u32);
        let to = fragment_start(k, &SUMS, mine, &WarpPlace { lane: self.lane, origin: [zero, zero] });
        let from = SUMS.chunk_address(k, mine, row, k.shl(half, 1));
        let row = k.add(k.add(work.origin[0], k.shl(self.warp, 4)), row);
        let exists = k.lt(row, schedule.m);
        let storage = finish.output();
        let layer = k.mul_wide(work.layer, k.ld_param(schedule.stride_c.clone()));
        let c = k.offset(c, k.shl(layer, storage.bytes().ilog2()));
        let leading = k.ld_param(schedule.leading.clone());
        let target = Target { c, columns: schedule.n, leading };
        let first = k.add(work.origin[1], k.shl(half, 3));
        let mut panel = finish.panel(k, &target, first, half);
        for (i, sums) in (0..).zip(sums.chunks_exact(32)) {
            if i > 0 {
                panel = panel.next(k, storage);
            }
            k.if_(k.lt(k.add(work.origin[1], 64 * i), schedule.n), || {
                k.warp_sync();
                for (fragment, sums) in (0..).zip(sums.chunks_exact(4)) {
                    store_fragment(k, &SUMS, to, [0, 8 * fragment], sums);
                }
                k.warp_sync();
                k.if_(exists, || finish.write_row(k, &SUMS, from, &panel, row));
            });
        }
    }
}
