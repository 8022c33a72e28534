//! Tile sizes of the products on a GPU, and their cost. [`HopperProduct::new`](super::sm90::HopperProduct::new) and
//! [`Product::new`](super::sm80::Product::new) choose among them.

use crate::gpu_spec::GpuSpec;
use kernels::gemm::{Beta, Gemm};

/// Rows of tiles per rasterization group.
pub(super) const GROUP: u32 = 8;

/// Sizes of a block's tile, of its k-tiles and of its warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocking {
    /// Rows of a tile.
    pub m: u32,
    /// Columns of a tile.
    pub n: u32,
    /// Depth of a k-tile.
    pub k: u32,
    /// Stages of the pipeline, a k-tile each.
    pub stages: u32,
    /// Warps along the rows and the columns of a tile.
    pub warps: (u32, u32),
}

impl Blocking {
    /// For products with many tiles.
    pub const LARGE: Blocking = Blocking { m: 128, n: 128, k: 32, stages: 4, warps: (2, 4) };
    /// [`Blocking::LARGE`] with half as many barriers per step of k and 1.5 times the shared memory (96 KiB).
    pub const DEEP: Blocking = Blocking { m: 128, n: 128, k: 64, stages: 3, warps: (2, 4) };
    /// For products with few tiles of 128 x 128.
    pub const MIDDLE: Blocking = Blocking { m: 128, n: 64, k: 32, stages: 4, warps: (2, 2) };
    /// For products with few tiles of any size.
    pub const SMALL: Blocking = Blocking { m: 64, n: 64, k: 32, stages: 4, warps: (2, 2) };
    /// The only blocking for f32.
    pub const SINGLE: Blocking = Blocking { m: 64, n: 64, k: 16, stages: 2, warps: (4, 2) };

    /// Blockings for the tensor cores, largest first.
    pub const ALL: [Blocking; 4] = [Self::DEEP, Self::LARGE, Self::MIDDLE, Self::SMALL];

    /// Threads of a block.
    pub(crate) const fn threads(self) -> u32 {
        32 * self.warps.0 * self.warps.1
    }

    /// Rows and columns of a tile per warp.
    pub(super) const fn warp(self) -> (u32, u32) {
        (self.m / self.warps.0, self.n / self.warps.1)
    }

    /// Number of tiles of an m x n matrix.
    pub(crate) const fn tiles(self, m: usize, n: usize) -> usize {
        m.div_ceil(self.m as usize) * n.div_ceil(self.n as usize)
    }
}

/// Division of the tiles of a block between the two consumer warpgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelSchedule {
    /// Each computes 64 rows of every tile.
    Cooperative,
    /// Each computes every other tile: the epilogue of one overlaps the mainloop of the other.
    PingPong,
}

/// Tile of Hopper's product: 128 rows, k-tiles of 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HopperTile {
    /// Columns of a tile.
    pub n: u32,
    /// Stages of the pipeline, a k-tile each.
    pub stages: u32,
    /// Division of the tiles between the consumers.
    pub schedule: KernelSchedule,
}

impl HopperTile {
    /// For long k: the tensor cores and shared memory take equally long.
    pub const WIDE: HopperTile = HopperTile { n: 256, stages: 4, schedule: KernelSchedule::Cooperative };
    /// For products with a long epilogue and a short mainloop.
    pub const PING_PONG: HopperTile = HopperTile { n: 192, stages: 4, schedule: KernelSchedule::PingPong };
    /// For products with few tiles.
    pub const SQUARE: HopperTile = HopperTile { n: 128, stages: 5, schedule: KernelSchedule::Cooperative };
    /// All tiles.
    pub const ALL: [HopperTile; 3] = [Self::WIDE, Self::PING_PONG, Self::SQUARE];

    /// Rows of a tile.
    pub const M: u32 = 128;
    /// Depth of a k-tile.
    pub const K: u32 = 64;

    /// Tiles that support `beta`. With ping-pong the accumulators leave no registers for old values of C.
    pub fn all(beta: Beta) -> impl Iterator<Item = HopperTile> {
        Self::ALL.into_iter().filter(move |tile| beta == Beta::Zero || tile.schedule == KernelSchedule::Cooperative)
    }

    /// Number of tiles of an m x n matrix.
    pub const fn tiles(self, m: usize, n: usize) -> usize {
        m.div_ceil(Self::M as usize) * n.div_ceil(self.n as usize)
    }

    /// Lower bound of the cycles of a k-tile: of the tensor cores, at 8192 multiply-adds per four cycles, or of shared
    /// memory, at 128 bytes per cycle: TMA writes both operands once, and each `wgmma` of 64 rows reads its rows of A and
    /// all of B.
    pub const fn k_tile_cycles(self) -> u32 {
        let products = Self::M * self.n * Self::K / 2048;
        let bytes = (Self::M + self.n) * Self::K * 2 + Self::M / 64 * (64 + self.n) * Self::K * 2;
        let memory = bytes / 128;
        if products > memory { products } else { memory }
    }

    /// Predicted cycles of the busiest of `multiprocessors` for an m x n x k product. An element of the epilogue takes an
    /// eighth of a cycle, which only ping-pong hides.
    pub fn cycles(self, [m, n, k]: [usize; 3], multiprocessors: usize) -> usize {
        let rounds = self.tiles(m, n).div_ceil(multiprocessors.max(1));
        let products = k.div_ceil(Self::K as usize) * self.k_tile_cycles() as usize;
        let epilogue = (Self::M * self.n / 8) as usize;
        match self.schedule {
            KernelSchedule::Cooperative => rounds * (products + epilogue),
            KernelSchedule::PingPong => rounds * products.max((products + epilogue) / 2) + epilogue,
        }
    }
}

/// Bytes of device memory per cycle and multiprocessor.
const MEMORY_BYTES: usize = GpuSpec::H200.bytes_per_cycle();
/// Cycles of a second kernel launch, about three microseconds.
const LAUNCH: usize = 4400;
/// Maximum number of splits of k.
const MAX_LAYERS: usize = 64;

impl HopperTile {
    /// Number of splits of k, steps of k of each, and predicted cycles of the fastest split-K on `multiprocessors`: a last
    /// wave with few tiles leaves multiprocessors idle, and more, shorter tiles fill them. Split-K costs a second kernel
    /// that reads the f32 sums of every split.
    pub(super) fn split(self, spec: &Gemm, multiprocessors: usize) -> ((usize, usize), usize) {
        let Gemm { m, n, k, .. } = *spec;
        let cut = |wanted: usize| {
            let chunk = k.max(1).div_ceil(wanted).next_multiple_of(Self::K as usize);
            let layers = k.max(1).div_ceil(chunk);
            // Splits are scheduled like more rows of tiles.
            let rows = m.next_multiple_of(Self::M as usize) * layers;
            let sums =
                if layers > 1 { LAUNCH + 8 * layers * m * n / (MEMORY_BYTES * multiprocessors.max(1)) } else { 0 };
            let chunk = if layers > 1 { chunk } else { k };
            ((layers, chunk), self.cycles([rows, n, chunk], multiprocessors) + sums)
        };
        let most = k.div_ceil(256).clamp(1, MAX_LAYERS);
        (1..=most).map(cut).min_by_key(|(_, cycles)| *cycles).expect("one layer is a cut")
    }
}
