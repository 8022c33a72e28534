//! Variables: inputs and outputs of operations.

use super::{
    Tape,
    lists::{SortedRows, Uploaded},
};
use crate::{dtype::DType, error::Result, shape::Shape, tensor::Tensor};
use std::{borrow::Cow, fmt, sync::Arc};

/// A variable: a tensor, and the record that its gradient goes to.
#[derive(Clone, Debug)]
pub struct Var {
    pub(super) value: Tensor,
    /// Tape and record that made it; `None` if it requires no gradient.
    pub(super) node: Option<(u32, u32)>,
    /// Integers of an input on a GPU: see [`Var::integers`].
    pub(super) uploaded: Option<Arc<Uploaded>>,
    /// Recomputes the value for backward.
    pub(super) recompute: Option<Recomputable>,
}

/// Recomputes a value from activations that the backward pass of its operation keeps anyway.
#[derive(Clone)]
pub(crate) struct Recomputable(Arc<Compute>);

type Compute = dyn Fn(&Tape<'_>) -> Result<Tensor> + Send + Sync;

impl Recomputable {
    /// The value, the same bits.
    pub(crate) fn compute(&self, tape: &Tape<'_>) -> Result<Tensor> {
        (self.0)(tape)
    }
}

impl fmt::Debug for Recomputable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recomputable")
    }
}

impl Var {
    /// The tensor.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// Sizes of the dimensions.
    pub fn shape(&self) -> &Shape {
        self.value.shape()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.value.dtype()
    }

    /// True if backward will bring a gradient here.
    pub fn requires_grad(&self) -> bool {
        self.node.is_some()
    }

    /// The integers on the host, without a wait for the GPU if [`Tape::input`] uploaded them; otherwise a copy, which waits.
    /// Panics if they are floats.
    ///
    /// # Errors
    /// The GPU failed.
    pub(crate) fn integers(&self) -> Result<Cow<'_, [u32]>> {
        match &self.uploaded {
            Some(uploaded) => Ok(Cow::Borrowed(&uploaded.integers)),
            None => self.value.elements(),
        }
    }

    /// The integers in ascending order on the GPU, if [`Tape::inputs`] sorted them.
    pub(crate) fn sorted_rows(&self) -> Option<&SortedRows> {
        self.uploaded.as_ref()?.rows.as_ref()
    }

    /// Step and record that it comes from, if it requires a gradient.
    pub(crate) fn origin(&self) -> Option<(u32, u32)> {
        self.node
    }

    pub(super) fn new(value: Tensor, node: Option<(u32, u32)>) -> Self {
        Self { value, node, uploaded: None, recompute: None }
    }

    /// The variable, which `compute` can recompute.
    pub(crate) fn with_recompute(self, compute: impl Fn(&Tape<'_>) -> Result<Tensor> + Send + Sync + 'static) -> Self {
        Self { recompute: Some(Recomputable(Arc::new(compute))), ..self }
    }

    /// Recomputation of the value, if possible.
    pub(crate) fn recompute(&self) -> Option<&Recomputable> {
        self.recompute.as_ref()
    }
}
