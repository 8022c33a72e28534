//! Memory asked for before it is needed.
//!
//! The rows of a head are as far apart as the rows of the batch, so the machine guesses none of them, and a task of
//! 128 queries moves 128 KiB for 4 MFLOP. Each task asks for the rows of the task after it, some after every register
//! tile: few enough that they do not queue, early enough that they are in L2 when their turn comes.

use super::Output;
use super::pack::Rows;
use crate::simd::prefetch_far;

/// Rows that are asked for after each register tile.
const ROWS: usize = 16;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes that stay in L2 from one call to the next, more or less: asking for them would cost more than it gains, 4 % of
/// the time for 128 tokens, because every row is on a page of its own.
const NEAR: usize = 2 << 20;
/// Matrices of which a task touches rows, at most.
const MATRICES: usize = 8;

/// Rows of bytes at equal distances.
#[derive(Clone, Copy)]
struct Region {
    next: *const u8,
    step: usize,
    rows: usize,
    bytes: usize,
}

/// What is still to be asked for.
pub(super) struct Ahead {
    regions: [Region; MATRICES],
    current: usize,
}

impl Ahead {
    /// Nothing.
    pub(super) fn new() -> Self {
        let nothing = Region { next: std::ptr::null(), step: 0, rows: 0, bytes: 0 };
        Self { regions: [nothing; MATRICES], current: MATRICES }
    }

    /// Whether it is worth asking at all, for a batch of as many numbers.
    pub(super) fn is_far<X>(numbers: usize) -> bool {
        numbers * size_of::<X>() > NEAR
    }

    /// `rows` rows of `width` numbers from `next` on, `ld` numbers apart.
    fn and<X>(mut self, next: *const X, ld: usize, rows: usize, width: usize) -> Self {
        let size = size_of::<X>();
        self.current -= 1;
        self.regions[self.current] = Region { next: next.cast(), step: ld * size, rows, bytes: width * size };
        self
    }

    /// What is read next time, and where.
    pub(super) fn and_read<X>(self, from: Rows<'_, X>, rows: usize, width: usize) -> Self {
        self.and(from.values.as_ptr().wrapping_add(from.start), from.ld, rows, width)
    }

    /// What is written next time.
    pub(super) fn and_write<X>(self, to: &Output<'_, X>, rows: usize, width: usize) -> Self {
        self.and(to.values.ptr(0).wrapping_add(to.start), to.ld, rows, width)
    }

    /// Asks for some rows.
    #[inline(always)]
    pub(super) fn ask(&mut self) {
        if self.current == MATRICES {
            return;
        }
        let region = &mut self.regions[self.current];
        for _ in 0..ROWS.min(region.rows) {
            for line in (0..region.bytes).step_by(LINE) {
                prefetch_far(region.next.wrapping_add(line));
            }
            region.next = region.next.wrapping_add(region.step);
            region.rows -= 1;
        }
        if region.rows == 0 {
            self.current += 1;
        }
    }
}
