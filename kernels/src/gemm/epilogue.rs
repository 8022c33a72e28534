//! What happens to a tile of C between the registers and memory.

use super::{Gemm, Operand, Write};
use crate::simd::{Element, Simd};
use half::bf16;

/// Applied to the sums before they are stored. Row r, column j of C; acc = A·B (plus the old C when accumulating).
///
/// Matrices have the shape and the leading dimension of C; vectors hold n numbers.
#[derive(Debug)]
#[non_exhaustive]
pub enum Epilogue<'a, C: Element> {
    /// acc
    None,
    /// acc + bias\[j\]
    Bias(&'a [f32]),
    /// acc + bias\[j\] + residual\[r, j\]
    BiasResidual {
        /// \[n\]
        bias: &'a [f32],
        /// \[m, n\]
        residual: &'a [C],
    },
}

/// An epilogue whose sizes fit, without the type of C.
#[derive(Clone, Copy)]
pub(super) enum Finish<'a> {
    None,
    Bias(&'a [f32]),
    BiasResidual { bias: &'a [f32], residual: Operand<'a> },
}

impl<'a, C: Element> Epilogue<'a, C> {
    /// Holds the sizes against `spec`.
    #[track_caller]
    pub(super) fn check(self, spec: &Gemm) -> Finish<'a> {
        let vector = |x: &'a [f32]| {
            assert_eq!(x.len(), spec.n, "{spec:?}: the bias must hold one number a column");
            x
        };
        let matrix = |x: &'a [C]| {
            assert!(x.len() >= spec.spans()[2], "{spec:?}: the epilogue's matrix is smaller than C: {}", x.len());
            assert_eq!(spec.write, Write::Overwrite, "{spec:?}: only None and Bias can accumulate");
            Operand::new(x)
        };
        match self {
            Self::None => Finish::None,
            Self::Bias(bias) => Finish::Bias(vector(bias)),
            Self::BiasResidual { bias, residual } => {
                Finish::BiasResidual { bias: vector(bias), residual: matrix(residual) }
            }
        }
    }
}

impl Operand<'_> {
    /// `count` <= LANES numbers from `start` on; zeros in the other lanes.
    #[inline(always)]
    pub(super) fn vector<S: Simd>(self, simd: S, start: usize, count: usize) -> S::F32 {
        match self {
            Self::F32(x) => f32::load_partial(simd, &x[start..start + count]),
            Self::Bf16(x) => bf16::load_partial(simd, &x[start..start + count]),
        }
    }
}

impl Finish<'_> {
    /// The finished values of `count` <= LANES columns from `column` on; `at` is their place in C and its like.
    #[inline(always)]
    pub(super) fn apply<S: Simd>(&self, simd: S, sum: S::F32, column: usize, at: usize, count: usize) -> S::F32 {
        let bias = |bias: &[f32]| simd.add(sum, simd.load_partial(&bias[column..column + count]));
        match self {
            Self::None => sum,
            Self::Bias(b) => bias(b),
            Self::BiasResidual { bias: b, residual } => simd.add(bias(b), residual.vector(simd, at, count)),
        }
    }
}
