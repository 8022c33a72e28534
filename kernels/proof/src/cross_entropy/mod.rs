//! Entry of the cross-entropy loss in the table of operations: sizes, cost, check against f64.

pub mod reference;
#[cfg(test)]
mod tests;

use crate::check::{greatest_error, ulp};
use crate::cross_entropy::reference::{equal, ranges};
use crate::entry::*;
use crate::runner::Device;
use kernels::cross_entropy::{
    IGNORED, Losses, Projection, TableGradients, Upstream, backward, forward, rows_backward, rows_forward, scratch_len,
    sequences_backward, sequences_forward,
};
use kernels::gemm::Precision;
use kernels::num::philox::Stream;
use kernels::pool::Cpu;
use kernels_cuda::cross_entropy::{BackwardArgs, ForwardArgs, Rows, TableArgs};
use std::cell::LazyCell;
use std::ops::Range;

/// Loss with its projection, of plain rows, and of sequences.
pub const OPERATION: Operation = Operation { name: "cross_entropy", cases, cost, check, ptx };

fn ptx(sm: Sm) -> Vec<Program> {
    once(sm, || Rows::all().iter().map(|kernel| kernel.program(sm)).collect())
}

/// [M, E, V] with a projection: empty, 1, whole vectors and one more or less, primes, more than a chunk of classes, more
/// than a chunk of rows.
const PROJECTIONS: [(usize, usize, usize); 8] =
    [(0, 8, 5), (1, 1, 1), (37, 15, 17), (64, 16, 33), (31, 31, 127), (67, 64, 1021), (23, 33, 2053), (521, 5, 1031)];

/// [M, V] of plain rows.
const ROWS: [(usize, usize); 9] =
    [(0, 3), (1, 1), (211, 2), (97, 3), (23, 16), (31, 17), (19, 65), (1030, 7), (5, 3001)];

/// [B, T] of sequences of different lengths: one token, one token a sequence, a warp's and one more, several blocks' rows.
const SEQUENCES: [(usize, usize); 6] = [(0, 0), (1, 1), (5, 5), (2, 65), (7, 523), (3, 1610)];

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (dtype, pass) in DType::ALL.into_iter().flat_map(|dtype| Pass::ALL.map(|pass| (dtype, pass))) {
        let case = |variant: &str, dims| Case { pass, dtype, variant: variant.to_string(), dims };
        all.extend(PROJECTIONS.map(|(m, e, v)| case("projection", vec![("M", m), ("E", e), ("V", v)])));
        all.extend(ROWS.map(|(m, v)| case("rows", vec![("M", m), ("V", v)])));
        all.extend(SEQUENCES.map(|(b, t)| case("sequences", vec![("B", b), ("T", t)])));
        if (dtype, pass) == (DType::F32, Pass::Backward) {
            all.extend([(23, 16), (5, 3001)].map(|(m, v)| case("rows_into_bf16", vec![("M", m), ("V", v)])));
        }
    }
    all
}

/// An elementary function counts as one operation; a projection keeps its logits between the passes.
fn cost(case: &Case) -> Cost {
    let stored = case.dtype.bytes() as u64;
    let (row_flops, products) = match case.pass {
        Pass::Forward => (7, 1),
        Pass::Backward => (4, 2),
    };
    // Logits are read; backward writes as many gradients.
    let of_rows =
        |rows: u64, logits: u64| Cost { flops: row_flops * logits, bytes: products * logits * stored + 12 * rows };
    if case.variant == "sequences" {
        let (b, t) = (case.dim("B") as u64, case.dim("T") as u64);
        return Cost { bytes: of_rows(b, t).bytes + 4 * (b + 1), ..of_rows(b, t) };
    }
    let (m, v) = (case.dim("M") as u64, case.dim("V") as u64);
    if case.variant.starts_with("rows") {
        return of_rows(m, m * v);
    }
    let e = case.dim("E") as u64;
    let gradients = if case.pass == Pass::Backward { m * e * stored + 8 * v * e } else { 0 };
    let operands = (m + v) * e * stored + 4 * v + 12 * m;
    Cost { flops: m * v * (2 * products * e + row_flops), bytes: operands + 4 * m * v + gradients }
}

