//! Epilogues: operations on a tile of C before it is stored.

use super::operand::{Operand, Output};
use super::{Beta, Gemm};
use crate::activation::Activation;
use crate::dropout::{BLOCK, Dropout};
use crate::{
    DType, Element,
    simd::{Simd, WIDTH, Wide, from_fn},
};
use std::ops::Range;

/// Operation applied to the accumulators before they are stored. Row r, column j of C; acc = A·B (plus the old C with
/// [`Beta::One`]).
///
/// The arithmetic is f32, in the order of the separate kernels; results are rounded when stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EpilogueKind {
    /// acc
    None,
    /// acc + bias\[j\]
    Bias,
    /// act(p) with p = acc + bias\[j\]
    BiasActivation {
        /// act
        activation: Activation,
        /// True if p is saved for backward. Then the activation is computed from p as rounded to storage, so that
        /// backward can recompute it.
        save_pre: bool,
    },
    /// (acc + bias\[j\]) · mask(r, j) + residual\[r, j\]
    BiasDropoutResidual {
        /// True if there is a dropout mask: the one that [`crate::dropout::apply`] draws for the rows of C.
        dropout: bool,
        /// True if there is a residual.
        residual: bool,
    },
    /// acc · act'(pre\[r, j\]), with the pre-activation that [`EpilogueKind::BiasActivation`] saved.
    ActivationBackward(
        /// act
        Activation,
    ),
}

impl EpilogueKind {
    /// All kinds.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::None, Self::Bias];
        for activation in Activation::ALL {
            all.extend([false, true].map(|save_pre| Self::BiasActivation { activation, save_pre }));
            all.push(Self::ActivationBackward(activation));
        }
        let flags = [(false, false), (false, true), (true, false), (true, true)];
        all.extend(flags.map(|(dropout, residual)| Self::BiasDropoutResidual { dropout, residual }));
        all
    }

    /// Words of a program's or a case's name, joined by `_`; empty for [`EpilogueKind::None`].
    pub fn words(self) -> String {
        let word = |holds: bool, word: &'static str| if holds { word } else { "" };
        match self {
            Self::None => String::new(),
            Self::Bias => "bias".to_string(),
            Self::BiasActivation { activation, save_pre } => {
                format!("bias_{}{}", activation.name(), word(save_pre, "_pre"))
            }
            Self::BiasDropoutResidual { dropout, residual } => {
                format!("bias{}{}_epilogue", word(dropout, "_dropout"), word(residual, "_residual"))
            }
            Self::ActivationBackward(activation) => format!("{}_backward", activation.name()),
        }
    }

    /// True if the epilogue adds a bias.
    pub fn has_bias(self) -> bool {
        !matches!(self, Self::None | Self::ActivationBackward(_))
    }

    /// True if the epilogue reads a matrix: a pre-activation or a residual.
    pub fn reads_matrix(self) -> bool {
        matches!(self, Self::ActivationBackward(_) | Self::BiasDropoutResidual { residual: true, .. })
    }

    /// True if the epilogue saves the pre-activation.
    pub fn saves_pre(self) -> bool {
        matches!(self, Self::BiasActivation { save_pre: true, .. })
    }

    /// True if the epilogue applies dropout.
    pub fn has_dropout(self) -> bool {
        matches!(self, Self::BiasDropoutResidual { dropout: true, .. })
    }

    /// True if the epilogue takes [`Beta::One`].
    pub fn accumulates(self) -> bool {
        matches!(self, Self::None | Self::Bias)
    }
}

/// [`EpilogueKind`] with its data: `V` is a vector of n elements, `I` a matrix that is read, `O` one that is written.
/// Matrices have the shape and the leading dimension of C.
///
/// For [`gemm`](super::gemm) they are slices ([`SliceEpilogue`]), for a GPU addresses.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<V, I = V, O = I> {
    kind: EpilogueKind,
    bias: Option<V>,
    matrix: Option<I>,
    pre: Option<O>,
    dropout: Option<Dropout>,
}

/// Epilogue of a CPU product whose C is stored as `C`.
pub type SliceEpilogue<'a, C> = Epilogue<&'a [f32], &'a [C], &'a mut [C]>;

/// [`SliceEpilogue`] with checked sizes and the storage type of C as a value.
pub(crate) type TileEpilogue<'a> = Epilogue<&'a [f32], Operand<'a>, Output<'a>>;

