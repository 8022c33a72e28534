//! Detection of other load on the machine during a measurement.
//!
//! Affected values are marked with `*` ([`mark`]) in tables and pages, and a sentence is printed below them and stored in
//! JSON. A thread that waits for a core uses wall time but no CPU time; kernels do not wait otherwise, because their threads
//! spin between the loops of a pass.

use crate::clock::thread_time;
use kernels::Cpu;
use serde::{Serialize, Serializer};
use std::{
    fmt,
    sync::Mutex,
    time::{Duration, Instant},
};

/// Ratio of wall time to CPU time above which the machine counts as busy.
const TOLERANCE: f64 = 1.1;

/// Reason to doubt a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// Wall time exceeds CPU time by more than 10 %.
    Busy,
    /// A share of the peak exceeds 100 %.
    AbovePeak,
    /// A share of a copy exceeds 100 %.
    AboveCopy,
    /// L3 is slower than memory.
    SlowL3,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => {
                "the machine is busy: wall time exceeds CPU time by more than 10 %; use values by CPU time, or measure again on an \
                 idle machine"
            }
            Self::AbovePeak => {
                "a share above 100 % of the peak: other work, or a lower clock, slowed the machine while the peak was measured"
            }
            Self::AboveCopy => {
                "a share above 100 % of a copy: the kernel reads more than it writes, which is faster than a copy, or other work \
                 slowed the copy"
            }
            Self::SlowL3 => {
                "L3 is slower than memory: other work uses the caches or the memory, or L3 is smaller than the machine reports; \
                 these limits are unreliable"
            }
        })
    }
}

impl Serialize for Doubt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// `*` for a doubtful value, else a blank.
pub const fn mark(doubted: bool) -> char {
    if doubted { '*' } else { ' ' }
}

/// True if `wall` seconds exceed the CPU time by more than 10 %. `processor` is the CPU time of all threads divided by
/// `threads`. Work that keeps only one of several threads running is compared with that thread.
pub fn is_busy(wall: f64, processor: f64, threads: usize) -> bool {
    let all = processor * threads as f64;
    let running = if all <= 1.05 * wall { all } else { processor };
    wall > TOLERANCE * running
}

/// Share of `seconds` during which all threads of `cpu` really run: 1 on an idle machine.
pub fn share_of_cores(cpu: &Cpu, seconds: f64) -> f64 {
    let ran = Mutex::new((0.0, 0.0));
    cpu.on_every_thread(|_| {
        let (start, used) = (Instant::now(), thread_time());
        while start.elapsed() < Duration::from_secs_f64(seconds) {
            std::hint::spin_loop();
        }
        let mut ran = ran.lock().expect("no probe panics");
        ran.0 += (thread_time() - used).as_secs_f64();
        ran.1 += start.elapsed().as_secs_f64();
    });
    let (processor, wall) = ran.into_inner().expect("no probe panics");
    processor / wall
}

/// Doubts about the limits of the machine: `share` of its cores, bandwidth of L3 and of a copy in memory, both in GB/s.
pub fn of_limits(share: f64, l3: Option<f64>, copy: f64) -> Vec<Doubt> {
    let mut all = Vec::new();
    if is_busy(1.0, share, 1) {
        all.push(Doubt::Busy);
    }
    if l3.is_some_and(|l3| l3 < copy) {
        all.push(Doubt::SlowL3);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_for_a_core_makes_the_machine_busy() {
        // (wall, CPU time divided by threads, threads)
        for quiet in [(1.0, 1.0, 1), (1.0, 0.92, 1), (1.0, 0.95, 2), (1.0, 0.5, 2), (1.0, 0.25, 4)] {
            assert!(!is_busy(quiet.0, quiet.1, quiet.2), "{quiet:?}");
        }
        for busy in [(1.0, 0.9, 1), (2.0, 1.0, 1), (1.0, 0.8, 2), (1.0, 0.4, 2), (1.0, 0.7, 4)] {
            assert!(is_busy(busy.0, busy.1, busy.2), "{busy:?}");
        }
        assert_eq!(of_limits(0.99, Some(20.0), 10.0), []);
        assert_eq!(of_limits(0.99, None, 10.0), []);
        assert_eq!(of_limits(0.6, Some(3.0), 7.0), [Doubt::Busy, Doubt::SlowL3]);
    }

    #[test]
    fn threads_beyond_the_cores_wait() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let share = share_of_cores(&Cpu::new(kernels::Isa::choose().unwrap(), 3 * cores).unwrap(), 0.3);
        assert!(share < 0.7 && is_busy(1.0, share, 1), "{share}");
    }
}
