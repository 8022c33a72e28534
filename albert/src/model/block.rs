//! A block of the encoder: weights, sizes and dropouts.

use engine::nn::{LayerNorm, Linear};
use engine::ops::{self, Dropout, EncoderLayer, LayerParams, Recompute};
use engine::{EngineError, ParamScope};

use crate::config::AlbertConfig;

/// Weights of the attention half of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AttentionWeights {
    pub(super) query: Linear,
    pub(super) key: Linear,
    pub(super) value: Linear,
    pub(super) dense: Linear,
    pub(super) norm: LayerNorm,
}

/// Weights of the feed-forward half.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FfnWeights {
    pub(super) ffn: Linear,
    pub(super) ffn_output: Linear,
    pub(super) norm: LayerNorm,
}

impl AttentionWeights {
    pub(super) fn new(scope: &mut ParamScope<'_>, config: &AlbertConfig) -> Result<Self, EngineError> {
        let h = config.hidden_size;
        let mut scope = scope.scope("attention");
        // Contiguous, so that they form one [3H, H] projection.
        let [query, key, value] = Linear::contiguous(&mut scope, ["query", "key", "value"], h, h)?;
        let dense = Linear::new(&mut scope.scope("dense"), h, h)?;
        let norm = LayerNorm::new(&mut scope.scope("LayerNorm"), h, config.layer_norm_eps as f32)?;
        Ok(Self { query, key, value, dense, norm })
    }
}

impl FfnWeights {
    pub(super) fn new(scope: &mut ParamScope<'_>, config: &AlbertConfig) -> Result<Self, EngineError> {
        let (h, f) = (config.hidden_size, config.intermediate_size);
        let ffn = Linear::new(&mut scope.scope("ffn"), h, f)?;
        let ffn_output = Linear::new(&mut scope.scope("ffn_output"), f, h)?;
        let norm = LayerNorm::new(&mut scope.scope("full_layer_layer_norm"), h, config.layer_norm_eps as f32)?;
        Ok(Self { ffn, ffn_output, norm })
    }
}

/// A block in execution order, with its weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Block {
    pub(super) attention: AttentionWeights,
    pub(super) ffn: FfnWeights,
}

impl Block {
    /// The block as one operation.
    pub(super) fn fused(&self, shape: &Shape, dropout: &BlockDropout, recompute: Recompute) -> EncoderLayer {
        let Self { attention: a, ffn: f } = self;
        let bias = |linear: Linear| linear.bias.expect("every layer of a block has a bias");
        EncoderLayer {
            params: LayerParams {
                qkv_weight: [a.query.weight, a.key.weight, a.value.weight],
                qkv_bias: [bias(a.query), bias(a.key), bias(a.value)],
                attention_weight: a.dense.weight,
                attention_bias: bias(a.dense),
                attention_norm: a.norm,
                ffn_weight: f.ffn.weight,
                ffn_bias: bias(f.ffn),
                ffn_output_weight: f.ffn_output.weight,
                ffn_output_bias: bias(f.ffn_output),
                output_norm: f.norm,
            },
            attention: ops::Attention {
                heads: shape.heads,
                head_size: shape.head_size,
                scale: 1.0 / (shape.head_size as f32).sqrt(),
                dropout: dropout.probabilities,
            },
            activation: shape.activation,
            attention_output: dropout.attention_output,
            ffn_output: dropout.ffn_output,
            recompute,
        }
    }
}

/// Sizes and rates of all blocks.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) heads: usize,
    pub(super) head_size: usize,
    pub(super) activation: ops::Activation,
    hidden_dropout: f32,
    attention_dropout: f32,
    ffn_output_dropout: bool,
}

/// The three dropouts of one block in one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockDropout {
    pub(super) probabilities: Option<Dropout>,
    pub(super) attention_output: Option<Dropout>,
    pub(super) ffn_output: Option<Dropout>,
}

impl Shape {
    pub(super) fn new(config: &AlbertConfig) -> Self {
        Self {
            heads: config.num_attention_heads,
            head_size: config.head_size(),
            activation: config.hidden_act.into(),
            hidden_dropout: config.hidden_dropout_prob as f32,
            attention_dropout: config.attention_probs_dropout_prob as f32,
            ffn_output_dropout: config.ffn_output_dropout,
        }
    }

    /// Dropouts of block number `at`: every use of a shared layer has different masks.
    pub(super) fn dropout(&self, at: usize, seed: Option<u64>) -> BlockDropout {
        let site = |offset: u64, rate: f32| {
            let seed = seed.filter(|_| rate > 0.0)?;
            // Site 0 belongs to the embeddings.
            Some(Dropout { seed, site: 1 + 3 * at as u64 + offset, rate })
        };
        BlockDropout {
            probabilities: site(0, self.attention_dropout),
            attention_output: site(1, self.hidden_dropout),
            ffn_output: site(2, if self.ffn_output_dropout { self.hidden_dropout } else { 0.0 }),
        }
    }
}
