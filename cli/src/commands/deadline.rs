//! `--minutes`: the number of steps of a run is derived from its time limit.
//!
//! A few trial steps determine the first plan. The plan is checked when half of the time or half of the steps left at the last
//! check have passed, using the mean speed since that check: checks become denser towards the end, and the plan changes only a
//! few times however much the speed of a shared machine varies.

use super::plan::{Extent, Planner};
use crate::{output::tell, progress::duration};
use albert::{
    pretrain::{self, PretrainRecipe, PretrainSources},
    train::{Outcome, Setting, StartMode, Worker},
};
use anyhow::{Result, bail, ensure};
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

/// Maximum number of trial steps, and their maximum share of the time.
const TRIAL_STEPS: usize = 24;
const TRIAL_SHARE: f64 = 0.08;
/// Share of the remaining time that steps are planned for: until the first check, and later.
const FIRST_CAUTION: f64 = 0.93;
const CAUTION: f64 = 0.97;
/// Maximum evaluations of a run, and their maximum share of its time.
const EVALUATIONS: f64 = 9.0;
const EVALUATION_SHARE: f64 = 0.15;
/// Minimum relative change of the remaining steps that changes the plan; smaller ones are noise.
const TOLERANCE: f64 = 0.1;
/// The remaining steps count as at least this share of the completed ones, so that the plan is stable near its end.
const LEAST: f64 = 0.3;
/// Time or steps left at the first check, as a share of the plan; each later check follows after half of the remainder.
const FIRST_CHECK: f64 = 0.85;
const NEXT_CHECK: f64 = 0.5;
/// Share of the time before the end in which the plan no longer changes, unless all steps are done.
const LAST_CHECK: f64 = 0.02;

/// Converts a number of minutes on the command line to a duration.
pub(crate) fn budget(minutes: f64) -> Result<Duration> {
    ensure!(minutes > 0.0 && minutes <= 10_000.0, "--minutes {minutes}: expected more than 0, at most 10000");
    Ok(Duration::from_secs_f64(60.0 * minutes))
}

/// Settings (steps and intervals) of a run of `recipe` that ends at `end`, measured by trial steps in a temporary folder. Each
/// of several ranks returns the same settings.
pub(crate) fn fitting(
    recipe: &PretrainRecipe,
    sources: &PretrainSources,
    worker: &Worker,
    end: Instant,
    stop: &Arc<AtomicBool>,
) -> Result<(Vec<Setting>, Deadline)> {
    let left = || end.saturating_duration_since(Instant::now()).as_secs_f64();
    let limit = Duration::from_secs_f64(TRIAL_SHARE * left());
    let extent = Extent { steps: TRIAL_STEPS, least: Duration::ZERO, limit, is_announced: false };
    let mut planner = Planner::new(extent, recipe.data.batch.sequences_per_step, Arc::clone(stop));
    let enough = Arc::clone(&planner.enough);
    let folder = tempfile::tempdir()?;
    let mut short = recipe.clone();
    (short.evaluation.interval, short.run.checkpoint_interval) = (0, Some(0));
    let outcome =
        pretrain::pretrain(&short, sources, (folder.path(), StartMode::New), worker.clone(), &enough, &mut planner)?;
    if let Outcome::Diverged { problem, step, .. } = outcome {
        bail!("step {step}: {problem}");
    }
    let (step, evaluation) = planner.seconds()?;
    let left = left();
    ensure!(
        step < left,
        "a step takes {} here, longer than --minutes allows; lower data.batch.sequences_per_step, or choose a smaller recipe",
        duration(step)
    );
    let evaluations = (EVALUATION_SHARE * left / evaluation.max(1e-9)).floor().clamp(1.0, EVALUATIONS);
    let steps = (FIRST_CAUTION * (left - evaluations * evaluation) / step).max(1.0);
    let plan = [steps as u64, evaluations as u64].map(|value| if worker.communicator.is_first() { value } else { 0 });
    let [steps, evaluations] = worker.communicator.sum_counts("the number of steps", plan)?;
    tell!("{steps} steps of {:.0} ms fit the time, about {}", 1000.0 * step, duration(steps as f64 * step));
    let settings = vec![
        Setting::new("schedule.steps", steps)?,
        Setting::new("evaluation.interval", steps.div_ceil(evaluations))?,
        Setting::new("run.checkpoint_interval", (steps / 4).max(1))?,
    ];
    Ok((settings, Deadline::new(end, evaluation)))
}

/// End time of a run.
#[derive(Debug)]
pub(crate) struct Deadline {
    end: Instant,
    /// Seconds from the start to the end.
    budget: f64,
    /// Seconds of the evaluation at the end.
    evaluation: f64,
    /// Completed steps and remaining seconds at the last check; `None` before the first step.
    checked: Option<(u64, f64)>,
    /// Remaining steps and seconds at which the next check is due.
    next: (u64, f64),
}

