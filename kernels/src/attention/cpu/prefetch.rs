//! Prefetching of the next task's rows into L2.
//!
//! The rows of a head are as far apart as the rows of the batch, so hardware prefetchers miss them, and a task of 128
//! queries moves 128 KiB for 4 MFLOP. Each task prefetches the rows of the next one, some after every register tile:
//! few enough not to queue, early enough to be in L2 when needed.

use super::Output;
use super::pack::Rows;
use crate::simd::prefetch_l2;

/// Rows prefetched after each register tile.
const ROWS: usize = 16;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes that roughly stay in L2 from one call to the next. Prefetching them costs more than it gains, 4 % of the time for
/// 128 tokens, because every row is on a separate page.
const NEAR: usize = 2 << 20;
/// Maximum number of matrices that a task accesses.
const MATRICES: usize = 8;

/// Rows of bytes with a constant stride.
#[derive(Clone, Copy)]
struct Region {
    next: *const u8,
    step: usize,
    rows: usize,
    bytes: usize,
}

/// Queue of regions to prefetch.
pub(super) struct PrefetchQueue {
    regions: [Region; MATRICES],
    current: usize,
}

impl PrefetchQueue {
    /// Empty queue.
    pub(super) fn new() -> Self {
        let nothing = Region { next: std::ptr::null(), step: 0, rows: 0, bytes: 0 };
        Self { regions: [nothing; MATRICES], current: MATRICES }
    }

    /// True if a batch of `elements` elements is too large for L2, so that prefetching pays off.
    pub(super) fn is_far<X>(elements: usize) -> bool {
        elements * size_of::<X>() > NEAR
    }

    /// Adds `rows` rows of `width` elements from `next` on, `ld` elements apart.
    fn and<X>(mut self, next: *const X, ld: usize, rows: usize, width: usize) -> Self {
        let size = size_of::<X>();
        self.current -= 1;
        self.regions[self.current] = Region { next: next.cast(), step: ld * size, rows, bytes: width * size };
        self
    }

    /// Adds rows that the next task reads.
    pub(super) fn and_read<X>(self, from: Rows<'_, X>, rows: usize, width: usize) -> Self {
        self.and(from.values.as_ptr().wrapping_add(from.start), from.ld, rows, width)
    }

    /// Adds rows that the next task writes.
    pub(super) fn and_write<X>(self, to: &Output<'_, X>, rows: usize, width: usize) -> Self {
        self.and(to.values.ptr(0).wrapping_add(to.start), to.ld, rows, width)
    }

    /// Prefetches up to `ROWS` rows.
    #[inline(always)]
    pub(super) fn prefetch_some(&mut self) {
        if self.current == MATRICES {
            return;
        }
        let region = &mut self.regions[self.current];
        for _ in 0..ROWS.min(region.rows) {
            for line in (0..region.bytes).step_by(LINE) {
                prefetch_l2(region.next.wrapping_add(line));
            }
            region.next = region.next.wrapping_add(region.step);
            region.rows -= 1;
        }
        if region.rows == 0 {
            self.current += 1;
        }
    }
}
