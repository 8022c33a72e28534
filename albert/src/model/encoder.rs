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
//! Post-LN, as in BERT. The last dropout is the released code's; Hugging Face forgets it (`ffn_output_dropout`).

use engine::ops::{self, Dropout, EncoderLayer, LayerParams, Norm, Recompute};
use engine::{EngineError, Tape, Var};

use super::composed;
use super::{Finder, ForwardOptions, Inputs, Linear};
use crate::checkpoint::block_prefix;
use crate::config::{AlbertConfig, BlockId};

/// How the blocks are computed; the results differ in rounding alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Each as one operation with a backward pass of its own, which recomputes as told.
    Fused(Recompute),
    /// From small operations: slow, and plain to read.
    Reference,
}

/// The weights of the first half of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AttentionWeights {
    pub(super) query: Linear,
    pub(super) key: Linear,
    pub(super) value: Linear,
    pub(super) dense: Linear,
    pub(super) norm: Norm,
}

/// The weights of the second half.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FfnWeights {
    pub(super) ffn: Linear,
    pub(super) ffn_output: Linear,
    pub(super) norm: Norm,
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
        EncoderLayer {
            params: LayerParams {
                qkv_weight: [a.query.weight, a.key.weight, a.value.weight],
                qkv_bias: [a.query.bias, a.key.bias, a.value.bias],
                attention_weight: a.dense.weight,
                attention_bias: a.dense.bias,
                attention_norm: a.norm,
                ffn_weight: f.ffn.weight,
                ffn_bias: f.ffn.bias,
                ffn_output_weight: f.ffn_output.weight,
                ffn_output_bias: f.ffn_output.bias,
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

/// The numbers that all blocks share.
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
    pub(super) fn find(find: &Finder<'_>, config: &AlbertConfig) -> Result<Self, EngineError> {
        let attention = |id: BlockId| -> Result<AttentionWeights, EngineError> {
            let prefix = block_prefix(id);
            let linear = |name: &str| find.linear(&format!("{prefix}attention.{name}."));
            Ok(AttentionWeights {
                query: linear("query")?,
                key: linear("key")?,
                value: linear("value")?,
                dense: linear("dense")?,
                norm: find.norm(&format!("{prefix}attention.LayerNorm."))?,
            })
        };
        let ffn = |id: BlockId| -> Result<FfnWeights, EngineError> {
            let prefix = block_prefix(id);
            Ok(FfnWeights {
                ffn: find.linear(&format!("{prefix}ffn."))?,
                ffn_output: find.linear(&format!("{prefix}ffn_output."))?,
                norm: find.norm(&format!("{prefix}full_layer_layer_norm."))?,
            })
        };
        let blocks = config
            .blocks()
            .iter()
            .map(|block| Ok(Block { attention: attention(block.attention)?, ffn: ffn(block.ffn)? }))
            .collect::<Result<_, EngineError>>()?;
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
        seen: &mut impl FnMut(usize, &Var) -> Result<(), EngineError>,
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
                seen(at, &x)?;
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
