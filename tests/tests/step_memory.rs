//! Memory of a training step: planned before the first one, and no large allocation after it.

use albert_tests::allocator::{Counting, large_requests, live_and_peak, reset_peak};
use engine::ops::{self, Activation, Attention, Dropout, EncoderLayer, LayerNorm, LayerParams, Recompute, Sequences};
use engine::optim::{AdamConfig, Optimizer, OptimizerKind, ParamOptions, clip_global_norm};
use engine::{Cpu, DType, Device, Gradients, Init, Isa, ParamBuilder, ParamId, ParamStore, Result, Workspace};
use std::{panic::resume_unwind, thread};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const H: usize = 64;
const F: usize = 256;
const V: usize = 1000;
const LAYERS: usize = 4;
const BUDGET: u32 = 1024;

struct Network {
    words: ParamId,
    bias: ParamId,
    layer: EncoderLayer,
}

fn network(cpu: &Cpu, recompute: Recompute) -> (Network, ParamStore) {
    let mut builder = ParamBuilder::new();
    let mut add = |name: &str, shape: &[usize], init| builder.add(name, shape, init).unwrap();
    let normal = Init::TruncatedNormal(0.02);
    let words = add("words", &[V, H], normal);
    let bias = add("bias", &[V], Init::Zeros);
    let mut norm = |name: &str| {
        let gain = add(&format!("{name}.gain"), &[H], Init::Ones);
        LayerNorm { gain, bias: add(&format!("{name}.bias"), &[H], Init::Zeros), eps: 1e-12 }
    };
    let (attention_norm, output_norm) = (norm("norm1"), norm("norm2"));
    let dropout = |site| Some(Dropout { seed: 3, site, rate: 0.1 });
    let params = LayerParams {
        qkv_weight: ["q", "k", "v"].map(|name| add(name, &[H, H], normal)),
        qkv_bias: ["qb", "kb", "vb"].map(|name| add(name, &[H], Init::Zeros)),
        attention_weight: add("o", &[H, H], normal),
        attention_bias: add("ob", &[H], Init::Zeros),
        attention_norm,
        ffn_weight: add("f", &[F, H], normal),
        ffn_bias: add("fb", &[F], Init::Zeros),
        ffn_output_weight: add("g", &[H, F], normal),
        ffn_output_bias: add("gb", &[H], Init::Zeros),
        output_norm,
    };
    let layer = EncoderLayer {
        params,
        attention: Attention { dropout: dropout(1), ..Attention::new(4, H / 4) },
        activation: Activation::GeluTanh,
        attention_output: dropout(2),
        ffn_output: dropout(3),
        recompute,
    };
    (Network { words, bias, layer }, builder.build(cpu, 1).unwrap())
}

struct Batch {
    ids: Vec<u32>,
    offsets: Vec<u32>,
    masked: Vec<u32>,
    labels: Vec<u32>,
}

fn batch(lengths: &[u32]) -> Batch {
    let tokens: u32 = lengths.iter().sum();
    let offsets = std::iter::once(0).chain(lengths.iter().scan(0, |sum, n| {
        *sum += n;
        Some(*sum)
    }));
    let masked: Vec<u32> = (0..tokens).filter(|t| t % 7 == 3).collect();
    Batch {
        ids: (0..tokens).map(|t| t * 37 % V as u32).collect(),
        offsets: offsets.collect(),
        labels: masked.iter().map(|t| t * 11 % V as u32).collect(),
        masked,
    }
}

fn step(
    workspace: &mut Workspace,
    plan: Option<&str>,
    network: &Network,
    params: &ParamStore,
    batch: &Batch,
    gradients: &mut Gradients,
) -> Result<f32> {
    let tape = workspace.train(params, plan);
    let ids = tape.input([batch.ids.len()], &batch.ids)?;
    let sequences = Sequences::new(&tape, &batch.offsets)?;
    let mut x = ops::embedding_sum(&tape, &[(&ids, network.words)], DType::F32)?;
    for _ in 0..LAYERS {
        x = ops::encoder_layer(&tape, &x, &sequences, &network.layer)?;
    }
    let masked = tape.input([batch.masked.len()], &batch.masked)?;
    let labels = tape.input([batch.labels.len()], &batch.labels)?;
    let h = ops::gather_rows(&tape, &x, &masked)?;
    let denominator = batch.labels.len().max(1) as f32;
    let result = ops::projected_cross_entropy(&tape, &h, network.words, network.bias, &labels, denominator)?;
    tape.backward(&result.loss, gradients)?;
    tape.item(&result.loss)
}

