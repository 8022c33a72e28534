//! Products on a GPU: tensor cores of Ampere (`sm80`) and Hopper (`sm90`), f32 operands (`simt`), split-K.

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