impl<V, I, O> Epilogue<V, I, O> {
    /// [`EpilogueKind::None`]
    pub const NONE: Self = Self { kind: EpilogueKind::None, bias: None, matrix: None, pre: None, dropout: None };

    /// [`EpilogueKind::Bias`]
    pub fn bias(bias: V) -> Self {
        Self { kind: EpilogueKind::Bias, bias: Some(bias), ..Self::NONE }
    }

    /// [`EpilogueKind::BiasActivation`]; `pre` receives the pre-activation.
    pub fn bias_activation(bias: V, activation: Activation, pre: Option<O>) -> Self {
        let kind = EpilogueKind::BiasActivation { activation, save_pre: pre.is_some() };
        Self { kind, bias: Some(bias), pre, ..Self::NONE }
    }

    /// [`EpilogueKind::BiasDropoutResidual`]
    pub fn bias_dropout_residual(bias: V, dropout: Option<Dropout>, residual: Option<I>) -> Self {
        let kind = EpilogueKind::BiasDropoutResidual { dropout: dropout.is_some(), residual: residual.is_some() };
        Self { kind, bias: Some(bias), matrix: residual, dropout, ..Self::NONE }
    }

    /// [`EpilogueKind::ActivationBackward`] with the saved pre-activation.
    pub fn activation_backward(activation: Activation, pre: I) -> Self {
        Self { kind: EpilogueKind::ActivationBackward(activation), matrix: Some(pre), ..Self::NONE }
    }

    /// Epilogue of this kind, with the part of the data that it needs.
    pub fn of_kind(kind: EpilogueKind, bias: V, matrix: I, pre: O, dropout: Dropout) -> Self {
        Self {
            kind,
            bias: kind.has_bias().then_some(bias),
            matrix: kind.reads_matrix().then_some(matrix),
            pre: kind.saves_pre().then_some(pre),
            dropout: kind.has_dropout().then_some(dropout),
        }
    }

    /// Kind of epilogue.
    pub fn kind(&self) -> EpilogueKind {
        self.kind
    }

    /// Converts the data: the vector by `vector`, the matrices by `read` and `written`.
    pub fn map<W, J, P>(
        self,
        vector: impl FnOnce(V) -> W,
        read: impl FnOnce(I) -> J,
        written: impl FnOnce(O) -> P,
    ) -> Epilogue<W, J, P> {
        let Self { kind, bias, matrix, pre, dropout } = self;
        Epilogue { kind, bias: bias.map(vector), matrix: matrix.map(read), pre: pre.map(written), dropout }
    }
}

impl<A: Copy> Epilogue<A> {
    /// Vector and matrices in this order: bias, matrix that is read, saved pre-activation.
    pub fn addresses(&self) -> impl Iterator<Item = A> {
        [self.bias, self.matrix, self.pre].into_iter().flatten()
    }

    /// Dropout, if there is any.
    pub fn dropout_settings(&self) -> Option<Dropout> {
        self.dropout
    }
}

impl<'a, C: Element> SliceEpilogue<'a, C> {
    /// Checks the sizes against `spec`.
    #[track_caller]
    pub(crate) fn check(self, spec: &Gemm) -> TileEpilogue<'a> {
        let accumulates = self.kind.accumulates();
        assert!(accumulates || spec.beta == Beta::Zero, "{spec:?}: only the epilogues None and Bias can accumulate");
        if let Some(bias) = self.bias {
            assert_eq!(bias.len(), spec.n, "{spec:?}: the bias must hold one element per column");
        }
        for len in [self.matrix.map(<[C]>::len), self.pre.as_ref().map(|pre| pre.len())].into_iter().flatten() {
            let span = spec.spans()[2];
            assert!(len >= span, "{spec:?}: the epilogue's matrix holds {len} elements but spans {span}");
        }
        if let Some(dropout) = &self.dropout {
            dropout.check();
        }
        self.map(|bias| bias, Operand::new, Output::new)
    }
}

/// Position of a vector of C.
#[derive(Clone, Copy)]
pub(super) struct Position {
    /// Column of C.
    pub column: usize,
    /// Elements from the start of C, and of the epilogue's matrices.
    pub at: usize,
    /// Valid lanes, at most LANES.
    pub count: usize,
}

