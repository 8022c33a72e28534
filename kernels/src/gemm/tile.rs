//! Tile and block sizes per instruction set. Mechanism: `super::cpu`; how each was found: docs/gemm.md.

use crate::simd::IsaKind;

/// Sizes of the loop nest for one instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    /// Rows of C that stay in registers.
    pub mr: usize,
    /// Vectors in a row of the register tile.
    pub nv: usize,
    /// Columns of C that stay in registers: `nv` vectors.
    pub nr: usize,
    /// Depth of a block: how far a long sum over k goes before C is touched.
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
    const fn new(
        mr: usize,
        nv: usize,
        lanes: usize,
        [kc, whole]: [usize; 2],
        task_columns: usize,
        task_rows: usize,
    ) -> Self {
        let nr = nv * lanes;
        assert!(task_columns.is_multiple_of(nr));
        Self { mr, nv, nr, kc, whole, task_columns, task_rows }
    }
    /// The sizes for vectors of `lanes`: real and emulated instruction sets of one width share them.
    pub(super) const fn of_lanes(lanes: usize) -> Self {
        match lanes {
            16 => Self::new(14, 2, 16, [384, 1024], 768, 512),
            8 => Self::new(6, 2, 8, [384, 1024], 768, 512),
            4 => Self::new(6, 2, 4, [256, 512], 384, 256),
            _ => Self::new(4, 8, 1, [256, 512], 384, 256),
        }
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
    /// else equal blocks of at most `kc`. It fixes the order of additions: the shape alone decides, not the machine.
    pub(super) const fn depth(&self, k: usize) -> usize {
        if k <= self.whole { k } else { k.div_ceil(k.div_ceil(self.kc)) }
    }
    /// Columns of a task whose blocks are `depth` deep, at most.
    pub(super) const fn columns(&self, depth: usize) -> usize {
        let quarter = self.kc.div_ceil(4);
        let depth = if depth > quarter { depth } else { quarter };
        self.task_columns * self.kc / depth / self.nr * self.nr
    }
}
