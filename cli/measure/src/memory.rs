//! Peak RSS of this process, from /proc.

use std::fs;

/// Resets the peak to the current RSS. Does nothing if Linux does not permit it.
pub fn reset_peak() {
    // `ru_maxrss` includes the peak of the parent process; this counter can be reset.
    let _unsupported = fs::write("/proc/self/clear_refs", "5");
}

/// Peak RSS in bytes since the start or the last [`reset_peak`]; `None` if /proc does not report it.
pub fn peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(1024 * kilobytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_includes_freed_memory() {
        let before = peak().unwrap();
        let held = std::hint::black_box(vec![1u8; 64 << 20]);
        drop(held);
        assert!(peak().unwrap() >= before.max(64 << 20));
    }
}
