//! Row of attention in the table of operations: sizes, cost, check against f64. `tests.rs` has ragged batches and code that
//! only tests need.

pub mod reference;
pub(crate) mod sm80_cases;
#[cfg(test)]
mod tests;

use crate::attention::sm80_cases::{Simulation, programs};
use crate::check::{on_any_runner, within};
use crate::entry::*;
use half::f16;
use kernels::attention::{Attention, Gradients, Operands, Upstream, backward, backward_scratch_len, forward};
use kernels::dropout::Dropout;
use kernels_cuda::attention::sm90::HopperFlash;
use kernels_cuda::program::storage_of;
use ptx::Storage;

/// Attention over sequences, forward and backward.
pub const OPERATION: Operation = Operation { name: "attention", cases, cost, check, ptx: programs };

/// [B, S, A, D]: empty, few tokens, sizes around lanes and tiles of keys, primes, ALBERT-base's head size, several heads
/// narrower than their padding, long sequences.
const SIZES: [[usize; 4]; 17] = [
    [0, 1, 1, 8],
    [7, 2, 3, 5],
    [3, 31, 2, 16],
    [2, 65, 2, 17],
    [2, 127, 1, 33],
    [2, 128, 2, 64],
    [1, 40, 1, 64],
    [5, 70, 1, 64],
    [1, 40, 1, 128],
    [1, 65, 1, 128],
    [1, 40, 2, 40],
    [1, 40, 2, 104],
    [1, 140, 1, 32],
    [1, 140, 1, 64],
    [2, 129, 1, 65],
    [1, 257, 2, 78],
    [1, 600, 1, 64],
];

/// Sequences with more tiles of keys than Hopper's pipeline has stages; only in bf16.
const LONG_PIPELINES: [[usize; 4]; 2] = [[1, 280, 1, 128], [1, 330, 1, 64]];

/// [B, S, A, D] with sequences of S tokens and fewer, so that Hopper's kernels skip tiles and mask the keys of the first.
const RAGGED: [[usize; 4]; 3] = [[3, 200, 1, 64], [3, 100, 1, 64], [3, 140, 1, 128]];

/// Variant in f16, with dropout and sequences as in [`RAGGED`].
const F16: &str = "ragged_dropout_f16";

/// Rate of the variants with dropout.
const RATE: f32 = 0.1;

const DROPOUT: Dropout = Dropout { seed: 77, site: 3, rate: RATE };

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let sizes = DType::ALL.into_iter().flat_map(|dtype| SIZES.map(|size| (dtype, size)));
    for (dtype, [b, s, a, d]) in sizes.chain(LONG_PIPELINES.map(|size| (DType::Bf16, size))) {
        for pass in Pass::ALL {
            for variant in ["", "dropout"] {
                let dims = vec![("B", b), ("S", s), ("A", a), ("D", d)];
                all.push(Case { pass, dtype, variant: variant.into(), dims });
            }
        }
    }
    // Only a GPU has f16. Sequences of 100 take Hopper's kernel for short ones.
    let ragged = RAGGED.into_iter().flat_map(|size| ["ragged", "ragged_dropout"].map(|variant| (variant, size)));
    for (variant, [b, s, a, d]) in ragged.chain([(F16, RAGGED[0]), (F16, RAGGED[1])]) {
        let dims = vec![("B", b), ("S", s), ("A", a), ("D", d)];
        let case = |pass| Case { pass, dtype: DType::Bf16, variant: variant.into(), dims: dims.clone() };
        all.extend(Pass::ALL.map(case));
    }
    all
}

/// Lengths of the sequences of a case: S, in ragged batches S/B less for each.
fn lengths(case: &Case) -> impl Iterator<Item = usize> {
    let [b, s] = ["B", "S"].map(|letter| case.dim(letter));
    let is_ragged = case.variant.starts_with("ragged");
    (0..b).map(move |i| if is_ragged { s - i * s / b } else { s })
}

fn cu_seqlens(case: &Case) -> Vec<u32> {
    let ends = lengths(case).scan(0, |end, length| {
        *end += length as u32;
        Some(*end)
    });
    [0].into_iter().chain(ends).collect()
}

/// Cost of a case: two products forward and five backward; the exponential of a score counts as one operation.
fn cost(case: &Case) -> Cost {
    let [a, d] = ["A", "D"].map(|letter| case.dim(letter) as u64);
    let (matrices, flops) = match case.pass {
        Pass::Forward => (4, 4 * d + 1),
        Pass::Backward => (8, 10 * d + 1),
    };
    let [tokens, scores] = [1, 2].map(|power| lengths(case).map(|length| (length as u64).pow(power)).sum::<u64>());
    Cost { flops: flops * scores * a, bytes: matrices * tokens * a * d * case.dtype.bytes() as u64 + 4 * tokens * a }
}

