//! Comparison of a backward pass with finite differences of its forward pass.
//!
//! The scalar that is differentiated is L = Σ w_i·y_i with random weights w, summed in f64 from the f32 outputs y. The
//! derivative is the five-point formula
//!
//! ```text
//! D(h) = (L(x-2h) - 8·L(x-h) + 8·L(x+h) - L(x+2h)) / 12h        error h⁴·L⁽⁵⁾/30
//! ```
//!
//! with h = 1/32, exact in f32 for the inputs used. Every output carries rounding errors of a few ulps, so D(h) cannot be
//! known better than R = 8·ε·Σ|w_i·y_i| / h, and its truncation error is judged by how D changes when h is halved:
//!
//! ```text
//! |analytic - D(h/2)| ≤ |D(h) - D(h/2)| + 2·R
//! ```
//!
//! The bound depends on the function's values alone, never on the gradient under test.
use crate::{
    Cpu, DType, Device, Gradients, Init, ParamBuilder, ParamId, ParamStore, Result, Tape, Var, Workspace,
    philox::Stream, shared_tests::tensor,
};
use kernels::Isa;

/// A parameter that a checked function reads.
pub(super) struct Weight {
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<f32>,
}

/// Multiples of 1/256 in [-range, range], so that steps of 1/32 and 1/64 are exact.
pub(super) fn values(seed: u64, n: usize, range: f32) -> Vec<f32> {
    let mut stream = Stream::new(seed, [0x6772, 0, 0]);
    (0..n).map(|_| ((2.0 * stream.next_f32() - 1.0) * range * 256.0).round() / 256.0).collect()
}

/// A store with these parameters, named p0, p1, ...
pub(super) fn store(cpu: &Cpu, weights: &[Weight]) -> (ParamStore, Vec<ParamId>) {
    let mut builder = ParamBuilder::new();
    let ids: Vec<_> = weights
        .iter()
        .enumerate()
        .map(|(i, weight)| builder.add(format!("p{i}"), &weight.shape[..], Init::Zeros).unwrap())
        .collect();
    let mut params = builder.build(cpu, 0).unwrap();
    for (id, weight) in ids.iter().zip(weights) {
        params.values_mut(*id).unwrap().copy_from_slice(&weight.values);
    }
    (params, ids)
}

/// A workspace that fills new tensors with NaN.
pub(super) fn workspace(isa: Isa, threads: usize) -> Workspace {
    let workspace = Workspace::new(Device::Cpu(Cpu::new(isa, threads).unwrap()));
    workspace.arena().set_poison(true);
    workspace
}

