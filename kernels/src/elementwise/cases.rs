//! The row of element-wise operations in the table of operations: their sizes, their cost, their check against f64.

use super::cuda::{Function, Map, Transpose};
use super::{Binary, Broadcast, Keeps, Unary, binary, reference, unary_backward, unary_forward};
use crate::check::{Guarded, On, greatest_error, on_device, store, uniform, widen, within, within_error};
use crate::operation::{Case, Cost, Operation, Outcome, Pass, Program, Target};
use crate::ptx::{Sm, sim::Approximation};
use crate::simd::{DType, Element};
use crate::simulated::Simulated;
use half::bf16;

/// Arithmetic with broadcasting, and elementary functions with their derivatives.
pub const OPERATION: Operation = Operation { name: "elementwise", cases, cost, check, ptx };

fn ptx(sm: Sm) -> Vec<Program> {
    if sm != Sm::Sm80 {
        return Vec::new();
    }
    let transposes = [DType::Bf16, DType::F32].map(|dtype| Transpose { dtype }.program(sm));
    Map::all().iter().map(|kernel| kernel.program(sm)).chain(transposes).collect()
}

/// [T, F]: nothing, one number, vectors with one lane more and less, primes, several tasks.
const SIZES: [(usize, usize); 9] = [(0, 5), (1, 1), (3, 7), (2, 15), (5, 16), (4, 17), (3, 65), (1, 1021), (29, 643)];

/// The word of a variant: the name of a value in lower case.
fn word(value: &dyn std::fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for ((rows, columns), dtype) in SIZES.into_iter().flat_map(|size| DType::ALL.map(|dtype| (size, dtype))) {
        let case = |pass, variant| Case { pass, dtype, variant, dims: vec![("T", rows), ("F", columns)] };
        for operation in Binary::ALL {
            let variant = |broadcast| format!("{}_{}", word(&operation), word(&broadcast));
            all.extend(Broadcast::ALL.map(|broadcast| case(Pass::Forward, variant(broadcast))));
        }
        for function in Unary::ALL {
            all.extend(Pass::ALL.map(|pass| case(pass, word(&function))));
        }
    }
    all
}

fn binary_of(case: &Case) -> Option<(Binary, Broadcast)> {
    let (operation, broadcast) = case.variant.split_once('_')?;
    let operation = Binary::ALL.into_iter().find(|o| word(o) == operation)?;
    Some((operation, Broadcast::ALL.into_iter().find(|b| word(b) == broadcast)?))
}

fn unary_of(case: &Case) -> Unary {
    let found = Unary::ALL.into_iter().find(|f| word(f) == case.variant);
    found.unwrap_or_else(|| panic!("the case {case} names no operation"))
}

/// An elementary function counts as one operation.
fn cost(case: &Case) -> Cost {
    let (rows, columns) = (case.dim("T"), case.dim("F"));
    let elements = rows * columns;
    let read = match (binary_of(case), case.pass) {
        (Some((_, broadcast)), _) => elements + broadcast.len(rows, columns),
        (None, Pass::Forward) => elements,
        (None, Pass::Backward) => 2 * elements,
    };
    Cost { flops: elements as u64, bytes: ((read + elements) * case.dtype.bytes()) as u64 }
}

fn check(case: &Case, target: Target) -> Outcome {
    on_device(case, target, |on| check_on(case, on))
}

fn check_on(case: &Case, on: &On<'_>) -> Result<f64, String> {
    match (binary_of(case), case.dtype) {
        (Some(which), DType::F32) => check_binary::<f32>(case, which, on),
        (Some(which), DType::Bf16) => check_binary::<bf16>(case, which, on),
        (None, DType::F32) => check_unary::<f32>(case, unary_of(case), on),
        (None, DType::Bf16) => check_unary::<bf16>(case, unary_of(case), on),
    }
}

/// y of the operands by the PTX.
pub(super) fn simulate<X: Element, Y: Element>(
    sm: Sm,
    function: Function,
    (rows, columns): (usize, usize),
    operands: &[&[X]],
    y: &mut [Y],
    approximation: Approximation,
) -> Result<(), String> {
    let kernel = Map::new(function, X::DTYPE, Y::DTYPE, rows, columns);
    let mut device = Simulated::default();
    for operand in operands {
        device.input("operand", operand);
    }
    let out = match function {
        Function::AddAssign | Function::AddScaled => device.input("y", y),
        _ => device.output::<Y>("y", y.len()),
    };
    if matches!(function, Function::Scale | Function::Repeat | Function::AddScaled) {
        device.float(FACTOR);
    }
    device.integers([rows, columns]);
    device.run(&kernel.program(sm), kernel.launch(rows, columns), approximation)?;
    y.copy_from_slice(&device.read(out)?);
    Ok(())
}

