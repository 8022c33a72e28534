//! Check for finite model outputs.
//!
//! A checkpoint that is damaged or was trained with too high a learning rate contains NaN or overflows. Its softmax is NaN for every
//! class and its vectors are all NaN; printed, they look like results. `check_finite` is called wherever scores leave a model:
//! [`crate::embed`], [`crate::fill_mask`], [`crate::forward`] and predictions of `albert_tasks::finetune`.
//!
//! Cost: one pass over the outputs; the weights are searched only after a failure.

use std::fmt;

use engine::ParamStore;

/// Error for an output that is NaN or infinite, with its cause.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{output} is not finite; {cause}")]
pub struct NotFinite {
    /// Name of the output, such as `the embedding of text 3`.
    pub output: String,
    /// Cause and remedy.
    pub cause: Cause,
}

/// Cause of an output that is not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A parameter is not finite.
    Parameter {
        /// Name of the parameter.
        name: String,
        /// Number of its elements that are NaN or infinite.
        count: usize,
    },
    /// Every parameter is finite; intermediate values overflow.
    Overflow,
}

impl fmt::Display for Cause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter { name, count } => {
                write!(out, "{count} elements of the model's tensor {name} are NaN or infinite: use another checkpoint")
            }
            Self::Overflow => out.write_str(
                "the model's tensors are finite, but too large: values overflow in f32; use another checkpoint",
            ),
        }
    }
}

/// Checks that all of `values` (rows of `width` elements, computed from `params`) are finite; `output` returns the name of a row.
///
/// # Errors
/// [`NotFinite`] for the first row that is not.
pub fn check_finite(
    values: &[f32],
    width: usize,
    params: &ParamStore,
    output: impl FnOnce(usize) -> String,
) -> Result<(), NotFinite> {
    let Some(at) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
    let count = |id| params.values(id).iter().filter(|value| !value.is_finite()).count();
    let damaged = params.ids().map(|id| (params.name(id), count(id))).find(|&(_, count)| count > 0);
    let cause = match damaged {
        Some((name, count)) => Cause::Parameter { name: name.to_owned(), count },
        None => Cause::Overflow,
    };
    Err(NotFinite { output: output(at / width.max(1)), cause })
}
