//! Element-wise operations on CPUs.

use super::{Binary, Broadcast, Unary};
use crate::num::functions;
use crate::pool::Cpu;
use crate::rows::{Rows, TASK, for_each_block, rows_per_task};
use crate::rowwise::{Columns, sweep, sweep_in_place};
use crate::{
    Element,
    simd::{Kernel, Simd, compiled_here},
};
use std::ops::Range;

compiled_here! {
    /// y = a ∘ b for `a`, `y` [T, columns] and `b` of the shape that `broadcast` defines.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn binary<X>(
        cpu: &Cpu,
        operation: Binary,
        broadcast: Broadcast,
        columns: usize,
        a: &[X],
        b: &[X],
        y: &mut [X],
    ) = binary_body;
}

fn binary_body<X: Element>(
    cpu: &Cpu,
    operation: Binary,
    broadcast: Broadcast,
    columns: usize,
    a: &[X],
    b: &[X],
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
            match vector {
                Some(b) => sweep(simd, columns, &WithVector(operation), [a, b], [], [], [y]),
                None => sweep(simd, columns, &WithScalar(operation, scalar), [a], [], [], [y]),
            };
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

/// y = a ∘ b, b a vector.
struct WithVector(Binary);

impl Columns<2, 0, 0, 1, 0> for WithVector {
    #[inline(always)]
    fn step<S: Simd>(
        &self,
        simd: S,
        [a, b]: [S::F32; 2],
        _: [S::F32; 0],
        _: &mut [S::F32; 0],
        _: &mut [S::F32; 0],
    ) -> [S::F32; 1] {
        [apply(simd, self.0, a, b)]
    }
}

/// y = a ∘ b, b a scalar.
#[derive(Clone, Copy)]
struct WithScalar(Binary, f32);

impl Columns<1, 0, 0, 1, 0> for WithScalar {
    #[inline(always)]
    fn step<S: Simd>(
        &self,
        simd: S,
        [a]: [S::F32; 1],
        _: [S::F32; 0],
        _: &mut [S::F32; 0],
        _: &mut [S::F32; 0],
    ) -> [S::F32; 1] {
        [apply(simd, self.0, a, simd.splat(self.1))]
    }
}

/// Pass over arrays of the same length: y from its inputs.
struct Map<'a, X, C, const NX: usize> {
    columns: C,
    x: [&'a [X]; NX],
    y: &'a mut [X],
}

impl<X: Element, C: Columns<NX, 0, 0, 1, 0>, const NX: usize> Kernel for Map<'_, X, C, NX> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        sweep(simd, self.y.len(), &self.columns, self.x, [], [], [self.y]);
    }
}

fn map<X: Element, C: Columns<NX, 0, 0, 1, 0> + Copy + Send + Sync, const NX: usize>(
    cpu: &Cpu,
    columns: C,
    x: [&[X]; NX],
    y: &mut [X],
) {
    assert!(x.iter().all(|x| x.len() == y.len()), "element by element: lengths differ");
    let isa = cpu.isa();
    for_each_block(cpu, y.len(), TASK, Rows::new(y, 1), |range, y| {
        isa.run(Map { columns, x: x.map(|x| &x[range.clone()]), y });
    });
}

compiled_here! {
    /// y = f(x), both of the same length.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn unary_forward<X>(cpu: &Cpu, function: Unary, x: &[X], y: &mut [X]) = unary_forward_body;
}

fn unary_forward_body<X: Element>(cpu: &Cpu, function: Unary, x: &[X], y: &mut [X]) {
    map(cpu, Function(function), [x], y);
}

compiled_here! {
    /// dx = dy · f'; `kept` is the operand that [`Unary::keeps`] selects.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn unary_backward<X>(cpu: &Cpu, function: Unary, kept: &[X], dy: &[X], dx: &mut [X]) = unary_backward_body;
}

fn unary_backward_body<X: Element>(cpu: &Cpu, function: Unary, kept: &[X], dy: &[X], dx: &mut [X]) {
    map(cpu, Derivative(function), [kept, dy], dx);
}

compiled_here! {
    /// y = factor · x, both of the same length.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn scale<X>(cpu: &Cpu, factor: f32, x: &[X], y: &mut [X]) = scale_body;
}

fn scale_body<X: Element>(cpu: &Cpu, factor: f32, x: &[X], y: &mut [X]) {
    map(cpu, WithScalar(Binary::Mul, factor), [x], y);
}

