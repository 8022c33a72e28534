//! Task heads: a linear map of the pooled token or of every token.
//!
//! ```text
//! Sequence   z = dropout(p)·Wᵀ + b      [B, n]   loss = Σ nll / denominator; n = 1: mean (z - y)²
//! Token      z = dropout(x)·Wᵀ + b      [T, n]   loss over labeled tokens only
//! Choice     z = dropout(p)·Wᵀ + b      [C]      one score a choice, softmax over the choices of each example
//! Span       z = x·Wᵀ + b               [T, 2]   softmax over the tokens of each sequence, one for the start, one for the
//!                                                end; loss = (start + end) / 2
//! ```
//!
//! p is the pooler's output. Dropout is `classifier_dropout_prob` and is applied only in training; spans have none.
//! Sources: Devlin et al. 2019, section 4; the released code and Hugging Face's classes, which agree.

use engine::nn::{Linear, Module};
use engine::ops::{self, Dropout};
use engine::{EngineError, ParamBuilder, Tape, Var};

use super::{SITE, SpanHead, SquadV2Head};
use crate::config::{AlbertConfig, TaskHead};

/// Head of a task.
#[derive(Clone, Debug)]
pub enum Task {
    /// Labels of sequences, or one score for each.
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
    pub(crate) fn new(builder: &mut ParamBuilder, config: &AlbertConfig, head: TaskHead) -> Result<Self, EngineError> {
        let h = config.hidden_size;
        let mut classifier = || -> Result<Classifier, EngineError> {
            let map = Linear::new(&mut builder.scope("classifier"), h, head.labels())?;
            Ok(Classifier { map, rate: config.classifier_dropout_prob as f32 })
        };
        Ok(match head {
            TaskHead::Sequence { .. } => Self::Sequence(classifier()?),
            TaskHead::Token { .. } => Self::Token(classifier()?),
            TaskHead::Choice => Self::Choice(classifier()?),
            TaskHead::Span => Self::Span(SpanHead::new(&mut builder.scope("qa_outputs"), h)?),
            TaskHead::SquadV2 => Self::SquadV2(SquadV2Head::new(builder, config)?),
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
    /// Logits z `[M, n]` of rows `[M, H]`: pooled tokens, or all. `dropout` is the key of the masks; `None` drops nothing.
    ///
    /// # Errors
    /// The engine failed.
    pub fn logits(&self, tape: &Tape<'_>, x: &Var, dropout: Option<u64>) -> Result<Var, EngineError> {
        let x = ops::dropout(tape, x, dropout.map(|seed| Dropout { seed, site: SITE, rate: self.rate }))?;
        self.map.forward(tape, &x)
    }

    /// Scores of all rows as one vector `[M]`, for a head of one label: regression and choices.
    ///
    /// # Errors
    /// The head has more labels, or the engine failed.
    pub fn scores(&self, tape: &Tape<'_>, x: &Var, dropout: Option<u64>) -> Result<Var, EngineError> {
        let z = self.logits(tape, x, dropout)?;
        ops::reshape(tape, &z, [x.shape()[0]])
    }
}
