//! Mainloop of Hopper's product: pipeline, tile scheduler, producer and consumers.
//!
//! ```text
//! barrier      arrivals of a phase                              bytes       who waits          parity of the first wait
//! full[s]      the producer                                     a stage     its readers        0
//! empty[s]     a lane of every warp of the pair that reads the stage        the producer       1: a new barrier passes
//! turn[g]      a lane of every warp of the other warpgroup                  warpgroup g        1 for g = 0, 0 for g = 1
//! ```
//!
//! A wait identifies a phase by its parity only, so it must not be more than one phase ahead of the barrier. The full and
//! empty barriers guarantee this for the producer and for cooperative consumers, which read every k-tile; ping-pong
//! consumers, which skip k-tiles, also need the turn barriers.

use super::{
    epilogue::{EpilogueEmitter, LanePosition, Target, fragment_start, store_fragment},
    position::{WarpPosition, tile_origin, tiles},
    tiles::{GROUP, HopperTile, KernelSchedule},
};
use crate::arguments::{Address as DeviceAddress, Load as _, arguments};
use kernels::gemm::{Epilogue, Gemm};
use ptx::{
    Address, BytesParam, Compare, DescriptorSwizzle, Entry, F32, Fence, Generic, Major, Pair, Param, PointerParam,
    Pred, Ptr, Reg, S32, Shared, Special, Swizzle, TensorMap, Tile, U32, U64, descriptor,
};

/// Blocks of a cluster that share B.
pub(super) const PAIR: u32 = 2;
/// Consumer warps.
const WARPS: u32 = 8;
/// Bytes of 64 elements: a row of a box.
const ROW: u32 = 128;
/// Bytes from one group of eight rows to the next: a period of the swizzle.
const EIGHT_ROWS: u32 = 8 * ROW;
/// Bytes of 64 rows of a stage: the rows of A of one consumer, and a box of an operand whose k runs down columns.
const BOX: u32 = 64 * ROW;
/// Accumulators of a warp in shared memory, for the epilogue.
const SUMS: Tile = Tile::new(16, 64, 4, Swizzle::Reversed);

/// Layout of the pipeline in shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct PipelineLayout {
    pub tile: HopperTile,
    /// True if k runs along the rows in memory: for A, for B.
    pub along_k: [bool; 2],
    /// Blocks of a cluster, 1 or [`PAIR`]; those of a pair share their tiles' columns of B.
    pub ranks: u32,
}

impl PipelineLayout {
    /// Bytes of A in a stage.
    const A: u32 = HopperTile::M * ROW;

    const fn stage_bytes(self) -> u32 {
        Self::A + self.tile.n * ROW
    }

