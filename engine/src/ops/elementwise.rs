//! Operations on one element at a time: exp, log, tanh, sigmoid, the activations, and scaling by a number.
//!
//! ```text
//! y = exp x       dx = dy·y            y = tanh x      dx = dy·(1 - y²)
//! y = log x       dx = dy / x          y = sigmoid x   dx = dy·y·(1 - y)
//! y = c·x         dx = c·dy            y = act x       dx = dy·act'(x)
//! ```
use super::check;
use crate::{
    device::Device,
    dtype::{DType, Float, floats},
    error::Result,
    launch::storage,
    tape::{BackwardContext, Op, Tape, Var, moved},
    tensor::Tensor,
};
use kernels::{
    Cost, Cpu, activation,
    elementwise::{self, Keeps, Unary},
    reduce,
};
use kernels_cuda::program;
use kernels_cuda::{
    activation::{BackwardArgs, BiasActivation, ForwardArgs},
    elementwise::Function as Map,
};

pub use kernels::activation::Activation;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    Exp,
    Log,
    Tanh,
    Sigmoid,
    Scale(f32),
}

impl Function {
    fn name(self) -> &'static str {
        match self {
            Self::Exp => "exp",
            Self::Log => "log",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
            Self::Scale(_) => "scale",
        }
    }
    fn forward<X: Float>(self, cpu: &Cpu, x: &[X], y: &mut [X]) {
        match self.kernel() {
            Ok(function) => elementwise::unary_forward(cpu, function, x, y),
            Err(factor) => elementwise::scale(cpu, factor, x, y),
        }
    }
    /// dx from dy and what was saved.
    fn backward<X: Float>(self, cpu: &Cpu, saved: Option<&[X]>, dy: &[X], dx: &mut [X]) {
        match (self.kernel(), saved) {
            (Ok(function), Some(saved)) => elementwise::unary_backward(cpu, function, saved, dy, dx),
            (Err(factor), _) => elementwise::scale(cpu, factor, dy, dx),
            (Ok(_), None) => unreachable!("every function but the scale saves its input or its output"),
        }
    }
    /// The kernel's function, or the factor.
    fn kernel(self) -> std::result::Result<Unary, f32> {
        match self {
            Self::Exp => Ok(Unary::Exp),
            Self::Log => Ok(Unary::Ln),
            Self::Tanh => Ok(Unary::Tanh),
            Self::Sigmoid => Ok(Unary::Sigmoid),
            Self::Scale(factor) => Err(factor),
        }
    }
}

fn cost(x: &Tensor, streams: usize, flops: u64) -> Cost {
    Cost { flops: flops * x.len() as u64, bytes: (streams * x.len() * x.dtype().bytes()) as u64 }
}

fn apply(tape: &Tape<'_>, x: &Var, function: Function) -> Result<Var> {
    let dtype = check::float(function.name(), x)?;
    let mut y = tape.alloc(*x.shape(), dtype)?;
    let input = x.value();
    tape.launch_on(function.name(), cost(input, 2, 1), |device| match device {
        Device::Cpu(cpu) => {
            floats!(dtype, X => function.forward(cpu, input.slice::<X>(), y.slice_mut::<X>()));
            Ok(())
        }
        Device::Cuda(gpu) => {
            let (map, factor) = function.kernel().map_or_else(|c| (Map::Scale, Some(c)), |f| (Map::Unary(f), None));
            gpu.map(map, &[input.address()], factor, &mut y)
        }
    })?;
    let saved = match function.kernel().map(Unary::keeps) {
        Ok(Keeps::Input) => Some(input.clone()),
        Ok(Keeps::Output) => Some(y.clone()),
        Err(_) => None,
    };
    tape.record(&[x], y, || Elementwise { function, saved })
}

struct Elementwise {
    function: Function,
    saved: Option<Tensor>,
}

impl Op for Elementwise {
    fn name(&self) -> &'static str {
        self.function.name()
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let Self { function, saved } = *self;
        let mut dx = ctx.tape.alloc(*dy.shape(), dy.dtype())?;
        ctx.tape.launch_on("elementwise.backward", cost(&dy, 3, 2), |device| match device {
            Device::Cpu(cpu) => {
                floats!(dy.dtype(), X => {
                    let saved = saved.as_ref().map(|saved| saved.slice::<X>());
                    function.backward(cpu, saved, dy.slice::<X>(), dx.slice_mut::<X>());
                });
                Ok(())
            }
            Device::Cuda(gpu) => match (function.kernel(), &saved) {
                (Ok(f), Some(saved)) => gpu.map(Map::UnaryBackward(f), &[saved.address(), dy.address()], None, &mut dx),
                (Err(factor), _) => gpu.map(Map::Scale, &[dy.address()], Some(factor), &mut dx),
                (Ok(_), None) => unreachable!("every function but the scale saves its input or its output"),
            },
        })?;
        ctx.accumulate_grad(0, dx)
    }
}

/// eˣ
///
/// # Errors
/// `x` holds integers.
pub fn exp(tape: &Tape<'_>, x: &Var) -> Result<Var> {
    apply(tape, x, Function::Exp)
}

