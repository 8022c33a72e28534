//! Losses: cross-entropy of logits, projection and cross-entropy in one, and the mean squared error.
//!
//! ```text
//! cross_entropy   loss = Σ_m (log Σ_v exp z_m[v] - z_m[label_m]) / denominator
//!                 dz_m[v] = (softmax(z_m)[v] - [v = label_m]) / denominator
//! projection      z = h·Wᵀ + b, chunk by chunk
//! ```
//!
//! The denominator is the caller's: the number of rows gives the mean, the number of a whole batch's rows makes
//! micro-batches add up to the gradient of the batch.
use super::{
    check,
    embedding::check_ids,
    projection_on_gpu::{self, MeanGradient, ProjectionOnGpu},
};
use crate::{
    device::Device,
    dtype::{DType, floats},
    error::{EngineError, Result},
    param::ParamId,
    reading::Reading,
    tape::{BackwardContext, Op, Tape, Var},
    tensor::Tensor,
};
use kernels::{Cost, cross_entropy as kernel, cross_entropy::Projection};

/// A classification loss with the figures that reports use.
#[derive(Debug)]
pub struct CrossEntropyOutput {
    /// Σ losses / denominator, one number, f32.
    pub loss: Var,
    /// Each row's negative log-likelihood `[M]`, f32.
    pub losses: Tensor,
    /// The class of the greatest logit of each row, the first of equals: `[M]`, u32.
    pub predictions: Tensor,
    /// The labels: `[M]`, u32.
    pub(super) labels: Var,
}

impl CrossEntropyOutput {
    /// Number of rows whose prediction is the label.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn correct(&self) -> Result<usize> {
        Ok(self.read_later()?.wait()?.1)
    }

    /// Begins to read the losses and the number of correct predictions; nothing waits.
    ///
    /// # Errors
    /// The GPU failed in an earlier launch.
    pub fn read_later(&self) -> Result<LossReading> {
        Ok(LossReading {
            losses: self.losses.read_later()?,
            predictions: self.predictions.read_later()?,
            labels: self.labels.integers()?.into_owned(),
        })
    }
}

/// Figures of a classification loss on their way to the host ([`CrossEntropyOutput::read_later`]).
#[derive(Debug)]
pub struct LossReading {
    losses: Reading<f32>,
    predictions: Reading<u32>,
    labels: Vec<u32>,
}

impl LossReading {
    /// Each row's negative log-likelihood, and the number of rows whose prediction is the label, once they are there.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn wait(self) -> Result<(Vec<f32>, usize)> {
        let predictions = self.predictions.wait()?;
        let correct = predictions.iter().zip(&self.labels).filter(|(prediction, label)| prediction == label).count();
        Ok((self.losses.wait()?, correct))
    }
}

pub(super) fn check_denominator(operation: &str, denominator: f32) -> Result<()> {
    if denominator > 0.0 && denominator.is_finite() {
        return Ok(());
    }
    Err(EngineError::shape(operation, format!("the denominator must be a positive number, it is {denominator}")))
}

/// Sum in f64, in order: a loss is compared across runs to the bit.
pub(super) fn reduce(tape: &Tape<'_>, losses: &Tensor, denominator: f32) -> Result<Tensor> {
    let mut loss = tape.alloc([], DType::F32)?;
    tape.launch_on("loss.sum", crate::tape::moved(losses.len() * 4), |device| match device {
        Device::Cpu(_) => {
            let sum: f64 = losses.slice::<f32>().iter().map(|&x| f64::from(x)).sum();
            loss.slice_mut::<f32>()[0] = (sum / f64::from(denominator)) as f32;
            Ok(())
        }
        Device::Cuda(gpu) => gpu.scaled_sum(losses, 1.0 / denominator, &mut loss),
    })?;
    Ok(loss)
}

/// Memory for the gradient of each loss of a mean, on a processor; a GPU reads that of the mean.
pub(super) fn alloc_each_loss(tape: &Tape<'_>, rows: usize) -> Result<Tensor> {
    tape.alloc([if tape.device().gpu().is_some() { 0 } else { rows }], DType::F32)
}

/// Writes the gradient of a mean, divided by the denominator, for every row.
pub(super) fn each_loss<'a>(dy: &Tensor, denominator: f32, dlosses: &'a mut Tensor) -> &'a [f32] {
    let dlosses = dlosses.slice_mut::<f32>();
    dlosses.fill(dy.slice::<f32>()[0] / denominator);
    dlosses
}

