//! The row of attention in the table of operations: its sizes, its cost, its check against f64. The ragged batches, and
//! what only tests need, stand in `tests.rs`.

use super::cuda_cases::{Simulation, programs};
use super::cuda_sm90::HopperFlash;
use super::{Attention, Gradients, backward, backward_scratch_len, forward, reference};
use crate::check::{Guarded, On, on_device, store, uniform, widen, within};
use crate::dropout::Dropout;
use crate::operation::{Case, Cost, Operation, Outcome, Pass, Target};
use crate::ptx::Sm;
use crate::simd::{DType, Element};
use half::bf16;

/// Attention over sequences, forward and backward.
pub const OPERATION: Operation = Operation { name: "attention", cases, cost, check, ptx: programs };

/// [B, S, A, D]: nothing, one token, sizes around lanes and tiles of keys, primes, ALBERT-base's head size, long sequences.
const SIZES: [[usize; 4]; 9] = [
    [0, 1, 1, 8],
    [7, 2, 3, 5],
    [3, 31, 2, 16],
    [2, 65, 2, 17],
    [2, 127, 1, 33],
    [2, 128, 2, 64],
    [2, 129, 1, 65],
    [1, 257, 2, 78],
    [1, 600, 1, 64],
];

/// Rate of the variant `dropout`.
const RATE: f32 = 0.1;

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for [b, s, a, d] in SIZES {
        for (dtype, pass) in DType::ALL.into_iter().flat_map(|dtype| Pass::ALL.map(|pass| (dtype, pass))) {
            for variant in ["", "dropout"] {
                let dims = vec![("B", b), ("S", s), ("A", a), ("D", d)];
                all.push(Case { pass, dtype, variant: variant.into(), dims });
            }
        }
    }
    all
}

/// Two products forward and five backward; an exponential a score each time counts as one operation.
fn cost(case: &Case) -> Cost {
    let [b, s, a, d] = ["B", "S", "A", "D"].map(|letter| case.dim(letter) as u64);
    let (matrices, flops) = match case.pass {
        Pass::Forward => (4, 4 * d + 1),
        Pass::Backward => (8, 10 * d + 1),
    };
    let tokens = b * s;
    Cost {
        flops: flops * tokens * s * a,
        bytes: matrices * tokens * a * d * case.dtype.bytes() as u64 + 4 * tokens * a,
    }
}

/// The plain program of f32 is simulated up to so many scores.
const SIMULATED_SCORES: usize = 20_000;

fn check(case: &Case, target: Target) -> Outcome {
    let scores = case.dim("B") * case.dim("S").pow(2) * case.dim("A");
    if matches!(target, Target::Simulator(_)) && case.dtype == DType::F32 && scores > SIMULATED_SCORES {
        return Outcome::Skipped { reason: "the plain program of f32 is simulated on smaller cases".to_string() };
    }
    let hopper = HopperFlash::new(case.dtype.into(), case.dim("D"), 3 * case.dim("A") * case.dim("D"), false);
    if let (Target::Simulator(Sm::Sm90a), Some(_), Pass::Forward) = (target, hopper, case.pass) {
        return match check_of::<bf16>(case, &On::Simulator(Sm::Sm90a)) {
            Ok(worst) => Outcome::Passed { worst },
            Err(message) => Outcome::Failed { message: format!("{case} on {target}: {message}") },
        };
    }
    on_device(case, target, |on| match case.dtype {
        DType::F32 => check_of::<f32>(case, on),
        DType::Bf16 => check_of::<bf16>(case, on),
    })
}

fn check_of<X: Element>(case: &Case, on: &On<'_>) -> Result<f64, String> {
    let [b, s, a, d] = ["B", "S", "A", "D"].map(|letter| case.dim(letter));
    let mut spec = Attention::new(a, d);
    spec.dropout = (case.variant == "dropout").then_some(Dropout { seed: 77, site: 3, rate: RATE });
    let (tokens, h, ld) = (b * s, spec.hidden(), 3 * spec.hidden());
    let cu_seqlens: Vec<u32> = (0..=b).map(|i| (i * s) as u32).collect();
    let qkv = uniform::<X>(1, tokens * ld, 2.0);
    let [q, k, v] = [0, h, 2 * h].map(|start| qkv.get(start..).unwrap_or(&[]));
    let (exact, plain) = (widen::<f64, X>(&qkv), widen::<f32, X>(&qkv));
    let [eq, ek, ev] = [0, h, 2 * h].map(|start| exact.get(start..).unwrap_or(&[]));
    let [nq, nk, nv] = [0, h, 2 * h].map(|start| plain.get(start..).unwrap_or(&[]));
    let mut out = Guarded::<X>::poisoned(tokens * h);
    let mut lse = Guarded::<f32>::poisoned(tokens * a);
    let simulation = Simulation { spec: &spec, cu_seqlens: &cu_seqlens, keys: &[], qkv: &qkv, ld };
    match on {
        On::Cpu(cpu) => forward(cpu, &spec, &cu_seqlens, q, k, v, ld, &mut out, &mut lse),
        On::Simulator(sm) => simulation.forward(*sm, &mut out, &mut lse)?,
    }
    let (naive_out, naive_lse) = reference::forward::<f32>(&spec, &cu_seqlens, nq, nk, nv, ld);
    let naive_out = store::<X>(&naive_out);
    if case.pass == Pass::Forward {
        out.intact()?;
        lse.intact()?;
        let (exact_out, exact_lse) = reference::forward::<f64>(&spec, &cu_seqlens, eq, ek, ev, ld);
        return Ok(within("out", &out, &naive_out, &exact_out)?.max(within("lse", &lse, &naive_lse, &exact_lse)?));
    }
    let dout = uniform::<X>(2, tokens * h, 1.0);
    let mut d_qkv = [(); 3].map(|()| Guarded::<X>::poisoned(tokens * h));
    let mut scratch = Guarded::<f32>::poisoned(backward_scratch_len(&spec, tokens, s));
    let [dq, dk, dv] = &mut d_qkv;
    match on {
        On::Cpu(cpu) => {
            let gradients = Gradients::separate(dq, dk, dv, h);
            backward(cpu, &spec, &cu_seqlens, q, k, v, ld, &out, &lse, &dout, gradients, &mut scratch);
        }
        On::Simulator(sm) => simulation.backward(*sm, (&out, &lse), &dout, [dq, dk, dv])?,
    }
    scratch.intact()?;
    // The naive implementation keeps what a kernel keeps: out as stored, and lse.
    let saved = Some((&widen::<f32, X>(&naive_out)[..], &naive_lse[..]));
    let naive = reference::backward::<f32>(&spec, &cu_seqlens, nq, nk, nv, ld, saved, &widen(&dout));
    let exact = reference::backward::<f64>(&spec, &cu_seqlens, eq, ek, ev, ld, None, &widen(&dout));
    let mut worst = 0.0f64;
    for (i, name) in ["dq", "dk", "dv"].into_iter().enumerate() {
        d_qkv[i].intact()?;
        worst = worst.max(within(name, &d_qkv[i], &store::<X>(&naive[i]), &exact[i])?);
    }
    Ok(worst)
}
