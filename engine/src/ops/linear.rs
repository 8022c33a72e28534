//! Dense layer.
//!
//! ```text
//! y = x·Wᵀ + b        W [N, K] as stored, x [.., K], y [.., N]
//! dx = dy·W           dW += dyᵀ·x        db += Σ_rows dy
//! ```
//!
//! The weight is read from panels that are packed once per optimizer step (see [`crate::param`]). Several weights that are
//! contiguous in the store are one wider layer: query, key and value are one GEMM with N = 3H.
//! Cost: 2·T·N·K FLOPs forward, twice that backward.
use super::check;
use crate::{
    device::{Device, Gpu},
    dtype::{DType, floats},
    error::{EngineError, Result},
    launch::Operands,
    param::{ParamId, Side},
    tape::{BackwardContext, Op, Tape, Var},
    tensor::Tensor,
};
use kernels::{
    Cost,
    activation::Activation,
    gemm::{Beta, Epilogue, Gemm, PackedB, Precision, gemm, gemm_packed},
    int8,
};
use kernels_cuda::arguments::Address;
use std::{ops::Range, sync::Arc};

/// A dense layer's parameters as one matrix [n, k] and one vector `[n]`.
#[derive(Clone, Debug)]
pub(crate) struct Dense {
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) weight: Range<usize>,
    pub(crate) bias: Option<Range<usize>>,
}

impl Dense {
    /// Finds the parameters; `weights` and `biases` are contiguous.
    pub(crate) fn new(
        tape: &Tape<'_>,
        operation: &'static str,
        weights: &[ParamId],
        biases: &[ParamId],
    ) -> Result<Self> {
        let params = tape.params();
        let first = weights.first().ok_or_else(|| EngineError::shape(operation, "a weight was expected"))?;
        let &[_, k] = &params.shape(*first)[..] else {
            let problem = format!("{operation} needs shape [out, in], and it is {:?}", params.shape(*first));
            return Err(EngineError::parameter(params.name(*first), problem));
        };
        let weight = params.contiguous_range(operation, weights, Some(k))?;
        let n = weights.iter().map(|&id| params.shape(id)[0]).sum();
        let bias = if biases.is_empty() { None } else { Some(params.contiguous_range(operation, biases, None)?) };
        if let Some(bias) = bias.as_ref().filter(|bias| bias.len() != n) {
            let problem = format!("{operation} has {n} outputs, and the bias has {} values", bias.len());
            return Err(EngineError::parameter(params.name(biases[0]), problem));
        }
        Ok(Self { n, k, weight, bias })
    }

    /// Refuses an input of another width.
    pub(crate) fn check_input(&self, tape: &Tape<'_>, operation: &str, weight: ParamId, x: &Var) -> Result<()> {
        if x.shape().last() == Some(&self.k) {
            return Ok(());
        }
        let problem = format!(
            "x is {:?} but the weight is [{}, {}]; the last size of x must be {}",
            x.shape(),
            self.n,
            self.k,
            self.k
        );
        Err(EngineError::shape(format!("{operation} {}", tape.params().name(weight)), problem))
    }

    pub(crate) fn cost(&self, rows: usize, dtype: DType) -> Cost {
        let spec = Gemm::nt(rows, self.n, self.k);
        Cost { flops: spec.flops(), bytes: (rows * (self.n + self.k) * dtype.bytes() + self.n * self.k * 4) as u64 }
    }

    /// y = epilogue(x·Wᵀ)
    pub(crate) fn forward(
        &self,
        tape: &Tape<'_>,
        name: &'static str,
        x: &Tensor,
        epilogue: LayerEpilogue<'_>,
        y: &mut Tensor,
    ) -> Result<()> {
        let (rows, _) = x.shape().rows_cols();
        let precision = tape.precision(x.dtype());
        let panels = self.panels(tape, precision, Side::Forward);
        tape.launch_on(name, self.cost(rows, x.dtype()), |device| match device {
            Device::Cpu(cpu) => {
                let panels = panels.expect("packed for the CPU");
                let spec = Gemm::nt(rows, self.n, self.k).with_precision(precision);
                let values = tape.params().all_values();
                floats!(x.dtype(), X => {
                    let epilogue = epilogue.map(|bias| &values[bias], |x| x.slice::<X>(), |x| x.slice_mut::<X>());
                    gemm_packed(cpu, &spec, x.slice::<X>(), &panels, y.slice_mut::<X>(), epilogue);
                });
                Ok(())
            }
            Device::Cuda(gpu) => {
                let values = tape.params().on_gpu(gpu)?.address();
                let bias = |range: Range<usize>| values.element(range.start, 4);
                let epilogue = epilogue.map(bias, Tensor::address, Tensor::address_mut);
                self.product(tape, gpu, &Gemm::nt(rows, self.n, self.k), x, y, &epilogue)
            }
        })
    }

