//! Cost of each kernel: calls, milliseconds, GFLOP/s, GB/s and the share of the roofline.
//!
//! The share is the least time that the machine's limits allow, over the time taken:
//!
//! ```text
//! % of roofline = max(FLOPs / peak, bytes / bandwidth) / seconds
//! ```
//!
//! (Williams, Waterman, Patterson, "Roofline", 2009). The bandwidth is that of the smallest cache that holds the bytes of a
//! launch, where another launch may have left them, else that of memory; the table names the limit. [`crate::Device::peak`]
//! has peak and bandwidths; where they are not known there is no share. Switched off, a launch costs one relaxed load of a flag.
//!
//! Launches are also spans of a [`crate::trace`], if there is one when the profile is made.
use crate::trace;
use kernels::{
    Cost, Cpu,
    roofline::{self, Cache},
};
use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

/// Rows are collected.
const TABLE: u8 = 1;
/// Launches are traced.
const TRACE: u8 = 2;

/// Collects the cost of launches, from any thread.
#[derive(Debug)]
pub struct Profile {
    /// [`TABLE`] and [`TRACE`].
    on: AtomicU8,
    rows: Mutex<BTreeMap<&'static str, Row>>,
}

/// Total cost of the launches of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Row {
    /// Number of launches.
    pub calls: u64,
    /// Time spent in them.
    pub time: Duration,
    /// Arithmetic and traffic that they need at least.
    pub cost: Cost,
}

/// Peak of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Floating-point operations per second.
    pub flops: f64,
    /// Bytes per second from and to memory.
    pub bandwidth: f64,
    /// Caches, small to large, where they are known.
    pub caches: [Option<Cache>; 2],
}

impl Peak {
    /// Measures all threads of `cpu`: sums of products in f32, a copy of 64 MiB, and the caches. About half a second.
    pub fn measured(cpu: &Cpu) -> Self {
        Self {
            flops: roofline::fma_peak(cpu, 0.2),
            bandwidth: roofline::copy_bandwidth(cpu, 64 << 20, 2),
            caches: roofline::caches(cpu, 0.01),
        }
    }

    /// Peak of a device whose caches are not known.
    pub(crate) const fn without_caches(flops: f64, bandwidth: f64) -> Self {
        Self { flops, bandwidth, caches: [None; 2] }
    }

    /// Limit of a launch of `cost` (`FLOPs`, a cache or `memory`), and its least time in seconds.
    pub(crate) fn limit(&self, cost: Cost) -> (&'static str, f64) {
        let cache = self.caches.iter().flatten().find(|cache| cost.bytes <= cache.bytes as u64);
        let (name, bandwidth) = cache.map_or(("memory", self.bandwidth), |cache| (cache.name, cache.bandwidth));
        let [arithmetic, traffic] = [cost.flops as f64 / self.flops, cost.bytes as f64 / bandwidth];
        if arithmetic >= traffic { ("FLOPs", arithmetic) } else { (name, traffic) }
    }
}

impl Default for Profile {
    fn default() -> Self {
        let on = if trace::is_on() { TRACE } else { 0 };
        Self { on: AtomicU8::new(on), rows: Mutex::default() }
    }
}

impl Profile {
    /// Starts or stops collecting.
    pub fn set(&self, on: bool) {
        if on {
            self.on.fetch_or(TABLE, Ordering::Relaxed)
        } else {
            self.on.fetch_and(!TABLE, Ordering::Relaxed)
        };
    }

    /// True while the time of a launch is to include its kernels on a GPU. A trace has theirs on a track of its own.
    pub(crate) fn waits_for_kernels(&self) -> bool {
        self.on.load(Ordering::Relaxed) & TABLE != 0
    }

    /// Runs `launch` and, while collecting or tracing, records its time and cost; `launch` is told whether it does.
    pub(crate) fn measure<R>(&self, name: &'static str, cost: Cost, launch: impl FnOnce(bool) -> R) -> R {
        let on = self.on.load(Ordering::Relaxed);
        if on == 0 {
            return launch(false);
        }
        let start = Instant::now();
        let result = trace::span(name, &[("FLOPs", cost.flops), ("bytes", cost.bytes)], || launch(true));
        let time = start.elapsed();
        if on & TABLE == 0 {
            return result;
        }
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let row = rows.entry(name).or_default();
        row.calls += 1;
        row.time += time;
        row.cost.flops += cost.flops;
        row.cost.bytes += cost.bytes;
        result
    }

