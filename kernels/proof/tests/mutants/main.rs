//! Mutation test of the PTX kernels: `generate` mutates every barrier, wait, commit, fence, `expect_tx`, guard, swizzle and
//! stage update of every program, and the simulator or the check must catch each mutant.
//!
//! A seeded sample runs with the other tests. The full run uses all cores, prints progress and can be resumed:
//!
//! ```text
//! ALBERT_MUTANTS_FILE=target/mutants.txt cargo test --release -p albert-kernels-proof --test mutants -- --ignored --nocapture every_mutant
//! ```
//!
//! `ALBERT_MUTANTS_SECONDS` limits its time, `ALBERT_MUTANTS_ONLY` restricts it to programs whose name contains the value.
//! The full cross product of cases, schedules and completions:
//!
//! ```text
//! ALBERT_CASES_FILE=target/cases.txt cargo test --release -p albert-kernels-proof --test mutants -- --ignored --nocapture every_case
//! ```
//!
//! It skips the cases in its file; `ALBERT_CASES_ONLY` restricts it to operations whose name contains the value.
//!
//! `survivors.txt` lists surviving mutants, each with a proof that it is equivalent or with the reason why no case catches
//! it. The test fails if a case catches a mutant with a proof.

mod generate;
mod rules;
mod survivors;
mod text;
mod trial;

use generate::Mutant;
use kernels_proof::{
    OPERATIONS,
    case::{Case, Outcome},
    operation::Operation,
    recorded::{FNV_START, fnv_1a},
    runner::Setting,
    simulated,
};
use ptx::{
    Sm,
    sim::{Completion, Options, Schedule},
};
use rayon::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::Write as _,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use survivors::Reason;
use trial::{Subject, Verdict, subjects};

/// Minimum share of caught mutants among those that are not equivalent.
const CAUGHT: f64 = 0.95;

/// Verdicts of the mutants so far.
#[derive(Default)]
struct Tally {
    reasons: Vec<Reason>,
    /// By operation and kind: equivalent by a rule, equivalent by a proof, caught, survived.
    counts: BTreeMap<(String, String), [usize; 4]>,
    /// By finding.
    ways: BTreeMap<String, usize>,
    /// Indices of the reasons that applied to a survivor.
    needed: BTreeSet<usize>,
    /// Survivors without a proof, by (explained, shape): number and an example.
    survivors: BTreeMap<(bool, String), (usize, String)>,
    /// Caught mutants with a proof.
    refuted: Vec<String>,
}

impl Tally {
    fn new() -> Self {
        Self { reasons: survivors::reasons(), ..Self::default() }
    }

    /// True if a reason of the file proves that a mutant is equivalent.
    fn proves(&self, subject: &Subject, mutant: &Mutant) -> bool {
        let about = |reason: &&Reason| reason.is_about(subject.program.name.as_str(), mutant);
        self.reasons.iter().find(about).is_some_and(|reason| reason.proves)
    }

    fn add(&mut self, subject: &Subject, mutant: &Mutant, verdict: &Verdict) {
        let name = subject.program.name.as_str();
        let key = (subject.operation.name.to_string(), format!("{:?}", mutant.kind));
        let counts = self.counts.entry(key).or_default();
        let reason = self.reasons.iter().position(|reason| reason.is_about(name, mutant));
        let proved = reason.filter(|at| self.reasons[*at].proves);
        let example = || format!("{name} line {}: {}", mutant.line, mutant.exact());
        match verdict {
            Verdict::Equivalent(_) => counts[0] += 1,
            Verdict::Caught(how) => {
                counts[2] += 1;
                *self.ways.entry(how.split(':').next().unwrap_or(how).to_string()).or_default() += 1;
                if let Some(at) = proved {
                    self.refuted.push(format!("{} ({how}) by {}", self.reasons[at], example()));
                }
            }
            Verdict::Survived => {
                self.needed.extend(reason);
                if proved.is_some() {
                    counts[1] += 1;
                } else {
                    counts[3] += 1;
                    let first = || (0, example());
                    self.survivors.entry((reason.is_some(), mutant.shape())).or_insert_with(first).0 += 1;
                }
            }
        }
    }

    /// Prints the table and the survivors without a proof; returns the share of caught mutants.
    fn report(&self) -> f64 {
        let mut sums = [0; 4];
        println!("{:<16}{:<10}{:>9}{:>8}{:>8}{:>10}", "operation", "what", "by rule", "proved", "caught", "survived");
        for ((operation, kind), counts) in &self.counts {
            let [rule, proof, caught, survived] = counts;
            println!("{operation:<16}{kind:<10}{rule:>9}{proof:>8}{caught:>8}{survived:>10}");
            (0..4).for_each(|i| sums[i] += counts[i]);
        }
        println!("{:<26}{:>9}{:>8}{:>8}{:>10}", "all", sums[0], sums[1], sums[2], sums[3]);
        println!("caught by: {:?}", self.ways);
        println!("{} of {} reasons of survivors.txt applied", self.needed.len(), self.reasons.len());
        for ((explained, shape), (count, example)) in &self.survivors {
            let shape: String = shape.chars().take(200).collect();
            let example: String = example.chars().take(200).collect();
            println!("{} {count} x {shape}\n    {example}", if *explained { "explained" } else { "UNEXPLAINED" });
        }
        sums[2] as f64 / (sums[2] + sums[3]).max(1) as f64
    }

