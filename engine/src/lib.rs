#![doc = include_str!("../README.md")]
//!
//! Shapes in docs: `[T, H]` is T rows of H elements, row-major; `[..]` any dimensions, `[]` a number. B sequences (or a batch),
//! S tokens each, T tokens in all, H hidden size, A attention heads, E embedding size, V vocabulary, C classes or columns,
//! R rows, M picked rows, N points; m, n, k the sizes of a product [m, k]·[k, n]; W a weight, x an input, y an output,
//! dx the gradient of the loss by x.
//!
//! [`nn`] has layers, variables with methods and the training loop; [`ops`] the operations, as functions of a [`Tape`];
//! [`optim`] optimizers and schedules; [`io`] safetensors and atomic files; [`profile`] the cost of every kernel;
//! [`memory`] the memory planner; [`device`] CPU, GPU and simulated GPU.
//!
//! `examples/`: two spirals from training to a file and back; a small net; the same loop written out; an operation of another
//! crate with its gradient check; one whose kernel is PTX of its own. `docs/engine.md` has the list of operations, a `Cargo.toml`
//! for a crate of your own, and explains storage, tape and the memory plan.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]
mod communicator;
pub mod device;
mod dtype;
mod error;
pub mod io;
mod launch;
pub mod memory;
pub mod nn;
pub mod ops;
pub mod optim;
pub mod param;
mod precision;
pub mod profile;
mod reading;
mod shape;
#[cfg(test)]
mod shared_tests;
pub mod tape;
mod tensor;
pub mod trace;

pub use communicator::{Communicator, GpuRanks, GradientPath, LaneSums, Lanes, Start};
pub use device::Device;
pub use dtype::{DType, Float, Scalar};
pub use error::{EngineError, Result};
pub use kernels::tiles::{TileKind, Tiles};
pub use kernels::{Cost, Cpu, CpuError, Element, Isa, IsaKind, choose_threads, num::philox, roofline};
pub use param::{GradientNorm, Gradients, Init, ParamBuilder, ParamId, ParamScope, ParamStore};
pub use precision::Precision;
pub use reading::Reading;
pub use shape::{MAX_RANK, Shape};
pub use tape::{BackwardContext, LeafGradients, List, Op, Tape, Var, WeightGradients, Workspace};
pub use tensor::Tensor;
