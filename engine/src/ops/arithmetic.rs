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
    device::Device,
    dtype::{DType, floats},
    error::{EngineError, Result},
    shape::Shape,
    tape::{BackwardContext, Op, Tape, Var},
    tensor::Tensor,
};
use kernels::{
    elementwise::{self, Binary, Broadcast, cuda::Function},
    operation::Cost,
    reduce,
};

fn name(operation: Binary) -> &'static str {
    match operation {
        Binary::Add => "add",
        Binary::Sub => "sub",
        Binary::Mul => "mul",
        _ => "div",
    }
}

/// Broadcasting of `b` over `a`.
fn broadcast(a: &Shape, b: &Shape) -> Option<Broadcast> {
    let (_, cols) = a.rows_cols();
    match (&a[..], &b[..]) {
        (a, b) if a == b => Some(Broadcast::Full),
        (_, [] | [1]) => Some(Broadcast::Scalar),
        (_, &[n]) if n == cols => Some(Broadcast::Row),
        ([outer_a @ .., _], [outer_b @ .., 1]) if outer_a == outer_b => Some(Broadcast::Column),
        _ => None,
    }
}

fn apply(tape: &Tape<'_>, a: &Var, b: &Var, operation: Binary) -> Result<Var> {
    let dtype = check::same_float(name(operation), &[a, b])?;
    let broadcast = broadcast(a.shape(), b.shape()).ok_or_else(|| {
        let (a, b) = (a.shape(), b.shape());
        let problem = format!("{a:?} and {b:?} do not fit: the second is equal, a row, a column or a number");
        EngineError::shape(name(operation), problem)
    })?;
    let (va, vb) = (a.value(), b.value());
    let y = combined(tape, name(operation), operation, broadcast, va, vb, dtype)?;
    tape.record(&[a, b], y, || Arithmetic { operation, broadcast, a: va.clone(), b: vb.clone() })
}

/// a ∘ b in new memory.
fn combined(
    tape: &Tape<'_>,
    name: &'static str,
    operation: Binary,
    broadcast: Broadcast,
    a: &Tensor,
    b: &Tensor,
    dtype: DType,
) -> Result<Tensor> {
    let mut y = tape.alloc(*a.shape(), dtype)?;
    let (_, cols) = a.shape().rows_cols();
    tape.launch_on(name, cost(a, 3), |device| match device {
        Device::Cpu(cpu) => {
            floats!(dtype, X => {
                let (a, b, y) = (a.slice::<X>(), b.slice::<X>(), y.slice_mut::<X>());
                elementwise::binary(cpu, operation, broadcast, cols, a, b, y);
            });
            Ok(())
        }
        Device::Cuda(gpu) => gpu.map(Function::Binary(operation, broadcast), &[a, b], None, &mut y),
    })?;
    Ok(y)
}

fn cost(x: &Tensor, streams: usize) -> Cost {
    Cost { flops: x.len() as u64, bytes: (streams * x.len() * x.dtype().bytes()) as u64 }
}

struct Arithmetic {
    operation: Binary,
    broadcast: Broadcast,
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
                _ => combined(tape, NAME, Binary::Mul, Broadcast::Full, &dy, &self.a, dtype)?,
            };
            let mut db = self.summed(tape, &terms)?;
            if quotient {
                // -Σ dy·a / b²: b is the same for all that is summed.
                for _ in 0..2 {
                    db = combined(tape, NAME, Binary::Div, Broadcast::Full, &db, &self.b, dtype)?;
                }
            }
            ctx.accumulate_grad(1, db)?;
        }
        let da = match self.operation {
            Binary::Add | Binary::Sub => dy,
            operation => combined(tape, NAME, operation, self.broadcast, &dy, &self.b, dtype)?,
        };
        ctx.accumulate_grad(0, da)
    }
}

impl Arithmetic {
    /// The terms of a's shape, with their sign, summed to b's shape.
    fn summed(&self, tape: &Tape<'_>, terms: &Tensor) -> Result<Tensor> {
        let dtype = terms.dtype();
        let sign = if matches!(self.operation, Binary::Sub | Binary::Div) { -1.0 } else { 1.0 };
        let (rows, cols) = terms.shape().rows_cols();
        let mut sums = tape.alloc(*self.b.shape(), DType::F32)?;
        let scratch_len = match self.broadcast {
            Broadcast::Row => reduce::column_sums_scratch_len(rows, cols),
            _ => 0,
        };
        let mut scratch = tape.alloc([scratch_len], DType::F32)?;
        tape.launch_on("arithmetic.backward", cost(terms, 1), |device| match device {
            Device::Cpu(cpu) => {
                floats!(dtype, X => {
                    let (terms, sums) = (terms.slice::<X>(), sums.slice_mut::<f32>());
                    match self.broadcast {
                        Broadcast::Full => elementwise::cast(cpu, terms, sums),
                        Broadcast::Scalar => sums[0] = reduce::sum(cpu, terms) as f32,
                        Broadcast::Column => reduce::row_sums(cpu, cols, terms, sums),
                        Broadcast::Row => {
                            sums.fill(0.0);
                            reduce::column_sums(cpu, rows, cols, terms, sums, scratch.slice_mut());
                        }
                    }
                    sums.iter_mut().for_each(|sum| *sum *= sign);
                });
                Ok(())
            }
            Device::Cuda(gpu) => {
                match self.broadcast {
                    Broadcast::Full if dtype == DType::F32 => gpu.copy(terms, &mut sums)?,
                    Broadcast::Full => gpu.cast(terms, &mut sums)?,
                    Broadcast::Scalar => gpu.scaled_sum(terms, 1.0, &mut sums)?,
                    Broadcast::Column => gpu.row_sums(terms, cols, &mut sums)?,
                    Broadcast::Row => {
                        sums.zero()?;
                        gpu.add_column_sums(terms.address(), dtype, rows, cols, sums.address_mut())?;
                    }
                }
                if sign < 0.0 { gpu.scale(&mut sums, sign) } else { Ok(()) }
            }
        })?;
        super::cast(tape, sums, dtype)
    }
}

/// a + b
///
/// # Errors
/// The shapes do not fit (see the module) or the types differ.
pub fn add(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    apply(tape, a, b, Binary::Add)
}

/// a - b
///
/// # Errors
/// As [`add`].
pub fn sub(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    apply(tape, a, b, Binary::Sub)
}

/// a·b, element by element
///
/// # Errors
/// As [`add`].
pub fn mul(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    apply(tape, a, b, Binary::Mul)
}

/// a / b
///
/// # Errors
/// As [`add`].
pub fn div(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    apply(tape, a, b, Binary::Div)
}
