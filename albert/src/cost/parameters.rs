//! Exact parameter counts: V·E + (P+2)·E + 2E, E·H + H, sets · [4(H²+H) + 2H] and sets · [2HF + F + H + 2H], H² + H.

use std::fmt;

use serde::Serialize;

use crate::config::AlbertConfig;

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
    /// How many sets of attention weights exist.
    pub attention_sets: u64,
    /// One feed-forward block with its LayerNorm: 2HF + F + H + 2H.
    pub ffn_block: u64,
    /// How many sets of feed-forward weights exist.
    pub ffn_sets: u64,
    /// H² + H.
    pub pooler: u64,
    /// H·E + E + 2E + V: dense, LayerNorm, output bias; the decoder is the word table.
    pub mlm_head: u64,
    /// 2H + 2.
    pub sop_head: u64,
}

/// What stands on top of the encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// `AlbertModel`: the pooler alone.
    Model,
    /// The encoder without pooler.
    Encoder,
    /// `AlbertForMaskedLM`: MLM head, no pooler.
    MaskedLm,
    /// `AlbertForPreTraining`: pooler, MLM and SOP heads.
    PreTraining,
    /// `AlbertForSequenceClassification` with that many classes; 1 is a regression.
    SequenceClassification(usize),
    /// `AlbertForMultipleChoice`: one score from the pooler.
    MultipleChoice,
    /// `AlbertForTokenClassification` with that many classes, no pooler.
    TokenClassification(usize),
    /// `AlbertForQuestionAnswering`: start and end, no pooler.
    QuestionAnswering,
    /// The released graph for SQuAD v2: pooler, start, end given start, answerability.
    SquadV2,
}

impl Head {
    /// The heads that a report lists.
    pub const LISTED: [Self; 9] = [
        Self::Model,
        Self::Encoder,
        Self::MaskedLm,
        Self::PreTraining,
        Self::SequenceClassification(2),
        Self::SequenceClassification(3),
        Self::MultipleChoice,
        Self::QuestionAnswering,
        Self::SquadV2,
    ];
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model => f.write_str("AlbertModel"),
            Self::Encoder => f.write_str("encoder without pooler"),
            Self::MaskedLm => f.write_str("AlbertForMaskedLM"),
            Self::PreTraining => f.write_str("AlbertForPreTraining"),
            Self::SequenceClassification(1) => f.write_str("AlbertForSequenceClassification, regression"),
            Self::SequenceClassification(classes) => {
                write!(f, "AlbertForSequenceClassification, {classes} classes")
            }
            Self::MultipleChoice => f.write_str("AlbertForMultipleChoice"),
            Self::TokenClassification(classes) => write!(f, "AlbertForTokenClassification, {classes} classes"),
            Self::QuestionAnswering => f.write_str("AlbertForQuestionAnswering"),
            Self::SquadV2 => f.write_str("SQuAD v2, as released"),
        }
    }
}

impl ParameterCounts {
    /// Counts the parameters of `config`.
    pub fn new(config: &AlbertConfig) -> Self {
        let [v, e, h, f, positions, segments] = [
            config.vocab_size,
            config.embedding_size,
            config.hidden_size,
            config.intermediate_size,
            config.max_position_embeddings,
            config.type_vocab_size,
        ]
        .map(|size| size as u64);
        Self {
            word_embeddings: v * e,
            position_embeddings: positions * e,
            segment_embeddings: segments * e,
            embedding_layer_norm: 2 * e,
            embedding_map: if config.has_embedding_map() { e * h + h } else { 0 },
            attention_block: 4 * (h * h + h) + 2 * h,
            attention_sets: config.attention_sets().len() as u64,
            ffn_block: 2 * h * f + f + h + 2 * h,
            ffn_sets: config.ffn_sets().len() as u64,
            pooler: h * h + h,
            mlm_head: h * e + e + 2 * e + v,
            sop_head: 2 * h + 2,
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

    /// The parameters of the model with `head`.
    pub fn with_head(config: &AlbertConfig, head: Head) -> u64 {
        let counts = Self::new(config);
        let h = config.hidden_size as u64;
        let pooled = counts.encoder() + counts.pooler;
        let classes = |classes: usize| classes as u64 * (h + 1);
        match head {
            Head::Model => pooled,
            Head::Encoder => counts.encoder(),
            Head::MaskedLm => counts.encoder() + counts.mlm_head,
            Head::PreTraining => pooled + counts.mlm_head + counts.sop_head,
            Head::SequenceClassification(n) => pooled + classes(n),
            Head::MultipleChoice => pooled + classes(1),
            Head::TokenClassification(n) => counts.encoder() + classes(n),
            Head::QuestionAnswering => counts.encoder() + classes(2),
            Head::SquadV2 => {
                let start = h + 1;
                let end = (2 * h * h + h) + 2 * h + (h + 1);
                let answerable = (2 * h * h + h) + h;
                pooled + start + end + answerable
            }
        }
    }
}
