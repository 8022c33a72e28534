//! Row of the layer in the table of operations: sizes, cost, check against f64.

pub mod reference;

use crate::check::{Real, greatest_error, within_error};
use crate::entry::*;
use kernels::Cpu;
use kernels::dropout::Dropout;
use kernels::gemm::{Epilogue, EpilogueKind};
use kernels::int8::{QuantizedWeight, linear};

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

/// Epilogues of forward passes without gradients.
fn epilogues() -> Vec<EpilogueKind> {
    let inference = |kind: &EpilogueKind| !kind.saves_pre() && !matches!(kind, EpilogueKind::ActivationBackward(_));
    EpilogueKind::all().into_iter().filter(inference).collect()
}

fn cases() -> Vec<Case> {
    let case = |[m, n, k]: [usize; 3], variant| Case {
        pass: Pass::Forward,
        dtype: DType::F32,
        variant,
        dims: vec![("m", m), ("n", n), ("k", k)],
    };
    SIZES.into_iter().flat_map(|size| epilogues().into_iter().map(move |kind| case(size, kind.words()))).collect()
}

/// Size and epilogue.
fn read(case: &Case) -> ([usize; 3], EpilogueKind) {
    let kind = epilogues().into_iter().find(|kind| kind.words() == case.variant);
    (["m", "n", "k"].map(|letter| case.dim(letter)), kind.unwrap_or_else(|| panic!("{case}: unknown epilogue")))
}

/// Cost of a case: activations and results are f32, weights one byte with a scale and an offset per output.
fn cost(case: &Case) -> Cost {
    let ([m, n, k], kind) = read(case);
    let [m, n, k] = [m, n, k].map(|size| size as u64);
    let bias = if kind.has_bias() { 4 * n } else { 0 };
    let matrix = if kind.reads_matrix() { 4 * m * n } else { 0 };
    Cost { flops: 2 * m * n * k, bytes: 4 * m * (n + k) + n * (k + 8) + bias + matrix }
}

fn check(case: &Case, runner: &Runner<'_>) -> Outcome {
    let (size, kind) = read(case);
    if matches!(runner, Runner::Gpu(_)) {
        return Outcome::Skipped { reason: "the layer runs on processors only".to_string() };
    }
    if size.iter().product::<usize>() > CHECKED_WORK && !runner.records() {
        return Outcome::Skipped { reason: "larger cases are timed, not checked".to_string() };
    }
    on_runner(case, runner, |on| match on {
        On::Cpu(cpu) => check_on(on, cpu, size, kind),
        On::Gpu(_) => Err("the layer runs on processors only".to_string()),
    })
}

/// Inputs of a layer.
struct Inputs {
    size: [usize; 3],
    kind: EpilogueKind,
    x: Vec<f32>,
    w: Vec<f32>,
    bias: Vec<f32>,
    residual: Vec<f32>,
}

impl Inputs {
    const DROPOUT: Dropout = Dropout { seed: 78, site: 6, rate: 0.3 };

    fn new(data: Data, size: [usize; 3], kind: EpilogueKind) -> Self {
        let [m, n, k] = size;
        let (x, w) = (data.uniform::<f32>(1, m * k, 3.0), data.uniform::<f32>(2, n * k, 0.1));
        Self { size, kind, x, w, bias: data.uniform(3, n, 1.0), residual: data.uniform(4, m * n, 1.0) }
    }

    fn define<R: Real>(&self) -> Vec<R> {
        let acc = reference::product(self.size, &self.x, &self.w);
        let (bias, residual) = (widen::<R, f32>(&self.bias), widen::<R, f32>(&self.residual));
        let dropout = self.kind.has_dropout().then_some(Self::DROPOUT);
        crate::gemm::reference::epilogue(self.kind, &acc, &bias, &residual, dropout).0
    }
}

fn check_on(on: &On<'_>, cpu: &Cpu, size: [usize; 3], kind: EpilogueKind) -> Result<f64, String> {
    let [m, n, k] = size;
    let inputs = Inputs::new(on.data(), size, kind);
    let weight = QuantizedWeight::new(cpu, n, k, &inputs.w);
    let (mut y, mut scratch) = (Guarded::<f32>::poisoned(m * n), vec![u32::MAX; weight.scratch_len(m)]);
    let epilogue = Epilogue::of_kind(kind, &inputs.bias[..], &inputs.residual[..], &mut [][..], Inputs::DROPOUT);
    linear(cpu, &inputs.x, &weight, &mut y, epilogue, &mut scratch);
    y.intact()?;
    if on.records(|| vec![Output::new("y", &y)]) {
        return Ok(0.0);
    }
    // Naive error of a few hundred elements of the same k: the greatest error of few elements is a poor estimate.
    let sample = Inputs::new(Data::Uniform, [24, 24, k], kind);
    let naive = greatest_error(&sample.define::<f32>(), &sample.define::<f64>());
    within_error("y", &y, naive, &inputs.define::<f64>())
}
