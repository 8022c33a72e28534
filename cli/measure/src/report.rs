//! Records of measured cases, as JSON and as lines of a table.

use crate::interleaved::{Rounds, Spread, Timing};
use kernels::{Cpu, roofline};
use serde::Serialize;
use serde_json::{Map, Value};
use std::{fmt, fs};

/// The limit of the machine that bounds a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// FMA peak.
    Arithmetic,
    /// Copy bandwidth within as many bytes.
    Traffic,
}

/// Description of a case.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    /// `gemm`, `attention`, `gelu`, `layernorm`, `softmax`, `vocabulary` or `step`.
    pub kernel: &'static str,
    /// Name among the cases of the kernel, such as `nt 512x768x768`.
    pub case: String,
    /// Sizes by name.
    pub sizes: Map<String, Value>,
    /// Storage type of operands.
    pub dtype: &'static str,
    /// Limit that applies.
    pub bound: Bound,
    /// FLOPs of a call: each product once, no recomputation; of row kernels, those of the definition.
    pub flops: u64,
    /// Minimum bytes that a call reads and writes; 0 for a step, which has no such bound.
    pub bytes: u64,
    /// Tokens of a call, for attention and steps.
    pub tokens: Option<u64>,
}

/// Another contender of the same rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Peer {
    /// Name.
    pub name: String,
    /// Seconds per call, wall time.
    pub seconds: Spread,
    /// Its time over ours in the same round: above 1 if ours is faster.
    pub ratio: Spread,
    /// The same by CPU time.
    pub processor_ratio: Spread,
}

/// Measurements of one case.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Description of the case.
    #[serde(flatten)]
    pub about: About,
    /// Instruction set.
    pub isa: &'static str,
    /// Worker threads.
    pub threads: usize,
    /// Number of rounds.
    pub rounds: usize,
    /// Seconds per call, wall time.
    pub seconds: Spread,
    /// Seconds per call, CPU time of all threads over the number of threads.
    pub processor_seconds: Spread,
    /// GFLOP/s.
    pub gflops: f64,
    /// GB/s.
    pub gbs: f64,
    /// Tokens per second.
    pub tokens_per_second: Option<f64>,
    /// FMA peak in the same rounds, GFLOP/s.
    pub peak_gflops: f64,
    /// Bandwidth of a copy within as many bytes in the same rounds, read and written, GB/s.
    pub copy_gbs: Option<f64>,
    /// FLOP/s over the FMA peak of the same round.
    pub share_of_peak: Spread,
    /// The same by CPU time.
    pub processor_share_of_peak: Spread,
    /// GB/s over that of the copy of the same round.
    pub share_of_copy: Option<Spread>,
    /// The same by CPU time.
    pub processor_share_of_copy: Option<Spread>,
    /// Other contenders of the same rounds: `prepacked` and third-party libraries.
    pub peers: Vec<Peer>,
    /// Peak RSS of the process while it prepared and ran this case.
    pub peak_rss_bytes: Option<u64>,
}

impl Record {
    /// Evaluates the rounds of a case; `names[0]` is ours.
    pub fn new(cpu: &Cpu, about: &About, names: &[String], rounds: &Rounds, peak_rss_bytes: Option<u64>) -> Self {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        let ours = &rounds.timings[0];
        let (flops, bytes) = (about.flops as f64, about.bytes as f64);
        let seconds = spread(&ours.wall);
        let share = |times: &[f64]| Spread::of(times.iter().zip(&rounds.peak).map(|(time, peak)| flops / time / peak));
        let ratio =
            |theirs: &[f64], ours: &[f64]| Spread::of(theirs.iter().zip(ours).map(|(theirs, ours)| theirs / ours));
        let peer = |(name, timing): (&String, &Timing)| Peer {
            name: name.clone(),
            seconds: spread(&timing.wall),
            ratio: ratio(&timing.wall, &ours.wall),
            processor_ratio: ratio(&timing.processor, &ours.processor),
        };
        let copied = (!rounds.copy.wall.is_empty()).then_some(&rounds.copy);
        let share_of_copy =
            |copy: &[f64], ours: &[f64]| Spread::of(copy.iter().zip(ours).map(|(copy, ours)| copy * bytes / ours));
        Self {
            about: about.clone(),
            isa: cpu.isa().kind().name(),
            threads: cpu.threads(),
            rounds: rounds.peak.len(),
            seconds,
            processor_seconds: spread(&ours.processor),
            gflops: flops / seconds.median / 1e9,
            gbs: bytes / seconds.median / 1e9,
            tokens_per_second: about.tokens.map(|tokens| tokens as f64 / seconds.median),
            peak_gflops: spread(&rounds.peak).median / 1e9,
            copy_gbs: copied.map(|copy| 1e-9 / spread(&copy.wall).median),
            share_of_peak: share(&ours.wall),
            processor_share_of_peak: share(&ours.processor),
            share_of_copy: copied.map(|copy| share_of_copy(&copy.wall, &ours.wall)),
            processor_share_of_copy: copied.map(|copy| share_of_copy(&copy.processor, &ours.processor)),
            peers: names.iter().zip(&rounds.timings).skip(1).map(peer).collect(),
            peak_rss_bytes,
        }
    }
}

/// Machine of a report.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// CPU model.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
}

