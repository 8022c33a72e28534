//! Masked language modeling: the encoder's output at the masked positions back to pieces.

use engine::ops::{self, CrossEntropyOutput, Norm};
use engine::{EngineError, ParamId, Tape, Var};

use crate::config::AlbertConfig;
use crate::model::{Finder, Linear};

/// Dense H → E, activation, LayerNorm, then the word embeddings as decoder with a bias of its own.
#[derive(Clone, Debug)]
pub struct MlmHead {
    dense: Linear,
    norm: Norm,
    activation: ops::Activation,
    decoder: ParamId,
    bias: ParamId,
}

impl MlmHead {
    pub(crate) fn find(find: &Finder<'_>, config: &AlbertConfig) -> Result<Self, EngineError> {
        Ok(Self {
            dense: find.linear("predictions.dense.")?,
            norm: find.norm("predictions.LayerNorm.")?,
            activation: config.hidden_act.into(),
            decoder: find.param("albert.embeddings.word_embeddings.weight")?,
            bias: find.param("predictions.bias")?,
        })
    }

    /// h `[M, E]` at `positions` `[M]` of the encoder's output `[T, H]`.
    ///
    /// # Errors
    /// A position is no token, or the engine failed.
    pub fn hidden(&self, tape: &Tape<'_>, x: &Var, positions: &Var) -> Result<Var, EngineError> {
        let x = ops::gather_rows(tape, x, positions)?; // [M, H]
        let h = self.dense.forward(tape, &x)?; // [M, E]
        let h = ops::activation(tape, &h, self.activation)?;
        ops::layer_norm(tape, &h, self.norm)
    }

    /// The loss of `labels` `[M]` at `positions` `[M]`, divided by `denominator`.
    ///
    /// # Errors
    /// A position is no token, a label is no piece, or the engine failed.
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

    /// The logits `[M, V]` at `positions` `[M]`: for filling masks, not for training.
    ///
    /// # Errors
    /// A position is no token, or the engine failed.
    pub fn logits(&self, tape: &Tape<'_>, x: &Var, positions: &Var) -> Result<Var, EngineError> {
        let h = self.hidden(tape, x, positions)?;
        ops::linear(tape, &h, self.decoder, Some(self.bias))
    }
}
