//! Matrix product, of two matrices or of two stacks of matrices.
//!
//! ```text
//! C = op(A)·op(B)      op(X) = X or Xᵀ
//! dA = dC·op(B)ᵀ       dB = op(A)ᵀ·dC       transposed once more where the operand was
//! ```
//!
//! Shapes: [m, k] and [k, n] give [m, n]; [.., m, k] and [.., k, n] with equal leading sizes give [.., m, n]; a single
//! B [k, n] serves a stack of As. Cost: 2·m·n·k FLOPs per product, forward; twice that backward. On a GPU each product of a
//! stack is a launch of its own.
use super::check;
use crate::{
    device::{Device, Gpu},
    dtype::{DType, floats},
    error::{EngineError, Result},
    launch::Operands,
    shape::Shape,
    tape::{BackwardContext, Op, Tape, Var},
    tensor::Tensor,
};
use kernels::{
    Cost,
    gemm::{Batch, Epilogue, Gemm, Layout},
};

/// The transposed operands of [`matmul`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Transpose {
    /// A is stored as [k, m].
    pub a: bool,
    /// B is stored as [n, k].
    pub b: bool,
}

impl Transpose {
    /// Neither.
    pub const NONE: Self = Self { a: false, b: false };
    /// B alone: scores = q·kᵀ.
    pub const B: Self = Self { a: false, b: true };
    /// A alone.
    pub const A: Self = Self { a: true, b: false };
}

/// The product of `a` and `b`; see the module.
///
/// # Errors
/// Sizes do not fit, types differ, or an operand has fewer than two dimensions.
pub fn matmul(tape: &Tape<'_>, a: &Var, b: &Var, transpose: Transpose) -> Result<Var> {
    let dtype = check::same_float("matmul", &[a, b])?;
    let product = Product::new(a.shape(), b.shape(), transpose).ok_or_else(|| {
        let side = |x: &Var, transposed| format!("{:?}{}", x.shape(), if transposed { "ᵀ" } else { "" });
        let (a, b) = (side(a, transpose.a), side(b, transpose.b));
        EngineError::shape("matmul", format!("{a} and {b} do not fit: [.., m, k] and [.., k, n] were expected"))
    })?;
    let mut c = tape.alloc(product.output(a.shape()), dtype)?;
    product.launch(tape, a.value(), b.value(), &mut c)?;
    tape.record(&[a, b], c, || MatMul { product, a: a.value().clone(), b: b.value().clone() })
}

/// The sizes of a product: `count` times [m, k]·[k, n].
#[derive(Clone, Copy, Debug)]
struct Product {
    count: usize,
    m: usize,
    n: usize,
    k: usize,
    transpose: Transpose,
    /// One B for all.
    shared: bool,
}

impl Product {
    fn new(a: &Shape, b: &Shape, transpose: Transpose) -> Option<Self> {
        let ([outer_a @ .., a0, a1], [outer_b @ .., b0, b1]) = (&a[..], &b[..]) else { return None };
        let (m, k) = if transpose.a { (*a1, *a0) } else { (*a0, *a1) };
        let (k_b, n) = if transpose.b { (*b1, *b0) } else { (*b0, *b1) };
        let shared = outer_b.is_empty() && !outer_a.is_empty();
        if k != k_b || !(shared || outer_a == outer_b) {
            return None;
        }
        Some(Self { count: outer_a.iter().product(), m, n, k, transpose, shared })
    }

    fn output(&self, a: &Shape) -> Shape {
        let mut dims = a.to_array();
        let rank = a.len();
        dims[rank - 2] = self.m;
        dims[rank - 1] = self.n;
        Shape::new(&dims[..rank])
    }

    fn launch(&self, tape: &Tape<'_>, a: &Tensor, b: &Tensor, c: &mut Tensor) -> Result<()> {
        let layout = |transposed| if transposed { Layout::Transposed } else { Layout::Normal };
        let spec = Gemm::new(self.m, self.n, self.k, layout(self.transpose.a), layout(self.transpose.b));
        let batch = Batch {
            count: self.count,
            stride_a: self.m * self.k,
            stride_b: if self.shared { 0 } else { self.k * self.n },
            stride_c: self.m * self.n,
        };
        run(tape, "matmul", &spec, &batch, a, b, c)
    }

    fn cost(count: usize, spec: &Gemm, bytes: usize) -> Cost {
        Cost { flops: count as u64 * spec.flops(), bytes: bytes as u64 }
    }
}

fn run(
    tape: &Tape<'_>,
    name: &'static str,
    spec: &Gemm,
    batch: &Batch,
    a: &Tensor,
    b: &Tensor,
    c: &mut Tensor,
) -> Result<()> {
    let bytes = (a.len() + b.len() + c.len()) * a.dtype().bytes();
    let spec = &spec.with_precision(tape.precision(a.dtype()));
    tape.launch_on(name, Product::cost(batch.count, spec, bytes), |device| match device {
        Device::Cpu(cpu) => {
            floats!(a.dtype(), X => match c.dtype() {
                DType::F32 if batch.count == 1 => {
                    let (a, b) = (a.slice::<X>(), b.slice::<X>());
                    kernels::gemm::gemm(cpu, spec, a, b, c.slice_mut::<f32>(), Epilogue::NONE);
                }
                _ => kernels::gemm::batched(cpu, spec, batch, a.slice::<X>(), b.slice::<X>(), c.slice_mut::<X>()),
            });
            Ok(())
        }
        Device::Cuda(gpu) => on_gpu(gpu, spec, batch, a, b, c),
    })
}

