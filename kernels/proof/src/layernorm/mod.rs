//! Row of LayerNorm in the table of operations: sizes, cost, check against f64.

pub mod reference;
#[cfg(test)]
mod tests;

use crate::entry::*;
use crate::reduce::simulate_column_sums;
use kernels::layernorm::{Backward, Forward, Spec, backward, backward_scratch_len, forward};
use kernels::pool::Cpu;
use kernels_cuda::layernorm::{BackwardArgs, ForwardArgs, LayerNorm};
use ptx::Launch;

/// LayerNorm with residual, forward and backward.
pub const OPERATION: Operation = Operation { name: "layernorm", cases, cost, check, ptx };

fn ptx(sm: Sm) -> Vec<Program> {
    once(sm, || LayerNorm::all().iter().map(|kernel| kernel.program(sm)).collect())
}

/// [T, H] besides [`ROWS`]: ALBERT's widths, and a row that takes a block of the GPU.
const SIZES: [(usize, usize); 8] =
    [(67, 312), (5, 768), (5, 744), (9, 1000), (7, 1288), (5, 2000), (2, 4000), (3, 4096)];

/// Forward with the residual added, with the sum saved; backward of one application, and of a layer that is applied twice, which
/// writes ds twice and sums over both applications together.
const KINDS: [(Pass, &str); 6] = [
    (Pass::Forward, ""),
    (Pass::Forward, "sum"),
    (Pass::Forward, "residual"),
    (Pass::Forward, "residual_sum"),
    (Pass::Backward, ""),
    (Pass::Backward, "repeated"),
];

