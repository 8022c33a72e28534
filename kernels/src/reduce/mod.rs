//! Sums and maxima, in a fixed order.
//!
//! ```text
//! sum              Σ x                 f64
//! sum_of_squares   Σ x²                f64: the square of a gradient's norm
//! max              maximum of x
//! row_sums         out[t]  = Σ_f x[t, f]
//! column_sums      out[f] += Σ_t x[t, f]       the gradient of a bias
//! ```
//!
//! Floating-point addition is not associative, so the order is part of the definition. It depends on the shape alone:
//!
//! ```text
//! x    ├── block ──┼── block ──┼── block ──┤       at most 256 blocks (or 64 blocks of rows), one task each
//!      Σ f32 in lanes, 4096 elements each into f64
//!           └───────────┴─────┬─────┘
//!                      added in order of blocks (rows: pairwise tree)
//! ```
//!
//! Cost: reads x once. Bound by memory.
//! Limits: row and column sums are computed in f32, totals in f64 beyond 4096 elements.
//!
//! ```
//! use kernels::{Cpu, reduce::{column_sums, column_sums_scratch_len, sum}};
//!
//! let (cpu, x) = (Cpu::detect()?, [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]); // [3, 2]
//! let mut scratch = vec![0.0; column_sums_scratch_len(3, 2)];
//! let mut out = [10.0f32, 0.0]; // added to
//! column_sums(&cpu, 3, 2, &x, &mut out, &mut scratch);
//! assert_eq!((out, sum(&cpu, &x)), ([19.0, 12.0], 21.0));
//! # Ok::<(), kernels::CpuError>(())
//! ```

mod cpu;

pub(crate) use cpu::{add_blocks, row_block};
pub use cpu::{column_sums, column_sums_scratch_len, max, row_sums, sum, sum_of_squares};
