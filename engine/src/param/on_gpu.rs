//! Values of all parameters on a GPU: f32, which the optimizer updates, and bf16, which GEMMs read.
//!
//! CPU and GPU each keep the version of their copy. A stale copy on the GPU is updated at its next use; values that a GPU
//! changed are copied back only by [`ParamStore::download`].

use super::{ParamStore, params_borrowed_error};
use crate::{
    device::Gpu,
    dtype::DType,
    error::{EngineError, Result},
    memory::Arena,
    tensor::Tensor,
};
use std::sync::PoisonError;

/// The values on a GPU.
#[derive(Debug)]
pub(super) struct OnGpu {
    version: u64,
    /// [all values] in f32, which the optimizer updates.
    master: Tensor,
    /// The bf16 copy that GEMMs read, and its version; made at its first use.
    half: Option<(u64, Tensor)>,
}

impl ParamStore {
    /// Brings the values back from the GPU that changed them, so that [`ParamStore::all_values`] may be read.
    ///
    /// # Errors
    /// The GPU failed, or a parameter is still held as a tensor.
    pub fn download(&mut self) -> Result<()> {
        if self.host_version == self.version {
            return Ok(());
        }
        let on_gpu = self.on_gpu.get_mut().unwrap_or_else(PoisonError::into_inner);
        let newest = on_gpu.as_ref().expect("only a GPU has newer values").master.elements::<f32>()?;
        if !self.values.is_unique() {
            return Err(params_borrowed_error());
        }
        self.values.slice_mut().copy_from_slice(&newest);
        self.host_version = self.version;
        Ok(())
    }

    /// The values on the GPU in f32, brought there if it does not have them yet.
    ///
    /// # Errors
    /// There is not enough memory, or the GPU failed.
    pub(crate) fn on_gpu(&self, gpu: &Gpu) -> Result<Tensor> {
        let mut on_gpu = self.on_gpu.lock().unwrap_or_else(PoisonError::into_inner);
        // One GPU at a time: what another one has comes over by way of the processor, once it has been downloaded.
        let elsewhere = on_gpu.as_ref().is_some_and(|copy| copy.master.gpu().is_some_and(|other| !other.is(gpu)));
        if elsewhere && self.host_version != self.version {
            let problem = "another GPU has changed the parameters; download them before this one uses them";
            return Err(EngineError::Device(problem.to_owned()));
        }
        let here = on_gpu.take().filter(|copy| copy.master.gpu().is_some_and(|other| other.is(gpu)));
        let copy = match here {
            Some(copy) if copy.version == self.version => copy,
            Some(mut copy) if copy.master.is_unique() => {
                copy.master.copy_from(self.all_values())?;
                OnGpu { version: self.version, ..copy }
            }
            _ => {
                let mut master = Tensor::new(&Arena::on_gpu(gpu), [self.len()], DType::F32)?;
                master.copy_from(self.all_values())?;
                OnGpu { version: self.version, master, half: None }
            }
        };
        Ok(on_gpu.insert(copy).master.clone())
    }

    /// The values on the GPU in `dtype`, rounded at most once a version.
    ///
    /// # Errors
    /// As [`ParamStore::on_gpu`].
    pub(crate) fn on_gpu_as(&self, gpu: &Gpu, dtype: DType) -> Result<Tensor> {
        let master = self.on_gpu(gpu)?;
        if dtype == DType::F32 {
            return Ok(master);
        }
        let mut on_gpu = self.on_gpu.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = on_gpu.as_mut().expect("just brought there");
        let mut half = match copy.half.take() {
            Some((version, half)) if version == self.version => {
                return Ok(copy.half.insert((version, half)).1.clone());
            }
            Some((_, half)) if half.is_unique() => half,
            _ => Tensor::new(&Arena::on_gpu(gpu), [self.len()], dtype)?,
        };
        gpu.cast(&master, &mut half)?;
        Ok(copy.half.insert((self.version, half)).1.clone())
    }

    /// Changes the values on the GPU: `change` gets all of them in f32, and the bf16 copy if it is current, to change it alike.
    ///
    /// # Errors
    /// As `change` says; or a parameter is still held as a tensor. The values are then those before, if the CPU has them
    /// too, and otherwise partly changed.
    pub(crate) fn change_on_gpu(
        &mut self,
        gpu: &Gpu,
        change: impl FnOnce(&mut Tensor, Option<&mut Tensor>) -> Result<()>,
    ) -> Result<()> {
        drop(self.on_gpu(gpu)?);
        let copy = self.on_gpu.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().expect("just brought there");
        if !copy.master.is_unique() {
            return Err(params_borrowed_error());
        }
        let version = self.version;
        let half = copy.half.as_mut().filter(|(of, half)| *of == version && half.is_unique());
        let has_half = half.is_some();
        if let Err(error) = change(&mut copy.master, half.map(|(_, half)| half)) {
            if self.host_version == self.version {
                // What is on the GPU may be half changed: the next use brings the values there again.
                *self.on_gpu.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
            } else {
                copy.half = None;
            }
            return Err(error);
        }
        self.version += 1;
        copy.version = self.version;
        if has_half && let Some((of, _)) = &mut copy.half {
            *of = self.version;
        }
        Ok(())
    }
}
