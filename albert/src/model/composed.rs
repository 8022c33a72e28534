//! A block composed of small operations: the reference for tests of the fused operation.
//!
//! Sequences are computed one by one, with all scores in memory: 4·A·S² bytes a sequence and block. For reading and for tests.

use engine::nn::Module;
use engine::ops::{self, Dropout, Transpose};
use engine::{EngineError, Tape, Var};

use super::Inputs;
use super::block::{AttentionWeights, Block, BlockDropout, Shape};
use std::ops::Range;

/// Added to the scores of hidden keys: their probabilities become 0 in f32.
const HIDDEN: f32 = -1e9;

/// One block over `x` `[T, H]`.
pub(super) fn block(
    tape: &Tape<'_>,
    x: &Var,
    inputs: &Inputs,
    weights: &Block,
    shape: &Shape,
    dropout: &BlockDropout,
) -> Result<Var, EngineError> {
    let attention = &weights.attention;
    let v = attention.value.forward(tape, x)?; // [T, H]
    let mut contexts = Vec::with_capacity(inputs.lengths.len());
    let all = probabilities(tape, x, inputs, attention, shape)?;
    for (rows, probabilities) in inputs.rows().zip(&all) {
        let v = heads_of(tape, &v, rows.clone(), shape)?; // [A, S, D]
        let probabilities = drop_probabilities(tape, probabilities, rows.start, dropout.probabilities)?;
        let context = ops::matmul(tape, &probabilities, &v, Transpose { a: false, b: false })?; // [A, S, D]
        let context = ops::transpose(tape, &context, 0, 1)?; // [S, A, D]
        contexts.push(ops::reshape(tape, &context, [rows.len(), shape.heads * shape.head_size])?);
    }
    let context = ops::concat(tape, &contexts.iter().collect::<Vec<_>>(), 0)?; // [T, H]
    let o = attention.dense.forward(tape, &context)?;
    let o = ops::dropout(tape, &o, dropout.attention_output)?;
    let y = ops::layer_norm_residual(tape, &o, x, attention.norm)?; // [T, H]

    let f = weights.ffn.ffn.forward(tape, &y)?; // [T, F]
    let f = ops::activation(tape, &f, shape.activation)?;
    let f = weights.ffn.ffn_output.forward(tape, &f)?; // [T, H]
    let f = ops::dropout(tape, &f, dropout.ffn_output)?;
    ops::layer_norm_residual(tape, &f, &y, weights.ffn.norm)
}

/// Computes softmax(q·kᵀ/√D) `[A, S, S]` of each sequence, with probability 0 for hidden keys.
pub(super) fn probabilities(
    tape: &Tape<'_>,
    x: &Var,
    inputs: &Inputs,
    attention: &AttentionWeights,
    shape: &Shape,
) -> Result<Vec<Var>, EngineError> {
    let q = attention.query.forward(tape, x)?; // [T, H]
    let k = attention.key.forward(tape, x)?;
    let of_sequence = |(b, rows): (usize, Range<usize>)| {
        let [q, k] = [&q, &k].map(|x| heads_of(tape, x, rows.clone(), shape)); // [A, S, D] each
        let scores = ops::matmul(tape, &q?, &k?, Transpose { a: false, b: true })?; // [A, S, S]
        let mut scores = ops::scale(tape, &scores, 1.0 / (shape.head_size as f32).sqrt())?;
        if let Some(&keys) = inputs.keys.get(b) {
            let hide = |key| if key < keys as usize { 0.0 } else { HIDDEN };
            let mask: Vec<f32> = (0..rows.len()).map(hide).collect();
            scores = ops::add(tape, &scores, &tape.input([rows.len()], &mask)?)?;
        }
        ops::softmax(tape, &scores)
    };
    inputs.rows().enumerate().map(of_sequence).collect()
}

/// Dropout of `[A, S, S]` probabilities. The mask row is token · A + head as in the fused operation, but the token
/// counts within a sequence and sequences differ in the site: only the masks of the first sequence are equal in both.
fn drop_probabilities(
    tape: &Tape<'_>,
    probabilities: &Var,
    start: usize,
    dropout: Option<Dropout>,
) -> Result<Var, EngineError> {
    let Some(dropout) = dropout else { return Ok(probabilities.clone()) };
    let site = dropout.site | (start as u64) << 32;
    let by_token = ops::transpose(tape, probabilities, 0, 1)?; // [S, A, S]
    let by_token = ops::dropout(tape, &by_token, Some(Dropout { site, ..dropout }))?;
    ops::transpose(tape, &by_token, 0, 1)
}

/// Rows `rows` of `x` `[T, H]` as one matrix a head: `[A, S, D]`.
fn heads_of(tape: &Tape<'_>, x: &Var, rows: Range<usize>, shape: &Shape) -> Result<Var, EngineError> {
    let length = rows.len();
    let x = ops::slice(tape, x, 0, rows)?;
    let x = ops::reshape(tape, &x, [length, shape.heads, shape.head_size])?;
    ops::transpose(tape, &x, 0, 1)
}
