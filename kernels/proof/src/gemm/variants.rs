//! Cases of the product that only run on a GPU: f16 operands, bf16 operands with f32 output, split-K.

use crate::gemm::{
    problem::{F16, INTO_F32, Problem, SLICES},
    reference,
};
use crate::{
    case::Case,
    check::{greatest_error, store, uniform, widen, within_error},
    runner::{Device, GpuRunner},
};
use half::{bf16, f16};
use kernels::DType;
use kernels::gemm::{Beta, Epilogue, EpilogueKind, Gemm};
use kernels_cuda::gemm::{
    HopperProductArgs, ProductArgs,
    sm80::Product,
    sm90::HopperProduct,
    split_k::{SplitKReduce, SplitKReduceArgs},
    tiles::{Blocking, HopperTile},
};
use kernels_cuda::{arguments::Address, program::Pass};
use ptx::{Sm, Storage, sim::Approximation};

pub(crate) fn cases() -> Vec<Case> {
    let case = |variant: String, (m, n, k)| {
        let pass = if variant[..2].ends_with('t') { Pass::Forward } else { Pass::Backward };
        Case { pass, dtype: DType::Bf16, variant, dims: vec![("m", m), ("n", n), ("k", k)] }
    };
    let mut all = Vec::new();
    // Several tiles, each with more k-tiles than pipeline stages; one k-tile and two; rows that end inside a warp's
    // part.
    let sizes = [(16, 392, 328), (40, 8, 24), (40, 8, 40), (136, 200, 72), (648, 8, 328)];
    for write in ["", "_accumulate"] {
        all.extend(sizes.map(|size| case(format!("tn{write}{INTO_F32}"), size)));
        all.extend([(72, 40, 520), (136, 24, 520)].map(|size| case(format!("tn{write}{SLICES}"), size)));
    }
    for form in ["nt", "nn", "tn"] {
        all.extend(sizes.map(|size| case(format!("{form}{F16}"), size)));
    }
    all
}

/// Checks a GPU-only case against the error bound; returns the error over the bound.
pub(crate) fn check(case: &Case, spec: Gemm, kind: EpilogueKind, gpu: &GpuRunner<'_>) -> Result<f64, String> {
    if case.variant.ends_with(INTO_F32) {
        return Problem::<bf16, f32>::new(spec, kind).check_simulated(gpu);
    }
    if case.variant.ends_with(F16) {
        return check_f16(&spec, gpu);
    }
    let (beta, spec) = (spec.beta, Gemm { beta: Beta::Zero, ..spec });
    if gpu.sm() != Sm::Sm90a {
        return check_slices(&spec, beta, gpu);
    }
    let mut worst = 0.0f64;
    for tile in HopperTile::ALL {
        let held = check_slices_on_hopper(&spec, beta, gpu, tile);
        worst = worst.max(held.map_err(|error| format!("{tile:?}: {error}"))?);
    }
    Ok(worst)
}

/// Checks f16 operands and f16 output, on a large tile.
fn check_f16(spec: &Gemm, gpu: &GpuRunner<'_>) -> Result<f64, String> {
    let random = |seed, len| uniform::<f32>(seed, len, 1.0).into_iter().map(f16::from_f32).collect::<Vec<_>>();
    let [span_a, span_b, span_c] = spec.spans();
    let (a, b) = (random(1, span_a), random(2, span_b));
    let mut device = gpu.device();
    let operands = [device.buffer("a", &a), device.buffer("b", &b)];
    let c = device.unwritten::<f16>("c", span_c);
    if gpu.sm() == Sm::Sm90a {
        let product = HopperProduct::new(spec, Storage::F16, Storage::F16, EpilogueKind::None, 1);
        let product = HopperProduct { tile: HopperTile::WIDE, ..product.ok_or("TMA does not support the operands")? };
        let maps = product.maps(spec, operands.map(|buffer| buffer.0)).map_err(|error| error.to_string())?;
        let arguments = HopperProductArgs::new(spec, maps, c, Epilogue::NONE, (1, spec.k), 0);
        device.start(&product.program(), product.launch(spec.m, spec.n, 1, 1), &arguments, Approximation::Device)?;
    } else {
        let product = Product::new(spec, Storage::F16, Storage::F16, EpilogueKind::None, 1);
        let product = Product { blocking: Blocking::LARGE, ..product };
        let arguments = ProductArgs::new(spec, [operands[0], operands[1], c], Epilogue::NONE);
        let launch = product.launch(spec.m, spec.n, 1);
        device.start(&product.program(gpu.sm()), launch, &arguments, Approximation::Device)?;
    }
    let c: Vec<f32> = device.read::<f16>(c)?.into_iter().map(f16::to_f32).collect();
    let [a32, b32] = [a, b].map(|x| x.into_iter().map(f16::to_f32).collect::<Vec<f32>>());
    let exact = reference::product(spec, &widen::<f64, f32>(&a32), &widen::<f64, f32>(&b32));
    let naive = reference::product(spec, &a32, &b32);
    let naive: Vec<f32> = naive.into_iter().map(|x| f16::from_f32(x).to_f32()).collect();
    gpu.compared(|| within_error("c", &c, greatest_error(&naive, &exact), &exact))
}

