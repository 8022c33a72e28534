//! Launches of the kernels on tensors in GPU memory.

mod kernel;
mod product;

pub(crate) use kernel::{aligned, storage};
pub(crate) use product::Operands;
