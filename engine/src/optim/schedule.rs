//! Learning rates over a run: warm-up from zero, then polynomial decay.
//!
//! ```text
//! released                              smooth
//! peak ┤      .                         peak ┤   .
//!      │     /|`·.                           │  / `·.
//!      │    / `·. `·.   <- a drop here       │ /     `·.
//!    0 └───────────── N                    0 └──────────── N
//!          warm-up                              warm-up
//! ```
//!
//! The released code measures the decay from step 0 while the warm-up runs, so the rate is zero at the first step and
//! drops where the warm-up ends; published numbers were made so. The smooth form begins to decay at the end of the
//! warm-up and wastes no step on a rate of zero.
//!
//! ```
//! use engine::optim::Schedule;
//!
//! let schedule = Schedule::smooth(1e-3, 100, 10); // peak, steps, steps of the warm-up
//! assert!(schedule.rate(0) > 0.0 && schedule.rate(9) <= 1e-3);
//! assert!(schedule.rate(99) < schedule.rate(50));
//! ```
use crate::error::{EngineError, Result};

/// Rate from which the decay starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// At step 0, and the first step has rate 0: the released code.
    Released,
    /// At the end of the warm-up, and the first step already counts.
    Smooth,
}

/// A learning rate for every step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The rate at the top.
    pub peak: f64,
    /// The rate at the end and beyond.
    pub end: f64,
    /// Steps of the run.
    pub steps: u64,
    /// Steps of the warm-up.
    pub warmup: u64,
    /// Power of the decay: 1 is a straight line.
    pub power: f64,
    /// Rate from which the decay starts.
    pub decay: Decay,
}

impl Schedule {
    /// A straight line from `peak` to 0 as in the released code.
    pub fn released(peak: f64, steps: u64, warmup: u64) -> Self {
        Self { peak, end: 0.0, steps, warmup, power: 1.0, decay: Decay::Released }
    }

    /// A straight line from the end of the warm-up to 0.
    pub fn smooth(peak: f64, steps: u64, warmup: u64) -> Self {
        Self { decay: Decay::Smooth, ..Self::released(peak, steps, warmup) }
    }

    /// Refuses numbers that make no schedule.
    ///
    /// # Errors
    /// No steps, a warm-up longer than the run, or a rate or power that is negative or no number.
    pub fn check(&self) -> Result<()> {
        let error = |setting, value: String, problem: &str| {
            Err(EngineError::Setting { setting, value, problem: problem.into() })
        };
        if self.steps == 0 {
            return error("steps", "0".into(), "a run has at least one step");
        }
        if self.warmup > self.steps {
            let problem = format!("the warm-up cannot be longer than the run of {} steps", self.steps);
            return error("warmup", self.warmup.to_string(), &problem);
        }
        for (name, value) in
            [("learning rate", self.peak), ("end of the learning rate", self.end), ("power", self.power)]
        {
            if !(value >= 0.0 && value.is_finite()) {
                return error(name, value.to_string(), "a number of at least 0 was expected");
            }
        }
        Ok(())
    }

    /// The rate of step `step`, counted from 0.
    pub fn rate(&self, step: u64) -> f64 {
        let Self { peak, end, steps, warmup, power, decay } = *self;
        match decay {
            _ if step >= steps => end,
            Decay::Released if step < warmup => peak * step as f64 / warmup as f64,
            Decay::Smooth if step < warmup => peak * (step + 1) as f64 / warmup as f64,
            _ => {
                let start = if decay == Decay::Released { 0 } else { warmup };
                let done = (step - start) as f64 / (steps - start) as f64;
                (peak - end) * libm::pow(1.0 - done, power) + end
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_tests::refused;

    /// The released run: 125,000 steps at 0.00176, 3,125 of warm-up.
    #[test]
    fn released_gives_the_golden_numbers_and_power_bends_the_decay() {
        let schedule = Schedule::released(0.00176, 125_000, 3125);
        schedule.check().unwrap();
        let expected = [(0, 0.0), (1, 0.00176 / 3125.0), (3124, 0.001_759_436_8), (3125, 0.001_716), (125_000, 0.0)];
        for (step, rate) in expected {
            let got = schedule.rate(step);
            assert!((got - rate).abs() <= 1e-15, "step {step}: {got}, expected {rate}");
        }
        assert_eq!(format!("{:.8}", schedule.rate(3124)), "0.00175944");
        assert_eq!(schedule.rate(200_000), 0.0);
        assert_eq!(Schedule { power: 2.0, ..Schedule::released(1.0, 10, 0) }.rate(5), 0.25);
    }

    #[test]
    fn smooth_never_jumps_and_never_rests() {
        for (steps, warmup) in [(100, 10), (100, 0), (100, 100), (1, 0), (1, 1)] {
            let schedule = Schedule { end: 0.1, ..Schedule::smooth(1.0, steps, warmup) };
            schedule.check().unwrap();
            let steepest = 1.0 / warmup.max(1) as f64 + 1.0 / (steps - warmup).max(1) as f64;
            for step in 0..steps {
                let (now, next) = (schedule.rate(step), schedule.rate(step + 1));
                assert!(now > 0.0 && now <= 1.0, "{steps}/{warmup} step {step}: {now}");
                assert!((next - now).abs() <= steepest + 1e-12, "{steps}/{warmup} step {step}: {now} to {next}");
            }
            assert!((schedule.rate(steps) - 0.1).abs() < 1e-12, "{steps}/{warmup}: {}", schedule.rate(steps));
        }
    }

    #[test]
    fn refuses_what_makes_no_schedule() {
        let good = Schedule::released(0.1, 10, 1);
        for (bad, expected) in [
            (Schedule { steps: 0, ..good }, "steps = 0: a run has at least one step"),
            (Schedule { warmup: 11, ..good }, "warmup = 11: the warm-up cannot be longer than the run of 10 steps"),
            (Schedule { peak: -1.0, ..good }, "learning rate = -1: a number of at least 0 was expected"),
            (Schedule { peak: f64::NAN, ..good }, "learning rate = NaN"),
            (Schedule { power: f64::INFINITY, ..good }, "power = inf"),
        ] {
            refused(bad.check(), expected);
        }
    }
}
