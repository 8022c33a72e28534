//! Element-wise operations on CPUs.

use super::{Binary, Broadcast, Unary};
use crate::num::functions;
use crate::pool::Cpu;
use crate::rows::{Row, Rows, TASK, for_each_block, rows_per_task};
use crate::{
    Element,
    simd::{Kernel, Simd, compiled_here},
};
use std::ops::Range;

compiled_here! {
    /// y = a ∘ b for operands `a`, as `y` [T, columns], and `b` of the shape that `broadcast` defines.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn binary<X>(
        cpu: &Cpu,
        operation: Binary,
        broadcast: Broadcast,
        columns: usize,
        operands: [&[X]; 2],
        y: &mut [X],
    ) = binary_body;
}

fn binary_body<X: Element>(
    cpu: &Cpu,
    operation: Binary,
    broadcast: Broadcast,
    columns: usize,
    [a, b]: [&[X]; 2],
    y: &mut [X],
) {
    assert_eq!(a.len(), y.len(), "{operation:?}: a and y differ in length");
    let rows = a.len().checked_div(columns).unwrap_or(0);
    assert_eq!(a.len(), rows * columns, "{operation:?}: {} elements are no rows of {columns}", a.len());
    assert_eq!(b.len(), broadcast.len(rows, columns), "{operation:?}: b does not fit {broadcast:?}");
    let isa = cpu.isa();
    for_each_block(cpu, rows, rows_per_task(columns), Rows::new(y, columns), |rows, y| {
        let a = &a[rows.start * columns..rows.end * columns];
        isa.run(BinaryRows { operation, broadcast, columns, rows, a, b, y });
    });
}

struct BinaryRows<'a, X> {
    operation: Binary,
    broadcast: Broadcast,
    columns: usize,
    rows: Range<usize>,
    a: &'a [X],
    b: &'a [X],
    y: &'a mut [X],
}

impl<X: Element> Kernel for BinaryRows<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { operation, broadcast, columns, rows, a, b, y } = self;
        for (row, (a, y)) in rows.zip(a.chunks(columns).zip(y.chunks_mut(columns))) {
            let (vector, scalar) = match broadcast {
                Broadcast::Full => (Some(&b[row * columns..(row + 1) * columns]), 0.0),
                Broadcast::Row => (Some(b), 0.0),
                Broadcast::Scalar => (None, b[0].to_f32()),
                Broadcast::Column => (None, b[row].to_f32()),
            };
            let row = Row::new(simd, columns);
            match vector {
                Some(b) => row.map(
                    [a, b],
                    [y],
                    #[inline(always)]
                    |simd, [a, b]| [apply(simd, operation, a, b)],
                ),
                None => row.map(
                    [a],
                    [y],
                    #[inline(always)]
                    |simd, [a]| [apply(simd, operation, a, simd.splat(scalar))],
                ),
            }
        }
    }
}

#[inline(always)]
fn apply<S: Simd>(simd: S, operation: Binary, a: S::F32, b: S::F32) -> S::F32 {
    match operation {
        Binary::Add => simd.add(a, b),
        Binary::Sub => simd.sub(a, b),
        Binary::Mul => simd.mul(a, b),
        Binary::Div => simd.div(a, b),
        Binary::SubFrom => simd.sub(b, a),
        Binary::DivInto => simd.div(b, a),
    }
}

compiled_here! {
    /// y = f(x), both of the same length.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn unary_forward<X>(cpu: &Cpu, function: Unary, x: &[X], y: &mut [X]) = unary_forward_body;
}

fn unary_forward_body<X: Element>(cpu: &Cpu, function: Unary, x: &[X], y: &mut [X]) {
    assert_eq!(x.len(), y.len(), "{function:?}: lengths differ");
    let isa = cpu.isa();
    for_each_block(cpu, y.len(), TASK, Rows::new(y, 1), |range, y| isa.run(UnaryForward { function, x: &x[range], y }));
}

struct UnaryForward<'a, X> {
    function: Unary,
    x: &'a [X],
    y: &'a mut [X],
}

impl<X: Element> Kernel for UnaryForward<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { function, x, y } = self;
        Row::new(simd, y.len()).map(
            [x],
            [y],
            #[inline(always)]
            |simd, [x]| {
                [match function {
                    Unary::Exp => functions::exp(simd, x),
                    Unary::Ln => functions::ln(simd, x),
                    Unary::Tanh => functions::tanh(simd, x),
                    Unary::Sigmoid => functions::sigmoid(simd, x),
                    // In this order a NaN is propagated.
                    Unary::Relu => simd.max(simd.zero(), x),
                }]
            },
        );
    }
}

compiled_here! {
    /// dx = dy · f'; `kept` is the operand that [`Unary::keeps`] selects.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn unary_backward<X>(cpu: &Cpu, function: Unary, kept: &[X], dy: &[X], dx: &mut [X]) = unary_backward_body;
}

