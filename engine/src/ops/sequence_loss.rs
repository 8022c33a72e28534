//! Cross-entropy over the tokens of each sequence: one of them is the answer's first, or one of the choices is right.
//!
//! ```text
//! p_t = exp(z_t - lse_b) for the tokens t of sequence b        lse_b = log Σ_t exp z_t
//! loss = Σ_b (lse_b - z[label_b]) / denominator                dz_t = (p_t - [t = label_b]) / denominator
//! ```
//!
//! One logit a token: T numbers in all, so plain loops in f64 are no cost beside the encoder. Source: Devlin et al. 2019,
//! section 4.2 (spans) and 4.4 (choices).
use super::{
    Sequences, check,
    loss::{Classified, check_denominator, factor, reduce},
};
use crate::{
    dtype::{DType, floats},
    error::{EngineError, Result},
    tape::{Op, Pass, Tape, Var, moved},
    tensor::Tensor,
};
use kernels::Element;

const NAME: &str = "sequence_cross_entropy";

/// Softmax cross-entropy over each sequence of `logits` [T]; `labels` [B] count from the sequence's first token.
///
/// # Errors
/// Shapes do not fit, a label is beyond its sequence, or the denominator is not positive.
pub fn sequence_cross_entropy(
    tape: &Tape<'_>,
    logits: &Var,
    sequences: &Sequences,
    labels: &Var,
    denominator: f32,
) -> Result<Classified> {
    let count = sequences.count();
    let dtype = check::float(NAME, logits)?;
    check::shape(NAME, "logits", logits, &[sequences.tokens()])?;
    check::dtype(NAME, "labels", labels, DType::U32)?;
    check::shape(NAME, "labels", labels, &[count])?;
    check_denominator(NAME, denominator)?;
    if !tape.is_dry() {
        let lengths = sequences.offsets().slice::<u32>().windows(2).map(|pair| pair[1] - pair[0]);
        for (at, (&label, length)) in labels.value().slice::<u32>().iter().zip(lengths).enumerate() {
            if label >= length {
                let problem = format!("labels[{at}] is {label}, but sequence {at} has {length} tokens");
                return Err(EngineError::shape(NAME, problem));
            }
        }
    }
    let mut losses = tape.alloc([count], DType::F32)?;
    let mut predictions = tape.alloc([count], DType::U32)?;
    tape.launch(NAME, moved(dtype.bytes() * logits.value().len()), |_| {
        let (losses, predictions) = (losses.slice_mut::<f32>(), predictions.slice_mut::<u32>());
        floats!(dtype, X => {
            for (b, (z, label)) in by_sequence::<X>(logits.value(), sequences, labels.value()).enumerate() {
                let (lse, best) = log_sum(z);
                losses[b] = (lse - f64::from(z[label].to_f32())) as f32;
                predictions[b] = best as u32;
            }
        });
    })?;
    let loss = reduce(tape, &losses, denominator)?;
    let (logits_value, labels) = (logits.value(), labels.value());
    let loss = tape.record(&[logits], loss, || SequenceCrossEntropy {
        logits: logits_value.clone(),
        sequences: sequences.clone(),
        labels: labels.clone(),
        denominator,
    })?;
    Ok(Classified { loss, losses, predictions, labels: labels.clone() })
}

/// Logits and label of every sequence.
fn by_sequence<'a, X: Element + crate::dtype::Scalar>(
    logits: &'a Tensor,
    sequences: &'a Sequences,
    labels: &'a Tensor,
) -> impl Iterator<Item = (&'a [X], usize)> {
    let offsets = sequences.offsets().slice::<u32>();
    let z = logits.slice::<X>();
    let parts = offsets.windows(2).map(move |pair| &z[pair[0] as usize..pair[1] as usize]);
    parts.zip(labels.slice::<u32>().iter().map(|&label| label as usize))
}

/// log Σ exp z and where z is greatest (the first of equals).
fn log_sum<X: Element>(z: &[X]) -> (f64, usize) {
    let best = (1..z.len()).fold(0, |best, i| if z[i].to_f32() > z[best].to_f32() { i } else { best });
    let max = f64::from(z[best].to_f32());
    (max + z.iter().map(|z| (f64::from(z.to_f32()) - max).exp()).sum::<f64>().ln(), best)
}

struct SequenceCrossEntropy {
    logits: Tensor,
    sequences: Sequences,
    labels: Tensor,
    denominator: f32,
}

impl Op for SequenceCrossEntropy {
    fn name(&self) -> &'static str {
        NAME
    }
    fn backward(self: Box<Self>, dy: Tensor, pass: &mut Pass<'_, '_>) -> Result<()> {
        let Self { logits, sequences, labels, denominator } = *self;
        let mut dlogits = pass.tape.alloc(*logits.shape(), logits.dtype())?;
        let moved = moved(2 * logits.dtype().bytes() * logits.len());
        pass.tape.launch("sequence_cross_entropy.backward", moved, |_| {
            let factor = f64::from(factor(&dy, denominator));
            floats!(logits.dtype(), X => {
                let mut out = dlogits.slice_mut::<X>().iter_mut();
                for (z, label) in by_sequence::<X>(&logits, &sequences, &labels) {
                    let (lse, _) = log_sum(z);
                    for (i, z) in z.iter().enumerate() {
                        let p = (f64::from(z.to_f32()) - lse).exp() - f64::from(u8::from(i == label));
                        *out.next().expect("as many as logits") = X::from_f32((factor * p) as f32);
                    }
                }
            });
        })?;
        pass.give(0, dlogits)
    }
}