    /// y = act(x·Wᵀ + b) on the CPU, in a step without gradients; in int8 if the step is.
    pub(crate) fn infer(
        &self,
        tape: &Tape<'_>,
        name: &'static str,
        x: &Tensor,
        activation: Option<Activation>,
        y: &mut Tensor,
    ) -> Result<()> {
        let epilogue = match activation {
            Some(activation) => Epilogue::bias_activation(self.bias(), activation, None),
            None => self.plain(),
        };
        if !tape.multiplies_in_int8() || x.dtype() != DType::F32 {
            return self.forward(tape, name, x, epilogue, y);
        }
        let (rows, _) = x.shape().rows_cols();
        let weight = tape.params().quantized(tape.cpu(), self.weight.clone(), self.k);
        let mut scratch = tape.alloc([weight.scratch_len(rows)], DType::U32)?;
        tape.launch(name, self.cost(rows, x.dtype()), |cpu| {
            let values = tape.params().all_values();
            let epilogue = epilogue.map(|bias| &values[bias], |x| x.slice::<f32>(), |x| x.slice_mut::<f32>());
            let (y, scratch) = (y.slice_mut::<f32>(), scratch.slice_mut::<u32>());
            int8::linear(cpu, x.slice::<f32>(), &weight, y, epilogue, scratch);
        })
    }

    /// The panels of the weight, on the CPU; a GPU reads the weight in place. Called outside of a launch, so that a dry run
    /// packs them and no step allocates.
    pub(crate) fn panels(&self, tape: &Tape<'_>, precision: Precision, side: Side) -> Option<Arc<PackedB>> {
        let side = if side == Side::Forward && tape.rounds_weights() { Side::Rounded } else { side };
        match tape.device() {
            Device::Cpu(cpu) => Some(tape.params().packed(cpu, precision, self.weight.clone(), self.k, side)),
            Device::Cuda(_) => None,
        }
    }

    /// The product of `a` with the weight on the GPU, in the storage of `a`.
    fn product(
        &self,
        tape: &Tape<'_>,
        gpu: &Gpu,
        spec: &Gemm,
        a: &Tensor,
        c: &mut Tensor,
        epilogue: &Epilogue<Address>,
    ) -> Result<()> {
        let weights = tape.params().on_gpu_as(gpu, a.dtype())?;
        let operands = Operands {
            a: a.address(),
            b: weights.address().element(self.weight.start, a.dtype().bytes()),
            c: c.address_mut(),
            inputs: a.dtype(),
            output: c.dtype(),
        };
        gpu.product(spec, &operands, epilogue)
    }

    /// Range of the bias in the parameters; a layer that more than its bias follows has one.
    pub(crate) fn bias(&self) -> Range<usize> {
        self.bias.clone().expect("the layer has a bias")
    }

    /// The epilogue that adds the bias, if there is one.
    pub(crate) fn plain<'a>(&self) -> LayerEpilogue<'a> {
        self.bias.clone().map_or(Epilogue::NONE, Epilogue::bias)
    }

    /// dx = (dy·W) · act'(pre)
    pub(crate) fn backward_input_activation(
        &self,
        tape: &Tape<'_>,
        name: &'static str,
        dy: &Tensor,
        (activation, pre): (Activation, &Tensor),
        dx: &mut Tensor,
    ) -> Result<()> {
        let rows = dy.shape().rows_cols().0;
        let precision = tape.precision(dy.dtype());
        let panels = self.panels(tape, precision, Side::Backward);
        let spec = Gemm::nn(rows, self.k, self.n).with_precision(precision);
        tape.launch_on(name, self.cost(rows, dy.dtype()), |device| match device {
            Device::Cpu(cpu) => {
                let panels = panels.expect("packed for the CPU");
                floats!(dy.dtype(), X => {
                    let epilogue = Epilogue::activation_backward(activation, pre.slice::<X>());
                    gemm_packed(cpu, &spec, dy.slice::<X>(), &panels, dx.slice_mut::<X>(), epilogue);
                });
                Ok(())
            }
            Device::Cuda(gpu) => {
                let epilogue = Epilogue::activation_backward(activation, pre.address());
                self.product(tape, gpu, &spec, dy, dx, &epilogue)
            }
        })
    }

