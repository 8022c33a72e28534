//! Records of measured cases, as JSON and as lines of a table.

use crate::{
    busy::{self, Doubt, mark},
    interleaved::{Rounds, Spread, Timing},
};
use kernels::{Cpu, roofline};
use serde::Serialize;
use serde_json::{Map, Value};
use std::{fmt, fs};

/// Limit of the machine that bounds a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// FMA peak.
    Arithmetic,
    /// Bandwidth of a copy of as many bytes.
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
    /// FLOPs of a call: each product once, no recomputation; for row kernels, those of the definition.
    pub flops: u64,
    /// Minimum bytes that a call reads and writes; 0 for a step, which has no such bound.
    pub bytes: u64,
    /// Tokens of a call, for attention and steps.
    pub tokens: Option<u64>,
}

/// Another contender of the same rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Peer {
    /// Name of the contender.
    pub name: String,
    /// Seconds per call, wall time.
    pub seconds: Spread,
    /// Its time divided by ours in the same round: above 1 if ours is faster.
    pub ratio: Spread,
    /// As `ratio`, by CPU time.
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
    /// Seconds per call, CPU time of all threads divided by the number of threads.
    pub processor_seconds: Spread,
    /// Speed in GFLOP/s.
    pub gflops: f64,
    /// Bandwidth in GB/s.
    pub gbs: f64,
    /// Tokens per second.
    pub tokens_per_second: Option<f64>,
    /// FMA peak in the same rounds, GFLOP/s.
    pub peak_gflops: f64,
    /// Bandwidth of a copy of as many bytes in the same rounds, read and written, GB/s.
    pub copy_gbs: Option<f64>,
    /// FLOP/s divided by the FMA peak of the same round.
    pub share_of_peak: Spread,
    /// As `share_of_peak`, by CPU time.
    pub processor_share_of_peak: Spread,
    /// GB/s divided by that of the copy of the same round.
    pub share_of_copy: Option<Spread>,
    /// As `share_of_copy`, by CPU time.
    pub processor_share_of_copy: Option<Spread>,
    /// Further contenders of the same rounds: `prepacked` and third-party libraries.
    pub peers: Vec<Peer>,
    /// Peak RSS of the process while it prepared and ran this case.
    pub peak_rss_bytes: Option<u64>,
    /// Signs of other load during the rounds.
    pub doubts: Vec<Doubt>,
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
        let mut record = Self {
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
            doubts: Vec::new(),
        };
        record.doubts = record.find_doubts();
        record
    }

    /// Share of the limit that applies, and the same by CPU time; `None` if the measured limit does not apply: the peak is that
    /// of f32, so int8 products have none.
    pub(crate) fn shares(&self) -> Option<[f64; 2]> {
        let shares = match self.about.bound {
            Bound::Arithmetic if self.about.dtype == "int8" => return None,
            Bound::Arithmetic => [Some(self.share_of_peak), Some(self.processor_share_of_peak)],
            Bound::Traffic => [self.share_of_copy, self.processor_share_of_copy],
        };
        Some(shares.map(|share| share.map_or(f64::NAN, |share| share.median)))
    }

    fn find_doubts(&self) -> Vec<Doubt> {
        let mut all = Vec::new();
        if busy::is_busy(self.seconds.median, self.processor_seconds.median, self.threads) {
            all.push(Doubt::Busy);
        }
        if self.shares().is_some_and(|shares| shares.iter().any(|&share| share > 1.0)) {
            all.push(if self.about.bound == Bound::Arithmetic { Doubt::AbovePeak } else { Doubt::AboveCopy });
        }
        all
    }

    /// Shares as text, with doubtful ones marked: `95.0 % of peak (101.2*% by CPU time)`.
    pub(crate) fn shares_text(&self) -> Option<String> {
        let [wall, processor] = self.shares()?;
        let limit = if self.about.bound == Bound::Arithmetic { "peak" } else { "a copy" };
        let marks = [wall > 1.0 || self.is_busy(), processor > 1.0].map(mark);
        let (wall, processor) = (100.0 * wall, 100.0 * processor);
        Some(format!("{wall:>5.1}{}% of {limit} ({processor:.1}{}% by CPU time)", marks[0], marks[1]))
    }

    /// True if wall times include waiting for a core.
    pub(crate) fn is_busy(&self) -> bool {
        self.doubts.contains(&Doubt::Busy)
    }
}

/// Machine that produced a report.
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
    /// Read bandwidth of L2, GB/s; null if the machine reports no such cache.
    pub l2_gbs: Option<f64>,
    /// Read bandwidth of L3, as for `l2_gbs`.
    pub l3_gbs: Option<f64>,
    /// Share of the time during which the threads really ran.
    pub share_of_cores: f64,
    /// Signs of other load during the measurement.
    pub doubts: Vec<Doubt>,
}