    /// Rows in shared memory of a box of B that one block of a pair loads.
    pub(super) const fn half_of_b(self) -> u32 {
        if self.along_k[1] { self.tile.n / PAIR } else { HopperTile::K / PAIR }
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

    /// Initializes the barriers; run by one thread. `full` completes after one arrival and all bytes of the stage, `empty`
    /// when all warps that multiply the k-tile have read it, `turn` when the warps of the other warpgroup have started
    /// their last k-tile.
    pub(super) fn initialize(self, k: &Entry, base: Ptr<Shared>) {
        k.comment("the barriers of the ring");
        let readers = self.ranks * WARPS / self.blocks();
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
struct PipelineState {
    layout: PipelineLayout,
    stage: Reg<U32>,
    /// Parity of the phase to wait for.
    parity: Reg<U32>,
}

impl PipelineState {
    fn first(k: &Entry, layout: PipelineLayout, parity: u32) -> Self {
        Self { layout, stage: k.variable("stage", 0u32), parity: k.variable("parity", parity) }
    }

    /// Barrier of the stage in the array `first` bytes after `base`.
    fn barrier(&self, k: &Entry, base: Ptr<Shared>, first: u32) -> Address<Shared> {
        k.slot(base, self.stage, 8).at(first as i32)
    }

    /// Advances to the next stage; after the last one to the first, with the other parity.
    fn advance(&self, k: &Entry) {
        let next = k.add(self.stage, 1u32);
        let wraps = k.setp(Compare::Eq, next, self.layout.tile.stages);
        k.assign(self.stage, k.selp(0u32, next, wraps));
        k.when(wraps, || k.xor_into(self.parity, self.parity, 1u32));
    }

    /// Previous stage.
    fn before(&self, k: &Entry) -> Reg<U32> {
        let first = k.setp(Compare::Eq, self.stage, 0u32);
        k.selp(self.layout.tile.stages - 1, k.sub(self.stage, 1u32), first)
    }

    /// Advances past `k_tiles` k-tiles that the other warpgroup reads.
    fn skip(&self, k: &Entry, k_tiles: Reg<U32>) {
        let stages = self.layout.tile.stages;
        let position = k.add(self.stage, k_tiles);
        let rounds = k.div_u32(position, stages);
        k.assign(self.stage, k.sub(position, k.mul_lo(rounds, stages)));
        k.xor_into(self.parity, self.parity, k.and(rounds, 1u32));
    }
}

arguments! {
    /// Arguments of [`HopperProduct`](super::sm90::HopperProduct). Split z sums p = z·k_step .. min(z·k_step + k_chunk, k).
    HopperProductArgs, declared as HopperProductParams {
        /// Tensor map of A: [`HopperProduct::maps`](super::sm90::HopperProduct::maps).
        map_a: TensorMap,
        /// Tensor map of B.
        map_b: TensorMap,
        /// C.
        c: DeviceAddress,
        /// Data of the epilogue; matrices have the shape and leading dimension of C.
        epilogue: Epilogue<DeviceAddress>,
        /// Rows of A and C.
        m: usize,
        /// Columns of B and C.
        n: usize,
        /// Columns of A, rows of B.
        k: usize,
        /// Leading dimension of C, elements.
        ldc: usize,
        /// Steps of k from the start of one split to the start of the next.
        k_step: usize,
        /// Steps of k of a split, a multiple of 64 unless there is only one split.
        k_chunk: usize,
        /// Splits of k.
        layers: usize,
        /// Elements from the C of one split to that of the next.
        stride_c: usize,
    }
}

impl HopperProductArgs {
    /// Arguments for `spec` in `layers` splits of `chunk` steps of k each, whose Cs are `stride_c` elements apart.
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
    ranks: u32,
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
    /// Index among the tiles of all splits, those of a cluster counted once.
    unit: Reg<U32>,
    /// First row and first column of C.
    origin: [Reg<U32>; 2],
    split: Reg<U32>,
    /// First p of the sums.
    k_begin: Reg<U32>,
    /// Number of k-tiles.
    k_tiles: Reg<U32>,
}

impl Schedule {
    pub(super) fn new(k: &Entry, layout: PipelineLayout, params: &HopperProductParams) -> Self {
        let PipelineLayout { tile, ranks, .. } = layout;
        let [m, n, depth] = [&params.m, &params.n, &params.k].map(|size| size.load(k));
        let leading = params.ldc.clone();
        let [k_step, k_chunk, layers, stride_c] =
            [&params.k_step, &params.k_chunk, &params.layers, &params.stride_c].map(Param::clone);
        Self { tile, ranks, m, n, k: depth, leading, k_step, k_chunk, layers, stride_c }
    }

    /// Rows of C of a cluster's tiles.
    fn rows(&self) -> u32 {
        self.ranks * HopperTile::M
    }

    /// `blocks` in clusters.
    fn clusters(&self, k: &Entry, blocks: Special) -> Reg<U32> {
        let blocks = k.special(blocks);
        if self.ranks == 1 { blocks } else { k.shr(blocks, self.ranks.ilog2()) }
    }

    /// Number of a cluster's tiles along the rows and the columns of C, and of all of them in a split.
    fn grid(&self, k: &Entry) -> ([Reg<U32>; 2], Reg<U32>) {
        let grid = [tiles(k, self.m, self.rows()), tiles(k, self.n, self.tile.n)];
        (grid, k.mul_lo(grid[0], grid[1]))
    }

    /// Emits a loop of `body` over the tiles of this block, split after split, with the number of clusters as stride; with
    /// ping-pong over every second of them, from `turn` on.
    fn each(&self, k: &Entry, turn: Option<Reg<U32>>, body: impl FnOnce(&Work)) {
        let all = k.mul_lo(self.grid(k).1, k.ld_param(self.layers.clone()));
        let (mut first, mut step) = (self.clusters(k, Special::CtaidX), self.clusters(k, Special::NctaidX));
        if let Some(turn) = turn {
            (first, step) = (k.add(first, k.mul_lo(turn, step)), k.shl(step, 1));
        }
        k.for_(first, all, step, |unit| {
            // Recomputed for every tile, because registers are scarcer than instructions.
            let (grid, in_split) = self.grid(k);
            let split = k.div_u32(unit, in_split);
            let index = k.sub(unit, k.mul_lo(split, in_split));
            let mut origin = tile_origin(k, [self.rows(), self.tile.n], grid, index, GROUP / self.ranks);
            if self.ranks > 1 {
                let rank = k.special(Special::ClusterRank);
                origin[0] = k.add(origin[0], k.shl(rank, HopperTile::M.ilog2()));
            }
            let (k_begin, k_tiles) = self.k_tiles(k, split);
            body(&Work { unit, origin, split, k_begin, k_tiles });
        });
    }

    /// First p and number of k-tiles of `split`.
    fn k_tiles(&self, k: &Entry, split: Reg<U32>) -> (Reg<U32>, Reg<U32>) {
        let k_begin = k.mul_lo(split, k.ld_param(self.k_step.clone()));
        let k_end = k.min_u32(k.add(k_begin, k.ld_param(self.k_chunk.clone())), self.k);
        (k_begin, tiles(k, k.sub(k_end, k_begin), HopperTile::K))
    }

    /// Advances `state` past the k-tiles of the tile before `work`, if this block has one.
    fn skip_before(&self, k: &Entry, state: &PipelineState, work: &Work) {
        let blocks = self.clusters(k, Special::NctaidX);
        k.if_(k.setp(Compare::Ge, work.unit, blocks), || {
            let split = k.div_u32(k.sub(work.unit, blocks), self.grid(k).1);
            state.skip(k, self.k_tiles(k, split).1);
        });
    }
}

/// Producer: the thread that starts the copies.
pub(super) struct Producer<'a> {
    pub layout: PipelineLayout,
    pub base: Ptr<Shared>,
    pub maps: &'a [BytesParam; 2],
}

impl Producer<'_> {
    pub(super) fn run(&self, k: &Entry, schedule: &Schedule) {
        let Self { layout, base, .. } = *self;
        let maps = [0, 1].map(|operand| k.address_of_param(&self.maps[operand]));
        // A wait for the other parity passes on a new barrier.
        let state = PipelineState::first(k, layout, 1);
        schedule.each(k, None, |work| {
            let depth = k.variable("depth", work.k_begin);
            k.for_(0u32, work.k_tiles, 1u32, |_| {
                k.mbarrier_wait(state.barrier(k, base, layout.empty()), state.parity);
                let full = state.barrier(k, base, layout.full());
                k.mbarrier_arrive_expect(full, layout.stage_bytes());
                let stage = k.index(base, state.stage, layout.stage_bytes());
                self.boxes(k, 0, stage, [work.origin[0], depth], |to, at| k.tensor_load(to, maps[0], at, full));
                self.load_b(k, maps[1], stage, [work.origin[1], depth], full);
                k.add_into(depth, depth, HopperTile::K);
                state.advance(k);
            });
        });
    }

    /// Issues the TMA loads of B's part of a k-tile; of a pair, this block's half into both blocks: half of the columns, or of k
    /// where it runs down the columns, since a box of 64 columns does not halve.
    fn load_b(
        &self,
        k: &Entry,
        map: Ptr<Generic>,
        stage: Ptr<Shared>,
        [origin, depth]: [Reg<U32>; 2],
        full: Address<Shared>,
    ) {
        if self.layout.ranks == 1 {
            return self.boxes(k, 1, stage, [origin, depth], |to, at| k.tensor_load(to, map, at, full));
        }
        let half = self.layout.half_of_b();
        let rank = k.special(Special::ClusterRank);
        let (stage, first) = (k.index(stage, rank, half * ROW), k.mul_lo(rank, half));
        let start = if self.layout.along_k[1] { [k.add(origin, first), depth] } else { [origin, k.add(depth, first)] };
        let ranks = (1 << PAIR) - 1;
        self.boxes(k, 1, stage, start, |to, at| k.tensor_multicast(to, map, at, full, ranks));
    }

    /// Calls `copy` with place and coordinates of each box of one operand's part of a k-tile.
    fn boxes(
        &self,
        k: &Entry,
        operand: usize,
        stage: Ptr<Shared>,
        [origin, depth]: [Reg<U32>; 2],
        copy: impl Fn(Address<Shared>, [Reg<S32>; 2]),
    ) {
        let signed = |value: Reg<U32>| k.reinterpret::<U32, S32>(value);
        let (start, extent) = [(0, HopperTile::M), (PipelineLayout::A, self.layout.tile.n)][operand];
        if self.layout.along_k[operand] {
            copy(stage.at(start as i32), [signed(depth), signed(origin)]);
        } else {
            for i in 0..extent / 64 {
                let column = if i == 0 { origin } else { k.add(origin, 64 * i) };
                copy(stage.at((start + i * BOX) as i32), [signed(column), signed(depth)]);
            }
        }
    }
}

/// Consumer warpgroup: 64 rows of each tile (cooperative), or all rows of every other tile (ping-pong).
pub(super) struct Consumer {
    layout: PipelineLayout,
    base: Ptr<Shared>,
    /// 0 or 1
    group: Reg<U32>,
    /// Index among the eight consumer warps.
    warp: Reg<U32>,
    /// True if this lane arrives for its warp, at the block of its own number if there are several.
    arrives: Reg<Pred>,
    /// Descriptors of the rows of A and of B in the first stage.
    operands: [Reg<U64>; 2],
}

impl Consumer {
    /// For warp `warp` of the eight.
    pub(super) fn new(k: &Entry, layout: PipelineLayout, base: Ptr<Shared>, warp: Reg<U32>) -> Self {
        let group = k.shr(warp, 2);
        let lane = k.special(Special::LaneId);
        let arrives = if layout.ranks == 1 { k.setp(Compare::Eq, lane, 0u32) } else { k.lt(lane, layout.ranks) };
        // If k runs down columns, each box has 64 columns.
        let constant = [0, 1].map(|operand| {
            let leading = if layout.along_k[operand] { 16 } else { BOX };
            descriptor(leading, EIGHT_ROWS, DescriptorSwizzle::Bytes128)
        });
        let a = if layout.tile.schedule == KernelSchedule::Cooperative { k.index(base, group, BOX) } else { base };
        let b = k.offset(base, PipelineLayout::A);
        let operands = [k.matrix_descriptor(a, constant[0]), k.matrix_descriptor(b, constant[1])];
        Self { layout, base, group, warp, arrives, operands }
    }

