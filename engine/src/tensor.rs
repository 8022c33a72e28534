//! Tensors: a shape and an element type over shared bytes, row-major, without strides.
//!
//! ```text
//! Tensor { shape [2, 3], offset 6 } ──┐
//! Tensor { shape [4, 3], offset 0 } ──┴─> Storage: | 0 1 2 | 3 4 5 | 6 7 8 | 9 10 11 |
//!                                                                   └ rows 2..4 of the other
//! ```
//!
//! Cloning, reshaping and taking rows share the bytes. Only a tensor that shares its bytes with no other is written, so
//! the tape keeps a value for backward by keeping a clone.
//! Limits: at most six dimensions; a view is a range of rows, never a stride.
use crate::{
    device::Gpu,
    dtype::{DType, Scalar},
    error::{EngineError, Result},
    memory::{Arena, SharedStorage, Storage},
    reading::Reading,
    shape::Shape,
};
use kernels_cuda::arguments::Address;
use std::{borrow::Cow, fmt, ops::Range};

/// An n-dimensional array.
#[derive(Clone)]
pub struct Tensor {
    storage: SharedStorage,
    /// First element within the storage.
    offset: usize,
    shape: Shape,
    dtype: DType,
}

impl Tensor {
    /// A tensor with memory from `arena`; its elements are unspecified.
    pub(crate) fn new(arena: &Arena, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        let shape = shape.into();
        let bytes = shape.iter().try_fold(dtype.bytes(), |n, &dim| n.checked_mul(dim));
        let storage = arena.request(bytes.ok_or(EngineError::Memory { bytes: usize::MAX })?)?;
        Ok(Self { storage, offset: 0, shape, dtype })
    }

    /// A tensor over `storage`, which has exactly its bytes.
    pub(crate) fn over(storage: SharedStorage, shape: impl Into<Shape>, dtype: DType) -> Self {
        let shape = shape.into();
        assert_eq!(storage.len(), shape.elements() * dtype.bytes(), "bytes for shape {shape:?}");
        Self { storage, offset: 0, shape, dtype }
    }

    /// A tensor of its own on the heap, with these elements.
    ///
    /// # Errors
    /// The number of elements is not what the shape says.
    pub fn from_slice<T: Scalar>(shape: impl Into<Shape>, elements: &[T]) -> Result<Self> {
        let shape = shape.into();
        if shape.elements() != elements.len() {
            let problem = format!("{} elements for shape {shape:?}", elements.len());
            return Err(EngineError::shape("tensor", problem));
        }
        let mut tensor = Self::new(&Arena::default(), shape, T::DTYPE)?;
        tensor.slice_mut().copy_from_slice(elements);
        Ok(tensor)
    }

