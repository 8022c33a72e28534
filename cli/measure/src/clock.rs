//! CPU time, which other processes on the machine affect less than wall time.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// CPU time of all threads since the process started.
pub fn processor_time() -> Duration {
    now(ClockId::ProcessCPUTime)
}

/// CPU time of the calling thread since it started.
pub fn thread_time() -> Duration {
    now(ClockId::ThreadCPUTime)
}

fn now(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
