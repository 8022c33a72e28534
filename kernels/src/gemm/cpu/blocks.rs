//! Blocks of A and B as the microkernel reads them: f32 operands of a suitable layout in place, all others packed.
//!
//! A step of k takes up to MR elements of A and NR of B. The microkernel takes strides, so A in either layout and B
//! normal need no packing. B transposed is packed, because a vector holds neighboring columns; bf16 operands are
//! packed, so that they are widened once.
//!
//! A row stride that is a multiple of 4 KiB maps all steps of a panel to a few cache sets, where they evict each other:
//! such operands are also packed.

use super::blocking::{Blocking, packs_transposed};
use super::microkernel::{Fma, Microkernel, PanelA, PanelB, Stored, Tile};
use super::pack;
use super::packed::PackedB;
use crate::gemm::operand::Operand;
use crate::gemm::{Gemm, Layout};
use crate::pool::part;
use crate::register_tile::RegisterTile;
use crate::simd::{Kernel, Simd};
use crate::tiles::SIDE;
use std::ops::Range;

/// Groups in 4 KiB.
pub(crate) const ALIASING_STRIDE: usize = 1024;

/// Maximum rows of C for which a B that fits L2 ([`Blocking::b_in_place`]) is read in place. With more rows packing pays
/// off. A larger B is not in L2 and is read faster row by row, as packing does, than panel by panel.
const SMALL_M: usize = 192;

/// Minimum width of a panel of B that is read in place: two cache lines per row. A single line per row costs too much
/// per access.
const MIN_DIRECT_NR: usize = 32;

/// True if an operand with this leading dimension can be read in place.
fn usable_in_place(x: Operand<'_>, leading: usize) -> bool {
    matches!(x, Operand::F32(_)) && !leading.is_multiple_of(ALIASING_STRIDE)
}

/// Block of k.
#[derive(Clone, Copy)]
pub(crate) struct Steps {
    /// First step.
    pub start: usize,
    /// Number of steps.
    pub depth: usize,
}

/// Some of the panels of a task's rows: all have nearly equal heights.
#[derive(Clone, Copy)]
pub(crate) struct Panels {
    /// First row of the task and their count.
    pub task: [usize; 2],
    /// Rows that are not divided.
    pub row_unit: usize,
    /// Panels of the task.
    pub of: usize,
    /// First of these panels, and the first after them.
    pub range: [usize; 2],
}

impl Panels {
    /// First row and height of panel `i` of the task.
    #[inline(always)]
    pub(super) fn panel(&self, i: usize) -> (usize, usize) {
        let rows = part(self.task[1], self.row_unit, self.of, i);
        (self.task[0] + rows.start, rows.len())
    }

    /// First row.
    #[inline(always)]
    pub(super) fn first_row(&self) -> usize {
        self.panel(self.range[0]).0
    }

    /// Rows.
    #[inline(always)]
    pub(super) fn rows(&self) -> Range<usize> {
        let (last, height) = self.panel(self.range[1] - 1);
        self.first_row()..last + height
    }

    /// First row and height of each panel.
    #[inline(always)]
    pub(super) fn iter(self) -> impl Iterator<Item = (usize, usize)> {
        (self.range[0]..self.range[1]).map(move |i| self.panel(i))
    }
}

/// A of a product.
pub(crate) trait RowPanels<M: Microkernel>: Copy + Sync {
    /// Steps of some panels of A. Packed into `out` unless they are read in place.
    fn block<'o>(&self, m: M, steps: Steps, panels: Panels, out: &'o mut [M::A]) -> BlockA<'o, M::A>
    where
        Self: 'o;
}

