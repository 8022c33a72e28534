//! Weight gradients of a layer applied several times, taken as one product, against those taken one by one and f64.
use super::layer_tests::{H, NAMES, OFFSETS, T, exact_results, layer, parameters, results};
use super::{encoder_layer::traffic, gradient_check::*, *};
use crate::{WeightGradients, shared_tests::*};

const TIMES: usize = 3;

/// The layer, [`TIMES`] times.
fn repeated(tape: &Tape<'_>, x: Var, p: &[ParamId], offsets: &[u32], rate: f32) -> Result<Var> {
    let layer = layer(p, Activation::GeluTanh, rate, Recompute::None);
    let sequences = Sequences::new(tape, offsets)?;
    let applications = SharedLayerBackward::new(tape, &layer, TIMES, x.shape()[0], x.dtype())?;
    (0..TIMES).try_fold(x, |x, _| repeated_encoder_layer(tape, &x, &sequences, &layer, &applications))
}

#[test]
fn joined_gradients_agree_with_f64_as_well_as_those_one_by_one() {
    let (x, params) = (values(1, T * H, 1.0), parameters());
    for isa in Isa::real() {
        for rate in [0.0, 0.25] {
            let exact = exact_results(&x, &params, Activation::GeluTanh, rate, TIMES);
            let run = |threads, how| {
                results(isa, threads, how, &x, &params, |tape, x, p| repeated(tape, x.clone(), p, &OFFSETS, rate))
            };
            let apart = run(1, WeightGradients::PerUse);
            let case = format!("{}, dropout {rate}", isa.kind());
            let bound = apart.bound(&exact, 1e-4, &case);
            let joined = run(1, WeightGradients::Fused);
            joined.within(bound, &exact, &case);
            for same in [0, 1] {
                assert!(joined.parts[same] == apart.parts[same], "{} depends on how weights are summed", NAMES[same]);
            }
            for threads in [1, 2, 5] {
                assert!(joined.parts == run(threads, WeightGradients::Fused).parts, "{threads} threads change bits");
            }
        }
    }
}

/// Output and gradients of all parameters on `device`.
fn run(device: &Device, store: &ParamStore, p: &[ParamId], dtype: DType, how: WeightGradients) -> [Vec<f32>; 2] {
    let mut workspace = Workspace::new(device.clone());
    workspace.arena().set_poison(true);
    workspace.set_weight_gradients(how);
    let w = |count| values(2, count, 1.0);
    let function = |tape: &Tape<'_>, x: &[Var], p: &[ParamId]| repeated(tape, x[0].clone(), p, &OFFSETS, 0.25);
    let x = [(vec![T, H], values(1, T * H, 1.0))];
    let (y, _, gradients) = differentiate(&mut workspace, dtype, &x, (store, p), w, &function);
    [y, gradients.tensor().to_vec().unwrap()]
}

/// In bf16 too the products sum in f32, so both ways differ in the order of f32 sums alone.
#[test]
fn on_a_gpu_both_ways_agree() {
    let (store, p) = store(&cpu(1), &parameters());
    for dtype in [DType::F32, DType::Bf16] {
        for device in [Device::Cpu(cpu(1)), Device::Cuda(gpu((8, 0))), Device::Cuda(gpu((9, 0)))] {
            let case = format!("{dtype} on {device:?}");
            let run = |how| run(&device, &store, &p, dtype, how);
            let (wanted, joined) = (run(WeightGradients::PerUse), run(WeightGradients::Fused));
            assert_eq!(wanted[0], joined[0], "{case}: the output has nothing to do with it");
            close(&case, &joined[1], &wanted[1], 0.5f32.powi(19));
            assert_eq!(joined, run(WeightGradients::Fused), "{case}: two runs differ");
        }
    }
}

/// A workspace whose step of `tokens` rows is planned; whether it joins, and the bytes of its block.
fn planned(device: Device, tokens: usize, how: WeightGradients) -> (bool, usize) {
    let (store, p) = store(&cpu(1), &parameters());
    let mut workspace = Workspace::new(device.clone());
    workspace.set_weight_gradients(how);
    let mut gradients = store.gradients(&device).unwrap();
    let mut step = |workspace: &mut Workspace, plan, tokens: usize| -> Result<()> {
        let tape = workspace.train(&store, plan);
        let x = tape.input([tokens, H], &values(1, tokens * H, 1.0))?;
        let x = repeated(&tape, x, &p, &[0, tokens as u32], 0.0)?;
        tape.backward(&sum(&tape, &x)?, &mut gradients).map(|_| ())
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
    let small = |memory| Device::Cuda(Gpu::new(SimulatedDriver::new((8, 0)).with_memory(memory), cpu(1)).unwrap());
    let (joins, block) = planned(small(1 << 30), 4, WeightGradients::Planned);
    assert!(joins);
    let (apart, smaller) = planned(small(1 << 30), 4, WeightGradients::PerUse);
    assert!(!apart && smaller < block, "{smaller} bytes apart, {block} joined");
    assert!(!planned(small(1 << 30), 5, WeightGradients::Planned).0, "too many tokens");
    assert!(planned(small(1 << 30), 5, WeightGradients::Fused).0, "asked for");
    assert!(!planned(small(2 * smaller as u64), 4, WeightGradients::Planned).0, "not enough memory");
    assert!(!planned(Device::Cpu(cpu(1)), 4, WeightGradients::Planned).0, "a processor gains nothing by it");
    assert!(planned(Device::Cpu(cpu(1)), 4, WeightGradients::Fused).0, "asked for");
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
        planned(Device::Cuda(gpu.clone()), 4, how);
        gpu.launches() / 2
    });
    println!("{nodes:?}");
    // Four products, four sums of a bias and those of two normalizations less for each application but one; a copy of x more.
    assert_eq!(nodes[0] - nodes[1], 10 * (TIMES as u64 - 1) - 1, "{nodes:?}");
}

#[test]
fn what_cannot_be_joined_is_refused() {
    let (store, p) = store(&cpu(1), &parameters());
    let mut workspace = Workspace::new(Device::Cpu(cpu(1)));
    workspace.set_weight_gradients(WeightGradients::Fused);
    let mut gradients = store.gradients(workspace.device()).unwrap();
    let layer = layer(&p, Activation::GeluTanh, 0.0, Recompute::None);
    type Step<'a> = &'a mut dyn FnMut(&Tape<'_>, &Var, &Sequences, &SharedLayerBackward) -> Result<Var>;
    let mut attempt = |f: Step<'_>| {
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
    let cases: [(Step<'_>, &str); 4] = [
        (&mut |t, x, s, a| again(t, &t.detach(&again(t, x, s, a)?), s, a), "must be the output of the one before"),
        (&mut |t, x, s, a| again(t, &again(t, &again(t, x, s, a)?, s, a)?, s, a), "2 applications were announced"),
        (
            &mut |t, x, s, a| {
                let first = held.insert(again(t, x, s, a)?);
                again(t, first, s, a)
            },
            "is still held",
        ),
        (
            &mut |t, x, _, a| again(t, &slice(t, x, 0, 0..3)?, &Sequences::new(t, &[0, 3])?, a),
            "9 rows of f32 were announced",
        ),
    ];
    for (step, expected) in cases {
        refused(attempt(step), expected);
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
