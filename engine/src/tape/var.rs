//! A value on a tape: what operations take and give.

use super::Tape;
use crate::{dtype::DType, error::Result, shape::Shape, tensor::Tensor};
use std::{borrow::Cow, fmt, sync::Arc};

/// A value on a tape: a tensor, and where its gradient goes.
#[derive(Clone, Debug)]
pub struct Var {
    pub(super) value: Tensor,
    /// Which tape, and which record made it. None: no gradient is wanted.
    pub(super) node: Option<(u32, u32)>,
    /// What was uploaded, where the value is integers on a GPU: see [`Var::integers`].
    pub(super) uploaded: Option<Arc<[u32]>>,
    /// How backward can have it without its being kept.
    pub(super) recompute: Option<Recomputable>,
}

/// Computes a value again, cheaply, from what the backward pass of its maker keeps anyway.
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

    /// The integers, to be looked at on the host without waiting for the GPU: what [`Tape::input`] uploaded. Of any other
    /// tensor a copy, for which the GPU has to end what it is doing. Panics if they are floats.
    ///
    /// # Errors
    /// The GPU failed.
    pub(crate) fn integers(&self) -> Result<Cow<'_, [u32]>> {
        match &self.uploaded {
            Some(uploaded) => Ok(Cow::Borrowed(uploaded)),
            None => self.value.elements(),
        }
    }

    /// The step and the record that it comes from, if it wants a gradient.
    pub(crate) fn origin(&self) -> Option<(u32, u32)> {
        self.node
    }

    pub(super) fn new(value: Tensor, node: Option<(u32, u32)>) -> Self {
        Self { value, node, uploaded: None, recompute: None }
    }

    /// The same, that can be computed again by `compute`.
    pub(crate) fn with_recompute(self, compute: impl Fn(&Tape<'_>) -> Result<Tensor> + Send + Sync + 'static) -> Self {
        Self { recompute: Some(Recomputable(Arc::new(compute))), ..self }
    }

    /// How it is computed again, if that is possible.
    pub(crate) fn recompute(&self) -> Option<&Recomputable> {
        self.recompute.as_ref()
    }
}
