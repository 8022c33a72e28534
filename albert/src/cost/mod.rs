//! Cost of a model from its configuration: parameters, floating-point operations, memory.
//!
//! * [`ParameterCounts`]: exact, by component and by head.
//! * [`compute_parameters`]: weights times uses, V·E + E·H + N·(4H² + 8H²) + H², a proxy for cost that shows what
//!   sharing does not save; multiplied by steps and tokens per batch it is the "normalized cost".
//! * [`Flops`]: multiplications and additions of the matrix products, attention scores included, the MLM head at
//!   masked positions only.
//! * [`Scaled`]: predicted step time on several ranks.
//! * [`Memory`]: parameters, gradients, optimizer state and activations of one training step.
//!
//! Source: Lan et al. 2020, tables 1, 3 and 4; the counts equal those of the released checkpoints. Limits: `Flops`
//! omits LayerNorm, softmax and activations (below 1 % at the released sizes), `Memory` is an estimate from the list
//! of tensors kept for backward.

mod flops;
mod memory;
mod parameters;
mod scaling;
#[cfg(test)]
mod tests;

pub use engine::ops::Recompute;
pub use flops::{Flops, Workload};
pub use memory::{Memory, Training};
use parameters::LISTED;
pub use parameters::ParameterCounts;
pub use scaling::{Link, Scaled};

use serde::Serialize;

use crate::config::AlbertConfig;

/// Tokens in a batch of the released pre-training: 4,096 sequences of 512.
pub const RELEASED_TOKENS_PER_BATCH: u64 = 4096 * 512;
/// Steps of the runs that the paper's tables compare.
pub const RELEASED_STEPS: u64 = 125_000;

/// V·E + E·H + N·(4H² + 2·4H²) + H²: the weights as if no layer were shared, without biases, LayerNorm and positions.
///
/// Assumes F = 4H, regardless of `intermediate_size`, and one block per layer.
pub fn compute_parameters(config: &AlbertConfig) -> u64 {
    let [v, e, h, n] = [config.vocab_size, config.embedding_size, config.hidden_size, config.num_hidden_layers]
        .map(|size| size as u64);
    v * e + e * h + n * 12 * h * h + h * h
}

/// [`compute_parameters`] · `steps` · `tokens_per_batch`.
pub fn normalized_cost(config: &AlbertConfig, steps: u64, tokens_per_batch: u64) -> f64 {
    compute_parameters(config) as f64 * steps as f64 * tokens_per_batch as f64
}

/// Cost report of `albert info`, ready for JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Configuration of the model.
    pub config: AlbertConfig,
    /// Parameters by component.
    pub components: ParameterCounts,
    /// Parameters in total for every head, by the head's name.
    pub heads: Vec<HeadCount>,
    /// See [`compute_parameters`].
    pub compute_parameters: u64,
    /// See [`normalized_cost`], at the released number of steps and tokens.
    pub normalized_cost: f64,
    /// Floating-point operations of one forward pass of `workload`.
    pub forward: Flops,
    /// Operations per token, forward only.
    pub forward_flops_per_token: f64,
    /// Operations per token, forward and backward, including those that `training.checkpointing` recomputes.
    pub training_flops_per_token: f64,
    /// Batch that the report is for.
    pub workload: Workload,
    /// Settings of the step.
    pub training: Training,
    /// Bytes of one training step.
    pub memory: Memory,
}

/// Parameter count of the model with one head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeadCount {
    /// Hugging Face's class name, with distinguishing details.
    pub head: String,
    /// Parameters in total, tied weights once.
    pub parameters: u64,
}

impl Report {
    /// Computes all figures for `config` at `workload`.
    pub fn new(config: &AlbertConfig, workload: Workload, training: Training) -> Self {
        let forward = Flops::forward(config, &workload);
        let tokens = workload.tokens() as f64;
        Self {
            config: config.clone(),
            components: ParameterCounts::new(config),
            heads: LISTED
                .iter()
                .map(|heads| HeadCount {
                    head: heads.to_string(),
                    parameters: ParameterCounts::with_heads(config, *heads),
                })
                .collect(),
            compute_parameters: compute_parameters(config),
            normalized_cost: normalized_cost(config, RELEASED_STEPS, RELEASED_TOKENS_PER_BATCH),
            forward_flops_per_token: forward.total() / tokens,
            training_flops_per_token: Flops::training(config, &workload, training.checkpointing) / tokens,
            forward,
            memory: Memory::new(config, &workload, &training),
            workload,
            training,
        }
    }
}