/// Panels of A for some steps.
#[derive(Clone, Copy)]
pub(crate) enum BlockA<'a, G> {
    /// In place: `row_stride` or `k_stride` is 1.
    InPlace { a: &'a [G], row_stride: usize, k_stride: usize },
    /// Panels of \[part\]\[k\]\[rows\], one after the other.
    Columns { a: &'a [G], depth: usize, parts: usize },
    /// Tiles of a matrix unit: whole ones in place, if they can be, with the stride of their rows, the others packed as
    /// \[part\]\[32 rows\]\[k\].
    Rows { whole: Option<(&'a [G], usize)>, packed: &'a [G], depth: usize, parts: usize },
}

impl<'a, G> BlockA<'a, G> {
    /// The panel of `height` rows from row `offset` of the block on.
    #[inline(always)]
    pub(super) fn panel(&self, offset: usize, height: usize) -> PanelA<'a, G> {
        match *self {
            Self::InPlace { a, row_stride, k_stride } => {
                PanelA { a: &a[offset * row_stride..], row_stride, k_stride, part_stride: 0 }
            }
            Self::Columns { a, depth, parts } => {
                PanelA { a: &a[offset * depth * parts..], row_stride: 1, k_stride: height, part_stride: depth * height }
            }
            Self::Rows { whole: Some((a, row_stride)), .. } if height == SIDE => {
                PanelA { a: &a[offset * row_stride..], row_stride, k_stride: 1, part_stride: 0 }
            }
            Self::Rows { whole, packed, depth, parts } => {
                let at = if whole.is_some() { 0 } else { offset * depth * parts };
                PanelA { a: &packed[at..], row_stride: depth, k_stride: 1, part_stride: SIDE * depth }
            }
        }
    }

    /// The same for `depth` steps from step `start` on; one part.
    #[inline(always)]
    pub(super) fn part_of_panel(&self, offset: usize, height: usize, start: usize) -> PanelA<'a, G> {
        let panel = self.panel(offset, height);
        PanelA { a: &panel.a[(start * panel.k_stride).min(panel.a.len())..], ..panel }
    }
}

/// B of a product.
pub(crate) trait ColumnPanels<M: Microkernel>: Copy + Sync {
    /// Steps of some columns of B; the first is a multiple of NR. Packed into `out` unless they are read in place.
    fn block<'o>(
        &self,
        m: M,
        blocking: &Blocking,
        steps: Steps,
        columns: Range<usize>,
        out: &'o mut [M::B],
    ) -> BlockB<'o, M::B>
    where
        Self: 'o;
}

/// A in rows of groups, read in place.
#[derive(Clone, Copy)]
pub(crate) struct RowsOfGroups<'a, G> {
    /// Rows, `stride` apart.
    pub groups: &'a [G],
    pub stride: usize,
}

impl<'a, G: Copy + Sync, M: Microkernel<A = G>> RowPanels<M> for RowsOfGroups<'a, G> {
    #[inline(always)]
    fn block<'o>(&self, _: M, steps: Steps, panels: Panels, _: &'o mut [G]) -> BlockA<'o, G>
    where
        'a: 'o,
    {
        if steps.depth == 0 {
            return BlockA::Columns { a: &[], depth: 0, parts: 1 };
        }
        let a = &self.groups[panels.first_row() * self.stride + steps.start..];
        BlockA::InPlace { a, row_stride: self.stride, k_stride: 1 }
    }
}

/// B in packed panels, laid out as in [`PackedB`] with one block of k.
#[derive(Clone, Copy)]
pub(crate) struct PanelsOfGroups<'a, G> {
    pub groups: &'a [G],
}

impl<'a, G: Copy + Sync, M: Microkernel<B = G>> ColumnPanels<M> for PanelsOfGroups<'a, G> {
    #[inline(always)]
    fn block<'o>(
        &self,
        _: M,
        _: &Blocking,
        Steps { start, depth }: Steps,
        columns: Range<usize>,
        _: &'o mut [G],
    ) -> BlockB<'o, G>
    where
        'a: 'o,
    {
        assert!(start == 0 && columns.start.is_multiple_of(M::NR), "one block of k");
        BlockB::packed(&self.groups[columns.start * depth..], M::NR, M::NR * depth, 0).packed_before()
    }
}

/// A of f32 products.
#[derive(Clone, Copy)]
pub(in crate::gemm) struct MatrixA<'a> {
    pub spec: &'a Gemm,
    pub a: Operand<'a>,
}

impl MatrixA<'_> {
    /// True if panels of `mr` rows are read in place.
    pub(super) fn in_place(&self, mr: usize) -> bool {
        usable_in_place(self.a, self.spec.lda) && (self.spec.a == Layout::Normal || !packs_transposed(mr))
    }
}

