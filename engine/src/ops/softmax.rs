//! Softmax over the last dimension.
//!
//! ```text
//! y_j = exp(x_j - max x) / Σ_i exp(x_i - max x)        dx = y·(dy - Σ_j dy_j·y_j)
//! ```
use super::check;
use crate::{
    device::Device,
    dtype::floats,
    error::{EngineError, Result},
    launch::storage,
    tape::{BackwardContext, Op, Tape, Var},
    tensor::Tensor,
};
use kernels::{Cost, softmax as kernel};
use kernels_cuda::program;
use kernels_cuda::softmax::{BackwardArgs, ForwardArgs, Softmax as SoftmaxKernel};

fn cost(x: &Tensor, streams: usize) -> Cost {
    Cost { flops: 20 * x.len() as u64, bytes: (streams * x.len() * x.dtype().bytes()) as u64 }
}

/// Softmax of each row.
///
/// # Errors
/// `x` holds integers or is a single number.
pub fn softmax(tape: &Tape<'_>, x: &Var) -> Result<Var> {
    let dtype = check::float("softmax", x)?;
    if x.shape().is_empty() {
        return Err(EngineError::shape("softmax", "a single number has no rows"));
    }
    let mut y = tape.alloc(*x.shape(), dtype)?;
    let input = x.value();
    let cols = x.shape().rows_cols().1;
    tape.launch_on("softmax", cost(input, 2), |device| match device {
        Device::Cpu(cpu) => {
            floats!(dtype, X => kernel::forward(cpu, cols, input.slice::<X>(), y.slice_mut::<X>()));
            Ok(())
        }
        Device::Cuda(gpu) => {
            let (rows, columns) = y.shape().rows_cols();
            let kernel = SoftmaxKernel::new(program::Pass::Forward, storage(dtype), columns);
            let arguments = ForwardArgs { x: input.address(), y: y.address_mut(), rows, columns };
            gpu.run(&kernel, kernel.launch(rows, columns), &arguments)
        }
    })?;
    let saved = y.clone();
    tape.record(&[x], y, || Softmax { y: saved })
}

struct Softmax {
    y: Tensor,
}

impl Op for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let mut dx = ctx.tape.alloc(*dy.shape(), dy.dtype())?;
        let cols = dy.shape().rows_cols().1;
        ctx.tape.launch_on("softmax.backward", cost(&dy, 3), |device| match device {
            Device::Cpu(cpu) => {
                floats!(dy.dtype(), X => {
                    kernel::backward(cpu, cols, self.y.slice::<X>(), dy.slice::<X>(), dx.slice_mut::<X>());
                });
                Ok(())
            }
            Device::Cuda(gpu) => {
                let (rows, columns) = dx.shape().rows_cols();
                let kernel = SoftmaxKernel::new(program::Pass::Backward, storage(dx.dtype()), columns);
                let [y, dy, dx] = [self.y.address(), dy.address(), dx.address_mut()];
                gpu.run(&kernel, kernel.launch(rows, columns), &BackwardArgs { y, dy, dx, rows, columns })
            }
        })?;
        ctx.accumulate_grad(0, dx)
    }
}
