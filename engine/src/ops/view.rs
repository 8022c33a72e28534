//! Operations that move elements or rename them, and compute nothing: reshape, transpose, slice, concat.
//!
//! reshape and a slice of rows share memory with their input and cost nothing forward; the others copy once.
//! Their gradients are the same movements backwards: a slice's is the gradient within zeros, a concat's are slices.
use crate::{
    device::Device,
    dtype::{DType, Scalar},
    error::{EngineError, Result},
    shape::Shape,
    tape::{BackwardContext, Op, Tape, Var, moved},
    tensor::Tensor,
};
use half::bf16;
use std::ops::Range;

/// The same elements under another shape.
///
/// # Errors
/// The numbers of elements differ.
pub fn reshape(tape: &Tape<'_>, x: &Var, shape: impl Into<Shape>) -> Result<Var> {
    let y = x.value().reshape(shape)?;
    let from = *x.shape();
    tape.record(&[x], y, || Reshape { from })
}

struct Reshape {
    from: Shape,
}

impl Op for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        ctx.accumulate_grad(0, dy.reshape(self.from)?)
    }
}

/// A tensor seen as [outer, axis, inner].
fn around(shape: &Shape, axis: usize) -> [usize; 3] {
    [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()]
}

fn axis_of(operation: &str, x: &Var, axis: usize) -> Result<()> {
    if axis < x.shape().len() {
        return Ok(());
    }
    Err(EngineError::shape(operation, format!("axis {axis} of {:?}, which has {}", x.shape(), x.shape().len())))
}

/// Calls a generic function for the element type of a tensor.
macro_rules! scalars {
    ($dtype:expr, $X:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $X = f32;
                $body
            }
            DType::Bf16 => {
                type $X = bf16;
                $body
            }
            DType::U32 => {
                type $X = u32;
                $body
            }
        }
    };
}

/// `x` with dimensions `a` and `b` swapped.
///
/// # Errors
/// There is no such dimension.
pub fn transpose(tape: &Tape<'_>, x: &Var, a: usize, b: usize) -> Result<Var> {
    axis_of("transpose", x, a)?;
    axis_of("transpose", x, b)?;
    let (a, b) = (a.min(b), a.max(b));
    let y = swapped(tape, x.value(), a, b)?;
    tape.record(&[x], y, || Swap { a, b })
}

/// A copy with dimensions `a` <= `b` swapped; on the processor alone.
fn swapped(tape: &Tape<'_>, x: &Tensor, a: usize, b: usize) -> Result<Tensor> {
    let mut dims = x.shape().to_array();
    dims.swap(a, b);
    let mut y = tape.alloc(&dims[..x.shape().len()], x.dtype())?;
    tape.launch("transpose", moved(2 * x.len() * x.dtype().bytes()), |_| {
        scalars!(x.dtype(), X => swap(x.shape(), a, b, x.slice::<X>(), y.slice_mut::<X>()));
    })?;
    Ok(y)
}

/// Copies runs of the dimensions behind `b`, in the order of the output.
fn swap<X: Scalar>(shape: &Shape, a: usize, b: usize, x: &[X], y: &mut [X]) {
    if a == b {
        y.copy_from_slice(x);
        return;
    }
    let [outer, size_a, rest] = around(shape, a);
    let inner: usize = shape[b + 1..].iter().product();
    let size_b = shape[b];
    let middle: usize = shape[a + 1..b].iter().product();
    if inner == 0 {
        return;
    }
    let mut runs = y.chunks_exact_mut(inner);
    for o in 0..outer {
        for j in 0..size_b {
            for m in 0..middle {
                for i in 0..size_a {
                    let from = o * size_a * rest + i * rest + (m * size_b + j) * inner;
                    runs.next().expect("as many runs as indices").copy_from_slice(&x[from..from + inner]);
                }
            }
        }
    }
}

struct Swap {
    a: usize,
    b: usize,
}

impl Op for Swap {
    fn name(&self) -> &'static str {
        "transpose"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let dx = swapped(ctx.tape, &dy, self.a, self.b)?;
        ctx.accumulate_grad(0, dx)
    }
}

/// Indices `range` of dimension `axis`.
///
/// # Errors
/// There is no such dimension, or it is smaller.
pub fn slice(tape: &Tape<'_>, x: &Var, axis: usize, range: Range<usize>) -> Result<Var> {
    axis_of("slice", x, axis)?;
    if range.start > range.end || range.end > x.shape()[axis] {
        return Err(EngineError::shape("slice", format!("{range:?} of dimension {axis} of {:?}", x.shape())));
    }
    let from = *x.shape();
    let y = if axis == 0 {
        x.value().rows(range.clone())?
    } else {
        let mut dims = from.to_array();
        dims[axis] = range.len();
        let mut y = tape.alloc(&dims[..from.len()], x.dtype())?;
        let part = Part { whole: &from, axis, start: range.start, len: range.len() };
        tape.launch_on("slice", moved(2 * y.len() * y.dtype().bytes()), |device| part.take(device, x.value(), &mut y))?;
        y
    };
    tape.record(&[x], y, || Slice { from, axis, start: range.start })
}