/// The natural logarithm.
///
/// # Errors
/// `x` holds integers.
pub fn log(tape: &Tape<'_>, x: &Var) -> Result<Var> {
    apply(tape, x, Function::Log)
}

/// The hyperbolic tangent.
///
/// # Errors
/// `x` holds integers.
pub fn tanh(tape: &Tape<'_>, x: &Var) -> Result<Var> {
    apply(tape, x, Function::Tanh)
}

/// 1 / (1 + e⁻ˣ)
///
/// # Errors
/// `x` holds integers.
pub fn sigmoid(tape: &Tape<'_>, x: &Var) -> Result<Var> {
    apply(tape, x, Function::Sigmoid)
}

/// c·x
///
/// # Errors
/// `x` holds integers.
pub fn scale(tape: &Tape<'_>, x: &Var, factor: f32) -> Result<Var> {
    apply(tape, x, Function::Scale(factor))
}

/// max(x, 0)
///
/// # Errors
/// `x` holds integers.
pub fn relu(tape: &Tape<'_>, x: &Var) -> Result<Var> {
    activation(tape, x, Activation::Relu)
}

/// An activation: either form of GELU, or ReLU.
///
/// # Errors
/// `x` holds integers.
pub fn activation(tape: &Tape<'_>, x: &Var, activation: Activation) -> Result<Var> {
    let dtype = check::float(activation.name(), x)?;
    let mut y = tape.alloc(*x.shape(), dtype)?;
    activate(tape, "activation", activation, x.value(), &mut y)?;
    tape.record(&[x], y, || ActivationOp { activation, x: x.value().clone() })
}

/// y = act x
pub(super) fn activate(
    tape: &Tape<'_>,
    name: &'static str,
    activation: Activation,
    x: &Tensor,
    y: &mut Tensor,
) -> Result<()> {
    tape.launch_on(name, cost(x, 2, activation_flops(activation)), |device| match device {
        Device::Cpu(cpu) => {
            floats!(x.dtype(), X => {
                activation::bias_activation_forward(cpu, activation, x.slice::<X>(), None, None, y.slice_mut::<X>());
            });
            Ok(())
        }
        Device::Cuda(gpu) => {
            let (rows, columns) = x.shape().rows_cols();
            let kernel = BiasActivation::plain(storage(x.dtype()), activation, columns);
            let (x, y) = (x.address(), y.address_mut());
            let arguments = ForwardArgs { x, bias: None, y, pre: None, rows, columns };
            gpu.run(&kernel, kernel.launch(rows, columns), &arguments)
        }
    })
}

/// dx = dy · act'(x)
fn activate_backward(
    tape: &Tape<'_>,
    name: &'static str,
    activation: Activation,
    x: &Tensor,
    dy: &Tensor,
    dx: &mut Tensor,
) -> Result<()> {
    tape.launch_on(name, cost(x, 3, activation_flops(activation)), |device| match device {
        Device::Cpu(cpu) => {
            floats!(x.dtype(), X => {
                activation::backward(cpu, activation, x.slice::<X>(), dy.slice::<X>(), dx.slice_mut::<X>());
            });
            Ok(())
        }
        Device::Cuda(gpu) => {
            let (rows, columns) = x.shape().rows_cols();
            let kernel = BiasActivation::new(program::Pass::Backward, storage(x.dtype()), activation, false, columns);
            let (pre, dy, dx) = (x.address(), dy.address(), dx.address_mut());
            let arguments = BackwardArgs { pre, dy, dx, rows, columns };
            gpu.run(&kernel, kernel.launch(rows, columns), &arguments)
        }
    })
}

/// Operations of one element: multiplications and additions of the polynomial, as counted by its row in the table.
pub(super) fn activation_flops(activation: Activation) -> u64 {
    match activation {
        Activation::Relu => 1,
        Activation::GeluTanh => 20,
        Activation::GeluErf => 30,
    }
}

struct ActivationOp {
    activation: Activation,
    x: Tensor,
}

impl Op for ActivationOp {
    fn name(&self) -> &'static str {
        "activation"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let mut dx = ctx.tape.alloc(*dy.shape(), dy.dtype())?;
        activate_backward(ctx.tape, "activation.backward", self.activation, &self.x, &dy, &mut dx)?;
        ctx.accumulate_grad(0, dx)
    }
}

/// out += column sums of x [rows, cols], at `range` of a flat f32 buffer.
pub(super) fn column_sums(tape: &Tape<'_>, x: &Tensor, flat: &mut Tensor, range: std::ops::Range<usize>) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let mut scratch = tape.alloc([reduce::column_sums_scratch_len(rows, cols)], DType::F32)?;
    tape.launch_on("column_sums", moved(x.len() * x.dtype().bytes()), |device| match device {
        Device::Cpu(cpu) => {
            let out = &mut flat.slice_mut::<f32>()[range];
            floats!(x.dtype(), X => reduce::column_sums(cpu, rows, cols, x.slice::<X>(), out, scratch.slice_mut()));
            Ok(())
        }
        Device::Cuda(gpu) => {
            let out = flat.address_mut().element(range.start, 4);
            gpu.add_column_sums((x.address(), x.dtype()), [1, rows, cols], [out])
        }
    })
}
