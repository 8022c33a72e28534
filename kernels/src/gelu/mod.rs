//! GELU and ReLU with the bias that precedes them, and their derivatives.
//!
//! ```text
//! p = x + b      y = act(p)      dx = dy · act'(p)
//! ```
mod cases;
pub mod cuda;

pub use cases::OPERATION;
#[cfg(test)]
pub(crate) use cases::erf as erf64;