impl<'a> TileEpilogue<'a> {
    /// The bias, which the epilogue does not add from now on.
    pub(crate) fn take_bias(&mut self) -> Option<&'a [f32]> {
        self.bias.take()
    }

    /// Bias to add to the accumulators before they are stored, if any. [`Self::finish_tile`] does the rest.
    #[inline(always)]
    pub(super) fn bias_in_registers(&self, last: bool) -> Option<&'a [f32]> {
        self.bias.filter(|_| last)
    }

    /// True if the epilogue does more than add a bias.
    #[inline(always)]
    pub(super) fn has_more(&self) -> bool {
        !matches!(self.kind, EpilogueKind::None | EpilogueKind::Bias)
    }

    /// f32 matrix that the epilogue reads or writes besides C, if there is one.
    #[inline(always)]
    pub(super) fn matrix(&self) -> Option<*const f32> {
        match (self.matrix, self.pre) {
            (Some(Operand::F32(matrix)), _) => Some(matrix.as_ptr()),
            (_, Some(Output::F32(pre))) => Some(pre.ptr(0).cast_const()),
            _ => None,
        }
    }

    /// Dropout, if there is any.
    #[inline(always)]
    pub(super) fn dropout(&self) -> Option<Dropout> {
        self.dropout
    }

    /// Values of C for a vector of sums; `mask` holds its dropout multipliers.
    ///
    /// # Safety
    /// No other thread accesses `position` in the epilogue's outputs.
    #[inline(always)]
    pub(super) unsafe fn apply<S: Simd>(&self, simd: S, sum: S::F32, position: Position, mask: &[f32]) -> S::F32 {
        let Position { column, at, count } = position;
        let sum = match self.bias {
            Some(bias) => simd.add(sum, simd.load_partial(&bias[column..column + count])),
            None => sum,
        };
        let matrix = |matrix: Operand<'a>| matrix.load(simd, at, count);
        match self.kind {
            EpilogueKind::None | EpilogueKind::Bias => sum,
            EpilogueKind::BiasActivation { activation, .. } => {
                let p = match self.pre {
                    // SAFETY: the caller's promise.
                    Some(pre) => unsafe { pre.keep(simd, at, count, sum) },
                    None => sum,
                };
                activation.apply(simd, p)
            }
            EpilogueKind::BiasDropoutResidual { .. } => {
                let y = if self.dropout.is_some() { simd.mul(sum, simd.load(mask)) } else { sum };
                self.matrix.map_or(y, |residual| simd.add(y, matrix(residual)))
            }
            EpilogueKind::ActivationBackward(activation) => {
                let pre = self.matrix.expect("an epilogue of this kind has a matrix");
                simd.mul(sum, activation.derivative(simd, matrix(pre)))
            }
        }
    }

    /// Applies the epilogue to a tile of `height` rows and `nv` vectors of sums, and stores it. `[start, ldc, column]`: index
    /// of the tile in C, leading dimension, first column. Four vectors are computed together, because an activation is a
    /// dependency chain of some twenty steps.
    ///
    /// # Safety
    /// `sums` holds the tile; it may be the tile in C. The tile is within C and within the epilogue's matrices, which are stored
    /// as X like C; no other thread accesses it there.
    #[inline(always)]
    pub(super) unsafe fn finish_tile<S: Simd, X: Element>(
        &self,
        simd: S,
        sums: Sums<'_>,
        c: *mut X,
        [start, ldc, column]: [usize; 3],
        [height, nv]: [usize; 2],
        mask: &Mask<'_>,
    ) {
        let Self { kind, matrix, pre, dropout, .. } = *self;
        let (wide, vectors) = (Wide(simd), height * nv);
        for first in (0..vectors).step_by(WIDTH) {
            // Past the end, the last vector is repeated and its result discarded.
            let of: [usize; WIDTH] = from_fn(|i| (first + i).min(vectors - 1));
            let at: [usize; WIDTH] = from_fn(|i| start + of[i] / nv * ldc + of[i] % nv * S::LANES);
            let count = WIDTH.min(vectors - first);
            let from: [usize; WIDTH] = from_fn(|i| of[i] / nv * sums.leading + of[i] % nv * S::LANES);
            // SAFETY: the caller's promise for each of the vectors.
            let mut p = unsafe { load_four(simd, sums.first, &from) };
            if let Some(bias) = sums.bias {
                p = wide.add(p, from_fn(|i| simd.load(&bias[column + of[i] % nv * S::LANES..])));
            }
            let y = match (kind, matrix) {
                (EpilogueKind::None | EpilogueKind::Bias, _) => p,
                (EpilogueKind::BiasActivation { activation, .. }, _) => {
                    if let Some(pre) = pre {
                        // SAFETY: as above.
                        unsafe { store_first(simd, pre.start::<X>(), &at[..count], &p) };
                        if X::DTYPE == DType::Bf16 {
                            p = wide.round_bf16(p);
                        }
                    }
                    activation.apply(wide, p)
                }
                (EpilogueKind::ActivationBackward(activation), Some(pre)) => {
                    // SAFETY: as above.
                    let pre = unsafe { load_four(simd, pre.start::<X>(), &at) };
                    wide.mul(p, activation.derivative(wide, pre))
                }
                (EpilogueKind::BiasDropoutResidual { .. }, matrix) => {
                    let mut y = p;
                    if dropout.is_some() {
                        let row = |v: usize| &mask.row(v / nv, column)[v % nv * S::LANES..];
                        y = wide.mul(y, from_fn(|i| simd.load(row(of[i]))));
                    }
                    match matrix {
                        // SAFETY: as above.
                        Some(residual) => wide.add(y, unsafe { load_four(simd, residual.start::<X>(), &at) }),
                        None => y,
                    }
                }
                (EpilogueKind::ActivationBackward(_), None) => unreachable!("an epilogue of this kind has a matrix"),
            };
            // SAFETY: as above.
            unsafe { store_first(simd, c, &at[..count], &y) };
        }
    }
}

