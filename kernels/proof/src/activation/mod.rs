//! Row of bias + activation in the table of operations: sizes, cost, check against f64 on the CPU and, for the PTX, in the
//! simulator.

#[cfg(test)]
mod cases_tests;
pub mod reference;

use crate::check::{greatest_error, on_any_runner, within_error};
use crate::entry::*;
use kernels::Cpu;
use kernels::activation::{Activation, backward, bias_activation_forward};
use kernels_cuda::activation::{BackwardArgs, BiasActivation, ForwardArgs};
use kernels_cuda::arguments::{Address, Arguments};
use ptx::sim::{Argument, Memory};
use std::cell::LazyCell;

/// Bias and activation, forward and backward.
pub const OPERATION: Operation = Operation { name: "activation", cases, cost, check, ptx };

fn ptx(sm: Sm) -> Vec<Program> {
    BiasActivation::all().iter().map(|kernel| kernel.program(sm)).collect()
}

/// [T, F]: empty, one element, one vector, primes, a block of either vector width with one vector more and less, more rows
/// than a block computes at once, and ALBERT-base's feed-forward activation.
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

/// Maximum elements of a case that is checked; larger cases are only timed, because the reference in f64 and the simulator
/// are slow.
const CHECKED_ELEMENTS: usize = 1 << 16;

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

/// Kernel of a case.
fn kernel_of(case: &Case) -> BiasActivation {
    let word = |word: &str| case.variant.split('_').any(|w| w == word);
    let activation = Activation::ALL.into_iter().find(|activation| word(activation.name()));
    let activation = activation.unwrap_or_else(|| panic!("the case {case} names no activation"));
    match case.pass {
        Pass::Forward if !word("bias") => BiasActivation::plain(case.dtype, activation, case.dim("F")),
        pass => BiasActivation::new(pass, case.dtype, activation, word("pre"), case.dim("F")),
    }
}

