//! Sums and maxima, in a fixed order.
//!
//! ```text
//! sum              Σ x                 one number, f64
//! sum_of_squares   Σ x²                one number, f64: the square of a gradient's norm
//! max              greatest x          one number
//! row_sums         out[t]  = Σ_f x[t, f]
//! column_sums      out[f] += Σ_t x[t, f]       the gradient of a bias
//! ```
//!
//! Floating-point addition is not associative, so the order is part of the definition: it is cut by the shape alone.
//!
//! ```text
//! x    ├── block ──┼── block ──┼── block ──┤       at most 256 blocks (or 64 blocks of rows), one task each
//!      Σ f32 in lanes, each 4096 numbers into f64
//!           └───────────┴─────┬─────┘
//!                      added in order of blocks (rows: pairwise tree)
//! ```
//!
//! Cost: reads x once. Bound by memory.
//! Limits: sums over columns are f32 inside a block of rows; everything else ends in f64 or within one row.

mod cases;
mod cpu;
pub mod cuda;
pub mod reference;
#[cfg(test)]
mod tests;

pub use cases::OPERATION;
pub(crate) use cases::simulate_column_sums;
pub(crate) use cpu::{add_blocks, row_block};
pub use cpu::{column_sums, column_sums_scratch_len, max, row_sums, sum, sum_of_squares};