fn check(case: &Case, runner: &Runner<'_>) -> Outcome {
    if let (Runner::Gpu(_), "projection") = (runner, case.variant.as_str()) {
        let reason = "on a GPU the products are the product's kernels, and rows are rows";
        return Outcome::Skipped { reason: reason.to_string() };
    }
    if let (Runner::Cpu(_) | Runner::Recording(_), "rows_into_bf16") = (runner, case.variant.as_str()) {
        return Outcome::Skipped { reason: "gradients are stored as the logits are".to_string() };
    }
    on_runner(case, runner, |on| match (on, case.variant.as_str(), case.dtype) {
        (On::Cpu(cpu), "projection", DType::F32) => check_projection::<f32>(case, on, cpu),
        (On::Cpu(cpu), "projection", DType::Bf16) => check_projection::<bf16>(case, on, cpu),
        (on, _, DType::F32) => check_rows::<f32>(case, on),
        (on, _, DType::Bf16) => check_rows::<bf16>(case, on),
    })
}

impl On<'_> {
    /// Approximations of the instructions to test; the CPU has one.
    fn approximations(&self) -> &'static [Approximation] {
        match self {
            On::Cpu(_) => &Approximation::ALL[..1],
            On::Gpu(_) => &Approximation::ALL,
        }
    }
}

/// Rows of logits of a case.
struct Given<'a, X> {
    case: &'a Case,
    /// First logit of each row, then the end of the last.
    offsets: &'a [u32],
    logits: &'a [X],
    labels: &'a [u32],
}

impl<X: Element> Given<'_, X> {
    /// Classes of the longest row.
    fn classes(&self) -> usize {
        ranges(self.offsets).map(|range| range.len()).max().unwrap_or(0)
    }

    /// Kernel of the case's pass, with gradients stored as `gradient`.
    fn kernel(&self, gradient: DType) -> Rows {
        match (self.case.variant.as_str(), self.case.pass) {
            ("sequences", pass) => Rows::sequences(pass, X::DTYPE),
            (_, Pass::Forward) => Rows::forward(X::DTYPE, self.classes()),
            (_, Pass::Backward) => Rows::backward(X::DTYPE, gradient),
        }
    }

    /// Arguments of the rows.
    fn table(&self, device: &mut Device<'_>) -> TableArgs {
        let rows = self.labels.len();
        match self.case.variant.as_str() {
            "sequences" => TableArgs::sequences(device.buffer("offsets", self.offsets), rows),
            _ => TableArgs::rows(rows, self.classes()),
        }
    }

    /// Runs [`rows_forward`] or [`sequences_forward`].
    fn forward(
        &self,
        on: &On<'_>,
        approximation: Approximation,
        (losses, norms, predictions): (&mut [f32], &mut [f32], &mut [u32]),
    ) -> Result<(), String> {
        let Self { logits, labels, offsets, .. } = *self;
        match on {
            On::Cpu(cpu) if self.case.variant == "sequences" => {
                sequences_forward(cpu, offsets, logits, labels, Losses { losses, norms, predictions });
            }
            On::Cpu(cpu) => {
                rows_forward(cpu, self.case.dim("V"), logits, labels, Losses { losses, norms, predictions })
            }
            On::Gpu(gpu) => {
                let (kernel, mut device) = (self.kernel(X::DTYPE), gpu.device());
                let arguments = ForwardArgs {
                    logits: device.buffer("logits", logits),
                    labels: device.buffer("labels", labels),
                    losses: device.unwritten::<f32>("losses", losses.len()),
                    norms: device.unwritten::<f32>("norms", norms.len()),
                    predictions: device.unwritten::<u32>("predictions", predictions.len()),
                    table: self.table(&mut device),
                };
                let launch = kernel.launch(labels.len(), self.classes());
                device.start(&kernel.program(gpu.sm()), launch, &arguments, approximation)?;
                losses.copy_from_slice(&device.read(arguments.losses)?);
                norms.copy_from_slice(&device.read(arguments.norms)?);
                predictions.copy_from_slice(&device.read(arguments.predictions)?);
            }
        }
        Ok(())
    }

    /// Runs the PTX of [`rows_backward`] or [`sequences_backward`].
    fn simulate_backward<Y: Element>(
        &self,
        gpu: &GpuRunner<'_>,
        approximation: Approximation,
        (norms, dlosses): (&[f32], &[f32]),
        dlogits: &mut [Y],
    ) -> Result<(), String> {
        let (kernel, mut device) = (self.kernel(Y::DTYPE), gpu.device());
        let arguments = BackwardArgs {
            logits: device.buffer("logits", self.logits),
            labels: device.buffer("labels", self.labels),
            norms: device.buffer("norms", norms),
            dlosses: device.buffer("dlosses", dlosses),
            apart: 1,
            factor: 1.0,
            dlogits: device.unwritten::<Y>("dlogits", dlogits.len()),
            table: self.table(&mut device),
        };
        let launch = kernel.launch(self.labels.len(), self.classes());
        device.start(&kernel.program(gpu.sm()), launch, &arguments, approximation)?;
        dlogits.copy_from_slice(&device.read(arguments.dlogits)?);
        Ok(())
    }
}

