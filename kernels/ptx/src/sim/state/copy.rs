//! The `cp.async` copies of a warp.

use super::{Spot, View};

/// The copies of a warp that have not arrived.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    pub(crate) all: Vec<AsyncCopy>,
    /// For each lane and group that it has committed, the last copy in it or before it.
    pub(crate) ends: [Vec<u32>; 32],
    /// Counts instructions.
    pub(crate) sequence: u32,
    pub(crate) arrivals: Vec<Arrival>,
}

/// A copy of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsyncCopy {
    pub(crate) lane: u8,
    /// `None` until it is committed.
    pub(crate) group: Option<u32>,
    pub(crate) sequence: u32,
    pub(crate) from: Option<Spot>,
    pub(crate) to: usize,
    pub(crate) bytes: usize,
    /// The rest is zero.
    pub(crate) read: usize,
}

/// An arrival at an mbarrier when all earlier copies of a lane are complete.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) lane: u8,
    pub(crate) at: usize,
    pub(crate) pc: usize,
    pub(crate) sequence: u32,
    pub(crate) known: View,
}

impl Copies {
    /// Number of groups that a lane has committed.
    pub(crate) fn committed(&self, lane: usize) -> u32 {
        self.ends[lane].len() as u32
    }

    /// The last copy of a lane that is complete when at most `left` groups are pending.
    pub(crate) fn over(&self, lane: usize, left: u32) -> u32 {
        let over = self.committed(lane).saturating_sub(left) as usize;
        over.checked_sub(1).map_or(0, |last| self.ends[lane][last])
    }
}
