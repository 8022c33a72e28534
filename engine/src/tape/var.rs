//! A value on a tape: what operations take and give.

use crate::{dtype::DType, error::Result, shape::Shape, tensor::Tensor};
use std::{borrow::Cow, sync::Arc};

/// A value on a tape: a tensor, and where its gradient goes.
#[derive(Clone, Debug)]
pub struct Var {
    pub(super) value: Tensor,
    /// Which tape, and which record made it. None: no gradient is wanted.
    pub(super) node: Option<(u32, u32)>,
    /// What was uploaded, where the value is integers on a GPU: see [`Var::integers`].
    pub(super) uploaded: Option<Arc<[u32]>>,
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
    pub fn wants_gradient(&self) -> bool {
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
        Self { value, node, uploaded: None }
    }
}
