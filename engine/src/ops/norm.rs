//! Layer normalization, alone or with the residual that comes before it.
//!
//! ```text
//! s = x + r          mean = Σ s / H          rstd = 1 / √(Σ (s - mean)² / H + ε)
//! y = γ·(s - mean)·rstd + β
//! ds = rstd·(γ·dy - Σ γ·dy / H - n·Σ γ·dy·n / H)       n = (s - mean)·rstd
//! ```
//!
//! s is stored (it is the input itself without a residual), with mean and rstd of every row; statistics are f32 whatever
//! the storage. Cost: bandwidth, 4·H elements a row forward.
use super::check;
use crate::{
    device::{Device, Gpu},
    dtype::{DType, floats},
    error::{EngineError, Result},
    launch::{aligned, storage},
    param::ParamId,
    tape::{BackwardContext, Op, Tape, Var},
    tensor::Tensor,
};
use kernels::{Cost, layernorm};
use kernels_cuda::arguments::Address;
use kernels_cuda::layernorm::{BackwardArgs, ForwardArgs, LayerNorm as NormKernel};

/// Parameters and ε of a layer normalization.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// γ `[H]`.
    pub gain: ParamId,
    /// β `[H]`.
    pub bias: ParamId,
    /// ε, inside the root.
    pub eps: f32,
}

impl LayerNorm {
    pub(super) fn check(&self, tape: &Tape<'_>, operation: &str, x: &Var) -> Result<()> {
        let cols = x.shape().last().copied().unwrap_or(0);
        for id in [self.gain, self.bias] {
            let shape = tape.params().shape(id);
            if shape[..] != [cols] || cols == 0 {
                let problem = format!("x is {:?}, so [{cols}] was expected here, and it is {shape:?}", x.shape());
                return Err(EngineError::parameter(tape.params().name(id), format!("{operation}: {problem}")));
            }
        }
        Ok(())
    }

    fn spec(&self, x: &Tensor) -> layernorm::Spec {
        let (rows, columns) = x.shape().rows_cols();
        layernorm::Spec { rows, columns, eps: self.eps }
    }

    /// Writes s (with a residual), y and the statistics.
    pub(super) fn forward(
        &self,
        tape: &Tape<'_>,
        x: &Tensor,
        residual: Option<&Tensor>,
        sum: Option<&mut Tensor>,
        y: &mut Tensor,
        stats: &mut Tensor,
    ) -> Result<()> {
        let streams = if residual.is_some() { 4 } else { 2 };
        tape.launch_on("layernorm", cost(x, streams), |device| match device {
            Device::Cpu(cpu) => {
                let (gain, bias) = (tape.params().values(self.gain), tape.params().values(self.bias));
                let spec = self.spec(x);
                floats!(x.dtype(), X => {
                    let (residual, sum) = (residual.map(|r| r.slice::<X>()), sum.map(|s| s.slice_mut::<X>()));
                    let (y, stats) = (y.slice_mut::<X>(), stats.slice_mut());
                    layernorm::forward(cpu, &spec, layernorm::Forward { x: x.slice::<X>(), residual, gain, bias, s: sum, y, stats });
                });
                Ok(())
            }
            Device::Cuda(gpu) => {
                let (rows, columns) = x.shape().rows_cols();
                let [gain, bias] = self.parameters_on(tape, gpu)?;
                let kernel = NormKernel::forward(storage(x.dtype()), residual.is_some(), sum.is_some(), columns);
                let mut kernel = kernel.ok_or_else(|| too_wide(columns))?;
                kernel.aligned &= aligned(&[gain, bias]);
                let arguments = ForwardArgs {
                    x: x.address(),
                    residual: residual.map(|residual| residual.address()),
                    gain,
                    bias,
                    s: sum.map(|sum| sum.address_mut()),
                    y: y.address_mut(),
                    stats: stats.address_mut(),
                    rows,
                    columns,
                    eps: self.eps,
                };
                gpu.run(&kernel, kernel.launch(rows, columns), &arguments)
            }
        })
    }

    /// Gain and bias on the GPU.
    fn parameters_on(&self, tape: &Tape<'_>, gpu: &Gpu) -> Result<[Address; 2]> {
        let values = tape.params().on_gpu(gpu)?;
        Ok([self.gain, self.bias].map(|id| values.address().element(tape.params().info(id).range.start, 4)))
    }

