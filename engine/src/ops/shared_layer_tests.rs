//! Weight gradients of a layer applied several times, taken as one product, against those taken one by one and f64.
use super::{
    encoder_layer::traffic,
    gradient_check::{store, values},
    layer_tests::{H, NAMES, OFFSETS, Results, T, exact_results, layer, parameters, results},
    *,
};
use crate::{
    Device, EngineError, ParamId, ParamStore, Result, Tape, Tensor, Var, WeightGradients, Workspace,
    device::{Gpu, Graphs, simulated::SimulatedDriver},
};
use kernels::{Cpu, Isa};

const TIMES: usize = 3;

fn cpu() -> Cpu {
    Cpu::new(Isa::choose().unwrap(), 1).unwrap()
}

fn gpu(capability: (u32, u32)) -> Gpu {
    Gpu::new(SimulatedDriver::new(capability), cpu()).unwrap()
}

/// The layer, [`TIMES`] times.
fn repeated(tape: &Tape<'_>, x: &Var, p: &[ParamId], rate: f32) -> Result<Var> {
    let layer = layer(p, Activation::GeluTanh, rate, Recompute::None);
    let sequences = Sequences::new(tape, &OFFSETS)?;
    let applications = SharedLayerBackward::new(tape, &layer, TIMES, T, x.dtype())?;
    let mut x = x.clone();
    for _ in 0..TIMES {
        x = repeated_encoder_layer(tape, &x, &sequences, &layer, &applications)?;
    }
    Ok(x)
}

#[test]
fn joined_gradients_agree_with_f64_as_well_as_those_one_by_one() {
    let (x, params) = (values(1, T * H, 1.0), parameters());
    for isa in Isa::real() {
        for rate in [0.0, 0.25] {
            let exact = exact_results(&x, &params, Activation::GeluTanh, rate, TIMES);
            let run = |threads, how| results(isa, threads, how, &x, &params, |tape, x, p| repeated(tape, x, p, rate));
            let apart = run(1, WeightGradients::PerUse);
            let worst = (0..NAMES.len()).map(|i| apart.error(&exact, i) / exact.scale(i)).fold(0.0, f64::max);
            let bound = 2.0 * worst + f64::from(f32::EPSILON);
            assert!(bound < 1e-4, "{}: one by one they are off by {worst:.2e}, so nothing is checked", isa.kind());
            let joined = run(1, WeightGradients::Fused);
            for (i, name) in NAMES.iter().enumerate() {
                let (error, bound) = (joined.error(&exact, i), bound * exact.scale(i));
                assert!(error <= bound, "{name}, {}, dropout {rate}: {error:.2e} over {bound:.2e}", isa.kind());
            }
            for same in [0, 1] {
                assert!(joined.parts[same] == apart.parts[same], "{} depends on how weights are summed", NAMES[same]);
            }
            for threads in [1, 2, 5] {
                let again: Results = run(threads, WeightGradients::Fused);
                assert!(joined.parts == again.parts, "{threads} threads change bits");
            }
        }
    }
}

/// Output and gradients of all parameters on `device`.
fn run(device: &Device, store: &ParamStore, p: &[ParamId], dtype: DType, how: WeightGradients) -> [Vec<f32>; 2] {
    let mut workspace = Workspace::new(device.clone());
    workspace.arena().set_poison(true);
    workspace.set_weight_gradients(how);
    let mut gradients = store.gradients(device).unwrap();
    let tape = workspace.train(store, None);
    let given = |seed| {
        let values = values(seed, T * H, 1.0);
        let mut tensor = tape.alloc([T, H], dtype).unwrap();
        match dtype {
            DType::F32 => tensor.copy_from(&values).unwrap(),
            _ => tensor.copy_from(&values.iter().map(|&x| half::bf16::from_f32(x)).collect::<Vec<_>>()).unwrap(),
        }
        tensor
    };
    let y = repeated(&tape, &tape.leaf(given(1)).unwrap(), p, 0.25).unwrap();
    tape.backward_from(&y, given(2), &mut gradients).unwrap();
    [y.value().to_vec().unwrap(), gradients.tensor().to_vec().unwrap()]
}

