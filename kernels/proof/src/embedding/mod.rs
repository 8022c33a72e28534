//! Entry of embedding in the table of operations: sizes, cost, check against f64.

pub mod reference;
#[cfg(test)]
mod tests;

use crate::entry::*;
use kernels::embedding::{Lookup, backward, backward_scratch_len, forward};
use kernels::num::philox::Stream;
use kernels_cuda::embedding::{BackwardArgs, Gather, GatherArgs, Pieces, Scatter};

/// Embedding: gather and sum, and its gradient.
pub const OPERATION: Operation = Operation { name: "embedding", cases, cost, check, ptx };

fn ptx(sm: Sm) -> Vec<Program> {
    once(sm, || {
        let gathers = Gather::all().into_iter().map(|kernel| kernel.program(sm));
        gathers.chain(Scatter::ALL.map(|kernel| kernel.program(sm))).collect()
    })
}

/// [T, V, E]: no token, one token, more rows than tokens and fewer, whole vectors and one column more or less, ALBERT's.
const SIZES: [(usize, usize, usize); 12] = [
    (0, 7, 8),
    (1, 1, 1),
    (13, 2, 15),
    (64, 5, 16),
    (31, 97, 17),
    (211, 3, 31),
    (19, 1031, 33),
    (5, 64, 63),
    (257, 129, 65),
    (401, 3, 300),
    (503, 2000, 128),
    (67, 512, 768),
];

/// Size of the additional variants: forward with one or two tables, and rows gathered from an activation.
const FEWER: (usize, usize, usize) = (31, 97, 17);

/// Size of backward with several tables or rows of an activation: ids of several pieces, and of one in the third table.
const SEVERAL: (usize, usize, usize) = (401, 3, 300);

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (t, v, e) in SIZES {
        for (dtype, pass) in DType::ALL.into_iter().flat_map(|dtype| Pass::ALL.map(|pass| (dtype, pass))) {
            let mut add = |variant: &str| {
                all.push(Case { pass, dtype, variant: variant.to_string(), dims: vec![("T", t), ("V", v), ("E", e)] });
            };
            // Forward sums the three tables of a token; backward processes one table on a processor, up to three on a GPU.
            add(if pass == Pass::Forward { "sum3" } else { "" });
            if (t, v, e) == SEVERAL && pass == Pass::Backward {
                ["sum3", "sum2", "rows"].into_iter().for_each(&mut add);
            }
            if (t, v, e) == FEWER {
                add("rows");
            }
            if (t, v, e) == FEWER && pass == Pass::Forward {
                add("sum2");
                add("sum1");
            }
        }
    }
    all
}

/// Backward counts min(T, V) used rows: every token with a row of its own, or every row used.
fn cost(case: &Case) -> Cost {
    let (t, v, e) = (case.dim("T") as u64, case.dim("V") as u64, case.dim("E") as u64);
    let stored = case.dtype.bytes() as u64;
    match case.pass {
        Pass::Forward => Cost { flops: 2 * t * e, bytes: t * e * (stored + 3 * 4) + 12 * t },
        Pass::Backward => Cost { flops: t * e, bytes: t * e * stored + 8 * t.min(v) * e + 4 * t },
    }
}

fn check(case: &Case, runner: &Runner<'_>) -> Outcome {
    if let Runner::Cpu(_) | Runner::Recording(_) = runner {
        let reason = match (case.pass, case.variant.as_str()) {
            (_, "rows") => "a processor copies rows of activations without a kernel",
            (Pass::Backward, "sum2" | "sum3") => "a processor adds to one table at a time",
            _ => "",
        };
        if !reason.is_empty() {
            return Outcome::Skipped { reason: reason.to_string() };
        }
    }
    on_runner(case, runner, |on| match case.dtype {
        DType::F32 => check_of::<f32>(case, on),
        DType::Bf16 => check_of::<bf16>(case, on),
    })
}

