//! Operations of the matrix products: 2·m·n·k for every [m,k]·[k,n].
//!
//! For one forward pass over a sequence of S tokens, M of which are masked:
//!
//! ```text
//! embedding map   2·S·E·H                  attention scores   N·4·S²·H     (q·kᵀ and probabilities·v)
//! projections     N·8·S·H²                 feed-forward       N·4·S·H·F
//! pooler, SOP     2·H² + 4·H               MLM head           2·M·(H·E + E·V)
//! ```
//!
//! Backward computes two products of the same size for each (with respect to the input and to the weight); the fused
//! attention also recomputes its scores. Recomputation adds the forward work of the activations that are not kept.

use serde::Serialize;

use crate::config::AlbertConfig;
use crate::model::Recompute;

/// A batch: sequences of one length, with a number of masked positions each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// B.
    pub sequences: usize,
    /// S: tokens of each sequence.
    pub sequence_length: usize,
    /// Masked positions of each sequence.
    pub masked_per_sequence: usize,
}

impl Workload {
    /// T: tokens of the batch.
    pub fn tokens(&self) -> usize {
        self.sequences * self.sequence_length
    }

    /// M: masked positions of the batch.
    pub fn masked(&self) -> usize {
        self.sequences * self.masked_per_sequence
    }
}

/// Floating-point operations of one forward pass over a [`Workload`], by component.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flops {
    /// E → H.
    pub embedding_map: f64,
    /// Query, key, value and output projections of all layers.
    pub attention_projections: f64,
    /// q·kᵀ and probabilities·v of all layers.
    pub attention_scores: f64,
    /// Both products of all feed-forward networks.
    pub ffn: f64,
    /// The pooler, once a sequence.
    pub pooler: f64,
    /// H → E → V, at masked positions only.
    pub mlm_head: f64,
    /// H → 2, once a sequence.
    pub sop_head: f64,
}

impl Flops {
    /// The operations of one forward pass with the pre-training heads.
    pub fn forward(config: &AlbertConfig, workload: &Workload) -> Self {
        let [sequences, length] = [workload.sequences, workload.sequence_length].map(|n| n as f64);
        Self::new(config, sequences, workload.tokens() as f64, sequences * length * length, workload.masked() as f64)
    }

    /// The operations of a ragged batch: `cu_seqlens` `[B + 1]` are the offsets of the sequences, `masked` is the number of
    /// predicted tokens.
    pub fn forward_of(config: &AlbertConfig, cu_seqlens: &[u32], masked: usize) -> Self {
        let lengths = || cu_seqlens.windows(2).map(|pair| f64::from(pair[1] - pair[0]));
        let (tokens, pairs) = (lengths().sum(), lengths().map(|length| length * length).sum());
        Self::new(config, lengths().len() as f64, tokens, pairs, masked as f64)
    }

    /// The operations of B sequences of any lengths: T tokens in all, `pairs` = Σ S², M masked tokens.
    fn new(config: &AlbertConfig, sequences: f64, tokens: f64, pairs: f64, masked: f64) -> Self {
        let [v, e, h, f, blocks] = [
            config.vocab_size,
            config.embedding_size,
            config.hidden_size,
            config.intermediate_size,
            config.num_blocks(),
        ]
        .map(|size| size as f64);
        Self {
            embedding_map: if config.has_embedding_map() { 2.0 * tokens * e * h } else { 0.0 },
            attention_projections: blocks * 8.0 * tokens * h * h,
            attention_scores: blocks * 4.0 * pairs * h,
            ffn: blocks * 4.0 * tokens * h * f,
            pooler: 2.0 * sequences * h * h,
            mlm_head: 2.0 * masked * (h * e + e * v),
            sop_head: 4.0 * sequences * h,
        }
    }

    /// All components together.
    pub fn total(&self) -> f64 {
        self.embedding_map + self.layers() + self.pooler + self.mlm_head + self.sop_head
    }

    /// The encoder layers alone.
    pub fn layers(&self) -> f64 {
        self.attention_projections + self.attention_scores + self.ffn
    }

    /// Operations of one training step: three forward passes, plus the attention scores (q·kᵀ is recomputed, not
    /// kept) and, with `Recompute::Layer`, the layers once more.
    pub fn training(config: &AlbertConfig, workload: &Workload, checkpointing: Recompute) -> f64 {
        Self::forward(config, workload).trained(checkpointing)
    }

    /// Operations of a training step over a ragged batch (see [`forward_of`](Self::forward_of)).
    pub fn training_of(config: &AlbertConfig, cu_seqlens: &[u32], masked: usize, checkpointing: Recompute) -> f64 {
        Self::forward_of(config, cu_seqlens, masked).trained(checkpointing)
    }

    fn trained(&self, checkpointing: Recompute) -> f64 {
        let layers_again = match checkpointing {
            Recompute::None | Recompute::Cheap => 0.0,
            Recompute::Layer => self.layers(),
        };
        3.0 * self.total() + self.attention_scores / 2.0 + layers_again
    }
}
