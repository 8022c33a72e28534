//! Mutation test of the PTX kernels: every barrier, wait, commit, fence, `expect_tx`, guard, swizzle and stage of every
//! program is broken in every way that `generate` knows, and the simulator or the check must notice.
//!
//! A seeded sample runs with the other tests. All of them, on all cores, with progress, stoppable and resumable:
//!
//! ```text
//! ALBERT_MUTANTS_FILE=target/mutants.txt cargo test --release -p kernels --test mutants -- --ignored --nocapture every_mutant
//! ```
//!
//! `ALBERT_MUTANTS_SECONDS` ends it earlier, `ALBERT_MUTANTS_ONLY` takes programs whose name holds it. The full cross
//! product of cases, schedules and completions:
//!
//! ```text
//! cargo test --release -p kernels --test mutants -- --ignored --nocapture every_case
//! ```
//!
//! Mutants that live stand in `survivors.txt`, each with the reason why the text is right without what was broken.

mod generate;
mod trial;

use generate::Mutant;
use kernels::{
    OPERATIONS,
    operation::Outcome,
    ptx::{
        Sm,
        sim::{Completion, Options, Schedule},
    },
    simulated::{self, Setting},
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
use trial::{Subject, Verdict, subjects};

/// At least this share of the mutants that are not right by construction must be caught.
const CAUGHT: f64 = 0.95;

/// `PROGRAM :: MUTANT :: reason`, the first two with `*` for anything; the mutant with its numbers or with `#` for them.
fn explained() -> Vec<[&'static str; 3]> {
    let lines = include_str!("survivors.txt").lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let parts: Vec<&str> = line.split(" :: ").map(str::trim).collect();
            <[&str; 3]>::try_from(parts).unwrap_or_else(|_| panic!("survivors.txt: `{line}` is not in three parts"))
        })
        .collect()
}

/// Whether `text` is what `pattern` says, `*` being anything.
fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or("")) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// What is known of the mutants that were tried.
#[derive(Default)]
struct Tally {
    /// Of each operation and kind: equivalent, caught, survived.
    counts: BTreeMap<(String, String), [usize; 3]>,
    /// Of each way of catching.
    ways: BTreeMap<String, usize>,
    /// Program, mutant and example of those that live.
    survivors: Vec<(String, Mutant, String)>,
}

impl Tally {
    fn add(&mut self, subject: &Subject, mutant: &Mutant, verdict: &Verdict) {
        let key = (subject.operation.name.to_string(), format!("{:?}", mutant.kind));
        let counts = self.counts.entry(key).or_default();
        match verdict {
            Verdict::Equivalent(_) => counts[0] += 1,
            Verdict::Caught(how) => {
                counts[1] += 1;
                *self.ways.entry(how.split(':').next().unwrap_or(how).to_string()).or_default() += 1;
            }
            Verdict::Survived => {
                counts[2] += 1;
                let name = subject.program.name.to_string();
                let example = format!("line {}: {:?} {}", mutant.line, mutant.change, mutant.what);
                self.survivors.push((name, mutant.clone(), example));
            }
        }
    }

    /// Prints the table; gives the share that was caught and the survivors that nobody has explained.
    fn report(&self) -> (f64, Vec<String>) {
        let mut sums = [0; 3];
        println!("{:<16}{:<10}{:>12}{:>9}{:>10}", "operation", "what", "equivalent", "caught", "survived");
        for ((operation, kind), counts) in &self.counts {
            println!("{operation:<16}{kind:<10}{:>12}{:>9}{:>10}", counts[0], counts[1], counts[2]);
            (0..3).for_each(|i| sums[i] += counts[i]);
        }
        println!("{:<26}{:>12}{:>9}{:>10}", "all", sums[0], sums[1], sums[2]);
        println!("caught by: {:?}", self.ways);
        let known = explained();
        let (mut used, mut proved) = (BTreeSet::new(), 0);
        let mut unexplained: BTreeMap<String, (usize, &str, &str)> = BTreeMap::new();
        for (name, mutant, example) in &self.survivors {
            let (shape, exact) = (mutant.shape(), mutant.exact());
            let fits_either = |of: &str| fits(of, &shape) || fits(of, &exact);
            match known.iter().position(|[program, of, _]| fits(program, name) && fits_either(of)) {
                Some(at) => {
                    used.insert(at);
                    proved += usize::from(known[at][2].starts_with("equivalent:"));
                }
                None => unexplained.entry(shape).or_insert((0, name, example)).0 += 1,
            }
        }
        println!("{} reasons of survivors.txt were needed; {proved} that live are proved equivalent", used.len());
        let unexplained = unexplained.into_iter();
        let lines =
            unexplained.map(|(shape, (count, name, example))| format!("{count} x {shape}\n    {name} {example}"));
        let tried = (sums[1] + sums[2] - proved).max(1);
        (sums[1] as f64 / tried as f64, lines.collect())
    }