/// Runs the PTX gather on pairs of ids and table.
fn simulate_forward<X: Element, Y: Element>(
    gpu: &GpuRunner<'_>,
    kernel: Gather,
    width: usize,
    lookups: &[(&[u32], &[X])],
    out: &mut [Y],
) -> Result<(), String> {
    let mut device = gpu.device();
    let pairs: Vec<_> =
        lookups.iter().map(|(ids, table)| [device.buffer("ids", ids), device.buffer("table", table)]).collect();
    let (buffer, tokens) = (device.unwritten::<Y>("out", out.len()), lookups[0].0.len());
    let arguments = GatherArgs::new(&pairs, buffer, tokens, width);
    device.start(&kernel.program(gpu.sm()), kernel.launch(tokens, width), &arguments, Approximation::Device)?;
    out.copy_from_slice(&device.read(buffer)?);
    Ok(())
}

/// Runs the PTX of [`backward`] with tables of any storage.
fn simulate_backward<X: Element, Y: Element>(
    gpu: &GpuRunner<'_>,
    width: usize,
    ids: &[&[u32]],
    dout: &[X],
    dtables: &mut [&mut [Y]],
) -> Result<(), String> {
    let (kernel, mut device) = (Scatter { dtype: X::DTYPE, table: Y::DTYPE }, gpu.device());
    let of_table = |(ids, dtable): (&&[u32], &&mut [Y])| {
        let Pieces { count, words } = Pieces::new(ids);
        (device.buffer("pieces", &words), count, device.buffer("dtable", dtable))
    };
    let tables: Vec<_> = ids.iter().zip(&*dtables).map(of_table).collect();
    let pieces = tables.iter().map(|(_, count, _)| count).sum();
    let (dout, partial) = (device.buffer("dout", dout), device.unwritten::<f32>("partial", pieces * width));
    let arguments = BackwardArgs::new(&tables, [dout, partial], width);
    device.start(&kernel.program(gpu.sm()), kernel.launch(pieces), &arguments, Approximation::Device)?;
    for ((_, _, buffer), dtable) in tables.into_iter().zip(dtables) {
        dtable.copy_from_slice(&device.read(buffer)?);
    }
    Ok(())
}

/// Ids distributed as in text: half of them are among the first tenth of the vocabulary.
pub(super) fn ids(seed: u64, tokens: usize, vocabulary: usize) -> Vec<u32> {
    let mut stream = Stream::new(seed, [0x1d5, 0, 0]);
    let frequent = vocabulary.div_ceil(10) as u32;
    (0..tokens).map(|t| if t % 2 == 0 { stream.below(frequent) } else { stream.below(vocabulary as u32) }).collect()
}

fn check_of<X: Element>(case: &Case, on: &On<'_>) -> Result<f64, String> {
    match (case.pass, case.variant.as_str()) {
        (Pass::Forward, "sum3") => check_sum::<X, 3>(case, on),
        (Pass::Forward, "sum2") => check_sum::<X, 2>(case, on),
        (Pass::Forward, "sum1") => check_sum::<X, 1>(case, on),
        (_, "rows") => check_rows::<X>(case, on),
        (_, "sum3") => check_gradient::<X, 3>(case, on),
        (_, "sum2") => check_gradient::<X, 2>(case, on),
        _ => check_gradient::<X, 1>(case, on),
    }
}

