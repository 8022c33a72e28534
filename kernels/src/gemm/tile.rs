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
    /// Rows of A packed at a time.
    pub mc: usize,
    /// Depth of a packed block: how far the sum over k goes before C is touched.
    pub kc: usize,
    /// Rows of C in a task, at most.
    pub task_rows: usize,
    /// Columns of C in a task, and of B packed at a time, at most. A multiple of `nr`.
    pub task_columns: usize,
}

impl Tile {
    const fn new(mr: usize, nv: usize, lanes: usize, mc: usize, kc: usize, task: (usize, usize)) -> Self {
        let nr = nv * lanes;
        assert!(task.1.is_multiple_of(nr) && mc <= task.0);
        Self { mr, nv, nr, mc, kc, task_rows: task.0, task_columns: task.1 }
    }
    /// The sizes for vectors of `lanes`: real and emulated instruction sets of one width share them.
    pub(super) const fn of_lanes(lanes: usize) -> Self {
        match lanes {
            16 => Self::new(14, 2, 16, 224, 384, (512, 768)),
            8 => Self::new(6, 2, 8, 144, 384, (512, 768)),
            4 => Self::new(6, 2, 4, 96, 256, (256, 384)),
            _ => Self::new(4, 8, 1, 64, 256, (256, 384)),
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
}
