//! Blocking of a product: k by its length only, m and n by the size of L2. The loop nest is in `super`; docs/gemm.md
//! explains the choice of each size.

use crate::pool::Cpu;
use crate::register_tile::RegisterTile;

/// Maximum number of terms of a chain of dependent additions. A longer sum is split into equal chains whose results are
/// added in order, because the rounding error grows with the length of a chain (docs/gemm.md, Accuracy).
pub const CHAIN: usize = 384;

/// Maximum k of a single block, with which C is written once and not read.
pub const SINGLE_BLOCK: usize = 1024;

/// Terms per chain of a sum over k; the last chain may be shorter. The length and the order of the chains determine the
/// bits of a product, so the length depends on k only, not on the machine.
pub(in crate::gemm) const fn chain(k: usize) -> usize {
    if k <= CHAIN { k } else { k.div_ceil(k.div_ceil(CHAIN)) }
}

/// Steps of k per block (KC); the last block may be shorter. One block if k is at most [`SINGLE_BLOCK`], else equal blocks
/// of at most [`CHAIN`]. Either a block is one chain, or all chains are in one block, so blocks do not change the order of
/// additions. C is read and written once per block.
pub(in crate::gemm) const fn kc(k: usize) -> usize {
    if k <= SINGLE_BLOCK { k } else { chain(k) }
}

/// Sizes of the loop nest for one instruction set and one size of L2.
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
    /// Elements of a block of A that is resident in L2 while panels of B are streamed.
    pub a_resident: usize,
    /// Rows that are not divided between tasks and tiles: 1, or MR.
    pub row_unit: usize,
}

impl Blocking {
    /// Sizes for a tile of vectors of `lanes` lanes, real or emulated, and an L2 of `l2` bytes.
    pub(crate) const fn new(tile: RegisterTile, lanes: usize, l2: usize) -> Self {
        // An element is a group of 32 bits for every microkernel.
        let floats = l2 / size_of::<f32>();
        Self {
            mr: tile.rows,
            nr: tile.columns(lanes),
            b_block: floats * 9 / 16,
            b_in_place: floats * 3 / 4,
            a_resident: floats * 9 / 16,
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
        Self::new(RegisterTile::of_lanes(lanes), lanes, cpu.block_cache())
    }

    /// Maximum columns of C per task with blocks of `depth` steps (NC), a multiple of NR: the columns of a block of B, which
    /// is counted with at least a quarter of [`CHAIN`] steps.
    pub const fn nc(&self, depth: usize) -> usize {
        const LEAST: usize = CHAIN / 4;
        let panels = self.b_block / (if depth > LEAST { depth } else { LEAST }) / self.nr;
        self.nr * if panels > 0 { panels } else { 1 }
    }

    /// Maximum rows of C per task (MC), a multiple of MR, if partial sums are kept in a buffer because C is bf16: with
    /// [`Self::nc`] columns they take three quarters of L2.
    pub const fn mc(&self) -> usize {
        let panels = self.b_in_place / self.nc(CHAIN) / self.mr;
        self.mr * if panels > 0 { panels } else { 1 }
    }
}