/// Random labels; every seventh row has none.
pub(super) fn labels(offsets: &[u32]) -> Vec<u32> {
    let mut stream = Stream::new(11, [0x1abe1, 0, 0]);
    let label = |(row, range): (usize, Range<usize>)| match row % 7 {
        3 => IGNORED,
        _ => stream.below(range.len() as u32),
    };
    ranges(offsets).enumerate().map(label).collect()
}

/// First logit of each row of a case, then the end of the last; sequences become longer from one to the next.
fn offsets(case: &Case) -> Vec<u32> {
    if case.variant != "sequences" {
        return equal(case.dim("M"), case.dim("V"));
    }
    let (count, tokens) = (case.dim("B"), case.dim("T"));
    (0..=count).map(|b| (b + (tokens - count) * b * b / (count * count).max(1)) as u32).collect()
}

/// Checks that each prediction's exact logit is the maximum, within the tolerance of the logits.
fn check_predictions(offsets: &[u32], predictions: &[u32], naive: &[f32], exact: &[f64]) -> Result<(), String> {
    let scale = exact.iter().fold(0.0f64, |m, z| m.max(z.abs()));
    let slack = 2.0 * (2.0 * greatest_error(naive, exact) + ulp(scale, DType::F32));
    for (row, (&class, range)) in predictions.iter().zip(ranges(offsets)).enumerate() {
        let z = &exact[range];
        let greatest = z.iter().fold(f64::NEG_INFINITY, |m, &z| m.max(z));
        let predicted = *z.get(class as usize).ok_or(format!("prediction {class} of {} classes", z.len()))?;
        if predicted < greatest - slack {
            return Err(format!("row {row} predicts {class} with {predicted}, the greatest logit is {greatest}"));
        }
    }
    Ok(())
}

/// Checks losses, normalizers and predictions against references from the logits in both precisions.
fn check_losses<'a>(
    on: &On<'_>,
    offsets: &[u32],
    labels: &[u32],
    logits: impl FnOnce() -> (&'a [f32], &'a [f64]),
    run: impl FnOnce(&mut [f32], &mut [f32], &mut [u32]) -> Result<(), String>,
) -> Result<f64, String> {
    let rows = labels.len();
    let (mut losses, mut norms) = (Guarded::<f32>::poisoned(rows), Guarded::<f32>::poisoned(2 * rows));
    let mut predictions = vec![u32::MAX; rows];
    run(&mut losses, &mut norms, &mut predictions)?;
    losses.intact().and(norms.intact())?;
    if on.records(|| {
        let predictions = Output::of_u32("predictions", predictions.clone());
        vec![Output::new("losses", &losses), Output::new("norms", &norms), predictions]
    }) {
        return Ok(0.0);
    }
    let logits = logits();
    check_predictions(offsets, &predictions, logits.0, logits.1)?;
    let naive = reference::rows_forward::<f32>(offsets, logits.0, labels);
    let exact = reference::rows_forward::<f64>(offsets, logits.1, labels);
    let mut worst = on.within("losses", &losses, &naive.0, &exact.0)?;
    for (at, what) in ["the greatest logits", "the inverses of sums"].into_iter().enumerate() {
        let column = |x: &[f32]| x.iter().skip(at).step_by(2).copied().collect::<Vec<_>>();
        let exact: Vec<f64> = exact.1.iter().skip(at).step_by(2).copied().collect();
        worst = worst.max(on.within(what, &column(&norms), &column(&naive.1), &exact)?);
    }
    Ok(worst)
}

