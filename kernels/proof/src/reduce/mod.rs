//! Entry of the reductions in the table of operations: sizes, cost, check against f64.

pub mod reference;
#[cfg(test)]
mod tests;

use crate::entry::*;
use crate::runner::Device;
use kernels::pool::Cpu;
use kernels::reduce::{column_sums, column_sums_scratch_len, row_sums, sum, sum_of_squares};
use kernels_cuda::arguments::Address;
use kernels_cuda::reduce::{
    COUNTERS, ClipBlock, ColumnSums, ColumnSumsArgs, RowSums, RowSumsArgs, Term, Total, TotalArgs,
};

/// Sums.
pub const OPERATION: Operation = Operation { name: "reduce", cases, cost, check, ptx };

fn ptx(sm: Sm) -> Vec<Program> {
    once(sm, || {
        let mut all: Vec<Program> = ColumnSums::all().iter().map(|kernel| kernel.program(sm)).collect();
        all.extend(Total::all().iter().map(|kernel| kernel.program(sm)));
        all.extend([DType::Bf16, DType::F32].map(|dtype| RowSums { dtype }.program(sm)));
        all
    })
}

/// [T, F]: empty, one element, whole vectors and one element more or less, primes, several blocks of rows.
const SIZES: [(usize, usize); 13] = [
    (0, 5),
    (1, 1),
    (67, 7),
    (67, 40),
    (40, 40),
    (31, 29),
    (16, 16),
    (17, 17),
    (29, 63),
    (64, 19),
    (67, 65),
    (1031, 33),
    (211, 312),
];

/// Reductions.
const VARIANTS: [&str; 4] = ["sum", "squares", "rows", "columns"];

fn cases() -> Vec<Case> {
    let mut all = cases_of_rows(&SIZES, "F", &VARIANTS.map(|variant| (Pass::Forward, variant)));
    // More partial sums than half the threads of a block.
    all.push(Case {
        pass: Pass::Forward,
        dtype: DType::F32,
        variant: "sum".to_string(),
        dims: vec![("T", 1033), ("F", 2048)],
    });
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

fn check(case: &Case, runner: &Runner<'_>) -> Outcome {
    on_runner(case, runner, |on| match (on, case.dtype) {
        (On::Cpu(cpu), DType::F32) => check_of::<f32>(case, on, cpu.cpu()),
        (On::Cpu(cpu), DType::Bf16) => check_of::<bf16>(case, on, cpu.cpu()),
        (On::Gpu(gpu), DType::F32) => check_of::<f32>(case, on, *gpu),
        (On::Gpu(gpu), DType::Bf16) => check_of::<bf16>(case, on, *gpu),
    })
}

/// Implementation of the reductions: CPU or PTX.
trait Reduce {
    fn total<X: Element>(&self, term: Term, x: &[X]) -> Result<f64, String>;
    fn row_sums<X: Element>(&self, columns: usize, x: &[X], out: &mut [f32]) -> Result<(), String>;
    fn column_sums<X: Element>(&self, rows: usize, columns: usize, x: &[X], out: &mut [f32]) -> Result<(), String>;
}

impl Reduce for Cpu {
    fn total<X: Element>(&self, term: Term, x: &[X]) -> Result<f64, String> {
        Ok(match term {
            Term::Number => sum(self, x),
            Term::Square => sum_of_squares(self, x),
        })
    }
    fn row_sums<X: Element>(&self, columns: usize, x: &[X], out: &mut [f32]) -> Result<(), String> {
        row_sums(self, columns, x, out);
        Ok(())
    }
    fn column_sums<X: Element>(&self, rows: usize, columns: usize, x: &[X], out: &mut [f32]) -> Result<(), String> {
        let mut scratch = Guarded::poisoned(column_sums_scratch_len(rows, columns));
        column_sums(self, rows, columns, x, out, &mut scratch);
        scratch.intact()
    }
}

impl Reduce for GpuRunner<'_> {
    fn total<X: Element>(&self, term: Term, x: &[X]) -> Result<f64, String> {
        const LIMIT: f64 = 2.5;
        let kernel = Total::new(X::DTYPE, term, x.len());
        let (mut device, launch, count) = (self.device(), kernel.launch(x.len()), x.len());
        let [x, counter] = [device.buffer("x", x), device.buffer("counter", &[0u32])];
        let (scaled, block) = (device.unwritten::<f32>("out", 1), device.buffer("block", &ClipBlock::words(LIMIT)));
        let mut run = |clips, out, factor| {
            let kernel = Total { clips, ..kernel };
            let partial = device.unwritten::<f64>("partial", launch.grid[0] as usize);
            let arguments = TotalArgs { x, partial, out, counter, count, factor };
            device.start(&kernel.program(self.sm()), Some(launch), &arguments, Approximation::Device)?;
            device.read::<u32>(out)
        };
        let total = 4.0 * f64::from(f32::from_bits(run(false, scaled, Some(0.25))?[0]));
        if X::DTYPE != DType::F32 || term != Term::Square {
            return Ok(total);
        }
        let words = run(true, block, None)?;
        let whole = ClipBlock::total([words[0], words[1]]);
        if total != f64::from(whole as f32) {
            return Err(format!("{whole:e} is {total:e} as f32"));
        }
        let norm = whole.sqrt();
        let wanted = if norm > LIMIT { (LIMIT / norm) as f32 } else { 1.0 };
        let wanted = if norm < f64::INFINITY { wanted } else { f32::NAN };
        let scale = f32::from_bits(words[ClipBlock::SCALE / 4]);
        if scale != wanted && !(scale.is_nan() && wanted.is_nan()) {
            return Err(format!("the scale of {whole:e} is {scale:e}, expected {wanted:e}"));
        }
        Ok(whole)
    }
    fn row_sums<X: Element>(&self, columns: usize, x: &[X], out: &mut [f32]) -> Result<(), String> {
        let (kernel, mut device) = (RowSums { dtype: X::DTYPE }, self.device());
        let sums = device.unwritten::<f32>("out", out.len());
        let arguments = RowSumsArgs { x: device.buffer("x", x), out: sums, rows: out.len(), columns };
        device.start(&kernel.program(self.sm()), kernel.launch(out.len()), &arguments, Approximation::Device)?;
        out.copy_from_slice(&device.read(sums)?);
        Ok(())
    }
    fn column_sums<X: Element>(&self, rows: usize, columns: usize, x: &[X], out: &mut [f32]) -> Result<(), String> {
        let mut device = self.device();
        let (x, sums) = (device.buffer("x", x), device.buffer("out", out));
        simulate_column_sums(&mut device, X::DTYPE, [1, 1, rows, columns], x, sums)?;
        out.copy_from_slice(&device.read(sums)?);
        Ok(())
    }
}

