//! The bulk copies of a block.

use super::{Epoch, Thread};
use crate::sim::{
    isa::{Fetch, SHARED_BASE, Type},
    tensor_map::Row,
    tensor_map::TensorMap,
};

/// A pending copy.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) thread: Thread,
    /// Byte of shared memory.
    pub(crate) shared: usize,
    pub(crate) bytes: usize,
    /// The other end, by rows.
    pub(crate) rows: Vec<Row>,
    pub(crate) map: Option<TensorMap>,
    pub(crate) read: Epoch,
    pub(crate) write: Epoch,
    pub(crate) goal: Goal,
}

/// A contiguous piece of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Byte within the tile.
    pub(crate) offset: usize,
    /// First byte in global memory.
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

/// Direction and completion of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Into shared memory; the mbarrier counts.
    Load { mbarrier: usize },
    /// Out of shared memory, in a group of its thread once that is committed.
    Store { group: Option<u32>, reduction: Option<(Fetch, Type)> },
}

/// Groups of bulk stores by thread.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// (warp, lane, groups committed)
    pub(crate) committed: Vec<(usize, usize, u32)>,
    /// Stores that have ended: thread, group, epochs of reading and of writing.
    pub(crate) ended: Vec<(usize, usize, u32, Epoch, Epoch)>,
}

impl Groups {
    pub(crate) fn committed(&mut self, warp: usize, lane: usize) -> &mut u32 {
        let found = self.committed.iter().position(|(w, l, _)| (*w, *l) == (warp, lane));
        let at = found.unwrap_or_else(|| {
            self.committed.push((warp, lane, 0));
            self.committed.len() - 1
        });
        &mut self.committed[at].2
    }
}

impl Flight {
    pub(crate) fn element_bytes(&self) -> usize {
        self.map.map_or(1, |map| map.dtype.bytes())
    }

    /// The contiguous pieces of the copy.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        let element = self.element_bytes();
        let mut all = Vec::new();
        for row in self.rows.iter().filter(|row| !row.elements.is_empty()) {
            let (first, count) = (row.elements.start, row.elements.len());
            let start = row.address.wrapping_add(first as u64 * row.step);
            let (count, bytes) = if row.step == element as u64 { (1, count * element) } else { (count, element) };
            all.extend((0..count).map(|k| Piece {
                offset: row.offset + (first + k) * element,
                address: start.wrapping_add(k as u64 * row.step),
                bytes,
            }));
        }
        all
    }

    /// Offset in shared memory of a 16-byte piece of the tile.
    pub(crate) fn tile(&self) -> impl Fn(usize) -> usize {
        let (shared, swizzle) = (self.shared as u64 + SHARED_BASE, self.map.map(|map| map.swizzle));
        move |byte| {
            let address = shared + byte as u64;
            (swizzle.map_or(address, |swizzle| swizzle.apply(address)) - SHARED_BASE) as usize
        }
    }
}

/// Asynchronous operations of a block.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    pub(crate) flights: Vec<Flight>,
    pub(crate) groups: Groups,
    /// For each warpgroup, the products that its warps issue.
    pub(crate) issued: Vec<Vec<u32>>,
}
