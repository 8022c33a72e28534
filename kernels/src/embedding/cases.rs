//! The row of embedding in the table of operations: its sizes, its cost, its check against f64.

use super::cuda::{AddPieces, Gather, Pieces, SumPieces};
use super::{Lookup, backward, backward_scratch_len, forward, reference};
use crate::check::{Guarded, On, on_device, store, uniform, widen, within};
use crate::num::philox::Stream;
use crate::operation::{Case, Cost, Operation, Outcome, Pass, Program, Target};
use crate::ptx::{Sm, sim::Approximation};
use crate::simd::{DType, Element};
use crate::simulated::Simulated;
use half::bf16;

/// Gather-sum and its gradient.
pub const OPERATION: Operation = Operation { name: "embedding", cases, cost, check, ptx };

fn ptx(sm: Sm) -> Vec<Program> {
    if sm != Sm::Sm80 {
        return Vec::new();
    }
    let both = [DType::Bf16, DType::F32];
    let gathers = [3, 1].into_iter().flat_map(|tables| both.map(|dtype| Gather { dtype, tables }.program(sm)));
    let pieces = both.map(|dtype| SumPieces { dtype }.program(sm));
    gathers.chain(pieces).chain([AddPieces.program(sm)]).collect()
}

/// [T, V, E]: nothing, one token, more rows than tokens and fewer, widths with one lane more and less, ALBERT's.
const SIZES: [(usize, usize, usize); 11] = [
    (0, 7, 8),
    (1, 1, 1),
    (13, 2, 15),
    (64, 5, 16),
    (31, 97, 17),
    (211, 3, 31),
    (19, 1031, 33),
    (5, 64, 63),
    (257, 129, 65),
    (503, 2000, 128),
    (67, 512, 768),
];

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (t, v, e) in SIZES {
        for (dtype, pass) in DType::ALL.into_iter().flat_map(|dtype| Pass::ALL.map(|pass| (dtype, pass))) {
            let dims = vec![("T", t), ("V", v), ("E", e)];
            // Forward sums the three tables of a token, or takes from one; backward serves one table at a time.
            let variants: &[&str] = if pass == Pass::Forward { &["sum3", "sum1"] } else { &[""] };
            all.extend(variants.iter().map(|v| Case { pass, dtype, variant: v.to_string(), dims: dims.clone() }));
        }
    }
    all
}

/// Backward is counted as if every token had a row of its own, or every row were used.
fn cost(case: &Case) -> Cost {
    let (t, v, e) = (case.dim("T") as u64, case.dim("V") as u64, case.dim("E") as u64);
    let stored = case.dtype.bytes() as u64;
    match case.pass {
        Pass::Forward if case.variant == "sum1" => Cost { flops: 0, bytes: t * e * (stored + 4) + 4 * t },
        Pass::Forward => Cost { flops: 2 * t * e, bytes: t * e * (stored + 3 * 4) + 12 * t },
        Pass::Backward => Cost { flops: t * e, bytes: t * e * stored + 8 * t.min(v) * e + 4 * t },
    }
}

fn check(case: &Case, target: Target) -> Outcome {
    on_device(case, target, |on| match case.dtype {
        DType::F32 => check_of::<f32>(case, on),
        DType::Bf16 => check_of::<bf16>(case, on),
    })
}