/// In bf16 too the products sum in f32, so both ways differ in the order of f32 sums alone.
#[test]
fn on_a_gpu_both_ways_agree() {
    let (store, p) = store(&cpu(), &parameters());
    for dtype in [DType::F32, DType::Bf16] {
        let [wanted, joined] = [WeightGradients::PerUse, WeightGradients::Fused]
            .map(|how| run(&Device::Cpu(cpu()), &store, &p, dtype, how));
        gpu_tests::close(&format!("{dtype} on the processor"), &joined[1], &wanted[1], 0.5f32.powi(19));
        for capability in [(8, 0), (9, 0)] {
            let device = Device::Cuda(gpu(capability));
            let [wanted, joined] =
                [WeightGradients::PerUse, WeightGradients::Fused].map(|how| run(&device, &store, &p, dtype, how));
            assert_eq!(wanted[0], joined[0], "the output has nothing to do with it");
            gpu_tests::close(&format!("{dtype} on {capability:?}"), &joined[1], &wanted[1], 0.5f32.powi(19));
            let again = run(&device, &store, &p, dtype, WeightGradients::Fused);
            assert_eq!(joined, again, "{dtype} on {capability:?}: two runs differ");
        }
    }
}

/// A workspace whose step of `tokens` rows is planned; whether it joins, and the bytes of its block.
fn planned(device: Device, tokens: usize, how: WeightGradients) -> (bool, usize) {
    let (store, p) = store(&cpu(), &parameters());
    let mut workspace = Workspace::new(device.clone());
    workspace.set_weight_gradients(how);
    let mut gradients = store.gradients(&device).unwrap();
    let mut step = |workspace: &mut Workspace, plan, tokens: usize| -> Result<()> {
        let tape = workspace.train(&store, plan);
        let layer = layer(&p, Activation::GeluTanh, 0.0, Recompute::None);
        let sequences = Sequences::new(&tape, &[0, tokens as u32])?;
        let applications = SharedLayerBackward::new(&tape, &layer, TIMES, tokens, DType::F32)?;
        let mut x = tape.input([tokens, H], &values(1, tokens * H, 1.0))?;
        for _ in 0..TIMES {
            x = repeated_encoder_layer(&tape, &x, &sequences, &layer, &applications)?;
        }
        tape.backward(&sum(&tape, &x)?, &mut gradients)?;
        Ok(())
    };
    workspace.plan("step", |workspace| step(workspace, None, tokens)).unwrap();
    let joins = workspace.fuses_weight_gradients("step");
    for tokens in [tokens, tokens.div_ceil(2)] {
        step(&mut workspace, Some("step"), tokens).unwrap();
    }
    let report = workspace.arena().report();
    assert_eq!((report.misses, report.heap_peak), (0, 0), "{tokens} tokens, {how:?}");
    (joins, report.block)
}

/// Saved are 8·2·(3·36 + 36 + 2·60) bytes, added 2·4·3·(18 + 6 + 10 + 6) a token: 4 tokens are worth it, 5 are not.
#[test]
fn a_plan_joins_where_fewer_bytes_are_moved_and_the_memory_is_there() {
    let small = |memory| Device::Cuda(Gpu::new(SimulatedDriver::new((8, 0)).with_memory(memory), cpu()).unwrap());
    let (joins, block) = planned(small(1 << 30), 4, WeightGradients::Planned);
    assert!(joins);
    let (apart, smaller) = planned(small(1 << 30), 4, WeightGradients::PerUse);
    assert!(!apart && smaller < block, "{smaller} bytes apart, {block} joined");
    assert!(!planned(small(1 << 30), 5, WeightGradients::Planned).0, "too many tokens");
    assert!(planned(small(1 << 30), 5, WeightGradients::Fused).0, "asked for");
    assert!(!planned(small(2 * smaller as u64), 4, WeightGradients::Planned).0, "not enough memory");
    assert!(!planned(Device::Cpu(cpu()), 4, WeightGradients::Planned).0, "a processor gains nothing by it");
    assert!(planned(Device::Cpu(cpu()), 4, WeightGradients::Fused).0, "asked for");
}

/// ALBERT-base: few tokens and many, not those whose dY a cache would hold; xxlarge until a matrix has 2³² elements.
#[test]
fn what_is_moved_less_and_more_depends_on_the_cache() {
    let of = |h: usize, tokens| traffic(&[(3 * h, h), (h, h), (4 * h, h), (h, 4 * h)], 12, tokens, DType::Bf16);
    let joins = |h, tokens| of(h, tokens).is_some_and(|traffic| traffic.saved > traffic.added);
    let (h, tokens) = (768, 512);
    let wanted = crate::tape::Traffic { saved: 8 * 11 * 12 * h * h, added: 4 * 12 * tokens * 9 * h };
    assert_eq!(of(h as usize, tokens as usize), Some(wanted));
    assert_eq!(
        [512, 1800, 2000, 2400, 2500, 32_768].map(|tokens| joins(768, tokens)),
        [true, true, false, false, true, true]
    );
    assert_eq!([512, 8192, 20_000].map(|tokens| joins(4096, tokens)), [true; 3]);
    assert_eq!(of(4096, 32_768), None);
}

