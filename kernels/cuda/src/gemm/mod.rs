//! Products on a GPU: tensor cores of Ampere (`sm80`) and Hopper (`sm90`), f32 operands (`simt`), split-K.
//!
//! | module | content |
//! |---|---|
//! | `tiles` | sizes of tiles, and their cost |
//! | `position` | place of a block and of a lane in C |
//! | `copy` | copies of operands to shared memory |
//! | `epilogue` | bias, activation or its derivative, dropout and residual before C is stored |
//! | `sm90_mainloop` | pipeline of Hopper's products |

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
