//! Bytes of one training step.
//!
//! ```text
//! parameters   4 bytes each, and 2 more for the bfloat16 copy where activations are bfloat16
//! gradients    4 bytes each, always f32: they are sums over all uses of a shared weight
//! optimizer    8 bytes each: two moments
//! packed       8 bytes for each weight of a dense layer: one copy for forward, one for backward
//! activations  kept for backward, per token and block (x = bytes of an activation):
//!                none    8H·x + 2F·x + 4A + 16    input, qkv, context, two sums, one LayerNorm output, pre, act
//!                cheap   6H·x +  F·x + 4A + 16    qkv, context, two sums, pre: not recomputable by a pass over rows
//!                layer    H·x                     the input of every block; all of one block during its recomputation
//!              plus the larger of the last block's additional backward memory and 4V for each masked token
//! ```
//!
//! The lists are those of the engine's encoder layer.
//!
//! Limits: an estimate for choosing a batch on a CPU; a GPU stores at most 64 MiB of the logits at a time. The engine
//! plans the memory of a run exactly and prints it before the first step.

use serde::Serialize;

use super::flops::Workload;
use super::parameters::ParameterCounts;
use crate::config::{AlbertConfig, Heads};
use crate::model::Recompute;

/// Settings that affect the memory of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Training {
    /// Bytes of a stored activation: 4 (f32) or 2 (bfloat16).
    pub activation_bytes: usize,
    /// Activations that backward recomputes.
    pub checkpointing: Recompute,
}

/// Bytes of one training step, by purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Master weights, and compute copies if activations are narrower.
    pub parameters: u64,
    /// One f32 each.
    pub gradients: u64,
    /// Two moments, f32 each.
    pub optimizer: u64,
    /// Packed weights, one copy each for the forward and the backward product, in the order in which the kernels read
    /// them; f32, so that a shared weight is packed once a step.
    pub packed: u64,
    /// Activations kept for backward, at their peak.
    pub activations: u64,
}

impl Memory {
    /// Estimates the bytes of a step of pre-training.
    pub fn new(config: &AlbertConfig, workload: &Workload, training: &Training) -> Self {
        let parameters = ParameterCounts::with_heads(config, Heads::PRE_TRAINING);
        let copy = if training.activation_bytes < 4 { training.activation_bytes as u64 } else { 0 };
        Self {
            parameters: parameters * (4 + copy),
            gradients: parameters * 4,
            optimizer: parameters * 8,
            packed: packed(config),
            activations: activations(config, workload, training),
        }
    }

    /// All purposes together.
    pub fn total(&self) -> u64 {
        self.parameters + self.gradients + self.optimizer + self.packed + self.activations
    }
}

/// Both copies of every weight of a dense layer; the word table is read in place.
fn packed(config: &AlbertConfig) -> u64 {
    let [e, h, f] = [config.embedding_size, config.hidden_size, config.intermediate_size].map(|size| size as u64);
    let map = if config.has_embedding_map() { e * h } else { 0 };
    let (attention, ffn) = (config.attention_sets().len() as u64, config.ffn_sets().len() as u64);
    let weights = map + attention * 4 * h * h + ffn * 2 * h * f + h * h + h * e + 2 * h;
    2 * 4 * weights
}

fn activations(config: &AlbertConfig, workload: &Workload, training: &Training) -> u64 {
    let [e, h, f, heads, blocks] = [
        config.embedding_size,
        config.hidden_size,
        config.intermediate_size,
        config.num_attention_heads,
        config.num_blocks(),
    ]
    .map(|size| size as u64);
    let x = training.activation_bytes as u64;
    let [tokens, masked] = [workload.tokens() as u64, workload.masked() as u64];
    // The log-sum-exp of each head and two pairs of LayerNorm statistics stay f32.
    let statistics = 4 * heads + 16;
    let block_in_full = (8 * h + 2 * f) * x + statistics;
    // Memory peaks at the loss, with the last hidden state and the logits, or in the feed-forward network of the last block,
    // with one gradient of the hidden state: the gradient of the pre-activation replaces the activation, which is recomputed
    // first if it was not kept.
    let (layers, last) = match training.checkpointing {
        Recompute::None => (blocks * block_in_full, h * x),
        Recompute::Cheap => (blocks * ((6 * h + f) * x + statistics) + h * x, (f + h) * x),
        Recompute::Layer => (blocks * h * x, block_in_full),
    };
    let embeddings = (2 * e + h) * x + 8;
    let head = (h + 4 * e) * x + 12;
    let loss = tokens * h * x + masked * 4 * config.vocab_size as u64;
    tokens * (layers + embeddings) + masked * head + (tokens * last).max(loss)
}
