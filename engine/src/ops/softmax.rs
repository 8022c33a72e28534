//! Softmax over the last dimension.
//!
//! ```text
//! y_j = exp(x_j - max x) / Σ_i exp(x_i - max x)        dx = y·(dy - Σ_j dy_j·y_j)
//! ```
use super::check;
use crate::{
    dtype::floats,
    error::{EngineError, Result},
    tape::{Op, Pass, Tape, Var},
    tensor::Tensor,
};
use kernels::{operation::Cost, softmax as kernel};

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
    tape.launch("softmax", cost(input, 2), |cpu| {
        floats!(dtype, X => kernel::forward(cpu, cols, input.slice::<X>(), y.slice_mut::<X>()));
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
    fn backward(self: Box<Self>, dy: Tensor, pass: &mut Pass<'_, '_>) -> Result<()> {
        let mut dx = pass.tape.alloc(*dy.shape(), dy.dtype())?;
        let cols = dy.shape().rows_cols().1;
        pass.tape.launch("softmax.backward", cost(&dy, 3), |cpu| {
            floats!(dy.dtype(), X => {
                kernel::backward(cpu, cols, self.y.slice::<X>(), dy.slice::<X>(), dx.slice_mut::<X>());
            });
        })?;
        pass.give(0, dx)
    }
}
