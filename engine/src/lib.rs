//! Tensors, memory, devices and gradients; knows nothing of ALBERT.
//!
//! ```text
//! Workspace (device, arena, profiler) ──train──> Tape ──ops::linear(&tape, &x, ..)──> Var ──backward──> Gradients
//! ParamStore (values, packed panels)  ───────────┘                                            optim ──> ParamStore
//! ```
//! See `docs/engine.md` for how storage, tape and the memory plan work and how an operation is added.
#![deny(clippy::print_stdout, clippy::print_stderr)]
mod communicator;
pub mod device;
mod dtype;
mod error;
pub mod io;
pub mod memory;
pub mod nn;
pub mod ops;
pub mod optim;
pub mod param;
pub mod profile;
mod shape;
pub mod tape;
mod tensor;

pub use communicator::Communicator;
pub use device::Device;
pub use dtype::{DType, Float, Scalar};
pub use error::{EngineError, Result};
pub use kernels::{Cpu, CpuError, Element, Isa, IsaKind, num::philox, operation::Cost, roofline};
pub use param::{Gradients, Init, ParamBuilder, ParamId, ParamScope, ParamStore};
pub use shape::{MAX_RANK, Shape};
pub use tape::{BackwardContext, LeafGradients, Op, Tape, Var, WeightGradients, Workspace};
pub use tensor::Tensor;
