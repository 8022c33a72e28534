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
        // Order, starts, used, first.
        let sorted = if sorts && matches!(self, Self::Rows(_)) { 4 * count + 2 } else { 0 };
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
    pub(crate) pieces: Pieces,
    /// Elements of `lists` at which order, starts, used and first begin.
    pub(super) starts: [usize; 4],
    pub(super) lists: Tensor,
}

impl SortedRows {
    /// Sorts `rows` and copies them to the GPU.
    pub(crate) fn new(gpu: &Gpu, rows: &[u32]) -> Result<Self> {
        let mut packed = Vec::new();
        let (pieces, starts) = Self::sort(rows, &mut packed);
        let mut lists = Tensor::new(&Arena::on_gpu(gpu), [packed.len()], DType::U32)?;
        lists.copy_from(&packed)?;
        Ok(Self { pieces, starts, lists })
    }

    /// Appends the sorted rows to `packed`; returns them and the start of each list.
    pub(super) fn sort(rows: &[u32], packed: &mut Vec<u32>) -> (Pieces, [usize; 4]) {
        let pieces = Pieces::new(rows);
        let starts = [&pieces.order, &pieces.starts, &pieces.used, &pieces.first].map(|list| {
            let start = packed.len();
            packed.extend_from_slice(list);
            start
        });
        (pieces, starts)
    }

    /// Addresses of order, starts, used and first.
    pub(crate) fn addresses(&self) -> [Address; 4] {
        self.starts.map(|start| self.lists.address().element(start, DType::U32.bytes()))
    }
}
