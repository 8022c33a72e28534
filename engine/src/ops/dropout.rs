//! Dropout: each element is zero with the probability `rate`, realized in 256ths, else divided by one minus it.
//!
//! ```text
//! y = mask·x       dx = mask·dy
//! ```
//!
//! The mask is a pure function of (seed, site, row, column), so it is computed again backward instead of being stored, and
//! is the same for any number of threads. A fresh mask each step needs a seed that the step is mixed into.
use super::check;
use crate::{
    device::Device,
    dtype::floats,
    error::{EngineError, Result},
    launch::storage,
    tape::{BackwardContext, Op, Tape, Var},
    tensor::Tensor,
};
use kernels::{Cost, dropout::Dropout};
use kernels_cuda::dropout::{Apply, ApplyArgs};

pub(super) fn check_rate(operation: &str, dropout: Option<Dropout>) -> Result<()> {
    match dropout {
        Some(Dropout { rate, .. }) if !(0.0..1.0).contains(&rate) => {
            Err(EngineError::shape(operation, format!("a dropout rate lies in [0, 1), and this is {rate}")))
        }
        _ => Ok(()),
    }
}

/// Drops elements of `x`, seen as rows of its last dimension; `None` drops nothing and costs nothing.
///
/// # Errors
/// `x` holds integers, or the rate is not in [0, 1).
pub fn dropout(tape: &Tape<'_>, x: &Var, dropout: Option<Dropout>) -> Result<Var> {
    check::float("dropout", x)?;
    check_rate("dropout", dropout)?;
    let Some(dropout) = dropout.filter(|dropout| dropout.rate > 0.0) else { return Ok(x.clone()) };
    let mut y = tape.alloc(*x.shape(), x.dtype())?;
    masked(tape, &dropout, x.value(), &mut y)?;
    tape.record(&[x], y, || DropoutOp { dropout })
}

/// y = x with elements dropped and the others scaled.
pub(super) fn masked(tape: &Tape<'_>, dropout: &Dropout, x: &Tensor, y: &mut Tensor) -> Result<()> {
    let columns = x.shape().rows_cols().1;
    let cost = Cost { flops: 40 * x.len() as u64, bytes: (2 * x.len() * x.dtype().bytes()) as u64 };
    tape.launch_on("dropout", cost, |device| match device {
        Device::Cpu(cpu) => {
            floats!(x.dtype(), X => {
                kernels::dropout::apply(cpu, dropout, columns, x.slice::<X>(), y.slice_mut::<X>());
            });
            Ok(())
        }
        Device::Cuda(gpu) => {
            let kernel = Apply::new(storage(x.dtype()), columns);
            let rows = x.shape().rows_cols().0;
            let (x, y) = (x.address(), y.address_mut());
            let arguments = ApplyArgs { x, y, dropout: *dropout, rows, columns };
            gpu.run(&kernel, kernel.launch(rows, columns), &arguments)
        }
    })
}

struct DropoutOp {
    dropout: Dropout,
}

impl Op for DropoutOp {
    fn name(&self) -> &'static str {
        "dropout"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let mut dx = ctx.tape.alloc(*dy.shape(), dy.dtype())?;
        masked(ctx.tape, &self.dropout, &dy, &mut dx)?;
        ctx.accumulate_grad(0, dx)
    }
}
