mod reference;

use std::collections::BTreeMap;

use engine::{Cpu, Device, Gradients, Isa, ParamStore, Workspace, philox};
use reference::Reference;

use super::*;
use crate::config::{Activation, EmbeddingMap, Sharing};
use crate::data::Batch;
use crate::pretrain::{Denominators, LossWeights, pretraining_loss};

const WEIGHTS: LossWeights = LossWeights { mlm: 1.0, sentence: 1.0 };
const STRATEGIES: [Sharing; 5] = [Sharing::All, Sharing::Attention, Sharing::Ffn, Sharing::None, Sharing::Groups(2)];

pub(super) fn small(sharing: Sharing) -> AlbertConfig {
    AlbertConfig {
        vocab_size: 37,
        embedding_size: 10,
        hidden_size: 12,
        num_hidden_layers: 3,
        num_attention_heads: 3,
        intermediate_size: 20,
        max_position_embeddings: 16,
        initializer_range: 0.2,
        sharing,
        ..AlbertConfig::preset("tiny").unwrap()
    }
}

fn cpu(threads: usize) -> Cpu {
    Cpu::new(Isa::choose().unwrap(), threads).unwrap()
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

/// Moves biases and gains away from 0 and 1, so that a forgotten one shows.
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

fn run(
    model: &Model,
    params: &ParamStore,
    batch: &Batch,
    options: &ForwardOptions,
    weights: LossWeights,
    denominators: Denominators,
    threads: usize,
) -> Run {
    let mut workspace = Workspace::new(Device::Cpu(cpu(threads)));
    let mut gradients = params.gradients(workspace.device()).unwrap();
    let tape = workspace.train(params, None);
    let losses = pretraining_loss(model, &tape, batch, options, weights, denominators).unwrap();
    let total = losses.total.unwrap();
    let loss = tape.item(&total).unwrap();
    tape.backward(&total, &mut gradients).unwrap();
    Run { loss, gradients }
}

fn values(params: &ParamStore) -> BTreeMap<String, Vec<f64>> {
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
/// direction, for every sharing strategy.
#[test]
fn loss_and_gradient_agree_with_f64() {
    for config in configurations() {
        let (model, mut params) = Model::new(&config, Heads::PRE_TRAINING, &cpu(1), 5).unwrap();
        disturb(&mut params);
        let batch = batch(&config, &[7, 1, 16, 5], 3);
        let denominators = Denominators::of(&batch);
        let weights = LossWeights { mlm: 0.7, sentence: 1.3 };
        let composed = ForwardOptions { blocks: Blocks::Reference, ..ForwardOptions::EVALUATION };
        let other = run(&model, &params, &batch, &composed, weights, denominators, 1);
        let run = run(&model, &params, &batch, &ForwardOptions::EVALUATION, weights, denominators, 1);
        for id in params.ids() {
            let (fused, composed) = (run.gradients.get(id), other.gradients.get(id));
            let scale = composed.iter().fold(1e-3f32, |scale, x| scale.max(x.abs()));
            for (a, b) in fused.iter().zip(composed) {
                assert!((a - b).abs() < 2e-5 * scale, "{}: {a} fused, {b} composed", params.name(id));
            }
        }
        let at = values(&params);
        let loss = |values: &BTreeMap<String, Vec<f64>>| {
            let [mlm, sentence] = Reference { config: &config, values }.losses(&batch);
            0.7 * mlm + 1.3 * sentence
        };
        let expected = loss(&at);
        let what = format!("{} E {} {:?}", config.sharing, config.embedding_size, config.hidden_act);
        let bound = 1e-5 * expected.abs();
        assert!((f64::from(run.loss) - expected).abs() < bound, "{what}: loss {}, expected {expected}", run.loss);

        let mut stream = philox::Stream::new(17, [0, 0, 1]);
        for id in params.ids() {
            // One direction for each parameter, so that a wrong one is named.
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
            // f32 rounding of the parts that cancel in the sum, and the second-order error of the slope.
            let bound = 2e-5 * products().map(f64::abs).sum::<f64>() + 1e-6;
            assert!((got - slope).abs() < bound, "{what}, {}: {got}, expected {slope} ± {bound:e}", params.name(id));
        }
    }
}

/// The same masks in both: attention's for one sequence (the composed block gives later ones masks of their own), the
/// others for any batch; and whatever backward recomputes.
#[test]
fn fused_and_composed_blocks_drop_the_same_elements() {
    for (lengths, attention) in [(&[13][..], 0.3), (&[7, 1, 16, 5], 0.0)] {
        let rates = |sharing| AlbertConfig {
            hidden_dropout_prob: 0.2,
            attention_probs_dropout_prob: attention,
            ..small(sharing)
        };
        let config = rates(Sharing::Groups(2));
        let (model, mut params) = Model::new(&config, Heads::PRE_TRAINING, &cpu(1), 5).unwrap();
        disturb(&mut params);
        let batch = batch(&config, lengths, 3);
        let of = |blocks| {
            let options = ForwardOptions { dropout: Some(21), blocks, ..ForwardOptions::EVALUATION };
            run(&model, &params, &batch, &options, WEIGHTS, Denominators::of(&batch), 1)
        };
        let composed = of(Blocks::Reference);
        let undropped = run(&model, &params, &batch, &ForwardOptions::EVALUATION, WEIGHTS, Denominators::of(&batch), 1);
        assert!((composed.loss - undropped.loss).abs() > 1e-3, "nothing was dropped: {}", composed.loss);
        for recompute in [Recompute::None, Recompute::Cheap, Recompute::Layer] {
            let fused = of(Blocks::Fused(recompute));
            let bound = 1e-5 * composed.loss;
            assert!((fused.loss - composed.loss).abs() < bound, "{lengths:?}: {} and {}", fused.loss, composed.loss);
            for id in params.ids() {
                let (a, b) = (fused.gradients.get(id), composed.gradients.get(id));
                let scale = b.iter().fold(1e-3f32, |scale, x| scale.max(x.abs()));
                for (a, b) in a.iter().zip(b) {
                    let name = params.name(id);
                    assert!(
                        (a - b).abs() < 2e-5 * scale,
                        "{lengths:?}, {recompute:?}, {name}: {a} fused, {b} composed"
                    );
                }
            }
        }
    }
}

/// Storage in bfloat16 rounds to 8 bits; statistics, parameters and gradients stay f32.
#[test]
fn bfloat16_activations_change_the_loss_by_rounding_alone() {
    let config = small(Sharing::All);
    let (model, params) = Model::new(&config, Heads::PRE_TRAINING, &cpu(1), 5).unwrap();
    let batch = batch(&config, &[16, 9, 12, 16], 3);
    let of = |dtype| {
        let options = ForwardOptions { dtype, ..ForwardOptions::EVALUATION };
        run(&model, &params, &batch, &options, WEIGHTS, Denominators::of(&batch), 1)
    };
    let (wide, narrow) = (of(DType::F32), of(DType::Bf16));
    assert!((wide.loss - narrow.loss).abs() < 0.02 * wide.loss, "{} and {}", wide.loss, narrow.loss);
    assert_ne!(wide.loss, narrow.loss, "nothing was rounded");
    let norm = |run: &Run| run.gradients.all().iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
    let products = wide.gradients.all().iter().zip(narrow.gradients.all()).map(|(&a, &b)| f64::from(a) * f64::from(b));
    let cosine = products.sum::<f64>() / (norm(&wide) * norm(&narrow));
    assert!(cosine > 0.999, "the gradients point apart: cosine {cosine}");
}

/// Every parameter that the loss depends on is trained. The exceptions, each with its reason, are listed here.
#[test]
fn every_parameter_gets_a_finite_gradient_that_is_not_zero() {
    for sharing in STRATEGIES {
        let config = small(sharing);
        let (model, params) = Model::new(&config, Heads::PRE_TRAINING, &cpu(1), 5).unwrap();
        let batch = batch(&config, &[16, 9, 12, 16], 3);
        for (weights, what) in [
            (WEIGHTS, "both losses"),
            (LossWeights { mlm: 1.0, sentence: 0.0 }, "MLM alone"),
            (LossWeights { mlm: 0.0, sentence: 1.0 }, "sentence order alone"),
        ] {
            let run = run(&model, &params, &batch, &ForwardOptions::EVALUATION, weights, Denominators::of(&batch), 1);
            for id in params.ids() {
                let (name, gradient) = (params.name(id), run.gradients.get(id));
                let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
                assert!(norm.is_finite(), "{sharing}, {what}: {name} has a gradient of norm {norm}");
                let head = |prefix: &str| name.starts_with(prefix);
                let unused = weights.mlm == 0.0 && head("predictions.")
                    || weights.sentence == 0.0 && (head("sop_classifier.") || head("albert.pooler."));
                if unused {
                    // The objective does not use the head.
                    assert_eq!(norm, 0.0, "{sharing}, {what}: {name}");
                } else if name.ends_with("attention.key.bias") {
                    // Adds the same number to all scores of a query, which softmax does not see.
                    let query = params.find(&name.replace("key", "query")).unwrap();
                    let query = run.gradients.get(query).iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
                    assert!(
                        norm < 1e-6 * query.max(1e-30) + 1e-9,
                        "{sharing}, {what}: {name} {norm:e}, query {query:e}"
                    );
                } else {
                    assert!(norm > 1e-9, "{sharing}, {what}: {name} has a gradient of norm {norm:e}");
                }
            }
        }
    }
}

/// Rows of the tables that a batch does not use get nothing; all others do. The word table is also the decoder, whose
/// softmax reaches every row, so it is looked at without the MLM loss.
#[test]
fn only_rows_that_are_used_get_a_gradient() {
    let config = small(Sharing::All);
    let (model, params) = Model::new(&config, Heads::PRE_TRAINING, &cpu(1), 5).unwrap();
    let batch = batch(&config, &[6, 4], 3);
    let weights = LossWeights { mlm: 0.0, sentence: 1.0 };
    let run = run(&model, &params, &batch, &ForwardOptions::EVALUATION, weights, Denominators::of(&batch), 1);
    for (table, used) in [("word", &batch.ids), ("position", &batch.positions), ("token_type", &batch.segments)] {
        let id = params.find(&format!("albert.embeddings.{table}_embeddings.weight")).unwrap();
        for (row, gradient) in run.gradients.get(id).chunks(config.embedding_size).enumerate() {
            let is_zero = gradient.iter().all(|&g| g == 0.0);
            assert_eq!(is_zero, !used.contains(&(row as u32)), "{table} row {row}");
        }
    }
}

#[test]
fn sequences_of_a_batch_do_not_see_each_other() {
    let config = small(Sharing::All);
    let (model, params) = Model::new(&config, Heads::MODEL, &cpu(1), 5).unwrap();
    let together = batch(&config, &[7, 16, 3], 3);
    let encode = |batch: &Batch| {
        let mut workspace = Workspace::new(Device::Cpu(cpu(1)));
        let tape = workspace.infer(&params, None);
        let inputs = Inputs::new(&tape, batch).unwrap();
        model.encode(&tape, &inputs, &ForwardOptions::EVALUATION).unwrap().value().to_vec().unwrap()
    };
    let all = encode(&together);
    for pair in together.cu_seqlens.windows(2) {
        let rows = pair[0] as usize..pair[1] as usize;
        let alone = Batch {
            ids: together.ids[rows.clone()].to_vec(),
            segments: together.segments[rows.clone()].to_vec(),
            positions: together.positions[rows.clone()].to_vec(),
            cu_seqlens: vec![0, rows.len() as u32],
            ..Batch::default()
        };
        let part = &all[rows.start * config.hidden_size..rows.end * config.hidden_size];
        for (at, (a, b)) in part.iter().zip(encode(&alone)).enumerate() {
            // Rounding may differ where rows share a register tile with others.
            assert!((a - b).abs() <= 4.0 * f32::EPSILON * 4.0, "element {at} of {rows:?}: {a} and {b}");
        }
    }
}

/// A layer that is shared is the unshared model with equal layers, and its gradient is the sum of theirs.
#[test]
fn a_shared_gradient_is_the_sum_over_the_layers() {
    let shared_config = small(Sharing::All);
    let own_config = small(Sharing::None);
    let (shared_model, mut shared) = Model::new(&shared_config, Heads::PRE_TRAINING, &cpu(1), 5).unwrap();
    disturb(&mut shared);
    let (own_model, mut own) = Model::new(&own_config, Heads::PRE_TRAINING, &cpu(1), 6).unwrap();
    let group = |name: &str, layer: usize| name.replace("groups.0", &format!("groups.{layer}"));
    for id in own.ids().collect::<Vec<_>>() {
        let name =
            (0..3).fold(own.name(id).to_owned(), |name, layer| name.replace(&format!("groups.{layer}"), "groups.0"));
        let from = shared.values(shared.find(&name).unwrap()).to_vec();
        own.values_mut(id).unwrap().copy_from_slice(&from);
    }
    let batch = batch(&shared_config, &[7, 16, 3], 3);
    let of =
        |model, params| run(model, params, &batch, &ForwardOptions::EVALUATION, WEIGHTS, Denominators::of(&batch), 1);
    let (one, many) = (of(&shared_model, &shared), of(&own_model, &own));
    assert_eq!(one.loss.to_bits(), many.loss.to_bits());
    for id in shared.ids() {
        let name = shared.name(id);
        let layers = if name.contains("groups.0") { 3 } else { 1 };
        let mut sum = vec![0.0f64; shared.values(id).len()];
        for layer in 0..layers {
            let part = many.gradients.get(own.find(&group(name, layer)).unwrap());
            sum.iter_mut().zip(part).for_each(|(sum, &g)| *sum += f64::from(g));
        }
        let scale = sum.iter().fold(0.0f64, |most, g| most.max(g.abs()));
        for (at, (&got, expected)) in one.gradients.get(id).iter().zip(&sum).enumerate() {
            let bound = 1e-5 * scale + 1e-8;
            assert!((f64::from(got) - expected).abs() <= bound, "{name}[{at}]: {got}, expected {expected} ± {bound:e}");
        }
    }
}

/// Gradients of micro-batches with the effective batch's denominators add up to the gradient of the whole.
#[test]
fn micro_batches_add_up_to_the_batch() {
    let config = small(Sharing::All);
    let (model, params) = Model::new(&config, Heads::PRE_TRAINING, &cpu(1), 5).unwrap();
    let whole = batch(&config, &[7, 16, 3, 11], 3);
    let denominators = Denominators::of(&whole);
    let expected = run(&model, &params, &whole, &ForwardOptions::EVALUATION, WEIGHTS, denominators, 1);
    let (mut loss, mut sum) = (0.0, vec![0.0f32; params.len()]);
    for sequences in [0..1, 1..4] {
        let rows = whole.cu_seqlens[sequences.start]..whole.cu_seqlens[sequences.end];
        let tokens = rows.start as usize..rows.end as usize;
        let masked: Vec<usize> =
            (0..whole.masked_positions.len()).filter(|&at| rows.contains(&whole.masked_positions[at])).collect();
        let part = Batch {
            ids: whole.ids[tokens.clone()].to_vec(),
            segments: whole.segments[tokens.clone()].to_vec(),
            positions: whole.positions[tokens].to_vec(),
            cu_seqlens: whole.cu_seqlens[sequences.start..=sequences.end].iter().map(|at| at - rows.start).collect(),
            masked_positions: masked.iter().map(|&at| whole.masked_positions[at] - rows.start).collect(),
            masked_labels: masked.iter().map(|&at| whole.masked_labels[at]).collect(),
            sop_labels: whole.sop_labels[sequences].to_vec(),
            ..Batch::default()
        };
        let part = run(&model, &params, &part, &ForwardOptions::EVALUATION, WEIGHTS, denominators, 1);
        loss += part.loss;
        sum.iter_mut().zip(part.gradients.all()).for_each(|(sum, g)| *sum += g);
    }
    assert!((loss - expected.loss).abs() < 1e-5 * expected.loss, "loss {loss}, expected {}", expected.loss);
    let scale = expected.gradients.all().iter().fold(0.0f32, |most, g| most.max(g.abs()));
    for (at, (got, expected)) in sum.iter().zip(expected.gradients.all()).enumerate() {
        assert!((got - expected).abs() <= 1e-6 * scale, "gradient {at}: {got}, expected {expected}");
    }
}

#[test]
fn is_bit_identical_for_any_thread_count_with_dropout() {
    let config = AlbertConfig { hidden_dropout_prob: 0.3, attention_probs_dropout_prob: 0.2, ..small(Sharing::All) };
    let (model, params) = Model::new(&config, Heads::PRE_TRAINING, &cpu(1), 5).unwrap();
    let batch = batch(&config, &[7, 16, 3, 16, 16], 3);
    let options = |key| ForwardOptions { dropout: Some(key), ..ForwardOptions::EVALUATION };
    let of = |key, threads| run(&model, &params, &batch, &options(key), WEIGHTS, Denominators::of(&batch), threads);
    let bits = |run: &Run| run.gradients.all().iter().map(|g| g.to_bits()).collect::<Vec<_>>();
    let one = of(11, 1);
    for threads in [2, 5] {
        let other = of(11, threads);
        assert_eq!(one.loss.to_bits(), other.loss.to_bits(), "{threads} threads");
        assert!(bits(&one) == bits(&other), "gradients differ with {threads} threads");
    }
    assert_ne!(one.loss, of(12, 1).loss, "another key gives the same loss");
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
    let (model, params) = Model::new(&config, Heads::PRE_TRAINING, &cpu(1), 5).unwrap();
    let good = batch(&config, &[7, 3], 3);
    type Break = fn(&mut Batch);
    let cases: [(Break, &str); 5] = [
        (|b| b.ids[2] = 37, "ids[2] is 37, but there are only 37 rows"),
        (|b| b.positions[1] = 16, "there are only 16 rows"),
        (|b| b.cu_seqlens[1] = 0, "must rise from 0 to the 10 tokens"),
        (|b| b.sop_labels[0] = 2, "labels[0] is 2"),
        (|b| b.masked_positions[0] = 10, "rows[0] is 10"),
    ];
    for (change, expected) in cases {
        let mut batch = good.clone();
        change(&mut batch);
        let mut workspace = Workspace::new(Device::Cpu(cpu(1)));
        let tape = workspace.train(&params, None);
        let denominators = Denominators::of(&good);
        let error =
            pretraining_loss(&model, &tape, &batch, &ForwardOptions::EVALUATION, WEIGHTS, denominators).unwrap_err();
        assert!(error.to_string().contains(expected), "{error} does not contain {expected:?}");
    }
}