fn unary_backward_body<X: Element>(cpu: &Cpu, function: Unary, kept: &[X], dy: &[X], dx: &mut [X]) {
    assert!(kept.len() == dx.len() && dy.len() == dx.len(), "{function:?}: lengths differ");
    let isa = cpu.isa();
    for_each_block(cpu, dx.len(), TASK, Rows::new(dx, 1), |range, dx| {
        isa.run(UnaryBackward { function, kept: &kept[range.clone()], dy: &dy[range], dx });
    });
}

struct UnaryBackward<'a, X> {
    function: Unary,
    kept: &'a [X],
    dy: &'a [X],
    dx: &'a mut [X],
}

impl<X: Element> Kernel for UnaryBackward<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { function, kept, dy, dx } = self;
        Row::new(simd, dx.len()).map(
            [kept, dy],
            [dx],
            #[inline(always)]
            |simd, [kept, dy]| {
                let one = simd.splat(1.0);
                [match function {
                    Unary::Exp => simd.mul(dy, kept),
                    Unary::Ln => simd.div(dy, kept),
                    Unary::Tanh => simd.mul(dy, simd.neg_mul_add(kept, kept, one)),
                    Unary::Sigmoid => simd.mul(dy, simd.mul(kept, simd.sub(one, kept))),
                    Unary::Relu => simd.select(simd.lt(simd.zero(), kept), dy, simd.zero()),
                }]
            },
        );
    }
}

compiled_here! {
    /// y = factor · x, both of the same length.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn scale<X>(cpu: &Cpu, factor: f32, x: &[X], y: &mut [X]) = scale_body;
}

fn scale_body<X: Element>(cpu: &Cpu, factor: f32, x: &[X], y: &mut [X]) {
    assert_eq!(x.len(), y.len(), "scale: lengths differ");
    let isa = cpu.isa();
    for_each_block(cpu, y.len(), TASK, Rows::new(y, 1), |range, y| isa.run(Scale { factor, x: &x[range], y }));
}

struct Scale<'a, X> {
    factor: f32,
    x: &'a [X],
    y: &'a mut [X],
}

impl<X: Element> Kernel for Scale<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { factor, x, y } = self;
        let row = Row::new(simd, y.len());
        row.map(
            [x],
            [y],
            #[inline(always)]
            |simd, [x]| [simd.mul(x, simd.splat(factor))],
        );
    }
}

compiled_here! {
    /// y += x, both of the same length.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn add_assign<X>(cpu: &Cpu, x: &[X], y: &mut [X]) = add_assign_body;
}

fn add_assign_body<X: Element>(cpu: &Cpu, x: &[X], y: &mut [X]) {
    assert_eq!(x.len(), y.len(), "add_assign: lengths differ");
    let isa = cpu.isa();
    for_each_block(cpu, y.len(), TASK, Rows::new(y, 1), |range, y| isa.run(AddAssign { x: &x[range], y }));
}

struct AddAssign<'a, X> {
    x: &'a [X],
    y: &'a mut [X],
}

impl<X: Element> Kernel for AddAssign<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let row = Row::new(simd, self.y.len()).cached();
        row.update(
            [self.x],
            [self.y],
            #[inline(always)]
            |simd, [x], [y]| *y = simd.add(*y, x),
        );
    }
}

compiled_here! {
    /// y += factor · x in f32, both of the same length.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn add_scaled<X>(cpu: &Cpu, factor: f32, x: &[X], y: &mut [f32]) = add_scaled_body;
}

fn add_scaled_body<X: Element>(cpu: &Cpu, factor: f32, x: &[X], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "add_scaled: lengths differ");
    let isa = cpu.isa();
    for_each_block(cpu, y.len(), TASK, Rows::new(y, 1), |range, y| isa.run(AddScaled { factor, x: &x[range], y }));
}

struct AddScaled<'a, X> {
    factor: f32,
    x: &'a [X],
    y: &'a mut [f32],
}

impl<X: Element> Kernel for AddScaled<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { factor, x, y } = self;
        let row = Row::new(simd, y.len());
        row.update(
            [x],
            [y],
            #[inline(always)]
            |simd, [x], [y]| *y = simd.mul_add(simd.splat(factor), x, *y),
        );
    }
}

/// y = x in another storage type: exact from bf16 to f32, rounded to nearest even from f32 to bf16.
///
/// # Panics
/// If lengths differ.
pub fn cast<A: Element, B: Element>(cpu: &Cpu, x: &[A], y: &mut [B]) {
    assert_eq!(x.len(), y.len(), "cast: lengths differ");
    let isa = cpu.isa();
    for_each_block(cpu, y.len(), TASK, Rows::new(y, 1), |range, y| {
        let x = &x[range];
        if A::DTYPE == B::DTYPE {
            y.copy_from_slice(bytemuck::cast_slice(x));
        } else {
            isa.run(Cast { x, y });
        }
    });
}

struct Cast<'a, A, B> {
    x: &'a [A],
    y: &'a mut [B],
}

impl<A: Element, B: Element> Kernel for Cast<'_, A, B> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        Row::new(simd, self.y.len()).map(
            [self.x],
            [self.y],
            #[inline(always)]
            |_, x| x,
        );
    }
}