/// The factor of the kernels that have one, in tests.
pub(super) const FACTOR: f32 = -0.37;

/// Numbers of size 0.5 to 2 of both signs: safe to divide by.
pub(super) fn operands<X: Element>(seed: u64, len: usize) -> Vec<X> {
    uniform::<f32>(seed, len, 1.5).into_iter().map(|x| X::from_f32(x + 0.5f32.copysign(x))).collect()
}

fn check_binary<X: Element>(case: &Case, which: (Binary, Broadcast), on: &On<'_>) -> Result<f64, String> {
    let (operation, broadcast) = which;
    let (rows, columns) = (case.dim("T"), case.dim("F"));
    let (a, b) = (operands::<X>(1, rows * columns), operands::<X>(2, broadcast.len(rows, columns)));
    let mut y = Guarded::<X>::poisoned(a.len());
    match on {
        On::Cpu(cpu) => binary(cpu, operation, broadcast, columns, &a, &b, &mut y),
        On::Simulator(sm) => {
            let function = Function::Binary(operation, broadcast);
            simulate(*sm, function, (rows, columns), &[&a, &b], &mut y[..], Approximation::Exact)?;
        }
    }
    y.intact()?;
    let naive = store::<X>(&reference::binary::<f32>(operation, broadcast, columns, &widen(&a), &widen(&b)));
    let exact = reference::binary::<f64>(operation, broadcast, columns, &widen(&a), &widen(&b));
    if let Some(i) = (0..a.len()).find(|&i| y[i].to_f32() != naive[i].to_f32()) {
        return Err(format!("y[{i}] is {}, but one operation rounds to {}", y[i].to_f32(), naive[i].to_f32()));
    }
    within("y", &y, &naive, &exact)
}

/// Inputs, what forward keeps of them, and both results in both precisions.
struct UnaryCase<X> {
    x: Vec<X>,
    kept: Vec<X>,
    dy: Vec<X>,
    naive: [Vec<X>; 2],
    exact: [Vec<f64>; 2],
}

impl<X: Element> UnaryCase<X> {
    fn new(function: Unary, len: usize) -> Self {
        let mut x = uniform::<X>(3, len, 6.0);
        if function == Unary::Ln {
            x.iter_mut().for_each(|x| *x = X::from_f32(x.to_f32().abs() + 0.01));
        }
        let dy = uniform::<X>(4, len, 2.0);
        let y: Vec<X> = x.iter().map(|x| X::from_f32(reference::unary(function, x.to_f32()))).collect();
        let kept = if function.keeps() == Keeps::Input { x.clone() } else { y.clone() };
        let slope = |kept: X| reference::unary_derivative(function, f64::from(kept.to_f32()));
        let pairs = || kept.iter().zip(&dy);
        let naive = |(k, dy): (&X, &X)| X::from_f32(dy.to_f32() * reference::unary_derivative(function, k.to_f32()));
        let naive_dx = pairs().map(naive).collect();
        let exact_y = x.iter().map(|x| reference::unary(function, f64::from(x.to_f32()))).collect();
        let exact_dx = pairs().map(|(&k, dy)| f64::from(dy.to_f32()) * slope(k)).collect();
        Self { naive: [y, naive_dx], exact: [exact_y, exact_dx], x, kept, dy }
    }
}

