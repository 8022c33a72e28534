//! Loss of pre-training over one micro-batch: `mlm_weight` · MLM + `sentence_weight` · sentence, 1:1 as released.
//!
//! Denominators are those of the effective batch, so the gradients of its micro-batches add up to the gradient of the
//! batch. Source: the released code; it adds 1e-5 to M, which changes the eighth digit.

use engine::ops::{self, CrossEntropyOutput};
use engine::{EngineError, List, Tape, Var};

use crate::data::Batch;
use crate::model::{ForwardOptions, Inputs, Model};

/// Weights of the two losses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossWeights {
    /// Weight of masked language modeling.
    pub mlm: f32,
    /// Weight of the sentence objective.
    pub sentence: f32,
}

/// Denominators of the losses: counts of the effective batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Denominators {
    /// Masked tokens, M.
    pub masked: f32,
    /// Sequences, B.
    pub sequences: f32,
}

impl Denominators {
    /// Denominators of one batch.
    pub fn of(batch: &Batch) -> Self {
        Self { masked: batch.masked_positions.len() as f32, sequences: batch.sequences() as f32 }
    }
}

/// Losses of a micro-batch.
#[derive(Debug)]
pub struct PretrainingLoss {
    /// Weighted sum, the root of backward; `None` if both weights are 0.
    pub total: Option<Var>,
    /// Masked language modeling, if the model has that head.
    pub mlm: Option<CrossEntropyOutput>,
    /// The sentence objective, if the model has that head and the batch has labels.
    pub sentence: Option<CrossEntropyOutput>,
}

/// Runs the model over `batch`.
///
/// # Errors
/// The batch does not fit the model, or the engine failed.
pub fn pretraining_loss(
    model: &Model,
    tape: &Tape<'_>,
    batch: &Batch,
    options: &ForwardOptions,
    weights: LossWeights,
    denominators: Denominators,
) -> Result<PretrainingLoss, EngineError> {
    let lists =
        [List::Rows(&batch.masked_positions), List::Plain(&batch.masked_labels), List::Plain(&batch.sop_labels)];
    let (inputs, [positions, labels, sop_labels]) = Inputs::with_lists(tape, batch, lists)?;
    let x = model.encode(tape, &inputs, options)?; // [T, H]
    let mlm = match model.mlm() {
        Some(head) if !batch.masked_positions.is_empty() => {
            Some(head.loss(tape, &x, &positions, &labels, denominators.masked)?)
        }
        _ => None,
    };
    let sentence = match (model.pooler(), model.sentence()) {
        (Some(pooler), Some(head)) if !batch.sop_labels.is_empty() => {
            let pooled = pooler.forward(tape, &x, &inputs.first_tokens)?; // [B, H]
            Some(head.loss(tape, &pooled, &sop_labels, denominators.sequences)?)
        }
        _ => None,
    };
    let weighted = |loss: &Option<CrossEntropyOutput>, weight: f32| -> Result<Option<Var>, EngineError> {
        match loss {
            Some(classified) if weight > 0.0 => {
                let loss = &classified.loss;
                Ok(Some(if weight == 1.0 { loss.clone() } else { ops::scale(tape, loss, weight)? }))
            }
            _ => Ok(None),
        }
    };
    let total = match (weighted(&mlm, weights.mlm)?, weighted(&sentence, weights.sentence)?) {
        (Some(a), Some(b)) => Some(ops::add(tape, &a, &b)?),
        (a, b) => a.or(b),
    };
    Ok(PretrainingLoss { total, mlm, sentence })
}