/// Cost of a case: forward reads x and b and writes y and, if saved, p; backward reads p and dy and writes dx. An elementary
/// function counts as one operation, because the kernel is memory-bound.
fn cost(case: &Case) -> Cost {
    let kernel = kernel_of(case);
    let (rows, columns) = (case.dim("T") as u64, case.dim("F") as u64);
    let (matrices, biases) = match case.pass {
        Pass::Forward => (2 + u64::from(kernel.save_pre), if rows > 0 && kernel.bias { columns } else { 0 }),
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
    let bytes = matrices * rows * columns * case.dtype.bytes() as u64 + 4 * biases;
    Cost { flops: flops * rows * columns, bytes }
}

fn check(case: &Case, runner: &Runner<'_>) -> Outcome {
    match case.dtype {
        DType::F32 => check_as::<f32>(case, runner),
        DType::Bf16 => check_as::<bf16>(case, runner),
    }
}

fn check_as<X: Element>(case: &Case, runner: &Runner<'_>) -> Outcome {
    if case.dim("T") * case.dim("F") > CHECKED_ELEMENTS && !runner.records() {
        return Outcome::Skipped { reason: "larger cases are timed, not checked".to_string() };
    }
    on_any_runner(case, runner, |on| {
        let problem = Problem::<X>::new(case, on.data());
        let expected = LazyCell::new(|| {
            let sample = Problem::<X>::new(&Case { dims: SAMPLE.to_vec(), ..case.clone() }, Data::Uniform);
            (problem.wanted(), sample.naive_errors())
        });
        let compare = |outputs: &[Vec<X>]| compare(outputs, &expected.0, &expected.1);
        match on {
            On::Cpu(cpu) => {
                let outputs = problem.compute(cpu);
                let names = if case.pass == Pass::Forward { &["y", "pre"][..] } else { &["dx"] };
                if on.records(|| names.iter().zip(&outputs).map(|(name, x)| Output::new(name, x)).collect()) {
                    return Ok(0.0);
                }
                compare(&outputs)
            }
            On::Gpu(gpu) => Approximation::ALL.into_iter().try_fold(0.0f64, |worst, how| {
                let outputs = problem.simulate(gpu, how).map_err(|error| format!("approximations {how:?}: {error}"))?;
                Ok(worst.max(gpu.compared(|| compare(&outputs))?))
            }),
        }
    })
}

/// Size of the sample from which the error of the naive implementation is taken: the greatest error of few elements is a
/// poor estimate.
const SAMPLE: [(&str, usize); 2] = [("T", 64), ("F", 64)];

/// Maximum ratio of an output's error to its bound; an error names the first output that is out of bounds.
fn compare<X: Element>(outputs: &[Vec<X>], wanted: &[Wanted], naive: &[f64]) -> Result<f64, String> {
    let mut worst: f64 = 0.0;
    for ((output, wanted), naive) in outputs.iter().zip(wanted).zip(naive) {
        worst = worst.max(within_error(wanted.name, output, *naive, &wanted.exact)?);
    }
    Ok(worst)
}

/// Case with its inputs.
struct Problem<X> {
    kernel: BiasActivation,
    rows: usize,
    columns: usize,
    /// Forward x; backward p. [T, F]
    x: Vec<X>,
    /// Forward the bias, if there is one. [F]
    bias: Option<Vec<f32>>,
    /// Backward dy. [T, F]
    dy: Vec<X>,
}

/// Exact output in f64.
struct Wanted {
    name: &'static str,
    exact: Vec<f64>,
}

impl<X: Element> Problem<X> {
    fn new(case: &Case, data: Data) -> Self {
        // Points where the functions curve most. None is large, because the largest output scales the bound for all.
        const CORNERS: [f32; 6] = [0.0, -0.0, 1e-6, -1e-6, 1.4143, -1.4143];
        let (rows, columns) = (case.dim("T"), case.dim("F"));
        let mut x = data.uniform::<X>(1, rows * columns, 6.0);
        for (corner, x) in CORNERS.iter().cycle().zip(x.iter_mut().skip(7).step_by(23)) {
            *x = X::from_f32(*corner);
        }
        let kernel = kernel_of(case);
        let bias = kernel.bias.then(|| data.uniform(2, columns, 1.0));
        let dy = if case.pass == Pass::Backward { data.uniform(3, rows * columns, 1.0) } else { Vec::new() };
        Self { kernel, rows, columns, x, bias, dy }
    }

    /// Exact outputs: y and, if it is saved, p; or dx.
    fn wanted(&self) -> Vec<Wanted> {
        let activation = self.kernel.activation;
        match self.kernel.pass {
            Pass::Forward => {
                let (p, y) = reference::forward::<f64>(
                    activation,
                    &widen(&self.x),
                    self.bias.as_ref().map(|bias| widen(bias)).as_deref(),
                );
                let pre = self.kernel.save_pre.then_some(Wanted { name: "pre", exact: p });
                [Wanted { name: "y", exact: y }].into_iter().chain(pre).collect()
            }
            Pass::Backward => {
                let dx = reference::backward::<f64>(activation, &widen(&self.x), &widen(&self.dy));
                vec![Wanted { name: "dx", exact: dx }]
            }
        }
    }

    /// Greatest error of a naive f32 implementation, for each output.
    fn naive_errors(&self) -> Vec<f64> {
        let activation = self.kernel.activation;
        let naive = match self.kernel.pass {
            Pass::Forward => {
                let (p, y) = reference::forward::<f32>(activation, &widen(&self.x), self.bias.as_deref());
                vec![y, p]
            }
            Pass::Backward => vec![reference::backward::<f32>(activation, &widen(&self.x), &widen(&self.dy))],
        };
        self.wanted()
            .iter()
            .zip(naive)
            .map(|(wanted, naive)| greatest_error(&store::<X>(&naive), &wanted.exact))
            .collect()
    }

    /// Outputs of the CPU kernel.
    fn compute(&self, cpu: &Cpu) -> Vec<Vec<X>> {
        let poisoned = || vec![X::from_f32(f32::NAN); self.x.len()];
        let (activation, mut first) = (self.kernel.activation, poisoned());
        match self.kernel.pass {
            Pass::Forward => {
                let mut pre = self.kernel.save_pre.then(poisoned);
                bias_activation_forward(cpu, activation, &self.x, self.bias.as_deref(), pre.as_deref_mut(), &mut first);
                [first].into_iter().chain(pre).collect()
            }
            Pass::Backward => {
                backward(cpu, activation, &self.x, &self.dy, &mut first);
                vec![first]
            }
        }
    }

    /// Outputs of the program.
    fn simulate(&self, gpu: &GpuRunner<'_>, approximation: Approximation) -> Result<Vec<Vec<X>>, String> {
        let (mut memory, arguments, outputs) = self.set_up();
        if let Some(launch) = self.kernel.launch(self.rows, self.columns) {
            gpu.launch(&self.kernel.program(gpu.sm()), launch, &arguments, &mut memory, approximation)?;
        }
        if gpu.only_names() {
            return Ok(Vec::new());
        }
        outputs.into_iter().map(|address| memory.read(address).map_err(|error| error.to_string())).collect()
    }

    /// Memory with the inputs and unwritten outputs, the arguments, and the addresses of the outputs.
    fn set_up(&self) -> (Memory, Vec<Argument>, Vec<u64>) {
        let mut memory = Memory::new();
        let (bytes, rows, columns) = (size_of_val(self.x.as_slice()), self.rows, self.columns);
        let (values, outputs) = match self.kernel.pass {
            Pass::Forward => {
                let x = Address(memory.allocate_from("x", &self.x));
                let bias = self.bias.as_ref().map(|bias| Address(memory.allocate_from("bias", bias)));
                let y = Address(memory.allocate("y", bytes));
                let pre = self.kernel.save_pre.then(|| Address(memory.allocate("pre", bytes)));
                let arguments = ForwardArgs { x, bias, y, pre, rows, columns };
                (arguments.pack(), [y].into_iter().chain(pre).map(|output| output.0).collect())
            }
            Pass::Backward => {
                let pre = Address(memory.allocate_from("pre", &self.x));
                let dy = Address(memory.allocate_from("dy", &self.dy));
                let dx = Address(memory.allocate("dx", bytes));
                (BackwardArgs { pre, dy, dx, rows, columns }.pack(), vec![dx.0])
            }
        };
        (memory, values.into_iter().map(Argument::from).collect(), outputs)
    }
}

#[cfg(test)]
mod tests;