/// [`forward`] by the PTX.
fn simulate_forward<X: Element, const N: usize>(
    sm: Sm,
    width: usize,
    lookups: [Lookup<'_>; N],
    out: &mut [X],
) -> Result<(), String> {
    let (kernel, mut device) = (Gather { dtype: X::DTYPE, tables: N }, Simulated::default());
    let tokens = lookups[0].ids.len();
    for lookup in lookups {
        device.input("ids", lookup.ids);
        device.input("table", lookup.table);
    }
    let buffer = device.output::<X>("out", out.len());
    device.integers([tokens, width]);
    device.run(&kernel.program(sm), kernel.launch(tokens, width), Approximation::Exact)?;
    out.copy_from_slice(&device.read(buffer)?);
    Ok(())
}

/// [`backward`] by the PTX.
fn simulate_backward<X: Element>(
    sm: Sm,
    width: usize,
    ids: &[u32],
    dout: &[X],
    dtable: &mut [f32],
) -> Result<(), String> {
    let (pieces, mut device) = (Pieces::new(ids), Simulated::default());
    let (sum, run) = (SumPieces { dtype: X::DTYPE }, Approximation::Exact);
    device.input("dout", dout);
    device.input("order", &pieces.order);
    device.input("starts", &pieces.starts);
    let partial = device.output::<f32>("partial", pieces.count() * width);
    device.integers([width]).run(&sum.program(sm), sum.launch(&pieces), run)?;
    device.pointer(partial);
    device.input("used", &pieces.used);
    device.input("first", &pieces.first);
    let table = device.input("dtable", dtable);
    device.integers([width]).run(&AddPieces.program(sm), AddPieces.launch(&pieces), run)?;
    dtable.copy_from_slice(&device.read(table)?);
    Ok(())
}

/// Ids as text has them: half of them among the first few.
pub(super) fn ids(seed: u64, tokens: usize, vocabulary: usize) -> Vec<u32> {
    let mut stream = Stream::new(seed, [0x1d5, 0, 0]);
    let frequent = vocabulary.div_ceil(10) as u32;
    (0..tokens).map(|t| if t % 2 == 0 { stream.below(frequent) } else { stream.below(vocabulary as u32) }).collect()
}

fn check_of<X: Element>(case: &Case, on: &On<'_>) -> Result<f64, String> {
    let (t, v, e) = (case.dim("T"), case.dim("V"), case.dim("E"));
    if case.pass == Pass::Forward {
        let tables = [(1, v), (2, 2), (3, 512)].map(|(seed, rows)| uniform::<f32>(seed, rows * e, 1.0));
        let ids = [ids(4, t, v), ids(5, t, 2), (0..t).map(|t| t as u32 % 512).collect()];
        let mut out = Guarded::<X>::poisoned(t * e);
        let lookups = [0, 1, 2].map(|k| Lookup { ids: &ids[k], table: &tables[k] });
        let one = case.variant == "sum1";
        match on {
            On::Cpu(cpu) if one => forward(cpu, e, [lookups[0]], &mut out),
            On::Cpu(cpu) => forward(cpu, e, lookups, &mut out),
            On::Simulator(sm) if one => simulate_forward(*sm, e, [lookups[0]], &mut out[..])?,
            On::Simulator(sm) => simulate_forward(*sm, e, lookups, &mut out[..])?,
        }
        out.intact()?;
        let count = if one { 1 } else { 3 };
        let naive = reference::forward::<f32>(e, &[0, 1, 2].map(|k| (&ids[k][..], &tables[k][..]))[..count]);
        let wide = [0, 1, 2].map(|k| widen::<f64, f32>(&tables[k]));
        let exact = reference::forward::<f64>(e, &[0, 1, 2].map(|k| (&ids[k][..], &wide[k][..]))[..count]);
        return within("out", &out, &store::<X>(&naive), &exact);
    }
    let (ids, dout, before) = (ids(4, t, v), uniform::<X>(5, t * e, 1.0), uniform::<f32>(6, v * e, 1.0));
    let mut dtable = Guarded::new(&before);
    match on {
        On::Cpu(cpu) => {
            let mut scratch = vec![u32::MAX; backward_scratch_len(t, v)];
            backward(cpu, e, &ids, &dout, &mut dtable, &mut scratch);
        }
        On::Simulator(sm) => simulate_backward(*sm, e, &ids, &dout, &mut dtable)?,
    }
    dtable.intact()?;
    let naive = reference::backward::<f32>(e, &ids, &widen(&dout), &before);
    within("dtable", &dtable, &naive, &reference::backward::<f64>(e, &ids, &widen(&dout), &widen(&before)))
}
