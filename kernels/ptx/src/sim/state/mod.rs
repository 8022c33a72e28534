//! State of a launch: memory, clocks, blocks, warps and their asynchronous operations.

mod barrier;
mod block;
mod bulk;
mod clocks;
mod cluster;
mod copy;
mod done;
mod lanes;
mod machine;
mod mbarrier;
mod memory;
mod products;
mod published;
mod shadow;
mod warp;
mod warp_clock;

pub(crate) use barrier::Barrier;
pub(crate) use block::Block;
pub(crate) use bulk::{Engine, Flight, Goal, Piece};
pub(crate) use clocks::{
    ALL, ASYNC, COPY, Epoch, FLIGHT, MANY, NARROW, READS, SET, SIZE, STRONG, VectorClock, View, WRITES, timelines,
};
pub(crate) use cluster::Cluster;
pub(crate) use copy::{Arrival, AsyncCopy, Copies};
pub(crate) use done::Done;
pub(crate) use lanes::{Issue, Thread, first, lanes};
pub(crate) use machine::{Flow, Machine, position};
pub(crate) use mbarrier::{Mbarrier, Mbarriers};
pub use memory::{Memory, Touched};
pub(crate) use memory::{Region, SHARED, Spot};
pub(crate) use products::{A, Matrix, Pending, Products};
pub(crate) use published::{Published, Withheld};
pub(crate) use shadow::{Conflict, Shadow, remember, remembering};
pub(crate) use warp::{State, Warp};
pub(crate) use warp_clock::{Released, WarpClock};
