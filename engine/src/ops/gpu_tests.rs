//! Operations on the simulated GPU against the processor: outputs, gradients of inputs and parameters, updates.
//!
//! The two differ in the order of sums and, in bf16, in the rounding of weights, which products on a GPU read in bf16 and the
//! processor in f32. f32 is held to 2⁻¹⁸ of an output's largest value, bf16 to four of its ulps, 2⁻⁶.
use super::broadcast_tests::{OPERATIONS, Operation};
use super::{gradient_check::*, *};
use crate::List;
use crate::optim::{AdamConfig, Optimizer, OptimizerKind, ParamOptions, clip_global_norm, parts};
use crate::shared_tests::*;

pub(super) fn devices() -> [Device; 2] {
    [Device::Cpu(cpu(1)), Device::Cuda(gpu((8, 0)))]
}

const ROWS: usize = 70;

/// A weight and bias to `wide`, gain and bias of a norm there, a weight back.
fn network_parameters(narrow: usize, wide: usize) -> (ParamStore, [ParamId; 5]) {
    let shapes = [
        ("first.weight", &[wide, narrow][..]),
        ("first.bias", &[wide]),
        ("norm.gain", &[wide]),
        ("norm.bias", &[wide]),
        ("second.weight", &[narrow, wide]),
    ];
    parameters(9, shapes.map(|(name, shape)| (name, shape, Init::Uniform(0.5))))
}

fn draw(seed: u64, count: usize) -> Vec<f32> {
    let mut stream = kernels::num::philox::Stream::new(seed, [0; 3]);
    (0..count).map(|_| 2.0 * stream.next_f32() - 1.0).collect()
}

/// Types with the bounds of the output and of gradients.
type Bounds = [(DType, [f32; 2]); 2];

/// 2 to minus these powers, in f32 and in bf16.
pub(super) fn bounds(single: i32, half: i32) -> Bounds {
    [(DType::F32, single), (DType::Bf16, half)].map(|(dtype, power)| (dtype, [0.5f32.powi(power); 2]))
}

/// Compares the output and all gradients of `function` on the second device with those on the first. Each input has random values
/// within 1 of a center; their seeds are `seed` and the numbers after it.
pub(super) fn agree(
    devices: &[Device; 2],
    (name, seed): (&str, u64),
    inputs: &[(&[usize], f32)],
    params: (&ParamStore, &[ParamId]),
    bounds: &[(DType, [f32; 2])],
    function: impl Function,
) {
    let input = |(at, (shape, centre)): (u64, &(&[usize], f32))| -> Input {
        (shape.to_vec(), draw(seed + at, shape.iter().product()).iter().map(|x| x + centre).collect())
    };
    let inputs: Vec<Input> = (0..).zip(inputs).map(input).collect();
    let w = |count| draw(seed + inputs.len() as u64, count);
    for (dtype, [of_output, of_gradients]) in bounds {
        let [wanted, got] = devices.each_ref().map(|device| {
            let mut workspace = Workspace::new(device.clone());
            workspace.arena().set_poison(true);
            let (y, dx, gradients) = differentiate(&mut workspace, *dtype, &inputs, params, w, &function);
            [vec![y], dx, vec![gradients.tensor().to_vec().unwrap()]].concat()
        });
        assert!(wanted[1].iter().any(|&dx| dx != 0.0), "{name}, {dtype}: no gradient");
        for (part, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
            let bound = if part == 0 { of_output } else { of_gradients };
            close(&format!("{name}, {dtype}, part {part}"), got, wanted, *bound);
        }
    }
}

/// Columns 3 to 29 and 8 to 40 of a and b side by side: parts that are not whole vectors, and that are.
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

/// A [70, 24] as a stack of five, times one B; then each times itself, transposed.
fn of_stacks(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    let stack = reshape(tape, a, [5, ROWS / 5, 24])?;
    let shared = matmul(tape, &stack, &slice(tape, b, 0, 0..24)?, Transpose::NONE)?;
    matmul(tape, &matmul(tape, &shared, &stack, Transpose::A)?, &stack, Transpose { a: true, b: true })
}

