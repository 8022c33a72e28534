//! Outputs of a model that are not finite are errors, not results.
//!
//! A damaged checkpoint or one trained with too high a learning rate holds NaN or overflows. Its softmax is NaN for every
//! class and its vectors are NaN throughout; printed, they look like answers. [`check_finite`] stands wherever scores leave
//! a model: [`crate::embed`], [`crate::fill_mask`], [`crate::forward`] and predictions of [`crate::finetune`].
//!
//! Cost: one pass over the outputs; the weights are searched after a failure alone.

use std::fmt;

use engine::ParamStore;

/// An output of a model that is NaN or infinite, and where it comes from.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{output} is not finite; {cause}")]
pub struct NotFinite {
    /// Which output, such as `the embedding of text 3`.
    pub output: String,
    /// The cause, and what to do.
    pub cause: Cause,
}

/// Why an output is not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A parameter is not.
    Parameter {
        /// Its name.
        name: String,
        /// Elements of it that are NaN or infinite.
        count: usize,
    },
    /// Every parameter is finite: sums overflow on the way.
    Overflow,
}

impl fmt::Display for Cause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter { name, count } => {
                write!(out, "{count} elements of the model's tensor {name} are NaN or infinite: use another checkpoint")
            }
            Self::Overflow => out.write_str(
                "the model's tensors are finite, but too large: its sums overflow in 32 bits; use another checkpoint",
            ),
        }
    }
}

/// Checks that all of `values` are finite, rows of `width` elements computed from `params`; `output` names a row.
///
/// # Errors
/// [`NotFinite`] with the first row that is not.
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

#[cfg(test)]
mod tests;
