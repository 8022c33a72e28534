//! Softmax on CPUs.

use crate::num::functions;
use crate::num::poly::LOG2_E;
use crate::pool::Cpu;
use crate::rows::{Max, Prefetch, Row, Rows, Sum, for_each_block, rows_per_task};
use crate::{
    DType, Element,
    simd::{Kernel, Simd, compiled_here},
};

compiled_here! {
    /// y = softmax of each row of `x`, both [T, columns].
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn forward<X>(cpu: &Cpu, columns: usize, x: &[X], y: &mut [X]) = forward_body;
}

fn forward_body<X: Element>(cpu: &Cpu, columns: usize, x: &[X], y: &mut [X]) {
    let rows = x.len().checked_div(columns).unwrap_or(0);
    assert!(x.len() == rows * columns && y.len() == x.len(), "softmax: x or y is not [T, {columns}]");
    let isa = cpu.isa();
    for_each_block(cpu, rows, rows_per_task(columns), Rows::new(y, columns), |rows, y| {
        isa.run(Forward { columns, x: &x[rows.start * columns..rows.end * columns], y });
    });
}

compiled_here! {
    /// dx from `y` and `dy`, all [T, columns].
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn backward<X>(cpu: &Cpu, columns: usize, y: &[X], dy: &[X], dx: &mut [X]) = backward_body;
}

fn backward_body<X: Element>(cpu: &Cpu, columns: usize, y: &[X], dy: &[X], dx: &mut [X]) {
    let rows = y.len().checked_div(columns).unwrap_or(0);
    let fits = |len: usize| len == rows * columns;
    assert!(fits(y.len()) && fits(dy.len()) && fits(dx.len()), "softmax: y, dy or dx is not [T, {columns}]");
    let isa = cpu.isa();
    for_each_block(cpu, rows, rows_per_task(columns), Rows::new(dx, columns), |rows, dx| {
        let of_rows = rows.start * columns..rows.end * columns;
        isa.run(Backward { columns, y: &y[of_rows.clone()], dy: &dy[of_rows], dx });
    });
}

struct Forward<'a, X> {
    columns: usize,
    x: &'a [X],
    y: &'a mut [X],
}

impl<X: Element> Kernel for Forward<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (x, y) in self.x.chunks(self.columns).zip(self.y.chunks_mut(self.columns)) {
            let row = Row::new(simd, x.len());
            let (reading, writing) = (row.fetching(2, [x]), row.fetching(1, [&*y]));
            let [max] = writing.fold(
                Max,
                [x],
                #[inline(always)]
                |simd, [x], [max]| *max = simd.max(x, *max),
            );
            if X::DTYPE == DType::F32 {
                let [sum] = reading.map_fold(
                    Sum,
                    [x],
                    [&mut *y],
                    #[inline(always)]
                    |simd, [x], [sum]| {
                        let e = exp(simd, x, max);
                        *sum = simd.add(*sum, e);
                        [e]
                    },
                );
                row.cached().update(
                    (),
                    [y],
                    #[inline(always)]
                    |simd, (), [y]| *y = simd.mul(*y, simd.splat(1.0 / sum)),
                );
            } else {
                // Recomputes the exponentials, so that results are rounded once.
                let sum = sum_of_exp(reading, x, max);
                row.cached().map(
                    [x],
                    [y],
                    #[inline(always)]
                    |simd, [x]| [simd.mul(exp(simd, x, max), simd.splat(1.0 / sum))],
                );
            }
        }
    }
}

/// Σ exp(x - max)
#[inline(always)]
pub(crate) fn sum_of_exp<S: Simd, X: Element>(row: Row<S, impl Prefetch>, x: &[X], max: f32) -> f32 {
    let [sum] = row.fold(
        Sum,
        [x],
        #[inline(always)]
        |simd, [x], [sum]| *sum = simd.add(*sum, exp(simd, x, max)),
    );
    sum
}

/// exp(x - max)
#[inline(always)]
fn exp<S: Simd>(simd: S, x: S::F32, max: f32) -> S::F32 {
    functions::exp2(simd, simd.mul(simd.sub(x, simd.splat(max)), simd.splat(LOG2_E)))
}

struct Backward<'a, X> {
    columns: usize,
    y: &'a [X],
    dy: &'a [X],
    dx: &'a mut [X],
}

impl<X: Element> Kernel for Backward<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = self.y.chunks(self.columns).zip(self.dy.chunks(self.columns));
        for ((y, dy), dx) in rows.zip(self.dx.chunks_mut(self.columns)) {
            let row = Row::new(simd, y.len());
            let [dot] = row.fetching(1, [&*dx]).fold(
                Sum,
                [y, dy],
                #[inline(always)]
                |simd, [y, dy], [dot]| *dot = simd.mul_add(y, dy, *dot),
            );
            row.fetching(2, [y, dy]).map(
                [y, dy],
                [dx],
                #[inline(always)]
                |simd, [y, dy]| [simd.mul(y, simd.sub(dy, simd.splat(dot)))],
            );
        }
    }
}
