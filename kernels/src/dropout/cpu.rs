//! Dropout with SIMD: multipliers of 64 columns in L1, then one pass over these columns.

use super::{BLOCK, Dropout};
use crate::pool::Cpu;
use crate::rows::{Cached, Row, Rows, for_each_block, rows_per_task};
use crate::{
    Element,
    simd::{Kernel, Simd, compiled_here},
};
use std::ops::Range;

compiled_here! {
    /// Computes y = x · m(row, column) for `x`, `y` [T, columns]; backward is the same call on the gradient.
    ///
    /// # Panics
    /// If the lengths differ or are not a multiple of `columns`, or if the rate is not in [0, 1).
    pub fn apply<X>(cpu: &Cpu, dropout: &Dropout, columns: usize, x: &[X], y: &mut [X]) = apply_body;
}

fn apply_body<X: Element>(cpu: &Cpu, dropout: &Dropout, columns: usize, x: &[X], y: &mut [X]) {
    assert_eq!(x.len(), y.len(), "dropout: x and y differ in length");
    dropout.check();
    if x.is_empty() {
        return;
    }
    assert!(columns > 0 && x.len().is_multiple_of(columns), "dropout: {} elements are no rows of {columns}", x.len());
    let isa = cpu.isa();
    for_each_block(cpu, x.len() / columns, rows_per_task(columns), Rows::new(y, columns), |rows, y| {
        isa.run(Apply { dropout: *dropout, columns, x, rows, y });
    });
}

/// Dropout of `rows` of x; y is their output.
struct Apply<'a, X> {
    dropout: Dropout,
    columns: usize,
    x: &'a [X],
    rows: Range<usize>,
    y: &'a mut [X],
}

impl<X: Element> Kernel for Apply<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut multipliers = [0.0; BLOCK];
        let x = &self.x[self.rows.start * self.columns..self.rows.end * self.columns];
        for (row, (x, y)) in self.rows.zip(x.chunks(self.columns).zip(self.y.chunks_mut(self.columns))) {
            for (block, (x, y)) in x.chunks(BLOCK).zip(y.chunks_mut(BLOCK)).enumerate() {
                self.dropout.block(simd, row as u64, block, &mut multipliers);
                let read = ([x], Cached([&multipliers[..]]));
                Row::new(simd, x.len()).map(
                    read,
                    [y],
                    #[inline(always)]
                    |simd, ([x], [m])| [simd.mul(x, m)],
                );
            }
        }
    }
}
