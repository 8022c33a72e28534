//! Comparison of a benchmark run with a saved one, and statistics of interleaved pairs.
//!
//! ```text
//! r = s(now) / s(before)                       s: share of the peak or of a copy in the same rounds; above 1: faster now
//! e(ln r)² = e(before)² + e(now)² + DRIFT²     e = 1.2533 · IQR / 1.349 / √rounds / median, of a median
//! 95 % interval    = r · exp(±1.96 e)
//! ```
//!
//! Two processes of one program differ by more than their rounds show: their pages and the load of the machine differ. DRIFT
//! covers that; `albert bench compare` measures it instead.

use crate::{
    interleaved::Spread,
    report::{About, Record},
};
use kernels::Cpu;
use serde_json::Value;
use std::fmt;

/// A case is slower than before if its whole interval is below this.
pub const SLOWER: f64 = 0.98;
/// Standard deviation of ln r between two processes of one program on a machine with other load.
const DRIFT: f64 = 0.1;
/// Minimum number of pairs of a comparison.
pub const LEAST_PAIRS: usize = 11;

/// A case in both runs.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Kernel and case.
    pub name: String,
    /// Settings that differ: `threads 1 -> 2`.
    pub differs: Vec<String>,
    /// Time before over time now.
    pub ratio: f64,
    /// Bounds of its 95 % interval.
    pub interval: [f64; 2],
}

impl Compared {
    /// True if the case is slower now.
    pub fn is_slower(&self) -> bool {
        self.interval[1] < SLOWER
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, ratio, interval: [low, high], differs } = self;
        write!(f, "{name:<60} ratio {ratio:.3} [{low:.3}, {high:.3}]")?;
        if self.is_slower() {
            f.write_str("  slower")?;
        }
        if !differs.is_empty() {
            write!(f, "  differs: {}", differs.join(", "))?;
        }
        Ok(())
    }
}

