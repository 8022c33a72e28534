//! Mainloop of Hopper's product: pipeline, tile scheduler, producer and consumers.
//!
//! ```text
//! barrier      arrivals of a phase                              bytes       who waits          parity of the first wait
//! full[s]      the producer                                     a stage     its readers        0
//! empty[s]     a lane of every warp that reads the stage                    the producer       1: that before the first is over
//! turn[g]      a lane of every warp of the other warpgroup                  warpgroup g        1 for g = 0, 0 for g = 1
//! ```
//!
//! A wait names a phase by its parity, so it must never ask for one that lies more than one ahead of the barrier's. Of the
//! producer and of consumers that read every slice the ring itself sees to that; of consumers that take turns, the turns.

use super::{
    epilogue::{EpilogueEmitter, LanePlace, Target, fragment_start, store_fragment},
    place::{WarpPlace, tile_origin, tiles},
    tiles::{GROUP, HopperTile, KernelSchedule},
};
use crate::arguments::{Address as DeviceAddress, Load as _, arguments};
use crate::gemm::{Epilogue, Gemm};
use ptx::{
    Address, BytesParam, Compare, DescriptorSwizzle, Entry, F32, Fence, Generic, Major, Pair, Param, PointerParam,
    Pred, Ptr, Reg, S32, Shared, Special, Swizzle, TensorMap, Tile, U32, U64, descriptor,
};

/// Consumer warps.
const WARPS: u32 = 8;
/// Bytes of 64 elements: a row of a box.
const ROW: u32 = 128;
/// Bytes from one group of eight rows to the next: a period of the swizzle.
const EIGHT_ROWS: u32 = 8 * ROW;
/// Bytes of 64 rows: the part of A that a consumer reads, and a box of B if k runs down.
const BOX: u32 = 64 * ROW;
/// Accumulators of a warp in shared memory, for the epilogue.
const SUMS: Tile = Tile::new(16, 64, 4, Swizzle::Reversed);

/// Layout of the pipeline in shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    pub tile: HopperTile,
    /// True if k runs along the rows in memory: for A, for B.
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
        self.sums() + WARPS * self.panels() * SUMS.bytes()
    }

    /// Blocks of 16 rows x 64 columns of accumulators that a warp stores in shared memory at once. Two with ping-pong, where
    /// a thread holds all rows of a tile: the stored accumulators free registers for the epilogue.
    const fn panels(self) -> u32 {
        match self.tile.schedule {
            KernelSchedule::Cooperative => 1,
            KernelSchedule::PingPong => 2,
        }
    }

    const fn empty(self) -> u32 {
        self.full() + 8 * self.tile.stages
    }

    const fn turn(self) -> u32 {
        self.empty() + 8 * self.tile.stages
    }

    /// Shared memory of a block.
    pub(super) const fn shared_bytes(self) -> u32 {
        match self.tile.schedule {
            KernelSchedule::Cooperative => self.turn(),
            KernelSchedule::PingPong => self.turn() + 8 * 2,
        }
    }

    /// Blocks of 64 rows of a tile per warpgroup.
    const fn blocks(self) -> u32 {
        match self.tile.schedule {
            KernelSchedule::Cooperative => 1,
            KernelSchedule::PingPong => HopperTile::M / 64,
        }
    }

    /// Makes the barriers, for one thread: full after one arrival and all bytes, empty when all warps that multiply the
    /// slice have read it; a warpgroup's turn comes when the warps of the other have begun their last slice.
    pub(super) fn initialize(self, k: &Entry, base: Ptr<Shared>) {
        k.comment("the barriers of the ring");
        let readers = WARPS / self.blocks();
        for stage in 0..self.tile.stages {
            k.mbarrier_init(base.at((self.full() + 8 * stage) as i32), 1);
            k.mbarrier_init(base.at((self.empty() + 8 * stage) as i32), readers);
        }
        for turn in (self.turn()..self.shared_bytes()).step_by(8) {
            k.mbarrier_init(base.at(turn as i32), WARPS / 2);
        }
        k.fence(Fence::MbarrierInit);
    }
}

/// Stage and phase of the pipeline, advanced per k-tile.
struct Place {
    ring: Ring,
    stage: Reg<U32>,
    /// Parity of the phase to wait for.
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

    /// Advances to the next stage; after the last one to the first, with the other parity.
    fn advance(&self, k: &Entry) {
        let next = k.add(self.stage, 1u32);
        let wraps = k.setp(Compare::Eq, next, self.ring.tile.stages);
        k.assign(self.stage, k.selp(0u32, next, wraps));
        k.when(wraps, || k.xor_into(self.parity, self.parity, 1u32));
    }

