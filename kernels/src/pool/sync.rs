//! Synchronization primitives of the team. `tests/team` compiles `team.rs` against a module of the same names that wraps
//! the model checker loom.

pub(super) use super::order;
pub(super) use std::{
    panic::catch_unwind,
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize},
    },
};
use std::{
    thread,
    time::{Duration, Instant},
};

/// An `UnsafeCell` whose accesses the model checker can observe.
pub(super) struct Cell<T>(std::cell::UnsafeCell<T>);

impl<T> Cell<T> {
    pub(super) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }
    pub(super) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }
    pub(super) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Time of the first phase of a wait, which only spins.
const SPIN: Duration = Duration::from_micros(20);
/// Longest wait without blocking outside of a pass.
const OUTSIDE: Duration = Duration::from_micros(50);
/// Longest wait without blocking inside a pass: the serial parts of a pass are shorter, as a rule.
const INSIDE: Duration = Duration::from_millis(2);
/// Yields that take longer have run another thread on this core.
const PREEMPTED: Duration = Duration::from_micros(10);

/// A bounded wait: spins, then yields, until the time is up or another thread needs the core; then the caller blocks.
///
/// On its own core, a thread that waits for less than `INSIDE` continues within one or two microseconds; waking a blocked
/// thread takes 5 to 50 us. If threads compete for the core, the first yield that runs another thread ends the wait, so a
/// waiting thread costs the others at most `SPIN` and one context switch.
pub(super) struct Patience {
    polls: u32,
    start: Option<Instant>,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { polls: 0, start: None }
    }

    /// Pauses between two polls. False if the caller is to block.
    pub(super) fn pause(&mut self, in_pass: bool) -> bool {
        std::hint::spin_loop();
        self.polls += 1;
        if !self.polls.is_multiple_of(64) {
            return true;
        }
        let now = Instant::now();
        let waited = now - *self.start.get_or_insert(now);
        if waited < SPIN {
            return true;
        }
        if waited > if in_pass { INSIDE } else { OUTSIDE } {
            return false;
        }
        thread::yield_now();
        now.elapsed() < PREEMPTED
    }
}
