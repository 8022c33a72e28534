//! Replans the number of steps of a run from the remaining time.

use albert::{pretrain::PretrainFigures, train::StepReport};
use std::time::Instant;

/// Share of the time left that steps are planned for.
const CAUTION: f64 = 0.97;
/// Weight of earlier steps in the mean; about the last fifty steps count.
const KEEP: f64 = 0.98;
/// Minimum relative change of the remaining steps that changes the plan; smaller ones are noise.
const TOLERANCE: f64 = 0.15;
/// The remaining steps count as at least this share of the completed ones, so that the plan is stable near its end.
const LEAST: f64 = 0.2;
/// Minimum steps between two changes, or this share of the time if steps are slow.
const PAUSE: u64 = 50;
const PAUSE_SHARE: f64 = 0.05;

/// End time of a run and the measured speed of its steps.
#[derive(Debug)]
pub(crate) struct Deadline {
    end: Instant,
    /// Seconds per evaluation.
    evaluation: f64,
    /// Mean seconds of a step, and the weight of the steps in it.
    step: f64,
    weight: f64,
    /// Step of the last change, and the seconds that were left then.
    last_change: (u64, f64),
    /// Seconds between two changes.
    pause: f64,
}

impl Deadline {
    /// Run that must end at `end` and whose evaluations take `evaluation` seconds.
    pub(crate) fn new(end: Instant, evaluation: f64) -> Self {
        Self::within(end.saturating_duration_since(Instant::now()).as_secs_f64(), end, evaluation)
    }

    fn within(left: f64, end: Instant, evaluation: f64) -> Self {
        Self { end, evaluation, step: 0.0, weight: 0.0, last_change: (0, left), pause: PAUSE_SHARE * left }
    }

    /// New number of steps of a run of `steps` steps, evaluated every `interval`; `None` if the plan holds.
    pub(crate) fn replan(&mut self, report: &StepReport<PretrainFigures>, steps: u64, interval: u64) -> Option<u64> {
        let left = self.end.saturating_duration_since(Instant::now()).as_secs_f64();
        self.replan_in(left, report, steps, interval)
    }

    fn replan_in(&mut self, left: f64, report: &StepReport<PretrainFigures>, steps: u64, interval: u64) -> Option<u64> {
        self.step = KEEP * self.step + (1.0 - KEEP) * report.seconds;
        self.weight = KEEP * self.weight + (1.0 - KEEP);
        let done = report.step;
        let (step, before) = self.last_change;
        // A run that would end too early is extended without a pause.
        if done < steps && done < step + PAUSE && before - left < self.pause {
            return None;
        }
        let planned = steps.saturating_sub(done) as f64;
        let each = self.step / self.weight + self.evaluation / interval.max(1) as f64;
        let fitting = (CAUTION * (left - self.evaluation).max(0.0) / each).floor();
        if (fitting - planned).abs() <= TOLERANCE * planned.max(LEAST * done as f64) {
            return None;
        }
        self.last_change = (done, left);
        Some(done + fitting as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a run of `budget` seconds on a machine whose step `k` takes `seconds(k)`. Returns the total seconds and the
    /// number of changes of the plan.
    fn run(budget: f64, mut steps: u64, seconds: impl Fn(u64) -> f64) -> (f64, u32) {
        let mut deadline = Deadline::within(budget, Instant::now(), 0.5);
        let (mut clock, mut changes, mut step) = (0.0, 0, 0);
        while step < steps {
            step += 1;
            clock += seconds(step);
            let report = StepReport { step, seconds: seconds(step), ..StepReport::default() };
            if let Some(other) = deadline.replan_in(budget - clock, &report, steps, 500) {
                steps = other;
                changes += 1;
            }
            if step.is_multiple_of(500) {
                clock += 0.5;
            }
        }
        (clock + 0.5, changes)
    }

    #[test]
    fn a_run_ends_in_its_time_when_the_machine_slows_down_or_speeds_up() {
        for (name, change) in [("four times slower", 4.0), ("1.5 times slower", 1.5), ("three times faster", 1.0 / 3.0)]
        {
            let (seconds, changes) = run(240.0, 4600, |step| if step < 1000 { 0.05 } else { 0.05 * change });
            assert!((0.85 * 240.0..1.05 * 240.0).contains(&seconds), "{name}: {seconds} s");
            assert!((1..=10).contains(&changes), "{name}: {changes} changes");
        }
    }

    #[test]
    fn a_plan_that_holds_is_left_alone() {
        let (seconds, changes) = run(240.0, 4600, |step| if step % 7 == 0 { 0.06 } else { 0.0485 });
        assert_eq!(changes, 0, "{seconds} s");
    }

    #[test]
    fn a_run_that_is_late_already_ends_soon() {
        let (seconds, _) = run(10.0, 5000, |_| 1.0);
        assert!(seconds < 12.0, "{seconds} s");
    }

    #[test]
    fn a_plan_of_too_few_steps_grows() {
        for steps in [1, 10, 2000] {
            let (seconds, changes) = run(240.0, steps, |_| 0.05);
            assert!((0.85 * 240.0..1.05 * 240.0).contains(&seconds), "{steps} steps: {seconds} s");
            assert!((1..=10).contains(&changes), "{steps} steps: {changes} changes");
        }
    }
}
