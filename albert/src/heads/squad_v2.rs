//! The released head for SQuAD 2.0: the end is conditioned on the start, and a classifier predicts whether there is an answer.
//!
//! ```text
//! start    s = x·wsᵀ + bs - 1e30·hidden                              [T]
//! end      e = LayerNorm(tanh([x | x_start]·W0ᵀ + b0))·w1ᵀ + b1 - 1e30·hidden       [T]   x_start: the start's row
//! answer   a = dropout(tanh([Σ_t p_t x_t | x_first]·A0ᵀ + c0))·a1ᵀ   [B]   p = softmax(s) within the sequence
//! loss     ½ (CE(s, start) + CE(e, end)) + ½ BCE(a, is impossible)
//! ```
//!
//! `hidden` is 1 for tokens that cannot be an answer (the question, `[SEP]`), 0 for the paragraph and `[CLS]`. In training
//! x_start is the gold start; in inference it is each of the best starts in turn. a is high if there is no answer. The
//! tanh of `end` and `answer` and the missing bias of a1 are from the released code (`squad_utils.py`); Hugging Face does
//! not have this head.

use engine::nn::{LayerNorm, Linear, Module};
use engine::ops::{self, Dropout, Sequences, Transpose};
use engine::{EngineError, ParamBuilder, Tape, Var};

use super::SITE;
use super::span::{column, span_losses};
use crate::config::AlbertConfig;

/// Added to the logit of a token that cannot be an answer.
const NEVER: f32 = -1e30;

/// Start, end given a start, and whether the question has an answer.
#[derive(Clone, Debug)]
pub struct SquadV2Head {
    start: Linear,
    end_dense: Linear,
    end_norm: LayerNorm,
    end: Linear,
    answer_dense: Linear,
    answer: Linear,
    dropout_rate: f32,
}

impl SquadV2Head {
    pub(super) fn new(builder: &mut ParamBuilder, config: &AlbertConfig) -> Result<Self, EngineError> {
        let h = config.hidden_size;
        let start = Linear::new(&mut builder.scope("start_logits.dense"), h, 1)?;
        let mut end = builder.scope("end_logits");
        let end_dense = Linear::new(&mut end.scope("dense_0"), 2 * h, h)?;
        let end_norm = LayerNorm::new(&mut end.scope("LayerNorm"), h, config.layer_norm_eps as f32)?;
        let end = Linear::new(&mut end.scope("dense_1"), h, 1)?;
        let mut answer = builder.scope("answer_class");
        let answer_dense = Linear::new(&mut answer.scope("dense_0"), 2 * h, h)?;
        let answer = Linear::without_bias(&mut answer.scope("dense_1"), h, 1)?;
        let dropout_rate = config.classifier_dropout_prob as f32;
        Ok(Self { start, end_dense, end_norm, end, answer_dense, answer, dropout_rate })
    }

    /// Mask added by [`start_logits`](Self::start_logits) and [`end_logits`](Self::end_logits): `is_hidden[t]` for
    /// each of the T tokens.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn mask(tape: &Tape<'_>, is_hidden: &[bool]) -> Result<Var, EngineError> {
        let values: Vec<f32> = is_hidden.iter().map(|&hidden| if hidden { NEVER } else { 0.0 }).collect();
        tape.input([values.len()], &values)
    }

    /// Start logits s `[T]` from the encoder's output `[T, H]`.
    ///
    /// # Errors
    /// The engine failed.
    pub fn start_logits(&self, tape: &Tape<'_>, x: &Var, mask: &Var) -> Result<Var, EngineError> {
        let z = self.start.forward(tape, x)?;
        ops::add(tape, &column(tape, &z, 0)?, mask)
    }

    /// End logits e `[T]`; `start_rows` `[T]` is, for each token, the row of its sequence's start.
    ///
    /// # Errors
    /// A row is out of range, or the engine failed.
    pub fn end_logits(&self, tape: &Tape<'_>, x: &Var, start_rows: &Var, mask: &Var) -> Result<Var, EngineError> {
        let starts = ops::gather_rows(tape, x, start_rows)?;
        let h = self.end_dense.forward(tape, &ops::concat(tape, &[x, &starts], 1)?)?;
        let h = self.end_norm.forward(tape, &ops::tanh(tape, &h)?)?;
        let z = self.end.forward(tape, &h)?;
        ops::add(tape, &column(tape, &z, 0)?, mask)
    }

    /// Answer logits a `[B]` from s, high if there is no answer. `offsets` `[B + 1]` are the starts of the sequences,
    /// `dropout` is the key of the masks.
    ///
    /// # Errors
    /// The engine failed.
    pub fn answer_logits(
        &self,
        tape: &Tape<'_>,
        [x, start_logits, first_tokens]: [&Var; 3],
        offsets: &[u32],
        dropout: Option<u64>,
    ) -> Result<Var, EngineError> {
        // One row per sequence, in which the tokens of all other sequences are hidden: the number of operations is then
        // the same for any batch, as the memory planner requires.
        let (tokens, count) = (x.shape()[0], offsets.len() - 1);
        let mut others = vec![NEVER; count * tokens];
        for (row, pair) in others.chunks_exact_mut(tokens).zip(offsets.windows(2)) {
            row[pair[0] as usize..pair[1] as usize].fill(0.0);
        }
        let plain = Transpose { a: false, b: false };
        let ones = tape.input([count, 1], &vec![1.0f32; count])?;
        let z = ops::matmul(tape, &ones, &ops::reshape(tape, start_logits, [1, tokens])?, plain)?; // [B, T]
        let p = ops::softmax(tape, &ops::add(tape, &z, &tape.input([count, tokens], &others)?)?)?;
        let features = ops::matmul(tape, &p, x, plain)?; // [B, H]
        let first = ops::gather_rows(tape, x, first_tokens)?;
        let h = self.answer_dense.forward(tape, &ops::concat(tape, &[&features, &first], 1)?)?;
        let h = ops::tanh(tape, &h)?;
        let dropout = dropout.map(|seed| Dropout { seed, site: SITE, rate: self.dropout_rate });
        let z = self.answer.forward(tape, &ops::dropout(tape, &h, dropout)?)?;
        column(tape, &z, 0)
    }

    /// Loss of `starts` and `ends` `[B]` (indices within each sequence) and `is_impossible` `[B]` (0 or 1), divided by
    /// `denominator`.
    ///
    /// # Errors
    /// An index is beyond its sequence, a flag is neither 0 nor 1, or the engine failed.
    pub fn loss(
        &self,
        tape: &Tape<'_>,
        (logits, answer): (&[Var; 2], &Var),
        sequences: &Sequences,
        [starts, ends, is_impossible]: [&Var; 3],
        denominator: f32,
    ) -> Result<Var, EngineError> {
        let [start, end] = span_losses(tape, logits, sequences, [starts, ends], denominator)?;
        // BCE of a is the cross-entropy of the two logits (0, a).
        let a = ops::reshape(tape, answer, [answer.shape()[0], 1])?;
        let pair = ops::concat(tape, &[&ops::scale(tape, &tape.detach(&a), 0.0)?, &a], 1)?;
        let answered = ops::cross_entropy(tape, &pair, is_impossible, denominator)?;
        let both = ops::add(tape, &start.loss, &end.loss)?;
        ops::scale(tape, &ops::add(tape, &both, &answered.loss)?, 0.5)
    }
}
