//! The barriers of a block and of its cluster.

use super::clocks::View;

/// A barrier of a block.
#[derive(Clone, Debug)]
pub(crate) struct Barrier {
    /// Threads that have arrived.
    pub(crate) arrived: u32,
    /// Threads that it waits for, where an instruction has said it.
    pub(crate) expected: Option<u32>,
    /// The instruction of who arrived first.
    pub(crate) place: usize,
    /// What those who have arrived know.
    pub(crate) joined: View,
    /// Of reductions: how many predicates held, and whether all did.
    pub(crate) held: u32,
    pub(crate) all_held: bool,
    pub(crate) fresh: View,
}

impl Barrier {
    pub(crate) fn new(base: u32, warps: usize) -> Self {
        let fresh = View::new(base, warps);
        Barrier { arrived: 0, expected: None, place: 0, joined: fresh.clone(), held: 0, all_held: true, fresh }
    }
}

/// The barrier of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) arrived: usize,
    pub(crate) phase: u64,
    pub(crate) joined: Option<View>,
    pub(crate) completed: Option<View>,
    /// The phase that each warp has arrived for, plus 1.
    pub(crate) warps: Vec<u64>,
}
