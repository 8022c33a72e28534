//! The encoder: blocks applied one after another, with the weights that the sharing strategy gives them.
//!
//! ```text
//! q, k, v = x·Wᵀ + b                                        [T, H] each
//! c = softmax(q·kᵀ/√D + dropout)·v   per sequence and head  [T, H]
//! y = LayerNorm(x + dropout(c·Woᵀ + bo))                    [T, H]
//! f = act(y·W1ᵀ + b1)·W2ᵀ + b2                              [T, F] inside
//! x' = LayerNorm(y + dropout(f))                            [T, H]
//! ```
//!
//! Post-LN, as in BERT. The last dropout is the released code's; Hugging Face lacks it (`ffn_output_dropout`).

use std::collections::HashMap;

use engine::nn::{LayerNorm, Linear};
use engine::ops::{self, Dropout, EncoderLayer, LayerParams, Recompute};
use engine::{EngineError, ParamBuilder, ParamScope, Tape, Var};

use super::composed;
use super::{ForwardOptions, Inputs};
use crate::config::AlbertConfig;

/// Implementation of the blocks; the results differ in rounding alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Each block as one operation with a handwritten backward pass, which recomputes activations.
    Fused(Recompute),
    /// Small operations: slow, for reading and tests.
    Reference,
}

/// The weights of the first half of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AttentionWeights {
    pub(super) query: Linear,
    pub(super) key: Linear,
    pub(super) value: Linear,
    pub(super) dense: Linear,
    pub(super) norm: LayerNorm,
}

/// The weights of the second half.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FfnWeights {
    pub(super) ffn: Linear,
    pub(super) ffn_output: Linear,
    pub(super) norm: LayerNorm,
}

impl AttentionWeights {
    fn new(scope: &mut ParamScope<'_>, config: &AlbertConfig) -> Result<Self, EngineError> {
        let h = config.hidden_size;
        let mut scope = scope.scope("attention");
        // Together they are one [3H, H] projection.
        let [query, key, value] = Linear::contiguous(&mut scope, ["query", "key", "value"], h, h)?;
        let dense = Linear::new(&mut scope.scope("dense"), h, h)?;
        let norm = LayerNorm::new(&mut scope.scope("LayerNorm"), h, config.layer_norm_eps as f32)?;
        Ok(Self { query, key, value, dense, norm })
    }
}

impl FfnWeights {
    fn new(scope: &mut ParamScope<'_>, config: &AlbertConfig) -> Result<Self, EngineError> {
        let (h, f) = (config.hidden_size, config.intermediate_size);
        let ffn = Linear::new(&mut scope.scope("ffn"), f, h)?;
        let ffn_output = Linear::new(&mut scope.scope("ffn_output"), h, f)?;
        let norm = LayerNorm::new(&mut scope.scope("full_layer_layer_norm"), h, config.layer_norm_eps as f32)?;
        Ok(Self { ffn, ffn_output, norm })
    }
}

/// A block as it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Block {
    pub(super) attention: AttentionWeights,
    pub(super) ffn: FfnWeights,
}

impl Block {
    /// The block as one operation.
    fn fused(&self, shape: &Shape, dropout: &BlockDropout, recompute: Recompute) -> EncoderLayer {
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

#[derive(Clone, Debug)]
pub(super) struct Encoder {
    blocks: Vec<Block>,
    shape: Shape,
}

impl Encoder {
    pub(super) fn new(builder: &mut ParamBuilder, config: &AlbertConfig) -> Result<Self, EngineError> {
        let (mut attentions, mut ffns) = (HashMap::new(), HashMap::new());
        let mut blocks = Vec::with_capacity(config.num_blocks());
        for block in config.blocks() {
            let attention = match attentions.get(&block.attention) {
                Some(shared) => *shared,
                None => AttentionWeights::new(&mut builder.scope(&block.attention.to_string()), config)?,
            };
            let ffn = match ffns.get(&block.ffn) {
                Some(shared) => *shared,
                None => FfnWeights::new(&mut builder.scope(&block.ffn.to_string()), config)?,
            };
            attentions.insert(block.attention, attention);
            ffns.insert(block.ffn, ffn);
            blocks.push(Block { attention, ffn });
        }
        let shape = Shape {
            heads: config.num_attention_heads,
            head_size: config.head_size(),
            activation: config.hidden_act.into(),
            hidden_dropout: config.hidden_dropout_prob as f32,
            attention_dropout: config.attention_probs_dropout_prob as f32,
            ffn_output_dropout: config.ffn_output_dropout,
        };
        Ok(Self { blocks, shape })
    }

    pub(super) fn forward(
        &self,
        tape: &Tape<'_>,
        x: Var,
        inputs: &Inputs,
        options: &ForwardOptions,
        on_layer: &mut impl FnMut(usize, &Var) -> Result<(), EngineError>,
    ) -> Result<Var, EngineError> {
        let (mut x, mut at) = (x, 0);
        // Blocks that follow one another with the same weights are applications of one layer.
        for alike in self.blocks.chunk_by(|a, b| a == b) {
            let mut applications = None;
            for block in alike {
                let dropout = self.shape.dropout(at, options.dropout);
                x = match options.blocks {
                    Blocks::Fused(recompute) => {
                        let layer = block.fused(&self.shape, &dropout, recompute);
                        let applications = match &mut applications {
                            Some(applications) => applications,
                            none => {
                                let tokens = x.shape()[0];
                                none.insert(ops::SharedLayerBackward::new(
                                    tape,
                                    &layer,
                                    alike.len(),
                                    tokens,
                                    x.dtype(),
                                )?)
                            }
                        };
                        ops::repeated_encoder_layer(tape, &x, &inputs.sequences, &layer, applications)?
                    }
                    Blocks::Reference => composed::block(tape, &x, inputs, block, &self.shape, &dropout)?,
                };
                at += 1;
                on_layer(at, &x)?;
            }
        }
        Ok(x)
    }

    pub(super) fn attention_probabilities(
        &self,
        tape: &Tape<'_>,
        x: &Var,
        inputs: &Inputs,
        block: usize,
    ) -> Result<Vec<Var>, EngineError> {
        let Some(block) = self.blocks.get(block) else {
            let problem = format!("block {block} was asked for, and there are {}", self.blocks.len());
            return Err(EngineError::Shape { operation: "attention_probabilities".to_owned(), problem });
        };
        composed::probabilities(tape, x, inputs, &block.attention, &self.shape)
    }
}

impl Shape {
    /// The dropouts of block number `at`: every use of a shared layer has masks of its own.
    fn dropout(&self, at: usize, seed: Option<u64>) -> BlockDropout {
        let site = |offset: u64, rate: f32| {
            let seed = seed.filter(|_| rate > 0.0)?;
            // Site 0 is the embeddings'.
            Some(Dropout { seed, site: 1 + 3 * at as u64 + offset, rate })
        };
        BlockDropout {
            probabilities: site(0, self.attention_dropout),
            attention_output: site(1, self.hidden_dropout),
            ffn_output: site(2, if self.ffn_output_dropout { self.hidden_dropout } else { 0.0 }),
        }
    }
}
