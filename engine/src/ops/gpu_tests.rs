//! Operations on the simulated GPU against the processor: outputs, gradients of inputs and parameters, updates.
//!
//! The two differ in the order of sums and, in bf16, in the rounding of weights, which products on a GPU read in bf16 and the
//! processor in f32. f32 is held to 2⁻¹⁸ of an output's largest value, bf16 to four of its ulps, 2⁻⁶.
use super::*;
use crate::{
    DType, Device, Gradients, Init, ParamBuilder, ParamId, ParamStore, Result, Tape, Tensor, Var, Workspace,
    device::{Gpu, simulated::SimulatedDriver},
    optim::{AdamConfig, Optimizer, OptimizerKind, ParamOptions, clip_global_norm, parts},
};
use half::bf16;
use kernels::{Cpu, Isa, dropout::Dropout};

fn cpu() -> Cpu {
    Cpu::new(Isa::choose().unwrap(), 1).unwrap()
}

fn devices() -> [Device; 2] {
    [Device::Cpu(cpu()), Device::Cuda(Gpu::new(SimulatedDriver::new((8, 0)), cpu()).unwrap())]
}

/// Widths that are whole vectors and that are not.
const WIDTHS: [(usize, usize); 2] = [(16, 24), (7, 5)];
const ROWS: usize = 70;
const DTYPES: [DType; 2] = [DType::F32, DType::Bf16];

/// A weight and bias to `wide`, gain and bias of a norm there, a weight back.
fn parameters(narrow: usize, wide: usize) -> (ParamStore, [ParamId; 5]) {
    let mut builder = ParamBuilder::new();
    let mut add = |name: &str, shape: &[usize]| builder.add(name, shape, Init::Uniform(0.5)).unwrap();
    let ids = [
        add("first.weight", &[wide, narrow]),
        add("first.bias", &[wide]),
        add("norm.gain", &[wide]),
        add("norm.bias", &[wide]),
        add("second.weight", &[narrow, wide]),
    ];
    (builder.build(&cpu(), 9).unwrap(), ids)
}

fn draw(seed: u64, count: usize) -> Vec<f32> {
    let mut stream = kernels::num::philox::Stream::new(seed, [0; 3]);
    (0..count).map(|_| 2.0 * stream.next_f32() - 1.0).collect()
}

fn input(tape: &Tape<'_>, dtype: DType, shape: [usize; 2], values: &[f32]) -> Tensor {
    let mut tensor = tape.alloc(shape, dtype).unwrap();
    match dtype {
        DType::F32 => tensor.copy_from(values),
        _ => tensor.copy_from(&values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>()),
    }
    .unwrap();
    tensor
}

/// dropout, residual and norm between two layers.
fn network(tape: &Tape<'_>, x: &Var, ids: &[ParamId; 5]) -> Result<Var> {
    let norm = LayerNorm { gain: ids[2], bias: ids[3], eps: 1e-5 };
    let y = linear(tape, x, ids[0], Some(ids[1]))?;
    let dropped = dropout(tape, &y, Some(Dropout { seed: 4, site: 1, rate: 0.25 }))?;
    let y = layer_norm_residual(tape, &dropped, &y, norm)?;
    linear(tape, &y, ids[4], None)
}

/// y, dx and all gradients.
fn run(device: &Device, dtype: DType, (narrow, wide): (usize, usize)) -> [Vec<f32>; 3] {
    let (params, ids) = parameters(narrow, wide);
    let mut workspace = Workspace::new(device.clone());
    workspace.arena().set_poison(true);
    let mut gradients = params.gradients(device).unwrap();
    let tape = workspace.train(&params, None);
    let x = tape.leaf(input(&tape, dtype, [ROWS, narrow], &draw(1, ROWS * narrow))).unwrap();
    let y = network(&tape, &x, &ids).unwrap();
    let dy = input(&tape, dtype, [ROWS, narrow], &draw(2, ROWS * narrow));
    let leaves = tape.backward_from(&y, dy, &mut gradients).unwrap();
    let dx = leaves.get(&x).unwrap().to_vec().unwrap();
    [y.value().to_vec().unwrap(), dx, gradients.tensor().to_vec().unwrap()]
}