/// Checks the gradient of a weight with split-K: a second pass adds the f32 sums of the splits in order.
fn check_slices(spec: &Gemm, beta: Beta, gpu: &GpuRunner<'_>) -> Result<f64, String> {
    let product = Product::new(spec, Storage::Bf16, Storage::F32, EpilogueKind::None, 8);
    let (count, chunk) = product.split(spec, 8);
    let elements = spec.m * spec.n;
    hold_slices(spec, beta, gpu, count, |device, [a, b], partial| {
        let one = ProductArgs::new(spec, [a, b, partial], Epilogue::NONE);
        let arguments = ProductArgs { k_step: chunk, k_chunk: chunk, stride_c: elements, ..one };
        let launch = product.launch(spec.m, spec.n, count);
        device.start(&product.program(gpu.sm()), launch, &arguments, Approximation::Device)
    })
}

/// [`check_slices`] with Hopper's product: one block computes the tiles of all splits, the last of which may be
/// shorter.
fn check_slices_on_hopper(spec: &Gemm, beta: Beta, gpu: &GpuRunner<'_>, tile: HopperTile) -> Result<f64, String> {
    let product = HopperProduct::new(spec, Storage::Bf16, Storage::F32, EpilogueKind::None, 8);
    let product = HopperProduct { tile, ..product.ok_or("TMA does not support the operands")? };
    let chunk = 4 * HopperTile::K as usize;
    let count = spec.k.div_ceil(chunk);
    let elements = spec.m * spec.n;
    hold_slices(spec, beta, gpu, count, |device, operands, partial| {
        let maps = product.maps(spec, operands.map(|address| address.0)).map_err(|error| error.to_string())?;
        let arguments = HopperProductArgs::new(spec, maps, partial, Epilogue::NONE, (count, chunk), elements);
        let launch = product.launch(spec.m, spec.n, count, 1);
        device.start(&product.program(), launch, &arguments, Approximation::Device)
    })
}

/// Checks split-K against the error bound: `multiply` computes the partial sums of `count` splits, the second pass adds
/// them.
fn hold_slices(
    spec: &Gemm,
    beta: Beta,
    gpu: &GpuRunner<'_>,
    count: usize,
    multiply: impl FnOnce(&mut Device<'_>, [Address; 2], Address) -> Result<(), String>,
) -> Result<f64, String> {
    let elements = spec.m * spec.n;
    let [span_a, span_b, _] = spec.spans();
    let (a, b) = (uniform::<bf16>(1, span_a, 1.0), uniform::<bf16>(2, span_b, 1.0));
    let before = if beta == Beta::One { uniform::<f32>(3, elements, 1.0) } else { vec![f32::NAN; elements] };
    let mut device = gpu.device();
    let operands = [device.buffer("a", &a), device.buffer("b", &b)];
    let partial = device.unwritten::<f32>("partial", count * elements);
    multiply(&mut device, operands, partial)?;
    let c = device.buffer("c", &before);
    // The second pass has the same program on Hopper.
    let sum = SplitKReduce { beta };
    let arguments = SplitKReduceArgs { partial, c, rows: spec.m, columns: spec.n, ldc: spec.n, slices: count };
    device.start(&sum.program(gpu.sm()), sum.launch(spec.m, spec.n), &arguments, Approximation::Device)?;
    let mut exact = reference::product(spec, &widen::<f64, bf16>(&a), &widen::<f64, bf16>(&b));
    let mut naive = reference::product(spec, &widen::<f32, bf16>(&a), &widen::<f32, bf16>(&b));
    if beta == Beta::One {
        exact = reference::add(&widen(&before), &exact);
        naive = reference::add(&before, &naive);
    }
    let c = device.read::<f32>(c)?;
    gpu.compared(|| within_error("c", &c, greatest_error(&store::<f32>(&naive), &exact), &exact))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::problem::{FORMS, epilogues, only_on_gpu, suffix};

    #[test]
    fn only_gpu_variants_have_a_gpu_suffix() {
        assert!(cases().iter().all(|case| only_on_gpu(&case.variant)));
        for (form, (beta, kind)) in FORMS.iter().flat_map(|(form, ..)| epilogues().into_iter().map(move |e| (form, e)))
        {
            assert!(!only_on_gpu(&format!("{form}{}", suffix(beta, kind))), "{form} {beta:?} {kind:?}");
        }
    }
}