impl Machine {
    /// This machine.
    pub fn this() -> Self {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Self {
            processor: name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// Limits of the machine on some threads.
#[derive(Clone, Debug, Serialize)]
pub struct Limits {
    /// Instruction set.
    pub isa: &'static str,
    /// Worker threads.
    pub threads: usize,
    /// FMA peak, GFLOP/s.
    pub peak_gflops: f64,
    /// Bandwidth of a copy larger than the caches, read and written, GB/s.
    pub copy_gbs: f64,
    /// Bandwidth of reading from L2 and from L3, GB/s; null where the machine reports no such cache.
    pub l2_gbs: Option<f64>,
    /// See `l2_gbs`.
    pub l3_gbs: Option<f64>,
}

impl Limits {
    /// Measures `cpu`.
    pub fn of(cpu: &Cpu) -> Self {
        let [l2_gbs, l3_gbs] = roofline::caches(cpu, 0.02).map(|cache| cache.map(|cache| cache.bandwidth / 1e9));
        Self {
            l2_gbs,
            l3_gbs,
            isa: cpu.isa().kind().name(),
            threads: cpu.threads(),
            peak_gflops: roofline::fma_peak(cpu, 0.02) / 1e9,
            copy_gbs: roofline::copy_bandwidth(cpu, 64 << 20, 3) / 1e9,
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} thread(s): {:.0} GFLOP/s", self.isa, self.threads, self.peak_gflops)?;
        for (name, gbs) in [("L2", self.l2_gbs), ("L3", self.l3_gbs), ("memory", Some(self.copy_gbs))] {
            if let Some(gbs) = gbs {
                write!(f, ", {name} {gbs:.0} GB/s")?;
            }
        }
        Ok(())
    }
}

/// Results of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Command line.
    pub command: String,
    /// Machine.
    pub machine: Machine,
    /// Limits per number of threads.
    pub limits: Vec<Limits>,
    /// Cases.
    pub records: Vec<Record>,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let About { kernel, case, dtype, bound, tokens, .. } = &self.about;
        let percent = |share: &Option<Spread>| 100.0 * share.map_or(f64::NAN, |share| share.median);
        let half_width = |spread: &Spread| 50.0 * (spread.q3 - spread.q1) / spread.median;
        write!(f, "{kernel:<9} {case:<34} {dtype:<4} {} {:<6}", self.threads, self.isa)?;
        write!(f, " {:>11} ±{:>4.1} %", time(self.seconds.median), half_width(&self.seconds))?;
        if *dtype == "int8" {
            // The peak is that of f32.
            write!(f, "  {:>8.1} GFLOP/s", self.gflops)?;
        } else if *bound == Bound::Arithmetic {
            let share = 100.0 * self.share_of_peak.median;
            let processor = 100.0 * self.processor_share_of_peak.median;
            write!(f, "  {:>8.1} GFLOP/s  {share:>5.1} % of peak ({processor:.1} % by CPU time)", self.gflops)?;
        } else {
            let (share, processor) = (percent(&self.share_of_copy), percent(&self.processor_share_of_copy));
            write!(f, "  {:>8.1} GB/s  {share:>5.1} % of a copy ({processor:.1} % by CPU time)", self.gbs)?;
        }
        if let (Some(speed), Some(_)) = (self.tokens_per_second, tokens) {
            write!(f, "  {speed:>8.0} tokens/s")?;
        }
        if let (Some(bytes), "step") = (self.peak_rss_bytes, *kernel) {
            write!(f, "  {:.0} MiB", bytes as f64 / f64::from(1 << 20))?;
        }
        for Peer { name, ratio, processor_ratio, .. } in &self.peers {
            write!(f, "  {name} {:.3} ({:.3})", ratio.median, processor_ratio.median)?;
        }
        Ok(())
    }
}

/// Formats a time with a unit that keeps the number between 1 and 1000.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.3} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s => format!("{:.3} us", s * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_ratios_are_formed_within_a_round() {
        let cpu = Cpu::new(kernels::Isa::choose().unwrap(), 1).unwrap();
        let about = About {
            kernel: "gemm",
            case: "nt 1x2x3".to_owned(),
            sizes: Map::new(),
            dtype: "f32",
            bound: Bound::Arithmetic,
            flops: 1_000_000_000,
            bytes: 0,
            tokens: Some(100),
        };
        // The clock frequency halves in the second round and recovers in the third: no share changes.
        let wall = |scale: f64| vec![scale, 2.0 * scale, scale];
        let timing = |scale: f64| Timing { wall: wall(scale), processor: wall(scale / 2.0) };
        let rounds =
            Rounds { peak: vec![2e9, 1e9, 2e9], copy: Timing::default(), timings: vec![timing(1.0), timing(1.5)] };
        let record = Record::new(&cpu, &about, &["ours".into(), "peer".into()], &rounds, Some(7));
        let flat = |value: f64| Spread { q1: value, median: value, q3: value };
        assert_eq!((record.share_of_peak, record.processor_share_of_peak), (flat(0.5), flat(1.0)));
        assert_eq!((record.peers[0].ratio, record.rounds, record.gflops), (flat(1.5), 3, 1.0));
        assert_eq!(record.tokens_per_second, Some(100.0));
        let text = record.to_string();
        assert!(
            text.contains("nt 1x2x3") && text.contains("peer 1.500 (1.500)") && text.contains("50.0 % of peak"),
            "{text}"
        );
        let json = serde_json::to_value(&record).unwrap();
        assert_eq!((&json["kernel"], &json["share_of_peak"]["median"]), (&"gemm".into(), &0.5.into()));
    }
}
