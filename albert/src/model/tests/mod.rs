pub(crate) mod reference;

use engine::{Cpu, Device, Gradients, Isa, ParamStore, Workspace, philox};
use reference::{Reference, Values};

use super::*;
use crate::config::{Activation, EmbeddingMap, Sharing};
use crate::data::Batch;
use crate::pretrain::{Denominators, LossWeights, pretraining_loss};

const WEIGHTS: LossWeights = LossWeights { mlm: 1.0, sentence: 1.0 };
const STRATEGIES: [Sharing; 5] = [Sharing::All, Sharing::Attention, Sharing::Ffn, Sharing::None, Sharing::Groups(2)];

pub(super) fn small(sharing: Sharing) -> AlbertConfig {
    let config = crate::config::tests::small(37, [10, 12, 20], [3, 3], 16);
    AlbertConfig { initializer_range: 0.2, sharing, ..config }
}

fn cpu() -> Cpu {
    Cpu::new(Isa::choose().unwrap(), 1).unwrap()
}

/// A ragged batch of made-up ids; about every fifth token is masked.
pub(super) fn batch(config: &AlbertConfig, lengths: &[u32], seed: u64) -> Batch {
    let mut stream = philox::Stream::new(seed, [1, 2, 3]);
    let mut batch = Batch { cu_seqlens: vec![0], ..Batch::default() };
    for &length in lengths {
        let start = batch.ids.len() as u32;
        for at in 0..length {
            batch.ids.push(stream.below(config.vocab_size as u32));
            batch.segments.push(u32::from(at > length / 2));
            batch.positions.push(at);
            if at % 5 == 1 {
                batch.masked_positions.push(start + at);
                batch.masked_labels.push(stream.below(config.vocab_size as u32));
            }
        }
        batch.cu_seqlens.push(batch.ids.len() as u32);
        batch.sop_labels.push(stream.below(2));
    }
    batch
}

/// Moves biases and gains away from 0 and 1, so that a missing one is detected.
fn disturb(params: &mut ParamStore) {
    let mut stream = philox::Stream::new(99, [7, 7, 7]);
    for value in params.all_values_mut().unwrap() {
        *value += 0.1 * stream.normal() as f32;
    }
}

struct Run {
    loss: f32,
    gradients: Gradients,
}

fn run(model: &Model, params: &ParamStore, batch: &Batch, options: &ForwardOptions, weights: LossWeights) -> Run {
    let mut workspace = Workspace::new(Device::Cpu(cpu()));
    let mut gradients = params.gradients(workspace.device()).unwrap();
    let tape = workspace.train(params, None);
    let losses = pretraining_loss(model, &tape, batch, options, weights, Denominators::of(batch)).unwrap();
    let total = losses.total.unwrap();
    let loss = tape.item(&total).unwrap();
    tape.backward(&total, &mut gradients).unwrap();
    Run { loss, gradients }
}

/// Checks that fused and composed blocks compute gradients that differ only by rounding.
fn assert_near(params: &ParamStore, fused: &Run, composed: &Run, what: &str) {
    for id in params.ids() {
        let (fused, composed) = (fused.gradients.get(id), composed.gradients.get(id));
        let scale = composed.iter().fold(1e-3f32, |scale, x| scale.max(x.abs()));
        for (a, b) in fused.iter().zip(composed) {
            assert!((a - b).abs() < 2e-5 * scale, "{what}, {}: {a} fused, {b} composed", params.name(id));
        }
    }
}

fn values(params: &ParamStore) -> Values {
    let of = |id| (params.name(id).to_owned(), params.values(id).iter().map(|&x| f64::from(x)).collect());
    params.ids().map(of).collect()
}

fn configurations() -> Vec<AlbertConfig> {
    let mut all: Vec<_> = STRATEGIES.into_iter().map(small).collect();
    all.push(AlbertConfig { inner_group_num: 2, hidden_act: Activation::GeluErf, ..small(Sharing::Groups(2)) });
    all.push(AlbertConfig { embedding_size: 12, hidden_act: Activation::Relu, ..small(Sharing::None) });
    all.push(AlbertConfig { embedding_size: 12, embedding_map: EmbeddingMap::Always, ..small(Sharing::All) });
    all
}

/// The whole model against a plain f64 program, and its gradient against the slope of that program along a random
/// direction, for every sharing strategy and for each loss separately.
#[test]
fn loss_and_gradient_agree_with_f64() {
    let weights = [(0.7, 1.3), (1.0, 0.0), (0.0, 1.3)].into_iter().cycle();
    for (config, (mlm_weight, sentence_weight)) in configurations().into_iter().zip(weights) {
        let (model, mut params) = Model::new(&config, Heads::PRE_TRAINING, &cpu(), 5).unwrap();
        disturb(&mut params);
        let batch = batch(&config, &[7, 1, 16, 5], 3);
        let weights = LossWeights { mlm: mlm_weight, sentence: sentence_weight };
        let composed = ForwardOptions { blocks: Blocks::Reference, ..ForwardOptions::EVALUATION };
        let other = run(&model, &params, &batch, &composed, weights);
        let run = run(&model, &params, &batch, &ForwardOptions::EVALUATION, weights);
        let what = format!("{} E {} {:?} {weights:?}", config.sharing, config.embedding_size, config.hidden_act);
        assert_near(&params, &run, &other, &what);
        let at = values(&params);
        let loss = |values: &Values| {
            let [mlm, sentence] = Reference { config: &config, values }.losses(&batch);
            f64::from(mlm_weight) * mlm + f64::from(sentence_weight) * sentence
        };
        let expected = loss(&at);
        let bound = 1e-5 * expected.abs();
        assert!((f64::from(run.loss) - expected).abs() < bound, "{what}: loss {}, expected {expected}", run.loss);

        let mut stream = philox::Stream::new(17, [0, 0, 1]);
        for id in params.ids() {
            // One direction for each parameter, so that the failing one is named.
            let direction: Vec<f64> = params.values(id).iter().map(|_| stream.normal()).collect();
            let moved = |h: f64| {
                let mut moved = at.clone();
                let values = moved.get_mut(params.name(id)).unwrap();
                values.iter_mut().zip(&direction).for_each(|(x, d)| *x += h * d);
                loss(&moved)
            };
            let h = 1e-5;
            let slope = (moved(h) - moved(-h)) / (2.0 * h);
            let products = || run.gradients.get(id).iter().zip(&direction).map(|(&g, d)| f64::from(g) * d);
            let got: f64 = products().sum();
            // f32 rounding of terms that cancel in the sum, and the second-order error of the slope.
            let bound = 2e-5 * products().map(f64::abs).sum::<f64>() + 1e-6;
            assert!((got - slope).abs() < bound, "{what}, {}: {got}, expected {slope} ± {bound:e}", params.name(id));
        }
    }
}

