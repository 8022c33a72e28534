//! Blocking of a product: k by its length only, m and n by the size of L2. The loop nest is in `super`; docs/gemm.md
//! explains the choice of each size.

use crate::pool::{Caches, Cpu};
use crate::register_tile::RegisterTile;

/// Maximum number of terms of a chain of dependent additions. A longer sum is split into equal chains whose results are
/// added in order, because the rounding error grows with the length of a chain (docs/gemm.md, Accuracy).
pub const CHAIN: usize = 384;

/// Maximum k of a single block, with which C is written once and not read.
pub const SINGLE_BLOCK: usize = 1024;

/// Terms per chain of a sum over k; the last chain may be shorter. The length and the order of the chains determine the
/// bits of a product, so the length depends on k only, not on the machine.
pub(crate) const fn chain(k: usize) -> usize {
    if k <= CHAIN { k } else { k.div_ceil(k.div_ceil(CHAIN)) }
}

/// Steps of k per block (KC); the last block may be shorter. One block if k is at most [`SINGLE_BLOCK`], else equal blocks
/// of at most [`CHAIN`]. Either a block is one chain, or all chains are in one block, so blocks do not change the order of
/// additions. C is read and written once per block.
pub(in crate::gemm) const fn kc(k: usize) -> usize {
    if k <= SINGLE_BLOCK { k } else { chain(k) }
}

/// Sizes of the loop nest for one instruction set and the caches of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocking {
    /// Rows of the register tile.
    pub mr: usize,
    /// Columns of the register tile.
    pub nr: usize,
    /// Elements of a block of B, which is resident in L2 while panels of A are streamed.
    pub b_block: usize,
    /// Elements of an unpacked B that is read in place: it fits L2 together with the other data of a product.
    pub b_in_place: usize,
    /// True if at least half of a block of B is in L2, false if it comes from L3 because L2 is small.
    pub b_in_l2: bool,
    /// Elements of panels of A that are resident in L2 while panels of B are streamed.
    pub a_resident: usize,
    /// True if the steps of a chain of a panel of B fit L1 together with those of A that are streamed.
    pub chain_in_l1: bool,
    /// Rows that are not divided between tasks and tiles: 1, or MR.
    pub row_unit: usize,
}

/// Maximum panels of A in a group.
pub(super) const MOST_PANELS: usize = 32;

/// Panels of a transposed A that are packed together, because a cache line belongs to several.
const PACKED_TOGETHER: usize = 8;

/// True if a transposed A is packed for panels of `mr` rows, which would use less than three quarters of the cache lines that
/// they read in place.
pub(super) const fn packs_transposed(mr: usize) -> bool {
    4 * mr * size_of::<f32>() < 3 * 64
}

impl Blocking {
    /// Sizes for a tile of vectors of `lanes` lanes, real or emulated.
    pub(crate) fn new(tile: RegisterTile, lanes: usize, caches: Caches) -> Self {
        // An element is a group of 32 bits for every microkernel.
        let floats = caches.block() / size_of::<f32>();
        Self {
            mr: tile.rows,
            nr: tile.columns(lanes),
            b_block: floats * 9 / 16,
            b_in_place: floats * 3 / 4,
            b_in_l2: caches.l2 >= caches.block() / 2,
            a_resident: caches.l2 / size_of::<f32>() * 9 / 16,
            chain_in_l1: CHAIN * tile.columns(lanes) * size_of::<f32>() <= caches.l1 / 4 * 3,
            row_unit: 1,
        }
    }

    /// The same for tiles that compute MR rows, whether or not they exist: only the last tile may have fewer.
    pub(crate) const fn in_whole_tiles(self) -> Self {
        Self { row_unit: self.mr, ..self }
    }

    /// Sizes of f32 products for the instruction set and the L2 of `cpu`.
    pub fn of(cpu: &Cpu) -> Self {
        let lanes = cpu.isa().kind().lanes();
        Self::new(RegisterTile::of_lanes(lanes), lanes, cpu.caches())
    }

    /// Maximum columns of C per task with blocks of `depth` steps (NC), a multiple of NR: the columns of a block of B, which
    /// is counted with at least a quarter of [`CHAIN`] steps.
    pub const fn nc(&self, depth: usize) -> usize {
        const LEAST: usize = CHAIN / 4;
        let panels = self.b_block / (if depth > LEAST { depth } else { LEAST }) / self.nr;
        self.nr * if panels > 0 { panels } else { 1 }
    }

    /// Panels of A that are multiplied with a panel of B before the next one, for a block of `depth` elements in each of `rows`
    /// rows. Several if B comes from L3 or memory, so that it is read once for all of them, and of a transposed A that is packed.
    pub(super) const fn group(&self, [rows, depth]: [usize; 2], a_in_place: bool, b_is_prepacked: bool) -> usize {
        let depth = if depth > 0 { depth } else { 1 };
        let is_resident = rows <= self.a_resident / depth;
        let fit = self.a_resident / depth / self.mr;
        let fit = if fit > MOST_PANELS { MOST_PANELS } else { fit };
        let panels = match b_is_prepacked && a_in_place && is_resident {
            true => fit,
            // Tiles of a matrix unit read whole panels of A from L1.
            false if self.b_in_l2 || self.row_unit > 1 => 1,
            false => fit,
        };
        let least = if !a_in_place && packs_transposed(self.mr) { PACKED_TOGETHER } else { 1 };
        if panels > least { panels } else { least }
    }

    /// Elements of the panels of A that are packed at a time.
    pub(super) const fn packed_a(&self) -> usize {
        let panels = if packs_transposed(self.mr) { PACKED_TOGETHER } else { 1 };
        let least = panels * self.mr * SINGLE_BLOCK;
        if self.b_in_l2 || self.row_unit > 1 || self.a_resident < least { least } else { self.a_resident }
    }

    /// Maximum rows of C per task (MC), a multiple of MR, if partial sums are kept in a buffer because C is bf16: with
    /// [`Self::nc`] columns they take three quarters of L2.
    pub const fn mc(&self) -> usize {
        let panels = self.b_in_place / self.nc(CHAIN) / self.mr;
        self.mr * if panels > 0 { panels } else { 1 }
    }
}