    fn hold(&self) {
        let (share, unexplained) = self.report();
        println!("{:.2} % of those that are not equivalent are caught", 100.0 * share);
        let list = unexplained.join("\n");
        assert!(unexplained.is_empty(), "mutants live that survivors.txt does not explain:\n{list}");
        assert!(share >= CAUGHT, "{:.2} % are caught", 100.0 * share);
    }
}

/// A number that depends on everything in `text`.
fn hash(seed: u64, text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Programs and mutants of each in the sample: about a minute on two cores.
const PROGRAMS: usize = 44;
const MUTANTS: usize = 12;

#[test]
fn a_sample_of_the_mutants_is_caught() {
    let seed = env::var("ALBERT_MUTANTS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut subjects = subjects();
    subjects.sort_by_cached_key(|subject| hash(seed, subject.program.name.as_str()));
    // Every operation has its turn.
    let mut turns: BTreeMap<(&str, Sm), usize> = BTreeMap::new();
    subjects.sort_by_cached_key(|subject| {
        let turn = turns.entry((subject.operation.name, subject.sm)).or_default();
        *turn += 1;
        *turn
    });
    subjects.truncate(PROGRAMS);
    let tally = Mutex::new(Tally::default());
    subjects.par_iter().for_each(|subject| {
        let mut mutants = subject.mutants();
        mutants.retain(|mutant| mutant.equivalent.is_none());
        mutants
            .sort_by_cached_key(|mutant| hash(seed, &format!("{:?}{:?}{}", mutant.kind, mutant.change, mutant.line)));
        let prepared = subject.prepare();
        for mutant in mutants.iter().take(MUTANTS) {
            let verdict = prepared.judge(mutant);
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
    let mut subjects = subjects();
    subjects.retain(|subject| subject.program.name.as_str().contains(&only));
    let (tally, done) = (Mutex::new(Tally::default()), AtomicUsize::new(0));
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
                    let verdict = prepared.get_or_insert_with(|| subject.prepare()).judge(mutant);
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
    assert!(started.elapsed() <= limit, "stopped before all was tried; run it again with the same file to go on");
}

#[test]
#[ignore = "takes long; the module says how to run it"]
fn every_case_is_right_under_every_schedule_and_completion() {
    let started = Instant::now();
    let mut all = Vec::new();
    for (operation, sm) in OPERATIONS.iter().flat_map(|operation| Sm::ALL.map(|sm| (operation, sm))) {
        all.extend((operation.cases)().into_iter().map(|case| (operation, sm, case)));
    }
    let (failures, runs) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    let done = AtomicUsize::new(0);
    all.par_iter().with_max_len(1).for_each(|(operation, sm, case)| {
        for (schedule, completion) in Schedule::FIVE.into_iter().flat_map(|s| Completion::ALL.map(|c| (s, c))) {
            let setting = Setting { options: Options { schedule, completion, ..Options::default() }, replaced: None };
            match simulated::run(operation, case, *sm, &setting).0 {
                Outcome::Passed { .. } => drop(runs.fetch_add(1, Ordering::Relaxed)),
                Outcome::Skipped { .. } => break,
                Outcome::Failed { message } => {
                    let failure = format!("{} {schedule:?} {completion:?}: {message}", operation.name);
                    println!("FAILED {failure}");
                    failures.lock().expect("no case panics").push(failure);
                }
            }
        }
        let done = 1 + done.fetch_add(1, Ordering::Relaxed);
        if done.is_multiple_of(200) {
            println!("{:>5} s  {done} of {} cases", started.elapsed().as_secs(), all.len());
        }
    });
    let failures = failures.into_inner().expect("no case panics");
    let runs = runs.into_inner();
    println!("{runs} runs passed, {} failed, in {} s", failures.len(), started.elapsed().as_secs());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(runs > 0, "no case ran");
}
