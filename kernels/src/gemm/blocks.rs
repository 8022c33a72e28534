//! Blocks of A and B as the register tile reads them: where they lie if they are f32 and lie well, else packed.
//!
//! A step of the sum takes up to MR numbers of A and NR of B. Numbers of a step that are neighbors (A transposed, B
//! normal) or rows whose steps are neighbors (A normal) need no packing: the tile takes strides. B transposed has to be
//! packed, because a vector holds neighboring columns; so have bf16 numbers, which are widened once on the way.
//!
//! A stride of a multiple of 4 KiB puts all steps of a panel into the same few sets of the caches, where they push each
//! other out: such operands are packed too.

use super::pack;
use super::packed::PackedB;
use super::product::{Left, Right};
use super::tile::Tile;
use super::{Gemm, Layout, Operand};
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Numbers in 4 KiB.
const SETS: usize = 1024;

/// Rows of C up to which a B of up to [`NEAR`] numbers is read where it lies: with more, a panel that is packed is used
/// often enough; and a larger B comes from far away, which is faster row by row, as packing reads it, than panel by panel.
const FEW_ROWS: usize = 192;

/// Numbers that the second-level cache holds beside what else a product needs.
const NEAR: usize = 400_000;

/// Numbers of a block of A that stay in the second-level cache while the panels of B go by.
const KEPT: usize = 300_000;

/// Columns of the narrowest panel of B that is read where it lies: two cache lines of each row. One alone is too little
/// for what it costs to reach it.
const WIDE: usize = 32;

/// Whether an operand with this leading dimension can be read where it lies.
fn lies_well(x: Operand<'_>, leading: usize) -> bool {
    matches!(x, Operand::F32(_)) && !leading.is_multiple_of(SETS)
}

/// Whether panels of A are read where they lie.
pub(super) fn a_lies_well(spec: &Gemm, a: Operand<'_>) -> bool {
    lies_well(a, spec.lda)
}

/// Whether whole panels of B are read where they lie.
pub(super) fn b_lies_well(tile: &Tile, spec: &Gemm, b: Operand<'_>) -> bool {
    let wide = tile.nr >= WIDE;
    wide && spec.b == Layout::Normal && spec.m <= FEW_ROWS && spec.n * spec.k <= NEAR && lies_well(b, spec.ldb)
}

/// Some rows of A for some steps of the sum.
#[derive(Clone)]
pub(super) struct BlockA<'a> {
    pub spec: &'a Gemm,
    pub a: Operand<'a>,
    pub k0: usize,
    pub depth: usize,
    pub rows: Range<usize>,
}

impl<'a> BlockA<'a> {
    /// Where the row `start` of the block begins.
    #[inline(always)]
    fn at(&self, start: usize) -> usize {
        let row = self.rows.start + start;
        if self.spec.a == Layout::Normal { row * self.spec.lda + self.k0 } else { self.k0 * self.spec.lda + row }
    }

    /// Whether its panels are read where they lie, and all of them stay in the second-level cache.
    #[inline(always)]
    pub(super) fn stays(&self) -> bool {
        a_lies_well(self.spec, self.a) && self.rows.len() * self.depth <= KEPT
    }

    /// The panel of `height` rows from `start` on. If it has to be packed it is in `out`: packed now, or, unless it
    /// `is_new`, by the last call.
    #[inline(always)]
    pub(super) fn panel<'o, S: Simd>(
        &self,
        simd: S,
        start: usize,
        height: usize,
        is_new: bool,
        out: &'o mut [f32],
    ) -> Left<'o>
    where
        'a: 'o,
    {
        if self.depth == 0 {
            return Left { a: &[], down: 1, along: 1 };
        }
        let (at, along, lda) = (self.at(start), self.spec.a == Layout::Normal, self.spec.lda);
        match self.a {
            Operand::F32(a) if lies_well(self.a, lda) => {
                let (down, along) = if along { (lda, 1) } else { (1, lda) };
                Left { a: &a[at..], down, along }
            }
            _ => {
                if is_new {
                    let block =
                        pack::Block { source: self.a.from(at), leading: lda, along, count: height, depth: self.depth };
                    simd.vectorize(Pack { block, width: height, out: &mut out[..height * self.depth] });
                }
                Left { a: out, down: 1, along: height }
            }
        }
    }
}

/// Some columns of B, the first a multiple of NR, for some steps of the sum.
#[derive(Clone, Copy)]
pub(super) struct BlockB<'a> {
    /// Panel j begins at j · `step`, and its steps are `along` apart.
    whole: &'a [f32],
    step: usize,
    along: usize,
    /// Packed, if it is not empty: the last panel, which is not whole.
    rest: &'a [f32],
    nr: usize,
    /// Whether it was packed before the product, so that it comes from further away than the second-level cache.
    pub is_far: bool,
}

impl<'a> BlockB<'a> {
    /// The block of B packed before.
    pub(super) fn packed(b: &'a PackedB, tile: &Tile, k0: usize, depth: usize, column: usize) -> Self {
        Self {
            whole: b.block(k0, depth, column),
            step: tile.nr * depth,
            along: tile.nr,
            rest: &[],
            nr: tile.nr,
            is_far: true,
        }
    }

    /// The block of `b`; what has to be packed goes to `out`.
    #[inline(always)]
    pub(super) fn plain<S: Simd>(
        simd: S,
        spec: &'a Gemm,
        b: Operand<'a>,
        k0: usize,
        depth: usize,
        columns: Range<usize>,
        out: &'a mut [f32],
    ) -> Self {
        let tile = Tile::of_lanes(S::LANES);
        let nr = tile.nr;
        match b {
            Operand::F32(whole) if b_lies_well(&tile, spec, b) && depth > 0 => {
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
                    along: spec.ldb,
                    rest,
                    nr,
                    is_far: false,
                }
            }
            _ => {
                simd.vectorize(PackB { spec, b, k0, depth, columns, out: &mut *out });
                Self { whole: &*out, step: nr * depth, along: nr, rest: &[], nr, is_far: false }
            }
        }
    }

    /// Panel `j`; `whole` if all its columns exist.
    #[inline(always)]
    pub(super) fn panel(&self, j: usize, whole: bool) -> Right<'a> {
        if whole || self.rest.is_empty() {
            Right { b: &self.whole[j * self.step..], along: self.along }
        } else {
            Right { b: self.rest, along: self.nr }
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

/// Packs a block of B, panel behind panel.
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
        let nr = Tile::of_lanes(S::LANES).nr;
        let (along, leading) = (self.spec.b == Layout::Transposed, self.spec.ldb);
        let steps = if along { self.depth.max(1) } else { pack::STEPS };
        for p in (0..self.depth).step_by(steps) {
            let depth = steps.min(self.depth - p);
            for start in (0..self.columns.len()).step_by(nr) {
                let (column, k) = (self.columns.start + start, self.k0 + p);
                let count = nr.min(self.columns.end - column);
                let at = if along { column * leading + k } else { k * leading + column };
                let block = pack::Block { source: self.b.from(at), leading, along, count, depth };
                pack::panel(simd, block, nr, &mut self.out[start * self.depth + p * nr..][..depth * nr]);
            }
        }
    }
}