/// y = f(x)
#[derive(Clone, Copy)]
struct Function(Unary);

impl Columns<1, 0, 0, 1, 0> for Function {
    #[inline(always)]
    fn step<S: Simd>(
        &self,
        simd: S,
        [x]: [S::F32; 1],
        _: [S::F32; 0],
        _: &mut [S::F32; 0],
        _: &mut [S::F32; 0],
    ) -> [S::F32; 1] {
        [match self.0 {
            Unary::Exp => functions::exp(simd, x),
            Unary::Ln => functions::ln(simd, x),
            Unary::Tanh => functions::tanh(simd, x),
            Unary::Sigmoid => functions::sigmoid(simd, x),
            // In this order a NaN is propagated.
            Unary::Relu => simd.max(simd.zero(), x),
        }]
    }
}

/// dx = dy · f'
#[derive(Clone, Copy)]
struct Derivative(Unary);

impl Columns<2, 0, 0, 1, 0> for Derivative {
    #[inline(always)]
    fn step<S: Simd>(
        &self,
        simd: S,
        [kept, dy]: [S::F32; 2],
        _: [S::F32; 0],
        _: &mut [S::F32; 0],
        _: &mut [S::F32; 0],
    ) -> [S::F32; 1] {
        let one = simd.splat(1.0);
        [match self.0 {
            Unary::Exp => simd.mul(dy, kept),
            Unary::Ln => simd.div(dy, kept),
            Unary::Tanh => simd.mul(dy, simd.neg_mul_add(kept, kept, one)),
            Unary::Sigmoid => simd.mul(dy, simd.mul(kept, simd.sub(one, kept))),
            Unary::Relu => simd.select(simd.lt(simd.zero(), kept), dy, simd.zero()),
        }]
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
        sweep_in_place(simd, self.y.len(), &AddTo, [self.x], [], [self.y]);
    }
}

/// y += x
struct AddTo;

impl Columns<1, 0, 1, 0, 0> for AddTo {
    #[inline(always)]
    fn step<S: Simd>(
        &self,
        simd: S,
        [x]: [S::F32; 1],
        _: [S::F32; 0],
        [y]: &mut [S::F32; 1],
        _: &mut [S::F32; 0],
    ) -> [S::F32; 0] {
        *y = simd.add(*y, x);
        []
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
    let columns = IntoF32 { factor, old: 1.0 };
    for_each_block(cpu, y.len(), TASK, Rows::new(y, 1), |range, y| isa.run(Into32 { columns, x: &x[range], y }));
}

struct Into32<'a, X> {
    columns: IntoF32,
    x: &'a [X],
    y: &'a mut [f32],
}

impl<X: Element> Kernel for Into32<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        sweep(simd, self.y.len(), &self.columns, [self.x], [], [self.y], []);
    }
}

/// y = factor · x + y if `old` is 1; y = x, whatever y held, if `old` is 0 (`factor` is then 1).
#[derive(Clone, Copy)]
struct IntoF32 {
    factor: f32,
    old: f32,
}

impl Columns<1, 0, 1, 0, 0> for IntoF32 {
    #[inline(always)]
    fn step<S: Simd>(
        &self,
        simd: S,
        [x]: [S::F32; 1],
        _: [S::F32; 0],
        [y]: &mut [S::F32; 1],
        _: &mut [S::F32; 0],
    ) -> [S::F32; 0] {
        *y = if self.old == 0.0 { x } else { simd.mul_add(simd.splat(self.factor), x, *y) };
        []
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
        } else if A::DTYPE == crate::DType::F32 {
            isa.run(Narrow { x: bytemuck::cast_slice(x), y });
        } else {
            let columns = IntoF32 { factor: 1.0, old: 0.0 };
            isa.run(Into32 { columns, x, y: bytemuck::cast_slice_mut(y) });
        }
    });
}

struct Narrow<'a, Y> {
    x: &'a [f32],
    y: &'a mut [Y],
}

impl<Y: Element> Kernel for Narrow<'_, Y> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        sweep(simd, self.y.len(), &Pass, [], [self.x], [], [self.y]);
    }
}

/// y = p
struct Pass;

impl Columns<0, 1, 0, 1, 0> for Pass {
    #[inline(always)]
    fn step<S: Simd>(
        &self,
        _: S,
        _: [S::F32; 0],
        p: [S::F32; 1],
        _: &mut [S::F32; 0],
        _: &mut [S::F32; 0],
    ) -> [S::F32; 1] {
        p
    }
}