impl<'a, S: Simd, B: Stored> RowPanels<Fma<S, B>> for MatrixA<'a> {
    #[inline(always)]
    fn block<'o>(&self, Fma(simd, _): Fma<S, B>, steps: Steps, panels: Panels, out: &'o mut [f32]) -> BlockA<'o, f32>
    where
        'a: 'o,
    {
        let (Steps { start, depth }, lda) = (steps, self.spec.lda);
        let k_contiguous = self.spec.a == Layout::Normal;
        match self.a {
            Operand::F32(a) if depth > 0 && self.in_place(<Fma<S> as Tile>::SIZE.rows) => {
                let (row, [row_stride, k_stride]) =
                    (panels.first_row(), if k_contiguous { [lda, 1] } else { [1, lda] });
                BlockA::InPlace { a: &a[row * row_stride + start * k_stride..], row_stride, k_stride }
            }
            _ => {
                simd.vectorize(PackA { a: *self, steps, panels, out: &mut *out });
                BlockA::Columns { a: out, depth, parts: 1 }
            }
        }
    }
}

/// Packs panels of A, one after the other. If k runs down columns, some steps of all panels at a time: a cache line belongs to
/// several panels.
struct PackA<'a, 'o> {
    a: MatrixA<'a>,
    steps: Steps,
    panels: Panels,
    out: &'o mut [f32],
}

impl Kernel for PackA<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { a: MatrixA { spec, a }, steps: Steps { start, depth }, panels, out } = self;
        let k_contiguous = spec.a == Layout::Normal;
        let at_once = if k_contiguous { depth.max(1) } else { pack::STEPS };
        for p in (0..depth).step_by(at_once) {
            let (k, steps) = (start + p, at_once.min(depth - p));
            for (row, height) in panels.iter() {
                let at = if k_contiguous { row * spec.lda + k } else { k * spec.lda + row };
                let block =
                    pack::Block { source: a.from(at), leading: spec.lda, k_contiguous, count: height, depth: steps };
                let panel = (row - panels.first_row()) * depth;
                pack::panel(simd, block, height, &mut out[panel + p * height..panel + depth * height]);
            }
        }
    }
}

/// Columns of B for some steps; the first column is a multiple of NR.
#[derive(Clone, Copy)]
pub(crate) struct BlockB<'a, G> {
    /// All panels, or the full ones if `rest` is not empty: panel j starts at j · `step`, its steps are `k_stride` apart.
    whole: &'a [G],
    step: usize,
    k_stride: usize,
    part_stride: usize,
    /// Packed copy of a partial last panel, or empty.
    rest: &'a [G],
    nr: usize,
    /// True if B was packed before the product, so that it is not in L2.
    pub is_prepacked: bool,
}

impl<'a, G> BlockB<'a, G> {
    /// Packed panels of `nr` columns, `step` groups apart, with parts `part_stride` apart.
    pub(super) fn packed(panels: &'a [G], nr: usize, step: usize, part_stride: usize) -> Self {
        Self { whole: panels, step, k_stride: nr, part_stride, rest: &[], nr, is_prepacked: false }
    }

    /// The same, packed before the product.
    pub(super) fn packed_before(self) -> Self {
        Self { is_prepacked: true, ..self }
    }

    /// Panel `j` from step `start` on; `whole` is true if all its columns exist.
    #[inline(always)]
    pub(super) fn panel(&self, j: usize, start: usize, whole: bool) -> PanelB<'a, G> {
        if whole || self.rest.is_empty() {
            let at = j * self.step + start * self.k_stride;
            PanelB { b: &self.whole[at..], k_stride: self.k_stride, part_stride: self.part_stride }
        } else {
            PanelB { b: &self.rest[start * self.nr..], k_stride: self.nr, part_stride: 0 }
        }
    }
}

/// B of f32 products, in either of its forms: a matrix to be packed as needed, or packed panels.
#[derive(Clone, Copy)]
pub(in crate::gemm) enum MatrixB<'a> {
    Unpacked(&'a Gemm, Operand<'a>),
    Packed(&'a PackedB),
}

/// True if full panels of B are read in place.
fn b_usable_in_place(blocking: &Blocking, spec: &Gemm, b: Operand<'_>) -> bool {
    let wide = blocking.nr >= MIN_DIRECT_NR;
    wide && spec.b == Layout::Normal
        && spec.m <= SMALL_M
        && spec.n.saturating_mul(spec.k) <= blocking.b_in_place
        && usable_in_place(b, spec.ldb)
}