/// Batches within the budget, a full one first.
fn batches() -> Vec<Batch> {
    // As many tokens and sequences as the budget allows.
    let full: Vec<u32> = [[128; 7].as_slice(), &[1; 128]].concat();
    assert_eq!(full.iter().sum::<u32>(), BUDGET);
    [&full[..], &[100, 30, 1, 128, 77], &[1], &[5; 100], &[], &full].map(batch).into()
}

#[test]
fn steps_ask_the_heap_for_nothing_large_and_memory_is_as_planned() {
    // Both pools live to the end, so that memory freed by one does not hide allocations of the other. The caller is one of
    // the threads and keeps its scratch, so each pool has its own caller.
    for cpu in [1, 2].map(|threads| Cpu::new(Isa::choose().unwrap(), threads).unwrap()).each_ref() {
        thread::scope(|scope| scope.spawn(|| check(cpu)).join()).unwrap_or_else(|panic| resume_unwind(panic));
    }
}

/// Runs steps on the threads of `cpu`; this thread is the caller.
fn check(cpu: &Cpu) {
    let threads = cpu.threads();
    // The threads keep their scratch, so only the first run allocates it.
    let mut first = true;
    for recompute in [Recompute::None, Recompute::Cheap, Recompute::Layer] {
        let (before, _) = live_and_peak();
        let (network, mut params) = network(cpu, recompute);
        let mut gradients = params.gradients(&Device::Cpu(cpu.clone())).unwrap();
        let rule = |_: &engine::param::ParamInfo| ParamOptions { weight_decay: true, trust_ratio: true };
        let mut lamb = Optimizer::new(&params, OptimizerKind::Lamb, AdamConfig::default(), rule).unwrap();
        let mut workspace = Workspace::new(Device::Cpu(cpu.clone()));
        let batches = batches();
        let plan = workspace
            .plan("train", |workspace| step(workspace, None, &network, &params, &batches[0], &mut gradients).map(drop))
            .unwrap();
        let fixed = 8 * params.len() + lamb.bytes() + params.packed_bytes();
        let predicted = plan.bytes() + fixed + if first { workspace.scratch_bytes() } else { 0 };
        assert!(plan.bytes() < plan.live_bytes() + plan.live_bytes() / 10, "{plan:?}");

        let mut losses = Vec::new();
        let mut train = |batch: &Batch| {
            gradients.clear().unwrap();
            cpu.enter(|| {
                let loss = step(&mut workspace, Some("train"), &network, &params, batch, &mut gradients).unwrap();
                losses.push(loss);
            });
            clip_global_norm(&mut gradients, 1.0, Some(1.0), 1).unwrap();
            lamb.step(&mut params, &gradients, 0.01).unwrap();
        };
        reset_peak();
        train(&batches[0]);
        let measured = live_and_peak().1 - before;
        first = false;
        let case = format!("{threads} threads, {recompute:?}");
        let ratio = measured as f64 / predicted as f64;
        assert!((0.95..=1.05).contains(&ratio), "{case}: {measured} bytes, {predicted} predicted");

        let (count, largest) = large_requests(|| batches.iter().for_each(&mut train));
        assert_eq!(count, 0, "{case}: {count} large requests, the largest of {largest} bytes");
        let report = workspace.arena().report();
        assert_eq!((report.misses, report.heap_peak), (0, 0), "{case}: {report:?}");
        assert!(losses.iter().all(|loss| loss.is_finite()), "{case}: {losses:?}");
        println!("{case}: {predicted} predicted, {measured} measured, step plan {plan:?}", plan = plan.bytes());
    }
}
