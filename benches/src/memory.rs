//! How much memory this process has held at once, as the kernel of Linux counts it.

use std::fs;

/// Forgets the peak so far: the next one counts from what is held now. Does nothing where Linux does not allow it.
pub fn reset_peak() {
    // `ru_maxrss` would keep the peak of whoever started this process; this counter can be reset.
    let _unsupported = fs::write("/proc/self/clear_refs", "5");
}

/// The most bytes that were resident at once since the start or the last [`reset_peak`]; `None` where it is not told.
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
    fn the_peak_remembers_what_was_given_back() {
        let before = peak().unwrap();
        let held = std::hint::black_box(vec![1u8; 64 << 20]);
        drop(held);
        assert!(peak().unwrap() >= before.max(64 << 20));
    }
}
