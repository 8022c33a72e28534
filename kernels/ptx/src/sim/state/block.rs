//! A block: its shared memory, its warps and its barriers.

use super::{Barrier, Cluster, Engine, Mbarriers, Region, State, Warp, Withheld};

/// A block that has begun.
#[derive(Debug)]
pub(crate) struct Block {
    /// Its number in the grid, x first.
    pub(crate) linear: u32,
    pub(crate) position: [u32; 3],
    pub(crate) shared: Region,
    /// For each word of shared memory, 1 + the instruction that is still bringing it, or 0.
    pub(crate) pending: Vec<u32>,
    pub(crate) warps: Vec<Warp>,
    pub(crate) barriers: [Barrier; 16],
    pub(crate) mbarriers: Mbarriers,
    pub(crate) engine: Engine,
    pub(crate) cluster: Cluster,
    /// What a wider scope would have let threads of the block learn.
    pub(crate) withheld: Withheld,
    /// Grows when a phase ends: who polls may ask again.
    pub(crate) version: u64,
}

impl Block {
    /// Whether a warp can run; one that polls only if something has changed, or if it `wakes` without a reason.
    pub(crate) fn can_run(&self, warp: usize, wakes: bool) -> bool {
        match self.warps[warp].state {
            State::Ready => true,
            State::Polling { version, .. } => wakes || version != self.version,
            State::Barrier { .. } | State::Done => false,
        }
    }
}
