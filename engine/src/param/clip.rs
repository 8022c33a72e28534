//! Clipping of gradients to a global norm.
//!
//! Gradients stay as they are in memory: an optimizer multiplies each by the scale as it reads it. On a GPU the norm, the
//! scale and the decision whether the step is taken at all are computed there, so that the host can go on with the next step
//! and reads the norm later.

use crate::{
    device::Device,
    dtype::DType,
    error::{EngineError, Result},
    memory::Arena,
    reading::Reading,
    tensor::Tensor,
};
use kernels_cuda::{arguments::Address, reduce::ClipBlock};

/// Factor of the gradients in the next update.
#[derive(Debug)]
pub(super) enum Scale {
    /// NaN: nothing is updated.
    Host(f32),
    Gpu(ScaleOnGpu),
}

/// The words of a [`ClipBlock`], and behind them the factor 1 of gradients that are not clipped.
#[derive(Debug)]
pub(super) struct ScaleOnGpu {
    words: Tensor,
    limit: f64,
    is_clipped: bool,
}

/// Global norm of a gradient before it was clipped, on its way from the device ([`Gradients::clip`](super::Gradients::clip)).
#[must_use = "after a norm that is not finite, optimizers change nothing until it has been read"]
#[derive(Debug)]
pub struct GradientNorm(Norm);

#[derive(Debug)]
enum Norm {
    Here(f64),
    /// The square.
    Coming(Reading<u32>),
}

impl ScaleOnGpu {
    fn set_limit(&mut self, limit: f64) -> Result<()> {
        let mut words = [1f32.to_bits(); ClipBlock::WORDS + 1];
        words[..ClipBlock::WORDS].copy_from_slice(&ClipBlock::words(limit));
        self.limit = limit;
        self.words.copy_from(&words)
    }
}

impl Scale {
    pub(super) fn on(device: &Device) -> Result<Self> {
        if device.gpu().is_none() {
            return Ok(Self::Host(1.0));
        }
        let words = Tensor::new(&Arena::on(device), [ClipBlock::WORDS + 1], DType::U32)?;
        let mut on_gpu = ScaleOnGpu { words, limit: f64::INFINITY, is_clipped: false };
        on_gpu.set_limit(f64::INFINITY)?;
        Ok(Self::Gpu(on_gpu))
    }

    /// Back to 1, unless a gradient was not finite.
    pub(super) fn reset(&mut self) {
        match self {
            Self::Host(scale) if scale.is_nan() => {}
            Self::Host(scale) => *scale = 1.0,
            Self::Gpu(on_gpu) => on_gpu.is_clipped = false,
        }
    }

    /// [`Gradients::clip`](super::Gradients::clip) of `gradients`, which are on `device`.
    pub(super) fn clip(&mut self, gradients: &Tensor, device: &Device, limit: Option<f64>) -> Result<GradientNorm> {
        let limit = limit.unwrap_or(f64::INFINITY);
        match (device, self) {
            (Device::Cuda(gpu), Self::Gpu(on_gpu)) => {
                if on_gpu.limit != limit {
                    on_gpu.set_limit(limit)?;
                }
                on_gpu.is_clipped = true;
                gpu.clip(gradients, on_gpu.words.address_mut())?;
                Ok(GradientNorm(Norm::Coming(on_gpu.words.rows(0..2)?.read_later()?)))
            }
            (device, scale) => {
                let norm = kernels::reduce::sum_of_squares(device.processor(), gradients.slice::<f32>()).sqrt();
                let factor = if norm > limit { (limit / norm) as f32 } else { 1.0 };
                let goes_on = norm.is_finite() && !scale.on_host().is_nan();
                *scale = Self::Host(if goes_on { factor } else { f32::NAN });
                Ok(GradientNorm(Norm::Here(norm)))
            }
        }
    }

    /// [`Gradients::norm`](super::Gradients::norm)
    pub(super) fn norm(&mut self, norm: GradientNorm, step: u64) -> Result<f64> {
        let norm = match norm.0 {
            Norm::Here(norm) => norm,
            Norm::Coming(square) => {
                let words = square.wait()?;
                ClipBlock::total([words[0], words[1]]).sqrt()
            }
        };
        if norm.is_finite() {
            return Ok(norm);
        }
        match self {
            Self::Host(scale) => *scale = 1.0,
            Self::Gpu(on_gpu) => on_gpu.set_limit(on_gpu.limit)?,
        }
        Err(EngineError::NotFinite { what: "the norm of the gradient".into(), value: norm, step })
    }

    /// The factor, for gradients on the CPU.
    pub(super) fn on_host(&self) -> f32 {
        match self {
            Self::Host(scale) => *scale,
            Self::Gpu(_) => unreachable!("gradients on a GPU have their scale there"),
        }
    }

    /// Address of the factor, one f32, for gradients on a GPU.
    pub(super) fn address(&self) -> Address {
        match self {
            Self::Host(_) => unreachable!("gradients on the host have their scale there"),
            Self::Gpu(on_gpu) if on_gpu.is_clipped => on_gpu.words.address().plus(ClipBlock::SCALE),
            Self::Gpu(on_gpu) => on_gpu.words.address().element(ClipBlock::WORDS, 4),
        }
    }
}
