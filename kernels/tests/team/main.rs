//! Model checking of the thread team (`src/pool/team.rs`): loom runs it under every interleaving of two threads, or all
//! with a bounded number of preemptions, and under every value that a weakly ordered load may return.
//!
//! ```text
//! cargo test -p albert-kernels --test team -- --nocapture        prints the executions of each model and the time
//! ```
//!
//! A model fails on a data race (accesses to a cell without happens-before), a deadlock or a failed assertion. Waiting
//! threads either poll forever, or block at once, where a lost wake-up is a deadlock. The team is compiled unchanged and
//! once for each planted fault: an ordering weakened to relaxed, which a model must detect.

#[path = "../../src/pool/order.rs"]
mod order;
mod primitives;

use primitives::Wait;
use std::process::Command;

/// Compiles the team and the models with the orderings of the module `order`, and tests that a planted fault is found.
macro_rules! team {
    ($name:ident, $fault:literal, $test:ident, $open:ident, $join:ident, $leave:ident, $left:ident) => {
        team! {
            $name,
            pub(super) mod order {
                use std::sync::atomic::Ordering;
                pub(crate) const OPEN: Ordering = Ordering::$open;
                pub(crate) const JOIN: Ordering = Ordering::$join;
                pub(crate) const LEAVE: Ordering = Ordering::$leave;
                pub(crate) const LEFT: Ordering = Ordering::$left;
            }
        }

        #[test]
        #[should_panic(expected = "Causality violation")]
        fn $test() {
            $name::models::three_loops(concat!("planted fault: ", $fault, " relaxed"), Wait::Poll, None);
        }
    };
    ($name:ident, $order:item) => {
        #[path = "."]
        mod $name {
            mod sync {
                pub(super) use crate::primitives::*;
                $order
            }
            #[path = "models.rs"]
            #[allow(clippy::duplicate_mod, dead_code, unsafe_code, unreachable_pub)]
            pub(crate) mod models;
            #[path = "../../src/pool/team.rs"]
            #[allow(clippy::duplicate_mod, dead_code, unsafe_code, unreachable_pub)]
            mod team;
        }
    };
}

team! {
    correct,
    pub(super) use crate::order;
}
team!(relaxed_open, "OPEN", a_loop_opened_without_release_is_found, Relaxed, Acquire, Release, Acquire);
team!(relaxed_join, "JOIN", a_member_that_joins_without_acquire_is_found, Release, Relaxed, Release, Acquire);
team!(relaxed_leave, "LEAVE", a_member_that_leaves_without_release_is_found, Release, Acquire, Relaxed, Acquire);
team!(relaxed_left, "LEFT", a_leader_that_waits_without_acquire_is_found, Release, Acquire, Release, Relaxed);

#[test]
fn three_tasks_of_a_loop_run_once_and_before_the_leader_goes_on() {
    correct::models::three_tasks("three tasks, 2 threads that poll, all interleavings", Wait::Poll, None);
    correct::models::three_tasks("three tasks, 2 threads that block, 4 preemptions", Wait::Block, Some(4));
}

#[test]
fn three_loops_are_ordered() {
    correct::models::three_loops("three loops, 2 threads that poll, 3 preemptions", Wait::Poll, Some(3));
    correct::models::three_loops("three loops, 2 threads that block, 3 preemptions", Wait::Block, Some(3));
}

#[test]
fn loops_of_all_threads_reach_each_once() {
    correct::models::loops_of_all(
        "two loops of all threads and one of tasks, 2 threads, 3 preemptions",
        Wait::Block,
        Some(3),
    );
}

#[test]
fn two_callers_share_the_members() {
    correct::models::two_callers("two callers of a loop each, 3 threads, 2 preemptions", Wait::Block, Some(2));
}

#[test]
fn two_callers_that_reach_every_thread_do_not_wait_for_each_other() {
    let name = "two callers of a loop of all threads each, 3 threads, 2 preemptions";
    correct::models::two_callers_of_all(name, Wait::Block, Some(2));
}

/// A deadlock that loom finds may abort the process, because guards are dropped while it unwinds.
#[test]
fn a_team_that_is_joined_before_it_is_dissolved_deadlocks() {
    let test = "planted_team_that_is_joined_before_it_is_dissolved";
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args([test, "--exact", "--ignored", "--nocapture"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("deadlock; threads ="), "{}: {errors}", output.status);
}

#[test]
#[ignore = "deadlocks: run by the test before"]
fn planted_team_that_is_joined_before_it_is_dissolved() {
    correct::models::joined_before_it_is_dissolved("planted fault: a team joined before it is dissolved");
}