    pub(super) fn run<P: Pair>(&self, k: &Entry, schedule: &Schedule, epilogue: &EpilogueEmitter, c: &PointerParam) {
        let Self { layout, base, .. } = *self;
        let sums = k.registers::<F32>("acc", (layout.blocks() * layout.tile.n / 2) as usize);
        let state = PipelineState::first(k, layout, 0);
        let turns = (layout.tile.schedule == KernelSchedule::PingPong).then(|| self.turns(k));
        schedule.each(k, turns.as_ref().map(|_| self.group), |work| {
            if let Some(turns) = &turns {
                turns.wait(k);
                schedule.skip_before(k, &state, work);
            }
            k.for_(0u32, work.k_tiles, 1u32, |k_tile| {
                k.mbarrier_wait(state.barrier(k, base, layout.full()), state.parity);
                let adds = k.setp(Compare::Ne, k_tile, 0u32);
                self.multiply::<P>(k, &sums, state.stage, adds);
                k.comment("the slice before has been read");
                k.wgmma_wait(1);
                self.release(k, &state, k.and(self.arrives, adds));
                state.advance(k);
            });
            if let Some(turns) = &turns {
                let first = if layout.ranks == 1 { self.arrives } else { self.first(k) };
                k.when(first, || k.mbarrier_arrive(turns.other));
            }
            k.wgmma_wait(0);
            self.release(k, &state, self.arrives);
            self.finish(k, schedule, epilogue, c, work, &sums);
        });
    }

