//! Twenty steps of `pretrain` (loss of both objectives, backward, clipping, optimizer) compared with twenty steps of PyTorch
//! and transformers, from the same weights on the same batches.
//!
//! `tests/oracle/training.py` wrote the golden files: AdamW is PyTorch's own, LAMB the released optimizer in NumPy on
//! PyTorch's gradients, both in f64. Losses must agree within a relative 1e-4 (AdamW) and 1e-5 (LAMB); measured are 2e-7
//! and 4e-7. Final weights are bounded by the distance between PyTorch's runs in f32 and in f64.

use albert::{
    checkpoint::ModelFolder,
    config::Heads,
    data::Batch,
    model::{Blocks, ForwardOptions, Model, Recompute},
    pretrain::{Denominators, LossWeights, pretraining_loss},
};
use engine::{
    Cpu, DType, Device, Gradients, Isa, ParamStore, Workspace,
    io::Safetensors,
    optim::{AdamConfig, Optimizer, OptimizerKind, ParamOptions, clip_global_norm},
    param::ParamInfo,
};
use serde_json::Value;
use std::path::{Path, PathBuf};

const HEADS: Heads = Heads::PRE_TRAINING;
const STEPS: usize = 20;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/training").join(name)
}

fn json(name: &str) -> Value {
    let text = std::fs::read_to_string(golden(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn indices(value: &Value) -> impl Iterator<Item = u32> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as u32)
}

/// Concatenates the sequences of one batch.
fn batch_of(sequences: &Value) -> Batch {
    let mut batch = Batch { cu_seqlens: vec![0], ..Batch::default() };
    for sequence in sequences.as_array().unwrap() {
        let start = batch.ids.len() as u32;
        batch.ids.extend(indices(&sequence["ids"]));
        batch.segments.extend(indices(&sequence["segments"]));
        let end = batch.ids.len() as u32;
        batch.positions.extend(0..end - start);
        batch.cu_seqlens.push(end);
        batch.masked_positions.extend(indices(&sequence["masked"]).map(|at| start + at));
        batch.masked_labels.extend(indices(&sequence["labels"]));
        batch.sop_labels.push(sequence["swapped"].as_u64().unwrap() as u32);
    }
    batch
}

/// The model of the golden folder with its weights.
fn load(cpu: &Cpu) -> (Model, ParamStore) {
    let folder = ModelFolder::open(&golden("")).unwrap();
    let (model, mut params) = Model::new(&folder.config().config, HEADS, cpu, 0).unwrap();
    let report = folder
        .load(HEADS, &[], |spec, values| {
            let id = params.find(&spec.name).unwrap();
            params.values_mut(id)?.copy_from_slice(values);
            Ok(())
        })
        .unwrap();
    assert_eq!((report.loaded.len(), report.ignored.len()), (params.ids().count(), 0), "{report:?}");
    (model, params)
}

fn optimizer(params: &ParamStore, rule: OptimizerKind) -> Optimizer {
    let adam = AdamConfig { bias_correction: rule == OptimizerKind::AdamW, ..AdamConfig::default() };
    let options = |info: &ParamInfo| ParamOptions { weight_decay: info.is_weight(), trust_ratio: info.is_weight() };
    Optimizer::new(params, rule, adam, options).unwrap()
}

/// Runs a step; returns its loss and its gradient norm before clipping.
struct Training<'a> {
    workspace: Workspace,
    model: &'a Model,
    gradients: Gradients,
    optimizer: Optimizer,
    mode: ForwardOptions,
}

impl Training<'_> {
    fn step(&mut self, params: &mut ParamStore, batch: &Batch, rate: f64) -> (f64, f64) {
        self.gradients.clear().unwrap();
        let loss = {
            let tape = self.workspace.train(params, None);
            let weights = LossWeights { mlm: 1.0, sentence: 1.0 };
            let losses =
                pretraining_loss(self.model, &tape, batch, &self.mode, weights, Denominators::of(batch)).unwrap();
            let total = losses.total.unwrap();
            tape.backward(&total, &mut self.gradients).unwrap();
            // As a run reports it: means over tokens and over sequences, in f64.
            [losses.mlm, losses.sentence]
                .into_iter()
                .map(|classified| {
                    let classified = classified.unwrap();
                    let each = classified.losses.slice::<f32>();
                    each.iter().map(|&x| f64::from(x)).sum::<f64>() / each.len() as f64
                })
                .sum()
        };
        let step = self.optimizer.steps() + 1;
        let norm = clip_global_norm(&mut self.gradients, Some(1.0), step).unwrap();
        self.optimizer.step(params, &self.gradients, rate).unwrap();
        (loss, norm)
    }
}

