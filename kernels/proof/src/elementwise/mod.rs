//! Row of element-wise operations in the table of operations: sizes, cost, check against f64.

pub mod reference;
#[cfg(test)]
mod tests;

use crate::check::{Real, greatest_error, within_error};
use crate::entry::*;
use kernels::elementwise::{
    Binary, Broadcast, Keeps, Unary, add_assign, add_scaled, binary, cast, scale, transpose, unary_backward,
    unary_forward,
};
use kernels::pool::Cpu;
use kernels_cuda::elementwise::{Function, Map, MapArgs, Part, PartArgs, Transpose, TransposeArgs};

/// Arithmetic with broadcasting, and elementary functions with their derivatives.
pub const OPERATION: Operation = Operation { name: "elementwise", cases, cost, check, ptx };

fn ptx(sm: Sm) -> Vec<Program> {
    once(sm, || {
        let transposes = [DType::Bf16, DType::F32].map(|dtype| Transpose { dtype }.program(sm));
        let parts = Part::all().into_iter().map(|kernel| kernel.program(sm));
        Map::all().iter().map(|kernel| kernel.program(sm)).chain(transposes).chain(parts).collect()
    })
}

/// [T, F]: empty, one element, vectors with one lane more and less, primes, several tasks.
const SIZES: [(usize, usize); 9] = [(0, 5), (1, 1), (3, 7), (2, 15), (5, 16), (4, 17), (3, 65), (1, 1021), (29, 643)];

/// Word of a variant: the name of a value in lower case.
fn word(value: &dyn std::fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
}

/// Operations that are not [`Unary`] or [`Binary`]: f32 is cast to bf16 and bf16 to f32, y += c·x is in f32, and one element
/// in f32 is repeated.
const MOVES: [&str; 7] = ["cast", "scale", "add_assign", "add_scaled", "transpose", "repeat", "one"];

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
        all.extend(MOVES.map(|variant| case(Pass::Forward, variant.to_string())));
        all.push(case(Pass::Forward, "part".to_string()));
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
    if MOVES.contains(&case.variant.as_str()) || case.variant == "part" {
        let stored = case.dtype.bytes();
        let (flops, bytes) = match case.variant.as_str() {
            "cast" => (0, 6),
            "scale" => (1, 2 * stored),
            "add_assign" => (1, 3 * stored),
            "add_scaled" => (2, stored + 8),
            "one" => (2, 2 * stored),
            "repeat" => (1, stored),
            _ => (0, 2 * stored),
        };
        return Cost { flops: flops * elements as u64, bytes: (bytes * elements) as u64 };
    }
    let read = match (binary_of(case), case.pass) {
        (Some((_, broadcast)), _) => elements + broadcast.len(rows, columns),
        (None, Pass::Forward) => elements,
        (None, Pass::Backward) => 2 * elements,
    };
    Cost { flops: elements as u64, bytes: ((read + elements) * case.dtype.bytes()) as u64 }
}

fn check(case: &Case, runner: &Runner<'_>) -> Outcome {
    if let (Runner::Cpu(_) | Runner::Recording(_), "repeat" | "one" | "part") = (runner, case.variant.as_str()) {
        return Outcome::Skipped {
            reason: "the processor has no kernel for what the standard library does".to_string(),
        };
    }
    on_runner(case, runner, |on| check_on(case, on))
}