/// Softmax cross-entropy of logits [M, C] and labels `[M]`.
///
/// # Errors
/// Shapes do not fit, a label is not a class, or the denominator is not positive.
pub fn cross_entropy(tape: &Tape<'_>, logits: &Var, labels: &Var, denominator: f32) -> Result<CrossEntropyOutput> {
    let dtype = check::float("cross_entropy", logits)?;
    check::rank("cross_entropy", "logits", logits, 2)?;
    let (rows, classes) = (logits.shape()[0], logits.shape()[1]);
    check::shape("cross_entropy", "labels", labels, &[rows])?;
    check_ids(tape, "cross_entropy", "labels", labels, classes)?;
    check_denominator("cross_entropy", denominator)?;
    let mut losses = tape.alloc([rows], DType::F32)?;
    let mut norms = tape.alloc([rows, 2], DType::F32)?;
    let mut predictions = tape.alloc([rows], DType::U32)?;
    let cost = Cost { flops: 20 * logits.value().len() as u64, bytes: (logits.value().len() * dtype.bytes()) as u64 };
    tape.launch_on("cross_entropy", cost, |device| match device {
        Device::Cpu(cpu) => {
            floats!(dtype, X => kernel::rows_forward(cpu, classes, logits.value().slice::<X>(), labels.value().slice(), kernel::Losses { losses: losses.slice_mut(), norms: norms.slice_mut(), predictions: predictions.slice_mut() }));
            Ok(())
        }
        Device::Cuda(gpu) => {
            let outputs = [&mut losses, &mut norms, &mut predictions].map(Tensor::address_mut);
            gpu.cross_entropy(logits.value().address(), dtype, labels.value().address(), outputs, rows, classes)
        }
    })?;
    let loss = reduce(tape, &losses, denominator)?;
    let logits_value = logits.value();
    let loss = tape.record(&[logits], loss, || CrossEntropy {
        logits: logits_value.clone(),
        labels: labels.value().clone(),
        norms,
        denominator,
    })?;
    Ok(CrossEntropyOutput { loss, losses, predictions, labels: labels.clone() })
}

struct CrossEntropy {
    logits: Tensor,
    labels: Tensor,
    norms: Tensor,
    denominator: f32,
}

impl Op for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let Self { logits, labels, norms, denominator } = *self;
        let mut dx = ctx.tape.alloc(*logits.shape(), logits.dtype())?;
        let mut dlosses = alloc_each_loss(ctx.tape, labels.len())?;
        let cost = Cost { flops: 20 * dx.len() as u64, bytes: (2 * dx.len() * dx.dtype().bytes()) as u64 };
        ctx.tape.launch_on("cross_entropy.backward", cost, |device| match device {
            Device::Cpu(cpu) => {
                let dlosses = each_loss(&dy, denominator, &mut dlosses);
                let upstream = kernel::Upstream { norms: norms.slice(), dlosses };
                floats!(logits.dtype(), X => kernel::rows_backward(cpu, logits.shape()[1], logits.slice::<X>(), labels.slice(), upstream, dx.slice_mut::<X>()));
                Ok(())
            }
            Device::Cuda(gpu) => {
                let inputs = [&logits, &labels, &norms].map(Tensor::address);
                let (to, dtype) = (dx.address_mut(), dx.dtype());
                let (upstream, sizes) = (MeanGradient::new(&dy, denominator), [logits.shape()[0], logits.shape()[1]]);
                gpu.cross_entropy_backward(inputs, upstream, [dtype, dtype], to, sizes)
            }
        })?;
        ctx.accumulate_grad(0, dx)
    }
}

