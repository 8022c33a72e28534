//! Cross-entropy over the tokens of each sequence: one of them is the answer's first, or one of the choices is right.
//!
//! ```text
//! p_t = exp(z_t - lse_b) for the tokens t of sequence b        lse_b = log Σ_t exp z_t
//! loss = Σ_b (lse_b - z[label_b]) / denominator                dz_t = (p_t - [t = label_b]) / denominator
//! ```
//!
//! The kernels are those of [`cross_entropy`](super::cross_entropy()) for rows of different lengths. Source: Devlin et al.
//! 2019, section 4.2 (spans) and 4.4 (choices).
use super::{
    Sequences, check,
    loss::{CrossEntropyOutput, alloc_each_loss, check_denominator, each_loss, reduce},
    projection_on_gpu::MeanGradient,
};
use crate::{
    device::Device,
    dtype::{DType, floats},
    error::{EngineError, Result},
    tape::{BackwardContext, Op, Tape, Var, moved},
    tensor::Tensor,
};
use kernels::cross_entropy as kernel;

const NAME: &str = "sequence_cross_entropy";

/// Softmax cross-entropy over each sequence of `logits` `[T]`; `labels` `[B]` count from the sequence's first token.
///
/// # Errors
/// Shapes do not fit, a label is beyond its sequence, or the denominator is not positive.
pub fn sequence_cross_entropy(
    tape: &Tape<'_>,
    logits: &Var,
    sequences: &Sequences,
    labels: &Var,
    denominator: f32,
) -> Result<CrossEntropyOutput> {
    let count = sequences.count();
    let dtype = check::float(NAME, logits)?;
    check::shape(NAME, "logits", logits, &[sequences.tokens()])?;
    check::dtype(NAME, "labels", labels, DType::U32)?;
    check::shape(NAME, "labels", labels, &[count])?;
    check_denominator(NAME, denominator)?;
    if !tape.is_dry() {
        let offsets = sequences.offsets().integers()?;
        let lengths = offsets.windows(2).map(|pair| pair[1] - pair[0]);
        for (at, (&label, length)) in labels.integers()?.iter().zip(lengths).enumerate() {
            if label >= length {
                let problem = format!("labels[{at}] is {label}, but sequence {at} has {length} tokens");
                return Err(EngineError::shape(NAME, problem));
            }
        }
    }
    let (logits_value, offsets) = (logits.value(), sequences.offsets().value());
    let mut losses = tape.alloc([count], DType::F32)?;
    let mut norms = tape.alloc([count, 2], DType::F32)?;
    let mut predictions = tape.alloc([count], DType::U32)?;
    tape.launch_on(NAME, moved(dtype.bytes() * logits_value.len()), |device| match device {
        Device::Cpu(cpu) => {
            floats!(dtype, X => kernel::sequences_forward(cpu, offsets.slice(), logits_value.slice::<X>(), labels.value().slice(), kernel::Losses { losses: losses.slice_mut(), norms: norms.slice_mut(), predictions: predictions.slice_mut() }));
            Ok(())
        }
        Device::Cuda(gpu) => {
            let outputs = [&mut losses, &mut norms, &mut predictions].map(Tensor::address_mut);
            let inputs = [logits_value, labels.value(), offsets].map(Tensor::address);
            gpu.sequence_cross_entropy(inputs, dtype, outputs, count)
        }
    })?;
    let loss = reduce(tape, &losses, denominator)?;
    let loss = tape.record(&[logits], loss, || SequenceCrossEntropy {
        logits: logits_value.clone(),
        sequences: sequences.clone(),
        labels: labels.value().clone(),
        norms,
        denominator,
    })?;
    Ok(CrossEntropyOutput { loss, losses, predictions, labels: labels.clone() })
}

struct SequenceCrossEntropy {
    logits: Tensor,
    sequences: Sequences,
    labels: Tensor,
    norms: Tensor,
    denominator: f32,
}

impl Op for SequenceCrossEntropy {
    fn name(&self) -> &'static str {
        NAME
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let Self { logits, sequences, labels, norms, denominator } = *self;
        let (dtype, offsets) = (logits.dtype(), sequences.offsets().value());
        let mut dlogits = ctx.tape.alloc(*logits.shape(), dtype)?;
        let mut dlosses = alloc_each_loss(ctx.tape, labels.len())?;
        let moved = moved(2 * dtype.bytes() * logits.len());
        ctx.tape.launch_on("sequence_cross_entropy.backward", moved, |device| match device {
            Device::Cpu(cpu) => {
                let dlosses = each_loss(&dy, denominator, &mut dlosses);
                let upstream = kernel::Upstream { norms: norms.slice(), dlosses };
                floats!(dtype, X => kernel::sequences_backward(cpu, offsets.slice(), logits.slice::<X>(), labels.slice(), upstream, dlogits.slice_mut::<X>()));
                Ok(())
            }
            Device::Cuda(gpu) => {
                let inputs = [&logits, &labels, &norms, offsets].map(Tensor::address);
                let (to, sizes) = (dlogits.address_mut(), [labels.len(), sequences.longest()]);
                gpu.sequence_cross_entropy_backward(inputs, MeanGradient::new(&dy, denominator), dtype, to, sizes)
            }
        })?;
        ctx.accumulate_grad(0, dlogits)
    }
}
