//! An operation whose kernel is your own PTX: y = x², dx = 2·x·dy, on a simulated GPU and on the CPU.
//!
//! One kernel serves both passes: out = factor·a·b, element by element.
//!
//! `cargo run --release -p albert-engine --example own_gpu_kernel`
use engine::device::{PtxKernel, driver::Value};
use engine::{
    BackwardContext, Cost, Cpu, DType, Device, EngineError, Op, ParamBuilder, Result, Tape, Tensor, Var, Workspace,
};
use ptx::{F32, Launch, Module, Sm, Special, U32};

/// Threads of a block.
const THREADS: u32 = 128;

/// The kernel. It has one specialization; fields such as a tile or a type would make several.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Product;

impl PtxKernel for Product {
    fn entry(&self) -> String {
        "product_of_elements".to_owned()
    }

    fn module(&self, sm: Sm) -> Module {
        let mut module = Module::new(sm);
        module.entry(&self.entry(), [THREADS, 1, 1], |k| {
            let [out, a, b] = ["out", "a", "b"].map(|name| k.pointer_param(name));
            let (factor, n) = (k.param::<F32>("factor"), k.param::<U32>("n"));
            let [out, a, b] = [out, a, b].map(|pointer| k.cvta_to_global(k.ld_param_pointer(pointer)));
            let (factor, n) = (k.ld_param(factor), k.ld_param(n));
            let i = k.mad_lo(k.special(Special::CtaidX), k.special(Special::NtidX), k.special(Special::TidX));
            k.if_(k.lt(i, n), || {
                let [[a], [b]] = [a, b].map(|from| k.ld::<F32, 1>(k.index(from, i, 4).at(0)));
                k.st(k.index(out, i, 4).at(0), [k.mul(factor, k.mul(a, b))]);
            });
        });
        module
    }
}

/// out = factor·a·b on the device of the tape.
fn multiply(tape: &Tape<'_>, name: &'static str, out: &mut Tensor, factor: f32, [a, b]: [&Tensor; 2]) -> Result<()> {
    let cost = Cost { flops: 2 * out.len() as u64, bytes: 12 * out.len() as u64 };
    tape.launch_on(name, cost, |device| match device {
        Device::Cpu(_) => {
            let operands = a.slice::<f32>().iter().zip(b.slice::<f32>());
            out.slice_mut::<f32>().iter_mut().zip(operands).for_each(|(out, (a, b))| *out = factor * (a * b));
            Ok(())
        }
        Device::Cuda(gpu) => {
            let n = out.len() as u32;
            let launch = Launch { grid: [n.div_ceil(THREADS), 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 };
            let [a, b] = [a, b].map(|operand| Value::Address(operand.address()));
            let arguments = [Value::Address(out.address_mut()), a, b, Value::F32(factor), Value::U32(n)];
            gpu.launch_ptx(&Product, launch, &arguments)
        }
    })
}

/// y = x²
///
/// # Errors
/// `x` is not f32, or the device failed.
pub fn square(tape: &Tape<'_>, x: &Var) -> Result<Var> {
    if x.dtype() != DType::F32 {
        return Err(EngineError::shape("square", format!("x is {:?}; expected f32", x.value())));
    }
    let mut y = tape.alloc(*x.shape(), DType::F32)?;
    multiply(tape, "square", &mut y, 1.0, [x.value(), x.value()])?;
    tape.record(&[x], y, || Square { x: x.value().clone() })
}

struct Square {
    x: Tensor,
}

impl Op for Square {
    fn name(&self) -> &'static str {
        "square"
    }

    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let mut dx = ctx.tape.alloc(*dy.shape(), DType::F32)?;
        multiply(ctx.tape, "square.backward", &mut dx, 2.0, [&self.x, &dy])?;
        ctx.accumulate_grad(0, dx)
    }
}

/// y and dx for some x and dy, on the device called `name`.
///
/// # Errors
/// The device does not exist or failed.
pub fn run(name: &str) -> Result<[Vec<f32>; 2]> {
    let device = Device::named(name, Cpu::detect()?)?;
    let params = ParamBuilder::new().build(device.processor(), 0)?;
    let mut gradients = params.gradients(&device)?;
    let mut workspace = Workspace::new(device);
    let tape = workspace.train(&params, None);
    let x: Vec<f32> = (0..300).map(|i| i as f32 / 100.0 - 1.0).collect();
    let x = tape.leaf(tape.input([3, 100], &x)?.value().clone())?;
    let y = square(&tape, &x)?;
    let dy = tape.input([3, 100], &[0.5f32; 300])?.value().clone();
    let leaves = tape.backward_from(&y, dy, &mut gradients)?;
    let dx = leaves.get(&x).expect("y depends on x");
    Ok([y.value().to_vec()?, dx.to_vec()?])
}

fn main() -> Result<()> {
    let (on_gpu, on_cpu) = (run("cuda-sim")?, run("cpu")?);
    println!("y = {}, dx = {} at x = 1.99; same as on the CPU: {}", on_gpu[0][299], on_gpu[1][299], on_gpu == on_cpu);
    Ok(())
}
