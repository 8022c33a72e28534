//! Row of the layer in the table of operations: sizes, cost, check against f64.

use super::{DotKind, QuantizedWeight, linear, reference, scratch_len};
use crate::{
    Cpu, DType,
    activation::Activation,
    check::{Guarded, On, greatest_error, on_runner, uniform, within_error},
    operation::{Case, Cost, Operation, Outcome, Pass},
    runner::Runner,
};

/// Dense layers in 8-bit integers.
pub const OPERATION: Operation = Operation { name: "int8", cases, cost, check, ptx: |_| Vec::new() };

/// [m, n, k]: empty, one element, sizes around register tiles, groups of four and tasks, and ALBERT-base's layers.
const SIZES: [[usize; 3]; 14] = [
    [0, 8, 8],
    [2, 3, 0],
    [1, 1, 1],
    [3, 31, 5],
    [14, 32, 64],
    [15, 33, 63],
    [7, 100, 3],
    [29, 5, 129],
    [61, 64, 17],
    [113, 97, 50],
    [5, 40, 3072],
    [128, 768, 768],
    [128, 3072, 768],
    [128, 768, 3072],
];

/// Maximum multiply-adds of a case that is checked against the naive reference loops.
const CHECKED_WORK: usize = 1 << 20;

/// Bias and activation, with the words of a case's variant.
fn epilogues() -> Vec<(String, bool, Option<Activation>)> {
    let activated = Activation::ALL.map(|activation| (format!("bias_{}", activation.name()), true, Some(activation)));
    [(String::new(), false, None), ("bias".to_string(), true, None)].into_iter().chain(activated).collect()
}

fn cases() -> Vec<Case> {
    let case = |[m, n, k]: [usize; 3], variant| Case {
        pass: Pass::Forward,
        dtype: DType::F32,
        variant,
        dims: vec![("m", m), ("n", n), ("k", k)],
    };
    SIZES.into_iter().flat_map(|size| epilogues().into_iter().map(move |(words, ..)| case(size, words))).collect()
}

/// Size, true if there is a bias, and the activation.
fn read(case: &Case) -> ([usize; 3], bool, Option<Activation>) {
    let found = epilogues().into_iter().find(|(words, ..)| *words == case.variant);
    let (_, has_bias, activation) = found.unwrap_or_else(|| panic!("{case}: unknown epilogue"));
    (["m", "n", "k"].map(|letter| case.dim(letter)), has_bias, activation)
}

/// Cost of a case: activations and results are f32, weights one byte with a scale and an offset per output.
fn cost(case: &Case) -> Cost {
    let ([m, n, k], has_bias, _) = read(case);
    let [m, n, k] = [m, n, k].map(|size| size as u64);
    Cost { flops: 2 * m * n * k, bytes: 4 * m * (n + k) + n * (k + 8) + if has_bias { 4 * n } else { 0 } }
}

fn check(case: &Case, runner: &Runner<'_>) -> Outcome {
    let (size, has_bias, activation) = read(case);
    if matches!(runner, Runner::Gpu(_)) {
        return Outcome::Skipped { reason: "the layer runs on processors only".to_string() };
    }
    if size.iter().product::<usize>() > CHECKED_WORK {
        return Outcome::Skipped { reason: "larger cases are timed, not checked".to_string() };
    }
    on_runner(case, runner, |on| match on {
        On::Cpu(cpu) => check_on(cpu, size, has_bias, activation),
        On::Gpu(_) => Err("the layer runs on processors only".to_string()),
    })
}

/// Inputs of a layer.
struct Inputs {
    size: [usize; 3],
    x: Vec<f32>,
    w: Vec<f32>,
    bias: Option<Vec<f32>>,
    activation: Option<Activation>,
}

impl Inputs {
    fn new(size: [usize; 3], has_bias: bool, activation: Option<Activation>) -> Self {
        let [m, n, k] = size;
        let (x, w) = (uniform::<f32>(1, m * k, 3.0), uniform::<f32>(2, n * k, 0.1));
        Self { size, x, w, bias: has_bias.then(|| uniform(3, n, 1.0)), activation }
    }

    fn define<R: crate::check::Real>(&self, levels: f32) -> Vec<R> {
        reference::linear(self.size, &self.x, &self.w, self.bias.as_deref(), self.activation, levels)
    }
}

fn check_on(cpu: &Cpu, size: [usize; 3], has_bias: bool, activation: Option<Activation>) -> Result<f64, String> {
    let [m, n, k] = size;
    let inputs = Inputs::new(size, has_bias, activation);
    let levels = DotKind::of(cpu.isa().kind()).levels();
    let weight = QuantizedWeight::new(cpu, n, k, &inputs.w);
    let (mut y, mut scratch) = (Guarded::<f32>::poisoned(m * n), vec![u32::MAX; scratch_len(m, k)]);
    linear(cpu, &inputs.x, &weight, inputs.bias.as_deref(), activation, &mut y, &mut scratch);
    y.intact()?;
    // Naive error of a few hundred elements of the same k: the greatest error of few elements is a poor estimate.
    let sample = Inputs::new([24, 24, k], has_bias, activation);
    let naive = greatest_error(&sample.define::<f32>(levels), &sample.define::<f64>(levels));
    within_error("y", &y, naive, &inputs.define::<f64>(levels))
}
