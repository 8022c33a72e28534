//! The row of LayerNorm in the table of operations: its sizes, its cost, its check against f64.

use super::{Spec, backward, backward_scratch_len, forward, reference};
use crate::check::{Guarded, on_cpu, store, uniform, widen, within};
use crate::operation::{Case, Cost, Operation, Outcome, Pass, Target};
use crate::pool::Cpu;
use crate::simd::{DType, Element};
use half::bf16;

/// LayerNorm with residual, forward and backward.
pub const OPERATION: Operation = Operation { name: "layernorm", cases, cost, check, ptx: |_| Vec::new() };

/// [T, H]: nothing, one number, vectors with one lane more and less, primes, several blocks of rows, ALBERT's widths.
/// Short rows come in numbers, because the error of a handful of elements is a matter of luck.
const SIZES: [(usize, usize); 13] = [
    (0, 8),
    (1, 1),
    (211, 2),
    (29, 15),
    (23, 16),
    (31, 17),
    (19, 63),
    (13, 64),
    (7, 65),
    (1030, 7),
    (33, 127),
    (67, 312),
    (5, 768),
];

/// Forward: what is added and what is kept. Backward has nothing to choose.
const VARIANTS: [&str; 4] = ["", "sum", "residual", "residual_sum"];

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for ((rows, columns), dtype) in SIZES.into_iter().flat_map(|size| DType::ALL.map(|dtype| (size, dtype))) {
        let case = |pass, variant: &str| Case {
            pass,
            dtype,
            variant: variant.to_string(),
            dims: vec![("T", rows), ("H", columns)],
        };
        all.extend(VARIANTS.map(|variant| case(Pass::Forward, variant)));
        all.push(case(Pass::Backward, ""));
    }
    all
}

fn fused(case: &Case, word: &str) -> bool {
    case.variant.split('_').any(|w| w == word)
}

/// A division or a root counts as one operation.
fn cost(case: &Case) -> Cost {
    let (rows, columns) = (case.dim("T") as u64, case.dim("H") as u64);
    let (matrices, flops) = match case.pass {
        Pass::Forward => (2 + u64::from(fused(case, "residual")) + u64::from(fused(case, "sum")), 9),
        Pass::Backward => (3, 16),
    };
    Cost { flops: flops * rows * columns, bytes: matrices * rows * columns * case.dtype.bytes() as u64 + 8 * rows }
}

fn check(case: &Case, target: Target) -> Outcome {
    on_cpu(case, target, |cpu| match (case.pass, case.dtype) {
        (Pass::Forward, DType::F32) => check_forward::<f32>(case, cpu),
        (Pass::Forward, DType::Bf16) => check_forward::<bf16>(case, cpu),
        (Pass::Backward, DType::F32) => check_backward::<f32>(case, cpu),
        (Pass::Backward, DType::Bf16) => check_backward::<bf16>(case, cpu),
    })
}

fn spec(case: &Case) -> Spec {
    Spec { rows: case.dim("T"), columns: case.dim("H"), eps: 1e-12 }
}

/// Rows with a mean that is not small beside their deviation, as activations have.
fn activations<X: Element>(seed: u64, spec: &Spec) -> Vec<X> {
    let deviations = uniform::<f32>(seed, spec.rows * spec.columns, 2.0);
    deviations.into_iter().enumerate().map(|(i, x)| X::from_f32(x + (i / spec.columns) as f32 % 5.0)).collect()
}

fn check_forward<X: Element>(case: &Case, cpu: &Cpu) -> Result<f64, String> {
    let spec = spec(case);
    let (x, r) = (activations::<X>(1, &spec), activations::<X>(2, &spec));
    let (gain, bias) = (uniform::<f32>(3, spec.columns, 1.5), uniform::<f32>(4, spec.columns, 1.0));
    let mut y = Guarded::<X>::poisoned(x.len());
    let mut s = Guarded::<X>::poisoned(x.len());
    let mut stats = Guarded::<f32>::poisoned(2 * spec.rows);
    let residual = fused(case, "residual").then_some(&r[..]);
    let kept = fused(case, "sum").then_some(&mut s[..]);
    forward(cpu, &spec, &x, residual, &gain, &bias, kept, &mut y, &mut stats);
    (y.intact().and(s.intact())).and(stats.intact())?;

    let sum: Vec<X> = match residual {
        Some(r) => x.iter().zip(r).map(|(x, r)| X::from_f32(x.to_f32() + r.to_f32())).collect(),
        None => x,
    };
    let mut worst = 0.0f64;
    if fused(case, "sum") {
        worst = within("s", &s, &sum, &widen::<f64, X>(&sum))?;
    }
    let naive = reference::forward::<f32>(&spec, &widen(&sum), &gain, &bias);
    let exact = reference::forward::<f64>(&spec, &widen(&sum), &widen(&gain), &widen(&bias));
    worst = worst.max(within("stats", &stats, &naive.stats, &exact.stats)?);
    Ok(worst.max(within("y", &y, &store::<X>(&naive.y), &exact.y)?))
}

fn check_backward<X: Element>(case: &Case, cpu: &Cpu) -> Result<f64, String> {
    let spec = spec(case);
    let (s, dy) = (activations::<X>(5, &spec), activations::<X>(6, &spec));
    let (gain, before) = (uniform::<f32>(7, spec.columns, 1.5), uniform::<f32>(8, spec.columns, 1.0));
    let bias = vec![0.0; spec.columns];
    let stats = store::<f32>(&reference::forward::<f32>(&spec, &widen(&s), &gain, &bias).stats);
    let mut ds = Guarded::<X>::poisoned(s.len());
    let (mut dgain, mut dbias) = (Guarded::new(&before), Guarded::new(&before));
    let mut scratch = Guarded::<f32>::poisoned(backward_scratch_len(&spec));
    backward(cpu, &spec, &s, &stats, &gain, &dy, &mut ds, &mut dgain, &mut dbias, &mut scratch);
    ds.intact().and(dgain.intact()).and(dbias.intact()).and(scratch.intact())?;

    let naive = reference::backward::<f32>(&spec, &widen(&s), &stats, &gain, &widen(&dy));
    let exact = reference::backward::<f64>(&spec, &widen(&s), &widen(&stats), &widen(&gain), &widen(&dy));
    let mut worst = within("ds", &ds, &store::<X>(&naive.ds), &exact.ds)?;
    for (what, got, naive, exact) in
        [("dgain", &dgain, naive.dgain, exact.dgain), ("dbias", &dbias, naive.dbias, exact.dbias)]
    {
        let naive: Vec<f32> = before.iter().zip(naive).map(|(b, n)| b + n).collect();
        let exact: Vec<f64> = before.iter().zip(exact).map(|(&b, e)| f64::from(b) + e).collect();
        worst = worst.max(within(what, got, &naive, &exact)?);
    }
    Ok(worst)
}
