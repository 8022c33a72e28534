//! Forward pass or training step of a model with random weights on random ids.
//!
//! ```text
//! forward    embeddings, N blocks, pooler; no dropout                             as in `AlbertModel`
//! train      forward, both losses (MLM at masked positions only, sentence order), backward, AdamW
//! ```
//!
//! FLOPs: every product once, backward twice forward ([`Flops`]); recomputation is not counted.

use super::Case;
use crate::{
    interleaved::Contender,
    report::{About, Bound},
};
use albert::{
    AlbertConfig,
    checkpoint::Heads,
    cost::{Flops, Recompute},
    data::Batch,
    model::{Blocks, ForwardOptions, Inputs, Model, dropout_key},
    pretrain::{Denominators, LossWeights, pretraining_loss},
};
use anyhow::{Context, Result};
use clap::ValueEnum;
use engine::{
    Cpu, Device, Gradients, ParamStore, Precision, Workspace,
    optim::{AdamConfig, Optimizer, OptimizerKind, ParamOptions},
    philox::Stream,
    profile::Profile,
};
use serde_json::{Map, Value};

/// Share of masked tokens.
const MASKED: f64 = 0.15;
const PLAN: &str = "bench";

/// Forward pass or training step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Forward to the pooler, no dropout
    #[default]
    Forward,
    /// Forward, both losses, backward, AdamW
    Train,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Train => "train",
        }
    }
}

/// A step of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Name of the model in titles.
    pub name: String,
    /// Configuration of the model.
    pub config: AlbertConfig,
    /// S of each sequence.
    pub lengths: Vec<usize>,
    /// Forward pass or training step.
    pub mode: Mode,
    /// Precision; int8 for forward only.
    pub precision: Precision,
    /// Overrides the configuration's dropout of hidden states and attention, when training.
    pub dropout: Option<f64>,
    /// Activations that backward recomputes.
    pub checkpointing: Recompute,
}

impl Step {
    fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// B x S for sequences of one length, else B and the number of tokens.
    fn size(&self) -> String {
        let count = self.lengths.len();
        match self.lengths.first() {
            Some(first) if self.lengths.iter().all(|length| length == first) => format!("{count}x{first}"),
            _ => format!("{count} of {} tokens", self.tokens()),
        }
    }

    /// `train base 8x128`
    pub fn title(&self) -> String {
        let dropout = self.dropout.map_or(String::new(), |rate| format!(" dropout {rate}"));
        let keeps = match self.checkpointing {
            // The default for training on a CPU.
            Recompute::Cheap => "",
            Recompute::None => " checkpointing none",
            Recompute::Layer => " checkpointing layer",
        };
        format!("{} {} {}{dropout}{keeps}", self.mode.name(), self.name, self.size())
    }

    pub(super) fn prepare(&self, cpu: &Cpu) -> Result<Case> {
        let mut running = Running::new(self, cpu)?;
        running.run()?;
        let ours = Contender::new("ours", move || running.run().expect("it ran before, and nothing has changed"));
        Ok(Case { about: self.about(), contenders: vec![ours] })
    }

    pub(super) fn about(&self) -> About {
        let batch = batch(self);
        let mut sizes = Map::new();
        sizes.insert("config".to_owned(), self.name.clone().into());
        sizes.insert("mode".to_owned(), self.mode.name().into());
        sizes.insert("lengths".to_owned(), Value::from(self.lengths.clone()));
        sizes.insert("masked".to_owned(), batch.masked_positions.len().into());
        About {
            kernel: "step",
            case: self.title(),
            sizes,
            dtype: self.precision.name(),
            bound: Bound::Arithmetic,
            flops: self.flops(&batch) as u64,
            bytes: 0,
            tokens: Some(self.tokens() as u64),
        }
    }

    fn flops(&self, batch: &Batch) -> f64 {
        let flops = Flops::forward_of(&self.config, &batch.cu_seqlens, batch.masked_positions.len());
        match self.mode {
            Mode::Forward => flops.total() - flops.mlm_head - flops.sop_head,
            Mode::Train => 3.0 * flops.total(),
        }
    }