/// Both use the same masks: those of attention for one sequence (the composed block has other masks for later ones),
/// all other masks for any batch; for every recomputation in backward.
#[test]
fn fused_and_composed_blocks_drop_the_same_elements() {
    for (lengths, attention) in [(&[13][..], 0.3), (&[7, 1, 16, 5], 0.0)] {
        let rates = |sharing| AlbertConfig {
            hidden_dropout_prob: 0.2,
            attention_probs_dropout_prob: attention,
            ..small(sharing)
        };
        let config = rates(Sharing::Groups(2));
        let (model, mut params) = Model::new(&config, Heads::PRE_TRAINING, &cpu(), 5).unwrap();
        disturb(&mut params);
        let batch = batch(&config, lengths, 3);
        let of = |blocks| {
            let options = ForwardOptions { dropout: Some(21), blocks, ..ForwardOptions::EVALUATION };
            run(&model, &params, &batch, &options, WEIGHTS)
        };
        let composed = of(Blocks::Reference);
        let undropped = run(&model, &params, &batch, &ForwardOptions::EVALUATION, WEIGHTS);
        assert!((composed.loss - undropped.loss).abs() > 1e-3, "nothing was dropped: {}", composed.loss);
        for recompute in [Recompute::None, Recompute::Cheap, Recompute::Layer] {
            let fused = of(Blocks::Fused(recompute));
            let bound = 1e-5 * composed.loss;
            assert!((fused.loss - composed.loss).abs() < bound, "{lengths:?}: {} and {}", fused.loss, composed.loss);
            assert_near(&params, &fused, &composed, &format!("{lengths:?}, {recompute:?}"));
        }
    }
}

/// Storage in bfloat16 rounds to 8 bits; statistics, parameters and gradients stay f32.
#[test]
fn bfloat16_activations_change_the_loss_by_rounding_alone() {
    let config = small(Sharing::All);
    let (model, params) = Model::new(&config, Heads::PRE_TRAINING, &cpu(), 5).unwrap();
    let batch = batch(&config, &[16, 9, 12, 16], 3);
    let of = |dtype| {
        let options = ForwardOptions { dtype, ..ForwardOptions::EVALUATION };
        run(&model, &params, &batch, &options, WEIGHTS)
    };
    let (wide, narrow) = (of(DType::F32), of(DType::Bf16));
    assert!((wide.loss - narrow.loss).abs() < 0.02 * wide.loss, "{} and {}", wide.loss, narrow.loss);
    assert_ne!(wide.loss, narrow.loss, "nothing was rounded");
    let norm = |run: &Run| run.gradients.all().iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
    let products = wide.gradients.all().iter().zip(narrow.gradients.all()).map(|(&a, &b)| f64::from(a) * f64::from(b));
    let cosine = products.sum::<f64>() / (norm(&wide) * norm(&narrow));
    assert!(cosine > 0.999, "the gradients point apart: cosine {cosine}");
}

#[test]
fn keys_of_steps_and_micro_batches_differ() {
    let mut keys: Vec<u64> = [1, 2]
        .into_iter()
        .flat_map(|seed| (0..20).flat_map(move |step| (0..5).map(move |micro| dropout_key(seed, step << 30, micro))))
        .collect();
    let count = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), count);
}

#[test]
fn refuses_batches_that_do_not_fit() {
    let config = small(Sharing::All);
    let (model, params) = Model::new(&config, Heads::PRE_TRAINING, &cpu(), 5).unwrap();
    let good = batch(&config, &[7, 3], 3);
    type Break = fn(&mut Batch);
    let cases: [(Break, &str); 2] = [
        (|b| b.positions[1] = 16, "there are only 16 rows"),
        (|b| b.cu_seqlens[1] = 0, "must rise from 0 to the 10 tokens"),
    ];
    for (change, expected) in cases {
        let mut batch = good.clone();
        change(&mut batch);
        let mut workspace = Workspace::new(Device::Cpu(cpu()));
        let tape = workspace.train(&params, None);
        let denominators = Denominators::of(&good);
        let error =
            pretraining_loss(&model, &tape, &batch, &ForwardOptions::EVALUATION, WEIGHTS, denominators).unwrap_err();
        assert!(error.to_string().contains(expected), "{error} does not contain {expected:?}");
    }
}
