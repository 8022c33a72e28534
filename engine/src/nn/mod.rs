//! Layers that own their parameters, expressions without `&tape`, and a training loop in one call.
//!
//! A layer is built in a [`ParamScope`](crate::ParamScope) and holds the ids of its parameters; the values are in the
//! [`ParamStore`](crate::ParamStore) that the [`ParamBuilder`](crate::ParamBuilder) becomes. [`Module::forward`] takes the
//! tape, so layers also serve operations and models written with [`crate::ops`]; [`Value`] holds it.

mod layers;
mod net;
mod training;
mod value;

pub use crate::ops::LayerNorm;
pub use layers::{Embedding, Linear, Module};
pub use net::module;
pub use training::Training;
pub use value::{Graph, Value};
