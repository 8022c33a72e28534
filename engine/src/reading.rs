//! Elements on their way to the host.

use crate::{device::gpu::DeviceRead, dtype::Scalar, error::Result};
use half::bf16;

/// Elements that were asked for, as they were then ([`Tensor::read_later`](crate::Tensor::read_later),
/// [`Tensor::to_vec_later`](crate::Tensor::to_vec_later)).
#[derive(Debug)]
pub struct Reading<T>(State<T>);

#[derive(Debug)]
enum State<T> {
    Here(Vec<T>),
    /// `end` waits for as many elements as `len`.
    Coming {
        read: DeviceRead,
        len: usize,
        end: fn(DeviceRead, usize) -> Result<Vec<T>>,
    },
}

impl<T> Reading<T> {
    pub(crate) fn here(elements: Vec<T>) -> Self {
        Self(State::Here(elements))
    }

    /// The elements, once they are there.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn wait(self) -> Result<Vec<T>> {
        match self.0 {
            State::Here(elements) => Ok(elements),
            State::Coming { read, len, end } => end(read, len),
        }
    }
}

impl<T: Scalar> Reading<T> {
    pub(crate) fn coming(read: DeviceRead, len: usize) -> Self {
        Self(State::Coming { read, len, end: elements })
    }
}

impl Reading<f32> {
    /// Elements of bf16.
    pub(crate) fn widened(read: DeviceRead, len: usize) -> Self {
        let end = |read, len| Ok(elements::<bf16>(read, len)?.into_iter().map(bf16::to_f32).collect());
        Self(State::Coming { read, len, end })
    }
}

fn elements<T: Scalar>(read: DeviceRead, len: usize) -> Result<Vec<T>> {
    let mut elements = vec![T::zeroed(); len];
    read.end(bytemuck::cast_slice_mut(&mut elements))?;
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use crate::{memory::Arena, shared_tests::*};

    #[test]
    fn elements_are_those_of_the_time_when_they_were_asked_for() {
        for device in [Device::Cpu(cpu(1)), Device::Cuda(gpu((8, 0)))] {
            let mut tensor = Tensor::new(&Arena::on(&device), [3], DType::F32).unwrap();
            tensor.copy_from(&[1f32, 2., 3.]).unwrap();
            let (first, given_up) = (tensor.read_later::<f32>().unwrap(), tensor.read_later::<f32>().unwrap());
            tensor.copy_from(&[4f32, 5., 6.]).unwrap();
            let second = tensor.rows(1..3).unwrap().read_later::<f32>().unwrap();
            drop(given_up);
            assert_eq!((second.wait().unwrap(), first.wait().unwrap()), (vec![5., 6.], vec![1., 2., 3.]));
            assert_eq!(tensor.to_vec_later().unwrap().wait().unwrap(), [4., 5., 6.]);
            let mut rounded = Tensor::new(&Arena::on(&device), [2], DType::Bf16).unwrap();
            rounded.copy_from(&[1.5, -2.].map(half::bf16::from_f32)).unwrap();
            assert_eq!(rounded.to_vec_later().unwrap().wait().unwrap(), [1.5, -2.]);
            assert!(tensor.rows(0..0).unwrap().read_later::<f32>().unwrap().wait().unwrap().is_empty());
        }
    }
}
