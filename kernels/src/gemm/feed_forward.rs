//! The two products of a feed-forward part, block of rows by block of rows.
//!
//! ```text
//! x [m, h] ── f = act(x·W₁ᵀ + b₁) [m, n] ── y = f·W₂ᵀ + b₂ (+ residual) [m, h]
//!
//! for each block of rows, on one thread:    f of the block, which stays in L2;    y of the block
//! ```
//!
//! A matrix unit of 3 TFLOP/s needs its operands faster than L3 gives them: f, four times as wide as x, would be written to L3
//! and read again. Where the arithmetic takes longer than that ([`rows_of_block`]) the two products are calls of their own.

use super::{Epilogue, Gemm, PackedB, Precision, gemm_packed};
use crate::Element;
use crate::activation::Activation;
use crate::pool::{Cpu, Disjoint};
use crate::tiles::{SIDE, TileKind};

/// Rows of a block for `rows` rows in all, `inner` columns of f, and operands of `precision`; `None` where two products, one
/// after the other, are better.
pub fn rows_of_block(cpu: &Cpu, precision: Precision, rows: usize, inner: usize) -> Option<usize> {
    if precision != Precision::Bf16 || cpu.tiles().kind() == TileKind::Fma {
        return None;
    }
    // The other half of L2 is for partial sums and for panels of the weights, which stream through it.
    let fit = cpu.caches().block() / 2 / inner.saturating_mul(size_of::<half::bf16>()).max(1);
    let block = (fit / SIDE * SIDE).max(SIDE);
    (rows.div_ceil(block) >= cpu.threads()).then_some(block)
}

/// Operands of [`feed_forward`]; matrices are contiguous.
#[derive(Debug)]
pub struct FeedForward<'a, X> {
    /// Precision of both products.
    pub precision: Precision,
    /// m, h and n.
    pub sizes: [usize; 3],
    /// x [m, h].
    pub x: &'a [X],
    /// W₁ᵀ [h, n] and W₂ᵀ [n, h].
    pub weights: [&'a PackedB; 2],
    /// b₁ `[n]` and b₂ `[h]`.
    pub biases: [&'a [f32]; 2],
    /// act
    pub activation: Activation,
    /// Receives x·W₁ᵀ + b₁ [m, n].
    pub pre: Option<&'a mut [X]>,
    /// Receives f [m, n].
    pub inner: &'a mut [X],
    /// Added to y [m, h].
    pub residual: Option<&'a [X]>,
    /// Receives y [m, h].
    pub y: &'a mut [X],
}

/// Computes f, y and the pre-activation in blocks of `block` rows: the same bits as two calls of
/// [`gemm_packed`](super::gemm_packed).
///
/// # Panics
/// If `block` is 0, a matrix is shorter than its sizes, and as [`gemm_packed`](super::gemm_packed).
#[track_caller]
pub fn feed_forward<X: Element>(cpu: &Cpu, block: usize, operands: FeedForward<'_, X>) {
    let FeedForward { precision, sizes: [m, h, n], x, weights, biases, activation, pre, inner, residual, y } = operands;
    assert!(block > 0, "feed_forward: a block has no rows");
    let (pre, inner, y) = (pre.map(Disjoint::new), Disjoint::new(inner), Disjoint::new(y));
    cpu.for_each(m.div_ceil(block), |i| {
        let rows = i * block..m.min((i + 1) * block);
        let of = |width: usize| rows.start * width..rows.end * width;
        // SAFETY: tasks have rows of their own; `slice` checks the lengths.
        let (pre, inner, y) = unsafe { (pre.map(|pre| pre.slice(of(n))), inner.slice(of(n)), y.slice(of(h))) };
        let first = Gemm::nt(rows.len(), n, h).with_precision(precision);
        let epilogue = Epilogue::bias_activation(biases[0], activation, pre);
        gemm_packed(cpu, &first, &x[of(h)], weights[0], inner, epilogue);
        let second = Gemm::nt(rows.len(), h, n).with_precision(precision);
        let residual = residual.map(|residual| &residual[of(h)]);
        let epilogue = Epilogue::bias_dropout_residual(biases[1], None, residual);
        gemm_packed(cpu, &second, inner, weights[1], y, epilogue);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;
    use crate::tiles::Tiles;

    #[test]
    fn a_block_fills_half_of_l2_and_every_thread_has_one() {
        let isa = Isa::choose().unwrap();
        let cpu = |tiles, threads| Cpu::new(isa, threads).unwrap().with_tiles(tiles).unwrap();
        let emulated = TileKind::Emulated;
        let block = rows_of_block(&cpu(emulated, 1), Precision::Bf16, 1 << 20, 3072).unwrap();
        let bytes = block * 3072 * 2;
        let half = cpu(emulated, 1).caches().block() / 2;
        assert!(
            block.is_multiple_of(SIDE) && (block == SIDE || bytes <= half && bytes + SIDE * 3072 * 2 > half),
            "{block}"
        );
        assert_eq!(rows_of_block(&cpu(emulated, 4), Precision::Bf16, 3 * block, 3072), None);
        assert_eq!(rows_of_block(&cpu(emulated, 1), Precision::F32, 1 << 20, 3072), None);
        assert!(rows_of_block(&cpu(emulated, 1), Precision::Bf16, 1, usize::MAX / 4).is_some());
        if Tiles::new(TileKind::Fma, isa).is_ok() {
            assert_eq!(rows_of_block(&cpu(TileKind::Fma, 1), Precision::Bf16, 1 << 20, 3072), None);
        }
    }
}