/// The products of a stack on a GPU, one after another.
fn on_gpu(gpu: &Gpu, spec: &Gemm, batch: &Batch, a: &Tensor, b: &Tensor, c: &mut Tensor) -> Result<()> {
    let (inputs, output) = (a.dtype(), c.dtype());
    let addresses = [a.address(), b.address(), c.address_mut()];
    for i in 0..batch.count {
        let operands = Operands {
            a: addresses[0].element(i * batch.stride_a, inputs.bytes()),
            b: addresses[1].element(i * batch.stride_b, inputs.bytes()),
            c: addresses[2].element(i * batch.stride_c, output.bytes()),
            inputs,
            output,
        };
        gpu.product(spec, &operands, &Epilogue::NONE)?;
    }
    Ok(())
}

struct MatMul {
    product: Product,
    a: Tensor,
    b: Tensor,
}

impl Op for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let Product { count, m, n, k, transpose, shared } = self.product;
        let tape = ctx.tape;
        // dA = dC·op(B)ᵀ, or its transpose op(B)·dCᵀ.
        if ctx.needs_grad(0) {
            let mut da = tape.alloc(*self.a.shape(), self.a.dtype())?;
            let layout_b = if transpose.b { Layout::Normal } else { Layout::Transposed };
            let stride_b = if shared { 0 } else { k * n };
            if transpose.a {
                let layout = if transpose.b { Layout::Transposed } else { Layout::Normal };
                let spec = Gemm::new(k, m, n, layout, Layout::Transposed);
                let batch = Batch { count, stride_a: stride_b, stride_b: m * n, stride_c: m * k };
                run(tape, "matmul.backward", &spec, &batch, &self.b, &dy, &mut da)?;
            } else {
                let spec = Gemm::new(m, k, n, Layout::Normal, layout_b);
                let batch = Batch { count, stride_a: m * n, stride_b, stride_c: m * k };
                run(tape, "matmul.backward", &spec, &batch, &dy, &self.b, &mut da)?;
            }
            ctx.accumulate_grad(0, da)?;
        }
        if ctx.needs_grad(1) {
            let mut db = tape.alloc(*self.b.shape(), self.b.dtype())?;
            if shared {
                self.shared_gradient(tape, &dy, &mut db)?;
            } else {
                // dB = op(A)ᵀ·dC, or its transpose dCᵀ·op(A).
                let (spec, batch, first, second) = if transpose.b {
                    let layout = if transpose.a { Layout::Transposed } else { Layout::Normal };
                    let spec = Gemm::new(n, k, m, Layout::Transposed, layout);
                    (spec, Batch { count, stride_a: m * n, stride_b: m * k, stride_c: k * n }, &dy, &self.a)
                } else {
                    let layout = if transpose.a { Layout::Normal } else { Layout::Transposed };
                    let spec = Gemm::new(k, n, m, layout, Layout::Normal);
                    (spec, Batch { count, stride_a: m * k, stride_b: m * n, stride_c: k * n }, &self.a, &dy)
                };
                run(tape, "matmul.backward", &spec, &batch, first, second, &mut db)?;
            }
            ctx.accumulate_grad(1, db)?;
        }
        Ok(())
    }
}

impl MatMul {
    /// The gradient of one B that served all As: the sum over the stack, in the order of the stack. The sum is f32
    /// whatever the storage.
    fn shared_gradient(&self, tape: &Tape<'_>, dy: &Tensor, db: &mut Tensor) -> Result<()> {
        let Product { count, m, n, k, transpose, .. } = self.product;
        let mut sum = tape.alloc([k * n], DType::F32)?;
        let spec = if transpose.b {
            let layout = if transpose.a { Layout::Transposed } else { Layout::Normal };
            Gemm::new(n, k, m, Layout::Transposed, layout)
        } else {
            let layout = if transpose.a { Layout::Normal } else { Layout::Transposed };
            Gemm::new(k, n, m, layout, Layout::Normal)
        };
        let bytes = (self.a.len() + dy.len()) * dy.dtype().bytes();
        tape.launch_on("matmul.backward", Product::cost(count, &spec, bytes), |device| {
            sum.zero()?;
            let cpu = match device {
                Device::Cpu(cpu) => cpu,
                Device::Cuda(gpu) => {
                    let (first, second) = if transpose.b { (dy, &self.a) } else { (&self.a, dy) };
                    let [stride_a, stride_b] = if transpose.b { [m * n, m * k] } else { [m * k, m * n] };
                    let batch = Batch { count, stride_a, stride_b, stride_c: 0 };
                    on_gpu(gpu, &spec.accumulate(), &batch, first, second, &mut sum)?;
                    return if db.dtype() == DType::F32 { gpu.copy(&sum, db) } else { gpu.cast(&sum, db) };
                }
            };
            floats!(dy.dtype(), X => {
                let sum = sum.slice_mut::<f32>();
                let spec = spec.accumulate().with_precision(tape.precision(dy.dtype()));
                for i in 0..count {
                    let a = &self.a.slice::<X>()[i * m * k..(i + 1) * m * k];
                    let dy = &dy.slice::<X>()[i * m * n..(i + 1) * m * n];
                    let (first, second) = if transpose.b { (dy, a) } else { (a, dy) };
                    kernels::gemm::gemm(cpu, &spec, first, second, sum, Epilogue::NONE);
                }
                for (db, &sum) in db.slice_mut::<X>().iter_mut().zip(sum.iter()) {
                    *db = kernels::Element::from_f32(sum);
                }
            });
            Ok(())
        })
    }
}
