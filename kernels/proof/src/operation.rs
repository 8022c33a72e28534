//! The row types of the table of operations ([`crate::OPERATIONS`]).
//!
//! Tests, benches, the profiler and the command line enumerate that table; an operation that is not in it is measured and
//! checked by nobody. A row is data: names, numbers and plain function pointers.
//!
//! To add an operation, write in its folder
//!
//! ```text
//! pub const OPERATION: Operation = Operation {
//!     name: "softmax",
//!     cases,                    // fn() -> Vec<Case>: the sizes that tests and benches share
//!     cost,                     // fn(&Case) -> Cost: FLOPs and bytes of one case
//!     check,                    // fn(&Case, &Runner) -> Outcome: one case against the f64 reference
//!     ptx: |_| Vec::new(),      // fn(Sm) -> Vec<Program>: nothing while the operation has no CUDA side
//! };
//! ```
//!
//! and add `softmax::OPERATION` to the list in `lib.rs`. `check` takes any [`Runner`]; for one that the operation or the
//! machine lacks it returns [`Outcome::Skipped`] with the reason, never a pass.

use crate::runner::Runner;
use ptx::Sm;
use std::fmt;

pub use crate::case::{Case, Outcome, Target};
pub use kernels::Cost;
pub use kernels::DType;
pub use kernels_cuda::program::{Name, Pass, Program};

/// A row of the table.
#[derive(Clone, Copy)]
pub struct Operation {
    /// The operation, and the name of its folder.
    pub name: &'static str,
    /// The cases that tests and benches share.
    pub cases: fn() -> Vec<Case>,
    /// Cost of a case.
    pub cost: fn(&Case) -> Cost,
    /// Runs a case on random inputs and compares its results with the f64 reference, or records them ([`crate::bits`]).
    pub check: fn(&Case, &Runner<'_>) -> Outcome,
    /// All specializations for an architecture. `kernels/proof/listings` has their hashes and some of their texts.
    pub ptx: fn(Sm) -> Vec<Program>,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OPERATIONS, simulated};
    use kernels::{Isa, IsaKind};
    use std::collections::{BTreeMap, BTreeSet};

    /// Tests for each row of the table, by its name and target, so that they run side by side. `--nocapture` shows what was
    /// skipped and how close to its bound each operation comes.
    mod every_case_of {
        use super::*;

        macro_rules! rows {
            ($($row:ident)*) => {
                $(mod $row {
                    use super::*;

                    #[test]
                    fn on_the_cpu() {
                        for isa in IsaKind::ALL {
                            agrees(stringify!($row), Target::Cpu(isa));
                        }
                    }

                    #[test]
                    fn on_a_simulated_sm80() {
                        agrees_and_launches_every_program(stringify!($row), Sm::Sm80);
                    }

                    #[test]
                    fn on_a_simulated_sm90a() {
                        agrees_and_launches_every_program(stringify!($row), Sm::Sm90a);
                    }
                })*

                #[test]
                fn the_table_is_here() {
                    assert_eq!([$(stringify!($row)),*], OPERATIONS.iter().map(|row| row.name).collect::<Vec<_>>()[..]);
                    assert_eq!(Sm::ALL, [Sm::Sm80, Sm::Sm90a]);
                }
            };
        }

        rows!(activation gemm attention layernorm softmax embedding cross_entropy optimizer dropout reduce elementwise int8);
    }

    fn row(name: &str) -> &'static Operation {
        OPERATIONS.iter().find(|row| row.name == name).expect("a row of the table")
    }

    /// Runs every case of an operation on a target; gives the programs that were launched there.
    fn agrees(name: &str, target: Target) -> BTreeSet<Name> {
        let operation = row(name);
        let (mut failures, mut launched) = (Vec::new(), BTreeSet::new());
        let (mut passed, mut worst, mut skipped) = (0, BTreeMap::new(), BTreeMap::new());
        for case in (operation.cases)() {
            let outcome = match target {
                Target::Cpu(isa) => (operation.check)(&case, &Runner::Cpu(isa)),
                Target::Simulator(sm) => {
                    let (outcome, launches) = simulated::run(operation, &case, sm, Default::default());
                    launched.extend(launches.into_iter().map(|launched| launched.name));
                    outcome
                }
            };
            match outcome {
                Outcome::Passed { worst: ratio } => {
                    passed += 1;
                    let worst = worst.entry(case.dtype).or_insert(0.0);
                    *worst = ratio.max(*worst);
                }
                Outcome::Skipped { reason } => *skipped.entry(reason).or_insert(0) += 1,
                Outcome::Failed { message } => failures.push(message),
            }
        }
        println!("{name} on {target}: {passed} passed, the worst error over its bound {worst:.2?}");
        skipped.iter().for_each(|(reason, count)| println!("    SKIPPED {count}: {reason}"));
        let must_run = matches!(target, Target::Cpu(kind) if Isa::new(kind).is_some());
        assert!(passed > 0 || (!must_run && !skipped.is_empty()), "{name} on {target}: no case ran");
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        launched
    }

    fn agrees_and_launches_every_program(name: &str, sm: Sm) {
        let launched = agrees(name, Target::Simulator(sm));
        let programs = (row(name).ptx)(sm).into_iter().map(|program| program.name);
        let idle: Vec<String> = programs.filter(|name| !launched.contains(name)).map(|name| name.to_string()).collect();
        assert!(idle.is_empty(), "programs that no case launches; add a small one to {name}'s: {}", idle.join(", "));
    }

    #[test]
    fn a_name_survives_the_way_through_a_ptx_identifier() {
        let name = Name::new("gemm.nt", &["bf16f32", "sm90a", "128x128x64", "bias_gelu"]);
        assert_eq!(name.as_str(), "gemm.nt-bf16f32-sm90a-128x128x64-bias_gelu");
        assert_eq!(name.entry(), "gemm$nt__bf16f32__sm90a__128x128x64__bias_gelu");
        assert_eq!(Name::from_entry(&name.entry()), name);
    }

    #[test]
    fn a_name_that_could_not_be_read_back_is_refused() {
        for (operation, part) in [
            ("gemm", "a__b"),
            ("gemm", "_a"),
            ("gemm", "a-b"),
            ("gemm", "A"),
            ("gemm", ""),
            ("1d", "a"),
            ("a.b.c", "d"),
            ("a.", "d"),
        ] {
            let built = std::panic::catch_unwind(|| Name::new(operation, &[part]));
            assert!(built.is_err(), "operation `{operation}` with part `{part}` gave {built:?}");
        }
    }

    #[test]
    fn the_least_time_is_the_longer_of_arithmetic_and_memory() {
        let cost = Cost { flops: 1000, bytes: 10 };
        assert_eq!(cost.seconds(100.0, 1.0), 10.0);
        assert_eq!(cost.seconds(1000.0, 1.0), 10.0);
        assert_eq!(cost.seconds(10.0, 1.0), 100.0);
    }
}
