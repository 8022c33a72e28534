//! The row of bias + activation in the table of operations: its sizes, its cost, its check against f64.
//!
//! The check keeps the project's rule: the largest error against f64 is at most twice that of a plain f32
//! implementation with the same storage, plus one ulp of the largest output.

use super::cuda::{Activation, BiasActivation};
use crate::{
    DType,
    num::philox::Stream,
    operation::{Case, Cost, Launch, Operation, Outcome, Pass, Target},
    ptx::{
        Sm,
        sim::{Approximation, Argument, Error, Memory, Module},
    },
};
use half::bf16;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI, TAU};

/// Bias and activation, forward and backward.
pub const OPERATION: Operation = Operation { name: "gelu", cases, cost, check, ptx };

fn ptx(sm: Sm) -> Vec<crate::operation::Program> {
    BiasActivation::all().iter().map(|kernel| kernel.program(sm)).collect()
}

/// [T, F]: nothing, one number, one vector, primes, a block of either vector width with one vector more and less, more
/// rows than a block owns, and ALBERT-base's feed-forward activation.
const SIZES: [(usize, usize); 14] = [
    (0, 8),
    (8, 0),
    (1, 1),
    (1, 8),
    (3, 13),
    (5, 127),
    (4, 128),
    (9, 129),
    (2, 508),
    (3, 516),
    (2, 1016),
    (1, 1024),
    (3, 1032),
    (512, 3072),
];

/// Larger cases are left to devices: the simulator runs one thread at a time.
const SIMULATED_ELEMENTS: usize = 1 << 16;

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut kernels = BiasActivation::all();
    kernels.iter_mut().for_each(|kernel| kernel.vector = 1);
    kernels.dedup();
    for (rows, columns) in SIZES {
        all.extend(kernels.iter().map(|kernel| Case {
            pass: kernel.pass,
            dtype: kernel.dtype,
            variant: kernel.variant(),
            dims: vec![("T", rows), ("F", columns)],
        }));
    }
    all
}

/// The kernel of a case.
fn kernel_of(case: &Case) -> BiasActivation {
    let word = |word: &str| case.variant.split('_').any(|w| w == word);
    let activation = Activation::ALL.into_iter().find(|activation| word(activation.name()));
    let activation = activation.unwrap_or_else(|| panic!("the case {case} names no activation"));
    BiasActivation::new(case.pass, case.dtype, activation, word("pre"), case.dim("F"))
}

/// Reads x and b, writes y and, where asked, p; or reads p and dy and writes dx. An elementary function counts as one
/// operation: memory is the limit long before arithmetic.
fn cost(case: &Case) -> Cost {
    let kernel = kernel_of(case);
    let (rows, columns) = (case.dim("T") as u64, case.dim("F") as u64);
    let (matrices, vectors) = match case.pass {
        Pass::Forward => (2 + u64::from(kernel.save_pre), u64::from(rows > 0)),
        Pass::Backward => (3, 0),
    };
    let flops = match (case.pass, kernel.activation) {
        (Pass::Forward, Activation::GeluTanh) => 10,
        (Pass::Forward, Activation::GeluErf) => 6,
        (Pass::Forward, Activation::Relu) => 2,
        (Pass::Backward, Activation::GeluTanh) => 17,
        (Pass::Backward, Activation::GeluErf) => 11,
        (Pass::Backward, Activation::Relu) => 1,
    };
    let bytes = (matrices * rows * columns + vectors * columns) * case.dtype.bytes() as u64;
    Cost { flops: flops * rows * columns, bytes }
}

fn check(case: &Case, target: Target) -> Outcome {
    let Target::Simulator(sm) = target else {
        return Outcome::Skipped { reason: "the row checks its CUDA side; the CPU side has its own tests".to_string() };
    };
    if case.dim("T") * case.dim("F") > SIMULATED_ELEMENTS {
        return Outcome::Skipped { reason: format!("more than {SIMULATED_ELEMENTS} numbers are too slow to simulate") };
    }
    let problem = Problem::new(case);
    let mut worst: f64 = 0.0;
    for approximation in Approximation::ALL {
        let outputs = match problem.simulate(sm, approximation) {
            Ok(outputs) => outputs,
            Err(error) => return Outcome::Failed { message: format!("{case} on {target}: {error}") },
        };
        for (output, wanted) in outputs.iter().zip(problem.wanted()) {
            match wanted.compare(output, case.dtype) {
                Ok(ratio) => worst = worst.max(ratio),
                Err(found) => {
                    let message = format!("{case} on {target}, approximations {approximation:?}: {found}");
                    return Outcome::Failed { message };
                }
            }
        }
    }
    Outcome::Passed { worst }
}

/// A case with its inputs, rounded to the storage type.
struct Problem {
    kernel: BiasActivation,
    rows: usize,
    columns: usize,
    /// Forward x; backward p.
    x: Vec<f32>,
    /// Forward the bias; backward dy.
    other: Vec<f32>,
}

