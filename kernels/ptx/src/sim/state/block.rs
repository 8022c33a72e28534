//! A block: its shared memory, its warps and its barriers.

use super::{Barrier, Cluster, Engine, Mbarriers, Region, State, Warp, Withheld};

/// A resident block.
#[derive(Debug)]
pub(crate) struct Block {
    /// Index in the grid, x first.
    pub(crate) linear: u32,
    pub(crate) position: [u32; 3],
    pub(crate) shared: Region,
    /// For each word of shared memory, 1 + the asynchronous instruction that has yet to write it, or 0.
    pub(crate) pending: Vec<u32>,
    pub(crate) warps: Vec<Warp>,
    pub(crate) barriers: [Barrier; 16],
    pub(crate) mbarriers: Mbarriers,
    pub(crate) engine: Engine,
    pub(crate) cluster: Cluster,
    /// Clocks that a wider scope would have let threads of the block acquire.
    pub(crate) withheld: Withheld,
    /// Grows when a phase ends, so that polling warps retry.
    pub(crate) version: u64,
}

impl Block {
    /// Whether a warp can run; a polling one only after a change, or if it `wakes` without one.
    pub(crate) fn can_run(&self, warp: usize, wakes: bool) -> bool {
        match self.warps[warp].state {
            State::Ready => true,
            State::Polling { version, .. } => wakes || version != self.version,
            State::Barrier { .. } | State::Done => false,
        }
    }
}