    /// Sizes of the dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.elements()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn byte_range(&self) -> Range<usize> {
        let start = self.offset * self.dtype.bytes();
        start..start + self.len() * self.dtype.bytes()
    }

    /// The elements. Panics if `T` is not what the tensor holds, if they are on a GPU ([`Tensor::elements`] copies them), and
    /// in a dry run, which has no memory.
    #[track_caller]
    pub fn slice<T: Scalar>(&self) -> &[T] {
        assert_eq!(T::DTYPE, self.dtype, "a tensor of {} read as {}", self.dtype, T::DTYPE);
        bytemuck::cast_slice(&self.storage.bytes()[self.byte_range()])
    }

    /// The elements, to be written. Panics like [`Tensor::slice`], and if the bytes are shared.
    #[track_caller]
    pub fn slice_mut<T: Scalar>(&mut self) -> &mut [T] {
        assert_eq!(T::DTYPE, self.dtype, "a tensor of {} written as {}", self.dtype, T::DTYPE);
        let range = self.byte_range();
        bytemuck::cast_slice_mut(&mut self.unique().bytes_mut()[range])
    }

    /// True if no other tensor shares the bytes.
    pub fn is_unique(&self) -> bool {
        self.storage.is_unique()
    }

    /// The elements as f32, whatever float type they are stored in, or converted from integers; copied from the GPU if
    /// they are there.
    ///
    /// # Errors
    /// The GPU failed, now or in an earlier launch.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        Ok(match self.dtype {
            DType::F32 => self.elements::<f32>()?.into_owned(),
            DType::Bf16 => self.elements::<half::bf16>()?.iter().map(|x| x.to_f32()).collect(),
            DType::U32 => self.elements::<u32>()?.iter().map(|&x| x as f32).collect(),
        })
    }

    /// The elements, copied if they are on a GPU. Panics like [`Tensor::slice`].
    ///
    /// # Errors
    /// The GPU failed, now or in an earlier launch.
    #[track_caller]
    pub fn elements<T: Scalar>(&self) -> Result<Cow<'_, [T]>> {
        if self.gpu().is_none() {
            return Ok(Cow::Borrowed(self.slice()));
        }
        assert_eq!(T::DTYPE, self.dtype, "a tensor of {} read as {}", self.dtype, T::DTYPE);
        let mut elements = vec![T::zeroed(); self.len()];
        self.storage.read(self.byte_range().start, bytemuck::cast_slice_mut(&mut elements))?;
        Ok(Cow::Owned(elements))
    }

    /// Begins to read the elements as they are now; nothing waits. Panics like [`Tensor::slice`].
    ///
    /// # Errors
    /// The GPU failed in an earlier launch.
    #[track_caller]
    pub fn read_later<T: Scalar>(&self) -> Result<Reading<T>> {
        if self.gpu().is_none() || self.is_empty() {
            return Ok(Reading::here(self.elements()?.into_owned()));
        }
        assert_eq!(T::DTYPE, self.dtype, "a tensor of {} read as {}", self.dtype, T::DTYPE);
        Ok(Reading::coming(self.storage.begin_read(self.byte_range())?, self.len()))
    }

    /// Begins to read the elements as [`Tensor::to_vec`] returns them; nothing waits, except for integers.
    ///
    /// # Errors
    /// The GPU failed in an earlier launch.
    pub fn to_vec_later(&self) -> Result<Reading<f32>> {
        match self.dtype {
            DType::F32 => self.read_later(),
            DType::Bf16 if self.gpu().is_some() && !self.is_empty() => {
                Ok(Reading::widened(self.storage.begin_read(self.byte_range())?, self.len()))
            }
            _ => Ok(Reading::here(self.to_vec()?)),
        }
    }

    /// Overwrites the elements, wherever they are. Panics like [`Tensor::slice_mut`], and if there are more or fewer.
    ///
    /// # Errors
    /// The GPU failed.
    #[track_caller]
    pub fn copy_from<T: Scalar>(&mut self, elements: &[T]) -> Result<()> {
        assert_eq!(T::DTYPE, self.dtype, "a tensor of {} written as {}", self.dtype, T::DTYPE);
        assert_eq!(elements.len(), self.len(), "elements for shape {:?}", self.shape);
        self.copy_from_start(elements)
    }

    /// Overwrites the first elements, wherever they are. Panics like [`Tensor::slice_mut`], and if there are more than all.
    ///
    /// # Errors
    /// The GPU failed.
    #[track_caller]
    pub(crate) fn copy_from_start<T: Scalar>(&mut self, elements: &[T]) -> Result<()> {
        assert_eq!(T::DTYPE, self.dtype, "a tensor of {} written as {}", self.dtype, T::DTYPE);
        assert!(elements.len() <= self.len(), "{} elements for shape {:?}", elements.len(), self.shape);
        let start = self.byte_range().start;
        self.unique().write(start, bytemuck::cast_slice(elements))
    }

    /// Sets every byte to zero, wherever the elements are. Panics if the bytes are shared.
    ///
    /// # Errors
    /// The GPU failed.
    #[track_caller]
    pub(crate) fn zero(&mut self) -> Result<()> {
        let range = self.byte_range();
        self.unique().fill(range, 0)
    }

    /// The GPU that the elements are on, if they are.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.storage.gpu()
    }

    /// The address of the first element on the GPU, for a kernel that reads it. Panics if the tensor is not there.
    #[track_caller]
    pub fn address(&self) -> Address {
        self.storage.address(self.byte_range().start)
    }

    /// The address of the first element on the GPU, for a kernel that writes it. Panics if the tensor is not there, or
    /// shares its bytes.
    #[track_caller]
    pub fn address_mut(&mut self) -> Address {
        let start = self.byte_range().start;
        self.unique().address(start)
    }

    #[track_caller]
    fn unique(&mut self) -> &mut Storage {
        self.storage.get_mut().expect("only a tensor that shares its bytes with nobody is written")
    }

    /// The elements under another shape.
    ///
    /// # Errors
    /// The numbers of elements differ.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.elements() != self.len() {
            let problem = format!("{:?} has {} elements, {shape:?} has {}", self.shape, self.len(), shape.elements());
            return Err(EngineError::shape("reshape", problem));
        }
        Ok(Self { shape, ..self.clone() })
    }

    /// Rows `range` of the leading dimension.
    ///
    /// # Errors
    /// There are not that many rows, or no dimensions at all.
    pub fn rows(&self, range: Range<usize>) -> Result<Self> {
        let Some((&rows, inner)) = self.shape.split_first() else {
            return Err(EngineError::shape("rows", "a single number has no rows"));
        };
        if range.start > range.end || range.end > rows {
            return Err(EngineError::shape("rows", format!("rows {range:?} of {:?}", self.shape)));
        }
        let mut dims = self.shape.to_array();
        dims[0] = range.end - range.start;
        let offset = self.offset + range.start * inner.iter().product::<usize>();
        Ok(Self { shape: Shape::new(&dims[..self.shape.len()]), offset, ..self.clone() })
    }

    /// Elements `range` of the flat order, under `shape`: how parameters see their part of one buffer.
    pub(crate) fn part(&self, range: Range<usize>, shape: Shape) -> Self {
        assert!(
            range.end <= self.len() && range.len() == shape.elements(),
            "{range:?} of {:?} as {shape:?}",
            self.shape
        );
        Self { shape, offset: self.offset + range.start, ..self.clone() }
    }

    /// Bytes of memory that the tensor and those it shares with keep alive.
    pub fn storage_bytes(&self) -> usize {
        self.storage.len()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?})", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_tests::refused;

    #[test]
    fn views_share_bytes_and_are_never_written() {
        let whole = Tensor::from_slice([4, 3], &(0..12).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        let mut rows = whole.rows(2..4).unwrap();
        assert_eq!((rows.slice::<f32>(), &rows.shape()[..]), (&[6., 7., 8., 9., 10., 11.][..], &[2, 3][..]));
        assert_eq!(rows.rows(1..2).unwrap().reshape([3]).unwrap().slice::<f32>(), [9., 10., 11.]);
        assert!(!rows.is_unique());
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rows.slice_mut::<f32>()[0] = 1.0));
        assert!(written.is_err());
        drop(whole);
        rows.slice_mut::<f32>()[0] = 1.0;
        assert_eq!(rows.slice::<f32>()[0], 1.0);
    }

    #[test]
    fn errors_name_both_shapes() {
        let tensor = Tensor::from_slice([2, 3], &[1u32; 6]).unwrap();
        refused(tensor.reshape([4]), "reshape: [2, 3] has 6 elements, [4] has 4");
        refused(tensor.rows(1..3), "rows: rows 1..3 of [2, 3]");
        refused(Tensor::from_slice([2], &[1.0f32]), "tensor: 1 elements for shape [2]");
        refused(Tensor::new(&Arena::default(), [usize::MAX, 2], DType::F32), "cannot allocate");
    }
}
