//! Behavior of a program when the system refuses memory. Each case runs in a process of its own with 1 GiB of address
//! space.
#![cfg(target_os = "linux")]

use engine::{EngineError, Init, ParamBuilder, memory::ProgramAllocator};
use std::process::{Command, Output};

#[global_allocator]
static ALLOCATOR: ProgramAllocator = ProgramAllocator;

/// Runs the ignored test `case` of this file with 1 GiB of address space.
fn run(case: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    let script = "ulimit -c 0; ulimit -v 1048576; exec \"$0\" --exact \"$1\" --ignored --nocapture --test-threads 1";
    Command::new("sh").args(["-c", script]).arg(program).arg(case).output().unwrap()
}

#[test]
fn a_refused_allocation_ends_the_process_with_a_sentence() {
    for case in ["grows_a_list", "asks_at_once"] {
        let told = run(case);
        let text = String::from_utf8_lossy(&told.stderr);
        assert_eq!(told.status.code(), Some(1), "{case}: {told:?}");
        assert!(text.contains("error: cannot allocate ") && text.contains(" bytes; free memory or raise"), "{text}");
        assert_eq!(text.matches('\n').count(), 1, "one sentence: {text}");
    }
}

#[test]
fn a_refused_tensor_is_an_error_and_the_process_goes_on() {
    let told = run("asks_for_parameters");
    assert_eq!(told.status.code(), Some(0), "{told:?}");
}

#[test]
#[ignore = "ends the process; run by another test"]
fn grows_a_list() {
    let mut list = Vec::new();
    loop {
        list.push(vec![1u8; 1 << 16]);
    }
}

#[test]
#[ignore = "ends the process; run by another test"]
fn asks_at_once() {
    println!("{}", vec![1u8; 2 << 30].len());
}

#[test]
#[ignore = "needs a limit; run by another test"]
fn asks_for_parameters() {
    let mut builder = ParamBuilder::new();
    builder.add("w", [1 << 15, 1 << 15], Init::Zeros).unwrap();
    let error = builder.allocate().unwrap_err();
    assert!(matches!(error, EngineError::Memory { bytes } if bytes == 4 << 30), "{error}");
    assert_eq!(vec![1u8; 1 << 20].len(), 1 << 20, "small requests are still served");
}
