//! Start and end of an answer: two logits per token.

use engine::nn::{Linear, Module};
use engine::ops::{self, CrossEntropyOutput, Sequences};
use engine::{EngineError, ParamScope, Tape, Var};

/// Two logits per token, for the first and the last token of the answer.
#[derive(Clone, Debug)]
pub struct SpanHead {
    outputs: Linear,
}

impl SpanHead {
    pub(super) fn new(scope: &mut ParamScope<'_>, h: usize) -> Result<Self, EngineError> {
        Ok(Self { outputs: Linear::new(scope, h, 2)? })
    }

    /// Start and end logits, `[T]` each, from the encoder's output `[T, H]`.
    ///
    /// # Errors
    /// The engine failed.
    pub fn logits(&self, tape: &Tape<'_>, x: &Var) -> Result<[Var; 2], EngineError> {
        let z = self.outputs.forward(tape, x)?;
        Ok([column(tape, &z, 0)?, column(tape, &z, 1)?])
    }

    /// Loss (start + end) / 2 of `starts` and `ends` `[B]`, token indices within each sequence, divided by `denominator`.
    ///
    /// # Errors
    /// An index is beyond its sequence, or the engine failed.
    pub fn loss(
        &self,
        tape: &Tape<'_>,
        logits: &[Var; 2],
        sequences: &Sequences,
        answers: [&Var; 2],
        denominator: f32,
    ) -> Result<Var, EngineError> {
        let [start, end] = span_losses(tape, logits, sequences, answers, denominator)?;
        let both = ops::add(tape, &start.loss, &end.loss)?;
        ops::scale(tape, &both, 0.5)
    }
}

/// Cross-entropy of starts and of ends over the tokens of each sequence.
pub(super) fn span_losses(
    tape: &Tape<'_>,
    logits: &[Var; 2],
    sequences: &Sequences,
    answers: [&Var; 2],
    denominator: f32,
) -> Result<[CrossEntropyOutput; 2], EngineError> {
    let loss = |i: usize| ops::sequence_cross_entropy(tape, &logits[i], sequences, answers[i], denominator);
    Ok([loss(0)?, loss(1)?])
}

/// Column `at` of z `[T, n]` as a vector `[T]`.
pub(super) fn column(tape: &Tape<'_>, z: &Var, at: usize) -> Result<Var, EngineError> {
    let one = ops::slice(tape, z, 1, at..at + 1)?;
    ops::reshape(tape, &one, [z.shape()[0]])
}
