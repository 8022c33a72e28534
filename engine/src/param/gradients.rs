//! Gradients of all parameters, in one buffer, at the same places as the values in theirs.

use super::{
    ParamId,
    clip::{GradientNorm, Scale},
};
use crate::{device::Device, dtype::DType, error::Result, memory::Arena, tensor::Tensor};
use kernels_cuda::arguments::Address;
use std::{borrow::Cow, ops::Range};

/// The gradients of all parameters of a store, summed over uses and micro-batches.
#[derive(Debug)]
pub struct Gradients {
    pub(crate) flat: Tensor,
    device: Device,
    ranges: Vec<Range<usize>>,
    batches: u32,
    pub(super) scale: Scale,
}

impl Gradients {
    /// Gradients in `flat`, which is on `device`, of no batch yet; `ranges` are the places of the parameters.
    pub(super) fn new(flat: Tensor, device: Device, ranges: Vec<Range<usize>>) -> Result<Self> {
        Ok(Self { flat, scale: Scale::on(&device)?, device, ranges, batches: 0 })
    }

    /// Device of the buffer, where clipping and the optimizer run.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.flat.len()
    }

    /// True if there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.flat.is_empty()
    }

    /// All gradients as a tensor, on their device.
    pub fn tensor(&self) -> &Tensor {
        &self.flat
    }

    /// All gradients, parameter after parameter. Panics if they are on a GPU: see [`Gradients::elements`].
    #[track_caller]
    pub fn all(&self) -> &[f32] {
        self.flat.slice()
    }

    /// All gradients, mutable.
    pub fn all_mut(&mut self) -> &mut [f32] {
        self.flat.slice_mut()
    }

    /// All gradients, parameter after parameter, copied if they are on a GPU.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn elements(&self) -> Result<Cow<'_, [f32]>> {
        self.flat.elements()
    }

    /// The gradient of one parameter. Panics if it is on a GPU: see [`Gradients::elements`].
    #[track_caller]
    pub fn get(&self, id: ParamId) -> &[f32] {
        &self.all()[self.ranges[id.index()].clone()]
    }

    /// Place of a parameter's gradient in the flat buffer.
    pub fn range(&self, id: ParamId) -> Range<usize> {
        self.ranges[id.index()].clone()
    }

    /// Number of micro-batches added since the last [`Gradients::clear`].
    pub fn batches(&self) -> u32 {
        self.batches
    }

    pub(crate) fn count_batch(&mut self) {
        self.batches += 1;
    }

    /// A buffer of the same size on the same device; its elements are unspecified.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(crate) fn buffer(&self) -> Result<Tensor> {
        Tensor::new(&Arena::on(&self.device), [self.len()], DType::F32)
    }

    /// Changes all gradients on the host.
    ///
    /// # Errors
    /// `change` failed, or the GPU did.
    pub fn on_host(&mut self, change: impl FnOnce(&mut [f32]) -> Result<()>) -> Result<()> {
        if self.flat.gpu().is_none() {
            return change(self.flat.slice_mut());
        }
        let mut elements = self.flat.elements::<f32>()?.into_owned();
        change(&mut elements)?;
        self.flat.copy_from(&elements)
    }

    /// Has optimizers scale the gradients down to a global norm of at most `limit`, if there is one, and begins to read the
    /// norm; the gradients stay as they are. If the norm is not finite, optimizers change nothing, in this step and those
    /// after it, until [`Gradients::norm`] has said so.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn clip(&mut self, limit: Option<f64>) -> Result<GradientNorm> {
        self.scale.clip(&self.flat, &self.device, limit)
    }

    /// The norm before clipping, once the device has computed it.
    ///
    /// # Errors
    /// It is NaN or infinite at optimizer step `step`: the parameters are those before that step, whatever optimizers were told
    /// since then. Or the GPU failed.
    pub fn norm(&mut self, norm: GradientNorm, step: u64) -> Result<f64> {
        self.scale.norm(norm, step)
    }

    /// Factor that optimizers on the CPU multiply the gradients by; NaN if they are to change nothing.
    pub(crate) fn scale(&self) -> f32 {
        self.scale.on_host()
    }

    /// Address of that factor on a GPU, one f32.
    pub(crate) fn scale_address(&self) -> Address {
        self.scale.address()
    }

    /// Sets all to zero, for the next step.
    ///
    /// # Errors
    /// The GPU that they are on failed.
    pub fn clear(&mut self) -> Result<()> {
        self.batches = 0;
        self.scale.reset();
        self.flat.zero()
    }
}