fn check_rows<X: Element>(case: &Case, on: &On<'_>) -> Result<f64, String> {
    let offsets = offsets(case);
    let count = offsets[offsets.len() - 1] as usize;
    let (mut logits, labels) = (on.uniform::<X>(1, count, 8.0), labels(&offsets));
    // The maximum is the last element of row 0, the one before it in row 1, and so on: every part of a row must be read.
    for (row, range) in ranges(&offsets).enumerate() {
        logits[range.end - 1 - row % range.len()] = X::from_f32(8.5);
    }
    let (plain, wide) = (widen::<f32, X>(&logits), widen::<f64, X>(&logits));
    let given = Given { case, offsets: &offsets, logits: &logits, labels: &labels };
    if case.pass == Pass::Forward {
        let logits = || (&plain[..], &wide[..]);
        let with = |approximation| {
            check_losses(on, &offsets, &labels, logits, |losses, norms, predictions| {
                given.forward(on, approximation, (losses, norms, predictions))
            })
        };
        return on.approximations().iter().try_fold(0.0f64, |worst, how| Ok(worst.max(with(*how)?)));
    }
    let rows = labels.len();
    let mut norms = vec![0.0; 2 * rows];
    if on.is_recording() {
        given.forward(on, Approximation::Device, (&mut vec![0.0; rows], &mut norms, &mut vec![0; rows]))?;
    } else {
        norms = reference::rows_forward::<f32>(&offsets, &plain, &labels).1;
    }
    let dlosses = on.uniform::<f32>(2, rows, 1.0);
    let upstream = Upstream { norms: &norms, dlosses: &dlosses };
    let expected = LazyCell::new(|| {
        let naive = reference::rows_backward::<f32>(&offsets, &plain, &labels, &norms, &dlosses);
        (naive, reference::rows_backward::<f64>(&offsets, &wide, &labels, &widen(&norms), &widen(&dlosses)))
    });
    if let (On::Gpu(gpu), "rows_into_bf16") = (on, case.variant.as_str()) {
        return Approximation::ALL.into_iter().try_fold(0.0f64, |worst, how| {
            let mut dlogits = Guarded::<bf16>::poisoned(logits.len());
            given.simulate_backward(gpu, how, (&norms, &dlosses), &mut dlogits[..])?;
            Ok(worst.max(on.within("dlogits", &dlogits, &store::<bf16>(&expected.0), &expected.1)?))
        });
    }
    on.approximations().iter().try_fold(0.0f64, |worst, how| {
        let mut dlogits = Guarded::<X>::poisoned(logits.len());
        match on {
            On::Cpu(cpu) if case.variant == "sequences" => {
                sequences_backward(cpu, &offsets, &logits, &labels, upstream, &mut dlogits);
            }
            On::Cpu(cpu) => rows_backward(cpu, case.dim("V"), &logits, &labels, upstream, &mut dlogits),
            On::Gpu(gpu) => given.simulate_backward(gpu, *how, (&norms, &dlosses), &mut dlogits[..])?,
        }
        dlogits.intact()?;
        if on.records(|| vec![Output::new("dlogits", &dlogits)]) {
            return Ok(0.0);
        }
        Ok(worst.max(on.within("dlogits", &dlogits, &store::<X>(&expected.0), &expected.1)?))
    })
}