fn check_on(case: &Case, on: &On<'_>) -> Result<f64, String> {
    if let (On::Gpu(gpu), "part") = (on, case.variant.as_str()) {
        return match case.dtype {
            DType::F32 => check_part::<f32>(case, gpu),
            DType::Bf16 => check_part::<bf16>(case, gpu),
        };
    }
    if MOVES.contains(&case.variant.as_str()) {
        return match (case.variant.as_str(), case.dtype) {
            ("cast", DType::F32) => check_move(case, on, cast::<f32, bf16>),
            ("cast", DType::Bf16) => check_move(case, on, cast::<bf16, f32>),
            ("add_scaled", DType::F32) => check_move(case, on, |cpu, x: &[f32], y| add_scaled(cpu, FACTOR, x, y)),
            ("add_scaled", DType::Bf16) => check_move(case, on, |cpu, x: &[bf16], y| add_scaled(cpu, FACTOR, x, y)),
            ("repeat", DType::F32) => check_move(case, on, |_, _: &[f32], _: &mut [f32]| ()),
            ("repeat", DType::Bf16) => check_move(case, on, |_, _: &[f32], _: &mut [bf16]| ()),
            ("one", DType::F32) => check_move(case, on, |_, _: &[f32], _: &mut [f32]| ()),
            ("one", DType::Bf16) => check_move(case, on, |_, _: &[bf16], _: &mut [bf16]| ()),
            (_, DType::F32) => check_move_in_place::<f32>(case, on),
            (_, DType::Bf16) => check_move_in_place::<bf16>(case, on),
        };
    }
    match (binary_of(case), case.dtype) {
        (Some(which), DType::F32) => check_binary::<f32>(case, which, on),
        (Some(which), DType::Bf16) => check_binary::<bf16>(case, which, on),
        (None, DType::F32) => check_unary::<f32>(case, unary_of(case), on),
        (None, DType::Bf16) => check_unary::<bf16>(case, unary_of(case), on),
    }
}

/// Runs the PTX: y from the operands.
pub(super) fn simulate<X: Element, Y: Element>(
    gpu: &GpuRunner<'_>,
    function: Function,
    (rows, columns): (usize, usize),
    operands: &[&[X]],
    y: &mut [Y],
    approximation: Approximation,
) -> Result<(), String> {
    let kernel = Map::new(function, X::DTYPE, Y::DTYPE, rows, columns);
    let mut device = gpu.device();
    let inputs: Vec<_> = operands.iter().map(|operand| device.buffer("operand", operand)).collect();
    let out = match function {
        Function::AddAssign | Function::AddScaled => device.buffer("y", y),
        _ => device.unwritten::<Y>("y", y.len()),
    };
    let has_factor = matches!(function, Function::Scale | Function::Repeat | Function::AddScaled);
    let arguments = MapArgs::new(function, &inputs, out, has_factor.then_some(FACTOR), [rows, columns]);
    device.start(&kernel.program(gpu.sm()), kernel.launch(rows, columns), &arguments, approximation)?;
    y.copy_from_slice(&device.read(out)?);
    Ok(())
}

/// Factor in tests of kernels that have one.
pub(super) const FACTOR: f32 = -0.37;

/// Elements of magnitude 0.5 to 2 and either sign: safe divisors.
pub(super) fn operands<X: Element>(seed: u64, len: usize) -> Vec<X> {
    uniform::<f32>(seed, len, 1.5).into_iter().map(|x| X::from_f32(x + 0.5f32.copysign(x))).collect()
}

fn check_binary<X: Element>(case: &Case, which: (Binary, Broadcast), on: &On<'_>) -> Result<f64, String> {
    let (operation, broadcast) = which;
    let (rows, columns) = (case.dim("T"), case.dim("F"));
    let [a, b] = [(1, rows * columns), (2, broadcast.len(rows, columns))]
        .map(|(seed, len)| on.data().alter(seed, operands::<X>(seed, len)));
    let mut y = Guarded::<X>::poisoned(a.len());
    match on {
        On::Cpu(cpu) => binary(cpu, operation, broadcast, columns, [&a, &b], &mut y),
        On::Gpu(gpu) => {
            let function = Function::Binary(operation, broadcast);
            simulate(gpu, function, (rows, columns), &[&a, &b], &mut y[..], Approximation::Device)?;
        }
    }
    y.intact()?;
    if on.records(|| vec![Output::new("y", &y)]) {
        return Ok(0.0);
    }
    let naive = store::<X>(&reference::binary::<f32>(operation, broadcast, columns, &widen(&a), &widen(&b)));
    let exact = reference::binary::<f64>(operation, broadcast, columns, &widen(&a), &widen(&b));
    if let Some(i) = (0..a.len()).find(|&i| y[i].to_f32() != naive[i].to_f32()) {
        return Err(format!("y[{i}] is {}, but one operation rounds to {}", y[i].to_f32(), naive[i].to_f32()));
    }
    on.within("y", &y, &naive, &exact)
}

