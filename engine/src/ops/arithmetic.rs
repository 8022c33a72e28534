//! Sum, difference, product and quotient of two tensors, with NumPy's broadcasting.
//!
//! ```text
//! a [.., R, C]  with  b [.., R, C]   element by element                     the kernel reads b as it is
//!                     b [], [1]      a number
//!                     b [C], [R, C]  a row: the same for all of the leading dimensions
//!                     b [.., 1, 1]   a column: the same for all of the trailing dimensions
//!                     b [B, 1, C]    or an a that is smaller in any dimension: repeated first (expand.rs), one copy
//! ```
//!
//! ```text
//! y = a + b   da = dy     db = Σ dy              y = a·b   da = dy·b   db = Σ dy·a
//! y = a - b   da = dy     db = -Σ dy             y = a/b   da = dy/b   db = -Σ dy·y/b
//! ```
//!
//! Σ runs over what b was repeated along, in f32 and in a fixed order.
use super::{
    check,
    expand::{self, aligned, expand},
};
use crate::{
    device::Device,
    dtype::{DType, floats},
    error::{EngineError, Result},
    shape::Shape,
    tape::{BackwardContext, Op, Tape, Var},
    tensor::Tensor,
};
use kernels::{
    Cost,
    elementwise::{self, Binary, Broadcast},
};
use kernels_cuda::elementwise::Function;
use std::ops::Range;

fn name(operation: Binary) -> &'static str {
    match operation {
        Binary::Add => "add",
        Binary::Sub => "sub",
        Binary::Mul => "mul",
        _ => "div",
    }
}

/// Broadcasting of `b` over `a` in one pass: `a` is read as [rows, cols].
fn form(a: &Shape, b: &Shape) -> Option<(Broadcast, [usize; 2])> {
    let (rows, cols) = a.rows_cols();
    let as_rows = match (&a[..], &b[..]) {
        (a, b) if a == b => Some(Broadcast::Full),
        (_, [] | [1]) => Some(Broadcast::Scalar),
        (_, &[n]) if n == cols => Some(Broadcast::Row),
        ([outer_a @ .., _], [outer_b @ .., 1]) if outer_a == outer_b => Some(Broadcast::Column),
        _ if b.len() <= a.len() && b.elements() == 1 => Some(Broadcast::Scalar),
        _ => None,
    };
    if let Some(broadcast) = as_rows {
        return Some((broadcast, [rows, cols]));
    }
    // Longer rows: b repeats along all dimensions in front of a place, or behind it, and has the others.
    let size = |i| aligned(b, a.len(), i);
    let repeats = |mut dims: Range<usize>| dims.all(|i| size(i) == 1);
    let is_whole = |mut dims: Range<usize>| dims.all(|i| size(i) == a[i]);
    let at = |at: usize| {
        let broadcast = if repeats(0..at) && is_whole(at..a.len()) {
            Broadcast::Row
        } else if is_whole(0..at) && repeats(at..a.len()) {
            Broadcast::Column
        } else {
            return None;
        };
        Some((broadcast, [a[..at].iter().product(), a[at..].iter().product()]))
    };
    (b.len() <= a.len()).then(|| (0..=a.len()).find_map(at)).flatten()
}

fn apply(tape: &Tape<'_>, a: &Var, b: &Var, operation: Binary) -> Result<Var> {
    let dtype = check::same_float(name(operation), &[a, b])?;
    let Some((broadcast, sizes)) = form(a.shape(), b.shape()) else {
        return repeated(tape, a, b, operation);
    };
    let (va, vb) = (a.value(), b.value());
    let y = combined(tape, name(operation), operation, (broadcast, sizes), va, vb, dtype)?;
    tape.record(&[a, b], y, || Arithmetic { operation, broadcast, sizes, a: va.clone(), b: vb.clone() })
}

/// a ∘ b where one of them has to be repeated first.
fn repeated(tape: &Tape<'_>, a: &Var, b: &Var, operation: Binary) -> Result<Var> {
    let Some(shape) = expand::joint(a.shape(), b.shape()) else {
        let (a, b) = (a.shape(), b.shape());
        let problem = format!("{a:?} and {b:?} do not fit: aligned at the last dimension, sizes are equal or 1");
        return Err(EngineError::shape(name(operation), problem));
    };
    if shape == *a.shape() {
        // Dimensions that b lacks in front are left to the kernel.
        let mut dims = shape.to_array();
        let lacks = (0..shape.len()).take_while(|&i| aligned(b.shape(), shape.len(), i) == 1).count();
        dims[..lacks].fill(1);
        return apply(tape, a, &expand(tape, b, &dims[..shape.len()])?, operation);
    }
    match operation {
        Binary::Add | Binary::Mul if shape == *b.shape() => apply(tape, b, a, operation),
        _ => apply(tape, &expand(tape, a, shape)?, b, operation),
    }
}

