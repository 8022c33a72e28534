//! The mbarriers of a block.

use super::{Epoch, View};
use crate::sim::isa::SHARED_BASE;
use std::collections::BTreeMap;

/// The mbarriers of a block, by their offset in shared memory.
#[derive(Debug, Default)]
pub(crate) struct Mbarriers {
    pub(crate) all: BTreeMap<usize, Mbarrier>,
}

/// An mbarrier.
#[derive(Debug, Default)]
pub(crate) struct Mbarrier {
    pub(crate) expected: u32,
    pub(crate) pending: i64,
    pub(crate) bytes: i64,
    pub(crate) phase: u64,
    /// Joined views of the arrivals of the current phase.
    pub(crate) joined: Option<View>,
    /// Those of other blocks of the cluster, for waits whose scope is the cluster.
    pub(crate) joined_remote: Option<View>,
    /// Joined views of those of the phase before.
    pub(crate) completed: Option<View>,
    pub(crate) completed_remote: Option<View>,
    /// The access that initialized it.
    pub(crate) init: Epoch,
    /// A fence has made the initialization visible to asynchronous operations.
    pub(crate) visible: bool,
    /// Its thread has executed `fence.mbarrier_init` since.
    pub(crate) released: bool,
    /// The phase of the cluster's barrier at which its thread then arrived.
    pub(crate) handed_over: Option<u64>,
}

impl Mbarriers {
    /// Whether these bytes overlap an mbarrier.
    #[inline]
    pub(crate) fn overlaps(&self, at: usize, bytes: usize) -> bool {
        !self.all.is_empty() && self.all.range(at.saturating_sub(7)..at + bytes).next().is_some()
    }

    pub(crate) fn get(&mut self, at: usize) -> Option<&mut Mbarrier> {
        self.all.get_mut(&at)
    }

    /// The state of each, in words.
    pub(crate) fn describe(&self) -> impl Iterator<Item = String> {
        self.all.iter().map(|(at, state)| {
            let Mbarrier { expected, pending, bytes, phase, .. } = state;
            let address = SHARED_BASE + *at as u64;
            format!("mbarrier at {address:#x}: phase {phase}, {pending} of {expected} arrivals and {bytes} bytes are missing")
        })
    }

    /// Those that lanes of a warp have initialized.
    fn of(&mut self, timeline: u32, mask: u32) -> impl Iterator<Item = &mut Mbarrier> {
        self.all.values_mut().filter(move |state| state.init.timeline == timeline && mask >> state.init.lane & 1 == 1)
    }

    /// Executes `fence.mbarrier_init` in lanes of a warp.
    pub(crate) fn release(&mut self, timeline: u32, mask: u32) {
        self.of(timeline, mask).for_each(|state| state.released = true);
    }

    /// Orders released initializations of lanes of a warp before those who wait for `phase` of the cluster's barrier.
    pub(crate) fn hand_over(&mut self, timeline: u32, mask: u32, phase: u64) {
        for state in self.of(timeline, mask).filter(|state| state.released) {
            state.handed_over.get_or_insert(phase);
        }
    }

    /// Makes the initializations that a fencing thread `knows` visible to asynchronous operations.
    pub(crate) fn show(&mut self, knows: impl Fn(&Epoch) -> bool) {
        for state in self.all.values_mut().filter(|state| !state.visible) {
            state.visible = knows(&state.init);
        }
    }
}

impl Mbarrier {
    /// Joins the view of an arrival or a copy, of another block of the cluster or of the own one.
    pub(crate) fn gather(&mut self, view: &View, is_remote: bool) {
        View::gather(if is_remote { &mut self.joined_remote } else { &mut self.joined }, view);
    }

    /// Starts the next phase if this one is complete; returns whether it is.
    pub(crate) fn turn(&mut self) -> bool {
        let over = self.pending == 0 && self.bytes == 0;
        if over {
            self.phase += 1;
            self.pending = i64::from(self.expected);
            self.completed = self.joined.take();
            self.completed_remote = self.joined_remote.take();
        }
        over
    }
}