/// One transposed B for a stack of transposed As.
fn of_a_shared_matrix(tape: &Tape<'_>, a: &Var, b: &Var) -> Result<Var> {
    let (stack, b) = (reshape(tape, a, [7, 10, 24])?, slice(tape, b, 1, 3..13)?);
    matmul(tape, &stack, &b, Transpose { a: true, b: true })
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
fn operations_of_two_tensors_agree_with_the_processor() {
    let (devices, params, whole) = (devices(), ParamBuilder::new().build(&cpu(1), 0).unwrap(), &[ROWS, 24][..]);
    let check = |name: &str, b: &[usize], bounds: Bounds, operation: Operation| {
        let inputs = [(whole, 0.0), (b, 2.0)];
        agree(&devices, (name, 5), &inputs, (&params, &[]), &bounds, |tape, x, _| operation(tape, &x[0], &x[1]));
    };
    for b in [whole, &[24], &[ROWS, 1], &[1]] {
        for (name, operation) in OPERATIONS {
            check(&format!("{name}, b {b:?}"), b, bounds(18, 6), operation);
        }
    }
    check("squared error", whole, bounds(18, 6), mean_squared_error);
    check("product", whole, bounds(18, 6), |tape, a, b| matmul(tape, a, b, Transpose::B));
    check("product of stacks", whole, bounds(18, 6), of_stacks);
    check("product of a shared matrix", whole, bounds(18, 6), of_a_shared_matrix);
    // The loss is f32 in both.
    let [single, (half, of_half)] = bounds(18, 7);
    check("loss over sequences", &[1], [single, (half, [0.5f32.powi(18), of_half[1]])], over_sequences);
    let same_bits = [DType::F32, DType::Bf16].map(|dtype| (dtype, [0.0; 2]));
    check("odd columns", whole, same_bits, odd_columns);
    check("whole columns", whole, same_bits, whole_columns);
    check("rows", whole, same_bits, joined_rows);
}

#[test]
fn integers_that_are_no_numbers_keep_their_bits_in_a_view() {
    let params = ParamBuilder::new().build(&cpu(1), 0).unwrap();
    let mut workspace = Workspace::new(Device::Cuda(gpu((8, 0))));
    let tape = workspace.infer(&params, None);
    let ids = tape.input([2, 3], &[1u32, 0x7fc0_0001, 3, 4, 0xff80_0002, 6]).unwrap();
    let column = slice(&tape, &ids, 1, 1..2).unwrap();
    assert_eq!(column.value().elements::<u32>().unwrap()[..], [0x7fc0_0001, 0xff80_0002]);
}

#[test]
fn functions_of_elements_agree_with_the_processor() {
    type Function = fn(&Tape<'_>, &Var) -> Result<Var>;
    let functions: [Function; 8] = [tanh, sigmoid, exp, log, relu, softmax, sum, mean];
    let others: [Function; 2] = [|tape, x| scale(tape, x, -1.5), |tape, x| activation(tape, x, Activation::GeluTanh)];
    let (devices, params) = (devices(), ParamBuilder::new().build(&cpu(1), 0).unwrap());
    // Enough numbers that some are of the size of the inputs: 1 - tanh² of a single one may be all rounding.
    for count in [37, 1032] {
        for (at, function) in functions.into_iter().chain(others).enumerate() {
            // Positive, for the logarithm.
            let (name, x) = (format!("function {at} of {count}"), [(&[1, count][..], 1.5)]);
            agree(&devices, (&name, 3), &x, (&params, &[]), &bounds(20, 7), |tape, x, _| function(tape, &x[0]));
        }
    }
}

/// dropout, residual and norm between two layers.
fn network(tape: &Tape<'_>, x: &[Var], ids: &[ParamId]) -> Result<Var> {
    let norm = LayerNorm { gain: ids[2], bias: ids[3], eps: 1e-5 };
    let y = linear(tape, &x[0], ids[0], Some(ids[1]))?;
    let dropped = dropout(tape, &y, Some(Dropout { seed: 4, site: 1, rate: 0.25 }))?;
    let y = layer_norm_residual(tape, &dropped, &y, norm)?;
    linear(tape, &y, ids[4], None)
}

#[test]
fn layers_and_their_gradients_agree_with_the_processor() {
    // Widths that are whole vectors and that are not.
    for (narrow, wide) in [(16, 24), (7, 5)] {
        let (params, ids) = network_parameters(narrow, wide);
        let (name, x) = (format!("{narrow} and {wide} columns"), [(&[ROWS, narrow][..], 0.0)]);
        agree(&devices(), (&name, 1), &x, (&params, &ids), &bounds(18, 6), network);
    }
}

/// Rows of one activation and of one table by two lists, and of two tables by one list; an id has two pieces.
fn common_rows(tape: &Tape<'_>, x: &[Var], ids: &[ParamId]) -> Result<Var> {
    let [first, second] = [1, 2].map(|each| (0..ROWS as u32).map(|i| i / each % 2).collect::<Vec<_>>());
    let [first, second] = tape.inputs([List::Rows(&first), List::Rows(&second)])?;
    let gathered = add(tape, &gather_rows(tape, &x[0], &first)?, &gather_rows(tape, &x[0], &second)?)?;
    let lookups = [[(&first, ids[0]), (&second, ids[0])], [(&first, ids[0]), (&first, ids[4])]];
    let add_rows = |sum: Var, lookups| add(tape, &sum, &embedding_sum(tape, lookups, x[0].dtype())?);
    lookups.iter().try_fold(gathered, |sum, lookups| add_rows(sum, &lookups[..]))
}

#[test]
fn gradients_of_common_rows_agree_with_the_processor() {
    let (params, ids) = network_parameters(16, 16);
    agree(&devices(), ("rows", 1), &[(&[ROWS, 16], 0.0)], (&params, &ids), &bounds(18, 6)[..1], common_rows);
}

/// Parameters and moments after steps with given gradients, and the norm before each was clipped; the parameters are updated in
/// `count` parts.
fn train(device: &Device, mut params: ParamStore, rule: OptimizerKind, count: usize) -> (Vec<f32>, Vec<f64>) {
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
        norms.push(clip_global_norm(&mut gradients, Some(1.0), step).unwrap());
        optimizers.iter_mut().for_each(|part| part.step(&mut params, &gradients, 0.01).unwrap());
    }
    params.download().unwrap();
    let moments: Vec<_> = optimizers.iter().map(|part| part.moments().unwrap()).collect();
    let of_all = |which: usize| moments.iter().flat_map(move |of_part| of_part[which].iter());
    (params.all_values().iter().chain(of_all(0)).chain(of_all(1)).copied().collect(), norms)
}

#[test]
fn optimizer_steps_agree_with_the_processor() {
    let [cpu, gpu] = devices();
    let network = || network_parameters(16, 24).0;
    for rule in [OptimizerKind::AdamW, OptimizerKind::Lamb] {
        let [(wanted, wanted_norms), (got, got_norms)] = [&cpu, &gpu].map(|device| train(device, network(), rule, 1));
        close(&format!("{rule:?}"), &got, &wanted, 0.5f32.powi(20));
        for (got, wanted) in got_norms.iter().zip(&wanted_norms) {
            assert!((got - wanted).abs() <= 1e-6 * wanted, "{rule:?}: norm {got}, on the processor {wanted}");
        }
        // Some are empty.
        for count in [2, 3, 40] {
            assert!(train(&gpu, network(), rule, count).0 == got, "{rule:?} in {count} parts");
        }
        // Lengths of several tasks and of less than a vector.
        let mixed = || {
            let shapes = [("a", &[5, 1][..]), ("b", &[9000, 1]), ("c", &[3, 1]), ("d", &[4500, 1]), ("e", &[1, 1])];
            parameters(1, shapes.map(|(name, shape)| (name, shape, Init::TruncatedNormal(0.5)))).0
        };
        for count in [2, 3, 7] {
            let [whole, in_parts] = [1, count].map(|count| train(&cpu, mixed(), rule, count).0);
            assert!(whole == in_parts, "{rule:?} in {count} parts on the processor");
        }
    }
}

/// The gradient of w is x, whatever is added to the loss: it says so itself if the loss is not finite.
#[test]
fn a_loss_that_is_not_finite_has_no_finite_gradient() {
    for device in devices() {
        for (more, is_finite) in
            [(1e30f32, true), (f32::INFINITY, false), (f32::NEG_INFINITY, false), (f32::NAN, false)]
        {
            let (params, [w]) = parameters(3, [("w", &[3][..], Init::Ones)]);
            let (mut workspace, mut gradients) = (Workspace::new(device.clone()), params.gradients(&device).unwrap());
            let tape = workspace.train(&params, None);
            let (w, x) = (tape.param(w).unwrap(), tape.input([3], &[1f32, -2.0, 3.0]).unwrap());
            let loss = sum(&tape, &mul(&tape, &w, &x).unwrap()).unwrap();
            let loss = add(&tape, &loss, &tape.input([], &[more]).unwrap()).unwrap();
            tape.backward(&loss, &mut gradients).unwrap();
            let found = gradients.elements().unwrap();
            match is_finite {
                true => assert_eq!(found[..], [1.0, -2.0, 3.0]),
                false => assert!(found.iter().all(|x| x.is_nan()), "{more}: {found:?}"),
            }
        }
    }
}
