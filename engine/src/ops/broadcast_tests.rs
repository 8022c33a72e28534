//! Broadcasting against sums over indices in f64, on the processor and the simulated GPU, and against differences.
use super::{expand::joint, gradient_check::*, *};
use crate::shared_tests::*;

pub(super) type Operation = fn(&Tape<'_>, &Var, &Var) -> Result<Var>;
pub(super) const OPERATIONS: [(&str, Operation); 4] = [("add", add), ("sub", sub), ("mul", mul), ("div", div)];

/// Shapes of which one repeats, or both, and sizes of vectors and not.
const PAIRS: [(&[usize], &[usize]); 22] = [
    (&[2, 3, 5], &[2, 3, 5]),
    (&[2, 3, 5], &[5]),
    (&[2, 3, 5], &[2, 3, 1]),
    (&[2, 3, 5], &[]),
    (&[2, 3, 5], &[1]),
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
fn place(shape: &[usize], whole: &Shape, i: usize) -> usize {
    let behind = |d: usize| whole[d + 1..].iter().product::<usize>();
    let dimensions = shape.iter().zip(whole.len() - shape.len()..);
    dimensions.fold(0, |at, (&size, d)| at * size + i / behind(d) % whole[d] % size)
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

/// Multiples of 1/16 from 1 to 2, exact in bf16.
fn positive(seed: u64, count: usize) -> Vec<f32> {
    values(seed, count, 0.5).iter().map(|x| (x * 16.0).round() / 16.0 + 1.5).collect()
}

#[test]
fn any_two_shapes_that_fit_agree_with_f64_for_any_number_of_threads() {
    let params = ParamBuilder::new().build(&cpu(1), 0).unwrap();
    let of = |isa| [1, 2, 5].map(|threads| Device::Cpu(Cpu::new(isa, threads).unwrap())).to_vec();
    // Devices that give the same bits.
    for devices in Isa::real().into_iter().map(of).chain([vec![Device::Cuda(gpu((8, 0)))]]) {
        let mut workspaces: Vec<_> = devices.iter().cloned().map(Workspace::new).collect();
        workspaces.iter().for_each(|workspace| workspace.arena().set_poison(true));
        for (dtype, bound) in [(DType::F32, 0.5f32.powi(18)), (DType::Bf16, 0.5f32.powi(6))] {
            for (shapes, (name, operation)) in PAIRS.iter().flat_map(|pair| OPERATIONS.map(|op| (*pair, op))) {
                let case = format!("{name}, {dtype}, {shapes:?}, {:?}", devices[0]);
                let whole = joint(&shapes.0.into(), &shapes.1.into()).unwrap();
                let inputs = [(1, shapes.0), (2, shapes.1)]
                    .map(|(seed, shape)| (shape.to_vec(), positive(seed, shape.iter().product())));
                let function = |tape: &Tape<'_>, x: &[Var], _: &[ParamId]| {
                    let y = operation(tape, &x[0], &x[1])?;
                    assert_eq!(y.shape(), &whole, "{case}");
                    Ok(y)
                };
                let w = |count| positive(3, count);
                let run = |workspace: &mut Workspace| {
                    let (y, dx, _) = differentiate(workspace, dtype, &inputs, (&params, &[]), w, &function);
                    [vec![y], dx].concat()
                };
                let found: Vec<_> = workspaces.iter_mut().map(run).collect();
                assert!(found.iter().all(|other| *other == found[0]), "{case}: threads change bits");
                let wanted = reference(name, shapes, &inputs[0].1, &inputs[1].1, &w(whole.elements()));
                for (what, (got, wanted)) in ["y", "da", "db"].iter().zip(found[0].iter().zip(wanted)) {
                    let wanted: Vec<f32> = wanted.iter().map(|&x| x as f32).collect();
                    close(&format!("{case}: {what}"), got, &wanted, bound);
                }
            }
        }
    }
}

#[test]
fn only_shapes_between_others_are_copied_and_what_does_not_fit_is_refused() {
    let params = ParamBuilder::new().build(&cpu(1), 0).unwrap();
    let mut workspace = Workspace::new(Device::Cpu(cpu(1)));
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
    let problem = "sub: [16, 64] and [16] do not fit: aligned at the last dimension, sizes are equal or 1";
    refused(launches(&mut workspace, [&[16, 64], &[16]]), problem);
    let tape = workspace.infer(&params, None);
    let x = tape.input([2, 3], &[1f32; 6]).unwrap();
    refused(super::expand(&tape, &x, [3]), "[2, 3] cannot be repeated to [3]");
    refused(super::expand(&tape, &x, [4, 3]), "[2, 3] cannot be repeated to [4, 3]");
}
