//! `albert bench`: JSON, table, reports, rounds on request, and errors.

use albert_tests::program::{albert, finish, finish_with_input, run, words};
use serde_json::{Value, json};

fn number(value: &Value, path: &[&str]) -> f64 {
    let found = path.iter().fold(value, |value, key| &value[*key]);
    found.as_f64().unwrap_or_else(|| panic!("{path:?} is not a number in {value}"))
}

/// Records of a benchmark on one thread.
fn records(line: &str, rounds: u32) -> Vec<Value> {
    let output = run(&format!("bench {line} --threads 1 --seconds 0 --rounds {rounds} --json")).succeeds();
    let report: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|e| panic!("{e}\n{}", output.stdout));
    assert!(number(&report, &["machine", "cores"]) >= 1.0);
    report["records"].as_array().unwrap().clone()
}

#[test]
fn json_has_what_a_reader_needs() {
    for (line, kernel, unit, stored) in [
        ("gemm --m 7 --n 5 --k 3 --form tn", "gemm", "flops", "f32"),
        ("gemm --m 7 --n 5 --k 3 --precision int8", "gemm", "flops", "int8"),
        ("attention --batch 1 --seq 5 --heads 2 --head-size 4", "attention", "flops", "f32"),
        ("layernorm --m 3 --n 8", "layernorm", "bytes", "f32"),
        ("gelu --m 3 --n 8 --precision bf16", "gelu", "bytes", "bf16"),
        ("softmax --m 3 --n 8", "softmax", "bytes", "f32"),
        ("vocabulary --m 3 --n 20 --k 8 --precision bf16", "vocabulary", "flops", "bf16"),
        ("step --config tiny --lengths 3,5 --mode train", "step", "flops", "f32"),
        ("step --config quickstart --lengths 3,5 --precision int8", "step", "flops", "int8"),
        ("step --config quickstart --lengths 3,5 --weights bf16", "step", "flops", "bf16-weights"),
    ] {
        let records = records(&format!("{line} --isa scalar"), 3);
        assert!(!records.is_empty());
        for record in &records {
            assert_eq!((&record["kernel"], &record["isa"]), (&kernel.into(), &"scalar".into()), "{record}");
            assert_eq!((&record["threads"], &record["rounds"]), (&1.into(), &3.into()), "{record}");
            assert_eq!(record["dtype"], stored, "{record}");
            assert!(number(record, &[unit]) > 0.0, "{record}");
            let [q1, median, q3] = ["q1", "median", "q3"].map(|part| number(record, &["seconds", part]));
            assert!(0.0 < q1 && q1 <= median && median <= q3, "{record}");
            let share = if unit == "flops" { "share_of_peak" } else { "share_of_copy" };
            assert!(number(record, &[share, "median"]) > 0.0, "{record}");
            assert!(number(record, &["peak_rss_bytes"]) > 1e6, "{record}");
            assert!(number(record, &["peak_gflops"]) > 0.1, "{record}");
        }
    }
}

#[test]
fn flops_are_those_of_the_products_once() {
    let flops = |line: &str| records(line, 1).iter().map(|record| number(record, &["flops"])).collect::<Vec<_>>();
    assert_eq!(flops("gemm --m 7 --n 5 --k 3"), [2.0 * 7.0 * 5.0 * 3.0]);
    let scores = (2 * 3 * 5 * 5 * 4) as f64;
    assert_eq!(flops("attention --batch 2 --seq 5 --heads 3 --head-size 4"), [4.0 * scores, 8.0 * scores]);
    // tiny: H 256, N 4, F 1024, E 128, V 4096; lengths 10 and 20, of which 2 and 3 are masked.
    let (t, pairs, masked) = (30.0, 500.0, 5.0);
    let (h, f, e, v) = (256.0, 1024.0, 128.0, 4096.0);
    let encoder = 2.0 * t * e * h + 4.0 * (8.0 * t * h * h + 4.0 * t * h * f + 4.0 * pairs * h) + 2.0 * 2.0 * h * h;
    let heads = 2.0 * masked * (h * e + e * v) + 4.0 * 2.0 * h;
    assert_eq!(flops("step --config tiny --lengths 10,20"), [encoder]);
    assert_eq!(flops("step --config tiny --lengths 10,20 --mode train"), [3.0 * (encoder + heads)]);
}

#[test]
fn lengths_come_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lengths.txt");
    let tiny = albert::AlbertConfig::preset("tiny").unwrap().to_hf_json("AlbertModel");
    std::fs::write(folder.path().join("config.json"), tiny).unwrap();
    let line = format!("step --config {} --lengths-from {}", folder.path().display(), path.display());
    std::fs::write(&path, "# tokens a line\n7\n\n3\n 9\n5\n").unwrap();
    let lengths = |more: &str| {
        let of = |record: &Value| (record["sizes"]["lengths"].clone(), record["tokens"].clone());
        records(&format!("{line} {more}"), 1).iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(lengths(""), [(json!([3, 5, 7, 9]), 24.into())]);
    assert_eq!(lengths("--batch 2,1"), [(json!([5, 9]), 14.into()), (json!([7]), 7.into())]);
    for (text, said) in [("3\nx\n", "lengths.txt:2: `x`"), ("# none\n", "no lengths"), ("129\n", "128 positions")] {
        std::fs::write(&path, text).unwrap();
        let output = run(&format!("bench {line}"));
        assert!(output.code != Some(0) && output.stderr.contains(said), "{said}: {}", output.stderr);
    }
}

