//! Sizes of register tiles and cache blocks per instruction set. The loop nest is in `super`; docs/gemm.md says how each size was
//! found.

use crate::register_tile::RegisterTile;
use crate::simd::IsaKind;

/// Maximum number of terms of a chain of dependent additions. A longer sum is cut into equal chains whose results are
/// added in order, because the rounding error grows with the length of a chain (docs/gemm.md, Accuracy).
pub(in crate::gemm) const CHAIN: usize = 384;

/// Terms per chain of a sum over k; the last chain may be shorter. The length and the order of the chains determine the
/// bits of a product, so the length depends on k only, not on the machine.
pub(in crate::gemm) const fn chain(k: usize) -> usize {
    if k <= CHAIN { k } else { k.div_ceil(k.div_ceil(CHAIN)) }
}

/// Sizes of the loop nest for one instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gemm) struct Blocking {
    /// Rows of the register tile.
    pub mr: usize,
    /// Vectors in a row of the register tile.
    pub nv: usize,
    /// Columns of the register tile: `nv` vectors.
    pub nr: usize,
    /// Steps of k per block, if k is longer than `kc_single`. C is read and written once per block.
    pub kc: usize,
    /// Largest k that is a single block, so that C is not read again.
    pub kc_single: usize,
    /// Maximum columns of C per task with blocks of `kc` steps: the block of B that stays in L2. With shorter blocks up
    /// to as many elements and four times the columns. A multiple of `nr`.
    pub nc: usize,
    /// Maximum rows of C per task if partial sums are kept in a buffer because C is bf16.
    pub mc: usize,
}

impl Blocking {
    /// Sizes for vectors of `lanes` lanes, the same for real and emulated instruction sets.
    pub(in crate::gemm) const fn of_lanes(lanes: usize) -> Self {
        let RegisterTile { rows: mr, vectors: nv } = RegisterTile::of_lanes(lanes);
        let nr = nv * lanes;
        let (nc, mc) = if lanes >= 8 { (768, 512) } else { (384, 256) };
        assert!(nc % nr == 0);
        Self { mr, nv, nr, kc: CHAIN, kc_single: 1024, nc, mc }
    }
    /// Sizes for `isa`.
    pub(in crate::gemm) const fn of(isa: IsaKind) -> Self {
        Self::of_lanes(match isa {
            IsaKind::Scalar => 1,
            IsaKind::Avx2 | IsaKind::Emulated8 => 8,
            IsaKind::Avx512 | IsaKind::Emulated16 => 16,
            IsaKind::Emulated4 => 4,
        })
    }
    /// `n` rounded up to whole panels.
    pub(in crate::gemm) const fn padded(&self, n: usize) -> usize {
        n.next_multiple_of(self.nr)
    }
    /// Steps of k per block; the last block may be shorter. One block if k is at most `kc_single`, else equal blocks of at
    /// most `kc`. Either a block is one chain, or all chains are in one block, so blocks do not change the order of
    /// additions.
    pub(in crate::gemm) const fn depth(&self, k: usize) -> usize {
        if k <= self.kc_single { k } else { chain(k) }
    }
    /// Maximum columns of a task with blocks of `depth` steps.
    pub(in crate::gemm) const fn columns(&self, depth: usize) -> usize {
        let quarter = self.kc.div_ceil(4);
        let depth = if depth > quarter { depth } else { quarter };
        self.nc * self.kc / depth / self.nr * self.nr
    }
}