    /// The previous stage.
    fn before(&self, k: &Entry) -> Reg<U32> {
        let first = k.setp(Compare::Eq, self.stage, 0u32);
        k.selp(self.ring.tile.stages - 1, k.sub(self.stage, 1u32), first)
    }

    /// Advances past `slices` k-tiles that the other warpgroup reads.
    fn skip(&self, k: &Entry, slices: Reg<U32>) {
        let stages = self.ring.tile.stages;
        let behind = k.add(self.stage, slices);
        let rounds = k.div_u32(behind, stages);
        k.assign(self.stage, k.sub(behind, k.mul_lo(rounds, stages)));
        k.xor_into(self.parity, self.parity, k.and(rounds, 1u32));
    }
}

arguments! {
    /// Arguments of [`HopperProduct`](super::sm90::HopperProduct). Layer z sums p = z·k_step .. min(z·k_step + k_chunk, k).
    HopperProductArgs, declared as HopperProductParams {
        /// Tensor map of A: [`HopperProduct::maps`](super::sm90::HopperProduct::maps).
        map_a: TensorMap,
        /// Tensor map of B.
        map_b: TensorMap,
        /// C.
        c: DeviceAddress,
        /// The data of the epilogue; matrices are like C.
        epilogue: Epilogue<DeviceAddress>,
        /// Rows of A and C.
        m: usize,
        /// Columns of B and C.
        n: usize,
        /// Columns of A, rows of B.
        k: usize,
        /// Leading dimension of C, elements.
        ldc: usize,
        /// Steps of k from the first of one layer to the first of the next.
        k_step: usize,
        /// Steps of k of a layer, a multiple of 64 unless there is one layer.
        k_chunk: usize,
        /// Layers.
        layers: usize,
        /// Elements from the C of one layer to that of the next.
        stride_c: usize,
    }
}

impl HopperProductArgs {
    /// The product of `spec` in `layers` of `chunk` steps of k, whose Cs are `stride_c` elements apart.
    pub fn new(
        spec: &Gemm,
        [map_a, map_b]: [TensorMap; 2],
        c: DeviceAddress,
        epilogue: Epilogue<DeviceAddress>,
        (layers, chunk): (usize, usize),
        stride_c: usize,
    ) -> Self {
        let Gemm { m, n, k, ldc, .. } = *spec;
        Self { map_a, map_b, c, epilogue, m, n, k, ldc, k_step: chunk, k_chunk: chunk, layers, stride_c }
    }
}

/// Tile scheduler: the tiles and splits of a launch, divided among its blocks.
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

/// A tile of a split.
struct Work {
    /// Index among the tiles of all splits.
    unit: Reg<U32>,
    /// First row and first column of C.
    origin: [Reg<U32>; 2],
    layer: Reg<U32>,
    /// First p of the sums.
    k_begin: Reg<U32>,
    /// Number of k-tiles.
    slices: Reg<U32>,
}

impl Schedule {
    pub(super) fn new(k: &Entry, tile: HopperTile, params: &HopperProductParams) -> Self {
        let [m, n, depth] = [&params.m, &params.n, &params.k].map(|size| size.load(k));
        let leading = params.ldc.clone();
        let [k_step, k_chunk, layers, stride_c] =
            [&params.k_step, &params.k_chunk, &params.layers, &params.stride_c].map(Param::clone);
        Self { tile, m, n, k: depth, leading, k_step, k_chunk, layers, stride_c }
    }

    /// Tiles down and along, and in all.
    fn grid(&self, k: &Entry) -> ([Reg<U32>; 2], Reg<U32>) {
        let grid = [tiles(k, self.m, HopperTile::M), tiles(k, self.n, self.tile.n)];
        (grid, k.mul_lo(grid[0], grid[1]))
    }

    /// Calls `body` with the tiles of this block, split after split: stride gridDim.x; with ping-pong every second of them,
    /// starting at `turn`.
    fn each(&self, k: &Entry, turn: Option<Reg<U32>>, body: impl FnOnce(&Work)) {
        let all = k.mul_lo(self.grid(k).1, k.ld_param(self.layers.clone()));
        let (mut first, mut step) = (k.special(Special::CtaidX), k.special(Special::NctaidX));
        if let Some(turn) = turn {
            (first, step) = (k.add(first, k.mul_lo(turn, step)), k.shl(step, 1));
        }
        k.for_(first, all, step, |unit| {
            // Recomputed for every tile, because registers are scarcer than instructions.
            let (grid, in_layer) = self.grid(k);
            let layer = k.div_u32(unit, in_layer);
            let index = k.sub(unit, k.mul_lo(layer, in_layer));
            let origin = tile_origin(k, [HopperTile::M, self.tile.n], grid, index, GROUP);
            let (k_begin, slices) = self.slices(k, layer);
            body(&Work { unit, origin, layer, k_begin, slices });
        });
    }

