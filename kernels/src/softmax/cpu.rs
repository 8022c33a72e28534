//! Softmax on CPUs.

use crate::num::functions;
use crate::num::poly::LOG2_E;
use crate::pool::Cpu;
use crate::rows::{Rows, for_each_block, rows_per_task};
use crate::rowwise::{Columns, rows_on, sweep_in_place, sweep_prefetching};
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
            let (read, written) = ([rows_on(2, x)], [rows_on(1, y)]);
            let [max] = sweep_prefetching(simd, x.len(), &Max, written, [x], [], [], []);
            if X::DTYPE == DType::F32 {
                let [sum] = sweep_prefetching(simd, x.len(), &Exp { max, factor: 1.0 }, read, [x], [], [], [&mut *y]);
                sweep_in_place::<S, X, _, 0, 0, 1, 0>(simd, x.len(), &Scale(1.0 / sum), [], [], [y]);
            } else {
                // Recomputes the exponentials, so that results are rounded once.
                let [sum] = sweep_prefetching(simd, x.len(), &SumOfExp(max), read, [x], [], [], []);
                let _: [f32; 1] =
                    sweep_prefetching(simd, x.len(), &Exp { max, factor: 1.0 / sum }, [], [x], [], [], [y]);
            }
        }
    }
}

/// Maximum of x.
pub(crate) struct Max;

impl Columns<1, 0, 0, 0, 1> for Max {
    const IDENTITY: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn combine<S: Simd>(simd: S, a: S::F32, b: S::F32) -> S::F32 {
        simd.max(a, b)
    }
    #[inline(always)]
    fn fold<S: Simd>(simd: S, a: S::F32) -> f32 {
        simd.reduce_max(a)
    }
    #[inline(always)]
    fn step<S: Simd>(
        &self,
        simd: S,
        [x]: [S::F32; 1],
        _: [S::F32; 0],
        _: &mut [S::F32; 0],
        [max]: &mut [S::F32; 1],
    ) -> [S::F32; 0] {
        *max = simd.max(x, *max);
        []
    }
}

/// Σ exp(x - max)
pub(crate) struct SumOfExp(pub(crate) f32);

impl Columns<1, 0, 0, 0, 1> for SumOfExp {
    #[inline(always)]
    fn step<S: Simd>(
        &self,
        simd: S,
        [x]: [S::F32; 1],
        _: [S::F32; 0],
        _: &mut [S::F32; 0],
        [sum]: &mut [S::F32; 1],
    ) -> [S::F32; 0] {
        *sum = simd.add(*sum, exp(simd, x, self.0));
        []
    }
}

/// exp(x - max)
#[inline(always)]
fn exp<S: Simd>(simd: S, x: S::F32, max: f32) -> S::F32 {
    functions::exp2(simd, simd.mul(simd.sub(x, simd.splat(max)), simd.splat(LOG2_E)))
}

/// y = exp(x - max) · factor, and their sum.
struct Exp {
    max: f32,
    factor: f32,
}

impl Columns<1, 0, 0, 1, 1> for Exp {
    #[inline(always)]
    fn step<S: Simd>(
        &self,
        simd: S,
        [x]: [S::F32; 1],
        _: [S::F32; 0],
        _: &mut [S::F32; 0],
        [sum]: &mut [S::F32; 1],
    ) -> [S::F32; 1] {
        let y = simd.mul(exp(simd, x, self.max), simd.splat(self.factor));
        *sum = simd.add(*sum, y);
        [y]
    }
}

/// y = y · factor
struct Scale(f32);

impl Columns<0, 0, 1, 0, 0> for Scale {
    #[inline(always)]
    fn step<S: Simd>(
        &self,
        simd: S,
        _: [S::F32; 0],
        _: [S::F32; 0],
        [y]: &mut [S::F32; 1],
        _: &mut [S::F32; 0],
    ) -> [S::F32; 0] {
        *y = simd.mul(*y, simd.splat(self.0));
        []
    }
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
            let (read, written) = ([rows_on(2, y), rows_on(2, dy)], [rows_on(1, dx)]);
            let [dot] = sweep_prefetching(simd, y.len(), &Dot, written, [y, dy], [], [], []);
            sweep_prefetching(simd, y.len(), &InputGradient { dot }, read, [y, dy], [], [], [dx]);
        }
    }
}

/// Σ y · dy
struct Dot;

impl Columns<2, 0, 0, 0, 1> for Dot {
    #[inline(always)]
    fn step<S: Simd>(
        &self,
        simd: S,
        [y, dy]: [S::F32; 2],
        _: [S::F32; 0],
        _: &mut [S::F32; 0],
        [sum]: &mut [S::F32; 1],
    ) -> [S::F32; 0] {
        *sum = simd.mul_add(y, dy, *sum);
        []
    }
}

/// dx = y · (dy - dot)
struct InputGradient {
    dot: f32,
}

impl Columns<2, 0, 0, 1, 0> for InputGradient {
    #[inline(always)]
    fn step<S: Simd>(
        &self,
        simd: S,
        [y, dy]: [S::F32; 2],
        _: [S::F32; 0],
        _: &mut [S::F32; 0],
        _: &mut [S::F32; 0],
    ) -> [S::F32; 1] {
        [simd.mul(y, simd.sub(dy, simd.splat(self.dot)))]
    }
}
