//! Exact parameter counts, from the declaration of the model's parameters.

use serde::Serialize;

use crate::config::{AlbertConfig, Heads};
use crate::model::parameters;

/// Parameters by component. Tied weights are counted once, with the embeddings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParameterCounts {
    /// V·E.
    pub word_embeddings: u64,
    /// P·E.
    pub position_embeddings: u64,
    /// Segments·E.
    pub segment_embeddings: u64,
    /// 2E.
    pub embedding_layer_norm: u64,
    /// E·H + H, or 0 where E = H needs no map.
    pub embedding_map: u64,
    /// One attention block with its LayerNorm: 4(H² + H) + 2H.
    pub attention_block: u64,
    /// Number of sets of attention weights.
    pub attention_sets: u64,
    /// One feed-forward block with its LayerNorm: 2HF + F + H + 2H.
    pub ffn_block: u64,
    /// Number of sets of feed-forward weights.
    pub ffn_sets: u64,
    /// H² + H.
    pub pooler: u64,
    /// H·E + E + 2E + V: dense, LayerNorm, output bias; the decoder is the word table.
    pub mlm_head: u64,
    /// 2H + 2.
    pub sop_head: u64,
}

/// The heads that a report lists.
pub(super) const LISTED: [Heads; 9] = [
    Heads::MODEL,
    Heads::ENCODER,
    Heads::MASKED_LM,
    Heads::PRE_TRAINING,
    Heads::sequence_classification(2),
    Heads::sequence_classification(3),
    Heads::MULTIPLE_CHOICE,
    Heads::QUESTION_ANSWERING,
    Heads::SQUAD_V2,
];

impl ParameterCounts {
    /// Counts the parameters of `config`.
    pub fn new(config: &AlbertConfig) -> Self {
        let parameters = parameters(config, Heads::PRE_TRAINING);
        let count = |wanted: &dyn Fn(&str) -> bool| {
            parameters.iter().filter(|info| wanted(&info.name)).map(|info| info.shape.elements() as u64).sum::<u64>()
        };
        let of = |prefix: &str| count(&|name| name.starts_with(prefix));
        let is_attention = |name: &str| name.contains(".albert_layers.") && name.contains(".attention.");
        let is_ffn = |name: &str| name.contains(".albert_layers.") && !name.contains(".attention.");
        let (attention_sets, ffn_sets) = (config.attention_sets().len() as u64, config.ffn_sets().len() as u64);
        Self {
            word_embeddings: of("albert.embeddings.word_embeddings."),
            position_embeddings: of("albert.embeddings.position_embeddings."),
            segment_embeddings: of("albert.embeddings.token_type_embeddings."),
            embedding_layer_norm: of("albert.embeddings.LayerNorm."),
            embedding_map: of("albert.encoder.embedding_hidden_mapping_in."),
            attention_block: count(&is_attention) / attention_sets,
            attention_sets,
            ffn_block: count(&is_ffn) / ffn_sets,
            ffn_sets,
            pooler: of("albert.pooler."),
            mlm_head: of("predictions."),
            sop_head: of("sop_classifier."),
        }
    }

    /// The three tables and their LayerNorm.
    pub fn embeddings(&self) -> u64 {
        self.word_embeddings + self.position_embeddings + self.segment_embeddings + self.embedding_layer_norm
    }

    /// All layers: every set of weights once.
    pub fn layers(&self) -> u64 {
        self.attention_sets * self.attention_block + self.ffn_sets * self.ffn_block
    }

    /// Embeddings, map and layers, no pooler.
    pub fn encoder(&self) -> u64 {
        self.embeddings() + self.embedding_map + self.layers()
    }

    /// The parameters of the model with `heads`.
    pub fn with_heads(config: &AlbertConfig, heads: Heads) -> u64 {
        parameters(config, heads).iter().map(|info| info.shape.elements() as u64).sum()
    }
}