fn apart(ours: f64, theirs: f64) -> f64 {
    ((ours - theirs) / theirs).abs()
}

/// Trains and compares; `bound` is the maximum relative distance of the losses.
fn follows(name: &str, rule: OptimizerKind, bound: f64, blocks: Blocks, isa: Isa) {
    let record = &json("training.json")[name];
    let [rates, exact, rough, norms] = ["rates", "losses", "losses_f32", "norms"].map(|key| numbers(&record[key]));
    assert_eq!([rates.len(), exact.len(), rough.len(), norms.len()], [STEPS; 4]);
    let batches: Vec<Batch> = json("batches.json").as_array().unwrap().iter().map(batch_of).collect();
    let cpu = Cpu::new(isa, 2).unwrap();
    let (model, mut params) = load(&cpu);
    let mut training = Training {
        workspace: Workspace::new(Device::Cpu(cpu.clone())),
        optimizer: optimizer(&params, rule),
        gradients: params.gradients(&Device::Cpu(cpu.clone())).unwrap(),
        model: &model,
        mode: ForwardOptions { dtype: DType::F32, dropout: None, blocks },
    };
    let mut worst = [0.0f64; 3];
    for step in 0..STEPS {
        let (loss, norm) = training.step(&mut params, &batches[step % batches.len()], rates[step]);
        let pairs = [(loss, exact[step], bound), (loss, rough[step], bound), (norm, norms[step], 1e-4)];
        for (worst, (ours, theirs, bound)) in worst.iter_mut().zip(pairs) {
            let distance = apart(ours, theirs);
            let case = format!("{name}, {blocks:?}, step {}", step + 1);
            assert!(distance <= bound, "{case}: {ours}, PyTorch's {theirs}, {distance:.1e} apart, bound {bound:e}");
            *worst = worst.max(distance);
        }
    }
    // The weights move far enough that a wrong or missing step would exceed the bounds.
    assert!(apart(exact[STEPS - 1], exact[0]) > 100.0 * bound, "{exact:?}");
    println!("{name}, {blocks:?}: apart from losses in f64, losses in f32 and norms of PyTorch by {worst:?}");
    compare_weights(name, &training, &params, record);
}

/// Checks the weights after the last step: the error is at most four times the effect of rounding the reference run to
/// f32, plus an ulp, plus 1e-5 or 2e-5 of their movement, because NumPy's LAMB keeps moments and weights in f64.
fn compare_weights(name: &str, training: &Training<'_>, params: &ParamStore, record: &Value) {
    let expected = Safetensors::open(golden(&format!("{name}.safetensors"))).unwrap();
    let (mut worst, mut compared) = ((0.0f64, String::new()), 0);
    for id in params.ids() {
        let parameter = params.name(id);
        // The loss does not depend on the bias of the keys; its gradient is rounding noise.
        if parameter.contains("key.bias") {
            continue;
        }
        let shape = params.shape(id).to_vec();
        let exact = expected.f32s(parameter, &shape).unwrap();
        let number = |key: &str| record[key][parameter].as_f64().unwrap();
        let (spread, moved) = (number("spread"), number("moved"));
        let largest = exact.iter().fold(0.0f32, |a, &x| a.max(x.abs()));
        let ulp = f64::from(f32::from_bits(largest.to_bits() + 1) - largest);
        let bound = 4.0 * spread + 2e-5 * moved + ulp;
        let ours = params.values(id);
        let error = ours.iter().zip(&exact[..]).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        if error / bound > worst.0 {
            worst = (error / bound, parameter.to_owned());
        }
        compared += 1;
    }
    println!("{name}: {compared} tensors; {:.2} of the bound is the worst, {}", worst.0, worst.1);
    assert_eq!(training.optimizer.steps(), STEPS as u64);
    assert!(worst.0 <= 1.0, "{name}: {} is beyond its bound: {:.2}", worst.1, worst.0);
    assert!(compared >= 20, "{compared}");
}

/// Trains with fused blocks, as in a run, on every instruction set, and once with blocks composed of small operations.
fn follows_everywhere(name: &str, rule: OptimizerKind, bound: f64) {
    for isa in Isa::real() {
        follows(name, rule, bound, Blocks::Fused(Recompute::None), isa);
    }
    follows(name, rule, bound, Blocks::Reference, Isa::choose().unwrap());
}

#[test]
fn twenty_steps_of_adamw_follow_pytorch() {
    follows_everywhere("adamw", OptimizerKind::AdamW, 1e-4);
}

#[test]
fn twenty_steps_of_lamb_follow_the_released_optimizer_in_numpy() {
    follows_everywhere("lamb", OptimizerKind::Lamb, 1e-5);
}