/// a ∘ b in new memory.
fn combined(
    tape: &Tape<'_>,
    name: &'static str,
    operation: Binary,
    (broadcast, [rows, cols]): (Broadcast, [usize; 2]),
    a: &Tensor,
    b: &Tensor,
    dtype: DType,
) -> Result<Tensor> {
    let mut y = tape.alloc([rows, cols], dtype)?;
    tape.launch_on(name, cost(a, 3), |device| match device {
        Device::Cpu(cpu) => {
            floats!(dtype, X => {
                let (a, b, y) = (a.slice::<X>(), b.slice::<X>(), y.slice_mut::<X>());
                elementwise::binary(cpu, operation, broadcast, cols, [a, b], y);
            });
            Ok(())
        }
        Device::Cuda(gpu) => gpu.map(Function::Binary(operation, broadcast), &[a.address(), b.address()], None, &mut y),
    })?;
    y.reshape(*a.shape())
}

/// Element by element: rows do not matter.
fn full(x: &Tensor) -> (Broadcast, [usize; 2]) {
    let (rows, cols) = x.shape().rows_cols();
    (Broadcast::Full, [rows, cols])
}

fn cost(x: &Tensor, streams: usize) -> Cost {
    Cost { flops: x.len() as u64, bytes: (streams * x.len() * x.dtype().bytes()) as u64 }
}

struct Arithmetic {
    operation: Binary,
    broadcast: Broadcast,
    sizes: [usize; 2],
    a: Tensor,
    b: Tensor,
}

impl Op for Arithmetic {
    fn name(&self) -> &'static str {
        name(self.operation)
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        const NAME: &str = "arithmetic.backward";
        let (tape, dtype) = (ctx.tape, dy.dtype());
        let quotient = self.operation == Binary::Div;
        if ctx.needs_grad(1) {
            let terms = match self.operation {
                Binary::Add | Binary::Sub => dy.clone(),
                _ => combined(tape, NAME, Binary::Mul, full(&dy), &dy, &self.a, dtype)?,
            };
            let mut db = match (self.operation, self.broadcast) {
                (Binary::Add, Broadcast::Full) => terms.reshape(*self.b.shape())?,
                _ => self.summed(tape, &terms)?,
            };
            if quotient {
                // -Σ dy·a / b²: b is the same for all that is summed.
                for _ in 0..2 {
                    db = combined(tape, NAME, Binary::Div, full(&db), &db, &self.b, dtype)?;
                }
            }
            ctx.accumulate_grad(1, db)?;
        }
        let da = match self.operation {
            Binary::Add | Binary::Sub => dy,
            operation => combined(tape, NAME, operation, (self.broadcast, self.sizes), &dy, &self.b, dtype)?,
        };
        ctx.accumulate_grad(0, da)
    }
}

impl Arithmetic {
    /// The terms of a's shape, with their sign, summed to b's shape.
    fn summed(&self, tape: &Tape<'_>, terms: &Tensor) -> Result<Tensor> {
        const NAME: &str = "arithmetic.backward";
        let [rows, cols] = self.sizes;
        let mut sums = match self.broadcast {
            Broadcast::Full => {
                let mut copy = tape.alloc(*self.b.shape(), DType::F32)?;
                tape.launch_on(NAME, cost(terms, 1), |device| f32_copy(device, terms, &mut copy))?;
                copy
            }
            Broadcast::Scalar => expand::sums(tape, NAME, terms, Broadcast::Scalar, [1, terms.len(), 1])?,
            Broadcast::Column => expand::sums(tape, NAME, terms, Broadcast::Column, [rows, cols, 1])?,
            Broadcast::Row => expand::sums(tape, NAME, terms, Broadcast::Row, [1, rows, cols])?,
        };
        if matches!(self.operation, Binary::Sub | Binary::Div) {
            tape.launch_on(NAME, cost(&sums, 2), |device| match device {
                Device::Cpu(_) => {
                    sums.slice_mut::<f32>().iter_mut().for_each(|sum| *sum = -*sum);
                    Ok(())
                }
                Device::Cuda(gpu) => gpu.scale(&mut sums, -1.0),
            })?;
        }
        super::cast(tape, sums.reshape(*self.b.shape())?, terms.dtype())
    }
}

/// y = x in f32.
fn f32_copy(device: &Device, x: &Tensor, y: &mut Tensor) -> Result<()> {
    match device {
        Device::Cpu(cpu) => {
            floats!(x.dtype(), X => elementwise::cast(cpu, x.slice::<X>(), y.slice_mut::<f32>()));
            Ok(())
        }
        Device::Cuda(gpu) if x.dtype() == DType::F32 => gpu.copy(x, y),
        Device::Cuda(gpu) => gpu.cast(x, y),
    }
}

/// a + b, with NumPy's broadcasting: shapes are aligned at the last dimension, and a size of 1 or a missing dimension in
/// front is repeated. A mask [S, S] fits scores [B, A, S, S], and so does [B, 1, 1, S].
///
/// # Errors
/// Two aligned sizes differ and neither is 1, or the types differ.
pub fn add(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    apply(tape, a, b, Binary::Add)
}

/// a - b, broadcast as in [`add`]
///
/// # Errors
/// As [`add`].
pub fn sub(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    apply(tape, a, b, Binary::Sub)
}

/// a·b, element by element, broadcast as in [`add`]
///
/// # Errors
/// As [`add`].
pub fn mul(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    apply(tape, a, b, Binary::Mul)
}

/// a / b, broadcast as in [`add`]
///
/// # Errors
/// As [`add`].
pub fn div(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    apply(tape, a, b, Binary::Div)
}