#[test]
fn joining_saves_launches() {
    let nodes = [WeightGradients::PerUse, WeightGradients::Fused].map(|how| {
        let gpu = gpu((8, 0));
        gpu.set_graphs(Graphs::On);
        planned(Device::Cuda(gpu.clone()), 4, how);
        gpu.graph_report().nodes / 2
    });
    println!("{nodes:?}");
    // Four products and four sums of a bias less for each application but one; a copy of x more, and without dropout one
    // of the gradient of each branch.
    assert_eq!(nodes[0] - nodes[1], 8 * (TIMES as u64 - 1) - 1 - 2 * TIMES as u64, "{nodes:?}");
}

#[test]
fn what_cannot_be_joined_is_refused() {
    let (store, p) = store(&cpu(), &parameters());
    let mut workspace = Workspace::new(Device::Cpu(cpu()));
    workspace.set_weight_gradients(WeightGradients::Fused);
    let mut gradients = store.gradients(workspace.device()).unwrap();
    let layer = layer(&p, Activation::GeluTanh, 0.0, Recompute::None);
    let mut attempt = |f: &mut dyn FnMut(&Tape<'_>, &Var, &Sequences, &SharedLayerBackward) -> Result<Var>| {
        let tape = workspace.train(&store, None);
        let x = tape.leaf(Tensor::from_slice([T, H], &values(1, T * H, 1.0)).unwrap())?;
        let applications = SharedLayerBackward::new(&tape, &layer, 2, T, DType::F32)?;
        let sequences = Sequences::new(&tape, &OFFSETS)?;
        let y = f(&tape, &x, &sequences, &applications)?;
        tape.backward(&sum(&tape, &y)?, &mut gradients).map(|_| ())
    };
    let again = |tape: &Tape<'_>, x: &Var, sequences: &Sequences, applications: &SharedLayerBackward| {
        repeated_encoder_layer(tape, x, sequences, &layer, applications)
    };
    let mut held = None;
    type Step<'a> = &'a mut dyn FnMut(&Tape<'_>, &Var, &Sequences, &SharedLayerBackward) -> Result<Var>;
    let cases: [(Step<'_>, &str); 4] = [
        (&mut |t, x, s, a| again(t, &t.detach(&again(t, x, s, a)?), s, a), "must be the output of the one before"),
        (&mut |t, x, s, a| again(t, &again(t, &again(t, x, s, a)?, s, a)?, s, a), "2 applications were announced"),
        (
            &mut |t, x, s, a| {
                let y = again(t, x, s, a)?;
                let z = again(t, &y, s, a)?;
                held = Some(y);
                Ok(z)
            },
            "is still held",
        ),
        (
            &mut |t, x, _, a| again(t, &slice(t, x, 0, 0..3)?, &Sequences::new(t, &[0, 3])?, a),
            "9 rows of f32 were announced",
        ),
    ];
    for (step, expected) in cases {
        let error: EngineError = attempt(step).unwrap_err();
        assert!(error.to_string().contains(expected), "got \"{error}\", expected \"{expected}\"");
    }
    // Backward from what an earlier application gave has fewer rows to sum.
    let mut first_of = |announced: usize| {
        let tape = workspace.train(&store, None);
        let x = tape.leaf(Tensor::from_slice([T, H], &values(1, T * H, 1.0)).unwrap()).unwrap();
        let applications = SharedLayerBackward::new(&tape, &layer, announced, T, DType::F32).unwrap();
        let y = again(&tape, &x, &Sequences::new(&tape, &OFFSETS).unwrap(), &applications).unwrap();
        let loss = sum(&tape, &mul(&tape, &y, &y).unwrap()).unwrap();
        drop(y);
        gradients.clear().unwrap();
        tape.backward(&loss, &mut gradients).unwrap();
        gradients.all().to_vec()
    };
    assert_eq!(first_of(1), first_of(2));
}
