//! Hyperparameters of a model, under the names that `config.json` uses.
//!
//! One structure describes ALBERT and, as a special case, BERT (no sharing, E = H). It is read from and written to
//! three places:
//!
//! * Hugging Face `config.json` ([`AlbertConfig::from_hf_json`]), where `"gelu"` is the erf form;
//! * Google's `albert_config.json` ([`AlbertConfig::from_google_json`]), where `"gelu"` is the tanh form;
//! * a recipe (serde, strict: unknown keys are refused), where the activation is named without that ambiguity.
//!
//! Source: Lan et al. 2020, tables 1 to 4; the released configurations. Limits: absolute learned positions and tied
//! input and output embeddings only, as in every release.
//!
//! ```
//! use albert::AlbertConfig;
//!
//! let config = AlbertConfig::preset("base")?;
//! assert_eq!((config.embedding_size, config.hidden_size, config.num_hidden_layers), (128, 768, 12));
//! # Ok::<(), albert::config::ConfigError>(())
//! ```

mod heads;
mod json;
mod presets;
mod sharing;
#[cfg(test)]
pub(crate) mod tests;

pub use heads::{Heads, TaskHead};
pub use json::{ConfigIdentity, ConfigReading, ProblemType};
pub use presets::PRESETS;
pub use sharing::{Block, BlockId, Sharing};

use engine::ops;
use serde::{Deserialize, Serialize};

/// Error in a configuration: one sentence that names the change to make.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A value that is impossible, alone or in combination.
    #[error("model configuration: {0}")]
    Invalid(String),
    /// Text that is not a JSON object.
    #[error("model configuration: not a JSON object: {0}")]
    Json(String),
    /// A required key is missing.
    #[error("model configuration: `{0}` is missing; without it the sizes of the model are unknown")]
    Missing(&'static str),
    /// A value of the wrong kind.
    #[error("model configuration: `{key}` is {found}, expected {expected}")]
    WrongType {
        /// Key with the wrong value.
        key: String,
        /// The value, as JSON.
        found: String,
        /// Expected kind of value.
        expected: &'static str,
    },
    /// No preset has this name.
    #[error("no model preset is called `{0}`; expected one of {known}", known = presets::names())]
    UnknownPreset(String),
}

/// The non-linearity of the feed-forward network and of the MLM head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), which every English ALBERT was trained with.
    GeluTanh,
    /// 0.5·x·(1 + erf(x/√2)), Hugging Face's `gelu`.
    GeluErf,
    /// max(x, 0), used by the Chinese releases.
    Relu,
}

impl Activation {
    /// Its name in Hugging Face's `hidden_act`.
    pub fn hf_name(self) -> &'static str {
        match self {
            Self::GeluTanh => "gelu_new",
            Self::GeluErf => "gelu",
            Self::Relu => "relu",
        }
    }
}

impl From<Activation> for ops::Activation {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::GeluTanh => Self::GeluTanh,
            Activation::GeluErf => Self::GeluErf,
            Activation::Relu => Self::Relu,
        }
    }
}

/// Family of tensor names in a model's files. Both compute the same function: a BERT is an ALBERT without sharing, E = H.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// `model_type` = `"albert"`.
    #[default]
    Albert,
    /// `model_type` = `"bert"`.
    Bert,
}

/// Condition for the linear map from E to H.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmbeddingMap {
    /// Always, even if E = H, as in Hugging Face.
    Always,
    /// Only if E ≠ H, as in the released code; a BERT has none.
    WhenSizesDiffer,
}

