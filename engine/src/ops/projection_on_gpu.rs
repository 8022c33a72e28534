//! The projection to the vocabulary and its cross-entropy on a GPU: products and rows in turn, a chunk of rows at a time.
//!
//! ```text
//! forward    z = h·Wᵀ + b [chunk, V] f32      losses, (greatest, 1/Σ), predictions of its rows
//! backward   z again                          dz = (softmax - onehot)·dloss      in the storage of h
//!            dh = dz·W      dW += dzᵀ·h      db += Σ_rows dz
//! ```
//!
//! The logits of all rows would be the largest tensor of a step; a chunk of them takes [`CHUNK`] numbers. Chunks are cut by
//! shape, and added in order. Cost: 2·M·E·V FLOPs forward, three times that backward, one of which is z again.

use super::linear::Dense;
use crate::{
    device::Gpu,
    dtype::DType,
    error::Result,
    launch::{Operands, storage},
    tape::Tape,
    tensor::Tensor,
};
use kernels::gemm::{Epilogue, Gemm};
use kernels_cuda::{
    arguments::Address,
    cross_entropy::{BackwardArgs, ForwardArgs, Rows, TableArgs},
    program::Pass,
};
use std::ops::Range;

/// Numbers of a chunk of logits, where it has more rows than one: 64 MiB in f32.
const CHUNK: usize = 1 << 24;

/// Rows of a chunk: whole tiles of a product where there are so many.
fn chunk_rows(rows: usize, vocabulary: usize) -> usize {
    let most = (CHUNK / vocabulary.max(1)).max(1);
    let most = if most >= 128 { most / 128 * 128 } else { most };
    rows.min(most)
}

/// Offset of a chunk's gradient in scratch: behind the logits, at a multiple of 16 bytes.
fn gradient_start(rows: usize, vocabulary: usize) -> usize {
    (chunk_rows(rows, vocabulary) * vocabulary).next_multiple_of(4)
}

/// Numbers of scratch, f32: a chunk of logits, and behind it the gradient, if it is stored in two bytes: in four it takes the
/// place of the logits.
pub(super) fn scratch_len(rows: usize, vocabulary: usize, dtype: DType) -> usize {
    match dtype {
        DType::F32 => chunk_rows(rows, vocabulary) * vocabulary,
        _ => gradient_start(rows, vocabulary) + (chunk_rows(rows, vocabulary) * vocabulary).div_ceil(2),
    }
}

/// A projection and the rows that it is taken of.
pub(super) struct ProjectionOnGpu<'a> {
    gpu: &'a Gpu,
    dense: &'a Dense,
    hidden: &'a Tensor,
    labels: &'a Tensor,
    /// In the storage of `hidden`.
    weights: Tensor,
    /// f32
    values: Tensor,
}

impl<'a> ProjectionOnGpu<'a> {
    pub(super) fn new(
        tape: &Tape<'_>,
        gpu: &'a Gpu,
        dense: &'a Dense,
        hidden: &'a Tensor,
        labels: &'a Tensor,
    ) -> Result<Self> {
        let weights = tape.params().on_gpu_as(gpu, hidden.dtype())?;
        let values = tape.params().on_gpu(gpu)?;
        Ok(Self { gpu, dense, hidden, labels, weights, values })
    }

    fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let rows = self.hidden.shape()[0];
        let step = chunk_rows(rows, self.dense.n).max(1);
        (0..rows).step_by(step).map(move |first| first..(first + step).min(rows))
    }

    fn bytes(&self) -> usize {
        self.hidden.dtype().bytes()
    }

    fn hidden_at(&self, row: usize) -> Address {
        self.hidden.address().element(row * self.dense.k, self.bytes())
    }

    fn weight(&self) -> Address {
        self.weights.address().element(self.dense.weight.start, self.bytes())
    }

    /// The logits of some rows.
    fn logits(&self, rows: &Range<usize>, scratch: &mut Tensor) -> Result<Address> {
        let Dense { n, k, bias, .. } = self.dense;
        let bias = bias.as_ref().map(|range| self.values.address().element(range.start, 4));
        let logits = scratch.address_mut();
        let (a, b, inputs) = (self.hidden_at(rows.start), self.weight(), self.hidden.dtype());
        let operands = Operands { a, b, c: logits, inputs, output: DType::F32 };
        self.gpu.product(&Gemm::nt(rows.len(), *n, *k), &operands, &bias.map_or(Epilogue::NONE, Epilogue::bias))?;
        Ok(logits)
    }

    /// Writes losses `[M]`, norms [M, 2] and predictions `[M]`.
    pub(super) fn forward(&self, outputs: [Address; 3], scratch: &mut Tensor) -> Result<()> {
        let [losses, norms, predictions] = outputs;
        for rows in self.chunks() {
            let logits = self.logits(&rows, scratch)?;
            let first = rows.start;
            let labels = self.labels.address().element(first, 4);
            let outputs = [losses.element(first, 4), norms.element(first, 8), predictions.element(first, 4)];
            self.gpu.cross_entropy(logits, DType::F32, labels, outputs, rows.len(), self.dense.n)?;
        }
        Ok(())
    }

    /// Writes dhidden and adds to the gradients of weight and bias, at their places in `flat`.
    pub(super) fn backward(
        &self,
        (norms, upstream): (Address, MeanGradient),
        dhidden: &mut Tensor,
        flat: &mut Tensor,
        scratch: &mut Tensor,
    ) -> Result<()> {
        let Dense { n, k, weight, bias } = self.dense;
        let (dtype, gpu) = (self.hidden.dtype(), self.gpu);
        for rows in self.chunks() {
            let logits = self.logits(&rows, scratch)?;
            let first = rows.start;
            let labels = self.labels.address().element(first, 4);
            let inputs = [logits, labels, norms.element(first, 8)];
            let dz = match dtype {
                DType::F32 => logits,
                _ => logits.element(gradient_start(self.hidden.shape()[0], *n), 4),
            };
            gpu.cross_entropy_backward(inputs, upstream, [DType::F32, dtype], dz, [rows.len(), *n])?;
            let c = dhidden.address_mut().element(first * k, self.bytes());
            let operands = Operands { a: dz, b: self.weight(), c, inputs: dtype, output: dtype };
            gpu.product(&Gemm::nn(rows.len(), *k, *n), &operands, &Epilogue::NONE)?;
            let c = flat.address_mut().element(weight.start, 4);
            let operands = Operands { a: dz, b: self.hidden_at(first), c, inputs: dtype, output: DType::F32 };
            gpu.product(&Gemm::tn(*n, *k, rows.len()).accumulate(), &operands, &Epilogue::NONE)?;
            if let Some(bias) = bias {
                let dbias = flat.address_mut().element(bias.start, 4);
                gpu.add_column_sums((dz, dtype), [1, rows.len(), *n], [dbias])?;
            }
        }
        Ok(())
    }
}

