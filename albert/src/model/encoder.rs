//! The encoder: blocks applied one after another, with weights assigned by the sharing strategy.
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

use engine::ops::{self, Recompute};
use engine::{EngineError, ParamBuilder, Tape, Var};

use super::block::{AttentionWeights, Block, FfnWeights, Shape};
use super::composed;
use super::{ForwardOptions, Inputs};
use crate::config::AlbertConfig;

/// Implementation of the blocks; the results differ only in rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Each block as one operation with a handwritten backward pass, which recomputes activations.
    Fused(Recompute),
    /// Small operations: slow, for reading and tests.
    Reference,
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
        let shape = Shape::new(config);
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
        // Consecutive blocks with the same weights are applications of one layer.
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
            let problem = format!("block {block} was requested, but there are {}", self.blocks.len());
            return Err(EngineError::Shape { operation: "attention_probabilities".to_owned(), problem });
        };
        composed::probabilities(tape, x, inputs, &block.attention, &self.shape)
    }
}