/// One output in f64 and as a plain f32 implementation gives it.
struct Wanted {
    name: &'static str,
    exact: Vec<f64>,
    naive: Vec<f32>,
}

impl Problem {
    fn new(case: &Case) -> Self {
        let (rows, columns) = (case.dim("T"), case.dim("F"));
        let other = if case.pass == Pass::Forward { columns } else { rows * columns };
        let mut stream = Stream::new(0x6E1F, [rows as u32, columns as u32, case.pass as u32]);
        let mut numbers = |count: usize, width: f32| -> Vec<f32> {
            // Where the functions bend. Nothing far out: the largest output sets the scale of the bound for all.
            const CORNERS: [f32; 6] = [0.0, -0.0, 1e-6, -1e-6, 1.4143, -1.4143];
            let draw = |i: usize| match i % 23 {
                7 => CORNERS[i / 23 % CORNERS.len()],
                _ => (2.0 * stream.next_f32() - 1.0) * width,
            };
            (0..count).map(draw).map(|x| rounded(x, case.dtype)).collect()
        };
        let x = numbers(rows * columns, 6.0);
        let other = numbers(other, 1.0);
        Self { kernel: kernel_of(case), rows, columns, x, other }
    }

    /// What the outputs ought to be, in the order of [`Problem::simulate`].
    fn wanted(&self) -> Vec<Wanted> {
        let (kernel, columns) = (self.kernel, self.columns);
        let element = |i: usize| match kernel.pass {
            Pass::Forward => (self.x[i], self.other[i % columns]),
            Pass::Backward => (self.x[i], self.other[i]),
        };
        let collect = |name, exact: &dyn Fn(f64, f64) -> f64, naive: &dyn Fn(f32, f32) -> f32| {
            let pairs = (0..self.x.len()).map(element);
            Wanted {
                name,
                exact: pairs.clone().map(|(a, b)| exact(f64::from(a), f64::from(b))).collect(),
                naive: pairs.map(|(a, b)| rounded(naive(a, b), kernel.dtype)).collect(),
            }
        };
        let act = kernel.activation;
        match kernel.pass {
            Pass::Forward => {
                let mut all = vec![collect("y", &|x, b| value(act, x + b), &|x, b| naive_value(act, x + b))];
                if kernel.save_pre {
                    all.push(collect("pre", &|x, b| x + b, &|x, b| x + b));
                }
                all
            }
            Pass::Backward => {
                vec![collect("dx", &|p, dy| dy * derivative(act, p), &|p, dy| dy * naive_derivative(act, p))]
            }
        }
    }

    /// The outputs of the PTX: y and, where it is saved, p; or dx.
    fn simulate(&self, sm: Sm, approximation: Approximation) -> Result<Vec<Vec<f32>>, Error> {
        let (mut memory, arguments, outputs) = self.set_up();
        if let Some(launch) = self.kernel.launch(self.rows, self.columns) {
            self.launch(sm, launch, &arguments, &mut memory, approximation)?;
        }
        outputs.into_iter().map(|address| load(&memory, address, self.kernel.dtype)).collect()
    }

    /// Memory with the inputs and unwritten outputs, the arguments, and the addresses of the outputs.
    fn set_up(&self) -> (Memory, Vec<Argument>, Vec<u64>) {
        let mut memory = Memory::new();
        let dtype = self.kernel.dtype;
        let x = store(&mut memory, "x or pre", &self.x, dtype);
        let other = store(&mut memory, "bias or dy", &self.other, dtype);
        let bytes = self.x.len() * dtype.bytes();
        let mut outputs = vec![memory.allocate("y or dx", bytes)];
        if self.kernel.save_pre {
            outputs.push(memory.allocate("pre", bytes));
        }
        let addresses = [x, other].into_iter().chain(outputs.iter().copied());
        let mut arguments: Vec<Argument> = addresses.map(Argument::U64).collect();
        arguments.extend([self.rows, self.columns].map(|size| Argument::U32(size as u32)));
        (memory, arguments, outputs)
    }

    /// Runs the PTX.
    fn launch(
        &self,
        sm: Sm,
        launch: Launch,
        arguments: &[Argument],
        memory: &mut Memory,
        approximation: Approximation,
    ) -> Result<(), Error> {
        let program = self.kernel.program(sm);
        let module = Module::parse(&program.text)?;
        module.launch(&program.name.entry(), launch, arguments, memory, approximation)?;
        Ok(())
    }
}

