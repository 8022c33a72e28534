//! Code shared by the attention kernels on Hopper: barriers of a pipeline and operands; shared memory and the producer of
//! `sm90_backward`.
//!
//! ```text
//! block            128 rows of two matrices are resident; two others are streamed, 64 rows at a time
//! warpgroup 0      the producer: one thread starts all copies
//! warpgroups 1, 2  the consumers: 64 of the resident rows each
//!
//! shared memory  resident: [matrix][64 rows of a warpgroup][64 columns] | stage: two tiles, 4 times | more | barriers
//! barrier        arrivals of a phase                   bytes            who waits       parity of the first wait
//! ready          the producer                          resident tiles   the consumers   0
//! full[s]        the producer and the filler warps     two tiles        the consumers   0
//! empty[s]       a lane of each of the eight warps                      the producer    1: a new barrier passes
//! ```
//!
//! A tile is 64 rows of one head, in boxes of 64 columns: 128 bytes a row, chunks swizzled by the row modulo 8. `wgmma`
//! reads a box with k along its rows or down its columns ([`k_major`], [`mn_major`]), so nothing is transposed.

use super::{
    sm80::TILE,
    tile::{Layout, Sequence, Warp},
};
use crate::gemm::position::load_fragment;
pub(super) use crate::hopper::CONSUMERS;
use crate::hopper::{THREADS, prefetch, warp_number};
use ptx::Launch;
use ptx::{
    Address, BytesParam, Compare, DescriptorSwizzle, Entry, F32, Fence, Generic, Major, Pair, Ptr, Reg, S32, Shared,
    Storage, TensorMap, TensorMapError, U32, U64, descriptor, fragment::Load,
};

/// Resident rows of a block.
pub(super) const RESIDENT: u32 = CONSUMERS * TILE;
/// Stages of the pipeline, a power of two.
pub(super) const STAGES: u32 = 4;
/// Bytes of 64 elements: a row of a box.
pub(super) const ROW: u32 = 128;
/// Bytes of 64 x 64 elements.
const BOX: u32 = 64 * ROW;
/// Bytes of eight rows: the stride of a descriptor.
const EIGHT_ROWS: u32 = 8 * ROW;

/// Layout of shared memory; offsets are in bytes from its start.
#[derive(Clone, Copy)]
pub(super) struct SharedLayout {
    /// Boxes of 64 columns per row.
    pub boxes: u32,
    /// Number of resident matrices.
    pub resident: u32,
    /// Bytes between the stages and the barriers.
    pub more: u32,
}

/// A block's shared memory.
#[derive(Clone, Copy)]
pub(super) struct SharedMemory {
    pub base: Ptr<Shared>,
    pub layout: SharedLayout,
}

impl SharedLayout {
    /// Bytes of 64 rows of a matrix.
    pub(super) const fn tile_bytes(self) -> u32 {
        self.boxes * BOX
    }

    /// Bytes of a stage: two tiles.
    const fn stage_bytes(self) -> u32 {
        2 * self.tile_bytes()
    }

    /// Offset of the first stage, after the resident tiles.
    const fn stages(self) -> u32 {
        self.resident * CONSUMERS * self.tile_bytes()
    }

    /// Offset of the area between the stages and the barriers.
    pub(super) const fn more(self) -> u32 {
        self.stages() + STAGES * self.stage_bytes()
    }

    const fn ready(self) -> u32 {
        self.more() + self.more
    }

    const fn full(self) -> u32 {
        self.ready() + 8
    }

    const fn bytes(self) -> u32 {
        self.full() + 2 * 8 * STAGES
    }

    /// Launch for `sequences` sequences of at most `longest` tokens and `heads` heads; `None` if one of them is 0.
    pub(super) fn launch(self, sequences: usize, longest: usize, heads: usize) -> Option<Launch> {
        let grid = [longest.div_ceil(RESIDENT as usize) as u32, heads as u32, sequences as u32];
        let filled = grid.iter().all(|&n| n > 0);
        filled.then_some(Launch { grid, block: [THREADS, 1, 1], shared_bytes: self.bytes() })
    }
}