/// dA and dB of an operation on a [ROWS, 24] and something smaller, and what it gives.
fn of_two(device: &Device, dtype: DType, b_shape: &[usize], function: Binary) -> [Vec<f32>; 3] {
    let params = ParamBuilder::new().build(&cpu(), 0).unwrap();
    let mut workspace = Workspace::new(device.clone());
    workspace.arena().set_poison(true);
    let mut gradients = params.gradients(device).unwrap();
    let tape = workspace.train(&params, None);
    let positive = |seed, count| draw(seed, count).iter().map(|x| x + 2.0).collect::<Vec<_>>();
    let a = tape.leaf(input(&tape, dtype, [ROWS, 24], &draw(5, ROWS * 24))).unwrap();
    let count = b_shape.iter().product();
    let b = input(&tape, dtype, [1, count], &positive(6, count)).reshape(b_shape).unwrap();
    let b = tape.leaf(b).unwrap();
    let y = function(&tape, &a, &b).unwrap();
    let shape = *y.shape();
    let dy = input(&tape, y.dtype(), [1, shape.elements()], &draw(7, shape.elements())).reshape(shape).unwrap();
    let leaves = tape.backward_from(&y, dy, &mut gradients).unwrap();
    [y.value(), leaves.get(&a).unwrap(), leaves.get(&b).unwrap()].map(|tensor| tensor.to_vec().unwrap())
}

