//! Layers that own their parameters, expressions without `&tape`, and a training loop in one call.
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
//! A layer is built in a [`ParamScope`](crate::ParamScope) and holds the ids of its parameters; the values are in the
//! [`ParamStore`](crate::ParamStore) that the [`ParamBuilder`](crate::ParamBuilder) becomes. [`Module::forward`] takes the
//! tape, so layers also serve operations and models written with [`crate::ops`]; [`Value`] holds it.

mod layers;
mod training;
mod value;

pub use crate::ops::LayerNorm;
pub use layers::{Embedding, Linear, Module};
pub use training::Training;
pub use value::{Graph, Value};