impl Limits {
    /// Measures the limits of `cpu`.
    pub fn of(cpu: &Cpu) -> Self {
        let [l2_gbs, l3_gbs] = roofline::caches(cpu, 0.02).map(|cache| cache.map(|cache| cache.bandwidth / 1e9));
        let copy_gbs = roofline::copy_bandwidth(cpu, 64 << 20, 3) / 1e9;
        let share_of_cores = busy::share_of_cores(cpu, 0.05);
        Self {
            l2_gbs,
            l3_gbs,
            isa: cpu.isa().kind().name(),
            threads: cpu.threads(),
            peak_gflops: roofline::fma_peak(cpu, 0.02) / 1e9,
            copy_gbs,
            share_of_cores,
            doubts: busy::of_limits(share_of_cores, l3_gbs, copy_gbs),
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (busy, slow) = (self.doubts.contains(&Doubt::Busy), self.doubts.contains(&Doubt::SlowL3));
        write!(f, "{}, {} thread(s): {:.0}{}GFLOP/s", self.isa, self.threads, self.peak_gflops, mark(busy))?;
        let roofs = [
            ("L2", self.l2_gbs, busy),
            ("L3", self.l3_gbs, busy || slow),
            ("memory", Some(self.copy_gbs), busy || slow),
        ];
        for (name, gbs, doubted) in roofs {
            if let Some(gbs) = gbs {
                write!(f, ", {name} {gbs:.0}{}GB/s", mark(doubted))?;
            }
        }
        Ok(())
    }
}

/// Results of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Command line of the run.
    pub command: String,
    /// Machine of the run.
    pub machine: Machine,
    /// Limits per number of threads.
    pub limits: Vec<Limits>,
    /// Cases.
    pub records: Vec<Record>,
}

impl Report {
    /// Sentences for all doubts, each once with the number of affected cases.
    pub fn doubts(&self) -> Vec<String> {
        let of = |doubt: Doubt| {
            let cases = self.records.iter().filter(|record| record.doubts.contains(&doubt)).count();
            let limits = self.limits.iter().any(|limits| limits.doubts.contains(&doubt));
            let place = match (limits, cases) {
                (false, 0) => return None,
                (true, 0) => "limits".to_owned(),
                (false, cases) => format!("{cases} of {} cases", self.records.len()),
                (true, cases) => format!("limits, {cases} of {} cases", self.records.len()),
            };
            Some(format!("* {place}: {doubt}"))
        };
        [Doubt::Busy, Doubt::AbovePeak, Doubt::AboveCopy, Doubt::SlowL3].into_iter().filter_map(of).collect()
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let About { kernel, case, dtype, bound, tokens, .. } = &self.about;
        let half_width = |spread: &Spread| 50.0 * (spread.q3 - spread.q1) / spread.median;
        let mark = mark(self.is_busy());
        write!(f, "{kernel:<9} {case:<34} {dtype:<4} {} {:<6}", self.threads, self.isa)?;
        write!(f, " {:>11}{mark}±{:>4.1} %", time(self.seconds.median), half_width(&self.seconds))?;
        let (speed, unit) = if *bound == Bound::Arithmetic { (self.gflops, "GFLOP/s") } else { (self.gbs, "GB/s") };
        write!(f, "  {speed:>8.1}{mark}{unit}")?;
        if let Some(shares) = self.shares_text() {
            write!(f, "  {shares}")?;
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
        // Half of the wall time is CPU time.
        assert_eq!(record.doubts, [Doubt::Busy]);
        let flat = |value: f64| Spread { q1: value, median: value, q3: value };
        assert_eq!((record.share_of_peak, record.processor_share_of_peak), (flat(0.5), flat(1.0)));
        assert_eq!((record.peers[0].ratio, record.rounds, record.gflops), (flat(1.5), 3, 1.0));
        assert_eq!(record.tokens_per_second, Some(100.0));
        let text = record.to_string();
        assert!(
            text.contains("nt 1x2x3")
                && text.contains("peer 1.500 (1.500)")
                && text.contains("50.0*% of peak (100.0 % by CPU time)"),
            "{text}"
        );
        let json = serde_json::to_value(&record).unwrap();
        assert_eq!((&json["kernel"], &json["share_of_peak"]["median"]), (&"gemm".into(), &0.5.into()));
        assert!(json["doubts"][0].as_str().unwrap().starts_with("the machine is busy"), "{json}");
        // On an idle machine, equal times by both clocks are not marked; twice the speed of the peak is.
        let idle = |peak: f64| {
            let timing = |scale: f64| Timing { wall: wall(scale), processor: wall(scale) };
            let rounds =
                Rounds { peak: vec![peak, peak / 2.0, peak], copy: Timing::default(), timings: vec![timing(1.0)] };
            Record::new(&cpu, &about, &["ours".into()], &rounds, None)
        };
        assert!(idle(2e9).doubts.is_empty() && !idle(2e9).to_string().contains('*'), "{}", idle(2e9));
        let above = idle(0.5e9);
        assert_eq!(above.doubts, [Doubt::AbovePeak]);
        assert!(above.to_string().contains("200.0*% of peak (200.0*% by CPU time)"), "{above}");
        let machine = Machine { processor: String::new(), cores: 1 };
        let report =
            Report { command: String::new(), machine, limits: vec![], records: vec![record, above, idle(2e9)] };
        let said = report.doubts();
        assert!(said.len() == 2 && said.iter().all(|line| line.starts_with("* 1 of 3 cases: ")), "{said:?}");
    }
}
