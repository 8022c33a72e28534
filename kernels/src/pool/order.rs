//! Memory orderings of the accesses to the team's state word, by purpose. `tests/team` compiles this file into its models, and
//! weakens one ordering at a time and expects a data race.

use std::sync::atomic::Ordering;

/// The leader opens a loop: publishes the job and what the leader wrote before the loop.
pub(crate) const OPEN: Ordering = Ordering::Release;
/// A member joins a loop: pairs with `OPEN`.
pub(crate) const JOIN: Ordering = Ordering::Acquire;
/// A member leaves a loop: publishes what its tasks wrote.
pub(crate) const LEAVE: Ordering = Ordering::Release;
/// The leader finds that all members have left: pairs with `LEAVE`.
pub(crate) const LEFT: Ordering = Ordering::Acquire;