/// `len` indices from `start` on of dimension `axis` of a tensor: the same columns of each row of a matrix.
struct Part<'a> {
    whole: &'a Shape,
    axis: usize,
    start: usize,
    len: usize,
}

impl Part<'_> {
    /// Rows, columns of the whole, the part's first column, columns of the part.
    fn matrix(&self) -> [usize; 4] {
        let [outer, size, inner] = around(self.whole, self.axis);
        [outer, size * inner, self.start * inner, self.len * inner]
    }

    /// part = these elements of `whole`.
    fn take(&self, device: &Device, whole: &Tensor, part: &mut Tensor) -> Result<()> {
        let [rows, length, first, columns] = self.matrix();
        match device {
            Device::Cpu(_) => scalars!(whole.dtype(), X => {
                let (whole, part) = (whole.slice::<X>(), part.slice_mut::<X>());
                for row in 0..rows {
                    part[row * columns..][..columns].copy_from_slice(&whole[row * length + first..][..columns]);
                }
            }),
            Device::Cuda(gpu) => {
                let dtype = whole.dtype();
                let from = (whole.address().element(first, dtype.bytes()), length);
                gpu.copy_columns(dtype, [rows, columns], from, (part.address_mut(), columns))?;
            }
        }
        Ok(())
    }

    /// These elements of `whole` = part.
    fn place(&self, device: &Device, part: &Tensor, whole: &mut Tensor) -> Result<()> {
        let [rows, length, first, columns] = self.matrix();
        match device {
            Device::Cpu(_) => scalars!(part.dtype(), X => {
                let (part, whole) = (part.slice::<X>(), whole.slice_mut::<X>());
                for row in 0..rows {
                    whole[row * length + first..][..columns].copy_from_slice(&part[row * columns..][..columns]);
                }
            }),
            Device::Cuda(gpu) => {
                let dtype = part.dtype();
                let to = (whole.address_mut().element(first, dtype.bytes()), length);
                gpu.copy_columns(dtype, [rows, columns], (part.address(), columns), to)?;
            }
        }
        Ok(())
    }
}

struct Slice {
    from: Shape,
    axis: usize,
    start: usize,
}

impl Op for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let Self { from, axis, start } = *self;
        let mut dx = ctx.tape.alloc(from, dy.dtype())?;
        ctx.tape.launch_on("slice.backward", moved(2 * dx.len() * dx.dtype().bytes()), |device| {
            dx.zero()?;
            Part { whole: &from, axis, start, len: dy.shape()[axis] }.place(device, &dy, &mut dx)
        })?;
        ctx.accumulate_grad(0, dx)
    }
}

/// `parts` one behind the other along dimension `axis`.
///
/// # Errors
/// There are none, or they differ in type or in another dimension.
pub fn concat(tape: &Tape<'_>, parts: &[&Var], axis: usize) -> Result<Var> {
    let Some(first) = parts.first() else {
        return Err(EngineError::shape("concat", "at least one tensor was expected"));
    };
    axis_of("concat", first, axis)?;
    let mut dims = first.shape().to_array();
    let rank = first.shape().len();
    dims[axis] = 0;
    for part in parts {
        let fits = part.shape().len() == rank && (0..rank).all(|i| i == axis || part.shape()[i] == first.shape()[i]);
        if !fits || part.dtype() != first.dtype() {
            let problem = format!(
                "{:?} ({}) and {:?} ({}) cannot be joined along dimension {axis}",
                first.shape(),
                first.dtype(),
                part.shape(),
                part.dtype()
            );
            return Err(EngineError::shape("concat", problem));
        }
        dims[axis] += part.shape()[axis];
    }
    let shape = Shape::new(&dims[..rank]);
    let mut y = tape.alloc(shape, first.dtype())?;
    tape.launch_on("concat", moved(2 * y.len() * y.dtype().bytes()), |device| {
        let mut start = 0;
        for part in parts {
            let len = part.shape()[axis];
            Part { whole: &shape, axis, start, len }.place(device, part.value(), &mut y)?;
            start += len;
        }
        Ok(())
    })?;
    let lengths = || parts.iter().map(|part| part.shape()[axis]).collect();
    tape.record(parts, y, || Concat { axis, lengths: lengths() })
}

struct Concat {
    axis: usize,
    lengths: Box<[usize]>,
}

impl Op for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let (axis, shape) = (self.axis, *dy.shape());
        let mut start = 0;
        for (input, &len) in self.lengths.iter().enumerate() {
            if ctx.needs_grad(input) {
                let mut dims = shape.to_array();
                dims[axis] = len;
                let mut dx = ctx.tape.alloc(&dims[..shape.len()], dy.dtype())?;
                let part = Part { whole: &shape, axis, start, len };
                let moved = moved(2 * dx.len() * dx.dtype().bytes());
                ctx.tape.launch_on("concat.backward", moved, |device| part.take(device, &dy, &mut dx))?;
                ctx.accumulate_grad(input, dx)?;
            }
            start += len;
        }
        Ok(())
    }
}