/// Text of a field of a record.
fn text(record: &Value, key: &str) -> String {
    match &record[key] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Settings that may differ between the runs of a case.
const SETTINGS: [&str; 3] = ["dtype", "threads", "isa"];

/// Records of an earlier run.
#[derive(Clone, Debug)]
pub struct Saved {
    records: Vec<Value>,
}

impl Saved {
    /// Reads the text of a report.
    ///
    /// # Errors
    /// The text is not a report, in a sentence.
    pub fn read(saved: &str) -> Result<Self, String> {
        let mut saved: Value = serde_json::from_str(saved).map_err(|error| format!("not JSON: {error}"))?;
        match saved["records"].take() {
            Value::Array(records) if !records.is_empty() => Ok(Self { records }),
            _ => Err("it is not a report of albert bench --save".to_owned()),
        }
    }

    /// Finds the record of the same kernel, case and sizes whose settings differ least from `now`, in the order of [`SETTINGS`].
    fn find(&self, about: &About, now: &[String; 3]) -> Option<&Value> {
        let is_case = |record: &&Value| {
            record["kernel"] == about.kernel
                && record["case"] == about.case
                && record["sizes"] == Value::Object(about.sizes.clone())
        };
        self.records.iter().filter(is_case).min_by_key(|record| differences(record, now).len())
    }

    /// Checks, before anything is measured, that the run has one of `cases`.
    ///
    /// # Errors
    /// No case matches; the message names one of each side.
    pub fn check(&self, cases: &[About], cpus: &[Cpu]) -> Result<(), String> {
        let is_known = |about: &About| cpus.iter().any(|cpu| self.find(about, &settings(about, cpu)).is_some());
        if cases.iter().any(is_known) {
            return Ok(());
        }
        let name = |record: &Value| format!("{} {}", text(record, "kernel"), text(record, "case"));
        let own = cases.first().map_or(String::new(), |about| format!("{} {}", about.kernel, about.case));
        let [first, ..] = &self.records[..] else { return Err("no records".to_owned()) };
        Err(format!(
            "none of the selected cases is in it; expected a case such as `{}`, found `{own}`; select the sizes of the saved run",
            name(first)
        ))
    }

    /// Compares `now` with these records; cases without a record are skipped.
    ///
    /// # Errors
    /// A record has no times.
    pub fn compare(&self, now: &[Record]) -> Result<Vec<Compared>, String> {
        let mut all = Vec::new();
        for record in now {
            let about = &record.about;
            let settings = [about.dtype.to_owned(), record.threads.to_string(), record.isa.to_owned()];
            let Some(before) = self.find(about, &settings) else { continue };
            let name = format!("{} {}", about.kernel, about.case);
            let key = if record.share_of_copy.is_some() { "share_of_copy" } else { "share_of_peak" };
            let share = record.share_of_copy.unwrap_or(record.share_of_peak).median;
            let errors = [
                error(&spread(before, "seconds"), number(&before["rounds"])),
                error(&record.seconds, record.rounds as f64),
            ];
            let variance = errors.iter().map(|error| error * error).sum::<f64>() + DRIFT * DRIFT;
            let width = 1.96 * variance.sqrt();
            let differs = differences(before, &settings);
            // The peak depends on the settings: if they differ, times are compared.
            let ratio = if differs.is_empty() {
                share / spread(before, key).median
            } else {
                spread(before, "seconds").median / record.seconds.median
            };
            if !ratio.is_finite() || !width.is_finite() || ratio <= 0.0 {
                return Err(format!("the case {name} has no times"));
            }
            all.push(Compared { name, differs, ratio, interval: [ratio * (-width).exp(), ratio * width.exp()] });
        }
        Ok(all)
    }
}

fn settings(about: &About, cpu: &Cpu) -> [String; 3] {
    [about.dtype.to_owned(), cpu.threads().to_string(), cpu.isa().kind().name().to_owned()]
}

/// Formats `isa avx2 -> scalar` for each setting of `before` that differs in `now`.
fn differences(before: &Value, now: &[String; 3]) -> Vec<String> {
    let pair = |(key, now): (&&str, &String)| {
        let before = text(before, key);
        (before != *now).then(|| format!("{} {before} -> {now}", if *key == "dtype" { "precision" } else { key }))
    };
    SETTINGS.iter().zip(now).filter_map(pair).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn spread(record: &Value, key: &str) -> Spread {
    let [q1, median, q3] = ["q1", "median", "q3"].map(|part| number(&record[key][part]));
    Spread { q1, median, q3 }
}

/// Standard error of the logarithm of a median.
fn error(spread: &Spread, rounds: f64) -> f64 {
    1.2533 * (spread.q3 - spread.q1) / 1.349 / rounds.max(1.0).sqrt() / spread.median
}

/// Median of the ratios of pairs, and an interval that contains the true median with at least 95 %, for any distribution: the
/// k-th smallest and the k-th largest, with the largest k for which P(fewer than k of n coins show heads) <= 2.5 %.
///
/// # Panics
/// With fewer than [`LEAST_PAIRS`] ratios.
pub fn of_pairs(name: String, mut ratios: Vec<f64>) -> Compared {
    let n = ratios.len();
    assert!(n >= LEAST_PAIRS, "{n} pairs");
    ratios.sort_by(f64::total_cmp);
    let (mut term, mut below, mut k) = (0.5f64.powi(n as i32), 0.0, 0);
    while below + term <= 0.025 {
        below += term;
        term *= (n - k) as f64 / (k + 1) as f64;
        k += 1;
    }
    let interval = [ratios[k.max(1) - 1], ratios[n - k.max(1)]];
    Compared { name, differs: Vec::new(), ratio: Spread::of(ratios).median, interval }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cases::Ready,
        plan::{Selection, What, processors},
        report::{Machine, Report},
    };

    #[test]
    fn an_interval_is_as_wide_as_its_quartiles_say() {
        let spread = Spread { q1: 0.9, median: 1.0, q3: 1.1 };
        assert!((error(&spread, 25.0) - 1.2533 * 0.2 / 1.349 / 5.0).abs() < 1e-12);
        let case = |interval| Compared { name: String::new(), differs: vec![], ratio: 0.9, interval };
        assert!(case([0.85, 0.97]).is_slower() && !case([0.8, 1.01]).is_slower());
        assert!(case([0.85, 0.97]).to_string().ends_with("ratio 0.900 [0.850, 0.970]  slower"));
        assert!(Saved::read("{}").unwrap_err().contains("not a report"));
        assert!(Saved::read("x").unwrap_err().contains("not JSON"));
    }

    #[test]
    fn an_interval_of_pairs_leaves_out_outliers_on_both_sides() {
        // For 11 pairs, the second smallest and largest: P(at most one head of 11) = 12 / 2048 = 0.6 %, P(at most two) = 3.3 %.
        let ratios: Vec<f64> = (1..=11).map(f64::from).collect();
        let compared = of_pairs(String::new(), ratios);
        assert_eq!((compared.ratio, compared.interval), (6.0, [2.0, 10.0]));
        let compared = of_pairs(String::new(), (1..=15).map(f64::from).collect());
        assert_eq!((compared.ratio, compared.interval), (8.0, [4.0, 12.0]));
    }

    #[test]
    fn cases_match_across_settings_and_what_differs_is_said() {
        let run = |isa: &str, threads: usize, m: usize| {
            let selection = Selection { m: vec![m], n: vec![16], k: vec![4], ..Selection::default() };
            let cpus = processors(&[threads], Some(isa)).unwrap();
            let works = selection.works(What::Gemm).unwrap();
            let records: Vec<_> = works.iter().map(|work| Ready::new(&cpus[0], work).unwrap().run(1, 0.0)).collect();
            (works.iter().map(crate::cases::Work::about).collect::<Vec<_>>(), cpus, records)
        };
        let (_, _, before) = run("scalar", 1, 8);
        let machine = Machine { processor: String::new(), cores: 1 };
        let report = Report { command: String::new(), machine, limits: vec![], records: before };
        let saved = Saved::read(&serde_json::to_string(&report).unwrap()).unwrap();
        let (about, cpus, now) = run("scalar", 2, 8);
        saved.check(&about, &cpus).unwrap();
        assert_eq!(saved.compare(&now).unwrap()[0].differs, ["threads 1 -> 2"]);
        let (other, cpus, now) = run("scalar", 1, 9);
        let refusal = saved.check(&other, &cpus).unwrap_err();
        assert!(refusal.contains("`gemm nt 8x16x4`") && refusal.contains("`gemm nt 9x16x4`"), "{refusal}");
        assert!(saved.compare(&now).unwrap().is_empty());
        let compared = &saved.compare(&report.records).unwrap()[0];
        assert!(compared.differs.is_empty() && (compared.ratio - 1.0).abs() < 1e-9, "{compared}");
        assert!(compared.interval[0] < 0.85 && compared.interval[1] > 1.2, "{compared}");
    }
}