fn check_projection<X: Element>(case: &Case, on: &On<'_>, cpu: &Cpu) -> Result<f64, String> {
    let (rows, width, classes) = (case.dim("M"), case.dim("E"), case.dim("V"));
    let (hidden, weight) = (on.uniform::<X>(1, rows * width, 1.5), on.uniform::<X>(2, classes * width, 1.0));
    let offsets = equal(rows, classes);
    let (bias, labels) = (on.uniform::<f32>(3, classes, 1.0), labels(&offsets));
    let precision = Precision::F32;
    let projection = Projection { width, hidden: &hidden, weight: &weight, bias: &bias, labels: &labels, precision };
    let [mut scratch, mut kept] = [scratch_len(rows, width, classes), rows * classes].map(Guarded::<f32>::poisoned);
    let (h32, w32) = (widen::<f32, X>(&hidden), widen::<f32, X>(&weight));
    let (h64, w64, b64) = (widen::<f64, X>(&hidden), widen::<f64, X>(&weight), widen::<f64, f32>(&bias));
    let z32 = LazyCell::new(|| reference::logits::<f32>(width, &h32, &w32, &bias));
    let z64 = LazyCell::new(|| reference::logits::<f64>(width, &h64, &w64, &b64));
    if case.pass == Pass::Forward {
        let logits = || (&z32[..], &z64[..]);
        let mut worst = 0.0f64;
        for keeps in [false, true] {
            worst = worst.max(check_losses(on, &offsets, &labels, logits, |losses, norms, predictions| {
                let kept = keeps.then_some(&mut kept[..]);
                forward(cpu, &projection, Losses { losses, norms, predictions }, kept, &mut scratch);
                Ok(())
            })?);
        }
        scratch.intact().and(kept.intact())?;
        on.records(|| vec![Output::new("logits", &kept)]);
        return Ok(worst);
    }
    let (mut losses, mut norms, mut predictions) = (vec![0.0; rows], vec![0.0; 2 * rows], vec![0; rows]);
    let results = Losses { losses: &mut losses, norms: &mut norms, predictions: &mut predictions };
    forward(cpu, &projection, results, Some(&mut kept), &mut scratch);
    if !on.is_recording() {
        norms = reference::rows_forward::<f32>(&offsets, &z32, &labels).1;
    }
    let dlosses = on.uniform::<f32>(4, rows, 1.0);
    let (before_w, before_b) = (on.uniform::<f32>(5, weight.len(), 0.1), on.uniform::<f32>(6, classes, 0.1));
    let mut dhidden = Guarded::<X>::poisoned(hidden.len());
    let (mut dweight, mut dbias) = (Guarded::new(&before_w), Guarded::new(&before_b));
    let upstream = Upstream { norms: &norms, dlosses: &dlosses };
    let gradients = TableGradients { dhidden: &mut dhidden, dweight: &mut dweight, dbias: &mut dbias };
    backward(cpu, &projection, upstream, &kept, gradients, &mut scratch);
    kept.intact().and(dhidden.intact()).and(dweight.intact()).and(dbias.intact()).and(scratch.intact())?;
    if on.records(|| {
        vec![Output::new("dhidden", &dhidden), Output::new("dweight", &dweight), Output::new("dbias", &dbias)]
    }) {
        return Ok(0.0);
    }

    let dz32 = reference::rows_backward::<f32>(&offsets, &z32, &labels, &norms, &dlosses);
    let dz64 = reference::rows_backward::<f64>(&offsets, &z64, &labels, &widen(&norms), &widen(&dlosses));
    let naive = reference::projection_backward::<f32>(width, &h32, &w32, &dz32);
    let exact = reference::projection_backward::<f64>(width, &h64, &w64, &dz64);
    let mut worst = on.within("dhidden", &dhidden, &store::<X>(&naive.dhidden), &exact.dhidden)?;
    for (what, got, before, naive, exact) in [
        ("dweight", &dweight, before_w, naive.dweight, exact.dweight),
        ("dbias", &dbias, before_b, naive.dbias, exact.dbias),
    ] {
        let naive: Vec<f32> = before.iter().zip(naive).map(|(b, n)| b + n).collect();
        let exact: Vec<f64> = before.iter().zip(exact).map(|(&b, e)| f64::from(b) + e).collect();
        worst = worst.max(on.within(what, got, &naive, &exact)?);
    }
    Ok(worst)
}