    fn hold(&self) {
        let share = self.report();
        println!("{:.2} % of the mutants that are not equivalent are caught", 100.0 * share);
        let refuted = &self.refuted[..self.refuted.len().min(20)];
        assert!(refuted.is_empty(), "{} proofs are refuted:\n{}", self.refuted.len(), refuted.join("\n"));
        let unexplained = self.survivors.keys().filter(|(explained, _)| !explained).count();
        assert!(unexplained == 0, "{unexplained} shapes of mutants survive; add cases, or reasons to survivors.txt");
        assert!(share >= CAUGHT, "{:.2} % of the mutants are caught; expected {:.0} %", 100.0 * share, 100.0 * CAUGHT);
    }
}

/// FNV-1a hash of `text`.
fn hash(seed: u64, text: &str) -> u64 {
    fnv_1a(FNV_START ^ seed, text.bytes())
}

/// Sample size: programs, and mutants of each. About a minute on two cores.
const PROGRAMS: usize = 44;
const MUTANTS: usize = 12;

#[test]
fn a_sample_of_the_mutants_is_caught() {
    let seed = env::var("ALBERT_MUTANTS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut subjects = subjects("");
    subjects.sort_by_cached_key(|subject| hash(seed, subject.program.name.as_str()));
    // Round robin over operations and architectures.
    let mut turns: BTreeMap<(&str, Sm), usize> = BTreeMap::new();
    subjects.sort_by_cached_key(|subject| {
        let turn = turns.entry((subject.operation.name, subject.sm)).or_default();
        *turn += 1;
        *turn
    });
    subjects.truncate(PROGRAMS);
    let tally = Mutex::new(Tally::new());
    subjects.par_iter().for_each(|subject| {
        let mut mutants = subject.mutants();
        mutants.retain(|mutant| mutant.equivalent.is_none());
        mutants
            .sort_by_cached_key(|mutant| hash(seed, &format!("{:?}{:?}{}", mutant.kind, mutant.change, mutant.line)));
        let prepared = subject.prepare();
        for mutant in mutants.iter().take(MUTANTS) {
            let proved = tally.lock().expect("no trial panics").proves(subject, mutant);
            let verdict = prepared.judge(mutant, proved);
            tally.lock().expect("no trial panics").add(subject, mutant, &verdict);
        }
    });
    tally.into_inner().expect("no trial panics").hold();
}

#[test]
#[ignore = "takes long; the module says how to run it"]
fn every_mutant_is_caught_or_explained() {
    let started = Instant::now();
    let seconds = env::var("ALBERT_MUTANTS_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let limit = Duration::from_secs(seconds.unwrap_or(u64::MAX / 2));
    let only = env::var("ALBERT_MUTANTS_ONLY").unwrap_or_default();
    let path = env::var("ALBERT_MUTANTS_FILE").unwrap_or_else(|_| "mutants.txt".to_string());
    let known: BTreeMap<String, String> = fs::read_to_string(&path)
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.split_once('\t').map(|(verdict, key)| (key.to_string(), verdict.to_string())))
        .collect();
    let file = fs::OpenOptions::new().create(true).append(true).open(&path);
    let file = Mutex::new(file.unwrap_or_else(|error| panic!("{path}: {error}")));
    let subjects = subjects(&only);
    let (tally, done) = (Mutex::new(Tally::new()), AtomicUsize::new(0));
    println!("{} programs; {} verdicts in {path}", subjects.len(), known.len());
    subjects.par_iter().with_max_len(1).for_each(|subject| {
        let mutants = subject.mutants();
        let mut prepared = None;
        let mut written = String::new();
        for mutant in &mutants {
            if started.elapsed() > limit {
                break;
            }
            let (name, kind, change) = (&subject.program.name, mutant.kind, mutant.change);
            let key = format!("{name} {} {kind:?} {change:?} {}", mutant.line, mutant.what);
            let verdict = match (mutant.equivalent, known.get(&key).map(String::as_str)) {
                (Some(rule), _) => Verdict::Equivalent(rule),
                (None, Some("survived")) => Verdict::Survived,
                (None, Some(how)) => Verdict::Caught(how.to_string()),
                (None, None) => {
                    let proved = tally.lock().expect("no trial panics").proves(subject, mutant);
                    let verdict = prepared.get_or_insert_with(|| subject.prepare()).judge(mutant, proved);
                    let word = match &verdict {
                        Verdict::Caught(how) => how.lines().next().unwrap_or("caught").to_string(),
                        _ => "survived".to_string(),
                    };
                    written += &format!("{word}\t{key}\n");
                    verdict
                }
            };
            tally.lock().expect("no trial panics").add(subject, mutant, &verdict);
        }
        file.lock().expect("no trial panics").write_all(written.as_bytes()).expect("verdicts can be kept");
        let done = 1 + done.fetch_add(1, Ordering::Relaxed);
        println!("{:>5} s  {done} of {}: {}", started.elapsed().as_secs(), subjects.len(), subject.program.name);
    });
    println!("{} s", started.elapsed().as_secs());
    tally.into_inner().expect("no trial panics").hold();
    assert!(started.elapsed() <= limit, "time limit reached; run again with the same ALBERT_MUTANTS_FILE to resume");
}

/// Runs a case under every schedule and completion; returns the number of passed runs, and the failures.
fn run_everyhow(operation: &Operation, sm: Sm, case: &Case) -> (usize, Vec<String>) {
    let (mut passed, mut failures) = (0, Vec::new());
    for (schedule, completion) in Schedule::FIVE.into_iter().flat_map(|s| Completion::ALL.map(|c| (s, c))) {
        let setting = Setting { options: Options { schedule, completion, ..Options::default() }, ..Setting::default() };
        match simulated::run(operation, case, sm, setting).0 {
            Outcome::Passed { .. } => passed += 1,
            Outcome::Skipped { .. } => break,
            Outcome::Failed { message } => {
                failures.push(format!("{} {schedule:?} {completion:?}: {message}", operation.name));
            }
        }
    }
    (passed, failures)
}

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
        let case = (operation.cases)().into_iter().find(|case| case.to_string() == name);
        let case = case.unwrap_or_else(|| panic!("{} has no case {name}", operation.name));
        let (passed, failures) = run_everyhow(operation, sm, &case);
        assert!(failures.is_empty(), "{name}, {sm:?}: {}", failures.join("\n"));
        assert_eq!(passed, 5 * Completion::ALL.len(), "{} {name}, {sm:?}: runs", operation.name);
    });
}

