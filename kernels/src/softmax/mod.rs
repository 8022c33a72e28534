//! Softmax over the last dimension.
//!
//! ```text
//! y = exp(x - max x) / Σ exp(x - max x)         dx = y · (dy - Σ dy · y)          [T, C]
//! ```
//!
//! Subtracting the maximum changes nothing but keeps exp from overflowing. Forward walks a row three times: maximum,
//! exponentials and their sum, result. With bf16 storage a stored exp would be rounded before it is divided, so there the
//! third walk computes it again. A row is in L1 after the first walk.
//!
//! Cost: x read once, y written once; backward reads y and dy and writes dx: bound by memory for all but short rows.
//! Limits: a row whose maximum is not finite gives NaN. Attention has a softmax of its own that never stores scores, and
//! the cross-entropy loss another.

mod cases;
mod cpu;
pub mod cuda;
pub mod reference;
#[cfg(test)]
mod tests;

pub use cases::OPERATION;
pub(crate) use cpu::{Max, SumOfExp};
pub use cpu::{backward, forward};
