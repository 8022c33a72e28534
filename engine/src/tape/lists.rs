//! Lists of integers that are copied to a device together, and their rows in ascending order.

use crate::{device::Gpu, dtype::DType, error::Result, memory::Arena, tensor::Tensor};
use kernels_cuda::{arguments::Address, embedding::Pieces};

/// A list of integers for [`Tape::inputs`](super::Tape::inputs).
#[derive(Clone, Copy, Debug)]
pub enum List<'a> {
    /// Labels, offsets, lengths.
    Plain(&'a [u32]),
    /// Ids of an embedding, or rows of [`gather_rows`](crate::ops::gather_rows).
    Rows(&'a [u32]),
}

impl List<'_> {
    pub(super) fn integers(&self) -> &[u32] {
        match self {
            Self::Plain(integers) | Self::Rows(integers) => integers,
        }
    }

    /// Elements that it takes on the device, sorted rows included if a step `sorts` them.
    pub(super) fn most(&self, sorts: bool) -> usize {
        let count = self.integers().len();
        let sorted = if sorts && matches!(self, Self::Rows(_)) { aligned(Pieces::most(count)) } else { 0 };
        aligned(count) + sorted
    }
}

/// The next multiple of the elements of a cache line.
pub(super) fn aligned(elements: usize) -> usize {
    elements.next_multiple_of(16)
}

/// Integers that were copied to a GPU, as the host keeps them.
#[derive(Debug)]
pub(super) struct Uploaded {
    pub(super) integers: Box<[u32]>,
    pub(super) rows: Option<SortedRows>,
}

/// Rows of a gather in ascending order, on the GPU.
#[derive(Debug)]
pub(crate) struct SortedRows {
    /// [`Pieces::count`]
    pub(crate) count: usize,
    /// Element of `lists` at which [`Pieces::words`] start.
    pub(super) start: usize,
    pub(super) lists: Tensor,
}

impl SortedRows {
    /// Sorts `rows` and copies them to the GPU.
    pub(crate) fn new(gpu: &Gpu, rows: &[u32]) -> Result<Self> {
        let Pieces { count, words } = Pieces::new(rows);
        let mut lists = Tensor::new(&Arena::on_gpu(gpu), [words.len()], DType::U32)?;
        lists.copy_from(&words)?;
        Ok(Self { count, start: 0, lists })
    }

    /// Address of [`Pieces::words`].
    pub(crate) fn address(&self) -> Address {
        self.lists.address().element(self.start, DType::U32.bytes())
    }
}
