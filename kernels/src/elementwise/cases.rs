//! The row of element-wise operations in the table of operations: their sizes, their cost, their check against f64.

use super::{Binary, Broadcast, Keeps, Unary, binary, reference, unary_backward, unary_forward};
use crate::check::{Guarded, greatest_error, on_cpu, store, uniform, widen, within, within_error};
use crate::operation::{Case, Cost, Operation, Outcome, Pass, Target};
use crate::pool::Cpu;
use crate::simd::{DType, Element};
use half::bf16;

/// Arithmetic with broadcasting, and elementary functions with their derivatives.
pub const OPERATION: Operation = Operation { name: "elementwise", cases, cost, check, ptx: |_| Vec::new() };

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
    on_cpu(case, target, |cpu| match (binary_of(case), case.dtype) {
        (Some(which), DType::F32) => check_binary::<f32>(case, which, cpu),
        (Some(which), DType::Bf16) => check_binary::<bf16>(case, which, cpu),
        (None, DType::F32) => check_unary::<f32>(case, unary_of(case), cpu),
        (None, DType::Bf16) => check_unary::<bf16>(case, unary_of(case), cpu),
    })
}

/// Numbers of size 0.5 to 2 of both signs: safe to divide by.
pub(super) fn operands<X: Element>(seed: u64, len: usize) -> Vec<X> {
    uniform::<f32>(seed, len, 1.5).into_iter().map(|x| X::from_f32(x + 0.5f32.copysign(x))).collect()
}

fn check_binary<X: Element>(case: &Case, which: (Binary, Broadcast), cpu: &Cpu) -> Result<f64, String> {
    let (operation, broadcast) = which;
    let (rows, columns) = (case.dim("T"), case.dim("F"));
    let (a, b) = (operands::<X>(1, rows * columns), operands::<X>(2, broadcast.len(rows, columns)));
    let mut y = Guarded::<X>::poisoned(a.len());
    binary(cpu, operation, broadcast, columns, &a, &b, &mut y);
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

fn check_unary<X: Element>(case: &Case, function: Unary, cpu: &Cpu) -> Result<f64, String> {
    let which = case.pass as usize;
    // The naive error of a few thousand such numbers: that of a handful is a matter of luck.
    let sample = UnaryCase::<X>::new(function, 4096);
    let error = greatest_error(&sample.naive[which], &sample.exact[which]);
    let inputs = UnaryCase::<X>::new(function, case.dim("T") * case.dim("F"));
    let mut out = Guarded::<X>::poisoned(inputs.x.len());
    match case.pass {
        Pass::Forward => unary_forward(cpu, function, &inputs.x, &mut out),
        Pass::Backward => unary_backward(cpu, function, &inputs.kept, &inputs.dy, &mut out),
    }
    out.intact()?;
    within_error(["y", "dx"][which], &out, error, &inputs.exact[which])
}
