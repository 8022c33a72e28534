//! Epilogues: operations on a tile of C before it is stored.

use super::operand::{Operand, Output};
use super::{Beta, Gemm};
use crate::dropout::{BLOCK, Dropout};
use crate::gelu::Activation;
use crate::pool::Disjoint;
use crate::simd::{Element, Simd, WIDTH, Wide};
use std::array::from_fn;

/// Operation applied to the accumulators before they are stored. Row r, column j of C; acc = A·B (plus the old C with
/// [`Beta::One`]).
///
/// Matrices have the shape and the leading dimension of C; vectors have n elements. The arithmetic is f32, in the order
/// of the separate kernels; results are rounded when stored.
#[derive(Debug)]
pub enum Epilogue<'a, C: Element> {
    /// acc
    None,
    /// acc + bias\[j\]
    Bias(&'a [f32]),
    /// act(p) with p = acc + bias\[j\]
    BiasActivation {
        /// \[n\]
        bias: &'a [f32],
        /// act
        activation: Activation,
        /// \[m, n\] receives p for backward. Then the activation is computed from p as rounded, so that backward can
        /// recompute it.
        pre: Option<&'a mut [C]>,
    },
    /// (acc + bias\[j\]) · mask(r, j) + residual\[r, j\]
    BiasDropoutResidual {
        /// \[n\]
        bias: &'a [f32],
        /// Dropout with the mask that [`crate::dropout::apply`] draws for the rows of C.
        dropout: Option<Dropout>,
        /// \[m, n\]
        residual: Option<&'a [C]>,
    },
    /// acc · act'(pre\[r, j\])
    ActivationBackward {
        /// act
        activation: Activation,
        /// \[m, n\]: the pre-activation saved by [`Epilogue::BiasActivation`].
        pre: &'a [C],
    },
}

/// Epilogue with checked sizes and the storage type of C as a value.
#[derive(Clone, Copy)]
pub(super) enum Finish<'a> {
    None,
    Bias(&'a [f32]),
    BiasActivation { bias: &'a [f32], activation: Activation, pre: Option<Output<'a>> },
    BiasDropoutResidual { bias: &'a [f32], dropout: Option<Dropout>, residual: Option<Operand<'a>> },
    ActivationBackward { activation: Activation, pre: Operand<'a> },
}

impl<'a, C: Element> Epilogue<'a, C> {
    /// Checks the sizes against `spec`.
    #[track_caller]
    pub(super) fn check(self, spec: &Gemm) -> Finish<'a> {
        let plain = matches!(self, Self::None | Self::Bias(_));
        assert!(plain || spec.beta == Beta::Zero, "{spec:?}: only the epilogues None and Bias can accumulate");
        let vector = |bias: &'a [f32]| {
            assert_eq!(bias.len(), spec.n, "{spec:?}: the bias must hold one element per column");
            bias
        };
        let fits = |len: usize| {
            let span = spec.spans()[2];
            assert!(len >= span, "{spec:?}: the epilogue's matrix holds {len} elements but spans {span}");
        };
        match self {
            Self::None => Finish::None,
            Self::Bias(bias) => Finish::Bias(vector(bias)),
            Self::BiasActivation { bias, activation, pre } => {
                let pre = pre.map(|pre| {
                    fits(pre.len());
                    Output::new(pre)
                });
                Finish::BiasActivation { bias: vector(bias), activation, pre }
            }
            Self::BiasDropoutResidual { bias, dropout, residual } => {
                if let Some(dropout) = &dropout {
                    dropout.check();
                }
                let residual = residual.map(|residual| {
                    fits(residual.len());
                    Operand::new(residual)
                });
                Finish::BiasDropoutResidual { bias: vector(bias), dropout, residual }
            }
            Self::ActivationBackward { activation, pre } => {
                fits(pre.len());
                Finish::ActivationBackward { activation, pre: Operand::new(pre) }
            }
        }
    }
}

/// Position of a vector of C.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Column of C.
    pub column: usize,
    /// Elements from the start of C, and of the epilogue's matrices.
    pub at: usize,
    /// Valid lanes, at most LANES.
    pub count: usize,
}