/// Stage of tile `tile`.
pub(super) fn stage(k: &Entry, tile: Reg<U32>) -> Reg<U32> {
    k.and(tile, STAGES - 1)
}

/// Full and empty barriers of a pipeline in shared memory: `stages` stages, a power of two, whose `parts` parts are filled
/// and released one by one. Tile `index` of the pipeline is in stage `index` modulo `stages`.
#[derive(Clone, Copy)]
pub(super) struct Barriers {
    pub base: Ptr<Shared>,
    /// Offset of the full barriers; the empty ones follow.
    pub at: u32,
    pub stages: u32,
    pub parts: u32,
}

impl Barriers {
    /// Initializes the barriers for so many arrivals a phase; run by one thread, which executes a fence afterwards.
    pub(super) fn init(self, k: &Entry, fillers: u32, readers: u32) {
        for slot in 0..self.stages * self.parts {
            let full = self.base.at((self.at + 8 * slot) as i32);
            k.mbarrier_init(full, fillers);
            k.mbarrier_init(full.plus((8 * self.stages * self.parts) as i32), readers);
        }
    }

    pub(super) fn stage(self, k: &Entry, index: Reg<U32>) -> Reg<U32> {
        k.and(index, self.stages - 1)
    }

    /// Parity of the phase in which tile `index` is in its stage.
    fn parity(self, k: &Entry, index: Reg<U32>) -> Reg<U32> {
        k.and(k.shr(index, self.stages.ilog2()), 1u32)
    }

    /// Barrier that completes when part `part` of tile `index` has arrived.
    pub(super) fn full(self, k: &Entry, index: Reg<U32>, part: u32) -> Address<Shared> {
        k.slot(self.base, self.stage(k, index), 8 * self.parts).at((self.at + 8 * part) as i32)
    }

    /// Barrier that completes when part `part` of tile `index` has been read.
    pub(super) fn empty(self, k: &Entry, index: Reg<U32>, part: u32) -> Address<Shared> {
        self.full(k, index, part).plus((8 * self.stages * self.parts) as i32)
    }

    /// Waits until part `part` of tile `index` has arrived.
    pub(super) fn wait_full(self, k: &Entry, index: Reg<U32>, part: u32) {
        k.mbarrier_wait(self.full(k, index, part), self.parity(k, index));
    }

    /// Waits until the previous tile in the place of part `part` of tile `index` has been read.
    pub(super) fn wait_empty(self, k: &Entry, index: Reg<U32>, part: u32) {
        // A wait for the other parity passes on a new barrier.
        k.mbarrier_wait(self.empty(k, index, part), k.xor(self.parity(k, index), 1u32));
    }
}

/// Constant part of the descriptor of a tile with k along its rows.
pub(super) const fn k_major() -> u64 {
    descriptor(16, EIGHT_ROWS, DescriptorSwizzle::Bytes128)
}

/// Constant part of the descriptor of a tile with k down its columns, 64 of which are a box of `rows` rows.
pub(super) const fn mn_major(rows: u32) -> u64 {
    descriptor(rows * ROW, EIGHT_ROWS, DescriptorSwizzle::Bytes128)
}

/// Bytes from the start of a tile of `rows` rows to its columns from `16 * step` on.
pub(super) const fn k_major_step(step: u32, rows: u32) -> u32 {
    step / 4 * rows * ROW + step % 4 * 32
}

/// Bytes from the start of a tile to its rows from `16 * step` on.
pub(super) const fn mn_major_step(step: u32) -> u32 {
    step * 16 * ROW
}

/// `descriptor` advanced by `bytes`.
pub(super) fn advance(k: &Entry, descriptor: Reg<U64>, bytes: u32) -> Reg<U64> {
    if bytes == 0 { descriptor } else { k.add(descriptor, u64::from(bytes / 16)) }
}