/// Maximum scores of a case for which the f32 program is simulated.
const SIMULATED_SCORES: usize = 10_000;

fn check(case: &Case, runner: &Runner<'_>) -> Outcome {
    let scores = case.dim("B") * case.dim("S").pow(2) * case.dim("A");
    if matches!(runner, Runner::Gpu(_)) && case.dtype == DType::F32 && scores > SIMULATED_SCORES {
        return Outcome::Skipped { reason: "the plain program of f32 is simulated on smaller cases".to_string() };
    }
    if case.variant == F16 && !matches!(runner, Runner::Gpu(_)) {
        return Outcome::Skipped { reason: "only a GPU has f16".to_string() };
    }
    let storage = if case.variant == F16 { Storage::F16 } else { storage_of(case.dtype) };
    let hopper = HopperFlash::new(storage, case.dim("D"), case.dim("S"), 3 * case.dim("A") * case.dim("D"), false);
    let check = |on: &On<'_>| match (on, case.dtype) {
        (On::Gpu(gpu), _) if case.variant == F16 => check_f16(case, gpu),
        (_, DType::F32) => check_of::<f32>(case, on),
        (_, DType::Bf16) => check_of::<bf16>(case, on),
    };
    if hopper.is_some() { on_any_runner(case, runner, check) } else { on_runner(case, runner, check) }
}

const GRADIENTS: [&str; 3] = ["dq", "dk", "dv"];

fn check_of<X: Element>(case: &Case, on: &On<'_>) -> Result<f64, String> {
    let [s, a, d] = ["S", "A", "D"].map(|letter| case.dim(letter));
    let mut spec = Attention::new(a, d);
    spec.dropout = case.variant.contains("dropout").then_some(DROPOUT);
    let (tokens, h, ld) = (lengths(case).sum::<usize>(), spec.hidden(), 3 * spec.hidden());
    let cu_seqlens = cu_seqlens(case);
    let qkv = on.uniform::<X>(1, tokens * ld, 2.0);
    let [q, k, v] = [0, h, 2 * h].map(|start| qkv.get(start..).unwrap_or(&[]));
    let operands = Operands { sequences: (&cu_seqlens).into(), q, k, v, ld };
    let (exact, plain) = (widen::<f64, X>(&qkv), widen::<f32, X>(&qkv));
    let [eq, ek, ev] = [0, h, 2 * h].map(|start| exact.get(start..).unwrap_or(&[]));
    let [nq, nk, nv] = [0, h, 2 * h].map(|start| plain.get(start..).unwrap_or(&[]));
    let (mut out, mut lse) = (Guarded::<X>::poisoned(tokens * h), Guarded::<f32>::poisoned(tokens * a));
    let storage = storage_of(X::DTYPE);
    let simulation = Simulation { spec: &spec, storage, cu_seqlens: &cu_seqlens, keys: &[], qkv: &qkv, ld };
    match on {
        On::Cpu(cpu) => forward(cpu, &spec, operands, &mut out, &mut lse),
        On::Gpu(gpu) => simulation.forward(gpu, &mut out, &mut lse)?,
    }
    let naive_forward = || {
        let (out, lse) = reference::forward::<f32>(&spec, &cu_seqlens, nq, nk, nv, ld);
        (store::<X>(&out), lse)
    };
    if case.pass == Pass::Forward {
        out.intact().and(lse.intact())?;
        if on.records(|| vec![Output::new("out", &out), Output::new("lse", &lse)]) {
            return Ok(0.0);
        }
        return on.compared(|| {
            let (naive_out, naive_lse) = naive_forward();
            let (exact_out, exact_lse) = reference::forward::<f64>(&spec, &cu_seqlens, eq, ek, ev, ld);
            Ok(within("out", &out, &naive_out, &exact_out)?.max(within("lse", &lse, &naive_lse, &exact_lse)?))
        });
    }
    let dout = on.uniform::<X>(2, tokens * h, 1.0);
    let mut d_qkv = [(); 3].map(|()| Guarded::<X>::poisoned(tokens * h));
    let mut scratch = Guarded::<f32>::poisoned(backward_scratch_len(&spec, tokens, s));
    let [dq, dk, dv] = &mut d_qkv;
    match on {
        On::Cpu(cpu) => {
            let gradients = Gradients::separate(dq, dk, dv, h);
            let upstream = Upstream { out: &out, lse: &lse, dout: &dout };
            backward(cpu, &spec, operands, upstream, gradients, &mut scratch);
        }
        On::Gpu(gpu) => simulation.backward(gpu, (&out, &lse), &dout, [dq, dk, dv])?,
    }
    d_qkv.iter().try_fold((), |(), gradient| gradient.intact()).and(scratch.intact())?;
    if on.records(|| GRADIENTS.iter().zip(&d_qkv).map(|(name, gradient)| Output::new(name, gradient)).collect()) {
        return Ok(0.0);
    }
    on.compared(|| {
        // The naive implementation saves the same as a kernel: out as stored, and lse.
        let (naive_out, naive_lse) = naive_forward();
        let saved = Some((&widen::<f32, X>(&naive_out)[..], &naive_lse[..]));
        let naive =
            reference::backward::<f32>(&spec, &cu_seqlens, ([nq, nk, nv], ld), saved, &widen(&dout), as_operand::<X>);
        let exact = reference::backward::<f64>(&spec, &cu_seqlens, ([eq, ek, ev], ld), None, &widen(&dout), |x| x);
        let mut errors = (0..3).map(|i| within(GRADIENTS[i], &d_qkv[i], &store::<X>(&naive[i]), &exact[i]));
        errors.try_fold(0.0, |worst, error| Ok(error?.max(worst)))
    })
}