impl Wanted {
    /// The largest error over the bound, or what is wrong.
    fn compare(&self, output: &[f32], dtype: DType) -> Result<f64, String> {
        let errors = |values: &[f32]| -> Vec<f64> {
            values.iter().zip(&self.exact).map(|(value, exact)| (f64::from(*value) - exact).abs()).collect()
        };
        let naive = errors(&self.naive).into_iter().fold(0.0, f64::max);
        let scale = self.exact.iter().fold(0.0, |scale: f64, exact| scale.max(exact.abs()));
        let bound = 2.0 * naive + ulp(scale, dtype);
        let mut worst: f64 = 0.0;
        for (i, error) in errors(output).into_iter().enumerate() {
            if error.is_nan() || error > bound {
                let (name, got, exact) = (self.name, output[i], self.exact[i]);
                return Err(format!(
                    "{name}[{i}] is {got:e}, the f64 reference {exact:e}: off by {error:e}, bound {bound:e}"
                ));
            }
            worst = worst.max(error / bound);
        }
        Ok(worst)
    }
}

/// One unit in the last place of numbers as large as `scale`.
fn ulp(scale: f64, dtype: DType) -> f64 {
    let digits = if dtype == DType::F32 { 23.0 } else { 7.0 };
    (scale.max(f64::from(f32::MIN_POSITIVE)).log2().floor() - digits).exp2()
}

fn rounded(x: f32, dtype: DType) -> f32 {
    if dtype == DType::F32 { x } else { bf16::from_f32(x).to_f32() }
}

fn store(memory: &mut Memory, name: &str, values: &[f32], dtype: DType) -> u64 {
    match dtype {
        DType::F32 => memory.allocate_from(name, values),
        DType::Bf16 => {
            memory.allocate_from(name, &values.iter().map(|x| bf16::from_f32(*x).to_bits()).collect::<Vec<u16>>())
        }
    }
}

fn load(memory: &Memory, address: u64, dtype: DType) -> Result<Vec<f32>, Error> {
    match dtype {
        DType::F32 => memory.read(address),
        DType::Bf16 => {
            Ok(memory.read::<u16>(address)?.into_iter().map(|bits| bf16::from_bits(bits).to_f32()).collect())
        }
    }
}

/// act(x) in f64.
fn value(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::GeluTanh => 0.5 * x * (1.0 + (tanh_argument(x)).tanh()),
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
        Activation::Relu => x.max(0.0),
    }
}

/// act'(x) in f64.
fn derivative(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::GeluTanh => {
            let t = tanh_argument(x).tanh();
            let slope = (2.0 / PI).sqrt() * (1.0 + 3.0 * 0.044715 * x * x);
            // 1 - t² is 0 where x² may be infinite in f32's range; in f64 it is not.
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope
        }
        Activation::GeluErf => 0.5 * (1.0 + erf(x * FRAC_1_SQRT_2)) + x * (-0.5 * x * x).exp() / TAU.sqrt(),
        Activation::Relu => f64::from(x > 0.0),
    }
}

fn tanh_argument(x: f64) -> f64 {
    (2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)
}

/// erf by its series below 3 and the continued fraction of erfc above (Abramowitz & Stegun 7.1.6, 7.1.14); 1e-15.
pub(crate) fn erf(x: f64) -> f64 {
    let z = x.abs();
    let magnitude = if z < 3.0 {
        let (mut term, mut sum, mut n) = (z, z, 0.0);
        while term > 1e-18 * sum {
            n += 1.0;
            term *= 2.0 * z * z / (2.0 * n + 1.0);
            sum += term;
        }
        sum * FRAC_2_SQRT_PI * (-z * z).exp()
    } else {
        let fraction = (1..80).rev().fold(0.0, |below, k| f64::from(k) / 2.0 / (z + below));
        1.0 - (-z * z).exp() / (z + fraction) / PI.sqrt()
    };
    magnitude.copysign(x)
}

/// act(x) as one writes it in f32 at first.
fn naive_value(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::GeluTanh => 0.5 * x * (1.0 + naive_tanh_argument(x).tanh()),
        Activation::GeluErf => 0.5 * x * (1.0 + naive_erf(x)),
        Activation::Relu => x.max(0.0),
    }
}

/// act'(x) as one writes it in f32 at first.
fn naive_derivative(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::GeluTanh => {
            let t = naive_tanh_argument(x).tanh();
            let slope = (2.0 / PI).sqrt() as f32 * (1.0 + 3.0 * 0.044715 * x * x);
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope
        }
        Activation::GeluErf => 0.5 * (1.0 + naive_erf(x)) + x * (-0.5 * x * x).exp() / (TAU as f32).sqrt(),
        Activation::Relu => f32::from(x > 0.0),
    }
}

fn naive_tanh_argument(x: f32) -> f32 {
    (2.0 / PI).sqrt() as f32 * (x + 0.044715 * x * x * x)
}

/// erf(x/√2) of an f32, correctly rounded: the standard library has no erf of its own.
fn naive_erf(x: f32) -> f32 {
    erf(f64::from(x * FRAC_1_SQRT_2 as f32)) as f32
}

#[cfg(test)]
mod tests;