/// Definition of the operations in [`MOVES`]: the result for x and the old y.
fn moved<R: Real>(case: &Case, x: &[R], y: &[R]) -> Vec<R> {
    let (rows, columns) = (case.dim("T"), case.dim("F"));
    let factor = R::of(f64::from(FACTOR));
    match case.variant.as_str() {
        "scale" => x.iter().map(|&x| factor * x).collect(),
        "add_assign" => x.iter().zip(y).map(|(&x, &y)| y + x).collect(),
        "add_scaled" => x.iter().zip(y).map(|(&x, &y)| y + factor * x).collect(),
        "repeat" => x.iter().map(|_| factor * x[0]).collect(),
        "one" => x.iter().map(|&x| R::of(1.0) + R::of(0.0) * x).collect(),
        "transpose" => (0..x.len()).map(|i| x[i % rows * columns + i / rows]).collect(),
        _ => x.to_vec(),
    }
}

/// Checks an operation of [`MOVES`] whose result has the type of x.
fn check_move_in_place<X: Element>(case: &Case, on: &On<'_>) -> Result<f64, String> {
    check_move(case, on, |cpu, x: &[X], y: &mut [X]| match case.variant.as_str() {
        "scale" => scale(cpu, FACTOR, x, y),
        "add_assign" => add_assign(cpu, x, y),
        _ => transpose(cpu, case.dim("T"), case.dim("F"), x, y),
    })
}

fn check_move<X: Element, Y: Element>(
    case: &Case,
    on: &On<'_>,
    compute: impl Fn(&Cpu, &[X], &mut [Y]),
) -> Result<f64, String> {
    let shape = (case.dim("T"), case.dim("F"));
    let (x, before) = (on.uniform::<X>(1, shape.0 * shape.1, 2.0), on.uniform::<Y>(2, shape.0 * shape.1, 2.0));
    let mut y = Guarded::<Y>::new(&before);
    let function = match case.variant.as_str() {
        "cast" => Some(Function::Cast),
        "scale" => Some(Function::Scale),
        "repeat" => Some(Function::Repeat),
        "one" => Some(Function::One),
        "add_assign" => Some(Function::AddAssign),
        "add_scaled" => Some(Function::AddScaled),
        _ => None,
    };
    match (on, function) {
        (On::Cpu(cpu), _) => compute(cpu, &x, &mut y),
        (On::Gpu(gpu), Some(function)) => {
            let x = if function == Function::Repeat { &x[..x.len().min(1)] } else { &x[..] };
            simulate(gpu, function, shape, &[x], &mut y[..], Approximation::Device)?;
        }
        (On::Gpu(gpu), None) => {
            let (kernel, mut device) = (Transpose { dtype: X::DTYPE }, gpu.device());
            let out = device.unwritten::<Y>("y", y.len());
            let (rows, columns) = shape;
            let arguments = TransposeArgs { x: device.buffer("x", &x), y: out, rows, columns };
            device.start(&kernel.program(gpu.sm()), kernel.launch(rows, columns), &arguments, Approximation::Device)?;
            y.copy_from_slice(&device.read(out)?);
        }
    }
    y.intact()?;
    if on.records(|| vec![Output::new("y", &y)]) {
        return Ok(0.0);
    }
    let naive = store::<Y>(&moved::<f32>(case, &widen(&x), &widen(&before)));
    on.within("y", &y, &naive, &moved::<f64>(case, &widen(&x), &widen(&before)))
}

