//! Launches of the kernels on tensors in GPU memory: methods of `device::Gpu`. `product` chooses among the products.

mod kernel;
mod product;

pub(crate) use kernel::{aligned, storage};
pub(crate) use product::Operands;
