//! The barriers of a block.

use super::View;

/// A barrier of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Barrier {
    /// Threads that have arrived.
    pub(crate) arrived: u32,
    /// Threads that it waits for, where an instruction gives their number.
    pub(crate) expected: Option<u32>,
    /// The instruction of the first arrival.
    pub(crate) place: usize,
    /// Joined views of the arrivals.
    pub(crate) joined: Option<View>,
    /// Of reductions: threads whose predicate holds, and whether any predicate does not.
    pub(crate) held: u32,
    pub(crate) any_fails: bool,
}