    /// Whether this is the first lane of its warp.
    fn first(&self, k: &Entry) -> Reg<Pred> {
        k.setp(Compare::Eq, k.special(Special::LaneId), 0u32)
    }

    /// Ping-pong barriers of this warpgroup and the other.
    fn turns(&self, k: &Entry) -> PingPongBarriers {
        let at = |group| k.slot(self.base, group, 8).at(self.layout.turn() as i32);
        // Group 0 has the first turn: its wait for the other parity passes on a new barrier.
        let first = k.xor(self.group, 1u32);
        PingPongBarriers { mine: at(self.group), other: at(first), parity: k.variable("turn", first) }
    }

    /// Starts sums (+)= A · B of the k-tile in `stage` as one group; adds to the old sums if `adds`.
    fn multiply<P: Pair>(&self, k: &Entry, sums: &[Reg<F32>], stage: Reg<U32>, adds: Reg<Pred>) {
        let layout = self.layout;
        let start = self.operands.map(|operand| k.mad_wide(stage, layout.stage_bytes() / 16, operand));
        let always = k.condition(true);
        let major = |operand: usize| if layout.along_k[operand] { Major::K } else { Major::Mn };
        let deep = |operand: usize| if layout.along_k[operand] { 32 } else { 16 * ROW };
        let at = |operand: usize, step: u32, rows: u32| match step * deep(operand) + rows * BOX {
            0 => (start[operand], major(operand)),
            bytes => (k.add(start[operand], u64::from(bytes / 16)), major(operand)),
        };
        let of_step =
            |step: u32| ((0..layout.blocks()).map(|rows| at(0, step, rows)).collect::<Vec<_>>(), at(1, step, 0));
        let steps: Vec<_> = (0..HopperTile::K / 16).map(of_step).collect();
        k.wgmma_fence();
        for (step, (a, b)) in steps.into_iter().enumerate() {
            for (a, sums) in a.into_iter().zip(sums.chunks_exact((layout.tile.n / 2) as usize)) {
                k.wgmma::<P>(sums, a, b, if step == 0 { adds } else { always });
            }
        }
        k.wgmma_commit();
    }