impl Deadline {
    /// Deadline of a run that must end at `end` and whose last evaluation takes `evaluation` seconds.
    pub(crate) fn new(end: Instant, evaluation: f64) -> Self {
        Self { end, budget: 0.0, evaluation, checked: None, next: (0, 0.0) }
    }

    /// New number of steps of a run of `steps` steps after `done` steps; `None` if the plan is unchanged.
    pub(crate) fn replan(&mut self, done: u64, steps: u64) -> Option<u64> {
        self.replan_in(self.end.saturating_duration_since(Instant::now()).as_secs_f64(), done, steps)
    }

    fn replan_in(&mut self, left: f64, done: u64, steps: u64) -> Option<u64> {
        let planned = steps.saturating_sub(done);
        let Some((step, before)) = self.checked else {
            // The first step fills caches, so the speed is measured from this point.
            self.budget = left;
            self.checked = Some((done, left));
            self.next = (share_of(planned, FIRST_CHECK), FIRST_CHECK * left);
            return None;
        };
        let is_due = planned <= self.next.0 || left <= self.next.1;
        let is_near_end = left <= LAST_CHECK * self.budget;
        if !is_due || done == step || (planned > 0 && is_near_end && left > 0.0) {
            return None;
        }
        let each = (before - left) / (done - step) as f64;
        let fitting = (CAUTION * (left - self.evaluation).max(0.0) / each.max(1e-9)).floor();
        let holds = (fitting - planned as f64).abs() <= TOLERANCE * (planned as f64).max(LEAST * done as f64);
        let remaining = if holds { planned } else { fitting as u64 };
        self.checked = Some((done, left));
        self.next = (share_of(remaining, NEXT_CHECK), NEXT_CHECK * left);
        (!holds).then_some(done + remaining)
    }
}

fn share_of(steps: u64, share: f64) -> u64 {
    (share * steps as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    /// Simulates a run of `budget` seconds on a machine whose step `k` takes `seconds(k)`. Returns the total seconds and the
    /// number of changes of the plan.
    fn run(budget: f64, mut steps: u64, seconds: impl Fn(u64) -> f64) -> (f64, u32) {
        let mut deadline = Deadline::new(Instant::now(), 0.5);
        let (mut clock, mut changes, mut step) = (0.0, 0, 0);
        while step < steps {
            step += 1;
            clock += seconds(step);
            if let Some(other) = deadline.replan_in(budget - clock, step, steps) {
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
    fn a_run_ends_in_its_time_with_a_few_changes_of_its_plan() {
        let always = |seconds: f64| move |_: u64| seconds;
        let after = |factor: f64| move |step: u64| if step < 1000 { 0.05 } else { 0.05 * factor };
        let holds = |step: u64| if step.is_multiple_of(7) { 0.06 } else { 0.0485 };
        // Another process runs for every second interval of 20 seconds.
        let varies = |busy: f64| move |step: u64| if (step / 400).is_multiple_of(2) { 0.05 } else { 0.05 * busy };
        // Name, seconds, steps, seconds of a step, expected share of the time and number of changes.
        type Case<'a> = (&'a str, f64, u64, &'a dyn Fn(u64) -> f64, Range<f64>, Range<u32>);
        let cases: [Case<'_>; 11] = [
            ("four times slower", 240.0, 4600, &after(4.0), 0.85..1.05, 1..5),
            ("1.5 times slower", 240.0, 4600, &after(1.5), 0.85..1.05, 1..5),
            ("three times faster", 240.0, 4600, &after(1.0 / 3.0), 0.85..1.05, 1..5),
            ("a plan that holds", 240.0, 4600, &holds, 0.0..2.0, 0..1),
            ("busy by 1.5", 240.0, 4600, &varies(1.5), 0.8..1.1, 0..7),
            ("busy by 2", 240.0, 4600, &varies(2.0), 0.8..1.1, 0..7),
            ("busy by 3", 240.0, 4600, &varies(3.0), 0.8..1.1, 0..7),
            ("late already", 10.0, 5000, &always(1.0), 0.0..1.2, 0..u32::MAX),
            ("too few steps, 2", 240.0, 2, &always(0.05), 0.85..1.05, 1..11),
            ("too few steps, 10", 240.0, 10, &always(0.05), 0.85..1.05, 1..11),
            ("too few steps, 2000", 240.0, 2000, &always(0.05), 0.85..1.05, 1..11),
        ];
        for (name, budget, steps, speed, share, few) in cases {
            let (seconds, changes) = run(budget, steps, speed);
            assert!(share.contains(&(seconds / budget)), "{name}: {seconds} s");
            assert!(few.contains(&changes), "{name}: {changes} changes");
        }
    }
}