/// A checked function: makes its output from the inputs and parameters.
pub(super) trait Function: Fn(&Tape<'_>, &[Var], &[ParamId]) -> Result<Var> {}
impl<F: Fn(&Tape<'_>, &[Var], &[ParamId]) -> Result<Var>> Function for F {}

/// Shape and values of an input.
pub(super) type Input = (Vec<usize>, Vec<f32>);

/// Those of given shapes, with values up to a range.
pub(super) fn inputs(inputs: &[(&[usize], f32)]) -> Vec<Input> {
    let input = |(i, (shape, range)): (usize, &(&[usize], f32))| {
        (shape.to_vec(), values(i as u64 + 1, shape.iter().product(), *range))
    };
    inputs.iter().enumerate().map(input).collect()
}

/// The output and the gradients of inputs, which are stored in `dtype`, and of parameters. `w` makes the output gradient.
pub(super) fn differentiate(
    workspace: &mut Workspace,
    dtype: DType,
    inputs: &[Input],
    (params, ids): (&ParamStore, &[ParamId]),
    w: impl Fn(usize) -> Vec<f32>,
    function: &impl Function,
) -> (Vec<f32>, Vec<Vec<f32>>, Gradients) {
    let mut gradients = params.gradients(workspace.device()).unwrap();
    let tape = workspace.train(params, None);
    let leaf = |(shape, values): &Input| tape.leaf(tensor(&tape, dtype, &shape[..], values)).unwrap();
    let leaves: Vec<_> = inputs.iter().map(leaf).collect();
    let y = function(&tape, &leaves, ids).unwrap();
    let output = y.value().to_vec().unwrap();
    let w = tensor(&tape, y.dtype(), *y.shape(), &w(output.len()));
    let by_leaf = tape.backward_from(&y, w, &mut gradients).unwrap();
    let gradient = |leaf: &Var| {
        let dx = by_leaf.get(leaf).expect("every input gets a gradient");
        assert_eq!(dx.shape(), leaf.shape());
        dx.to_vec().unwrap()
    };
    let found = leaves.iter().map(gradient).collect();
    drop((tape, y, leaves, by_leaf));
    (output, found, gradients)
}

/// The weights of L.
pub(super) fn weights(n: usize) -> Vec<f32> {
    values(0x7765, n, 1.0).iter().map(|w| w + w.signum() * 0.25).collect()
}

/// Checks all gradients of `function` on every instruction set of this machine, and that they are the same to the bit
/// for 1, 2 and 5 threads.
pub(super) fn check(name: &str, inputs: &[(&[usize], f32)], params: &[Weight], function: impl Function) {
    check_at(name, self::inputs(inputs), params, function);
}

/// [`check`] with given inputs.
pub(super) fn check_at(name: &str, inputs: Vec<Input>, params: &[Weight], function: impl Function) {
    for isa in Isa::real() {
        let mut workspace = workspace(isa, 1);
        let cpu = Cpu::new(isa, 1).unwrap();
        let (mut store, ids) = store(&cpu, params);
        let run = |workspace: &mut Workspace, store: &ParamStore| {
            differentiate(workspace, DType::F32, &inputs, (store, &ids), weights, &function)
        };
        let (output, by_input, by_param) = run(&mut workspace, &store);
        assert!(output.iter().all(|y| y.is_finite()), "{name} on {}: output {output:?}", isa.kind());
        for threads in [2, 5] {
            let (output2, by_input2, by_param2) = run(&mut self::workspace(isa, threads), &store);
            let same = output == output2 && by_input == by_input2 && by_param.all() == by_param2.all();
            assert!(same, "{name} on {}: {threads} threads differ from one", isa.kind());
        }
        let w = weights(output.len());
        let noise: f64 = w.iter().zip(&output).map(|(w, y)| f64::from((w * y).abs())).sum();
        let mut inputs = inputs.clone();
        for i in 0..inputs.len() {
            for (j, &gradient) in by_input[i].iter().enumerate() {
                let x = inputs[i].1[j];
                let differences = five_points(noise, |step| {
                    inputs[i].1[j] = x + step;
                    let value = evaluate(&mut workspace, &inputs, &store, &ids, &function);
                    inputs[i].1[j] = x;
                    value
                });
                differences.hold(gradient, &format!("{name} on {}: input {i}, element {j}", isa.kind()));
            }
        }
        for &id in &ids {
            for j in 0..store.values(id).len() {
                let x = store.values(id)[j];
                let differences = five_points(noise, |step| {
                    store.values_mut(id).unwrap()[j] = x + step;
                    let value = evaluate(&mut workspace, &inputs, &store, &ids, &function);
                    store.values_mut(id).unwrap()[j] = x;
                    value
                });
                let place = format!("{name} on {}: parameter {}, element {j}", isa.kind(), id.index());
                differences.hold(by_param.get(id)[j], &place);
            }
        }
    }
}

/// L, without a tape.
fn evaluate(
    workspace: &mut Workspace,
    inputs: &[Input],
    params: &ParamStore,
    ids: &[ParamId],
    function: &impl Function,
) -> f64 {
    let tape = workspace.infer(params, None);
    let inputs: Vec<_> = inputs.iter().map(|(shape, values)| tape.input(&shape[..], values).unwrap()).collect();
    let y = function(&tape, &inputs, ids).unwrap().value().to_vec().unwrap();
    weights(y.len()).iter().zip(&y).map(|(w, y)| f64::from(*w) * f64::from(*y)).sum()
}

struct Differences {
    value: f64,
    bound: f64,
}

const STEP: f32 = 1.0 / 32.0;

fn five_points(noise: f64, mut at: impl FnMut(f32) -> f64) -> Differences {
    let mut formula = |h: f32| (at(-2.0 * h) - 8.0 * at(-h) + 8.0 * at(h) - at(2.0 * h)) / (12.0 * f64::from(h));
    let (coarse, fine) = (formula(STEP), formula(STEP / 2.0));
    let rounding = 8.0 * f64::from(f32::EPSILON) * noise / f64::from(STEP);
    Differences { value: fine, bound: (coarse - fine).abs() + 2.0 * rounding }
}

impl Differences {
    #[track_caller]
    fn hold(&self, analytic: f32, place: &str) {
        let Self { value, bound } = *self;
        let error = (f64::from(analytic) - value).abs();
        assert!(
            error <= bound,
            "{place}: gradient {analytic}, differences {value}, error {error:.2e} over {bound:.2e}"
        );
        assert!(bound < 0.05, "{place}: a bound of {bound:.2e} checks nothing");
    }
}
