//! Sizes of a tensor's dimensions, row-major, without a heap allocation.
use std::{fmt, ops::Deref};

/// The most dimensions that a tensor can have.
pub const MAX_RANK: usize = 6;

/// Sizes of dimensions, slowest first. `[]` is a single number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// The shape with these sizes. Panics if there are more than [`MAX_RANK`].
    pub fn new(dims: &[usize]) -> Self {
        assert!(dims.len() <= MAX_RANK, "{dims:?}: at most {MAX_RANK} dimensions");
        let mut shape = Self { dims: [0; MAX_RANK], rank: dims.len() as u8 };
        shape.dims[..dims.len()].copy_from_slice(dims);
        shape
    }

    /// Number of elements. Panics if it does not fit in a usize.
    pub fn elements(&self) -> usize {
        self.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim)).expect("fewer than 2^64 elements")
    }

    /// All sizes but the last multiplied, and the last: the tensor seen as rows. A single number is one row of one.
    pub fn rows_cols(&self) -> (usize, usize) {
        match self.split_last() {
            Some((&cols, outer)) => (outer.iter().product(), cols),
            None => (1, 1),
        }
    }

    /// The sizes as an array, for shapes made from this one; the rest of it is zero.
    pub(crate) fn to_array(self) -> [usize; MAX_RANK] {
        self.dims
    }

    /// The shape with its last size replaced.
    pub fn with_last(mut self, last: usize) -> Self {
        self.dims[self.rank as usize - 1] = last;
        self
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Self::new(dims)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Self::new(&dims)
    }
}

impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(dims: &[usize; N]) -> Self {
        Self::new(dims)
    }
}
