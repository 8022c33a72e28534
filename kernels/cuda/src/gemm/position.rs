//! Positions: the tile of a block, the part of a warp, and the warp's fragments in shared memory.

use super::tiles::{Blocking, GROUP};
use crate::arguments::{Address, Load as _, arguments};
use kernels::gemm::{Epilogue, Gemm};
use ptx::{Entry, Global, Pair, Param, PointerParam, Ptr, Reg, Shared, Special, Storage, Tile, U32, fragment::Load};

arguments! {
    /// Arguments of [`Product`](super::sm80::Product). blockIdx.z = z computes batch element z, or sums
    /// p = z·k_step .. min(z·k_step + k_chunk, k).
    ProductArgs, declared as ProductParams {
        /// A.
        a: Address,
        /// B.
        b: Address,
        /// C.
        c: Address,
        /// Data of the epilogue; matrices have the shape and leading dimension of C.
        epilogue: Epilogue<Address>,
        /// Rows of A and C.
        m: usize,
        /// Columns of B and C.
        n: usize,
        /// Columns of A, rows of B.
        k: usize,
        /// Leading dimension of A, elements.
        lda: usize,
        /// Leading dimension of B.
        ldb: usize,
        /// Leading dimension of C.
        ldc: usize,
        /// Steps of k from the start of one z to the start of the next; 0 in a batch.
        k_step: usize,
        /// Steps of k of each z.
        k_chunk: usize,
        /// Elements from the A of one z to that of the next.
        stride_a: usize,
        /// Elements from the B of one z to that of the next.
        stride_b: usize,
        /// Elements from the C of one z to that of the next.
        stride_c: usize,
    }
}

impl ProductArgs {
    /// Arguments for one product of `spec`: C = epilogue(A · B).
    pub fn new(spec: &Gemm, [a, b, c]: [Address; 3], epilogue: Epilogue<Address>) -> Self {
        let Gemm { m, n, k, lda, ldb, ldc, .. } = *spec;
        let (stride_a, stride_b, stride_c) = (0, 0, 0);
        Self { a, b, c, epilogue, m, n, k, lda, ldb, ldc, k_step: 0, k_chunk: k, stride_a, stride_b, stride_c }
    }
}

/// Operands of a product.
pub(super) struct Operands {
    pointers: [PointerParam; 3],
    storage: [Storage; 3],
}

/// Sizes of a product, loaded, and the parameters of batch elements and splits.
pub(super) struct Sizes {
    pub m: Reg<U32>,
    pub n: Reg<U32>,
    pub k: Reg<U32>,
    /// lda, ldb, ldc
    pub leading: [Reg<U32>; 3],
    k_step: Param<U32>,
    k_chunk: Param<U32>,
    strides: [Param<U32>; 3],
}

impl Sizes {
    pub(super) fn load(k: &Entry, params: &ProductParams) -> Self {
        let [m, n, depth] = [&params.m, &params.n, &params.k].map(|size| size.load(k));
        let leading = [&params.lda, &params.ldb, &params.ldc].map(|size| size.load(k));
        let strides = [&params.stride_a, &params.stride_b, &params.stride_c].map(Param::clone);
        let (k_step, k_chunk) = (params.k_step.clone(), params.k_chunk.clone());
        Sizes { m, n, k: depth, leading, k_step, k_chunk, strides }
    }
}

impl Operands {
    /// A and B in `storage`, C in `output`.
    pub(super) fn new(params: &ProductParams, storage: Storage, output: Storage) -> Self {
        let pointers = [&params.a, &params.b, &params.c].map(PointerParam::clone);
        Self { pointers, storage: [storage, storage, output] }
    }

    /// Address of operand 0, 1 or 2 (A, B, C) for this block's batch element or split.
    pub(super) fn layer(&self, k: &Entry, sizes: &Sizes, operand: usize) -> Ptr<Global> {
        let base = k.cvta_to_global(k.ld_param_pointer(self.pointers[operand].clone()));
        let stride = k.ld_param(sizes.strides[operand].clone());
        let elements = k.mul_wide(k.special(Special::CtaidZ), stride);
        k.offset(base, k.shl(elements, self.storage[operand].bytes().ilog2()))
    }
}

/// Tile of a block.
pub(super) struct TilePosition {
    /// First row and first column of C.
    pub origin: [Reg<U32>; 2],
    /// First p of the split.
    pub k_begin: Reg<U32>,
    /// End of the split, exclusive.
    pub k_end: Reg<U32>,
    /// Number of k-tiles.
    pub k_tiles: Reg<U32>,
}

impl TilePosition {
    pub(super) fn find(k: &Entry, blocking: Blocking, sizes: &Sizes) -> Self {
        k.comment("which tile");
        let grid = [tiles(k, sizes.m, blocking.m), tiles(k, sizes.n, blocking.n)];
        let origin = tile_origin(k, [blocking.m, blocking.n], grid, k.special(Special::CtaidX), GROUP);
        k.comment("which part of k");
        let k_begin = k.mul_lo(k.special(Special::CtaidZ), k.ld_param(sizes.k_step.clone()));
        let k_end = k.min_u32(k.add(k_begin, k.ld_param(sizes.k_chunk.clone())), sizes.k);
        let k_tiles = tiles(k, k.sub(k_end, k_begin), blocking.k);
        Self { origin, k_begin, k_end, k_tiles }
    }
}