    /// Profiles `calls` steps and passes the profile to `show`.
    ///
    /// # Errors
    /// The model cannot be built, or there is not enough memory.
    pub fn profile(&self, cpu: &Cpu, calls: usize, show: impl FnOnce(&Profile)) -> Result<()> {
        let mut running = Running::new(self, cpu)?;
        running.run()?;
        running.workspace.profile().set(true);
        for _ in 0..calls {
            running.run()?;
        }
        show(running.workspace.profile());
        Ok(())
    }
}

/// Prepared model and batch.
#[derive(Debug)]
struct Running {
    cpu: Cpu,
    workspace: Workspace,
    model: Model,
    params: ParamStore,
    training: Option<Training>,
    batch: Batch,
    pass: ForwardOptions,
    done: u64,
}

/// State of a training step.
#[derive(Debug)]
struct Training {
    gradients: Gradients,
    optimizer: Optimizer,
    drops: bool,
}

impl Running {
    fn new(step: &Step, cpu: &Cpu) -> Result<Self> {
        let mut config = step.config.clone();
        if let Some(rate) = step.dropout {
            (config.hidden_dropout_prob, config.attention_probs_dropout_prob) = (rate, rate);
        }
        let heads = if step.mode == Mode::Train { Heads::PRE_TRAINING } else { Heads::MODEL };
        let (model, params) = Model::new(&config, heads, cpu, 1)?;
        let dtype = step.precision.activations();
        let training = match step.mode {
            Mode::Forward => None,
            Mode::Train => Some(Training {
                gradients: params.gradients(&Device::Cpu(cpu.clone()))?,
                optimizer: Optimizer::new(&params, OptimizerKind::AdamW, AdamConfig::default(), |_| ParamOptions {
                    weight_decay: true,
                    trust_ratio: false,
                })?,
                drops: config.hidden_dropout_prob > 0.0 || config.attention_probs_dropout_prob > 0.0,
            }),
        };
        let mut workspace = Workspace::new(Device::Cpu(cpu.clone()));
        workspace.set_precision(step.precision)?;
        let mut running = Self {
            cpu: cpu.clone(),
            workspace,
            model,
            params,
            training,
            batch: batch(step),
            pass: ForwardOptions { dtype, dropout: None, blocks: Blocks::Fused(step.checkpointing) },
            done: 0,
        };
        running.plan().context("the memory of a step cannot be planned")?;
        Ok(running)
    }

    /// Plans the memory of a step, so that no step allocates.
    fn plan(&mut self) -> Result<()> {
        let Self { workspace, model, params, training, batch, pass, .. } = self;
        match training {
            None => workspace.plan(PLAN, |workspace| forward(workspace, model, params, batch, pass))?,
            Some(training) => {
                let pass = ForwardOptions { dropout: training.drops.then_some(0), ..*pass };
                let gradients = &mut training.gradients;
                let plan =
                    workspace.plan(PLAN, |workspace| both_ways(workspace, model, params, gradients, batch, &pass))?;
                gradients.clear()?;
                plan
            }
        };
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let Self { cpu, workspace, model, params, training, batch, pass, done } = self;
        *done += 1;
        let cpu = &*cpu;
        cpu.enter(|| match training {
            None => Ok(forward(workspace, model, params, batch, pass)?),
            Some(Training { gradients, optimizer, drops }) => {
                let pass = ForwardOptions { dropout: drops.then(|| dropout_key(1, *done, 0)), ..*pass };
                gradients.clear()?;
                both_ways(workspace, model, params, gradients, batch, &pass)?;
                Ok(optimizer.step(params, gradients, 1e-6)?)
            }
        })
    }
}

