//! Runs the cases of the table of operations on a GPU, one after another, and enters each in the journal before it starts.

use crate::{hardware::OnDriver, journal::Journal, rehearsal::Stage};
use anyhow::Result;
use engine::device::Driver;
use kernels_proof::{
    case::{Case, Outcome},
    operation::Operation,
    runner::Runner,
};
use ptx::Sm;
use std::{
    io::{self, Write},
    time::Instant,
};

/// Selection of cases of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Selection {
    /// Number of the first case, starting at 1.
    pub from: usize,
    /// Number of cheapest cases to run; all if `None`.
    pub cheapest: Option<usize>,
    /// True for programs for sm_80 on every GPU.
    pub ampere: bool,
}

/// Results of the cases.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Number of cases within their bounds.
    pub passed: usize,
    /// Number of cases out of bounds or rejected by the device.
    pub failed: usize,
    /// Number of cases without a program.
    pub skipped: usize,
    /// Largest ratio of error to bound of the passed cases.
    pub worst: f64,
    /// True if the device was lost and later cases did not run: after an illegal address only a new process can use it.
    pub is_lost: bool,
}

/// Runs cases of one operation on `hardware`.
///
/// # Errors
/// The journal cannot be written.
pub fn run<D: Driver>(
    hardware: &OnDriver<D>,
    operation: &Operation,
    selection: Selection,
    journal: &Journal,
    stage: &Stage,
) -> Result<Tally> {
    let is_hopper = hardware.driver().info().compute_capability == (9, 0);
    let sm = if is_hopper && !selection.ampere { Sm::Sm90a } else { Sm::Sm80 };
    // Operations without a program for sm_90a are checked with that for sm_80, which runs on every GPU.
    let check = |case: &Case| {
        let run = |sm| (operation.check)(case, &Runner::hardware(sm, hardware));
        match run(sm) {
            Outcome::Skipped { .. } if sm != Sm::Sm80 => run(Sm::Sm80),
            outcome => outcome,
        }
    };
    let mut tally = Tally::default();
    for (number, case) in &selected(operation, &selection) {
        if selection.cheapest.is_some_and(|most| tally.passed + tally.failed == most) {
            break;
        }
        journal.begin(operation.name, *number, &case.to_string())?;
        stage.enter(operation.name, *number);
        let start = Instant::now();
        hardware.take_hash();
        let outcome = check(case);
        let seconds = format!("{:.3}", start.elapsed().as_secs_f64());
        match outcome {
            Outcome::Passed { worst } => {
                (tally.passed, tally.worst) = (tally.passed + 1, tally.worst.max(worst));
                journal.end(&[
                    "passed".to_owned(),
                    format!("{worst:.3}"),
                    seconds,
                    format!("{:016x}", hardware.take_hash()),
                ])?;
            }
            Outcome::Skipped { reason } => {
                tally.skipped += 1;
                journal.end(&["skipped".to_owned(), String::new(), seconds, reason])?;
            }
            Outcome::Failed { message } => {
                tally.failed += 1;
                let ratio = ratio(&message).map_or(String::new(), |ratio| format!("{ratio:.3}"));
                // A closed pipe loses only the line: the journal has the result.
                let name = operation.name;
                let _ = writeln!(io::stdout(), "FAILED {name} {number}, {ratio} of the bound: {message}");
                let lost = hardware.driver().synchronize().err();
                let end = lost.as_ref().map_or(String::new(), |error| format!("; the device is lost: {error}"));
                journal.end(&["failed".to_owned(), ratio, seconds, message + &end])?;
                if lost.is_some() {
                    return Ok(Tally { is_lost: true, ..tally });
                }
            }
        }
    }
    Ok(tally)
}

/// Cases of the selection with their numbers.
fn selected(operation: &Operation, selection: &Selection) -> Vec<(usize, Case)> {
    let mut cases: Vec<_> = (1..).zip((operation.cases)()).filter(|(number, _)| *number >= selection.from).collect();
    if selection.cheapest.is_some() {
        // Cases without elements launch nothing.
        cases.retain(|(_, case)| (operation.cost)(case).bytes > 0);
        cases.sort_by_key(|(_, case)| (operation.cost)(case).flops);
    }
    cases
}

/// Ratio of error to bound in a message of [`kernels_proof::check::within_error`]; `None` for all other messages.
fn ratio(message: &str) -> Option<f64> {
    let number = |name: &str| -> Option<f64> {
        let (_, rest) = message.split_once(name)?;
        rest.split([',', ' ', ';']).next()?.parse().ok()
    };
    Some(number("; error ")? / number(", bound ")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_proof::check::within;

    #[test]
    fn the_ratio_of_a_failed_case_is_error_over_bound() {
        // The naive result is exact, so the bound is one ulp of 1.
        let message = within("y", &[1.0f32 + 3.0 * f32::EPSILON], &[1.0f32], &[1.0]).unwrap_err();
        assert_eq!(ratio(&message), Some(3.0), "{message}");
        let message = within("y", &[f32::NAN], &[1.0f32], &[1.0]).unwrap_err();
        assert!(ratio(&message).is_some_and(f64::is_nan), "{message}");
        assert_eq!(ratio("kernel gemm: CUDA_ERROR_ILLEGAL_ADDRESS"), None);
    }
}
