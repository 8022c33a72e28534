//! Tensors, memory, devices and gradients; knows nothing of ALBERT.
//!
//! ```text
//! Workspace (device, arena, profiler) ──train──> Tape ──ops::linear(&tape, &x, ..)──> Var ──backward──> Gradients
//! ParamStore (values, packed panels)  ───────────┘                                            optim ──> ParamStore
//! ```
//!
//! A net with one hidden layer, trained and used:
//!
//! ```
//! use engine::nn::{Graph, Linear, Training, Value};
//! use engine::{Device, ParamBuilder, Result, optim::{AdamConfig, OptimizerKind}};
//!
//! // 't is the lifetime of a step. A closure in a variable needs `nn::module`.
//! fn net<'t>(t: Graph<'t>, layers: &[Linear; 2], points: &[f32]) -> Result<Value<'t>> {
//!     t.input([points.len() / 2, 2], points)?.apply(&layers[0])?.gelu()?.apply(&layers[1])
//! }
//!
//! # fn main() -> Result<()> {
//! let (points, labels) = ([0., 0., 0., 1., 1., 0., 1., 1.], [0u32, 1, 1, 0]); // exclusive or
//! let mut params = ParamBuilder::new();
//! let layers = [Linear::new(&mut params.scope("l1"), 2, 8)?, Linear::new(&mut params.scope("l2"), 8, 2)?];
//! let device = Device::cpu()?;
//! let params = params.build(device.processor(), 0)?;
//! let mut training = Training::new(device, params, OptimizerKind::AdamW, AdamConfig::default())?;
//! for _ in 0..200 {
//!     training.step(0.05, |t| net(t, &layers, &points)?.cross_entropy(&t.input([4], &labels)?))?;
//! }
//! let logits = training.infer(|t| net(t, &layers, &points)?.value().to_vec())?;
//! let classes: Vec<bool> = logits.chunks(2).map(|row| row[1] > row[0]).collect();
//! assert_eq!(classes, [false, true, true, false]);
//! # Ok(())
//! # }
//! ```
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
//! crate with its gradient check. `docs/engine.md` has the list of operations, a `Cargo.toml` for a crate of your own, and
//! explains storage, tape and the memory plan.
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
