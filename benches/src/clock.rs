//! The time that this process was on a processor: what a kernel takes when neighbors hold the machine.
#![allow(unsafe_code)]

use std::time::Duration;

/// Time on processors, all threads together, since the process started.
pub fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives through the call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "every Linux since 2.6.12 has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
