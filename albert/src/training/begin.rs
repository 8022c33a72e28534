//! Where a run begins, and the number that ends one.

use engine::EngineError;

/// Where a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At step 0, in a folder without a run.
    New,
    /// At the newest whole checkpoint of the folder; at step 0 if it holds none yet.
    Resume,
}

/// Ends a step whose loss is NaN or infinite, before the optimizer sees its gradients.
///
/// # Errors
/// [`EngineError::NotFinite`] for optimizer step `step`.
pub(crate) fn expect_finite(loss: f64, step: u64) -> Result<(), EngineError> {
    if loss.is_finite() {
        return Ok(());
    }
    Err(EngineError::NotFinite { what: "the loss".into(), value: loss, step })
}
