//! Inputs of a step: values that the host copies to the device.
//!
//! Each copy to a GPU costs the host some microseconds, so the integers of a batch travel together ([`Tape::inputs`]). With
//! them go the rows of a gather in ascending order, which the gradient of the gather needs and the host sorts.

use super::{
    Tape, Var,
    lists::{List, SortedRows, Uploaded, aligned},
    moved,
};
use crate::{
    device::Device,
    dtype::{DType, Scalar},
    error::{EngineError, Result},
    shape::Shape,
};
use kernels_cuda::embedding::Pieces;
use std::{ops::Range, sync::Arc};

impl Tape<'_> {
    /// A copy of `elements` on the device, without a gradient: ids, labels, offsets.
    ///
    /// # Errors
    /// Their number is not what the shape says, or there is not enough memory.
    pub fn input<T: Scalar>(&self, shape: impl Into<Shape>, elements: &[T]) -> Result<Var> {
        let shape = shape.into();
        if shape.elements() != elements.len() {
            return Err(EngineError::shape("input", format!("{} elements for shape {shape:?}", elements.len())));
        }
        let mut value = self.alloc(shape, T::DTYPE)?;
        self.launch_on("input", moved(elements.len() * T::DTYPE.bytes()), |_| value.copy_from(elements))?;
        let is_kept = T::DTYPE == DType::U32 && self.device().gpu().is_some() && !self.dry;
        let uploaded =
            is_kept.then(|| Arc::new(Uploaded { integers: bytemuck::cast_slice(elements).into(), rows: None }));
        Ok(Var { uploaded, ..Var::new(value, None) })
    }

    /// Copies of lists of integers on the device, as [`Tape::input`] makes them, by one copy.
    ///
    /// # Errors
    /// There is not enough memory, or the device failed.
    pub fn inputs<const N: usize>(&self, lists: [List<'_>; N]) -> Result<[Var; N]> {
        self.list_inputs(&lists).map(|inputs| inputs.try_into().expect("one for each list"))
    }

    /// [`Tape::inputs`] of any number of lists.
    ///
    /// # Errors
    /// As [`Tape::inputs`].
    pub fn list_inputs(&self, lists: &[List<'_>]) -> Result<Vec<Var>> {
        let on_gpu = self.device().gpu().is_some();
        let sorts = on_gpu && self.recording;
        let mut whole = self.alloc([lists.iter().map(|list| list.most(sorts)).sum::<usize>()], DType::U32)?;
        let mut end = 0;
        let mut places = Vec::with_capacity(lists.len());
        for list in lists {
            places.push(end..end + list.integers().len());
            end += aligned(list.integers().len());
        }
        let write = |whole: &mut [u32]| {
            for (place, list) in places.iter().zip(lists) {
                whole[place.clone()].copy_from_slice(list.integers());
            }
        };
        let mut sorted = Vec::new();
        self.launch_on("input", moved(DType::U32.bytes() * end), |device| {
            if let Device::Cpu(_) = device {
                write(whole.slice_mut());
                return Ok(());
            }
            let mut packed = vec![0; end];
            write(&mut packed);
            sorted.extend(lists.iter().map(|list| match list {
                List::Rows(rows) if sorts => {
                    let (Pieces { count, words }, start) = (Pieces::new(rows), aligned(packed.len()));
                    packed.resize(start, 0);
                    packed.extend(words);
                    Some((count, start))
                }
                _ => None,
            }));
            whole.copy_from_start(&packed)
        })?;
        let mut sorted = sorted.into_iter();
        let input = |(list, place): (&List<'_>, Range<usize>)| {
            let value = whole.part(place, [list.integers().len()].into());
            let uploaded = (on_gpu && !self.dry).then(|| {
                let of_lists = |(count, start)| SortedRows { count, start, lists: whole.clone() };
                Arc::new(Uploaded { integers: list.integers().into(), rows: sorted.next().flatten().map(of_lists) })
            });
            Var { uploaded, ..Var::new(value, None) }
        };
        Ok(lists.iter().zip(places.clone()).map(input).collect())
    }
}
