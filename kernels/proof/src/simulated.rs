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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OPERATIONS;
    use ptx::sim::{Completion, Options, Schedule};

    /// Smallest case of each synchronization pattern: pipelines with fewer and more k-tiles than stages, `ldmatrix` and
    /// SIMT; warp specialization, and a pipeline that continues across tiles; reductions across warps and blocks.
    const STRUCTURES: [(Sm, &str, &str); 18] = [
        (Sm::Sm90a, "gemm", "forward bf16 nt m=264 n=40 k=184"),
        (Sm::Sm90a, "gemm", "backward bf16 tn_bias_dropout_residual_epilogue m=264 n=40 k=184"),
        (Sm::Sm90a, "attention", "forward bf16 B=1 S=600 A=1 D=64"),
        (Sm::Sm90a, "attention", "backward bf16 dropout B=1 S=600 A=1 D=64"),
        (Sm::Sm90a, "attention", "backward bf16 dropout B=5 S=70 A=1 D=64"),
        (Sm::Sm80, "gemm", "forward bf16 nt m=72 n=136 k=200"),
        (Sm::Sm80, "gemm", "backward bf16 tn_bias_dropout_residual_epilogue m=130 n=8 k=40"),
        (Sm::Sm80, "gemm", "forward bf16 tt_bias m=15 n=33 k=385"),
        (Sm::Sm80, "gemm", "backward f32 tn_accumulate m=13 n=31 k=17"),
        (Sm::Sm80, "attention", "forward bf16 dropout B=2 S=129 A=1 D=65"),
        (Sm::Sm80, "attention", "backward bf16 dropout B=2 S=129 A=1 D=65"),
        (Sm::Sm80, "layernorm", "forward bf16 residual_sum T=3 H=4096"),
        (Sm::Sm80, "layernorm", "backward f32 T=3 H=4096"),
        (Sm::Sm80, "reduce", "forward f32 columns T=211 F=312"),
        (Sm::Sm80, "reduce", "forward bf16 squares T=211 F=312"),
        (Sm::Sm80, "cross_entropy", "forward f32 rows M=5 V=3001"),
        (Sm::Sm80, "softmax", "backward f32 T=2 C=4096"),
        (Sm::Sm80, "optimizer", "forward f32 lamb P=4099"),
    ];

    #[test]
    fn every_way_of_waiting_is_right_under_every_schedule_and_completion() {
        STRUCTURES.par_iter().with_max_len(1).for_each(|&(sm, operation, name)| {
            let operation = OPERATIONS.iter().find(|row| row.name == operation).expect("a row of the table");
            let cases = (operation.cases)();
            let case = cases.iter().find(|case| case.to_string() == name);
            let case = case.unwrap_or_else(|| panic!("{} has no case {name}", operation.name));
            for (schedule, completion) in Schedule::FIVE.into_iter().flat_map(|s| Completion::ALL.map(|c| (s, c))) {
                let options = Options { schedule, completion, ..Options::default() };
                let (outcome, _) = run(operation, case, sm, Setting { options, ..Setting::default() });
                let passed = matches!(outcome, Outcome::Passed { .. });
                assert!(passed, "{} {name}, {sm:?}, {schedule:?}, {completion:?}: {outcome:?}", operation.name);
            }
        });
    }
}
