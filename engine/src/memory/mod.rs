//! Memory: blocks, the arena that cuts one block into the tensors of a step, and the plan that says where.
//!
//! ```text
//! dry run of a step at the budget        plan                        every later step
//! alloc 0: 96 KiB                        slot 0: offset 0            the i-th request gets the i-th slot
//! alloc 1: 24 KiB      greedy by size    slot 1: offset 96 KiB       if it is no larger and nothing that is still
//! free 0            ------------------>  slot 2: offset 0            alive lies there; else it goes to the heap and
//! alloc 2: 64 KiB      lifetimes known                               is counted
//! ```
//!
//! The dry run is the step itself with its kernels left out, so the plan cannot disagree with the code. Steps of one
//! program make the same requests in the same order, only smaller for smaller batches; that is all the mechanism
//! relies on for speed. For safety it relies on nothing: a slot is handed out only while its bytes are free.
mod allocator;
mod arena;
mod block;
mod plan;

pub use allocator::ProgramAllocator;
pub use arena::Arena;
pub use arena::ArenaReport;
pub(crate) use arena::{Parts, SharedStorage, Storage};
pub use plan::Plan;
