//! A block: its shared memory, its warps and its barriers.

use super::{Barrier, Engine, Epoch, Mbarriers, Region, State, Warp, Withheld};

/// A resident block.
#[derive(Debug)]
pub(crate) struct Block {
    /// Index in the grid, x first.
    pub(crate) linear: u32,
    pub(crate) position: [u32; 3],
    /// Position in its cluster.
    pub(crate) rank: usize,
    pub(crate) shared: Region,
    /// For each word of shared memory, 1 + the asynchronous instruction that has yet to write it, or 0.
    pub(crate) pending: Vec<u32>,
    pub(crate) warps: Vec<Warp>,
    pub(crate) barriers: [Barrier; 16],
    pub(crate) mbarriers: Mbarriers,
    pub(crate) engine: Engine,
    /// Accesses of other blocks of the cluster to the shared memory, the last one of each thread.
    pub(crate) visitors: Vec<Epoch>,
    /// All threads have ended.
    pub(crate) ended: bool,
    /// Clocks that a wider scope would have let threads of the block acquire.
    pub(crate) withheld: Withheld,
    /// Grows when a phase ends, so that polling warps retry.
    pub(crate) version: u64,
}

impl Block {
    /// Exchanges what other blocks of the cluster can access.
    pub(crate) fn exchange(&mut self, other: &mut Block) {
        std::mem::swap(&mut self.shared, &mut other.shared);
        std::mem::swap(&mut self.pending, &mut other.pending);
        std::mem::swap(&mut self.mbarriers, &mut other.mbarriers);
        std::mem::swap(&mut self.engine.flights, &mut other.engine.flights);
        std::mem::swap(&mut self.version, &mut other.version);
    }

    /// Notes an access of another block to the shared memory.
    pub(crate) fn note_visitor(&mut self, epoch: Epoch) {
        let same = |old: &&mut Epoch| (old.timeline, old.lane) == (epoch.timeline, epoch.lane);
        match self.visitors.iter_mut().find(same) {
            Some(old) => *old = epoch,
            None => self.visitors.push(epoch),
        }
    }

    /// Whether a warp can run; a polling one only after a change, or if it `wakes` without one.
    pub(crate) fn can_run(&self, warp: usize, wakes: bool) -> bool {
        match self.warps[warp].state {
            State::Ready => true,
            State::Polling { version, .. } => wakes || version != self.version,
            State::Barrier { .. } | State::Done => false,
        }
    }
}