    /// Releases the stage before `state` for this warp, if `condition`.
    fn release(&self, k: &Entry, state: &PipelineState, condition: Reg<Pred>) {
        let empty = k.slot(self.base, state.before(k), 8).at(self.layout.empty() as i32);
        if self.layout.ranks == 1 {
            k.when(condition, || k.mbarrier_arrive(empty));
        } else {
            let lane = k.special(Special::LaneId);
            k.if_(condition, || k.mbarrier_arrive_at(empty, lane));
        }
    }

    /// Applies the epilogue to the warp's rows of the tile, 16 of each block of 64 rows of its warpgroup, and stores them.
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
        // Read here: no register is free for it during the mainloop.
        let lane = k.special(Special::LaneId);
        let LanePosition { row, half } = LanePosition::find(k, lane);
        let bytes = self.layout.panels() * SUMS.bytes();
        let mine = k.index(k.offset(self.base, self.layout.sums()), self.warp, bytes);
        let zero = k.mov(0u32);
        let to = fragment_start(k, &SUMS, mine, &WarpPosition { lane, origin: [zero, zero] });
        let from = SUMS.chunk_address(k, mine, row, k.shl(half, 1));
        let (along, panels) = (self.layout.tile.n / 64, self.layout.panels() as usize);
        for (i, sums) in (0..).step_by(panels).zip(sums.chunks(32 * panels)) {
            k.warp_sync();
            for (fragment, sums) in (0..).zip(sums.chunks_exact(4)) {
                store_fragment(k, &SUMS, to, [16 * (fragment / 8), 8 * (fragment % 8)], sums);
            }
            k.warp_sync();
            // Computed this late because the accumulators occupy the registers before.
            let warp = if self.layout.blocks() == 1 { self.warp } else { k.and(self.warp, 3u32) };
            let row = k.add(k.add(work.origin[0], k.shl(warp, 4)), row);
            let elements = k.mul_wide(work.split, k.ld_param(schedule.stride_c.clone()));
            let c = k.offset(
                k.cvta_to_global(k.ld_param_pointer(c.clone())),
                k.shl(elements, epilogue.output().bytes().ilog2()),
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

/// Barriers by which the ping-pong warpgroups alternate. k-tiles pass through the pipeline in the order of the tiles; a
/// warpgroup that waited more than one phase ahead of `full` would continue after an older phase of the same parity.
struct PingPongBarriers {
    mine: Address<Shared>,
    other: Address<Shared>,
    /// Parity of the phase to wait for.
    parity: Reg<U32>,
}

impl PingPongBarriers {
    /// Waits until the other warpgroup has started its last k-tile.
    fn wait(&self, k: &Entry) {
        k.mbarrier_wait(self.mine, self.parity);
        k.xor_into(self.parity, self.parity, 1u32);
    }
}
