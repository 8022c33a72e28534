//! Tile and block sizes per instruction set. Mechanism: `super::cpu`; how each was found: docs/gemm.md.

use crate::register_tile::RegisterTile;
use crate::simd::IsaKind;

/// Terms of a sum that are added one after the other, at most. A longer sum is cut into equal chains, whose results are added
/// in order: the rounding error grows with the length of a chain (docs/gemm.md, Accuracy).
pub(super) const CHAIN: usize = 384;

/// Terms of each chain of a sum over k, the last of which may have fewer. With the order of the chains it fixes the bits of a
/// product, so it depends on k alone, not on the machine.
pub(super) const fn chain(k: usize) -> usize {
    if k <= CHAIN { k } else { k.div_ceil(k.div_ceil(CHAIN)) }
}

/// Sizes of the loop nest for one instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    /// Rows of C that stay in registers.
    pub mr: usize,
    /// Vectors in a row of the register tile.
    pub nv: usize,
    /// Columns of C that stay in registers: `nv` vectors.
    pub nr: usize,
    /// Depth of a block of a long sum over k: how far it goes before C is touched.
    pub kc: usize,
    /// Depth of the deepest block: a sum that is no longer is one block, which spares reading C again.
    pub whole: usize,
    /// Columns of C in a task, at most, where blocks are `kc` deep: what stays of B in the second-level cache. Where they
    /// are less deep there are more, up to as many numbers and four times the columns. A multiple of `nr`.
    pub task_columns: usize,
    /// Rows of C in a task, at most, where sums wait in a buffer because C is bf16.
    pub task_rows: usize,
}

impl Tile {
    /// The sizes for vectors of `lanes`: real and emulated instruction sets of one width share them.
    pub(super) const fn of_lanes(lanes: usize) -> Self {
        let RegisterTile { rows: mr, vectors: nv } = RegisterTile::of_lanes(lanes);
        let nr = nv * lanes;
        let (task_columns, task_rows) = if lanes >= 8 { (768, 512) } else { (384, 256) };
        assert!(task_columns % nr == 0);
        Self { mr, nv, nr, kc: CHAIN, whole: 1024, task_columns, task_rows }
    }
    /// The sizes for `isa`.
    pub(super) const fn of(isa: IsaKind) -> Self {
        Self::of_lanes(match isa {
            IsaKind::Scalar => 1,
            IsaKind::Avx2 | IsaKind::Emulated8 => 8,
            IsaKind::Avx512 | IsaKind::Emulated16 => 16,
            IsaKind::Emulated4 => 4,
        })
    }
    /// `n` columns rounded up to whole panels.
    pub(super) const fn padded(&self, n: usize) -> usize {
        n.next_multiple_of(self.nr)
    }
    /// Steps of each block of a sum over k, the last of which may have fewer: one block if it is not longer than `whole`,
    /// else equal blocks of at most `kc`. Either a block is one chain, or all chains are in one block, so that blocks do not
    /// change the order of additions.
    pub(super) const fn depth(&self, k: usize) -> usize {
        if k <= self.whole { k } else { chain(k) }
    }
    /// Columns of a task whose blocks are `depth` deep, at most.
    pub(super) const fn columns(&self, depth: usize) -> usize {
        let quarter = self.kc.div_ceil(4);
        let depth = if depth > quarter { depth } else { quarter };
        self.task_columns * self.kc / depth / self.nr * self.nr
    }
}
