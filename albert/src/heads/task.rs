//! Heads of tasks: a linear map of the pooled token or of every token.
//!
//! ```text
//! Sequence   z = dropout(p)·Wᵀ + b      [B, n]   loss = Σ nll / denominator; n = 1: mean (z - y)²
//! Token      z = dropout(x)·Wᵀ + b      [T, n]   loss over the labeled tokens alone
//! Choice     z = dropout(p)·Wᵀ + b      [C]      one score a choice, softmax over the choices of each example
//! Span       z = x·Wᵀ + b               [T, 2]   softmax over the tokens of each sequence, one for the start, one for the
//!                                                end; loss = (start + end) / 2
//! ```
//!
//! p is the pooler's output. Dropout is `classifier_dropout_prob` and is drawn in training alone; spans have none.
//! Sources: Devlin et al. 2019, section 4; the released code and Hugging Face's classes, which agree.

use engine::ops::{self, CrossEntropyOutput, Dropout, Sequences};
use engine::{EngineError, Tape, Var};

use super::SquadV2Head;
use crate::config::{AlbertConfig, TaskHead};
use crate::model::{Finder, Linear};

/// Dropout site of the heads, above all of the encoder's.
pub(super) const SITE: u64 = u32::MAX as u64;

/// The head of a task.
#[derive(Clone, Debug)]
pub enum Task {
    /// Labels of sequences, or one number for each.
    Sequence(Classifier),
    /// Labels of tokens.
    Token(Classifier),
    /// Scores of choices.
    Choice(Classifier),
    /// Starts and ends of answers.
    Span(SpanHead),
    /// The released graph for SQuAD 2.0.
    SquadV2(SquadV2Head),
}

impl Task {
    pub(crate) fn find(find: &Finder<'_>, config: &AlbertConfig, head: TaskHead) -> Result<Self, EngineError> {
        let classifier = || Classifier::find(find, config);
        Ok(match head {
            TaskHead::Sequence { .. } => Self::Sequence(classifier()?),
            TaskHead::Token { .. } => Self::Token(classifier()?),
            TaskHead::Choice => Self::Choice(classifier()?),
            TaskHead::Span => Self::Span(SpanHead { outputs: find.linear("qa_outputs.")? }),
            TaskHead::SquadV2 => Self::SquadV2(SquadV2Head::find(find, config)?),
        })
    }
}

/// dropout, then a linear map to the labels.
#[derive(Clone, Debug)]
pub struct Classifier {
    map: Linear,
    rate: f32,
}

impl Classifier {
    fn find(find: &Finder<'_>, config: &AlbertConfig) -> Result<Self, EngineError> {
        Ok(Self { map: find.linear("classifier.")?, rate: config.classifier_dropout_prob as f32 })
    }

    /// z `[M, n]` of rows `[M, H]`: pooled tokens, or all. `dropout` is the key of the masks; `None` drops nothing.
    ///
    /// # Errors
    /// The engine failed.
    pub fn logits(&self, tape: &Tape<'_>, x: &Var, dropout: Option<u64>) -> Result<Var, EngineError> {
        let x = ops::dropout(tape, x, dropout.map(|seed| Dropout { seed, site: SITE, rate: self.rate }))?;
        self.map.forward(tape, &x)
    }

    /// The score of every row as one vector `[M]`, for a head of one label: regression and choices.
    ///
    /// # Errors
    /// The head has more labels, or the engine failed.
    pub fn scores(&self, tape: &Tape<'_>, x: &Var, dropout: Option<u64>) -> Result<Var, EngineError> {
        let z = self.logits(tape, x, dropout)?;
        ops::reshape(tape, &z, [x.shape()[0]])
    }
}

/// Two logits a token: the answer's first and its last.
#[derive(Clone, Debug)]
pub struct SpanHead {
    outputs: Linear,
}

impl SpanHead {
    /// Start and end logits `[T]` each, of the encoder's output `[T, H]`.
    ///
    /// # Errors
    /// The engine failed.
    pub fn logits(&self, tape: &Tape<'_>, x: &Var) -> Result<[Var; 2], EngineError> {
        let z = self.outputs.forward(tape, x)?;
        Ok([column(tape, &z, 0)?, column(tape, &z, 1)?])
    }

    /// (start + end) / 2 of `starts` and `ends` `[B]`, token indices within each sequence, divided by `denominator`.
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
