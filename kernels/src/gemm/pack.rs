//! Packing: a block of A or B in the order in which the register tile reads it, widened to f32.

use super::Operand;
use crate::simd::{Element, Simd};

/// A block of an operand: `depth` steps of the sum over k, `count` rows of A or columns of B.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    /// From the first element of the block on.
    pub source: Operand<'a>,
    /// Elements from one stored row to the next.
    pub leading: usize,
    /// True if the sum runs along stored rows (A normal, B transposed), false if it runs down columns.
    pub along: bool,
    /// Rows of A or columns of B.
    pub count: usize,
    /// Steps of the sum.
    pub depth: usize,
}

/// Packs up to `width` rows of A (columns of B) as `depth` groups of `width`; missing ones become zeros.
#[inline(always)]
pub(super) fn panel<S: Simd>(simd: S, block: Block<'_>, width: usize, out: &mut [f32]) {
    match block.source {
        Operand::F32(x) => typed(simd, x, block, width, out),
        Operand::Bf16(x) => typed(simd, x, block, width, out),
    }
}

#[inline(always)]
fn typed<S: Simd, X: Element>(_simd: S, x: &[X], block: Block<'_>, width: usize, out: &mut [f32]) {
    for (p, group) in out.chunks_exact_mut(width).take(block.depth).enumerate() {
        for (i, slot) in group.iter_mut().enumerate() {
            let at = if block.along { i * block.leading + p } else { p * block.leading + i };
            *slot = if i < block.count { x[at].to_f32() } else { 0.0 };
        }
    }
}