/// All hyperparameters that the paper, the released code or Hugging Face defines for a model.
///
/// Letters: V `vocab_size`, E `embedding_size`, H `hidden_size`, F `intermediate_size`, A `num_attention_heads`,
/// N `num_hidden_layers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlbertConfig {
    /// V: pieces in the vocabulary.
    pub vocab_size: usize,
    /// E: width of the three embedding tables and of the MLM head.
    pub embedding_size: usize,
    /// H: width of the encoder.
    pub hidden_size: usize,
    /// N: number of layers that are applied.
    pub num_hidden_layers: usize,
    /// Weight sharing between layers; includes `num_hidden_groups`.
    pub sharing: Sharing,
    /// Blocks (attention + feed-forward) that one layer runs one after another.
    pub inner_group_num: usize,
    /// A: attention heads; each has H/A columns.
    pub num_attention_heads: usize,
    /// F: width inside the feed-forward network.
    pub intermediate_size: usize,
    /// Non-linearity of the feed-forward network and of the MLM head.
    pub hidden_act: Activation,
    /// Dropout after the embeddings, the attention output and (see `ffn_output_dropout`) the feed-forward network. Every
    /// dropout rate is rounded to a multiple of 1/256: 0.1 is 26/256.
    pub hidden_dropout_prob: f64,
    /// Dropout on the attention probabilities.
    pub attention_probs_dropout_prob: f64,
    /// Dropout before the classifier of a fine-tuning head.
    pub classifier_dropout_prob: f64,
    /// True if `hidden_dropout_prob` also applies to the output of the feed-forward network, as in the released code but
    /// not in Hugging Face.
    pub ffn_output_dropout: bool,
    /// Rows of the position table: the maximum sequence length.
    pub max_position_embeddings: usize,
    /// Rows of the segment table.
    pub type_vocab_size: usize,
    /// Standard deviation of the truncated normal distribution of initial weights (cut at two deviations).
    pub initializer_range: f64,
    /// ε under the root of every LayerNorm.
    pub layer_norm_eps: f64,
    /// Condition for the map from E to H.
    pub embedding_map: EmbeddingMap,
    /// Id of the padding piece.
    pub pad_token_id: usize,
    /// Id of the piece that opens a sequence, `[CLS]`.
    pub bos_token_id: usize,
    /// Id of the piece that closes a segment, `[SEP]`.
    pub eos_token_id: usize,
}

impl AlbertConfig {
    /// D: columns of one attention head.
    pub fn head_size(&self) -> usize {
        self.hidden_size / self.num_attention_heads
    }

    /// True if the linear map from E to H is part of the model.
    pub fn has_embedding_map(&self) -> bool {
        self.embedding_map == EmbeddingMap::Always || self.embedding_size != self.hidden_size
    }

    /// True for a BERT: separate weights in every layer, E = H, no map between them.
    pub fn is_bert(&self) -> bool {
        self.sharing.groups(self.num_hidden_layers) == self.num_hidden_layers
            && !matches!(self.sharing, Sharing::Attention | Sharing::Ffn)
            && self.inner_group_num == 1
            && !self.has_embedding_map()
    }

    /// Blocks (attention + feed-forward) that one forward pass runs: N · `inner_group_num`.
    pub fn num_blocks(&self) -> usize {
        self.num_hidden_layers * self.inner_group_num
    }

    /// Blocks in execution order, each with its weights.
    pub fn blocks(&self) -> Vec<Block> {
        self.sharing.blocks(self.num_hidden_layers, self.inner_group_num)
    }

    /// Sets of attention weights, in the order of their first use.
    pub fn attention_sets(&self) -> Vec<BlockId> {
        sharing::distinct(self.blocks().iter().map(|block| block.attention))
    }

    /// Sets of feed-forward weights, in the order of their first use.
    pub fn ffn_sets(&self) -> Vec<BlockId> {
        sharing::distinct(self.blocks().iter().map(|block| block.ffn))
    }

    /// `num_hidden_groups` as Hugging Face's `config.json` states it: under attention-only and FFN-only sharing,
    /// every layer is a separate group there, with a copy of group 0's shared half.
    pub fn num_hidden_groups(&self) -> usize {
        self.sharing.groups(self.num_hidden_layers)
    }

