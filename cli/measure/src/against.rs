//! A run of a benchmark against a saved one: ratios with their confidence.
//!
//! ```text
//! r = t(before) / t(now)                       above 1: faster now
//! s(ln r)² = s(before)² + s(now)²              s = 1.2533 · IQR / 1.349 / √rounds / median, of a median
//! interval of 95 % = r · exp(±1.96 s)
//! ```

use crate::{interleaved::Spread, report::Record};
use serde_json::Value;
use std::fmt;

/// A case is slower than before if all of its interval lies below this.
pub const SLOWER: f64 = 0.98;

/// A case in both runs.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Kernel, case, precision, threads and instruction set.
    pub name: String,
    /// Time before over time now.
    pub ratio: f64,
    /// Bounds of its interval of 95 %.
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
        let Self { name, ratio, interval: [low, high] } = self;
        let slower = if self.is_slower() { "  slower" } else { "" };
        write!(f, "{name:<60} ratio {ratio:.3} [{low:.3}, {high:.3}]{slower}")
    }
}

/// Name of a case, for the same one in another run.
fn name(record: &Value) -> String {
    let part = |key: &str| match &record[key] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    format!("{} {} {} {} {}", part("kernel"), part("case"), part("dtype"), part("threads"), part("isa"))
}

/// Standard error of the logarithm of a median.
fn error(spread: &Spread, rounds: f64) -> f64 {
    1.2533 * (spread.q3 - spread.q1) / 1.349 / rounds.max(1.0).sqrt() / spread.median
}

/// Compares `now` with the records of a saved report; cases that it does not have are left out.
///
/// # Errors
/// A sentence, if the text is no report.
pub fn compare(now: &[Record], saved: &str) -> Result<Vec<Compared>, String> {
    let saved: Value = serde_json::from_str(saved).map_err(|error| format!("not JSON: {error}"))?;
    let before = saved["records"].as_array().ok_or("it is no report of albert bench --save")?;
    let mut all = Vec::new();
    for record in now {
        let own = serde_json::to_value(record).expect("a record is JSON");
        let Some(before) = before.iter().find(|before| name(before) == name(&own)) else { continue };
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let seconds = &before["seconds"];
        let then =
            Spread { q1: number(&seconds["q1"]), median: number(&seconds["median"]), q3: number(&seconds["q3"]) };
        let errors = [error(&then, number(&before["rounds"])), error(&record.seconds, record.rounds as f64)];
        let width = 1.96 * errors.iter().map(|error| error * error).sum::<f64>().sqrt();
        let ratio = then.median / record.seconds.median;
        if !ratio.is_finite() || !width.is_finite() {
            return Err(format!("the case {} has no times", name(&own)));
        }
        all.push(Compared { name: name(&own), ratio, interval: [ratio * (-width).exp(), ratio * width.exp()] });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_as_wide_as_its_quartiles_say() {
        let spread = Spread { q1: 0.9, median: 1.0, q3: 1.1 };
        assert!((error(&spread, 25.0) - 1.2533 * 0.2 / 1.349 / 5.0).abs() < 1e-12);
        let slow = Compared { name: String::new(), ratio: 0.9, interval: [0.85, 0.97] };
        let unsure = Compared { name: String::new(), ratio: 0.9, interval: [0.8, 1.01] };
        assert!(slow.is_slower() && !unsure.is_slower());
        assert!(slow.to_string().ends_with("ratio 0.900 [0.850, 0.970]  slower"));
        assert!(compare(&[], "{}").unwrap_err().contains("no report"));
        assert!(compare(&[], "x").unwrap_err().contains("not JSON"));
    }
}