impl SharedMemory {
    /// Starts a kernel: initializes the barriers and returns the warp index, uniform over the lanes so that roles are
    /// whole warps. `fillers` is the number of arrivals that fill a stage.
    pub(super) fn init(self, k: &Entry, thread: Reg<U32>, fillers: u32, maps: &[BytesParam]) -> Reg<U32> {
        let Self { base, layout } = self;
        let warp = warp_number(k, thread);
        k.if_(k.setp(Compare::Eq, thread, 0u32), || {
            prefetch(k, maps);
            k.mbarrier_init(base.at(layout.ready() as i32), 1);
            self.barriers().init(k, fillers, 4 * CONSUMERS);
            k.fence(Fence::MbarrierInit);
        });
        k.bar_sync();
        warp
    }

    /// Tile of resident matrix `i` for consumer `group`.
    pub(super) fn resident_tile(self, k: &Entry, i: u32, group: Reg<U32>) -> Ptr<Shared> {
        let tile = self.layout.tile_bytes();
        let own = k.index(self.base, group, tile);
        if i == 0 { own } else { k.offset(own, i * CONSUMERS * tile) }
    }

    /// Descriptor of streamed matrix `i` in stage 0; `constant` is [`k_major()`] or [`mn_major()`].
    pub(super) fn streamed(self, k: &Entry, i: u32, constant: u64) -> Reg<U64> {
        k.matrix_descriptor(k.offset(self.base, self.layout.stages() + i * self.layout.tile_bytes()), constant)
    }

    /// A descriptor in stage 0 moved to `stage`.
    pub(super) fn at_stage(self, k: &Entry, descriptor: Reg<U64>, stage: Reg<U32>) -> Reg<U64> {
        k.mad_wide(stage, self.layout.stage_bytes() / 16, descriptor)
    }

    /// Barriers of the stages.
    pub(super) fn barriers(self) -> Barriers {
        Barriers { base: self.base, at: self.layout.full(), stages: STAGES, parts: 1 }
    }

    /// Waits until the resident tiles have arrived.
    pub(super) fn wait_ready(self, k: &Entry) {
        k.mbarrier_wait(self.base.at(self.layout.ready() as i32), 0u32);
    }
}

/// Producer: the thread that loads resident and streamed tiles, with their tensor maps.
pub(super) struct Producer<'a> {
    pub shared: SharedMemory,
    pub resident: &'a [&'a BytesParam],
    pub streamed: [&'a BytesParam; 2],
}

impl Producer<'_> {
    /// Copies the resident rows `first ..` of the sequence, then streams rows `0 .. end`, 64 at a time.
    pub(super) fn run(&self, k: &Entry, sequence: &Sequence, first: Reg<U32>, end: Reg<U32>) {
        let Self { shared, .. } = *self;
        let SharedLayout { boxes, .. } = shared.layout;
        let resident: Vec<Ptr<Generic>> = self.resident.iter().map(|map| k.address_of_param(map)).collect();
        let streamed = self.streamed.map(|map| k.address_of_param(map));
        let signed = |value: Reg<U32>| k.reinterpret::<U32, S32>(value);
        let columns: Vec<Reg<S32>> = (0..boxes).map(|i| signed(k.add(sequence.column, 64 * i))).collect();
        let load = |to: Ptr<Shared>, tile: u32, map: Ptr<Generic>, row: Reg<U32>, barrier: Address<Shared>| {
            for (i, &column) in (0..).zip(&columns) {
                let to = to.at(((tile * boxes + i) * BOX) as i32);
                k.tensor_load(to, map, [column, signed(row)], barrier);
            }
        };
        let ready = shared.base.at(shared.layout.ready() as i32);
        k.mbarrier_arrive_expect(ready, shared.layout.stages());
        let first = k.add(sequence.start, first);
        for group in 0..CONSUMERS {
            let row = if group == 0 { first } else { k.add(first, group * TILE) };
            for (i, &map) in (0..).zip(&resident) {
                load(shared.base, i * CONSUMERS + group, map, row, ready);
            }
        }
        let tile = k.variable("tile", 0u32);
        k.for_(0u32, end, TILE, |row| {
            shared.barriers().wait_empty(k, tile, 0);
            let full = shared.barriers().full(k, tile, 0);
            k.mbarrier_arrive_expect(full, shared.layout.stage_bytes());
            let to = k.index(shared.base, stage(k, tile), shared.layout.stage_bytes());
            let to = k.offset(to, shared.layout.stages());
            let row = k.add(sequence.start, row);
            (0..).zip(streamed).for_each(|(i, map)| load(to, i, map, row, full));
            k.add_into(tile, tile, 1u32);
        });
    }
}

