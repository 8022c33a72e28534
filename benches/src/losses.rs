//! Compares the losses of a training run on a GPU with those of two runs on a CPU from the same seed.
//!
//! The run in f32 on the CPU is the reference. In bf16 the devices round at different places, so with d(a, b) the root mean
//! square of a - b over steps the rule is
//!
//! ```text
//! d(GPU bf16, CPU f32) <= 2 · d(CPU bf16, CPU f32)       over the first 20 steps, and over all
//! ```
//!
//! as in the tests of `albert::pretrain` on the simulated GPU. Only steps that all three runs have reached are compared.

use anyhow::{Context, Result, ensure};
use std::{collections::BTreeMap, fmt, fs, path::Path};

/// Steps before the dynamics of training amplify rounding.
const EARLY: usize = 20;
/// Maximum of d(GPU, f32) divided by d(CPU bf16, f32).
const FACTOR: f64 = 2.0;

/// Losses of the steps common to all three runs.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Step; loss of the CPU in f32, of the CPU in bf16, of the GPU.
    steps: Vec<(u64, [f64; 3])>,
}

/// Reads the `metrics.jsonl` of three runs that logged each step.
///
/// # Errors
/// A file cannot be read or is not such a log, or fewer than `EARLY` steps are common to all.
pub fn compare(exact: &Path, cpu: &Path, gpu: &Path) -> Result<Comparison> {
    let [exact, cpu, gpu] = [read(exact)?, read(cpu)?, read(gpu)?];
    let common = exact.iter().filter_map(|(step, loss)| Some((*step, [*loss, *cpu.get(step)?, *gpu.get(step)?])));
    let steps: Vec<_> = common.collect();
    ensure!(steps.len() >= EARLY, "the three runs have {} steps in common; expected at least {EARLY}", steps.len());
    Ok(Comparison { steps })
}

/// Loss by step; an incomplete last line is ignored.
fn read(path: &Path) -> Result<BTreeMap<u64, f64>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut losses = BTreeMap::new();
    for (number, line) in (1..).zip(whole.lines()) {
        let record: serde_json::Value =
            serde_json::from_str(line).with_context(|| format!("{}:{number}: not a JSON record", path.display()))?;
        if record["kind"] == "train" {
            let known = record["step"].as_u64().zip(record["loss"].as_f64());
            let (step, loss) =
                known.with_context(|| format!("{}:{number}: step or loss is missing", path.display()))?;
            losses.insert(step, loss);
        }
    }
    Ok(losses)
}

impl Comparison {
    /// d(CPU bf16, f32) and d(GPU, f32) over the first `count` steps.
    fn distances(&self, count: usize) -> [f64; 2] {
        let steps = &self.steps[..count.min(self.steps.len())];
        [1, 2].map(|run| {
            let sum: f64 = steps.iter().map(|(_, losses)| (losses[run] - losses[0]).powi(2)).sum();
            (sum / steps.len() as f64).sqrt()
        })
    }

    /// True if rounding to bf16 explains the difference.
    pub fn is_explained(&self) -> bool {
        // A NaN loss fails.
        [EARLY, self.steps.len()].into_iter().all(|count| {
            let [cpu, gpu] = self.distances(count);
            gpu <= FACTOR * cpu
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| step | CPU f32 | CPU bf16 | GPU bf16 |\n|--:|--:|--:|--:|")?;
        let every = self.steps.len().div_ceil(20).max(1);
        let is_shown = |at: usize| at < 5 || (at + 1).is_multiple_of(every) || at + 1 == self.steps.len();
        for (_, (step, [exact, cpu, gpu])) in self.steps.iter().enumerate().filter(|(at, _)| is_shown(*at)) {
            writeln!(f, "| {step} | {exact:.5} | {cpu:.5} | {gpu:.5} |")?;
        }
        for (what, count) in [("the first", EARLY), ("all", self.steps.len())] {
            let [cpu, gpu] = self.distances(count);
            writeln!(
                f,
                "{what} {count} steps: the GPU is {gpu:.2e} from f32, the CPU in bf16 {cpu:.2e}; ratio {:.2}, at most \
                 {FACTOR} is explained by rounding",
                gpu / cpu
            )?;
        }
        writeln!(f, "losses: {}", if self.is_explained() { "passed" } else { "FAILED" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(gpu_error: f64) -> Comparison {
        let steps = (1..=40u64).map(|step| {
            let (exact, sign) = (10.0 / step as f64, if step % 3 == 0 { 1.0 } else { -1.0 });
            (step, [exact, exact + sign * 1e-3, exact - sign * gpu_error])
        });
        Comparison { steps: steps.collect() }
    }

    #[test]
    fn losses_pass_within_twice_the_rounding_of_the_processor() {
        assert!(comparison(1.9e-3).is_explained());
        assert!(!comparison(2.1e-3).is_explained());
        assert!(!comparison(f64::NAN).is_explained());
        let mut late = comparison(1e-3);
        late.steps[30].1[2] += 1.0;
        assert!(!late.is_explained(), "a late step counts");
    }

    #[test]
    fn a_log_that_ends_in_the_middle_of_a_line_is_read_up_to_it() {
        let path = std::env::temp_dir().join(format!("albert-losses-{}", std::process::id()));
        let line = |step: u64| format!("{{\"kind\":\"train\",\"step\":{step},\"loss\":2.5}}\n");
        fs::write(&path, line(1) + "{\"kind\":\"evaluation\",\"step\":1}\n" + &line(2) + "{\"kind\":\"tr").unwrap();
        let read = read(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap(), BTreeMap::from([(1, 2.5), (2, 2.5)]));
    }
}