    /// Forgets everything collected.
    pub fn clear(&self) {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The rows, the most expensive kernel first.
    pub fn rows(&self) -> Vec<(&'static str, Row)> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows: Vec<_> = rows.iter().map(|(name, row)| (*name, *row)).collect();
        rows.sort_by_key(|(name, row)| (std::cmp::Reverse(row.time), *name));
        rows
    }

    /// A table of the rows, against the device's peak if it is known.
    pub fn table(&self, peak: Option<Peak>) -> Table {
        Table { rows: self.rows(), peak }
    }
}

/// A printable profile.
#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<(&'static str, Row)>,
    peak: Option<Peak>,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: Duration = self.rows.iter().map(|(_, row)| row.time).sum();
        write!(f, "{:<36} {:>7} {:>10} {:>6} {:>9} {:>8}", "kernel", "calls", "ms", "%", "GFLOP/s", "GB/s")?;
        writeln!(f, "{}", if self.peak.is_some() { " % roof limit" } else { "" })?;
        for (name, row) in &self.rows {
            let seconds = row.time.as_secs_f64().max(1e-12);
            let mut line = String::new();
            write!(line, "{name:<36} {:>7} {:>10.3} ", row.calls, seconds * 1e3)?;
            write!(line, "{:>6.1} ", 100.0 * seconds / total.as_secs_f64().max(1e-12))?;
            write!(line, "{:>9.2} ", row.cost.flops as f64 / seconds * 1e-9)?;
            write!(line, "{:>8.2}", row.cost.bytes as f64 / seconds * 1e-9)?;
            if let Some(peak) = self.peak {
                let calls = row.calls.max(1);
                let launch = Cost { flops: row.cost.flops / calls, bytes: row.cost.bytes / calls };
                let (limit, least) = peak.limit(launch);
                write!(line, " {:>6.1} {limit}", 100.0 * least * calls as f64 / seconds)?;
            }
            writeln!(f, "{line}")?;
        }
        write!(f, "total {:.3} ms", 1e3 * total.as_secs_f64())?;
        if let Some(Peak { flops, bandwidth, caches }) = self.peak {
            write!(f, "; peak {:.1} GFLOP/s, memory {:.1} GB/s", flops * 1e-9, bandwidth * 1e-9)?;
            for cache in caches.iter().flatten() {
                write!(f, ", {} {:.1} GB/s", cache.name, cache.bandwidth * 1e-9)?;
            }
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collects_only_while_on_and_from_all_threads() {
        let profile = Profile::default();
        let cost = Cost { flops: 2_000_000, bytes: 1_000 };
        profile.measure("off", cost, |is_on| assert!(!is_on));
        profile.set(true);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| profile.measure("gemm.nt", cost, |_| std::thread::sleep(Duration::from_millis(2))));
            }
        });
        let rows = profile.rows();
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].0, rows[0].1.calls, rows[0].1.cost.flops), ("gemm.nt", 4, 8_000_000));
        assert!(rows[0].1.time >= Duration::from_millis(8), "{:?}", rows[0]);
        // 8 MFLOP in at least 8 ms is at most 1 GFLOP/s, so at most 100 % of such a peak.
        let table = profile.table(Some(Peak::without_caches(1e9, 1e9))).to_string();
        assert!(table.contains("gemm.nt") && table.contains("% roof"), "{table}");
        let [limit, share]: [&str; 2] =
            table.lines().nth(1).unwrap().rsplit(' ').take(2).collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(limit, "FLOPs");
        let share: f64 = share.parse().unwrap();
        assert!(share > 0.0 && share <= 100.0, "{table}");
        let table = profile.table(None).to_string();
        assert!(table.contains("gemm.nt") && !table.contains("roof") && !table.contains("peak"), "{table}");
        profile.clear();
        assert!(profile.rows().is_empty());
    }

    #[test]
    fn the_smallest_level_that_holds_the_bytes_limits() {
        let cache = |name, bytes, bandwidth| Some(Cache { name, bytes, bandwidth });
        let peak = Peak { flops: 1e3, bandwidth: 1.0, caches: [cache("L2", 10, 100.0), cache("L3", 1000, 10.0)] };
        let limit = |flops, bytes| peak.limit(Cost { flops, bytes });
        assert_eq!(limit(1, 10), ("L2", 0.1));
        assert_eq!(limit(1, 11), ("L3", 1.1));
        assert_eq!(limit(1, 1000), ("L3", 100.0));
        assert_eq!(limit(1, 1001), ("memory", 1001.0));
        assert_eq!(limit(1000, 10), ("FLOPs", 1.0));
    }
}
