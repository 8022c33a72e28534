//! Softmax over the last dimension.
//!
//! ```text
//! y = exp(x - max x) / Σ exp(x - max x)         dx = y · (dy - Σ dy · y)          [T, C]
//! ```
//!
//! Subtracting the maximum does not change the result and prevents an overflow of exp. Forward makes three passes over a
//! row: maximum, exponentials and their sum, result. With bf16 storage a stored exp would be rounded before the division,
//! so the third pass recomputes it. A row is in L1 after the first pass.
//!
//! Cost: x read once, y written once; backward reads y and dy and writes dx: memory-bound except for short rows.
//! Limits: a row whose maximum is not finite gives NaN. Attention and the cross-entropy loss have their own softmax, which
//! does not store scores.
//!
//! ```
//! use kernels::{Cpu, softmax};
//!
//! let (x, mut y) = ([0.0f32, 0.0, 3f32.ln(), 0.0], [0.0f32; 4]);
//! softmax::forward(&Cpu::detect()?, 2, &x, &mut y); // two rows of two
//! assert!((y[0] - 0.5).abs() < 1e-6 && (y[2] - 0.75).abs() < 1e-6);
//! # Ok::<(), kernels::CpuError>(())
//! ```

mod cpu;

pub(crate) use cpu::sum_of_exp;
pub use cpu::{backward, forward};
