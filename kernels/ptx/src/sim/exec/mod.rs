//! Execution: what the instructions of a warp do to the state.

mod access;
mod barrier;
mod bulk;
mod cluster;
mod collective;
mod completion;
mod copy;
mod dispatch;
mod grid;
mod matrix;
mod mbarrier;
mod order;
mod registers;
mod wgmma;