/// Arguments of the forward kernel: losses, norms and predictions are written.
fn forward_arguments(inputs: [Address; 2], outputs: [Address; 3], table: TableArgs) -> ForwardArgs {
    let [logits, labels] = inputs;
    let [losses, norms, predictions] = outputs;
    ForwardArgs { logits, labels, losses, norms, predictions, table }
}

/// Gradient of every loss of a mean: that of the mean times a factor.
#[derive(Clone, Copy)]
pub(super) struct MeanGradient {
    dloss: Address,
    factor: f32,
}

impl MeanGradient {
    /// `dloss` is the gradient of the sum of the losses over `denominator`.
    pub(super) fn new(dloss: &Tensor, denominator: f32) -> Self {
        Self { dloss: dloss.address(), factor: 1.0 / denominator }
    }

    /// Arguments of the backward kernel, which reads logits, labels and norms.
    fn arguments(self, [logits, labels, norms]: [Address; 3], to: Address, table: TableArgs) -> BackwardArgs {
        let Self { dloss, factor } = self;
        BackwardArgs { logits, labels, norms, dlosses: dloss, apart: 0, factor, dlogits: to, table }
    }
}

impl Gpu {
    /// Losses, norms and predictions of rows of logits.
    pub(super) fn cross_entropy(
        &self,
        logits: Address,
        dtype: DType,
        labels: Address,
        outputs: [Address; 3],
        rows: usize,
        classes: usize,
    ) -> Result<()> {
        let kernel = Rows::forward(storage(dtype), classes);
        let table = TableArgs::rows(rows, classes);
        let arguments = forward_arguments([logits, labels], outputs, table);
        self.run(&kernel, kernel.launch(rows, classes), &arguments)
    }

    /// The gradient of logits at `to`, from logits, labels and norms.
    pub(super) fn cross_entropy_backward(
        &self,
        inputs: [Address; 3],
        upstream: MeanGradient,
        [dtype, gradient]: [DType; 2],
        to: Address,
        [rows, classes]: [usize; 2],
    ) -> Result<()> {
        let kernel = Rows::backward(storage(dtype), storage(gradient));
        let arguments = upstream.arguments(inputs, to, TableArgs::rows(rows, classes));
        self.run(&kernel, kernel.launch(rows, classes), &arguments)
    }

    /// Cross-entropy over sequences of `logits`, from logits, labels and offsets.
    pub(super) fn sequence_cross_entropy(
        &self,
        [logits, labels, offsets]: [Address; 3],
        dtype: DType,
        outputs: [Address; 3],
        count: usize,
    ) -> Result<()> {
        let kernel = Rows::sequences(Pass::Forward, storage(dtype));
        let table = TableArgs::sequences(offsets, count);
        let arguments = forward_arguments([logits, labels], outputs, table);
        // Forward gives each sequence a block, however long it is.
        self.run(&kernel, kernel.launch(count, 1), &arguments)
    }

    /// The gradient of sequences of logits at `to`, from logits, labels, norms and offsets.
    pub(super) fn sequence_cross_entropy_backward(
        &self,
        [logits, labels, norms, offsets]: [Address; 4],
        upstream: MeanGradient,
        dtype: DType,
        to: Address,
        [count, longest]: [usize; 2],
    ) -> Result<()> {
        let kernel = Rows::sequences(Pass::Backward, storage(dtype));
        let table = TableArgs::sequences(offsets, count);
        let arguments = upstream.arguments([logits, labels, norms], to, table);
        self.run(&kernel, kernel.launch(count, longest), &arguments)
    }
}
