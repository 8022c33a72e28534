//! Elements on their way to the host.

use crate::{device::gpu::DeviceRead, dtype::Scalar, error::Result};

/// Elements that were asked for, as they were then ([`Tensor::read_later`](crate::Tensor::read_later)).
#[derive(Debug)]
pub struct Reading<T>(State<T>);

#[derive(Debug)]
enum State<T> {
    Here(Vec<T>),
    Coming { read: DeviceRead, len: usize },
}

impl<T: Scalar> Reading<T> {
    pub(crate) fn here(elements: Vec<T>) -> Self {
        Self(State::Here(elements))
    }

    pub(crate) fn coming(read: DeviceRead, len: usize) -> Self {
        Self(State::Coming { read, len })
    }

    /// The elements, once they are there.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn wait(self) -> Result<Vec<T>> {
        match self.0 {
            State::Here(elements) => Ok(elements),
            State::Coming { read, len } => {
                let mut elements = vec![T::zeroed(); len];
                read.end(bytemuck::cast_slice_mut(&mut elements))?;
                Ok(elements)
            }
        }
    }
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
            assert!(tensor.rows(0..0).unwrap().read_later::<f32>().unwrap().wait().unwrap().is_empty());
        }
    }
}