fn check_sum<X: Element, const N: usize>(case: &Case, on: &On<'_>) -> Result<f64, String> {
    let (t, v, e) = (case.dim("T"), case.dim("V"), case.dim("E"));
    let tables = [(1, v), (2, 2), (3, 512)].map(|(seed, rows)| on.uniform::<f32>(seed, rows * e, 1.0));
    let ids = [ids(4, t, v), ids(5, t, 2), (0..t).map(|t| t as u32 % 512).collect()];
    let mut out = Guarded::<X>::poisoned(t * e);
    let pairs: [(&[u32], &[f32]); N] = std::array::from_fn(|k| (&ids[k][..], &tables[k][..]));
    match on {
        On::Cpu(cpu) => forward(cpu, e, pairs.map(|(ids, table)| Lookup { ids, table }), &mut out),
        On::Gpu(gpu) => simulate_forward(gpu, Gather::sum(X::DTYPE, N), e, &pairs, &mut out[..])?,
    }
    out.intact()?;
    if on.records(|| vec![Output::new("out", &out)]) {
        return Ok(0.0);
    }
    let naive = reference::forward::<f32>(e, &pairs);
    let wide: [Vec<f64>; N] = std::array::from_fn(|k| widen(&tables[k]));
    let exact = reference::forward::<f64>(e, &std::array::from_fn::<_, N, _>(|k| (&ids[k][..], &wide[k][..])));
    on.within("out", &out, &store::<X>(&naive), &exact)
}

fn check_gradient<X: Element, const N: usize>(case: &Case, on: &On<'_>) -> Result<f64, String> {
    let (t, v, e) = (case.dim("T"), case.dim("V"), case.dim("E"));
    let dout = on.uniform::<X>(5, t * e, 1.0);
    let all = [(4, 6, v), (5, 7, 2), (6, 8, t)];
    let tables: [_; N] = std::array::from_fn(|i| {
        let (of_ids, of_table, rows) = all[i];
        (ids(of_ids, t, rows), on.uniform::<f32>(of_table, rows * e, 1.0))
    });
    let mut dtables = tables.each_ref().map(|(_, before)| Guarded::new(before));
    match on {
        On::Cpu(cpu) => {
            let mut scratch = vec![u32::MAX; backward_scratch_len(t, v)];
            backward(cpu, e, &tables[0].0, &dout, &mut dtables[0], &mut scratch);
        }
        On::Gpu(gpu) => {
            let ids = tables.each_ref().map(|(ids, _)| &ids[..]);
            simulate_backward(gpu, e, &ids, &dout, &mut dtables.each_mut().map(|dtable| &mut dtable[..]))?;
        }
    }
    dtables.iter().try_for_each(Guarded::intact)?;
    if on.records(|| vec![Output::new("dtable", &dtables[0])]) {
        return Ok(0.0);
    }
    tables.iter().zip(&dtables).try_fold(0.0, |worst: f64, ((ids, before), dtable)| {
        let naive = reference::backward::<f32>(e, ids, &widen(&dout), before);
        let exact = reference::backward::<f64>(e, ids, &widen(&dout), &widen(before));
        Ok(worst.max(on.within("dtable", dtable, &naive, &exact)?))
    })
}

/// Checks the gather of an activation's rows in its own storage, and the gradient added to them.
fn check_rows<X: Element>(case: &Case, on: &On<'_>) -> Result<f64, String> {
    let On::Gpu(gpu) = on else { return Err("rows are picked by the PTX alone".to_string()) };
    let (t, v, e) = (case.dim("T"), case.dim("V"), case.dim("E"));
    let (ids, x, dout) = (ids(4, t, v), uniform::<X>(1, v * e, 1.0), uniform::<X>(5, t * e, 1.0));
    if case.pass == Pass::Forward {
        let mut out = Guarded::<X>::poisoned(t * e);
        simulate_forward(gpu, Gather::rows(X::DTYPE), e, &[(&ids, &x)], &mut out[..])?;
        out.intact()?;
        let exact = reference::forward::<f64>(e, &[(&ids, &widen(&x))]);
        return on.within("out", &out, &store::<X>(&exact.iter().map(|x| *x as f32).collect::<Vec<_>>()), &exact);
    }
    let mut dx = Guarded::new(&x);
    simulate_backward(gpu, e, &[&ids], &dout, &mut [&mut dx[..]])?;
    dx.intact()?;
    let naive = reference::backward::<f32>(e, &ids, &widen(&dout), &widen(&x));
    on.within("dx", &dx, &store::<X>(&naive), &reference::backward::<f64>(e, &ids, &widen(&dout), &widen(&x)))
}