/// Softmax cross-entropy of `hidden`·Wᵀ + b and labels `[M]`: hidden [M, E], weight [V, E] (the word embeddings, where
/// they are tied), bias `[V]`. A step with gradients keeps the logits on a processor; on a GPU, and without gradients, they are
/// never all in memory.
///
/// # Errors
/// Shapes do not fit, a label is out of range for the weight, or the denominator is not positive.
pub fn projected_cross_entropy(
    tape: &Tape<'_>,
    hidden: &Var,
    weight: ParamId,
    bias: ParamId,
    labels: &Var,
    denominator: f32,
) -> Result<CrossEntropyOutput> {
    const NAME: &str = "projected_cross_entropy";
    let dtype = check::float(NAME, hidden)?;
    check::rank(NAME, "hidden", hidden, 2)?;
    let dense = super::linear::Dense::new(tape, NAME, &[weight], &[bias])?;
    dense.check_input(tape, NAME, weight, hidden)?;
    let (rows, vocabulary, width) = (hidden.shape()[0], dense.n, dense.k);
    check::shape(NAME, "labels", labels, &[rows])?;
    check_ids(tape, NAME, "labels", labels, vocabulary)?;
    check_denominator(NAME, denominator)?;
    let mut losses = tape.alloc([rows], DType::F32)?;
    let mut norms = tape.alloc([rows, 2], DType::F32)?;
    let mut predictions = tape.alloc([rows], DType::U32)?;
    let mut kept = match tape.device() {
        Device::Cpu(_) if tape.is_recording() => Some(tape.alloc([rows, vocabulary], DType::F32)?),
        _ => None,
    };
    let mut scratch = tape.alloc([scratch_len(tape, hidden.value(), vocabulary)], DType::F32)?;
    tape.launch_on(NAME, dense.cost(rows, dtype), |device| match device {
        Device::Cpu(cpu) => {
            floats!(dtype, X => {
                let projection = Projection {
                    width,
                    hidden: hidden.value().slice::<X>(),
                    weight: tape.params().values(weight),
                    bias: tape.params().values(bias),
                    labels: labels.value().slice(),
                    precision: tape.precision(hidden.dtype()),
                };
                let (losses, norms, predictions) = (losses.slice_mut(), norms.slice_mut(), predictions.slice_mut());
                let kept = kept.as_mut().map(Tensor::slice_mut);
                kernel::forward(cpu, &projection, kernel::Losses { losses, norms, predictions }, kept, scratch.slice_mut());
            });
            Ok(())
        }
        Device::Cuda(gpu) => {
            let projection = ProjectionOnGpu::new(tape, gpu, &dense, hidden.value(), labels.value())?;
            projection.forward([&mut losses, &mut norms, &mut predictions].map(Tensor::address_mut), &mut scratch)
        }
    })?;
    drop(scratch);
    let loss = reduce(tape, &losses, denominator)?;
    let hidden_value = hidden.value();
    let loss = tape.record_with_parameters(&[hidden], loss, || Projected {
        dense,
        hidden: hidden_value.clone(),
        labels: labels.value().clone(),
        norms,
        kept,
        denominator,
    })?;
    Ok(CrossEntropyOutput { loss, losses, predictions, labels: labels.clone() })
}

/// Numbers of scratch of a projection, f32.
fn scratch_len(tape: &Tape<'_>, hidden: &Tensor, vocabulary: usize) -> usize {
    match (tape.device(), hidden.shape()) {
        (Device::Cpu(_), shape) => kernel::scratch_len(shape[0], shape[1], vocabulary),
        (Device::Cuda(_), shape) => projection_on_gpu::scratch_len(shape[0], vocabulary, hidden.dtype()),
    }
}

struct Projected {
    dense: super::linear::Dense,
    hidden: Tensor,
    labels: Tensor,
    norms: Tensor,
    /// The logits, on a processor; a GPU computes them again.
    kept: Option<Tensor>,
    denominator: f32,
}

impl Op for Projected {
    fn name(&self) -> &'static str {
        "projected_cross_entropy"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let Self { dense, hidden, labels, norms, kept, denominator } = *self;
        let (tape, rows, vocabulary, width) = (ctx.tape, hidden.shape()[0], dense.n, dense.k);
        let mut dhidden = tape.alloc(*hidden.shape(), hidden.dtype())?;
        let mut scratch = tape.alloc([scratch_len(tape, &hidden, vocabulary)], DType::F32)?;
        let mut dlosses = alloc_each_loss(tape, rows)?;
        let at_bias = dense.bias.clone().expect("the projection has a bias");
        let Cost { flops, bytes } = dense.cost(rows, hidden.dtype());
        let flat = &mut ctx.params.flat;
        let cost = Cost { flops: 2 * flops, bytes: 2 * bytes };
        tape.launch_on("projected_cross_entropy.backward", cost, |device| match device {
                Device::Cpu(cpu) => {
                    let dlosses = each_loss(&dy, denominator, &mut dlosses);
                    let values = tape.params().all_values();
                    let [dweight, dbias] = flat
                        .slice_mut::<f32>()
                        .get_disjoint_mut([dense.weight.clone(), at_bias.clone()])
                        .expect("two parameters");
                    floats!(hidden.dtype(), X => {
                        let projection = Projection {
                            width,
                            hidden: hidden.slice::<X>(),
                            weight: &values[dense.weight.clone()],
                            bias: &values[at_bias.clone()],
                            labels: labels.slice(),
                            precision: ctx.tape.precision(hidden.dtype()),
                        };
                        let (dhidden, scratch) = (dhidden.slice_mut::<X>(), scratch.slice_mut());
                        let kept = kept.as_ref().expect("a recording forward pass on a processor kept them").slice();
                        let norms = norms.slice();
                        kernel::backward(cpu, &projection, kernel::Upstream { norms, dlosses }, kept, kernel::TableGradients { dhidden, dweight, dbias }, scratch);
                    });
                    Ok(())
                }
                Device::Cuda(gpu) => {
                    let projection = ProjectionOnGpu::new(tape, gpu, &dense, &hidden, &labels)?;
                    let upstream = (norms.address(), MeanGradient::new(&dy, denominator));
                    projection.backward(upstream, &mut dhidden, flat, &mut scratch)
                }
        })?;
        ctx.accumulate_grad(0, dhidden)
    }
}
