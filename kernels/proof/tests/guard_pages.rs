//! CPU kernels with slices next to guard pages: a read or write one element out of bounds ends the process.
//!
//! ```text
//!              placement: end                                placement: start
//!   ┌────────────┬─────────────┬────────────┐    ┌────────────┬─────────────┬────────────┐
//!   │ no access  │      slice ▐│ no access  │    │ no access  │▌ slice      │ no access  │
//!   └────────────┴─────────────┴────────────┘    └────────────┴─────────────┴────────────┘
//! ```
//!
//! The allocator of this program places every block like this while a case runs: inputs, outputs, packed panels and the
//! scratch of the worker threads. The tests run the table of operations on every instruction set of this machine, and all
//! sizes around the borders of tiles, vectors and blocks. They exist only in release mode, where the kernels' own checks are
//! the only bounds checks: `cargo test --release -p albert-kernels-proof --test guard_pages`. Clippy also checks them in debug mode.
#![cfg(all(unix, any(clippy, not(debug_assertions))))]
#![allow(unsafe_code)]

#[path = "guard_pages/allocator.rs"]
mod allocator;
#[path = "guard_pages/sizes.rs"]
mod sizes;

use allocator::{GuardPages, Placement};
use kernels::Cost;
use kernels::Isa;
use kernels::simd::{Kernel, Simd};
use kernels_proof::OPERATIONS;
use kernels_proof::case::Outcome;
use kernels_proof::runner::Runner;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

#[global_allocator]
static ALLOCATOR: GuardPages = GuardPages;

/// Maximum bytes and operations of a case: larger cases are timed, have the same borders as smaller ones, and take minutes
/// in the reference.
const MOST_BYTES: u64 = 4 << 20;
const MOST_OPERATIONS: u64 = 1 << 25;

#[test]
fn no_case_of_the_table_leaves_its_slices() {
    kernels_proof::check::rely_on_guard_pages();
    for operation in OPERATIONS {
        let small = |cost: Cost| cost.bytes <= MOST_BYTES && cost.flops <= MOST_OPERATIONS;
        let cases: Vec<_> = (operation.cases)().into_iter().filter(|case| small((operation.cost)(case))).collect();
        for isa in Isa::real() {
            let mut ran = 0;
            for placement in Placement::BOTH {
                for case in &cases {
                    let name = format!("{} {case} on {}, {placement:?}", operation.name, isa.kind());
                    // Includes the scratch of worker threads.
                    let outcome = allocator::guarded_in_every_thread(&name, placement, || {
                        (operation.check)(case, &Runner::Cpu(isa.kind()))
                    });
                    match outcome {
                        Outcome::Passed { .. } => ran += 1,
                        Outcome::Failed { message } => panic!("{name}: {message}"),
                        Outcome::Skipped { .. } => {}
                    }
                }
            }
            println!("{} on {}: {ran} runs", operation.name, isa.kind());
            assert!(ran > 0, "{} on {}: no case ran", operation.name, isa.kind());
        }
    }
}

/// Kernel that copies a slice, with a planted fault in its first or last vector.
struct Faulty<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
    fault: &'a str,
}

impl Kernel for Faulty<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { x, y, fault } = self;
        let last = x.len() - S::LANES;
        // SAFETY: none, on purpose: one element before the start or behind the end, unless the fault is `none`.
        unsafe {
            match fault {
                "none" => simd.store_ptr(y.as_mut_ptr().add(last), simd.load_ptr(x.as_ptr().add(last))),
                "read behind" => simd.store(y, simd.load_ptr(x.as_ptr().add(last + 1))),
                "read before" => simd.store(y, simd.load_ptr(x.as_ptr().sub(1))),
                "write behind" => simd.store_ptr(y.as_mut_ptr().add(last + 1), simd.load(x)),
                "write before" => simd.store_ptr(y.as_mut_ptr().sub(1), simd.load(x)),
                fault => panic!("no such fault: {fault}"),
            }
        }
    }
}

/// Test that the child processes of the next test run.
#[test]
#[ignore = "runs in a process of its own, which it is to end"]
fn plant() {
    let fault = std::env::var("PLANTED_FAULT").expect("the fault to run");
    let (isa, fault) = fault.split_once(' ').expect("an instruction set and a fault");
    let isa = Isa::new(isa.parse().expect("a name")).expect("this machine has it");
    let placement = if fault.ends_with("before") { Placement::Start } else { Placement::End };
    allocator::guarded(fault, placement, || {
        let (x, mut y) = (vec![1f32; 53], vec![0f32; 53]);
        isa.run(Faulty { x: &x, y: &mut y, fault });
        assert!(y.contains(&1.0));
    });
}

#[test]
fn one_element_too_far_ends_the_process() {
    let program = std::env::current_exe().expect("a test has a program");
    for isa in Isa::real() {
        for fault in ["none", "read behind", "read before", "write behind", "write before"] {
            let mut child = Command::new(&program);
            child.args(["--exact", "plant", "--ignored", "--nocapture"]);
            let child = child.env("PLANTED_FAULT", format!("{} {fault}", isa.kind())).output().expect("a child");
            let told = String::from_utf8_lossy(&child.stderr);
            let wanted = if fault == "none" { None } else { Some(libc::SIGSEGV) };
            assert_eq!(child.status.signal(), wanted, "{} {fault}: {}\n{told}", isa.kind(), child.status);
            assert_eq!(child.status.success(), fault == "none", "{} {fault}: {}\n{told}", isa.kind(), child.status);
            assert!(fault == "none" || told.contains(&format!("guard page touched: {fault}")), "{fault}: {told}");
        }
    }
}
