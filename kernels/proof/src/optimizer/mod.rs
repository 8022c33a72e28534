//! Entry of the optimizers in the table of operations: sizes, cost, check against f64.

pub mod reference;
#[cfg(test)]
mod tests;

use crate::entry::*;
use kernels::optimizer::{AdamConfig, Buffers, Segment, Step, adamw, lamb, lamb_scratch_len};
use kernels_cuda::optimizer::{AdamWArgs, ApplyArgs, Blocks, Hyper, MomentsArgs, Update};

/// LAMB and AdamW.
pub const OPERATION: Operation = Operation { name: "optimizer", cases, cost, check, ptx };

fn ptx(sm: Sm) -> Vec<Program> {
    once(sm, || Update::ALL.iter().map(|update| update.program(sm)).collect())
}

/// Numbers of parameters: 0, 1, whole vectors and one more or less, primes, several blocks in a tensor.
const SIZES: [usize; 9] = [0, 1, 31, 64, 257, 1021, 4099, 70_001, 200_003];

/// Optimizer; `corrected`: with bias correction; `alone`: without a bf16 copy of the parameters on the GPU.
const VARIANTS: [&str; 6] = ["lamb", "lamb_corrected", "lamb_alone", "adamw", "adamw_corrected", "adamw_alone"];

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for size in SIZES {
        all.extend(VARIANTS.map(|variant| Case {
            pass: Pass::Forward,
            dtype: DType::F32,
            variant: variant.to_string(),
            dims: vec![("P", size)],
        }));
    }
    all
}

fn is_lamb(case: &Case) -> bool {
    case.variant.starts_with("lamb")
}

/// A division or a root counts as one operation.
fn cost(case: &Case) -> Cost {
    let (streams, flops) = if is_lamb(case) { (10, 27) } else { (7, 16) };
    Cost { flops: flops * case.dim("P") as u64, bytes: 4 * streams * case.dim("P") as u64 }
}

/// Tensors of very different sizes, of all four kinds, with gaps between them that belong to no tensor.
pub(super) fn segments(params: usize) -> Vec<Segment> {
    let cuts = [0, params / 50, params / 10, params / 5, params / 4, params];
    let kinds = [(true, true), (false, false), (true, false), (false, true), (true, true)];
    let segment = |(cut, (decay, adapt)): (&[usize], (bool, bool))| {
        let gap = (cut[1] - cut[0]) / 40;
        Segment { range: cut[0] + gap..cut[1], decay, adapt }
    };
    cuts.windows(2).zip(kinds).map(segment).collect()
}

fn check(case: &Case, runner: &Runner<'_>) -> Outcome {
    on_runner(case, runner, |on| check_of(case, on))
}

/// Runs a step of the PTX and compares the bf16 copy with the parameters; returns the ratios of LAMB.
fn simulate(
    gpu: &GpuRunner<'_>,
    (lamb, half): (bool, bool),
    (hyper, step, segments): (&AdamConfig, &Step, &[Segment]),
    grads: &[f32],
    [w, m, v]: [&mut [f32]; 3],
) -> Result<Vec<f32>, String> {
    let (table, mut device) = (Blocks::new(segments), gpu.device());
    let flat = |table: &[[u32; 4]]| table.concat();
    let (blocks, tensors) =
        (device.buffer("blocks", &flat(&table.blocks)), device.buffer("tensors", &flat(&table.tensors)));
    let scale = device.buffer("scale", &[step.gradient_scale]);
    let gradients = device.buffer("grads", grads);
    let [params, mean, square] = [("params", &*w), ("m", &*m), ("v", &*v)].map(|(name, x)| device.buffer(name, x));
    let copy = device.buffer("half", &vec![bf16::NAN; w.len()]);
    let norms = device.unwritten::<f64>("norms", 2 * table.blocks.len());
    // Ratios of tensors without elements are not written.
    let ratios = device.buffer("ratios", &vec![1.0f32; segments.len()]);
    let (hyper, exact) = (Hyper::new(hyper, step), Approximation::Device);
    let (m_at, v_at, grads, of_half) = (mean, square, gradients, half.then_some(copy));
    let of = |update: Update| (update.program(gpu.sm()), table.launch());
    if lamb {
        let (program, launch) = of(Update::Moments);
        let (m, v) = (m_at, v_at);
        let arguments = MomentsArgs { blocks, scale, grads, params, m, v, tensors, norms, ratios, hyper };
        device.start(&program, launch, &arguments, exact)?;
        let (program, launch) = of(Update::Apply { half });
        let hyper = hyper.without_moments();
        let arguments = ApplyArgs { blocks, scale, params, m: m_at, v: v_at, ratios, half: of_half, hyper };
        device.start(&program, launch, &arguments, exact)?;
    } else {
        let (program, launch) = of(Update::AdamW { half });
        let arguments = AdamWArgs { blocks, scale, grads, params, m: m_at, v: v_at, half: of_half, hyper };
        device.start(&program, launch, &arguments, exact)?;
    }
    for (buffer, out) in [params, mean, square].into_iter().zip([&mut *w, m, v]) {
        out.copy_from_slice(&device.read(buffer)?);
    }
    let copy = device.read::<bf16>(copy)?;
    let updated = |i: &usize| segments.iter().any(|segment| segment.range.contains(i));
    if let Some(i) = (0..w.len()).filter(updated).find(|&i| half && copy[i] != bf16::from_f32(w[i])) {
        return Err(format!("the copy of parameter {i} is {}, the parameter {}", copy[i], w[i]));
    }
    if lamb { device.read(ratios) } else { Ok(Vec::new()) }
}