    /// First p and number of k-tiles of `layer`.
    fn slices(&self, k: &Entry, layer: Reg<U32>) -> (Reg<U32>, Reg<U32>) {
        let k_begin = k.mul_lo(layer, k.ld_param(self.k_step.clone()));
        let k_end = k.min_u32(k.add(k_begin, k.ld_param(self.k_chunk.clone())), self.k);
        (k_begin, tiles(k, k.sub(k_end, k_begin), HopperTile::K))
    }

    /// Advances `place` past the k-tiles of the tile before `work`, if this block has one.
    fn skip_before(&self, k: &Entry, place: &Place, work: &Work) {
        let blocks = k.special(Special::NctaidX);
        k.if_(k.setp(Compare::Ge, work.unit, blocks), || {
            let layer = k.div_u32(k.sub(work.unit, blocks), self.grid(k).1);
            place.skip(k, self.slices(k, layer).1);
        });
    }
}

/// The producer thread.
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
        schedule.each(k, None, |work| {
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

    /// Issues the TMA loads of one operand's part of a k-tile.
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

/// Consumer warpgroup: 64 rows of each tile (cooperative), or all rows of every other tile (ping-pong).
pub(super) struct Consumer {
    ring: Ring,
    base: Ptr<Shared>,
    /// 0 or 1
    group: Reg<U32>,
    /// Index among the eight consumer warps.
    warp: Reg<U32>,
    /// True if this lane arrives for its warp.
    arrives: Reg<Pred>,
    /// Descriptors of the rows of A and of B in the first stage.
    operands: [Reg<U64>; 2],
}

impl Consumer {
    /// For warp `warp` of the eight.
    pub(super) fn new(k: &Entry, ring: Ring, base: Ptr<Shared>, warp: Reg<U32>) -> Self {
        let group = k.shr(warp, 2);
        let arrives = k.setp(Compare::Eq, k.special(Special::LaneId), 0u32);
        // Where k runs down, 64 columns are a box of their own.
        let constant = [0, 1].map(|operand| {
            let leading = if ring.along_k[operand] { 16 } else { BOX };
            descriptor(leading, EIGHT_ROWS, DescriptorSwizzle::Bytes128)
        });
        let a = if ring.tile.schedule == KernelSchedule::Cooperative { k.index(base, group, BOX) } else { base };
        let b = k.offset(base, Ring::A);
        let operands = [k.matrix_descriptor(a, constant[0]), k.matrix_descriptor(b, constant[1])];
        Self { ring, base, group, warp, arrives, operands }
    }

    pub(super) fn run<P: Pair>(&self, k: &Entry, schedule: &Schedule, epilogue: &EpilogueEmitter, c: &PointerParam) {
        let Self { ring, base, .. } = *self;
        let sums = k.registers::<F32>("acc", (ring.blocks() * ring.tile.n / 2) as usize);
        let place = Place::first(k, ring, 0);
        let turns = (ring.tile.schedule == KernelSchedule::PingPong).then(|| self.turns(k));
        schedule.each(k, turns.as_ref().map(|_| self.group), |work| {
            if let Some(turns) = &turns {
                turns.wait(k);
                schedule.skip_before(k, &place, work);
            }
            k.for_(0u32, work.slices, 1u32, |slice| {
                k.mbarrier_wait(place.barrier(k, base, ring.full()), place.parity);
                let adds = k.setp(Compare::Ne, slice, 0u32);
                self.multiply::<P>(k, &sums, place.stage, adds);
                k.comment("the slice before has been read");
                k.wgmma_wait(1);
                self.release(k, &place, k.and(self.arrives, adds));
                place.advance(k);
            });
            if let Some(turns) = &turns {
                k.when(self.arrives, || k.mbarrier_arrive(turns.other));
            }
            k.wgmma_wait(0);
            self.release(k, &place, self.arrives);
            self.finish(k, schedule, epilogue, c, work, &sums);
        });
    }

    /// The ping-pong barriers.
    fn turns(&self, k: &Entry) -> PingPongBarriers {
        let at = |group| k.slot(self.base, group, 8).at(self.ring.turn() as i32);
        // The first turn is that of group 0: a fresh barrier is in its first phase, and that before is over.
        let first = k.xor(self.group, 1u32);
        PingPongBarriers { mine: at(self.group), other: at(first), parity: k.variable("turn", first) }
    }

    /// Starts sums (+)= A · B of the k-tile in `stage` as one group; adds to the old sums if `adds`.
    fn multiply<P: Pair>(&self, k: &Entry, sums: &[Reg<F32>], stage: Reg<U32>, adds: Reg<Pred>) {
        let ring = self.ring;
        let start = self.operands.map(|operand| k.mad_wide(stage, ring.stage_bytes() / 16, operand));
        let always = k.condition(true);
        let major = |operand: usize| if ring.along_k[operand] { Major::K } else { Major::Mn };
        let deep = |operand: usize| if ring.along_k[operand] { 32 } else { 16 * ROW };
        let at = |operand: usize, step: u32, rows: u32| match step * deep(operand) + rows * BOX {
            0 => (start[operand], major(operand)),
            bytes => (k.add(start[operand], u64::from(bytes / 16)), major(operand)),
        };
        let of_step =
            |step: u32| ((0..ring.blocks()).map(|rows| at(0, step, rows)).collect::<Vec<_>>(), at(1, step, 0));
        let steps: Vec<_> = (0..HopperTile::K / 16).map(of_step).collect();
        k.wgmma_fence();
        for (step, (a, b)) in steps.into_iter().enumerate() {
            for (a, sums) in a.into_iter().zip(sums.chunks_exact((ring.tile.n / 2) as usize)) {
                k.wgmma::<P>(sums, a, b, if step == 0 { adds } else { always });
            }
        }
        k.wgmma_commit();
    }

    /// Releases the stage before `place` for this warp, if `condition`.
    fn release(&self, k: &Entry, place: &Place, condition: Reg<Pred>) {
        let empty = k.slot(self.base, place.before(k), 8).at(self.ring.empty() as i32);
        k.when(condition, || k.mbarrier_arrive(empty));
    }

    /// The epilogue of the warp's rows of the tile: 16 of each block of 64 that its warpgroup has.
    fn finish(
        &self,
        k: &Entry,
        schedule: &Schedule,
        epilogue: &EpilogueEmitter,
        c: &PointerParam,
        work: &Work,
        sums: &[Reg<F32>],
    ) {
        k.comment("16 rows of this warp, 64 columns at a time: epilogue, C");
        // Read again: no register is free for it during the mainloop.
        let lane = k.special(Special::LaneId);
        let LanePlace { row, half } = LanePlace::find(k, lane);
        let bytes = self.ring.panels() * SUMS.bytes();
        let mine = k.index(k.offset(self.base, self.ring.sums()), self.warp, bytes);
        let zero = k.mov(0u32);
        let to = fragment_start(k, &SUMS, mine, &WarpPlace { lane, origin: [zero, zero] });
        let from = SUMS.chunk_address(k, mine, row, k.shl(half, 1));
        let (along, panels) = (self.ring.tile.n / 64, self.ring.panels() as usize);
        for (i, sums) in (0..).step_by(panels).zip(sums.chunks(32 * panels)) {
            k.warp_sync();
            for (fragment, sums) in (0..).zip(sums.chunks_exact(4)) {
                store_fragment(k, &SUMS, to, [16 * (fragment / 8), 8 * (fragment % 8)], sums);
            }
            k.warp_sync();
            // Computed this late because the accumulators occupy the registers before.
            let warp = if self.ring.blocks() == 1 { self.warp } else { k.and(self.warp, 3u32) };
            let row = k.add(k.add(work.origin[0], k.shl(warp, 4)), row);
            let layer = k.mul_wide(work.layer, k.ld_param(schedule.stride_c.clone()));
            let c = k.offset(
                k.cvta_to_global(k.ld_param_pointer(c.clone())),
                k.shl(layer, epilogue.output().bytes().ilog2()),
            );
            let target = Target { c, columns: schedule.n, leading: k.ld_param(schedule.leading.clone()) };
            let panel = epilogue.panel(k, &target, k.add(work.origin[1], k.shl(half, 3)), half);
            for (part, i) in (i..i + sums.len() as u32 / 32).enumerate() {
                let (block, column) = (i / along, i % along);
                let row = if block == 0 { row } else { k.add(row, 64 * block) };
                let exists = k.lt(k.add(work.origin[1], 64 * column), schedule.n);
                k.if_(k.and(exists, k.lt(row, schedule.m)), || {
                    let from = if part == 0 { from } else { k.offset(from, SUMS.bytes()) };
                    epilogue.write_row(k, &SUMS, from, &panel.along(k, column), row);
                });
            }
        }
    }
}

/// Two warpgroups that take turns: whose slices go through the ring is decided by the order of the tiles, and a wait for a
/// phase that lies more than one ahead would take an older one for it.
struct PingPongBarriers {
    mine: Address<Shared>,
    other: Address<Shared>,
    /// Parity of the phase to wait for.
    parity: Reg<U32>,
}

impl PingPongBarriers {
    /// Waits until the other warpgroup has begun its last slice.
    fn wait(&self, k: &Entry) {
        k.mbarrier_wait(self.mine, self.parity);
        k.xor_into(self.parity, self.parity, 1u32);
    }
}