fn cases() -> Vec<Case> {
    cases_of_rows(&[&ROWS[..], &SIZES].concat(), "H", &KINDS)
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

fn check(case: &Case, runner: &Runner<'_>) -> Outcome {
    if let (Runner::Cpu(_) | Runner::Recording(_), true) = (runner, fused(case, "repeated")) {
        return Outcome::Skipped { reason: "the processor sums over one application after another".to_string() };
    }
    on_runner(case, runner, |on| match (on, case.dtype) {
        (On::Cpu(cpu), DType::F32) => check_of::<f32>(case, on, cpu.cpu()),
        (On::Cpu(cpu), DType::Bf16) => check_of::<bf16>(case, on, cpu.cpu()),
        (On::Gpu(gpu), DType::F32) => check_of::<f32>(case, on, *gpu),
        (On::Gpu(gpu), DType::Bf16) => check_of::<bf16>(case, on, *gpu),
    })
}

/// CPU or GPU that runs a case.
trait Normalize {
    fn forward<X: Element>(&self, spec: &Spec, operands: Forward<'_, X>) -> Result<(), String>;
    fn backward<X: Element>(&self, spec: &Spec, operands: Backward<'_, X>) -> Result<(), String>;
}

impl Normalize for Cpu {
    fn forward<X: Element>(&self, spec: &Spec, f: Forward<'_, X>) -> Result<(), String> {
        forward(self, spec, f);
        Ok(())
    }
    fn backward<X: Element>(&self, spec: &Spec, b: Backward<'_, X>) -> Result<(), String> {
        let mut scratch = Guarded::<f32>::poisoned(backward_scratch_len(spec));
        backward(self, spec, b, &mut scratch);
        scratch.intact()
    }
}

/// Launch, and its number of groups of rows. Runners that take large cases get the usual launch; the others a third of its
/// blocks, so that blocks compute several rows one after another if there are enough rows.
fn launch(gpu: &GpuRunner<'_>, kernel: &LayerNorm, spec: &Spec) -> (Option<Launch>, usize) {
    match gpu.takes_large() {
        true => (kernel.launch(spec.rows, spec.columns), kernel.groups(spec.rows)),
        false => kernel.folded(spec.rows, spec.columns),
    }
}

impl Normalize for GpuRunner<'_> {
    fn forward<X: Element>(&self, spec: &Spec, f: Forward<'_, X>) -> Result<(), String> {
        let kernel = LayerNorm::forward(X::DTYPE, f.residual.is_some(), f.s.is_some(), spec.columns);
        let (kernel, mut device) = (kernel.ok_or("rows are too long")?, self.device());
        let (launch, _) = launch(self, &kernel, spec);
        let arguments = ForwardArgs {
            x: device.buffer("x", f.x),
            residual: f.residual.map(|residual| device.buffer("residual", residual)),
            gain: device.buffer("gain", f.gain),
            bias: device.buffer("bias", f.bias),
            s: f.s.as_ref().map(|s| device.unwritten::<X>("s", s.len())),
            y: device.unwritten::<X>("y", f.y.len()),
            stats: device.unwritten::<f32>("stats", f.stats.len()),
            rows: spec.rows,
            columns: spec.columns,
            eps: spec.eps,
        };
        device.start(&kernel.program(self.sm()), launch, &arguments, Approximation::Device)?;
        f.y.copy_from_slice(&device.read(arguments.y)?);
        f.stats.copy_from_slice(&device.read(arguments.stats)?);
        if let (Some(buffer), Some(s)) = (arguments.s, f.s) {
            s.copy_from_slice(&device.read(buffer)?);
        }
        Ok(())
    }
    fn backward<X: Element>(&self, spec: &Spec, b: Backward<'_, X>) -> Result<(), String> {
        let kernel = LayerNorm::backward(X::DTYPE, false, spec.columns).ok_or("rows are too long")?;
        let (mut device, (launch, groups)) = (self.device(), launch(self, &kernel, spec));
        let partial = groups * spec.columns;
        let arguments = BackwardArgs {
            s: device.buffer("s", b.s),
            stats: device.buffer("stats", b.stats),
            gain: device.buffer("gain", b.gain),
            dy: device.buffer("dy", b.dy),
            ds: device.unwritten::<X>("ds", b.ds.len()),
            copy: None,
            dgain_partial: device.unwritten::<f32>("dgain_partial", partial),
            dbias_partial: device.unwritten::<f32>("dbias_partial", partial),
            rows: spec.rows,
            columns: spec.columns,
        };
        device.start(&kernel.program(self.sm()), launch, &arguments, Approximation::Device)?;
        b.ds.copy_from_slice(&device.read(arguments.ds)?);
        for (partial, out) in [arguments.dgain_partial, arguments.dbias_partial].into_iter().zip([b.dgain, b.dbias]) {
            let sums = device.buffer("gradient", out);
            let shape = [1, 1, groups, spec.columns];
            simulate_column_sums(&mut device, DType::F32, shape, partial, sums)?;
            out.copy_from_slice(&device.read(sums)?);
        }
        Ok(())
    }
}

/// Backward of two applications with the same operands. Their gradients are the bits of one after the other.
fn repeated<X: Element>(gpu: &GpuRunner<'_>, spec: &Spec, b: Backward<'_, X>) -> Result<(), String> {
    let kernel = LayerNorm::backward(X::DTYPE, true, spec.columns).ok_or("rows are too long")?;
    let (mut device, (launch, groups)) = (gpu.device(), launch(gpu, &kernel, spec));
    let matrix = groups * spec.columns;
    let partial = device.unwritten::<f32>("partial", 4 * matrix);
    let [s, stats] = [device.buffer("s", b.s), device.buffer("stats", b.stats)];
    let [gain, dy] = [device.buffer("gain", b.gain), device.buffer("dy", b.dy)];
    let (rows, columns) = (spec.rows, spec.columns);
    for application in [0, 1] {
        let [ds, copy] = ["ds", "copy"].map(|name| device.unwritten::<X>(name, b.ds.len()));
        let [dgain_partial, dbias_partial] = [0, 1].map(|i| partial.element((2 * application + i) * matrix, 4));
        let arguments =
            BackwardArgs { s, stats, gain, dy, ds, copy: Some(copy), dgain_partial, dbias_partial, rows, columns };
        device.start(&kernel.program(gpu.sm()), launch, &arguments, Approximation::Device)?;
        b.ds.copy_from_slice(&device.read(ds)?);
        let copy = device.read::<X>(copy)?;
        if let Some(i) = (0..copy.len()).find(|&i| copy[i].to_f32().to_bits() != b.ds[i].to_f32().to_bits()) {
            return Err(format!("ds[{i}] is {}, its copy {}", b.ds[i].to_f32(), copy[i].to_f32()));
        }
    }
    if launch.is_none() {
        return Ok(());
    }
    let together = device.buffer("together", &[&*b.dgain, &*b.dbias].concat());
    simulate_column_sums(&mut device, DType::F32, [2, 2, groups, columns], partial, together)?;
    let sums: Vec<f32> = device.read(together)?;
    for (i, (out, sums)) in [b.dgain, b.dbias].into_iter().zip(sums.chunks_exact(columns)).enumerate() {
        let alone = device.buffer("alone", out);
        for application in [0, 1] {
            let partial = partial.element((2 * application + i) * matrix, 4);
            simulate_column_sums(&mut device, DType::F32, [1, 1, groups, columns], partial, alone)?;
        }
        out.copy_from_slice(sums);
        if device.read::<u32>(alone)?.iter().zip(&*out).any(|(alone, together)| *alone != together.to_bits()) {
            return Err("sums over both applications differ from those of one after the other".to_string());
        }
    }
    Ok(())
}

fn check_of<X: Element>(case: &Case, on: &On<'_>, by: &impl Normalize) -> Result<f64, String> {
    match case.pass {
        Pass::Forward => check_forward::<X>(case, on, by),
        Pass::Backward => check_backward::<X>(case, on, by),
    }
}

fn spec(case: &Case) -> Spec {
    Spec { rows: case.dim("T"), columns: case.dim("H"), eps: 1e-12 }
}

/// Rows whose mean is not small compared with their deviation, like those of activations.
fn activations<X: Element>(data: Data, seed: u64, spec: &Spec) -> Vec<X> {
    let deviations = uniform::<f32>(seed, spec.rows * spec.columns, 2.0);
    let shifted = |(i, x)| X::from_f32(x + (i / spec.columns) as f32 % 5.0);
    data.alter(seed, deviations.into_iter().enumerate().map(shifted).collect())
}

fn check_forward<X: Element>(case: &Case, on: &On<'_>, by: &impl Normalize) -> Result<f64, String> {
    let spec = spec(case);
    let (x, r) = (activations::<X>(on.data(), 1, &spec), activations::<X>(on.data(), 2, &spec));
    let (gain, bias) = (on.uniform::<f32>(3, spec.columns, 1.5), on.uniform::<f32>(4, spec.columns, 1.0));
    let mut y = Guarded::<X>::poisoned(x.len());
    let mut s = Guarded::<X>::poisoned(x.len());
    let mut stats = Guarded::<f32>::poisoned(2 * spec.rows);
    let residual = fused(case, "residual").then_some(&r[..]);
    let kept = fused(case, "sum").then_some(&mut s[..]);
    let (y_out, stats_out) = (&mut y[..], &mut stats[..]);
    by.forward(&spec, Forward { x: &x, residual, gain: &gain, bias: &bias, s: kept, y: y_out, stats: stats_out })?;
    (y.intact().and(s.intact())).and(stats.intact())?;
    if on.records(|| {
        let sum = fused(case, "sum").then(|| Output::new("s", &s));
        [Output::new("y", &y), Output::new("stats", &stats)].into_iter().chain(sum).collect()
    }) {
        return Ok(0.0);
    }

    let sum: Vec<X> = match residual {
        Some(r) => x.iter().zip(r).map(|(x, r)| X::from_f32(x.to_f32() + r.to_f32())).collect(),
        None => x,
    };
    let mut worst = 0.0f64;
    if fused(case, "sum") {
        worst = on.within("s", &s, &sum, &widen::<f64, X>(&sum))?;
    }
    let naive = reference::forward::<f32>(&spec, &widen(&sum), &gain, &bias);
    let exact = reference::forward::<f64>(&spec, &widen(&sum), &widen(&gain), &widen(&bias));
    worst = worst.max(on.within("stats", &stats, &naive.stats, &exact.stats)?);
    Ok(worst.max(on.within("y", &y, &store::<X>(&naive.y), &exact.y)?))
}

fn check_backward<X: Element>(case: &Case, on: &On<'_>, by: &impl Normalize) -> Result<f64, String> {
    let spec = spec(case);
    let (s, dy) = (activations::<X>(on.data(), 5, &spec), activations::<X>(on.data(), 6, &spec));
    let (gain, before) = (on.uniform::<f32>(7, spec.columns, 1.5), on.uniform::<f32>(8, spec.columns, 1.0));
    let bias = vec![0.0; spec.columns];
    let stats = store::<f32>(&reference::forward::<f32>(&spec, &widen(&s), &gain, &bias).stats);
    let mut ds = Guarded::<X>::poisoned(s.len());
    let (mut dgain, mut dbias) = (Guarded::new(&before), Guarded::new(&before));
    let operands = Backward {
        s: &s,
        stats: &stats,
        gain: &gain,
        dy: &dy,
        ds: &mut ds[..],
        dgain: &mut dgain[..],
        dbias: &mut dbias[..],
    };
    let applications = match on {
        On::Gpu(gpu) if fused(case, "repeated") => {
            repeated(gpu, &spec, operands)?;
            2
        }
        _ => {
            by.backward(&spec, operands)?;
            1
        }
    };
    ds.intact().and(dgain.intact()).and(dbias.intact())?;
    if on.records(|| vec![Output::new("ds", &ds), Output::new("dgain", &dgain), Output::new("dbias", &dbias)]) {
        return Ok(0.0);
    }

    let naive = reference::backward::<f32>(&spec, &widen(&s), &stats, &gain, &widen(&dy));
    let exact = reference::backward::<f64>(&spec, &widen(&s), &widen(&stats), &widen(&gain), &widen(&dy));
    let mut worst = on.within("ds", &ds, &store::<X>(&naive.ds), &exact.ds)?;
    for (what, got, naive, exact) in
        [("dgain", &dgain, naive.dgain, exact.dgain), ("dbias", &dbias, naive.dbias, exact.dbias)]
    {
        let naive: Vec<f32> = before.iter().zip(naive).map(|(&b, n)| (0..applications).fold(b, |b, _| b + n)).collect();
        let times = f64::from(applications);
        let exact: Vec<f64> = before.iter().zip(exact).map(|(&b, e)| f64::from(b) + times * e).collect();
        worst = worst.max(on.within(what, got, &naive, &exact)?);
    }
    Ok(worst)
}
