//! Operations that move elements or rename them, and compute nothing: reshape, transpose, slice, concat.
//!
//! reshape and a slice of rows share memory with their input and cost nothing forward; the others copy once.
//! Their gradients are the same movements backwards: a slice's is the gradient within zeros, a concat's are slices.
use crate::{
    dtype::{DType, Scalar},
    error::{EngineError, Result},
    shape::Shape,
    tape::{Op, Pass, Tape, Var, moved},
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
    fn backward(self: Box<Self>, dy: Tensor, pass: &mut Pass<'_, '_>) -> Result<()> {
        pass.give(0, dy.reshape(self.from)?)
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

/// A copy with dimensions `a` <= `b` swapped.
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
    fn backward(self: Box<Self>, dy: Tensor, pass: &mut Pass<'_, '_>) -> Result<()> {
        let dx = swapped(pass.tape, &dy, self.a, self.b)?;
        pass.give(0, dx)
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
        let x = x.value();
        tape.launch("slice", moved(2 * y.len() * y.dtype().bytes()), |_| {
            scalars!(x.dtype(), X => copy_part(&from, axis, range.start, range.len(), x.slice::<X>(), y.slice_mut::<X>()));
        })?;
        y
    };
    tape.record(&[x], y, || Slice { from, axis, start: range.start })
}

/// Copies `len` indices from `start` on of dimension `axis` of `whole` into `part`.
fn copy_part<X: Scalar>(shape: &Shape, axis: usize, start: usize, len: usize, whole: &[X], part: &mut [X]) {
    let [outer, size, inner] = around(shape, axis);
    for o in 0..outer {
        let from = (o * size + start) * inner;
        part[o * len * inner..][..len * inner].copy_from_slice(&whole[from..from + len * inner]);
    }
}

/// The opposite of [`copy_part`]: writes `part` into `whole`.
fn place_part<X: Scalar>(shape: &Shape, axis: usize, start: usize, len: usize, part: &[X], whole: &mut [X]) {
    let [outer, size, inner] = around(shape, axis);
    for o in 0..outer {
        let at = (o * size + start) * inner;
        whole[at..at + len * inner].copy_from_slice(&part[o * len * inner..][..len * inner]);
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
    fn backward(self: Box<Self>, dy: Tensor, pass: &mut Pass<'_, '_>) -> Result<()> {
        let Self { from, axis, start } = *self;
        let mut dx = pass.tape.alloc(from, dy.dtype())?;
        pass.tape.launch("slice.backward", moved(2 * dx.len() * dx.dtype().bytes()), |_| {
            scalars!(dy.dtype(), X => {
                let whole = dx.slice_mut::<X>();
                whole.fill(bytemuck::Zeroable::zeroed());
                place_part(&from, axis, start, dy.shape()[axis], dy.slice::<X>(), whole);
            });
        })?;
        pass.give(0, dx)
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
    tape.launch("concat", moved(2 * y.len() * y.dtype().bytes()), |_| {
        scalars!(y.dtype(), X => {
            let whole = y.slice_mut::<X>();
            let mut start = 0;
            for part in parts {
                let len = part.shape()[axis];
                place_part(&shape, axis, start, len, part.value().slice::<X>(), whole);
                start += len;
            }
        });
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
    fn backward(self: Box<Self>, dy: Tensor, pass: &mut Pass<'_, '_>) -> Result<()> {
        let (axis, shape) = (self.axis, *dy.shape());
        let mut start = 0;
        for (input, &len) in self.lengths.iter().enumerate() {
            if pass.wants(input) {
                let mut dims = shape.to_array();
                dims[axis] = len;
                let mut dx = pass.tape.alloc(&dims[..shape.len()], dy.dtype())?;
                pass.tape.launch("concat.backward", moved(2 * dx.len() * dx.dtype().bytes()), |_| {
                    scalars!(dy.dtype(), X => copy_part(&shape, axis, start, len, dy.slice::<X>(), dx.slice_mut::<X>()));
                })?;
                pass.give(input, dx)?;
            }
            start += len;
        }
        Ok(())
    }
}
