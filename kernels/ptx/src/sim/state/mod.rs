//! State of a launch: memory, clocks, blocks, warps and their asynchronous operations.

pub(crate) mod barrier;
pub(crate) mod block;
pub(crate) mod bulk;
pub(crate) mod clocks;
pub(crate) mod copy;
mod done;
pub(crate) mod machine;
pub(crate) mod mbarrier;
pub(crate) mod memory;
pub(crate) mod products;
pub(crate) mod published;
pub(crate) mod shadow;
pub(crate) mod warp;
