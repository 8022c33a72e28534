//! Sums to a single number: sum, mean, mean squared error.
//!
//! ```text
//! y = Σ x          dx = dy               y = Σ (x - t)² / n        dx = 2·(x - t)·dy / n
//! y = Σ x / n      dx = dy / n
//! ```
//!
//! Results are f32 whatever the storage.
use super::check;
use crate::{
    device::Device,
    dtype::{DType, floats},
    error::{EngineError, Result},
    shape::Shape,
    tape::{BackwardContext, Op, Tape, Var, moved},
    tensor::Tensor,
};
use kernels::{
    Element,
    elementwise::{self, Binary, Broadcast},
};
use kernels_cuda::elementwise::Function;

/// The sum of all elements, f32.
///
/// # Errors
/// `x` holds integers.
pub fn sum(tape: &Tape<'_>, x: &Var) -> Result<Var> {
    scaled_sum(tape, x, "sum", 1.0)
}

/// The mean of all elements, f32.
///
/// # Errors
/// `x` holds integers or nothing.
pub fn mean(tape: &Tape<'_>, x: &Var) -> Result<Var> {
    if x.value().is_empty() {
        return Err(EngineError::shape("mean", format!("{:?} has no elements", x.shape())));
    }
    scaled_sum(tape, x, "mean", 1.0 / x.value().len() as f32)
}

fn scaled_sum(tape: &Tape<'_>, x: &Var, name: &'static str, factor: f32) -> Result<Var> {
    let dtype = check::float(name, x)?;
    let mut y = tape.alloc([], DType::F32)?;
    let value = x.value();
    tape.launch_on(name, moved(value.len() * dtype.bytes()), |device| match device {
        Device::Cpu(cpu) => {
            floats!(dtype, X => {
                let sum = kernels::reduce::sum(cpu, value.slice::<X>());
                y.slice_mut::<f32>()[0] = (sum * f64::from(factor)) as f32;
            });
            Ok(())
        }
        Device::Cuda(gpu) => gpu.scaled_sum(value, factor, &mut y),
    })?;
    let shape = *x.shape();
    tape.record(&[x], y, || ScaledSum { name, factor, shape, dtype })
}

struct ScaledSum {
    name: &'static str,
    factor: f32,
    shape: Shape,
    dtype: DType,
}

impl Op for ScaledSum {
    fn name(&self) -> &'static str {
        self.name
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let mut dx = ctx.tape.alloc(self.shape, self.dtype)?;
        ctx.tape.launch_on("sum.backward", moved(dx.len() * dx.dtype().bytes()), |device| match device {
            Device::Cpu(_) => {
                let value = dy.slice::<f32>()[0] * self.factor;
                floats!(self.dtype, X => dx.slice_mut::<X>().fill(X::from_f32(value)));
                Ok(())
            }
            Device::Cuda(gpu) => gpu.repeat(&dy, self.factor, &mut dx),
        })?;
        ctx.accumulate_grad(0, dx)
    }
}

/// The mean of (x - target)² over all elements, f32.
///
/// # Errors
/// The two differ in shape or type, or have no elements.
pub fn mean_squared_error(tape: &Tape<'_>, x: &Var, target: &Var) -> Result<Var> {
    const NAME: &str = "mean_squared_error";
    let dtype = check::same_float(NAME, &[x, target])?;
    check::shape(NAME, "the target", target, x.shape())?;
    if x.value().is_empty() {
        return Err(EngineError::shape(NAME, format!("{:?} has no elements", x.shape())));
    }
    let mut y = tape.alloc([], DType::F32)?;
    let mut difference = tape.alloc(*x.shape(), dtype)?;
    let (a, b) = (x.value(), target.value());
    tape.launch_on(NAME, moved(3 * a.len() * dtype.bytes()), |device| match device {
        Device::Cpu(cpu) => {
            floats!(dtype, X => {
                let difference = difference.slice_mut::<X>();
                elementwise::binary(cpu, Binary::Sub, Broadcast::Full, 1, [a.slice::<X>(), b.slice::<X>()], difference);
                let sum = kernels::reduce::sum_of_squares(cpu, difference);
                y.slice_mut::<f32>()[0] = (sum / difference.len() as f64) as f32;
            });
            Ok(())
        }
        Device::Cuda(gpu) => {
            let minus = Function::Binary(Binary::Sub, Broadcast::Full);
            gpu.map(minus, &[a.address(), b.address()], None, &mut difference)?;
            gpu.scaled_sum_of_squares(&difference, 1.0 / a.len() as f32, &mut y)
        }
    })?;
    tape.record(&[x, target], y, || SquaredError { difference })
}

struct SquaredError {
    difference: Tensor,
}

impl Op for SquaredError {
    fn name(&self) -> &'static str {
        "mean_squared_error"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let Self { difference } = *self;
        for (input, sign) in [(0, 2.0f32), (1, -2.0)] {
            if !ctx.needs_grad(input) {
                continue;
            }
            let mut dx = ctx.tape.alloc(*difference.shape(), difference.dtype())?;
            let bytes = 2 * dx.len() * dx.dtype().bytes();
            let mut factor = ctx.tape.alloc([], dx.dtype())?;
            ctx.tape.launch_on("mean_squared_error.backward", moved(bytes), |device| match device {
                Device::Cpu(cpu) => {
                    let factor = sign * dy.slice::<f32>()[0] / difference.len() as f32;
                    floats!(difference.dtype(), X => {
                        elementwise::scale(cpu, factor, difference.slice::<X>(), dx.slice_mut::<X>());
                    });
                    Ok(())
                }
                Device::Cuda(gpu) => {
                    gpu.repeat(&dy, sign / difference.len() as f32, &mut factor)?;
                    let times = Function::Binary(Binary::Mul, Broadcast::Scalar);
                    gpu.map(times, &[difference.address(), factor.address()], None, &mut dx)
                }
            })?;
            ctx.accumulate_grad(input, dx)?;
        }
        Ok(())
    }
}