    /// dx = dy·W
    pub(crate) fn backward_input(
        &self,
        tape: &Tape<'_>,
        name: &'static str,
        dy: &Tensor,
        dx: &mut Tensor,
    ) -> Result<()> {
        self.product_with_weight(tape, name, dy, dx, Beta::Zero)
    }

    /// dx += dy·W
    pub(crate) fn add_backward_input(
        &self,
        tape: &Tape<'_>,
        name: &'static str,
        dy: &Tensor,
        dx: &mut Tensor,
    ) -> Result<()> {
        self.product_with_weight(tape, name, dy, dx, Beta::One)
    }

    fn product_with_weight(
        &self,
        tape: &Tape<'_>,
        name: &'static str,
        dy: &Tensor,
        dx: &mut Tensor,
        beta: Beta,
    ) -> Result<()> {
        let (rows, _) = dy.shape().rows_cols();
        let precision = tape.precision(dy.dtype());
        let panels = self.panels(tape, precision, Side::Backward);
        let spec = Gemm { beta, ..Gemm::nn(rows, self.k, self.n) }.with_precision(precision);
        tape.launch_on(name, self.cost(rows, dy.dtype()), |device| match device {
            Device::Cpu(cpu) => {
                let panels = panels.expect("packed for the CPU");
                floats!(dy.dtype(), X => {
                    gemm_packed(cpu, &spec, dy.slice::<X>(), &panels, dx.slice_mut::<X>(), Epilogue::NONE);
                });
                Ok(())
            }
            Device::Cuda(gpu) => self.product(tape, gpu, &spec, dy, dx, &Epilogue::NONE),
        })
    }

    /// dW += dyᵀ·x, db += Σ dy
    pub(crate) fn backward_weight(
        &self,
        ctx: &mut BackwardContext<'_, '_>,
        name: &'static str,
        dy: &Tensor,
        x: &Tensor,
    ) -> Result<()> {
        let (rows, _) = x.shape().rows_cols();
        let flat = &mut ctx.params.flat;
        let spec = Gemm::tn(self.n, self.k, rows).accumulate().with_precision(ctx.tape.precision(x.dtype()));
        ctx.tape.launch_on(name, self.cost(rows, x.dtype()), |device| match device {
            Device::Cpu(cpu) => {
                let dw = &mut flat.slice_mut::<f32>()[self.weight.clone()];
                floats!(x.dtype(), X => gemm(cpu, &spec, dy.slice::<X>(), x.slice::<X>(), dw, Epilogue::NONE));
                Ok(())
            }
            Device::Cuda(gpu) => gpu.product(
                &spec,
                &Operands {
                    a: dy.address(),
                    b: x.address(),
                    c: flat.address_mut().element(self.weight.start, 4),
                    inputs: x.dtype(),
                    output: DType::F32,
                },
                &Epilogue::NONE,
            ),
        })?;
        if let Some(bias) = &self.bias {
            super::column_sums(ctx.tape, dy, &mut ctx.params.flat, bias.clone())?;
        }
        Ok(())
    }
}

/// Epilogue fused into the GEMM of a layer; its bias is a range of the parameters.
pub(crate) type LayerEpilogue<'a> = Epilogue<Range<usize>, &'a Tensor, &'a mut Tensor>;

/// y = x·Wᵀ + b over the last dimension of `x`; see the module.
///
/// # Errors
/// Sizes do not fit, or `x` holds integers.
pub fn linear(tape: &Tape<'_>, x: &Var, weight: ParamId, bias: Option<ParamId>) -> Result<Var> {
    let dtype = check::float("linear", x)?;
    let dense = Dense::new(tape, "linear", &[weight], bias.as_slice())?;
    dense.check_input(tape, "linear", weight, x)?;
    let mut y = tape.alloc(x.shape().with_last(dense.n), dtype)?;
    dense.forward(tape, "linear", x.value(), dense.plain(), &mut y)?;
    tape.record_with_parameters(&[x], y, || Linear { dense, x: x.value().clone() })
}

struct Linear {
    dense: Dense,
    x: Tensor,
}

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        self.dense.backward_weight(ctx, "linear.backward.weight", &dy, &self.x)?;
        if ctx.needs_grad(0) {
            let mut dx = ctx.tape.alloc(*self.x.shape(), self.x.dtype())?;
            self.dense.backward_input(ctx.tape, "linear.backward.input", &dy, &mut dx)?;
            ctx.accumulate_grad(0, dx)?;
        }
        Ok(())
    }
}
