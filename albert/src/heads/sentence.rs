//! The pooler and the sentence-order head on it.

use engine::nn::{Linear, Module};
use engine::ops::{self, CrossEntropyOutput};
use engine::{EngineError, ParamScope, Tape, Var};

/// tanh(x·Wᵀ + b) of the first token of each sequence.
#[derive(Clone, Debug)]
pub struct Pooler {
    dense: Linear,
}

impl Pooler {
    pub(crate) fn new(scope: &mut ParamScope<'_>, h: usize) -> Result<Self, EngineError> {
        Ok(Self { dense: Linear::new(scope, h, h)? })
    }

    /// Computes p `[B, H]` from the encoder's output `[T, H]`; `first_tokens` `[B]` are the rows of the `[CLS]` tokens.
    ///
    /// # Errors
    /// A row is out of range, or the engine failed.
    pub fn forward(&self, tape: &Tape<'_>, x: &Var, first_tokens: &Var) -> Result<Var, EngineError> {
        let x = ops::gather_rows(tape, x, first_tokens)?;
        let p = self.dense.forward(tape, &x)?;
        ops::tanh(tape, &p)
    }
}

/// Two classes on the pooler: in order or swapped (SOP), continuation or random (NSP).
#[derive(Clone, Debug)]
pub struct SentenceHead {
    classifier: Linear,
}

impl SentenceHead {
    pub(crate) fn new(scope: &mut ParamScope<'_>, h: usize) -> Result<Self, EngineError> {
        Ok(Self { classifier: Linear::new(&mut scope.scope("classifier"), h, 2)? })
    }

    /// Logits `[B, 2]` from the pooler's output `[B, H]`.
    ///
    /// # Errors
    /// The engine failed.
    pub fn logits(&self, tape: &Tape<'_>, pooled: &Var) -> Result<Var, EngineError> {
        self.classifier.forward(tape, pooled)
    }

    /// Loss of `labels` `[B]`, divided by `denominator`.
    ///
    /// # Errors
    /// A label is neither 0 nor 1, or the engine failed.
    pub fn loss(
        &self,
        tape: &Tape<'_>,
        pooled: &Var,
        labels: &Var,
        denominator: f32,
    ) -> Result<CrossEntropyOutput, EngineError> {
        let logits = self.logits(tape, pooled)?;
        ops::cross_entropy(tape, &logits, labels, denominator)
    }
}
