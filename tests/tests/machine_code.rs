//! Hot code outside `kernels` uses vector instructions: in a disassembled program, no kernel (a function that
//! `Isa::run` enters) calls generic code of the standard library or a closure. Such a call is compiled without the
//! instructions and passes its vectors through memory.
//!
//! `MACHINE_CODE_OF` is the path of the program:
//! `MACHINE_CODE_OF=$PWD/target/release/albert cargo test --release --workspace --test machine_code`.

use std::{collections::BTreeMap, ffi::OsStr, process::Command};

/// Calls of generic code in kernels, by name of the callee.
fn hot_calls(listing: &str) -> (usize, BTreeMap<&str, usize>) {
    let generic = ["core::iter::", "core::array::", "core::ops::function::", "{{closure}}", "{closure#"];
    let (mut kernels, mut in_kernel, mut calls) = (0, false, BTreeMap::new());
    for line in listing.lines() {
        if let Some(name) = line.strip_suffix(">:") {
            in_kernel = name.contains("simd::avx") && name.ends_with("::enter");
            kernels += usize::from(in_kernel);
        } else if in_kernel && let Some((_, call)) = line.split_once("\tcall ") {
            let callee = call.split_once('<').map_or("", |(_, name)| name);
            // Closures of `kernels` itself run once per row or tile; its loops have a separate test.
            if !callee.starts_with("kernels::") && generic.iter().any(|part| callee.contains(part)) {
                *calls.entry(callee).or_insert(0) += 1;
            }
        }
    }
    (kernels, calls)
}

#[test]
fn kernels_of_every_crate_keep_their_instructions() {
    let Some(program) = std::env::var_os("MACHINE_CODE_OF") else {
        println!("SKIPPED: set MACHINE_CODE_OF to a program built with --release");
        return;
    };
    let listing =
        Command::new("objdump").args(["-d", "-C", "--no-show-raw-insn", "-M", "intel"]).arg(&program).output();
    let Some(listing) = listing.ok().filter(|listing| cfg!(target_arch = "x86_64") && listing.status.success()) else {
        println!("SKIPPED: objdump for x86-64 is not available");
        return;
    };
    let listing = String::from_utf8_lossy(&listing.stdout);
    let (kernels, calls) = hot_calls(&listing);
    assert!(kernels >= 2, "{} has {kernels} kernels; expected one with its function names", program.display());
    assert!(calls.is_empty(), "{}: kernels call generic code: {calls:#?}", program.display());
    println!("{kernels} kernels call no generic code");
}

/// CPU-time shares of the peak for some rungs, with C `[m, n]` and k terms.
fn ladder(program: &OsStr, isa: &str, rungs: &str, [m, n, k]: [&str; 3]) -> Option<Vec<f64>> {
    let arguments = ["bench", "gemm", "--rung", rungs, "--m", m, "--n", n, "--k", k, "--isa", isa];
    let shortly = ["--threads", "1", "--seconds", "0", "--json"];
    let output = Command::new(program).args(arguments).args(shortly).output().expect("MACHINE_CODE_OF names a program");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let records = report["records"].as_array()?;
    records.iter().map(|record| record["processor_share_of_peak"]["q3"].as_f64()).collect()
}

#[test]
fn each_rung_of_the_ladder_is_faster_than_the_one_before() {
    let Some(program) = std::env::var_os("MACHINE_CODE_OF") else {
        println!("SKIPPED: set MACHINE_CODE_OF to the program albert, built with --release");
        return;
    };
    if !program.to_string_lossy().ends_with("albert") {
        println!("SKIPPED: {} has no ladder", program.display());
        return;
    }
    for isa in ["avx2", "avx512"] {
        // B is larger than L2: a smaller one would be as fast unpacked. Other load on the machine may disturb one run, but not five.
        let mut runs = (0..5).map_while(|_| {
            let mut shares = ladder(&program, isa, "1,2,3,4,5,6", ["96", "768", "3072"])?;
            shares.extend(ladder(&program, isa, "5", ["512", "768", "768"])?);
            println!("{isa}: {shares:.3?}");
            Some(shares)
        });
        let rises = |shares: Vec<f64>| shares[..6].is_sorted_by(|slow, fast| slow < fast) && shares[6] >= 0.45;
        let Some(first) = runs.next() else {
            println!("SKIPPED: this machine does not have {isa}");
            continue;
        };
        assert!(
            rises(first) || runs.any(rises),
            "{isa}: a rung is no faster than the one before, or rung 5 is below 45 %"
        );
    }
}

#[test]
fn a_call_of_a_closure_is_found() {
    let kernel = "0010 <kernels::simd::avx2::Entry::enter>:\n";
    for (callee, found) in [
        ("core::array::<impl [T; N]>::try_map", 1),
        ("<core::iter::adapters::zip::Zip<A,B> as core::iter::adapters::zip::ZipImpl<A,B>>::next", 1),
        ("measure::cases::rungs::pack::{{closure}}", 1),
        ("core::panicking::panic_bounds_check", 0),
    ] {
        let listing = format!("{kernel}  10:\tcall   500 <{callee}>\n0020 <main>:\n  20:\tcall   500 <{callee}>\n");
        let (kernels, calls) = hot_calls(&listing);
        assert_eq!((kernels, calls.values().sum::<usize>()), (1, found), "{callee}");
    }
}