    /// Writes ds and adds to the gradients of gain and bias, or leaves that to [`LayerNorm::add_partial_sums`].
    pub(super) fn backward(
        &self,
        ctx: &mut BackwardContext<'_, '_>,
        (s, stats): (&Tensor, &Tensor),
        dy: &Tensor,
        outputs: NormOutputs<'_>,
    ) -> Result<()> {
        let NormOutputs { ds, mut copy, partial } = outputs;
        let tape = ctx.tape;
        let (at_gain, at_bias) = (ctx.params.range(self.gain), ctx.params.range(self.bias));
        let spec = self.spec(s);
        let is_partial = partial.is_some();
        let mut scratch = match partial {
            Some(partial) => partial,
            None => tape.alloc([self.scratch_len(tape, s)], DType::F32)?,
        };
        let flat = &mut ctx.params.flat;
        tape.launch_on("layernorm.backward", cost(s, 3), |device| match device {
            Device::Cpu(cpu) => {
                let gain = tape.params().values(self.gain);
                let [dgain, dbias] =
                    flat.slice_mut::<f32>().get_disjoint_mut([at_gain, at_bias]).expect("two parameters");
                floats!(s.dtype(), X => {
                    let (s, dy, ds) = (s.slice::<X>(), dy.slice::<X>(), ds.slice_mut::<X>());
                    let scratch = scratch.slice_mut();
                    layernorm::backward(cpu, &spec, layernorm::Backward { s, stats: stats.slice(), gain, dy, ds: &mut *ds, dgain, dbias }, scratch);
                    if let Some(copy) = &mut copy {
                        copy.slice_mut::<X>().copy_from_slice(ds);
                    }
                });
                Ok(())
            }
            Device::Cuda(gpu) => {
                let [gain, _] = self.parameters_on(tape, gpu)?;
                let groups = backward_on(gpu, gain, (s, stats), dy, (ds, copy), scratch.address_mut())?;
                if is_partial {
                    return Ok(());
                }
                let outs = [at_gain, at_bias].map(|at| flat.address_mut().element(at.start, 4));
                gpu.add_column_sums((scratch.address(), DType::F32), [1, groups, spec.columns], outs)
            }
        })
    }
}

/// Outputs of the backward pass.
pub(super) struct NormOutputs<'a> {
    pub(super) ds: &'a mut Tensor,
    /// Receives ds as well.
    pub(super) copy: Option<&'a mut Tensor>,
    /// On a GPU, receives the sums of groups of rows [2, groups, H], which are then not added up.
    pub(super) partial: Option<Tensor>,
}

impl LayerNorm {
    /// Adds the sums that several backward passes left, in their order, to the gradients of gain and bias: [passes, 2, groups, H].
    pub(super) fn add_partial_sums(&self, ctx: &mut BackwardContext<'_, '_>, partial: &Tensor) -> Result<()> {
        let outs = [self.gain, self.bias].map(|id| ctx.params.range(id).start);
        let flat = &mut ctx.params.flat;
        ctx.tape.launch_on("layernorm.backward.sums", cost(partial, 1), |device| {
            let gpu = device.gpu().expect("only a GPU leaves sums");
            let &[passes, _, groups, columns] = &partial.shape()[..] else { unreachable!("four dimensions") };
            let outs = outs.map(|at| flat.address_mut().element(at, 4));
            gpu.add_column_sums((partial.address(), DType::F32), [passes, groups, columns], outs)
        })
    }

    /// Groups of rows whose sums backward leaves, on a GPU.
    pub(super) fn groups(&self, tape: &Tape<'_>, s: &Tensor) -> Option<usize> {
        let (rows, columns) = s.shape().rows_cols();
        tape.device().gpu()?;
        NormKernel::backward(storage(s.dtype()), false, columns).map(|kernel| kernel.groups(rows))
    }

    /// Numbers of scratch that backward takes.
    fn scratch_len(&self, tape: &Tape<'_>, s: &Tensor) -> usize {
        match tape.device() {
            Device::Cpu(_) => layernorm::backward_scratch_len(&self.spec(s)),
            Device::Cuda(_) => 2 * self.groups(tape, s).unwrap_or(0) * s.shape().rows_cols().1,
        }
    }
}