fn forward(
    workspace: &mut Workspace,
    model: &Model,
    params: &ParamStore,
    batch: &Batch,
    pass: &ForwardOptions,
) -> engine::Result<()> {
    let tape = workspace.infer(params, Some(PLAN));
    let inputs = Inputs::new(&tape, batch)?;
    let x = model.encode(&tape, &inputs, pass)?; // [T, H]
    let pooler = model.pooler().expect("the heads have one");
    pooler.forward(&tape, &x, &inputs.first_tokens).map(drop)
}

fn both_ways(
    workspace: &mut Workspace,
    model: &Model,
    params: &ParamStore,
    gradients: &mut Gradients,
    batch: &Batch,
    pass: &ForwardOptions,
) -> engine::Result<()> {
    let tape = workspace.train(params, Some(PLAN));
    let weights = LossWeights { mlm: 1.0, sentence: 1.0 };
    let losses = pretraining_loss(model, &tape, batch, pass, weights, Denominators::of(batch))?;
    let total = losses.total.expect("both losses have a weight");
    tape.backward(&total, gradients).map(drop)
}

/// Random ids, two segments per sequence, 15 % of the tokens masked.
fn batch(step: &Step) -> Batch {
    let mut stream = Stream::new(1, [7, 0, 0]);
    let vocabulary = step.config.vocab_size as u32;
    // The first ids are special pieces.
    let mut id = || 5 + (stream.next_f32() * (vocabulary - 6) as f32) as u32;
    let mut batch = Batch { cu_seqlens: vec![0], ..Batch::default() };
    for &length in &step.lengths {
        let start = batch.ids.len() as u32;
        batch.ids.extend((0..length).map(|_| id()));
        batch.segments.extend((0..length).map(|place| u32::from(2 * place >= length)));
        batch.positions.extend(0..length as u32);
        batch.cu_seqlens.push(batch.ids.len() as u32);
        batch.sop_labels.push(start % 2);
        let masked = ((MASKED * length as f64).round_ties_even() as usize).max(1);
        batch.masked_positions.extend((0..masked).map(|i| start + (i * length / masked) as u32));
        batch.masked_labels.extend((0..masked).map(|_| id()));
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(mode: Mode, dropout: Option<f64>) -> Step {
        let config = AlbertConfig::preset("tiny").unwrap();
        let (name, lengths, checkpointing) = ("tiny".to_owned(), vec![9, 16], Recompute::ON_CPU);
        Step { name, config, lengths, mode, precision: Precision::F32, dropout, checkpointing }
    }

    #[test]
    fn int8_quantizes_every_weight_of_a_layer_and_f32_none() {
        let cpu = Cpu::detect().unwrap();
        let bytes = [Precision::F32, Precision::Int8].map(|precision| {
            let mut running = Running::new(&Step { precision, ..step(Mode::Forward, None) }, &cpu).unwrap();
            running.run().unwrap();
            assert_eq!(running.workspace.arena().report().misses, 0);
            running.params.quantized_bytes()
        });
        // tiny: H 256, F 1024; one byte per weight, and a scale and a sum per channel.
        let weights = 4 * 256 * 256 + 2 * 256 * 1024;
        assert!(bytes[0] == 0 && (weights..weights * 11 / 10).contains(&bytes[1]), "{bytes:?} for {weights} weights");
    }

    #[test]
    fn a_step_trains_in_planned_memory() {
        let cpu = Cpu::detect().unwrap();
        for dropout in [None, Some(0.1)] {
            let step = step(Mode::Train, dropout);
            let mut running = Running::new(&step, &cpu).unwrap();
            let before = running.params.all_values().to_vec();
            running.run().unwrap();
            let moved = before.iter().zip(running.params.all_values()).filter(|(a, b)| a != b).count();
            assert!(moved > before.len() / 2, "{moved} of {} parameters moved", before.len());
            assert_eq!(running.workspace.arena().report().misses, 0);
        }
        let train = step(Mode::Train, None);
        assert_eq!((train.size(), batch(&train).cu_seqlens), ("2 of 25 tokens".to_owned(), vec![0, 9, 25]));
    }
}
