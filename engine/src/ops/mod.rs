//! Operations: shape rules, launch, backward; a file for each, or for a family (GELU and other functions of one element:
//! `elementwise`).
//!
//! Every function checks shapes and types first and returns an error that names the operation and the shapes if they
//! do not match; then it launches its kernel; then it records its backward pass, if a gradient has to pass.
//!
//! A product and its gradient, without layers:
//!
//! ```
//! use engine::{Device, Init, ParamBuilder, Workspace, ops};
//!
//! let mut builder = ParamBuilder::new();
//! let weight = builder.add("weight", [1, 2], Init::Ones)?;
//! let device = Device::cpu()?;
//! let params = builder.build(device.processor(), 0)?;
//! let mut gradients = params.gradients(&device)?;
//! let mut workspace = Workspace::new(device);
//! let tape = workspace.train(&params, None);
//! let x = tape.input([1, 2], &[3.0f32, 4.0])?;
//! let y = ops::linear(&tape, &x, weight, None)?; // [1, 1]: 3 + 4
//! let loss = ops::sum(&tape, &y)?;
//! tape.backward(&loss, &mut gradients)?;
//! assert_eq!((tape.item(&loss)?, gradients.get(weight)), (7.0, &[3.0, 4.0][..]));
//! # Ok::<(), engine::EngineError>(())
//! ```
mod arithmetic;
mod attention;
mod check;
mod dropout;
mod elementwise;
mod embedding;
mod encoder_layer;
mod expand;
mod linear;
mod loss;
mod matmul;
mod norm;
mod projection_on_gpu;
mod reduce;
mod sequence_loss;
mod softmax;
mod view;

pub use arithmetic::{add, div, mul, sub};
pub use attention::{Attention, Sequences, attention};
pub use dropout::dropout;
pub use elementwise::{Activation, activation, exp, log, relu, scale, sigmoid, tanh};
pub use embedding::{embedding, embedding_sum, gather_rows};
pub use encoder_layer::{
    EncoderLayer, LayerParams, Recompute, SharedLayerBackward, encoder_layer, repeated_encoder_layer,
};
pub use expand::expand;
pub use kernels::dropout::Dropout;
pub use linear::linear;
pub use loss::{CrossEntropyOutput, LossReading, cross_entropy, projected_cross_entropy};
pub use matmul::{Transpose, matmul};
pub use norm::{LayerNorm, layer_norm, layer_norm_residual};
pub use reduce::{mean, mean_squared_error, sum};
pub use sequence_loss::sequence_cross_entropy;
pub use softmax::softmax;
pub use view::{concat, reshape, slice, transpose};

use crate::{
    device::Device,
    dtype::{DType, floats},
    error::Result,
    tape::{Tape, moved},
    tensor::Tensor,
};
use elementwise::column_sums;
use kernels::Element;

/// Keeps the dtype list in one place for messages.
pub(crate) const FLOATS: [DType; 2] = [DType::F32, DType::Bf16];

/// `sum += x` for one row.
fn add_row<X: Element>(sum: &mut [X], x: &[X]) {
    for (sum, x) in sum.iter_mut().zip(x) {
        *sum = X::from_f32(sum.to_f32() + x.to_f32());
    }
}

/// `x` stored as `dtype`; itself if it is already.
fn cast(tape: &Tape<'_>, x: Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype {
        return Ok(x);
    }
    let mut y = tape.alloc(*x.shape(), dtype)?;
    tape.launch_on("cast", moved(x.len() * (x.dtype().bytes() + dtype.bytes())), |device| match device {
        Device::Cpu(cpu) => {
            floats!(x.dtype(), X => floats!(dtype, Y => {
                kernels::elementwise::cast(cpu, x.slice::<X>(), y.slice_mut::<Y>());
            }));
            Ok(())
        }
        Device::Cuda(gpu) => gpu.cast(&x, &mut y),
    })?;
    Ok(y)
}

#[cfg(test)]
mod bf16_tests;
#[cfg(test)]
mod broadcast_tests;
#[cfg(test)]
mod gpu_model_tests;
#[cfg(test)]
mod gpu_tests;
#[cfg(test)]
mod gradient_check;
#[cfg(test)]
mod inference_tests;
#[cfg(test)]
mod layer_tests;
#[cfg(test)]
mod shared_layer_tests;
#[cfg(test)]
mod tests;
