//! Tensors, memory, devices and gradients; knows nothing of ALBERT.
//!
//! ```text
//! Workspace (device, arena, profiler) ──train──> Tape ──ops::linear(&tape, &x, ..)──> Var ──backward──> Gradients
//! ParamStore (values, packed panels)  ───────────┘                                            optim ──> ParamStore
//! ```
//!
//! A net with one hidden layer:
//!
//! ```
//! use engine::{Device, ParamBuilder, nn::{Linear, Training}, optim::{AdamConfig, OptimizerKind}};
//!
//! # fn main() -> engine::Result<()> {
//! let (points, labels) = ([0., 0., 0., 1., 1., 0., 1., 1.], [0u32, 1, 1, 0]); // exclusive or
//! let mut net = ParamBuilder::new();
//! let l1 = Linear::new(&mut net.scope("l1"), 8, 2)?;
//! let l2 = Linear::new(&mut net.scope("l2"), 2, 8)?;
//! let device = Device::cpu()?;
//! let params = net.build(device.processor(), 0)?;
//! let mut training = Training::new(device, params, OptimizerKind::AdamW, AdamConfig::default())?;
//! let mut loss = f32::INFINITY;
//! for _ in 0..200 {
//!     loss = training.step(0.05, |t| {
//!         let h = t.input([4, 2], &points)?.apply(&l1)?.gelu()?;
//!         h.apply(&l2)?.cross_entropy(&t.input([4], &labels)?)
//!     })?;
//! }
//! assert!(loss < 0.01, "{loss}");
//! # Ok(())
//! # }
//! ```
//!
//! [`nn`] has layers, variables with methods and the training loop; [`ops`] the operations, as functions of a [`Tape`];
//! [`optim`] optimizers and schedules; [`io`] safetensors and atomic files; [`profile`] the cost of every kernel;
//! [`memory`] the memory planner; [`device`] CPU, GPU and simulated GPU.
//!
//! `examples/`: a small net, the same loop written out, an operation of another crate with its gradient check.
//! `docs/engine.md` explains storage, tape and the memory plan.
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
mod shape;
pub mod tape;
mod tensor;

pub use communicator::{Communicator, GpuRanks, GradientPath, LaneSums, Lanes, Start};
pub use device::Device;
pub use dtype::{DType, Float, Scalar};
pub use error::{EngineError, Result};
pub use kernels::tiles::{TileKind, Tiles};
pub use kernels::{
    Cpu, CpuError, Element, Isa, IsaKind, OPERATIONS, bits, choose_threads, num::philox, operation::Cost, roofline,
};
pub use param::{Gradients, Init, ParamBuilder, ParamId, ParamScope, ParamStore};
pub use precision::Precision;
pub use shape::{MAX_RANK, Shape};
pub use tape::{BackwardContext, LeafGradients, Op, Tape, Var, WeightGradients, Workspace};
pub use tensor::Tensor;