    /// Checks every value, alone and in combination.
    ///
    /// # Errors
    /// The first invalid value, in one sentence.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_sizes()?;
        self.validate_sharing()?;
        let invalid = |message: String| Err(ConfigError::Invalid(message));
        for (key, rate) in [
            ("hidden_dropout_prob", self.hidden_dropout_prob),
            ("attention_probs_dropout_prob", self.attention_probs_dropout_prob),
            ("classifier_dropout_prob", self.classifier_dropout_prob),
        ] {
            if !(0.0..1.0).contains(&rate) {
                return invalid(format!("`{key}` is {rate}, but a dropout rate is at least 0 and below 1"));
            }
        }
        if !(self.initializer_range > 0.0 && self.initializer_range < 10.0) {
            return invalid(format!(
                "`initializer_range` is {}, expected a standard deviation above 0 and below 10 (released: 0.02)",
                self.initializer_range
            ));
        }
        if !(self.layer_norm_eps > 0.0 && self.layer_norm_eps < 1.0) {
            return invalid(format!(
                "`layer_norm_eps` is {}, expected a number above 0 and below 1 (released: 1e-12)",
                self.layer_norm_eps
            ));
        }
        for (key, id) in [
            ("pad_token_id", self.pad_token_id),
            ("bos_token_id", self.bos_token_id),
            ("eos_token_id", self.eos_token_id),
        ] {
            if id >= self.vocab_size {
                return invalid(format!(
                    "`{key}` is {id}, but `vocab_size` is {}; an id must be below it",
                    self.vocab_size
                ));
            }
        }
        Ok(())
    }

    fn validate_sizes(&self) -> Result<(), ConfigError> {
        /// Ids and positions are 32-bit; no machine could store a model beyond these bounds.
        const LARGEST: usize = 1 << 24;
        /// Deeper than any model that was ever trained; parameters are listed layer by layer.
        const DEEPEST: usize = 1 << 12;
        for (key, value, largest) in [
            ("vocab_size", self.vocab_size, LARGEST),
            ("embedding_size", self.embedding_size, LARGEST),
            ("hidden_size", self.hidden_size, LARGEST),
            ("num_hidden_layers", self.num_hidden_layers, DEEPEST),
            ("inner_group_num", self.inner_group_num, DEEPEST),
            ("num_attention_heads", self.num_attention_heads, LARGEST),
            ("intermediate_size", self.intermediate_size, LARGEST),
            ("max_position_embeddings", self.max_position_embeddings, LARGEST),
            ("type_vocab_size", self.type_vocab_size, LARGEST),
        ] {
            if value == 0 || value > largest {
                return Err(ConfigError::Invalid(format!("`{key}` is {value}, expected a number from 1 to {largest}")));
            }
        }
        if self.num_blocks() > 4 * DEEPEST {
            return Err(ConfigError::Invalid(format!(
                "`num_hidden_layers` {} times `inner_group_num` {} is {} blocks, expected {} at most",
                self.num_hidden_layers,
                self.inner_group_num,
                self.num_blocks(),
                4 * DEEPEST
            )));
        }
        if !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            return Err(ConfigError::Invalid(format!(
                "`hidden_size` {} is not a multiple of `num_attention_heads` {}; every head needs the same width",
                self.hidden_size, self.num_attention_heads
            )));
        }
        Ok(())
    }

    fn validate_sharing(&self) -> Result<(), ConfigError> {
        match self.sharing {
            Sharing::Groups(groups) if groups == 0 || groups > self.num_hidden_layers => {
                Err(ConfigError::Invalid(format!(
                    "{groups} layer groups for {} layers; there must be from 1 to `num_hidden_layers` of them",
                    self.num_hidden_layers
                )))
            }
            Sharing::Attention | Sharing::Ffn if self.inner_group_num != 1 => Err(ConfigError::Invalid(format!(
                "`sharing` = \"{}\" requires `inner_group_num` = 1, not {}; use \"groups-N\" for inner groups",
                self.sharing, self.inner_group_num
            ))),
            _ => Ok(()),
        }
    }
}