fn check_of(case: &Case, on: &On<'_>) -> Result<f64, String> {
    let params = case.dim("P");
    let segments = segments(params);
    let hyper = AdamConfig { bias_correction: case.variant.ends_with("corrected"), ..AdamConfig::default() };
    let step = Step { number: 3, learning_rate: 0.01, gradient_scale: 0.37 };
    let grads = on.uniform::<f32>(1, params, 2.0);
    let start = reference::State {
        params: on.uniform::<f32>(2, params, 1.0),
        m: on.uniform::<f32>(3, params, 0.1),
        v: on.data().alter(4, uniform::<f32>(4, params, 0.1).into_iter().map(|v| v * v + 1e-3).collect()),
    };
    let mut w = Guarded::new(&start.params);
    let (mut m, mut v) = (Guarded::new(&start.m), Guarded::new(&start.v));
    let ratios: Vec<f32> = match (on, is_lamb(case)) {
        (On::Cpu(cpu), true) => {
            let mut scratch = vec![f64::NAN; lamb_scratch_len(&segments)];
            lamb(
                cpu,
                &hyper,
                &step,
                &segments,
                Buffers { params: &mut w, grads: &grads, m: &mut m, v: &mut v },
                &mut scratch,
            );
            scratch[..segments.len()].iter().map(|&r| r as f32).collect()
        }
        (On::Cpu(cpu), false) => {
            adamw(cpu, &hyper, &step, &segments, Buffers { params: &mut w, grads: &grads, m: &mut m, v: &mut v });
            Vec::new()
        }
        (On::Gpu(gpu), lamb) => simulate(
            gpu,
            (lamb, !case.variant.ends_with("alone")),
            (&hyper, &step, &segments),
            &grads,
            [&mut w[..], &mut m[..], &mut v[..]],
        )?,
    };
    w.intact().and(m.intact()).and(v.intact())?;
    if on.records(|| {
        let ratios = is_lamb(case).then(|| Output::new("ratios", &ratios));
        [("m", &m), ("v", &v), ("w", &w)].into_iter().map(|(name, x)| Output::new(name, x)).chain(ratios).collect()
    }) {
        return Ok(0.0);
    }
    let mut naive = start.clone();
    let mut exact =
        reference::State { params: widen::<f64, f32>(&start.params), m: widen(&start.m), v: widen(&start.v) };
    let naive_ratios = reference::step(&hyper, &step, is_lamb(case), &segments, &mut naive, &grads);
    let exact_ratios = reference::step(&hyper, &step, is_lamb(case), &segments, &mut exact, &widen(&grads));
    let mut worst = 0.0f64;
    if is_lamb(case) {
        worst = on.within("ratios", &ratios, &naive_ratios, &exact_ratios)?;
    }
    worst = worst.max(on.within("m", &m, &naive.m, &exact.m)?);
    worst = worst.max(on.within("v", &v, &naive.v, &exact.v)?);
    Ok(worst.max(on.within("w", &w, &naive.params, &exact.params)?))
}