type Binary = fn(&Tape<'_>, &Var, &Var) -> Result<Var>;

#[test]
fn operations_of_two_tensors_agree_with_the_processor() {
    let [cpu, gpu] = devices();
    let operations: [(&str, Binary); 4] = [("add", add), ("sub", sub), ("mul", mul), ("div", div)];
    for (dtype, bound) in [(DType::F32, 0.5f32.powi(18)), (DType::Bf16, 0.5f32.powi(6))] {
        for shape in [&[ROWS, 24][..], &[24], &[ROWS, 1], &[1]] {
            for (name, operation) in operations {
                let [wanted, got] = [&cpu, &gpu].map(|device| of_two(device, dtype, shape, operation));
                for (what, (got, wanted)) in ["y", "da", "db"].iter().zip(got.iter().zip(&wanted)) {
                    close(&format!("{name}, {dtype}, b {shape:?}, {what}"), got, wanted, bound);
                }
            }
        }
        let [wanted, got] = [&cpu, &gpu].map(|device| of_two(device, dtype, &[ROWS, 24], mean_squared_error));
        for (what, (got, wanted)) in ["y", "da", "db"].iter().zip(got.iter().zip(&wanted)) {
            close(&format!("squared error, {dtype}, {what}"), got, wanted, bound);
        }
    }
}

/// Columns 3 to 29 and 8 to 40 of a and b side by side: parts that are no whole vectors, and that are.
fn odd_columns(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    slice(tape, &concat(tape, &[a, b], 1)?, 1, 3..29)
}

fn whole_columns(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    slice(tape, &concat(tape, &[a, b], 1)?, 1, 8..40)
}

/// Backwards: b before a, and one joined behind the other first.
fn joined_rows(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    slice(tape, &concat(tape, &[b, a, b], 0)?, 1, 5..6)
}

#[test]
fn views_that_copy_give_the_bits_of_the_processor() {
    let [cpu, gpu] = devices();
    let operations: [(&str, Binary); 3] =
        [("odd columns", odd_columns), ("whole columns", whole_columns), ("rows", joined_rows)];
    for (dtype, (name, operation)) in DTYPES.into_iter().flat_map(|dtype| operations.map(|named| (dtype, named))) {
        let [wanted, got] = [&cpu, &gpu].map(|device| of_two(device, dtype, &[ROWS, 24], operation));
        assert_eq!(got, wanted, "{name}, {dtype}");
    }
    let params = ParamBuilder::new().build(&self::cpu(), 0).unwrap();
    let mut workspace = Workspace::new(gpu);
    let tape = workspace.infer(&params, None);
    let ids = tape.input([2, 3], &[1u32, 0x7fc0_0001, 3, 4, 0xff80_0002, 6]).unwrap();
    let column = slice(&tape, &ids, 1, 1..2).unwrap();
    assert_eq!(
        column.value().elements::<u32>().unwrap()[..],
        [0x7fc0_0001, 0xff80_0002],
        "integers, which are no numbers"
    );
}

/// A [70, 24] as a stack of five, times one B; then each times itself, transposed.
fn of_stacks(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    let stack = reshape(tape, a, [5, ROWS / 5, 24])?;
    let shared = matmul(tape, &stack, &slice(tape, b, 0, 0..24)?, Transpose::NONE)?;
    matmul(tape, &matmul(tape, &shared, &stack, Transpose::A)?, &stack, Transpose { a: true, b: true })
}

/// One B that lies transposed under a stack that does, too.
fn of_a_shared_matrix(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    let (stack, b) = (reshape(tape, a, [7, 10, 24])?, slice(tape, b, 1, 3..13)?);
    matmul(tape, &stack, &b, Transpose { a: true, b: true })
}

#[test]
fn products_agree_with_the_processor() {
    let [cpu, gpu] = devices();
    let operations: [(&str, Binary); 3] = [
        ("plain", |tape, a, b| matmul(tape, a, b, Transpose::B)),
        ("stacks", of_stacks),
        ("shared", of_a_shared_matrix),
    ];
    for (dtype, bound) in [(DType::F32, 0.5f32.powi(18)), (DType::Bf16, 0.5f32.powi(6))] {
        for (name, operation) in operations {
            let [wanted, got] = [&cpu, &gpu].map(|device| of_two(device, dtype, &[ROWS, 24], operation));
            for (what, (got, wanted)) in ["y", "da", "db"].iter().zip(got.iter().zip(&wanted)) {
                close(&format!("{name}, {dtype}, {what}"), got, wanted, bound);
            }
        }
    }
}

/// The loss of b · logits over sequences of 1, 9 and the other tokens.
fn over_sequences(tape: &Tape<'_>, logits: &Var, b: &Var) -> Result<Var> {
    let (logits, tokens) = (mul(tape, logits, b)?, logits.value().len());
    let sequences = Sequences::new(tape, &[0, 1, 10, tokens as u32])?;
    let labels = tape.input([3], &[0u32, 8, 300])?;
    let classified = sequence_cross_entropy(tape, &reshape(tape, &logits, [tokens])?, &sequences, &labels, 2.5)?;
    assert!(classified.predictions.to_vec()?.iter().zip([1.0, 9.0, 1670.0]).all(|(&at, length)| at < length));
    Ok(classified.loss)
}

#[test]
fn the_loss_over_sequences_agrees_with_the_processor() {
    let [cpu, gpu] = devices();
    for (dtype, bound) in [(DType::F32, 0.5f32.powi(18)), (DType::Bf16, 0.5f32.powi(7))] {
        let [wanted, got] = [&cpu, &gpu].map(|device| of_two(device, dtype, &[1], over_sequences));
        close(&format!("{dtype}, loss"), &got[0], &wanted[0], 0.5f32.powi(18));
        for (what, at) in [("dlogits", 1), ("db", 2)] {
            close(&format!("{dtype}, {what}"), &got[at], &wanted[at], bound);
        }
        assert!(wanted[1].iter().any(|&d| d != 0.0));
    }
}

/// y and dx of functions of one input.
fn elementwise(device: &Device, dtype: DType, count: usize) -> Vec<[Vec<f32>; 2]> {
    type Function = fn(&Tape<'_>, &Var) -> Result<Var>;
    let functions: [Function; 10] = [
        tanh,
        sigmoid,
        exp,
        log,
        |tape, x| scale(tape, x, -1.5),
        |tape, x| activation(tape, x, Activation::GeluTanh),
        relu,
        softmax,
        sum,
        mean,
    ];
    let params = ParamBuilder::new().build(&cpu(), 0).unwrap();
    let mut workspace = Workspace::new(device.clone());
    workspace.arena().set_poison(true);
    let mut one = |function: Function| {
        let mut gradients = params.gradients(device).unwrap();
        let tape = workspace.train(&params, None);
        // Positive, for the logarithm.
        let values: Vec<f32> = draw(3, count).iter().map(|x| x + 1.5).collect();
        let x = tape.leaf(input(&tape, dtype, [1, count], &values)).unwrap();
        let y = function(&tape, &x).unwrap();
        let (shape, len) = (*y.shape(), y.shape().elements());
        let dy = input(&tape, y.dtype(), [1, len], &draw(4, len)).reshape(shape).unwrap();
        let leaves = tape.backward_from(&y, dy, &mut gradients).unwrap();
        [y.value(), leaves.get(&x).unwrap()].map(|tensor| tensor.to_vec().unwrap())
    };
    functions.map(&mut one).into()
}

#[test]
fn functions_of_elements_agree_with_the_processor() {
    let [cpu, gpu] = devices();
    for (dtype, bound) in [(DType::F32, 0.5f32.powi(20)), (DType::Bf16, 0.5f32.powi(7))] {
        // Enough numbers that some are of the size of the inputs: 1 - tanh² of a single one may be all rounding.
        for count in [37, 1032] {
            let (wanted, got) = (elementwise(&cpu, dtype, count), elementwise(&gpu, dtype, count));
            for (function, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                for (what, (got, wanted)) in ["y", "dx"].iter().zip(got.iter().zip(wanted)) {
                    close(&format!("{dtype}, function {function}, {count}, {what}"), got, wanted, bound);
                }
            }
        }
    }
}

pub(super) fn close(what: &str, got: &[f32], wanted: &[f32], bound: f32) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    let scale = wanted.iter().fold(0f32, |most, x| most.max(x.abs()));
    for (at, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let fine = (got - wanted).abs() <= bound * scale;
        assert!(fine, "{what}[{at}]: {got}, on the processor {wanted}, scale {scale}, bound {}", bound * scale);
    }
}

#[test]
fn layers_and_their_gradients_agree_with_the_processor() {
    let [cpu, gpu] = devices();
    for (dtype, bound) in [(DType::F32, 0.5f32.powi(18)), (DType::Bf16, 0.5f32.powi(6))] {
        for widths in WIDTHS {
            let (wanted, got) = (run(&cpu, dtype, widths), run(&gpu, dtype, widths));
            for (what, (got, wanted)) in ["y", "dx", "gradients"].iter().zip(got.iter().zip(&wanted)) {
                close(&format!("{dtype} {widths:?} {what}"), got, wanted, bound);
            }
        }
    }
}

/// Parameters and moments after steps with given gradients, and the norm before each was clipped; the parameters are updated in
/// `count` parts.
fn train(device: &Device, rule: OptimizerKind, count: usize) -> (Vec<f32>, Vec<f64>) {
    let (mut params, _) = parameters(16, 24);
    let treatment = |info: &crate::param::ParamInfo| {
        let matrix = info.shape.len() == 2;
        ParamOptions { weight_decay: matrix, trust_ratio: matrix }
    };
    let part =
        |own| Optimizer::of_part(&params, own, rule, AdamConfig::default(), treatment).unwrap().on(device).unwrap();
    let mut optimizers: Vec<Optimizer> = parts(&params, count).into_iter().map(part).collect();
    let mut gradients: Gradients = params.gradients(device).unwrap();
    let mut norms = Vec::new();
    for step in 1..=5 {
        gradients.clear().unwrap();
        let len = gradients.len();
        gradients.flat.copy_from(&draw(100 + step, len)).unwrap();
        norms.push(clip_global_norm(&mut gradients, 2.0, Some(1.0), step).unwrap());
        optimizers.iter_mut().for_each(|part| part.step(&mut params, &gradients, 0.01).unwrap());
    }
    params.download().unwrap();
    let [mut first, mut second] = [(); 2].map(|()| Vec::new());
    for part in &optimizers {
        let [of_part, squares] = part.moments().unwrap();
        first.extend_from_slice(&of_part);
        second.extend_from_slice(&squares);
    }
    (params.all_values().iter().chain(&first).chain(&second).copied().collect(), norms)
}

#[test]
fn optimizer_steps_agree_with_the_processor() {
    let [cpu, gpu] = devices();
    for rule in [OptimizerKind::AdamW, OptimizerKind::Lamb] {
        let ((wanted, wanted_norms), (got, got_norms)) = (train(&cpu, rule, 1), train(&gpu, rule, 1));
        close(&format!("{rule:?}"), &got, &wanted, 0.5f32.powi(20));
        for (got, wanted) in got_norms.iter().zip(&wanted_norms) {
            assert!((got - wanted).abs() <= 1e-6 * wanted, "{rule:?}: norm {got}, on the processor {wanted}");
        }
        // Some are empty.
        for count in [2, 3, 40] {
            assert!(train(&gpu, rule, count).0 == got, "{rule:?} in {count} parts");
        }
    }
}