impl<'a> Finish<'a> {
    /// Bias to add to the accumulators before they are stored, if any. [`Self::finish_tile`] does the rest.
    #[inline(always)]
    pub(super) fn bias(&self, last: bool) -> Option<&'a [f32]> {
        match self {
            Self::Bias(bias) | Self::BiasActivation { bias, .. } | Self::BiasDropoutResidual { bias, .. } if last => {
                Some(bias)
            }
            _ => None,
        }
    }

    /// True if the epilogue does more than add a bias.
    #[inline(always)]
    pub(super) fn has_more(&self) -> bool {
        !matches!(self, Self::None | Self::Bias(_))
    }

    /// The f32 matrix that the epilogue reads or writes besides C, if there is one.
    #[inline(always)]
    pub(super) fn matrix(&self) -> Option<*const f32> {
        match self {
            Self::BiasActivation { pre: Some(Output::F32(pre)), .. } => Some(pre.ptr(0).cast_const()),
            Self::BiasDropoutResidual { residual: Some(Operand::F32(residual)), .. } => Some(residual.as_ptr()),
            Self::ActivationBackward { pre: Operand::F32(pre), .. } => Some(pre.as_ptr()),
            _ => None,
        }
    }

    /// The dropout, if there is one.
    #[inline(always)]
    pub(super) fn dropout(&self) -> Option<Dropout> {
        match self {
            Self::BiasDropoutResidual { dropout, .. } => *dropout,
            _ => None,
        }
    }

    /// Values of C for a vector of sums; `mask` holds its dropout multipliers.
    ///
    /// # Safety
    /// No other thread accesses `place` in the epilogue's outputs.
    #[inline(always)]
    pub(super) unsafe fn apply<S: Simd>(&self, simd: S, sum: S::F32, place: Place, mask: &[f32]) -> S::F32 {
        let Place { column, at, count } = place;
        let add = |bias: &[f32]| simd.add(sum, simd.load_partial(&bias[column..column + count]));
        match self {
            Self::None => sum,
            Self::Bias(bias) => add(bias),
            Self::BiasActivation { bias, activation, pre } => {
                let p = match pre {
                    // SAFETY: the caller's promise.
                    Some(pre) => unsafe { pre.keep(simd, at, count, add(bias)) },
                    None => add(bias),
                };
                activation.apply(simd, p)
            }
            Self::BiasDropoutResidual { bias, dropout, residual } => {
                let mut y = add(bias);
                if dropout.is_some() {
                    y = simd.mul(y, simd.load(mask));
                }
                match residual {
                    Some(residual) => simd.add(y, residual.load(simd, at, count)),
                    None => y,
                }
            }
            Self::ActivationBackward { activation, pre } => {
                simd.mul(sum, activation.derivative(simd, pre.load(simd, at, count)))
            }
        }
    }

    /// Applies the rest of the epilogue to a full tile of `height` rows and `nv` vectors, which is stored in C in f32
    /// with its bias. `[start, ldc, column]`: index of the tile in C, leading dimension, first column. Four vectors are
    /// computed together, because an activation is a dependency chain of some twenty steps.
    ///
    /// # Safety
    /// The tile is within C and within the epilogue's matrices, which are f32 like C; no other thread accesses it
    /// there.
    #[inline(always)]
    pub(super) unsafe fn finish_tile<S: Simd>(
        &self,
        simd: S,
        c: Disjoint<'_, f32>,
        [start, ldc, column]: [usize; 3],
        [height, nv]: [usize; 2],
        mask: &Mask<'_>,
    ) {
        let (wide, vectors) = (Wide(simd), height * nv);
        let at = |v: usize| start + v / nv * ldc + v % nv * S::LANES;
        for first in (0..vectors).step_by(WIDTH) {
            // Past the end, the last vector is repeated and its result discarded.
            let of = |i: usize| (first + i).min(vectors - 1);
            let count = WIDTH.min(vectors - first);
            // SAFETY: the caller's promise for each of the vectors.
            let load = |x: *const f32| from_fn(|i| unsafe { simd.load_ptr(x.add(at(of(i)))) });
            let store = |x: *mut f32, y: [S::F32; WIDTH]| {
                for (i, &y) in y.iter().enumerate().take(count) {
                    // SAFETY: as above.
                    unsafe { simd.store_ptr(x.add(at(first + i)), y) };
                }
            };
            let p = load(c.ptr(0));
            let y = match *self {
                Self::BiasActivation { activation, pre, .. } => {
                    if let Some(Output::F32(pre)) = pre {
                        store(pre.ptr(0), p);
                    }
                    activation.apply(wide, p)
                }
                Self::ActivationBackward { activation, pre: Operand::F32(pre) } => {
                    wide.mul(p, activation.derivative(wide, load(pre.as_ptr())))
                }
                Self::BiasDropoutResidual { dropout, residual, .. } => {
                    let mut y = p;
                    if dropout.is_some() {
                        let multipliers = |v: usize| &mask.row(v / nv, column)[v % nv * S::LANES..];
                        y = wide.mul(y, from_fn(|i| simd.load(multipliers(of(i)))));
                    }
                    match residual {
                        Some(Operand::F32(residual)) => wide.add(y, load(residual.as_ptr())),
                        _ => y,
                    }
                }
                _ => unreachable!("f32 C has f32 epilogue matrices; other epilogues end with the bias"),
            };
            store(c.ptr(0), y);
        }
    }
}

/// Dropout multipliers of some rows of a task, in whole blocks of 64 columns, which are cheaper to draw than parts of
/// them.
pub(super) struct Mask<'a> {
    /// `width` per row.
    pub multipliers: &'a mut [f32],
    /// Columns in `multipliers`.
    pub width: usize,
    /// First column in `multipliers`, a multiple of 64.
    pub origin: usize,
}

impl Mask<'_> {
    /// Floats for `rows` rows of up to `columns` columns.
    pub(super) const fn len(rows: usize, columns: usize) -> usize {
        rows * (columns + 2 * BLOCK)
    }

    /// Draws `rows` rows from `row` on.
    #[inline(always)]
    pub(super) fn draw<S: Simd>(&mut self, simd: S, dropout: Dropout, row: usize, rows: usize) {
        for (i, line) in self.multipliers.chunks_exact_mut(self.width).take(rows).enumerate() {
            for (j, block) in line.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
                dropout.block(simd, (row + i) as u64, self.origin / BLOCK + j, block);
            }
        }
    }

    /// Multipliers of row `i` from `column` on.
    #[inline(always)]
    pub(super) fn row(&self, i: usize, column: usize) -> &[f32] {
        &self.multipliers[i * self.width + column - self.origin..]
    }
}
