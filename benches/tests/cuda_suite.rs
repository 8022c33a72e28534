//! The program `cuda_suite` where there is no GPU: cases on the simulated one, and sentences instead of panics.

use assert_cmd::Command;
use predicates::{prelude::PredicateBooleanExt, str::contains};

fn suite(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuda_suite"));
    command.args(arguments);
    command
}

#[test]
fn cases_run_on_the_simulated_gpu() {
    for device in ["cuda-sim", "cuda-sim:90"] {
        let run = suite(&["--device", device, "--only", "dropout"]).assert().success();
        run.stdout(contains("simulated GPU").and(contains("dropout")).and(contains(" 0 passed").not()));
    }
}

#[test]
fn what_cannot_run_is_said_in_a_sentence() {
    suite(&["--only", "no_such"]).assert().failure().stderr(contains("`no_such` is no operation"));
    suite(&["--device", "cuda:x"]).assert().failure().stderr(contains("names no GPU"));
    suite(&["--device", "cpu"]).assert().failure().stderr(contains("cuda-sim:90 was expected"));
    match engine::device::gpus() {
        Ok(_) => println!("SKIPPED: there is a GPU"),
        Err(reason) => {
            suite(&["--device", "cuda"]).assert().failure().stderr(contains(reason.to_string()));
        }
    }
}
