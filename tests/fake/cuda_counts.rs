//! Counts of `cuda.rs`, declared both in the library and in the tests that load it.

/// Counts of driver calls since the library was loaded.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Counts {
    pub(crate) launches: u64,
    /// Launches that may start before the previous one is complete.
    pub(crate) early: u64,
    /// Launches that may, though their text does not wait, or the reverse.
    pub(crate) unordered: u64,
    pub(crate) uploads: u64,
    pub(crate) uploaded_bytes: u64,
    /// Copies to the host, for which the host waits.
    pub(crate) reads: u64,
    /// Copies to the host, for which the host does not wait.
    pub(crate) later_reads: u64,
    /// Waits for the stream, or for an event without a later launch.
    pub(crate) waits: u64,
    pub(crate) fills: u64,
    pub(crate) allocations: u64,
    pub(crate) maps: u64,
    pub(crate) contexts: u64,
    pub(crate) modules: u64,
    /// Total number of calls.
    pub(crate) calls: u64,
    /// Nanoseconds between the end of a call and the start of the next one if it is a launch; without long pauses.
    pub(crate) between: u64,
    /// Long pauses: drawing of data, checkpoints, and other programs on the core.
    pub(crate) long: u64,
}

impl Counts {
    /// No calls.
    pub(crate) const NONE: Self = Self {
        launches: 0,
        early: 0,
        unordered: 0,
        uploads: 0,
        uploaded_bytes: 0,
        reads: 0,
        later_reads: 0,
        waits: 0,
        fills: 0,
        allocations: 0,
        maps: 0,
        contexts: 0,
        modules: 0,
        calls: 0,
        between: 0,
        long: 0,
    };
}
