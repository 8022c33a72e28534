//! Blocks of A and B as the microkernel reads them: f32 operands of a suitable layout in place, all others packed.
//!
//! A step of k takes up to MR elements of A and NR of B. The microkernel takes strides, so A in either layout and B
//! normal need no packing. B transposed is packed, because a vector holds neighboring columns; bf16 operands are
//! packed, so that they are widened once.
//!
//! A row stride that is a multiple of 4 KiB maps all steps of a panel to a few cache sets, where they evict each other:
//! such operands are packed too.

use super::blocking::Blocking;
use super::microkernel::{PanelA, PanelB};
use super::pack;
use super::packed::PackedB;
use crate::gemm::operand::Operand;
use crate::gemm::{Gemm, Layout};
use crate::register_tile::RegisterTile;
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Elements in 4 KiB.
const ALIASING_STRIDE: usize = 1024;

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

/// True if panels of A are read in place.
pub(super) fn a_usable_in_place(spec: &Gemm, a: Operand<'_>) -> bool {
    usable_in_place(a, spec.lda)
}

/// True if full panels of B are read in place.
pub(super) fn b_usable_in_place(blocking: &Blocking, spec: &Gemm, b: Operand<'_>) -> bool {
    let wide = blocking.nr >= MIN_DIRECT_NR;
    wide && spec.b == Layout::Normal
        && spec.m <= SMALL_M
        && spec.n.saturating_mul(spec.k) <= blocking.b_in_place
        && usable_in_place(b, spec.ldb)
}

/// Rows of A for some steps of k.
#[derive(Clone)]
pub(super) struct BlockA<'a> {
    pub spec: &'a Gemm,
    pub a: Operand<'a>,
    pub k0: usize,
    pub depth: usize,
    pub rows: Range<usize>,
}

impl<'a> BlockA<'a> {
    /// Index in `a` of row `start` of the block.
    #[inline(always)]
    fn at(&self, start: usize) -> usize {
        let row = self.rows.start + start;
        if self.spec.a == Layout::Normal { row * self.spec.lda + self.k0 } else { self.k0 * self.spec.lda + row }
    }

    /// True if its panels are read in place and all of them stay in L2.
    #[inline(always)]
    pub(super) fn fits_l2(&self, blocking: &Blocking) -> bool {
        a_usable_in_place(self.spec, self.a) && self.rows.len() * self.depth <= blocking.a_resident
    }

    /// Panel of `height` rows from `start` on. If A needs packing, the panel is packed into `out`; if `is_new` is false,
    /// `out` still holds it from the previous call.
    #[inline(always)]
    pub(super) fn panel<'o, S: Simd>(
        &self,
        simd: S,
        start: usize,
        height: usize,
        is_new: bool,
        out: &'o mut [f32],
    ) -> PanelA<'o>
    where
        'a: 'o,
    {
        if self.depth == 0 {
            return PanelA { a: &[], row_stride: 1, k_stride: 1 };
        }
        let (at, k_contiguous, lda) = (self.at(start), self.spec.a == Layout::Normal, self.spec.lda);
        match self.a {
            Operand::F32(a) if usable_in_place(self.a, lda) => {
                let (row_stride, k_stride) = if k_contiguous { (lda, 1) } else { (1, lda) };
                PanelA { a: &a[at..], row_stride, k_stride }
            }
            _ => {
                if is_new {
                    let block = pack::Block {
                        source: self.a.from(at),
                        leading: lda,
                        k_contiguous,
                        count: height,
                        depth: self.depth,
                    };
                    simd.vectorize(Pack { block, width: height, out: &mut out[..height * self.depth] });
                }
                PanelA { a: out, row_stride: 1, k_stride: height }
            }
        }
    }
}

/// Columns of B for some steps of k; the first column is a multiple of NR.
#[derive(Clone, Copy)]
pub(super) struct BlockB<'a> {
    /// All panels, or the full ones if `rest` is not empty: panel j starts at j · `step`, its steps are `k_stride` apart.
    whole: &'a [f32],
    step: usize,
    k_stride: usize,
    /// Packed copy of a partial last panel, or empty.
    rest: &'a [f32],
    nr: usize,
    /// True if B was packed before the product, so that it is not in L2.
    pub is_prepacked: bool,
}

impl<'a> BlockB<'a> {
    /// Block of a packed B.
    pub(super) fn packed(b: &'a PackedB, nr: usize, k0: usize, depth: usize, column: usize) -> Self {
        Self { whole: b.block(k0, depth, column), step: nr * depth, k_stride: nr, rest: &[], nr, is_prepacked: true }
    }

    /// Block of `b`, packed into `out` unless it is read in place.
    #[inline(always)]
    pub(super) fn plain<S: Simd>(
        simd: S,
        blocking: &Blocking,
        spec: &'a Gemm,
        b: Operand<'a>,
        k0: usize,
        depth: usize,
        columns: Range<usize>,
        out: &'a mut [f32],
    ) -> Self {
        let nr = blocking.nr;
        match b {
            Operand::F32(whole) if b_usable_in_place(blocking, spec, b) && depth > 0 => {
                let first_of_rest = columns.end / nr * nr;
                let rest: &[f32] = if first_of_rest < columns.end {
                    let columns = first_of_rest..columns.end;
                    simd.vectorize(PackB { spec, b, k0, depth, columns, out: &mut *out });
                    &out[..nr * depth]
                } else {
                    &[]
                };
                Self {
                    whole: &whole[k0 * spec.ldb + columns.start..],
                    step: nr,
                    k_stride: spec.ldb,
                    rest,
                    nr,
                    is_prepacked: false,
                }
            }
            _ => {
                simd.vectorize(PackB { spec, b, k0, depth, columns, out: &mut *out });
                Self { whole: &*out, step: nr * depth, k_stride: nr, rest: &[], nr, is_prepacked: false }
            }
        }
    }

    /// Panel `j`; `whole` is true if all its columns exist.
    #[inline(always)]
    pub(super) fn panel(&self, j: usize, whole: bool) -> PanelB<'a> {
        if whole || self.rest.is_empty() {
            PanelB { b: &self.whole[j * self.step..], k_stride: self.k_stride }
        } else {
            PanelB { b: self.rest, k_stride: self.nr }
        }
    }
}

/// Packs one panel.
struct Pack<'a> {
    block: pack::Block<'a>,
    width: usize,
    out: &'a mut [f32],
}

impl Kernel for Pack<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        pack::panel(simd, self.block, self.width, self.out);
    }
}

/// Packs a block of B, panel by panel.
pub(super) struct PackB<'a> {
    pub spec: &'a Gemm,
    pub b: Operand<'a>,
    pub k0: usize,
    pub depth: usize,
    pub columns: Range<usize>,
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
                pack::panel(simd, block, nr, &mut self.out[start * self.depth + p * nr..][..depth * nr]);
            }
        }
    }
}