/// Checks f16 on a GPU against the definition on the same elements. The results of the naive implementation are rounded to
/// f16.
fn check_f16(case: &Case, gpu: &GpuRunner<'_>) -> Result<f64, String> {
    let [a, d] = ["A", "D"].map(|letter| case.dim(letter));
    let spec = Attention { dropout: Some(DROPOUT), ..Attention::new(a, d) };
    let (tokens, h, ld) = (lengths(case).sum::<usize>(), spec.hidden(), 3 * spec.hidden());
    let cu_seqlens = cu_seqlens(case);
    let random = |seed, len, scale| uniform::<f32>(seed, len, scale).into_iter().map(f16::from_f32).collect::<Vec<_>>();
    let round = |x: &[f32]| x.iter().map(|&x| f16::from_f32(x).to_f32()).collect::<Vec<f32>>();
    let single = |x: &[f16]| x.iter().map(|x| x.to_f32()).collect::<Vec<f32>>();
    let (qkv, dout) = (random(1, tokens * ld, 2.0), random(2, tokens * h, 1.0));
    let (plain, exact): (Vec<f32>, Vec<f64>) = (single(&qkv), widen(&single(&qkv)));
    let storage = Storage::F16;
    let simulation = Simulation { spec: &spec, storage, cu_seqlens: &cu_seqlens, keys: &[], qkv: &qkv, ld };
    let (mut out, mut lse) = (vec![f16::NAN; tokens * h], vec![f32::NAN; tokens * a]);
    simulation.forward(gpu, &mut out, &mut lse)?;
    let naive = reference::forward::<f32>(&spec, &cu_seqlens, &plain, &plain[h..], &plain[2 * h..], ld);
    let naive_out = round(&naive.0);
    if case.pass == Pass::Forward {
        let exact = reference::forward::<f64>(&spec, &cu_seqlens, &exact, &exact[h..], &exact[2 * h..], ld);
        return gpu.compared(|| {
            Ok(within("out", &single(&out), &naive_out, &exact.0)?.max(within("lse", &lse, &naive.1, &exact.1)?))
        });
    }
    let mut gradients = [(); 3].map(|()| vec![f16::NAN; tokens * h]);
    let [dq, dk, dv] = &mut gradients;
    simulation.backward(gpu, (&out, &lse), &dout, [dq, dk, dv])?;
    let (p, w): (Vec<f32>, Vec<f64>) = (single(&dout), widen(&single(&dout)));
    let saved = Some((&naive_out[..], &naive.1[..]));
    let naive = reference::backward(&spec, &cu_seqlens, ([&plain, &plain[h..], &plain[2 * h..]], ld), saved, &p, |x| x);
    let exact = reference::backward(&spec, &cu_seqlens, ([&exact, &exact[h..], &exact[2 * h..]], ld), None, &w, |x| x);
    let mut worst = 0.0f64;
    for (i, name) in GRADIENTS.into_iter().enumerate() {
        worst = worst.max(gpu.compared(|| within(name, &single(&gradients[i]), &round(&naive[i]), &exact[i]))?);
    }
    Ok(worst)
}

/// x rounded to an operand of attention whose storage is `X`.
pub(super) fn as_operand<X: Element>(x: f32) -> f32 {
    X::from_f32(x).to_f32()
}
