//! Tensors, memory, devices and gradients; knows nothing of ALBERT.
pub mod device;
mod error;
pub mod io;

pub use error::{EngineError, Result};
pub use kernels::{Cpu, CpuError, DType, Element, Isa, IsaKind, num::philox, roofline};