#[test]
fn each_input_line_runs_one_round() {
    let mut command = albert(&words("bench gelu --m 3 --n 8 --threads 1,2 --turns"));
    let output = finish_with_input(&mut command, b"\n\n").succeeds();
    let lines: Vec<Value> = output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{}", output.stdout);
    for line in lines {
        // Three kernels, each on one thread and on two.
        let threads: Vec<_> = line.as_array().unwrap().iter().map(|record| record["threads"].clone()).collect();
        assert_eq!(threads, [1, 1, 1, 2, 2, 2]);
        assert_eq!(line[0]["rounds"], 1);
    }
}

#[test]
fn a_table_has_a_line_for_each_case() {
    let output = run("bench gemm --m 3,4 --n 5 --k 6 --threads 1 --seconds 0").succeeds();
    let cases: Vec<&str> = output.stdout.lines().filter(|line| line.starts_with("gemm")).collect();
    assert_eq!(cases.len(), 2, "{}", output.stdout);
    for (line, case) in cases.iter().zip(["nt 3x5x6", "nt 4x5x6"]) {
        assert!([case, "GFLOP/s", "% of peak", "prepacked"].iter().all(|part| line.contains(part)), "{line}");
    }
}

#[test]
fn a_report_is_a_page_or_a_picture_and_a_profile_a_table() {
    let folder = tempfile::tempdir().unwrap();
    for (name, start) in [("report.html", "<!doctype html>"), ("roofline.svg", "<svg")] {
        let path = folder.path().join(name);
        let quick = "bench gemm --m 3 --n 5 --k 6 --threads 1 --seconds 0 --report";
        run(&format!("{quick} {}", path.display())).succeeds();
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.starts_with(start) && text.contains("</svg>") && text.contains("<circle"), "{text}");
    }
    let output = run("bench step --config tiny --batch 2 --seq 16 --profile --rounds 2").succeeds();
    let calls = |kernel: &str| {
        let line =
            output.stdout.lines().find(|line| line.starts_with(kernel)).unwrap_or_else(|| panic!("{}", output.stdout));
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    // Four layers, two steps.
    assert_eq!(calls("attention"), 8, "{}", output.stdout);
    assert!(output.stdout.contains("% roof") && output.stdout.contains("forward tiny 2x16"), "{}", output.stdout);
}

#[test]
fn an_impossible_benchmark_is_an_error_that_names_the_option() {
    // Further cases: `an_impossible_selection_is_an_error_of_one_line` of the library.
    for (line, said) in [
        ("gemm --m 3", "--m, --n and --k"),
        ("step --mode train --precision int8", "no backward pass"),
        ("gemm --form tn --precision int8", "--form nt"),
        ("gelu --profile", "--profile applies to steps"),
        ("gelu --report page.pdf", "page.pdf"),
        ("gelu --threads 0", "expected a whole number from 1"),
        ("step --batch -5", "expected a whole number from 1"),
        ("gelu --isa mmx", "--isa mmx"),
        ("gelu --seconds 4000", "--seconds 4000"),
    ] {
        let output = run(&format!("bench {line}"));
        assert_ne!(output.code, Some(0), "{line}");
        assert!(output.stderr.starts_with("error: ") && output.stderr.contains(said), "{}", output.stderr);
        assert!(!output.stderr.contains("panicked"), "{}", output.stderr);
    }
}

#[test]
fn against_matches_cases_across_settings_and_refuses_before_it_measures() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("before.json").display().to_string();
    let gemm =
        |m: u32, more: &str| run(&format!("bench gemm --n 16 --k 16 --seconds 0 --rounds 2 --m {m} {more} {file}"));
    gemm(16, "--threads 1 --save").succeeds();
    let other = gemm(16, "--threads 2 --against");
    assert!(other.stdout.contains("differs: threads 1 -> 2"), "{}", other.stdout);
    let refused = gemm(17, "--against");
    assert!(!refused.stdout.contains("GFLOP/s"), "it measured: {}", refused.stdout);
    refused.fails_with(&["none of the selected cases", "`gemm nt 16x16x16`", "`gemm nt 17x16x16`"]);
}

#[test]
fn two_programs_are_compared_in_pairs() {
    let program = albert_tests::program::program().display();
    let compare = |line: &str| run(&format!("bench compare {}", line.replace("SAME", &program.to_string())));
    let output = compare("--pairs 11 SAME SAME gelu --m 3 --n 8 --threads 1");
    assert!(matches!(output.code, Some(0 | 3)), "{output:?}");
    assert_eq!(output.stdout.matches(" ratio ").count(), 3, "{}", output.stdout);
    compare("--pairs 10 SAME SAME gelu --m 3 --n 8 --threads 1").is_wrong_usage(&["from 11"]);
    compare("SAME /no/such/program gelu").fails_with(&["/no/such/program"]);
    compare("SAME SAME gelu --json").fails_with(&["--json does not apply"]);
    compare("SAME SAME gemm --m 3").fails_with(&["--m, --n and --k"]);
}

#[test]
fn a_busy_machine_is_named() {
    // More threads than cores: each waits for a core.
    let threads = 4 * std::thread::available_parallelism().map_or(1, usize::from);
    let output = run(&format!("bench gemm --m 8 --n 16 --k 8 --seconds 0 --rounds 1 --threads {threads}")).succeeds();
    assert!(output.stdout.contains("limits: the machine is busy"), "{}", output.stdout);
    let output = finish(albert(&["doctor"]).env("ALBERT_THREADS", threads.to_string())).succeeds();
    assert!(output.stdout.contains("* the machine is busy") && output.stdout.contains("*GB/s"), "{}", output.stdout);
}