/// out[i] += the column sums of the matrices x[.., i] [matrices, lists, rows, columns], one after another; out [lists, columns].
pub(crate) fn simulate_column_sums(
    device: &mut Device<'_>,
    dtype: DType,
    [matrices, lists, rows, columns]: [usize; 4],
    x: Address,
    out: Address,
) -> Result<(), String> {
    let kernel = ColumnSums::new(dtype, [rows, columns], true);
    let Some(found) = kernel.launch([matrices, lists], [rows, columns]) else { return Ok(()) };
    let partial = kernel.split.then(|| device.unwritten::<f32>("partial", found.partial));
    let counters = kernel.split.then(|| device.buffer("counters", &[0u32; COUNTERS]));
    let (rows_a_block, apart) = (found.rows_a_block, columns);
    let arguments = ColumnSumsArgs { x, out, partial, counters, rows, columns, rows_a_block, matrices, lists, apart };
    device.start(&kernel.program(device.sm()), Some(found.launch), &arguments, Approximation::Device)?;
    let left = counters.map(|counters| device.read::<u32>(counters)).transpose()?.unwrap_or_default();
    if left.iter().any(|&count| count != 0) { Err("a counter is not 0 after the launch".to_string()) } else { Ok(()) }
}

fn check_of<X: Element>(case: &Case, on: &On<'_>, by: &impl Reduce) -> Result<f64, String> {
    let (rows, columns) = (case.dim("T"), case.dim("F"));
    match case.variant.as_str() {
        "sum" => check_total::<X>(on, rows * columns, &|x| by.total(Term::Number, x), reference::sum, reference::sum),
        "squares" => {
            let (naive, exact) = (reference::sum_of_squares, reference::sum_of_squares);
            check_total::<X>(on, rows * columns, &|x| by.total(Term::Square, x), naive, exact)
        }
        "rows" => {
            let x = on.uniform::<X>(7, rows * columns, 3.0);
            let mut out = Guarded::<f32>::poisoned(rows);
            by.row_sums(columns, &x, &mut out)?;
            out.intact()?;
            if on.records(|| vec![Output::new("row sums", &out)]) {
                return Ok(0.0);
            }
            let naive = reference::row_sums::<f32>(columns, &widen(&x));
            on.within("row sums", &out, &naive, &reference::row_sums(columns, &widen(&x)))
        }
        _ => {
            let (x, before) = (on.uniform::<X>(7, rows * columns, 3.0), on.uniform::<f32>(8, columns, 1.0));
            let mut out = Guarded::new(&before);
            by.column_sums(rows, columns, &x, &mut out)?;
            out.intact()?;
            if on.records(|| vec![Output::new("column sums", &out)]) {
                return Ok(0.0);
            }
            let naive = reference::column_sums::<f32>(columns, &widen(&x), &before);
            let exact = reference::column_sums::<f64>(columns, &widen(&x), &widen(&before));
            on.within("column sums", &out, &naive, &exact)
        }
    }
}

/// Checks many totals of the same length, because the error of a single one is random.
fn check_total<X: Element>(
    on: &On<'_>,
    len: usize,
    total: &dyn Fn(&[X]) -> Result<f64, String>,
    naive: fn(&[f32]) -> f32,
    exact: fn(&[f64]) -> f64,
) -> Result<f64, String> {
    // Recorded totals are f64, of which a few are enough.
    let count = if on.is_recording() { 3 } else { 24 };
    let draws: Vec<Vec<X>> = (0..count).map(|seed| on.uniform(seed, len, 3.0)).collect();
    let got = draws.iter().map(|x| total(x)).collect::<Result<Vec<f64>, _>>()?;
    if on.records(|| vec![Output::of_f64("total", &got)]) {
        return Ok(0.0);
    }
    let got: Vec<f32> = got.into_iter().map(|total| total as f32).collect();
    let naive: Vec<f32> = draws.iter().map(|x| naive(&widen(x))).collect();
    let exact: Vec<f64> = draws.iter().map(|x| exact(&widen(x))).collect();
    on.within("total", &got, &naive, &exact)
}
