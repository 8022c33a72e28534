//! Sum, difference, product and quotient of two tensors, the second of which may be smaller.
//!
//! ```text
//! a [.., R, C]  with  b [.., R, C]   element by element
//!                     b [C]          a row: the same for every row of a
//!                     b [.., R, 1]   a column: one number per row
//!                     b [] or [1]    a number
//! ```
//!
//! ```text
//! y = a + b   da = dy     db = Σ dy              y = a·b   da = dy·b   db = Σ dy·a
//! y = a - b   da = dy     db = -Σ dy             y = a/b   da = dy/b   db = -Σ dy·y/b
//! ```
//!
//! Σ runs over what b was repeated along, in f32 and in a fixed order.
use super::check;
use crate::{
    dtype::{DType, floats},
    error::{EngineError, Result},
    shape::Shape,
    tape::{Op, Pass, Tape, Var},
    tensor::Tensor,
};
use kernels::{Element, operation::Cost};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
}

impl Arithmetic {
    fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
        }
    }
    #[inline]
    fn apply(self, a: f32, b: f32) -> f32 {
        match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::Div => a / b,
        }
    }
    #[inline]
    fn da(self, dy: f32, b: f32) -> f32 {
        match self {
            Self::Add | Self::Sub => dy,
            Self::Mul => dy * b,
            Self::Div => dy / b,
        }
    }
    #[inline]
    fn db(self, dy: f32, a: f32, b: f32) -> f32 {
        match self {
            Self::Add => dy,
            Self::Sub => -dy,
            Self::Mul => dy * a,
            Self::Div => -dy * a / (b * b),
        }
    }
}

/// How the second tensor is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    Not,
    Row,
    Column,
    Number,
}

impl Repeat {
    fn of(a: &Shape, b: &Shape) -> Option<Self> {
        let (_, cols) = a.rows_cols();
        match (&a[..], &b[..]) {
            (a, b) if a == b => Some(Self::Not),
            (_, b) if b.iter().all(|&dim| dim == 1) && b.len() <= 1 => Some(Self::Number),
            (_, &[n]) if n == cols => Some(Self::Row),
            ([outer_a @ .., _], [outer_b @ .., 1]) if outer_a == outer_b => Some(Self::Column),
            _ => None,
        }
    }
    /// Where in b the partner of element (row, col) of a is.
    #[inline]
    fn index(self, row: usize, col: usize, cols: usize) -> usize {
        match self {
            Self::Not => row * cols + col,
            Self::Row => col,
            Self::Column => row,
            Self::Number => 0,
        }
    }
}

fn apply(tape: &Tape<'_>, a: &Var, b: &Var, operation: Arithmetic) -> Result<Var> {
    let name = operation.name();
    let dtype = check::same_float(name, &[a, b])?;
    let repeat = Repeat::of(a.shape(), b.shape()).ok_or_else(|| {
        let problem =
            format!("{:?} and {:?} do not fit: the second is equal, a row, a column or a number", a.shape(), b.shape());
        EngineError::shape(name, problem)
    })?;
    let mut y = tape.alloc(*a.shape(), dtype)?;
    let (va, vb) = (a.value(), b.value());
    tape.launch(name, cost(va, 3), |_| {
        floats!(dtype, X => {
            let (_, cols) = va.shape().rows_cols();
            let (a, b) = (va.slice::<X>(), vb.slice::<X>());
            for (i, (y, a)) in y.slice_mut::<X>().iter_mut().zip(a).enumerate() {
                let b = b[repeat.index(i / cols, i % cols, cols)];
                *y = X::from_f32(operation.apply(a.to_f32(), b.to_f32()));
            }
        });
    })?;
    tape.record(&[a, b], y, || ArithmeticOp { operation, repeat, a: va.clone(), b: vb.clone() })
}

fn cost(x: &Tensor, streams: usize) -> Cost {
    Cost { flops: x.len() as u64, bytes: (streams * x.len() * x.dtype().bytes()) as u64 }
}

struct ArithmeticOp {
    operation: Arithmetic,
    repeat: Repeat,
    a: Tensor,
    b: Tensor,
}

impl Op for ArithmeticOp {
    fn name(&self) -> &'static str {
        self.operation.name()
    }
    fn backward(self: Box<Self>, dy: Tensor, pass: &mut Pass<'_, '_>) -> Result<()> {
        let Self { operation, repeat, a, b } = *self;
        let tape = pass.tape;
        let (_, cols) = a.shape().rows_cols();
        if pass.wants(1) {
            let mut sum = tape.alloc(*b.shape(), DType::F32)?;
            tape.launch("arithmetic.backward", cost(&dy, 3), |_| {
                floats!(dy.dtype(), X => {
                    let (a, b) = (a.slice::<X>(), b.slice::<X>());
                    let sum = sum.slice_mut::<f32>();
                    sum.fill(0.0);
                    for (i, (dy, a)) in dy.slice::<X>().iter().zip(a).enumerate() {
                        let j = repeat.index(i / cols, i % cols, cols);
                        sum[j] += operation.db(dy.to_f32(), a.to_f32(), b[j].to_f32());
                    }
                });
            })?;
            let db = super::cast(tape, sum, b.dtype())?;
            pass.give(1, db)?;
        }
        if pass.wants(0) {
            let mut da = tape.alloc(*a.shape(), a.dtype())?;
            tape.launch("arithmetic.backward", cost(&dy, 3), |_| {
                floats!(dy.dtype(), X => {
                    let b = b.slice::<X>();
                    for (i, (da, dy)) in da.slice_mut::<X>().iter_mut().zip(dy.slice::<X>()).enumerate() {
                        let b = b[repeat.index(i / cols, i % cols, cols)].to_f32();
                        *da = X::from_f32(operation.da(dy.to_f32(), b));
                    }
                });
            })?;
            pass.give(0, da)?;
        }
        Ok(())
    }
}

/// a + b
///
/// # Errors
/// The shapes do not fit (see the module) or the types differ.
pub fn add(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    apply(tape, a, b, Arithmetic::Add)
}

/// a - b
///
/// # Errors
/// As [`add`].
pub fn sub(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    apply(tape, a, b, Arithmetic::Sub)
}

/// a·b, element by element
///
/// # Errors
/// As [`add`].
pub fn mul(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    apply(tape, a, b, Arithmetic::Mul)
}

/// a / b
///
/// # Errors
/// As [`add`].
pub fn div(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    apply(tape, a, b, Arithmetic::Div)
}
