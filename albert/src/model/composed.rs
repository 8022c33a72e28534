//! A block from small operations: the definition that the fused operation is held against.
//!
//! One sequence after another, every score in memory: 4·A·S² bytes a sequence and block. For reading and for tests.

use engine::ops::{self, Dropout, Transpose};
use engine::{EngineError, Tape, Var};

use super::Inputs;
use super::encoder::{Block, BlockDropout, Shape};

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
    let q = attention.query.forward(tape, x)?; // [T, H]
    let k = attention.key.forward(tape, x)?;
    let v = attention.value.forward(tape, x)?;
    let mut contexts = Vec::with_capacity(inputs.lengths.len());
    let mut start = 0;
    for &length in &inputs.lengths {
        let rows = start..start + length as usize;
        start = rows.end;
        let [q, k, v] = [&q, &k, &v].map(|x| heads_of(tape, x, rows.clone(), shape)); // [A, S, D] each
        let scores = ops::matmul(tape, &q?, &k?, Transpose { a: false, b: true })?; // [A, S, S]
        let scores = ops::scale(tape, &scores, 1.0 / (shape.head_size as f32).sqrt())?;
        let probabilities = ops::softmax(tape, &scores)?;
        let probabilities = drop_probabilities(tape, &probabilities, rows.start, dropout.probabilities)?;
        let context = ops::matmul(tape, &probabilities, &v?, Transpose { a: false, b: false })?; // [A, S, D]
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

/// Dropout of `[A, S, S]` probabilities. The fused operation numbers the rows of its mask token · A + head; so does this
/// within a sequence, and tells sequences apart by the site: masks of the first sequence are the same in both.
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
fn heads_of(tape: &Tape<'_>, x: &Var, rows: std::ops::Range<usize>, shape: &Shape) -> Result<Var, EngineError> {
    let length = rows.len();
    let x = ops::slice(tape, x, 0, rows)?;
    let x = ops::reshape(tape, &x, [length, shape.heads, shape.head_size])?;
    ops::transpose(tape, &x, 0, 1)
}