/// ⌈size / tile⌉
pub(crate) fn tiles(k: &Entry, size: Reg<U32>, tile: u32) -> Reg<U32> {
    let last = k.add(size, tile - 1);
    if tile.is_power_of_two() { k.shr(last, tile.ilog2()) } else { k.div_u32(last, tile) }
}

/// First row and first column of tile `index`, for tiles of `size` in a grid of `grid` tiles (rows, columns).
/// Rasterization: groups of `group` rows of tiles (a power of two), column-major in each group.
pub(super) fn tile_origin(
    k: &Entry,
    size: [u32; 2],
    grid: [Reg<U32>; 2],
    index: Reg<U32>,
    group: u32,
) -> [Reg<U32>; 2] {
    let group_size = k.shl(grid[1], group.ilog2());
    let group_index = k.div_u32(index, group_size);
    let first = k.shl(group_index, group.ilog2());
    let rows = k.min_u32(k.sub(grid[0], first), group);
    let within = k.sub(index, k.mul_lo(group_index, group_size));
    let column = k.div_u32(within, rows);
    let row = k.add(first, k.sub(within, k.mul_lo(column, rows)));
    [k.mul_lo(row, size[0]), k.mul_lo(column, size[1])]
}

/// Layout of one operand's k-tile in shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    /// 0 for A, 1 for B.
    pub operand: usize,
    /// True if k runs along the rows in memory: A normal, B transposed.
    pub along_k: bool,
    /// The k-tile in a stage.
    pub tile: Tile,
    /// Offset of `tile` in a stage, bytes.
    pub offset: u32,
    /// Load of a fragment.
    pub load: Load,
    /// Rows of A or columns of B per warp.
    pub warp_extent: u32,
    /// Threads of the block; all of them copy.
    pub threads: u32,
    /// True if rows start at multiples of 16 bytes.
    pub aligned: bool,
}

impl Side {
    /// Rows of the tile that all threads copy in one step.
    pub(super) const fn rows_at_once(&self) -> u32 {
        self.threads / self.tile.chunks()
    }
}

/// Part of a tile that a warp computes.
pub(super) struct WarpPosition {
    pub lane: Reg<U32>,
    /// First row and first column within the tile.
    pub origin: [Reg<U32>; 2],
}

impl WarpPosition {
    pub(super) fn find(k: &Entry, blocking: Blocking, thread: Reg<U32>) -> Self {
        let (warp, lane) = (k.shr(thread, 5), k.and(thread, 31u32));
        let (down, along) = (k.shr(warp, blocking.warps.1.ilog2()), k.and(warp, blocking.warps.1 - 1));
        Self { lane, origin: [k.mul_lo(down, blocking.warp().0), k.mul_lo(along, blocking.warp().1)] }
    }
}

/// Address of this lane's first fragment of one operand, in the first stage.
pub(super) struct FragmentPosition {
    side: Side,
    start: Ptr<Shared>,
}

impl FragmentPosition {
    pub(super) fn find(k: &Entry, side: Side, base: Ptr<Shared>, warp: &WarpPosition) -> Self {
        let (row, chunk) = lane_start(k, side.load, warp.lane);
        let origin = warp.origin[side.operand];
        let (row, chunk) = match side.load.transposes() {
            // The warp's rows or columns run along the rows of the tile.
            true => (row, k.add(chunk, k.shr(origin, 3))),
            false => (k.add(row, origin), chunk),
        };
        let start = side.tile.chunk_address(k, k.offset(base, side.offset), row, chunk);
        Self { side, start }
    }

    /// Fragments in the stage `stage` bytes after the first.
    pub(super) fn in_stage(&self, k: &Entry, stage: Reg<U32>) -> StagedFragments {
        StagedFragments { side: self.side, start: k.offset(self.start, stage) }
    }
}

/// Emits the row and chunk of a tile that `lane` addresses in an `ldmatrix.x4`: [`Load::start`] as instructions.
pub(crate) fn lane_start(k: &Entry, load: Load, lane: Reg<U32>) -> (Reg<U32>, Reg<U32>) {
    let (row, low, high) = (k.and(lane, 7u32), k.and(k.shr(lane, 3), 1u32), k.shr(lane, 4));
    // The lane bit that selects the lower rows is the one that `Load::start` maps to row 8.
    let low_goes_down = load.start(8).0 == 8;
    let (down, along) = if low_goes_down { (low, high) } else { (high, low) };
    (k.add(row, k.shl(down, 3)), along)
}

/// Fragments of one operand in one stage.
pub(super) struct StagedFragments {
    side: Side,
    start: Ptr<Shared>,
}

impl StagedFragments {
    /// Loads all fragments of the warp at k = 16 · `step` of the k-tile.
    pub(super) fn load<P: Pair>(&self, k: &Entry, step: u32) -> Vec<[Reg<P>; 4]> {
        (0..self.side.warp_extent / 16)
            .map(|i| load_fragment(k, self.side.load, &self.side.tile, self.start, i, step))
            .collect()
    }
}

/// Loads fragment `i` (16 rows of A or columns of B) at k = 16 · `step`; `start` is the lane's address in fragment 0.
pub(crate) fn load_fragment<P: Pair>(
    k: &Entry,
    load: Load,
    tile: &Tile,
    start: Ptr<Shared>,
    i: u32,
    step: u32,
) -> [Reg<P>; 4] {
    if load.transposes() {
        k.ldmatrix_trans(tile.step(16 * step, 16 * i).take(k, start))
    } else {
        k.ldmatrix(tile.step(16 * i, 16 * step).take(k, start))
    }
}