/// Writes ds, its copy and the sums of groups of rows on the GPU: at `partial` [2, groups, H], those for the gain, then those for the
/// bias. Gives the number of groups.
fn backward_on(
    gpu: &Gpu,
    gain: Address,
    (s, stats): (&Tensor, &Tensor),
    dy: &Tensor,
    (ds, copy): (&mut Tensor, Option<&mut Tensor>),
    partial: Address,
) -> Result<usize> {
    let (rows, columns) = s.shape().rows_cols();
    let kernel = NormKernel::backward(storage(s.dtype()), copy.is_some(), columns);
    let mut kernel = kernel.ok_or_else(|| too_wide(columns))?;
    kernel.aligned &= aligned(&[gain]);
    let groups = kernel.groups(rows);
    let arguments = BackwardArgs {
        s: s.address(),
        stats: stats.address(),
        gain,
        dy: dy.address(),
        ds: ds.address_mut(),
        copy: copy.map(|copy| copy.address_mut()),
        dgain_partial: partial,
        dbias_partial: partial.element(groups * columns, 4),
        rows,
        columns,
    };
    gpu.run(&kernel, kernel.launch(rows, columns), &arguments)?;
    Ok(groups)
}

fn too_wide(columns: usize) -> EngineError {
    let most = kernels_cuda::layernorm::MAX_COLUMNS;
    EngineError::shape("layer_norm", format!("rows of {columns} elements on a GPU, and at most {most} are possible"))
}

fn cost(x: &Tensor, streams: usize) -> Cost {
    Cost { flops: 8 * x.len() as u64, bytes: (streams * x.len() * x.dtype().bytes()) as u64 }
}

/// y = LayerNorm(x) over the last dimension.
///
/// # Errors
/// `x` holds integers, or gain or bias have another length than its rows.
pub fn layer_norm(tape: &Tape<'_>, x: &Var, norm: LayerNorm) -> Result<Var> {
    let dtype = check::float("layer_norm", x)?;
    norm.check(tape, "layer_norm", x)?;
    let mut y = tape.alloc(*x.shape(), dtype)?;
    let mut stats = tape.alloc([x.shape().rows_cols().0, 2], DType::F32)?;
    norm.forward(tape, x.value(), None, None, &mut y, &mut stats)?;
    tape.record_with_parameters(&[x], y, || LayerNormOp { norm, s: x.value().clone(), stats, residual: false })
}

/// y = LayerNorm(x + residual) over the last dimension.
///
/// # Errors
/// As [`layer_norm`]; and if the two differ in shape or type.
pub fn layer_norm_residual(tape: &Tape<'_>, x: &Var, residual: &Var, norm: LayerNorm) -> Result<Var> {
    let dtype = check::same_float("layer_norm_residual", &[x, residual])?;
    check::shape("layer_norm_residual", "the residual", residual, x.shape())?;
    norm.check(tape, "layer_norm_residual", x)?;
    let mut s = tape.alloc(*x.shape(), dtype)?;
    let mut y = tape.alloc(*x.shape(), dtype)?;
    let mut stats = tape.alloc([x.shape().rows_cols().0, 2], DType::F32)?;
    norm.forward(tape, x.value(), Some(residual.value()), Some(&mut s), &mut y, &mut stats)?;
    tape.record_with_parameters(&[x, residual], y, || LayerNormOp { norm, s, stats, residual: true })
}

struct LayerNormOp {
    norm: LayerNorm,
    s: Tensor,
    stats: Tensor,
    residual: bool,
}

impl Op for LayerNormOp {
    fn name(&self) -> &'static str {
        "layer_norm"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let mut ds = ctx.tape.alloc(*dy.shape(), dy.dtype())?;
        let outputs = NormOutputs { ds: &mut ds, copy: None, partial: None };
        self.norm.backward(ctx, (&self.s, &self.stats), &dy, outputs)?;
        if self.residual {
            ctx.accumulate_grad(1, ds.clone())?;
        }
        ctx.accumulate_grad(0, ds)
    }
}