/// Starts two products, each as one `wgmma` group: sums [64, 64] = x [64, D] · (tile)ᵀ, with `tiles` the descriptors of
/// tiles read along their rows.
pub(super) fn multiply_k_major<P: Pair>(
    k: &Entry,
    sums: &[Vec<Reg<F32>>; 2],
    x: [&[[Reg<P>; 4]]; 2],
    tiles: [Reg<U64>; 2],
) {
    let steps = [0, 1].map(|i| {
        let at = |step| advance(k, tiles[i], k_major_step(step, TILE));
        (&sums[i], x[i], (0..x[i].len() as u32).map(at).collect::<Vec<_>>())
    });
    let adds = [false, true].map(|adds| k.condition(adds));
    k.wgmma_fence();
    for (sums, x, tiles) in steps {
        for (step, (&x, tile)) in x.iter().zip(tiles).enumerate() {
            k.wgmma_registers::<P>(sums, x, (tile, Major::K), adds[usize::from(step > 0)]);
        }
        k.wgmma_commit();
    }
}

/// Tensor maps of q, k, v (rows `ld` apart) and dout (rows `hidden` apart) at these addresses.
pub(super) fn backward_maps(
    storage: Storage,
    [q, k, v, dout]: [u64; 4],
    tokens: usize,
    hidden: usize,
    ld: usize,
) -> Result<[TensorMap; 4], TensorMapError> {
    let map = |at, ld| TensorMap::matrix(at, storage, [tokens, hidden], ld, TILE);
    Ok([map(q, ld)?, map(k, ld)?, map(v, ld)?, map(dout, hidden)?])
}

/// Starts sums [64, D] += x [64, W] · tile [W, D] as one `wgmma` group, with `tile` the descriptor of a tile read down its
/// columns.
pub(super) fn accumulate_mn_major<P: Pair>(k: &Entry, sums: &[Reg<F32>], x: &[[Reg<P>; 4]], tile: Reg<U64>) {
    let adds = k.condition(true);
    let steps: Vec<_> = (0..x.len() as u32).map(|step| advance(k, tile, mn_major_step(step))).collect();
    k.wgmma_fence();
    for (&x, rows) in x.iter().zip(steps) {
        k.wgmma_registers::<P>(sums, x, (rows, Major::Mn), adds);
    }
    k.wgmma_commit();
}

/// Loads this warp's 16 rows of a tile as operands of 16 columns.
pub(super) fn fragments<P: Pair>(k: &Entry, boxes: u32, tile: Ptr<Shared>, warp: &Warp) -> Vec<[Reg<P>; 4]> {
    let boxed = Layout::new(64);
    let start = boxed.start(k, Load::A, tile, warp, warp.row);
    let of_box = |i| if i == 0 { start } else { k.offset(start, i * BOX) };
    let steps = (0..boxes).map(of_box).flat_map(|start| (0..4).map(move |step| (start, step)));
    steps.map(|(start, step)| load_fragment(k, Load::A, &boxed.tile, start, 0, step)).collect()
}

/// Index of the consumer that warp `warp` of the block belongs to, and the thread's position in it.
pub(super) fn consumer(k: &Entry, warp: Reg<U32>, thread: Reg<U32>) -> (Reg<U32>, Warp) {
    let group = k.sub(k.shr(warp, 2), 1u32);
    let (thread, lane) = (k.and(thread, 127u32), k.and(thread, 31u32));
    let row = k.shl(k.and(warp, 3u32), 4);
    (group, Warp { thread, lane, row, group: k.shr(lane, 2), pair: k.and(lane, 3u32) })
}