impl<'a> MatrixB<'a> {
    /// B from element `start` on, unless it is packed.
    pub(super) fn from(self, start: usize) -> Self {
        match self {
            Self::Unpacked(spec, b) => Self::Unpacked(spec, b.from(start)),
            packed @ Self::Packed(_) => packed,
        }
    }

    /// True if full panels are read in place.
    pub(super) fn in_place(&self, blocking: &Blocking) -> bool {
        match *self {
            Self::Unpacked(spec, b) => b_usable_in_place(blocking, spec, b),
            Self::Packed(_) => true,
        }
    }
}

impl<'a, S: Simd> ColumnPanels<Fma<S>> for MatrixB<'a> {
    #[inline(always)]
    fn block<'o>(
        &self,
        Fma(simd, _): Fma<S>,
        blocking: &Blocking,
        Steps { start, depth }: Steps,
        columns: Range<usize>,
        out: &'o mut [f32],
    ) -> BlockB<'o, f32>
    where
        'a: 'o,
    {
        let nr = blocking.nr;
        let (spec, b) = match *self {
            Self::Packed(b) => {
                let panels = b.block(start, depth, columns.start);
                return BlockB::packed(panels, nr, nr * depth, 0).packed_before();
            }
            Self::Unpacked(spec, b) => (spec, b),
        };
        let pack = |columns, out| {
            simd.vectorize(PackB { spec, b, k0: start, depth, columns, step: nr * depth, out });
        };
        match b {
            Operand::F32(whole) if b_usable_in_place(blocking, spec, b) && depth > 0 => {
                let first_of_rest = columns.end / nr * nr;
                let rest: &[f32] = if first_of_rest < columns.end {
                    pack(first_of_rest..columns.end, &mut *out);
                    &out[..nr * depth]
                } else {
                    &[]
                };
                let whole = &whole[start * spec.ldb + columns.start..];
                BlockB { whole, step: nr, k_stride: spec.ldb, part_stride: 0, rest, nr, is_prepacked: false }
            }
            _ => {
                pack(columns, &mut *out);
                BlockB::packed(&*out, nr, nr * depth, 0)
            }
        }
    }
}

/// B of f32 products in packed panels of bf16.
#[derive(Clone, Copy)]
pub(super) struct RoundedPanels<'a>(pub &'a PackedB);

impl<'a, S: Simd> ColumnPanels<Fma<S, u32>> for RoundedPanels<'a> {
    #[inline(always)]
    fn block<'o>(
        &self,
        _: Fma<S, u32>,
        _: &Blocking,
        Steps { start, depth }: Steps,
        columns: Range<usize>,
        _: &'o mut [u32],
    ) -> BlockB<'o, u32>
    where
        'a: 'o,
    {
        let groups = <Fma<S, u32> as Tile>::B_GROUPS;
        BlockB::packed(self.0.block(start, depth, columns.start), groups, groups * depth, 0).packed_before()
    }
}

/// Packs a block of B, panel by panel.
pub(super) struct PackB<'a> {
    pub spec: &'a Gemm,
    pub b: Operand<'a>,
    pub k0: usize,
    pub depth: usize,
    pub columns: Range<usize>,
    /// Floats from a panel to the next.
    pub step: usize,
    pub out: &'a mut [f32],
}

impl Kernel for PackB<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let nr = RegisterTile::of_lanes(S::LANES).columns(S::LANES);
        let (k_contiguous, leading) = (self.spec.b == Layout::Transposed, self.spec.ldb);
        let steps = if k_contiguous { self.depth.max(1) } else { pack::STEPS };
        for p in (0..self.depth).step_by(steps) {
            let depth = steps.min(self.depth - p);
            for start in (0..self.columns.len()).step_by(nr) {
                let (column, k) = (self.columns.start + start, self.k0 + p);
                let count = nr.min(self.columns.end - column);
                let at = if k_contiguous { column * leading + k } else { k * leading + column };
                let block = pack::Block { source: self.b.from(at), leading, k_contiguous, count, depth };
                pack::panel(simd, block, nr, &mut self.out[start / nr * self.step + p * nr..][..depth * nr]);
            }
        }
    }
}
