//! The row of the reductions in the table of operations: their sizes, their cost, their check against f64.

use super::{column_sums, column_sums_scratch_len, reference, row_sums, sum, sum_of_squares};
use crate::check::{Guarded, on_cpu, uniform, widen, within};
use crate::operation::{Case, Cost, Operation, Outcome, Pass, Target};
use crate::pool::Cpu;
use crate::simd::{DType, Element};
use half::bf16;

/// Sums.
pub const OPERATION: Operation = Operation { name: "reduce", cases, cost, check, ptx: |_| Vec::new() };

/// [T, F]: nothing, one number, vectors with one lane more and less, primes, several blocks of rows.
const SIZES: [(usize, usize); 11] =
    [(0, 5), (1, 1), (67, 7), (31, 29), (16, 16), (17, 17), (29, 63), (64, 19), (67, 65), (1031, 33), (211, 312)];

/// What is summed over.
const VARIANTS: [&str; 4] = ["sum", "squares", "rows", "columns"];

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for ((rows, columns), dtype) in SIZES.into_iter().flat_map(|size| DType::ALL.map(|dtype| (size, dtype))) {
        all.extend(VARIANTS.map(|variant| Case {
            pass: Pass::Forward,
            dtype,
            variant: variant.to_string(),
            dims: vec![("T", rows), ("F", columns)],
        }));
    }
    all
}

fn cost(case: &Case) -> Cost {
    let (rows, columns) = (case.dim("T") as u64, case.dim("F") as u64);
    let (flops, out) = match case.variant.as_str() {
        "sum" => (1, 4),
        "squares" => (2, 4),
        "rows" => (1, 4 * rows),
        _ => (1, 8 * columns),
    };
    Cost { flops: flops * rows * columns, bytes: rows * columns * case.dtype.bytes() as u64 + out }
}

fn check(case: &Case, target: Target) -> Outcome {
    on_cpu(case, target, |cpu| match case.dtype {
        DType::F32 => check_of::<f32>(case, cpu),
        DType::Bf16 => check_of::<bf16>(case, cpu),
    })
}

fn check_of<X: Element>(case: &Case, cpu: &Cpu) -> Result<f64, String> {
    let (rows, columns) = (case.dim("T"), case.dim("F"));
    match case.variant.as_str() {
        "sum" => check_total::<X>(rows * columns, &|x| sum(cpu, x), reference::sum, reference::sum),
        "squares" => {
            let (naive, exact) = (reference::sum_of_squares, reference::sum_of_squares);
            check_total::<X>(rows * columns, &|x| sum_of_squares(cpu, x), naive, exact)
        }
        "rows" => {
            let x = uniform::<X>(7, rows * columns, 3.0);
            let mut out = Guarded::<f32>::poisoned(rows);
            row_sums(cpu, columns, &x, &mut out);
            out.intact()?;
            let naive = reference::row_sums::<f32>(columns, &widen(&x));
            within("row sums", &out, &naive, &reference::row_sums(columns, &widen(&x)))
        }
        _ => {
            let (x, before) = (uniform::<X>(7, rows * columns, 3.0), uniform::<f32>(8, columns, 1.0));
            let mut out = Guarded::new(&before);
            let mut scratch = Guarded::poisoned(column_sums_scratch_len(rows, columns));
            column_sums(cpu, rows, columns, &x, &mut out, &mut scratch);
            out.intact().and(scratch.intact())?;
            let naive = reference::column_sums::<f32>(columns, &widen(&x), &before);
            let exact = reference::column_sums::<f64>(columns, &widen(&x), &widen(&before));
            within("column sums", &out, &naive, &exact)
        }
    }
}

/// Many sums of the same length, because the error of a single one is a matter of luck.
fn check_total<X: Element>(
    len: usize,
    total: &dyn Fn(&[X]) -> f64,
    naive: fn(&[f32]) -> f32,
    exact: fn(&[f64]) -> f64,
) -> Result<f64, String> {
    let draws: Vec<Vec<X>> = (0..24).map(|seed| uniform(seed, len, 3.0)).collect();
    let got: Vec<f32> = draws.iter().map(|x| total(x) as f32).collect();
    let naive: Vec<f32> = draws.iter().map(|x| naive(&widen(x))).collect();
    let exact: Vec<f64> = draws.iter().map(|x| exact(&widen(x))).collect();
    within("total", &got, &naive, &exact)
}
