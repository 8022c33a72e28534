//! The released configurations, BERT as the paper counts it, and small models for a laptop.

use super::{Activation, AlbertConfig, ConfigError, EmbeddingMap, Sharing};

/// Names that [`AlbertConfig::preset`] accepts, each with a description.
///
/// A released shape without a version is version 2: `base` is `base-v2`.
pub const PRESETS: &[(&str, &str)] = &[
    ("quickstart", "1 M parameters, vocabulary 4,096, sequences of 128: what `albert quickstart` trains"),
    ("tiny", "1.4 M parameters, vocabulary 4,096, sequences of 128: minutes on two cores"),
    ("mini", "3 M parameters, vocabulary 8,192, sequences of 256: hours on a laptop"),
    ("small", "5.6 M parameters, vocabulary 16,384: a day on a workstation"),
    ("base", "base-v2"),
    ("large", "large-v2"),
    ("xlarge", "xlarge-v2"),
    ("xxlarge", "xxlarge-v2"),
    ("base-v1", "12 M parameters, dropout 0.1, 125 k steps on Wikipedia and books"),
    ("large-v1", "18 M parameters, dropout 0.1"),
    ("xlarge-v1", "60 M parameters, dropout 0.1, 16 heads as on the hub (some releases say 32)"),
    ("xxlarge-v1", "223 M parameters, no dropout"),
    ("base-v2", "12 M parameters, no dropout, more data"),
    ("large-v2", "18 M parameters, no dropout"),
    ("xlarge-v2", "60 M parameters, no dropout, 16 heads as on the hub (some releases say 32)"),
    ("xxlarge-v2", "223 M parameters, no dropout"),
    ("bert-base", "109 M parameters: no sharing, E = H = 768, the paper's vocabulary of 30,000"),
    ("bert-large", "335 M parameters: no sharing, E = H = 1,024"),
];

/// The names of [`PRESETS`] in one line.
pub(super) fn names() -> String {
    PRESETS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

impl AlbertConfig {
    /// The configuration called `name` in [`PRESETS`]; the hub's `albert-base-v2` and `albert/albert-base-v2` are
    /// also accepted.
    ///
    /// # Errors
    /// [`ConfigError::UnknownPreset`], which lists the names.
    pub fn preset(name: &str) -> Result<Self, ConfigError> {
        let short = name.strip_prefix("albert/").unwrap_or(name);
        let short = short.strip_prefix("albert-").unwrap_or(short);
        let config = match short {
            "quickstart" => Self { vocab_size: 4096, max_position_embeddings: 128, ..Self::shape(192, 2, 3) },
            "tiny" => Self { vocab_size: 4096, max_position_embeddings: 128, ..Self::shape(256, 4, 4) },
            "mini" => Self { vocab_size: 8192, max_position_embeddings: 256, ..Self::shape(384, 6, 6) },
            "small" => Self { vocab_size: 16_384, ..Self::shape(512, 8, 8) },
            "base" | "base-v2" => Self::shape(768, 12, 12),
            "large" | "large-v2" => Self::shape(1024, 24, 16),
            "xlarge" | "xlarge-v2" => Self::shape(2048, 24, 16),
            "xxlarge" | "xxlarge-v1" | "xxlarge-v2" => Self::shape(4096, 12, 64),
            "base-v1" => Self::shape(768, 12, 12).with_dropout(0.1),
            "large-v1" => Self::shape(1024, 24, 16).with_dropout(0.1),
            "xlarge-v1" => Self::shape(2048, 24, 16).with_dropout(0.1),
            "bert-base" => Self::shape(768, 12, 12).bert(),
            "bert-large" => Self::shape(1024, 24, 16).bert(),
            _ => return Err(ConfigError::UnknownPreset(name.to_owned())),
        };
        debug_assert_eq!(config.validate(), Ok(()));
        Ok(config)
    }

    /// Values of all releases: E 128, F = 4H, vocabulary of 30,000, 512 positions, one shared layer, no
    /// dropout, the tanh form of GELU.
    fn shape(hidden_size: usize, num_hidden_layers: usize, num_attention_heads: usize) -> Self {
        Self {
            vocab_size: 30_000,
            embedding_size: 128,
            hidden_size,
            num_hidden_layers,
            sharing: Sharing::All,
            inner_group_num: 1,
            num_attention_heads,
            intermediate_size: 4 * hidden_size,
            hidden_act: Activation::GeluTanh,
            hidden_dropout_prob: 0.0,
            attention_probs_dropout_prob: 0.0,
            classifier_dropout_prob: 0.1,
            ffn_output_dropout: true,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            initializer_range: 0.02,
            layer_norm_eps: 1e-12,
            embedding_map: EmbeddingMap::WhenSizesDiffer,
            pad_token_id: 0,
            bos_token_id: 2,
            eos_token_id: 3,
        }
    }

    fn with_dropout(mut self, rate: f64) -> Self {
        self.hidden_dropout_prob = rate;
        self.attention_probs_dropout_prob = rate;
        self
    }

    fn bert(mut self) -> Self {
        self.embedding_size = self.hidden_size;
        self.sharing = Sharing::None;
        self.with_dropout(0.1)
    }
}
