//! CPU time of this process: unlike wall time, other processes on the machine disturb it little.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// CPU time of all threads since the process started.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