#[test]
#[ignore = "takes long; the module says how to run it"]
fn every_case_is_right_under_every_schedule_and_completion() {
    let started = Instant::now();
    let only = env::var("ALBERT_CASES_ONLY").unwrap_or_default();
    let path = env::var("ALBERT_CASES_FILE").ok();
    let known = path.as_ref().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let known: BTreeMap<&str, usize> = known
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter_map(|(n, key)| Some((key, n.parse().ok()?)))
        .collect();
    let file = path.map(|path| {
        let file = fs::OpenOptions::new().create(true).append(true).open(&path);
        Mutex::new(file.unwrap_or_else(|error| panic!("{path}: {error}")))
    });
    let mut all = Vec::new();
    for (operation, sm) in OPERATIONS.iter().flat_map(|operation| Sm::ALL.map(|sm| (operation, sm))) {
        all.extend((operation.cases)().into_iter().map(|case| (operation, sm, case)));
    }
    all.retain(|(operation, ..)| operation.name.contains(&only));
    println!("{} cases, {} known", all.len(), known.len());
    let failures = Mutex::new(Vec::new());
    let (runs, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let spent: Mutex<BTreeMap<String, (usize, Duration)>> = Mutex::default();
    all.par_iter().with_max_len(1).for_each(|(operation, sm, case)| {
        let key = format!("{} {sm:?} {case}", operation.name);
        let begun = Instant::now();
        let (passed, failed) = match known.get(key.as_str()) {
            Some(&passed) => (passed, Vec::new()),
            None => run_everyhow(operation, *sm, case),
        };
        if let (Some(file), false, None) = (&file, !failed.is_empty(), known.get(key.as_str())) {
            let line = format!("{passed}\t{key}\n");
            file.lock().expect("no case panics").write_all(line.as_bytes()).expect("results can be kept");
        }
        failed.iter().for_each(|failure| println!("FAILED {failure}"));
        failures.lock().expect("no case panics").extend(failed);
        runs.fetch_add(passed, Ordering::Relaxed);
        let mut spent = spent.lock().expect("no case panics");
        let entry = spent.entry(format!("{} {}", operation.name, sm.name())).or_default();
        *entry = (entry.0 + passed, entry.1 + begun.elapsed());
        let done = 1 + done.fetch_add(1, Ordering::Relaxed);
        if done.is_multiple_of(200) {
            println!("{:>5} s  {done} of {} cases", started.elapsed().as_secs(), all.len());
        }
    });
    for (of, (runs, time)) in spent.into_inner().expect("no case panics") {
        println!("{of:<24}{runs:>8} runs{:>8.0} s", time.as_secs_f64());
    }
    let failures = failures.into_inner().expect("no case panics");
    let runs = runs.into_inner();
    println!("{runs} runs passed, {} failed, in {} s", failures.len(), started.elapsed().as_secs());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(runs > 0, "no case ran");
}
