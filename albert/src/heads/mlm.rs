//! Masked language modeling: predicts pieces from the encoder's output at the masked positions.

use engine::nn::{LayerNorm, Linear, Module};
use engine::ops::{self, CrossEntropyOutput};
use engine::{EngineError, Init, ParamId, ParamScope, Tape, Var};

use crate::config::AlbertConfig;

/// Dense H → E, activation, LayerNorm, then the word embeddings as decoder with a separate bias.
#[derive(Clone, Debug)]
pub struct MlmHead {
    dense: Linear,
    norm: LayerNorm,
    activation: ops::Activation,
    decoder: ParamId,
    bias: ParamId,
}

impl MlmHead {
    /// Creates a head whose decoder is the table `words` `[V, E]`.
    pub(crate) fn new(scope: &mut ParamScope<'_>, config: &AlbertConfig, words: ParamId) -> Result<Self, EngineError> {
        let e = config.embedding_size;
        Ok(Self {
            dense: Linear::new(&mut scope.scope("dense"), config.hidden_size, e)?,
            norm: LayerNorm::new(&mut scope.scope("LayerNorm"), e, config.layer_norm_eps as f32)?,
            activation: config.hidden_act.into(),
            decoder: words,
            bias: scope.add("bias", [config.vocab_size], Init::Zeros)?,
        })
    }

    /// Computes h `[M, E]` at `positions` `[M]` of the encoder's output `[T, H]`.
    ///
    /// # Errors
    /// A position is out of range, or the engine failed.
    pub fn hidden(&self, tape: &Tape<'_>, x: &Var, positions: &Var) -> Result<Var, EngineError> {
        let x = ops::gather_rows(tape, x, positions)?; // [M, H]
        let h = self.dense.forward(tape, &x)?; // [M, E]
        let h = ops::activation(tape, &h, self.activation)?;
        self.norm.forward(tape, &h)
    }

    /// Loss of `labels` `[M]` at `positions` `[M]`, divided by `denominator`.
    ///
    /// # Errors
    /// A position or label is out of range, or the engine failed.
    pub fn loss(
        &self,
        tape: &Tape<'_>,
        x: &Var,
        positions: &Var,
        labels: &Var,
        denominator: f32,
    ) -> Result<CrossEntropyOutput, EngineError> {
        let h = self.hidden(tape, x, positions)?;
        ops::projected_cross_entropy(tape, &h, self.decoder, self.bias, labels, denominator)
    }

    /// Logits `[M, V]` at `positions` `[M]`: for filling masks, not for training.
    ///
    /// # Errors
    /// A position is out of range, or the engine failed.
    pub fn logits(&self, tape: &Tape<'_>, x: &Var, positions: &Var) -> Result<Var, EngineError> {
        let h = self.hidden(tape, x, positions)?;
        ops::linear(tape, &h, self.decoder, Some(self.bias))
    }
}
