//! Simulation of the table of operations: launches of a case, and cases that launch a program.

use crate::runner::{GpuRunner, Launched, Runner, Setting};
use crate::{
    case::{Case, Outcome},
    operation::Operation,
};
use kernels_cuda::program::Name;
use ptx::Sm;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Runs `work` with a GPU runner; returns the outcome and the runner.
fn with(gpu: GpuRunner<'_>, work: impl FnOnce(&Runner<'_>) -> Outcome) -> (Outcome, GpuRunner<'_>) {
    let runner = Runner::Gpu(gpu);
    let outcome = work(&runner);
    match runner {
        Runner::Gpu(gpu) => (outcome, gpu),
        Runner::Cpu(_) | Runner::Recording(_) => unreachable!("the runner is of a GPU"),
    }
}

/// Checks a case of `operation` in the simulator of `sm`; also returns its launches up to the end or the first failure.
pub fn run(operation: &Operation, case: &Case, sm: Sm, setting: Setting) -> (Outcome, Vec<Launched>) {
    let (outcome, gpu) = with(GpuRunner::recording(sm, setting, false), |runner| (operation.check)(case, runner));
    (outcome, gpu.into_launched())
}

/// Launches of a case in the simulator of `sm`; none if the case is skipped or computes nothing. `takes_large`: also runs
/// cases that are too large for the tests, for cost estimates.
///
/// # Errors
/// If the case fails.
pub fn launches(operation: &Operation, case: &Case, sm: Sm, takes_large: bool) -> Result<Vec<Launched>, String> {
    let gpu = GpuRunner::recording(sm, Setting::default(), takes_large);
    match with(gpu, |runner| (operation.check)(case, runner)) {
        (Outcome::Failed { message }, _) => Err(message),
        (_, gpu) => Ok(gpu.into_launched()),
    }
}

/// Programs that a case launches in the simulator of `sm`, without running them.
pub fn programs_of(operation: &Operation, case: &Case, sm: Sm) -> BTreeSet<Name> {
    with(GpuRunner::names_only(sm), |runner| (operation.check)(case, runner)).1.into_names()
}

/// Cases that launch each program of `operation`, cheapest first.
pub fn cases_of(operation: &Operation, sm: Sm) -> BTreeMap<Name, Vec<Case>> {
    let mut found: BTreeMap<Name, Vec<Case>> =
        (operation.ptx)(sm).into_iter().map(|program| (program.name, Vec::new())).collect();
    let mut cases = (operation.cases)();
    cases.sort_by_key(|case| {
        let cost = (operation.cost)(case);
        (cost.flops, cost.bytes)
    });
    let named: Vec<_> = cases.par_iter().map(|case| programs_of(operation, case, sm)).collect();
    for (case, names) in cases.into_iter().zip(named) {
        for name in names {
            if let Some(cases) = found.get_mut(&name) {
                cases.push(case.clone());
            }
        }
    }
    found
}

/// Cheapest case that launches each program of `operation` selected by `wanted`, with the launch. Programs without a case
/// are left out.
///
/// # Errors
/// If a case fails.
pub fn examples(
    operation: &Operation,
    sm: Sm,
    wanted: impl Fn(&Name) -> bool,
) -> Result<BTreeMap<Name, (Case, Launched)>, String> {
    let mut found = BTreeMap::new();
    for (name, cases) in cases_of(operation, sm) {
        let Some(case) = cases.first().filter(|_| wanted(&name) && !found.contains_key(&name)) else { continue };
        for launched in launches(operation, case, sm, false)? {
            found.entry(launched.name.clone()).or_insert((case.clone(), launched));
        }
    }
    found.retain(|name, _| wanted(name));
    Ok(found)
}
