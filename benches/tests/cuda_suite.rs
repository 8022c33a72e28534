//! The program `cuda_suite` and the script `first.sh` without a GPU: cases on the simulated one, errors instead of panics, and
//! results that survive faults of single operations.

use assert_cmd::Command;
use kernels_proof::OPERATIONS;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use std::{
    fs,
    path::{Path, PathBuf},
};

fn suite(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuda_suite"));
    command.args(arguments);
    command
}

/// Folder of results, removed on drop.
struct Results(PathBuf);

impl Results {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("albert-first-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap_or_default()
    }

    /// Outcomes of the cases of an operation by number, from the journal.
    fn outcomes(&self, operation: &str) -> Vec<(usize, String)> {
        let text = self.read("cases.tsv");
        let fields = text.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        let own = fields.filter(|fields| fields[0] == operation);
        own.map(|fields| (fields[1].parse().unwrap(), fields[3].to_owned())).collect()
    }

    /// `first.sh` with small sizes on the simulated GPU.
    fn first(&self, options: &[&str], parts: &[&str]) -> Command {
        let mut command = Command::new("bash");
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/first.sh"));
        let programs = Path::new(env!("CARGO_BIN_EXE_cuda_suite")).parent().unwrap();
        command.args(["--device", "cuda-sim:90", "--small", "--programs"]).arg(programs);
        command.args(options).arg(&self.0).args(parts);
        command
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        // A leftover in the temporary folder is harmless.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Numbers of the cases of an operation.
fn numbers(operation: &str) -> Vec<usize> {
    let row = OPERATIONS.iter().find(|row| row.name == operation).unwrap();
    (1..=(row.cases)().len()).collect()
}

#[test]
fn cases_run_on_the_simulated_gpu() {
    for device in ["cuda-sim", "cuda-sim:90"] {
        let run = suite(&["--device", device, "--only", "dropout"]).assert().success();
        run.stdout(contains("simulated GPU").and(contains("dropout")).and(contains(" 0 passed").not()));
    }
}

#[test]
fn wrong_arguments_are_errors_of_one_line() {
    for (arguments, said) in [
        (&["--only", "no_such"][..], "--only no_such: expected an operation"),
        (&["--device", "cuda:x"], "--device cuda:x: expected a GPU number"),
        (&["--device", "cpu"], "--device cpu: expected cuda, cuda:N, cuda-sim or cuda-sim:90"),
        (&["--no-such"], "--no-such"),
        (&["--device", "cuda", "--rehearse", "hang=activation:1"], "is for the simulated GPU"),
    ] {
        suite(arguments).assert().code(64).stderr(contains(said));
    }
    match engine::device::gpus() {
        Ok(_) => println!("SKIPPED: there is a GPU"),
        Err(reason) => {
            suite(&["--device", "cuda"]).assert().code(2).stderr(contains(reason.to_string()));
            let first = Results::new("none").first(&["--device", "cuda"], &[]).assert();
            first.code(2).stdout(contains(reason.to_string()));
        }
    }
}

#[test]
fn a_hang_a_crash_a_lost_device_and_a_wrong_kernel_cost_one_case_each() {
    let results = Results::new("planted");
    let planted = [(22, "hang", "hung"), (26, "crash", "crashed"), (30, "fault", "failed"), (34, "wrong", "failed")];
    let faults = planted.map(|(number, fault, _)| format!("{fault}=dropout:{number}"));
    let mut options = vec!["--patience", "8"];
    faults.iter().for_each(|fault| options.extend(["--rehearse", fault]));
    results.first(&options, &["cases=dropout,softmax"]).assert().code(3);
    for operation in ["dropout", "softmax"] {
        let outcomes = results.outcomes(operation);
        let found: Vec<_> = outcomes.iter().map(|(number, _)| *number).collect();
        assert_eq!(found, numbers(operation), "{operation}: each case has one line, in order");
        for (number, outcome) in outcomes {
            let bad = planted.iter().find(|(at, ..)| operation == "dropout" && *at == number).map(|(.., word)| *word);
            let is_right = bad.map_or(["passed", "skipped"].contains(&outcome.as_str()), |word| outcome == word);
            assert!(is_right, "{operation} {number}: {outcome}, planted: {bad:?}");
        }
    }
    let summary = results.read("summary.txt");
    for line in ["CRASHED  cases dropout", "passed   cases softmax", "1 hung", "1 crashed", "2 failed"] {
        assert!(summary.contains(line), "{line} is missing in\n{summary}");
    }
}

#[test]
fn a_wrong_kernel_alone_ends_with_code_1() {
    let results = Results::new("wrong");
    results.first(&["--rehearse", "wrong=dropout:34"], &["cases=dropout"]).assert().code(1);
    let failed: Vec<_> = results.outcomes("dropout").into_iter().filter(|(_, outcome)| outcome == "failed").collect();
    assert_eq!(failed, [(34, "failed".to_owned())]);
}

#[test]
fn speeds_are_measured_without_cases_and_around_what_hangs() {
    let results = Results::new("speeds");
    results.first(&["--patience", "120", "--rehearse", "crash=speed-gemm:1"], &["speeds"]).assert().code(3);
    let text = results.read("speeds.tsv");
    let words = text.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let outcomes: Vec<_> = words.map(|fields| [fields[0], fields[1], fields[3]].join(" ")).collect();
    let wanted = "gemm 1 crashed, gemm 2 measured, attention 1 measured, attention 2 measured, encoder 1 measured";
    assert_eq!(outcomes.join(", "), wanted);
    assert!(results.read("cases.tsv").is_empty());
}

#[test]
fn a_call_ends_in_time_and_says_what_was_cut_off() {
    let results = Results::new("time");
    let start = std::time::Instant::now();
    // Less than the time reserved for the end: only the device is opened.
    results.first(&["--minutes", "0.15"], &["cases=dropout"]).assert().code(3).stdout(contains("CUT"));
    assert!(start.elapsed().as_secs() < 60);
    results.first(&["--minutes", "soon"], &[]).assert().code(64).stderr(contains("expected a number"));
    results.first(&[], &["everything"]).assert().code(64).stderr(contains("unknown part everything"));
}
