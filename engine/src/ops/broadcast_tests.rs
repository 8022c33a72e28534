//! Broadcasting against sums over indices in f64, on the processor and the simulated GPU, and against differences.
use super::{expand::joint, gradient_check::check_at, gradient_check::values, *};
use crate::{DType, Device, ParamBuilder, Result, Shape, Tape, Tensor, Var, Workspace, device::Gpu};
use crate::{device::simulated::SimulatedDriver, error::EngineError};
use half::bf16;
use kernels::{Cpu, Isa};

type Operation = fn(&Tape<'_>, &Var, &Var) -> Result<Var>;
const OPERATIONS: [(&str, Operation); 4] = [("add", add), ("sub", sub), ("mul", mul), ("div", div)];

/// Shapes of which one repeats, or both, and sizes of vectors and not.
const PAIRS: [(&[usize], &[usize]); 17] = [
    (&[2, 3, 5, 5], &[5, 5]),
    (&[4, 3, 16], &[3, 16]),
    (&[4, 3, 16], &[1, 3, 16]),
    (&[2, 3, 4], &[2, 1, 1]),
    (&[2, 3, 4], &[1, 1, 1]),
    (&[2, 3, 5, 7], &[2, 1, 1, 7]),
    (&[2, 3, 5, 7], &[2, 1, 5, 7]),
    (&[2, 3, 5, 7], &[3, 1, 7]),
    (&[2, 3, 5, 7], &[3, 5, 1]),
    (&[2, 3, 5, 7], &[2, 1, 5, 1]),
    (&[5, 1], &[1, 6]),
    (&[6], &[5, 1]),
    (&[3, 4], &[2, 3, 4]),
    (&[1], &[2, 3, 4]),
    (&[], &[3, 33]),
    (&[2, 1, 4, 1], &[3, 1, 5]),
    (&[1, 5], &[1, 1]),
];

/// Index in a tensor of `shape` of element `i` of `whole`.
fn place(shape: &[usize], whole: &Shape, mut i: usize) -> usize {
    let (mut at, mut stride) = (0, 1);
    for d in 0..whole.len() {
        let index = i % whole[whole.len() - 1 - d];
        i /= whole[whole.len() - 1 - d];
        if let Some(&size) = shape.len().checked_sub(1 + d).map(|d| &shape[d]) {
            at += if size == 1 { 0 } else { index * stride };
            stride *= size;
        }
    }
    at
}

/// y, da and db for the gradient w of y.
fn reference(name: &str, (a_shape, b_shape): (&[usize], &[usize]), a: &[f32], b: &[f32], w: &[f32]) -> [Vec<f64>; 3] {
    let whole = joint(&a_shape.into(), &b_shape.into()).unwrap();
    let (mut y, mut da, mut db) = (Vec::new(), vec![0.0; a.len()], vec![0.0; b.len()]);
    for (i, &w) in w.iter().enumerate() {
        let (at, bt, w) = (place(a_shape, &whole, i), place(b_shape, &whole, i), f64::from(w));
        let (a, b) = (f64::from(a[at]), f64::from(b[bt]));
        let (value, by_a, by_b) = match name {
            "add" => (a + b, 1.0, 1.0),
            "sub" => (a - b, 1.0, -1.0),
            "mul" => (a * b, b, a),
            _ => (a / b, 1.0 / b, -a / (b * b)),
        };
        y.push(value);
        da[at] += w * by_a;
        db[bt] += w * by_b;
    }
    [y, da, db]
}

fn tensor(tape: &Tape<'_>, dtype: DType, shape: &[usize], values: &[f32]) -> Tensor {
    let mut tensor = tape.alloc(shape, dtype).unwrap();
    match dtype {
        DType::F32 => tensor.copy_from(values),
        _ => tensor.copy_from(&values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>()),
    }
    .unwrap();
    tensor
}

/// Multiples of 1/16 from 1 to 2, exact in bf16.
fn positive(seed: u64, count: usize) -> Vec<f32> {
    values(seed, count, 0.5).iter().map(|x| (x * 16.0).round() / 16.0 + 1.5).collect()
}

#[test]
fn any_two_shapes_that_fit_agree_with_f64() {
    let cpu = Cpu::new(Isa::choose().unwrap(), 2).unwrap();
    let gpu = Gpu::new(SimulatedDriver::new((8, 0)), cpu.clone()).unwrap();
    let params = ParamBuilder::new().build(&cpu, 0).unwrap();
    for device in [Device::Cpu(cpu.clone()), Device::Cuda(gpu)] {
        let mut workspace = Workspace::new(device.clone());
        workspace.arena().set_poison(true);
        for (dtype, bound) in [(DType::F32, 0.5f64.powi(18)), (DType::Bf16, 0.5f64.powi(6))] {
            for (shapes, (name, operation)) in PAIRS.iter().flat_map(|pair| OPERATIONS.map(|op| (*pair, op))) {
                let whole = joint(&shapes.0.into(), &shapes.1.into()).unwrap();
                let [a, b] = [(1, shapes.0), (2, shapes.1)].map(|(seed, shape)| positive(seed, shape.iter().product()));
                let w = positive(3, whole.elements());
                let mut gradients = params.gradients(&device).unwrap();
                let tape = workspace.train(&params, None);
                let x = [(shapes.0, &a), (shapes.1, &b)];
                let [va, vb] = x.map(|(shape, values)| tape.leaf(tensor(&tape, dtype, shape, values)).unwrap());
                let y = operation(&tape, &va, &vb).unwrap();
                assert_eq!(y.shape(), &whole, "{name}, {shapes:?}");
                let leaves = tape.backward_from(&y, tensor(&tape, dtype, &whole, &w), &mut gradients).unwrap();
                let found = [y.value(), leaves.get(&va).unwrap(), leaves.get(&vb).unwrap()];
                assert_eq!([&found[1].shape()[..], &found[2].shape()[..]], [shapes.0, shapes.1]);
                for (what, (found, wanted)) in
                    ["y", "da", "db"].iter().zip(found.iter().zip(reference(name, shapes, &a, &b, &w)))
                {
                    let scale = wanted.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                    for (i, (found, wanted)) in found.to_vec().unwrap().iter().zip(&wanted).enumerate() {
                        let error = (f64::from(*found) - wanted).abs();
                        let case = format!("{name}, {dtype}, {shapes:?}, {device:?}: {what}[{i}]");
                        assert!(error <= bound * scale, "{case} is {found}, expected {wanted}");
                    }
                }
            }
        }
    }
}

#[test]
fn broadcasting_agrees_with_differences_for_any_number_of_threads() {
    for (a, b) in PAIRS {
        for (name, operation) in OPERATIONS {
            let inputs = [(4, a), (5, b)].map(|(seed, shape)| {
                let count = shape.iter().product();
                (shape.to_vec(), values(seed, count, 0.5).iter().map(|x| x + 1.5).collect())
            });
            check_at(&format!("{name} {a:?} {b:?}"), inputs.into(), &[], |tape, x, _| operation(tape, &x[0], &x[1]));
        }
    }
}

#[test]
fn only_shapes_between_others_are_copied_and_what_does_not_fit_is_refused() {
    let cpu = Cpu::new(Isa::choose().unwrap(), 1).unwrap();
    let params = ParamBuilder::new().build(&cpu, 0).unwrap();
    let mut workspace = Workspace::new(Device::Cpu(cpu));
    let launches = |workspace: &mut Workspace, shapes: [&[usize]; 2]| {
        workspace.profile().clear();
        workspace.profile().set(true);
        let tape = workspace.infer(&params, None);
        let [a, b] = shapes.map(|shape| tape.input(shape, &vec![1f32; shape.iter().product()]).unwrap());
        let result = sub(&tape, &a, &b).map(|y| *y.shape());
        drop(tape);
        let rows = workspace.profile().rows();
        let count = |name| rows.iter().filter(|row| row.0 == name).map(|row| row.1.calls).sum::<u64>();
        let counts = [count("sub"), count("expand")];
        result.map(|shape| (shape.to_vec(), counts))
    };
    for (shapes, copies) in [
        ([&[2, 3, 4, 4][..], &[4, 4]], 0),
        ([&[2, 3, 4], &[3, 4]], 0),
        ([&[2, 3, 4], &[2, 1, 1]], 0),
        ([&[2, 3, 4], &[]], 0),
        ([&[2, 3, 4, 5], &[2, 1, 1, 5]], 1),
        ([&[2, 3, 4, 5], &[2, 1, 4, 1]], 2),
        ([&[4, 1], &[1, 5]], 1),
    ] {
        let (_, counts) = launches(&mut workspace, shapes).unwrap();
        assert_eq!(counts, [1, copies], "{shapes:?}");
    }
    // Empty dimensions, in either, and the gradient of what is repeated no times.
    assert_eq!(launches(&mut workspace, [&[0, 3], &[3]]).unwrap().0, [0, 3]);
    assert_eq!(launches(&mut workspace, [&[1, 3], &[0, 1]]).unwrap().0, [0, 3]);
    assert_eq!(launches(&mut workspace, [&[2, 1, 3], &[2, 0, 1]]).unwrap().0, [2, 0, 3]);
    let mut gradients = params.gradients(workspace.device()).unwrap();
    for (from, to) in [([1, 3], [0, 3]), ([2, 1], [2, 0]), ([1, 1], [0, 0])] {
        let tape = workspace.train(&params, None);
        let x = tape.leaf(Tensor::from_slice(from, &vec![2f32; from.iter().product()]).unwrap()).unwrap();
        let loss = sum(&tape, &super::expand(&tape, &x, to).unwrap()).unwrap();
        let leaves = tape.backward(&loss, &mut gradients).unwrap();
        assert!(leaves.get(&x).unwrap().to_vec().unwrap().iter().all(|&dx| dx == 0.0), "{from:?} to {to:?}");
    }
    let error = |result: Result<_, EngineError>| result.map(|_: (Vec<usize>, [u64; 2])| ()).unwrap_err().to_string();
    let problem = "sub: [16, 64] and [16] do not fit: aligned at the last dimension, sizes are equal or 1";
    assert!(error(launches(&mut workspace, [&[16, 64], &[16]])).contains(problem));
    let tape = workspace.infer(&params, None);
    let x = tape.input([2, 3], &[1f32; 6]).unwrap();
    for (shape, problem) in
        [(&[3][..], "[2, 3] cannot be repeated to [3]"), (&[4, 3], "[2, 3] cannot be repeated to [4, 3]")]
    {
        assert!(super::expand(&tape, &x, shape).unwrap_err().to_string().contains(problem));
    }
}
