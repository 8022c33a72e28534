//! Products on a GPU: tensor cores of Ampere (`sm80`) and Hopper (`sm90`), f32 operands (`simt`), split-K.
//!
//! `tiles` has the sizes of tiles; `position` the place of a block and of a lane, `copy` what moves operands to shared
//! memory, `epilogue` what follows the product, `sm90_mainloop` the pipeline.

pub(crate) mod copy;
pub(crate) mod epilogue;
pub(crate) mod position;
mod simt;
pub mod sm80;
pub mod sm90;
pub(crate) mod sm90_mainloop;
pub mod split_k;
pub mod tiles;

pub use position::ProductArgs;
pub use sm90_mainloop::HopperProductArgs;