/// Checks a copy of some columns: the copied elements have the same bits, all others are unchanged.
fn check_part<X: Element>(case: &Case, gpu: &GpuRunner<'_>) -> Result<f64, String> {
    let (rows, columns) = (case.dim("T"), case.dim("F"));
    // First columns and row lengths that are multiples of a vector, and that are not.
    for (first, length) in [([8, 16], [columns + 8, columns + 24]), ([2, 1], [columns + 3, columns + 5])] {
        let (x, before) = (uniform::<X>(1, rows * length[0], 2.0), uniform::<X>(2, rows * length[1], 2.0));
        let kernel = Part::new(X::DTYPE, &[columns, first[0], first[1], length[0], length[1]], true);
        let mut device = gpu.device();
        let (from, out) = (device.buffer("x", &x), device.buffer("y", &before));
        let arguments = PartArgs {
            x: from.plus(first[0].min(x.len()) * size_of::<X>()),
            y: out.plus(first[1].min(before.len()) * size_of::<X>()),
            rows,
            columns,
            x_row: length[0],
            y_row: length[1],
        };
        device.start(&kernel.program(gpu.sm()), kernel.launch(rows, columns), &arguments, Approximation::Device)?;
        let y: Vec<X> = device.read(out)?;
        let mut expected = before.clone();
        for (to, from) in expected.chunks_mut(length[1]).zip(x.chunks(length[0])) {
            to[first[1]..first[1] + columns].copy_from_slice(&from[first[0]..first[0] + columns]);
        }
        if let Some(i) = (0..y.len()).find(|&i| y[i].to_f32() != expected[i].to_f32()) {
            return Err(format!("y[{i}] is {}, expected {}", y[i].to_f32(), expected[i].to_f32()));
        }
    }
    Ok(0.0)
}

/// x and dy.
fn unary_inputs<X: Element>(function: Unary, len: usize, data: Data) -> [Vec<X>; 2] {
    let mut x = uniform::<X>(3, len, 6.0);
    if function == Unary::Ln {
        x.iter_mut().for_each(|x| *x = X::from_f32(x.to_f32().abs() + 0.01));
    }
    [data.alter(3, x), data.uniform(4, len, 2.0)]
}

/// Inputs, the operand kept for backward, and the results of both passes in both precisions.
struct UnaryCase<X> {
    x: Vec<X>,
    kept: Vec<X>,
    dy: Vec<X>,
    naive: [Vec<X>; 2],
    exact: [Vec<f64>; 2],
}

impl<X: Element> UnaryCase<X> {
    fn new(function: Unary, len: usize) -> Self {
        let [x, dy] = unary_inputs::<X>(function, len, Data::Uniform);
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

/// Records y or dx; backward keeps the y of the CPU.
fn record_unary<X: Element>(case: &Case, function: Unary, on: &On<'_>, cpu: &Cpu) -> Result<f64, String> {
    let [x, dy] = unary_inputs::<X>(function, case.dim("T") * case.dim("F"), on.data());
    let mut y = Guarded::<X>::poisoned(x.len());
    unary_forward(cpu, function, &x, &mut y);
    y.intact()?;
    if case.pass == Pass::Forward {
        on.records(|| vec![Output::new("y", &y)]);
        return Ok(0.0);
    }
    let mut dx = Guarded::<X>::poisoned(x.len());
    unary_backward(cpu, function, if function.keeps() == Keeps::Input { &x } else { &y }, &dy, &mut dx);
    dx.intact()?;
    on.records(|| vec![Output::new("dx", &dx)]);
    Ok(0.0)
}

fn check_unary<X: Element>(case: &Case, function: Unary, on: &On<'_>) -> Result<f64, String> {
    if let (On::Cpu(cpu), true) = (on, on.is_recording()) {
        return record_unary::<X>(case, function, on, cpu);
    }
    let which = case.pass as usize;
    // Naive error of a few thousand elements: the greatest error of few elements is a poor estimate.
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
        (On::Gpu(gpu), pass) => {
            let (function, operands) = match pass {
                Pass::Forward => (Function::Unary(function), vec![&inputs.x[..]]),
                Pass::Backward => (Function::UnaryBackward(function), vec![&inputs.kept[..], &inputs.dy[..]]),
            };
            let run = |approximation| check(&|out| simulate(gpu, function, shape, &operands, out, approximation));
            Approximation::ALL.into_iter().try_fold(0.0f64, |worst, how| Ok(worst.max(run(how)?)))
        }
    }
}