fn check_unary<X: Element>(case: &Case, function: Unary, on: &On<'_>) -> Result<f64, String> {
    let which = case.pass as usize;
    // The naive error of a few thousand such numbers: that of a handful is a matter of luck.
    let sample = UnaryCase::<X>::new(function, 4096);
    let error = greatest_error(&sample.naive[which], &sample.exact[which]);
    let inputs = UnaryCase::<X>::new(function, case.dim("T") * case.dim("F"));
    let shape = (case.dim("T"), case.dim("F"));
    let check = |compute: &dyn Fn(&mut [X]) -> Result<(), String>| {
        let mut out = Guarded::<X>::poisoned(inputs.x.len());
        compute(&mut out)?;
        out.intact()?;
        within_error(["y", "dx"][which], &out, error, &inputs.exact[which])
    };
    match (on, case.pass) {
        (On::Cpu(cpu), Pass::Forward) => check(&|out| {
            unary_forward(cpu, function, &inputs.x, out);
            Ok(())
        }),
        (On::Cpu(cpu), Pass::Backward) => check(&|out| {
            unary_backward(cpu, function, &inputs.kept, &inputs.dy, out);
            Ok(())
        }),
        (On::Simulator(sm), pass) => {
            let (function, operands) = match pass {
                Pass::Forward => (Function::Unary(function), vec![&inputs.x[..]]),
                Pass::Backward => (Function::UnaryBackward(function), vec![&inputs.kept[..], &inputs.dy[..]]),
            };
            let run = |approximation| check(&|out| simulate(*sm, function, shape, &operands, out, approximation));
            Approximation::ALL.into_iter().try_fold(0.0f64, |worst, how| Ok(worst.max(run(how)?)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elementwise;

    #[test]
    fn casts_sums_and_scales_in_ptx_are_those_of_the_processor() {
        let cpu = crate::Cpu::new(*crate::Isa::real().last().expect("every machine has one"), 1).expect("a thread");
        for (rows, columns) in [(1, 1), (5, 7), (3, 16), (33, 72)] {
            let shape = (rows, columns);
            let (x, before) = (uniform::<f32>(1, rows * columns, 2.0), uniform::<f32>(2, rows * columns, 2.0));
            let half: Vec<bf16> = store(&x);
            let (mut got, mut wanted) = (half.clone(), half.clone());
            simulate(Sm::Sm80, Function::Cast, shape, &[&x], &mut got, Approximation::Exact).expect("it runs");
            elementwise::cast(&cpu, &x, &mut wanted);
            assert_eq!(got, wanted, "cast to bf16 of {shape:?}");
            let mut wide = vec![0.0f32; x.len()];
            simulate(Sm::Sm80, Function::Cast, shape, &[&half], &mut wide, Approximation::Exact).expect("it runs");
            assert_eq!(wide, widen::<f32, bf16>(&half), "cast to f32 of {shape:?}");
            let run = |function, got: &mut Vec<f32>| {
                simulate(Sm::Sm80, function, shape, &[&half], got, Approximation::Exact).expect("it runs");
            };
            let (mut got, mut wanted) = (before.clone(), before.clone());
            run(Function::AddScaled, &mut got);
            elementwise::add_scaled(&cpu, FACTOR, &half, &mut wanted);
            assert_eq!(got, wanted, "y += c x of {shape:?}");
            let (mut got, mut wanted) = (before.clone(), before.clone());
            simulate(Sm::Sm80, Function::AddAssign, shape, &[&x], &mut got, Approximation::Exact).expect("it runs");
            elementwise::add_assign(&cpu, &x, &mut wanted);
            assert_eq!(got, wanted, "y += x of {shape:?}");
            let (mut got, mut wanted) = (before.clone(), before.clone());
            simulate(Sm::Sm80, Function::Scale, shape, &[&x], &mut got, Approximation::Exact).expect("it runs");
            elementwise::scale(&cpu, FACTOR, &x, &mut wanted);
            assert_eq!(got, wanted, "c x of {shape:?}");
            simulate(Sm::Sm80, Function::Repeat, shape, &[&x[..1]], &mut got, Approximation::Exact).expect("it runs");
            assert!(got.iter().all(|y| *y == FACTOR * x[0]), "c x[0] of {shape:?}: {got:?}");
        }
    }

    #[test]
    fn a_transposition_in_ptx_moves_every_number_to_its_place() {
        fn moves<X: Element>(rows: usize, columns: usize) {
            let (x, kernel) = (uniform::<X>(1, rows * columns, 1.0), Transpose { dtype: X::DTYPE });
            let mut device = Simulated::default();
            device.input("x", &x);
            let y = device.output::<X>("y", x.len());
            device.integers([rows, columns]);
            let launch = kernel.launch(rows, columns);
            device.run(&kernel.program(Sm::Sm80), launch, Approximation::Exact).expect("it runs");
            let y: Vec<X> = device.read(y).expect("every number is written");
            for (i, y) in y.iter().enumerate() {
                assert_eq!(y.to_f32(), x[i % rows * columns + i / rows].to_f32(), "{rows} x {columns}: number {i}");
            }
        }
        for (rows, columns) in [(1, 1), (32, 32), (31, 33), (65, 7), (40, 96)] {
            moves::<f32>(rows, columns);
            moves::<bf16>(rows, columns);
        }
    }
}
