//! Kernels over rows: [`Row`] sweeps over the columns of one; within this crate, `for_each_block` cuts the rows into tasks.
//!
//! A sweep reads like its equation. The softmax of a row in f32:
//!
//! ```
//! use kernels::Isa;
//! use kernels::num::functions;
//! use kernels::rows::{Max, Row, Sum};
//! use kernels::simd::{Kernel, Simd};
//!
//! struct Softmax<'a>(&'a [f32], &'a mut [f32]);
//!
//! impl Kernel for Softmax<'_> {
//!     type Output = ();
//!     #[inline(always)]
//!     fn run<S: Simd>(self, simd: S) {
//!         let Self(x, y) = self;
//!         let row = Row::new(simd, x.len());
//!         let [max] = row.fold(Max, [x], #[inline(always)] |simd, [x], [max]| *max = simd.max(x, *max));
//!         let [sum] = row.map_fold(Sum, [x], [&mut *y], #[inline(always)] |simd, [x], [sum]| {
//!             let e = functions::exp(simd, simd.sub(x, simd.splat(max)));
//!             *sum = simd.add(*sum, e);
//!             [e]
//!         });
//!         row.update((), [y], #[inline(always)] |simd, (), [y]| *y = simd.mul(*y, simd.splat(1.0 / sum)));
//!     }
//! }
//!
//! let mut y = [0.0; 3];
//! Isa::choose()?.run(Softmax(&[1.0, 2.0, 3.0], &mut y));
//! assert!((y[2] - 0.66524).abs() < 1e-5);
//! # Ok::<(), kernels::simd::UnknownIsa>(())
//! ```
//!
//! Closures get the token of [four vectors](crate::simd::Wide), which four independent chains of instructions keep busy, and
//! arrays of these: one for each slice that is read, for each that is updated, and for each accumulator. They return one for
//! each slice that is written. Slices of two types, or slices that are in a cache, are a pair: `([x], Cached([gain, bias]))`.
//!
//! The last vector of a row ends at the row's end and overlaps the one before it. The order of a sum is a function of the row's
//! length, the same for every instruction set. It has four groups of 16 accumulators, since an addition has a latency of four
//! cycles:
//!
//! ```text
//! columns of                     are added to accumulators, the first column to the first
//!   whole blocks of 64             0 .. 16     16 .. 32     32 .. 48     48 .. 64
//!   then whole blocks of 16        0 .. 16
//!   then r < 16                    16 - r .. 16      (0 .. r if the row has only these)
//! then                          (  0 .. 16  +  16 .. 32  )  +  (  32 .. 48  +  48 .. 64  )
//! and of the 16                 the upper half is added to the lower half until one is left
//! ```

mod blocks;
mod row;
mod streams;
#[cfg(test)]
mod tests;

pub(crate) use blocks::{RowOutputs, Rows, TASK, for_each_block, rows_per_task};
pub use row::{Fold, Max, Prefetch, Row, Sum};
pub use streams::{Cached, Four, Read, Update, Write};
