//! A cluster: blocks that run together, with their barrier. A block of its own is a cluster of one.

use super::{Block, View};

/// A cluster.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// By rank. The running one is taken out.
    pub(crate) blocks: Vec<Option<Box<Block>>>,
    pub(crate) barrier: ClusterBarrier,
}

/// The barrier of a cluster.
#[derive(Debug, Default)]
pub(crate) struct ClusterBarrier {
    pub(crate) phase: u64,
    pub(crate) joined: Option<View>,
    pub(crate) completed: Option<View>,
    /// The phase that each warp has arrived for, plus 1; warps by the rank of their block.
    pub(crate) warps: Vec<u64>,
    /// The phase that each warp has waited for, plus 1.
    pub(crate) waited: Vec<u64>,
}
