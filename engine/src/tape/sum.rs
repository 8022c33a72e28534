//! Sums of gradients of one value that is used several times.
use super::{Tape, moved};
use crate::{device::Device, dtype::floats, error::Result, tensor::Tensor};
use kernels::elementwise::add_assign;

/// Sum of two gradients of one value, in the memory of one of them if it is not shared.
pub(super) fn sum(tape: &Tape<'_>, a: Tensor, b: Tensor) -> Result<Tensor> {
    let (mut sum, x) = match (a.is_unique(), b.is_unique()) {
        (true, _) => (a, b),
        (false, true) => (b, a),
        (false, false) => {
            let mut sum = tape.alloc(*a.shape(), a.dtype())?;
            copy(tape, &a, &mut sum)?;
            (sum, b)
        }
    };
    tape.launch_on("add.gradient", moved(3 * sum.len() * sum.dtype().bytes()), |device| match device {
        Device::Cpu(cpu) => {
            floats!(sum.dtype(), X => add_assign(cpu, x.slice::<X>(), sum.slice_mut::<X>()));
            Ok(())
        }
        Device::Cuda(gpu) => gpu.add_assign(x.address(), sum.address_mut(), sum.dtype(), sum.len()),
    })?;
    Ok(sum)
}

/// y = x
pub(crate) fn copy(tape: &Tape<'_>, x: &Tensor, y: &mut Tensor) -> Result<()> {
    tape.launch_on("copy", moved(2 * x.len() * x.dtype().bytes()), |device| match device {
        Device::Cpu(_) => {
            floats!(x.dtype(), X => y.slice_mut::<X>().copy_from_slice(x.slice::<X>()));
            Ok(())
        }
        Device::Cuda(gpu) => gpu.copy(x, y),
    })
}