/// Sums of a tile that an epilogue finishes.
#[derive(Clone, Copy)]
pub(super) struct Sums<'a> {
    pub first: *const f32,
    /// Floats from a row to the next.
    pub leading: usize,
    /// Bias of all columns of C, if it is not added yet.
    pub bias: Option<&'a [f32]>,
}

/// The four vectors at `x + at[i]`. Not a closure, which may stay a call.
///
/// # Safety
/// `x + at[i]` is valid for reading a vector.
#[inline(always)]
unsafe fn load_four<S: Simd, X: Element>(simd: S, x: *const X, at: &[usize; WIDTH]) -> [S::F32; WIDTH] {
    let mut y = [simd.zero(); WIDTH];
    for (y, &at) in y.iter_mut().zip(at) {
        // SAFETY: the caller's promise.
        *y = unsafe { X::load_ptr(simd, x.add(at)) };
    }
    y
}

/// Stores a vector at `x + at[i]` for each of `at`.
///
/// # Safety
/// `x + at[i]` is valid for writing a vector.
#[inline(always)]
unsafe fn store_first<S: Simd, X: Element>(simd: S, x: *mut X, at: &[usize], y: &[S::F32; WIDTH]) {
    for (&at, &y) in at.iter().zip(y) {
        // SAFETY: the caller's promise.
        unsafe { X::store_ptr(simd, x.add(at), y) };
    }
}

/// Scales of a product of quantized operands: acc\[r, j\] = row_scale\[r\] · column_scale\[j\] · sum + (row_offset\[r\] ·
/// column_offset\[j\] + bias\[j\]).
#[derive(Clone, Copy)]
pub(crate) struct Scales<'a> {
    pub row_scale: &'a [f32],
    pub row_offset: &'a [f32],
    pub column_scale: &'a [f32],
    pub column_offset: &'a [f32],
    /// Bias of the epilogue, which does not add it then: it is added to the smaller term.
    pub bias: Option<&'a [f32]>,
}

impl Scales<'_> {
    /// acc of some columns, at most LANES, of a row.
    #[inline(always)]
    pub(super) fn apply<S: Simd>(&self, simd: S, sums: S::F32, row: usize, columns: Range<usize>) -> S::F32 {
        let (scale, offset) = (simd.splat(self.row_scale[row]), simd.splat(self.row_offset[row]));
        let column_scale = simd.load_partial(&self.column_scale[columns.clone()]);
        let bias = self.bias.map_or(simd.zero(), |bias| simd.load_partial(&bias[columns.clone()]));
        let constant = simd.mul_add(offset, simd.load_partial(&self.column_offset[columns]), bias);
        simd.mul_add(sums, simd.mul(scale, column_scale), constant)
    }
}

/// Dropout multipliers of some rows of a task, in whole blocks of 64 columns because parts of a block are more expensive
/// to draw.
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
