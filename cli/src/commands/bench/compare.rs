//! `albert bench compare`: runs two programs alternately, so that drift of the machine affects both.
//!
//! ```text
//! pair 1:   start OLD, NEW   OLD NEW NEW OLD   end          pair 2:   start NEW, OLD   NEW OLD OLD NEW   end          ...
//! ```
//!
//! Each pair uses new processes, because the pages allocated to a process affect its speed for its lifetime. A program runs
//! one round of all cases per line on its standard input (`--turns`).

use super::{Arguments, SLOWER};
use crate::{numbers::whole, output::results};
use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, FromArgMatches};
use measure::{
    against::{LEAST_PAIRS, of_pairs},
    busy,
    plan::processors,
};
use serde_json::Value;
use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
};

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  albert bench compare old/albert new/albert gemm --m 512 --n 768 --k 768 --threads 1
  albert bench compare --pairs 31 old/albert new/albert layernorm

A ratio is the time of OLD divided by the time of NEW, by CPU time in parentheses: above 1, NEW is faster. Exit code 3 if the whole
interval of a case is below 0.98.")]
pub(crate) struct Compare {
    /// Pairs of processes, at least 11
    #[arg(long, value_parser = whole::<{ LEAST_PAIRS as u64 }, usize>, default_value_t = 15)]
    pairs: usize,
    /// Program file of the version before
    old: PathBuf,
    /// Program file of the version to judge
    new: PathBuf,
    /// Benchmark and its options, as after `albert bench`
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "BENCHMARK")]
    cases: Vec<OsString>,
}

pub(super) fn run(compare: &Compare) -> Result<ExitCode> {
    if let Some(wrong) = check(&compare.cases)? {
        return Ok(wrong);
    }
    for program in [&compare.old, &compare.new] {
        ensure!(program.is_file(), "{}: no such program; expected the file of an albert", program.display());
    }
    let mut cases: Vec<Measured> = Vec::new();
    for pair in 0..compare.pairs {
        measure_pair(compare, pair % 2 == 1, &mut cases)?;
    }
    let mut out = results();
    writeln!(
        out,
        "{} pairs of processes; ratio: time of OLD over time of NEW, with its interval of 95 %",
        compare.pairs
    )?;
    let (mut is_slower, mut busy) = (false, 0);
    for Measured { name, wall, processor, is_busy } in cases {
        let (judged, processor) = (of_pairs(name, wall), of_pairs(String::new(), processor));
        is_slower |= judged.is_slower();
        busy += usize::from(is_busy);
        let [low, high] = processor.interval;
        writeln!(out, "{judged}{}({:.3} [{low:.3}, {high:.3}] by CPU time)", busy::mark(is_busy), processor.ratio)?;
    }
    if busy > 0 {
        writeln!(out, "* {busy} cases: {}", busy::Doubt::Busy)?;
    }
    Ok(if is_slower { ExitCode::from(SLOWER) } else { ExitCode::SUCCESS })
}

/// Parses the options as `albert bench` does. Returns an exit code after printing a usage error.
fn check(cases: &[OsString]) -> Result<Option<ExitCode>> {
    let command =
        crate::numbers::negative_numbers_are_values(Arguments::augment_args(clap::Command::new("albert bench")));
    let words = [OsString::from("bench")].into_iter().chain(cases.iter().cloned());
    let parsed = command.try_get_matches_from(words).and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(message) => return crate::print_message(&message).map(Some),
    };
    let what = arguments.what.context("compare: expected a benchmark, such as gemm, after the two programs")?;
    let for_one = [
        ("--json", arguments.json),
        ("--profile", arguments.profile),
        ("--turns", arguments.turns),
        ("--rounds", arguments.rounds.is_some()),
        ("--report", arguments.report.is_some()),
        ("--save", arguments.save.is_some()),
        ("--against", arguments.against.is_some()),
    ];
    if let Some((name, _)) = for_one.iter().find(|(_, given)| *given) {
        return Err(anyhow!("{name} does not apply to bench compare; remove it"));
    }
    arguments.selection.works(what)?;
    processors(&arguments.threads, arguments.isa.as_deref())?;
    Ok(None)
}

/// Ratios of a case, one of each pair.
#[derive(Debug)]
struct Measured {
    name: String,
    wall: Vec<f64>,
    processor: Vec<f64>,
    is_busy: bool,
}

/// Starts both programs, runs A B B A and adds a ratio to each case.
fn measure_pair(compare: &Compare, new_first: bool, cases: &mut Vec<Measured>) -> Result<()> {
    let [old, new] = [&compare.old, &compare.new].map(|path| Turns::start(path, &compare.cases));
    let (mut old, mut new) = (old?, new?);
    let (mut before, mut now) = (Vec::new(), Vec::new());
    for is_new in [new_first, !new_first, !new_first, new_first] {
        let (program, rounds) = if is_new { (&mut new, &mut now) } else { (&mut old, &mut before) };
        rounds.push(program.turn()?);
    }
    old.end()?;
    new.end()?;
    ensure!(
        before.iter().chain(&now).all(|round| round.len() == before[0].len()),
        "the programs do not have the same cases: {} and {}",
        before[0].len(),
        now[0].len()
    );
    for at in 0..before[0].len() {
        let sum = |rounds: &[Vec<Value>], key: &str| -> f64 {
            rounds.iter().map(|round| round[at][key]["median"].as_f64().unwrap_or(f64::NAN)).sum()
        };
        let text = |key: &str| before[0][at][key].as_str().unwrap_or_default().to_owned();
        let threads = before[0][at]["threads"].as_u64().unwrap_or(1) as usize;
        let name = format!("{} {} {} {threads} {}", text("kernel"), text("case"), text("dtype"), text("isa"));
        if cases.len() == at {
            cases.push(Measured { name, wall: Vec::new(), processor: Vec::new(), is_busy: false });
        }
        let [wall, processor] = ["seconds", "processor_seconds"].map(|key| (sum(&before, key), sum(&now, key)));
        let ratios = [wall, processor].map(|(before, now)| before / now);
        ensure!(ratios.iter().all(|ratio| ratio.is_finite()), "the case {} has no times", cases[at].name);
        cases[at].wall.push(ratios[0]);
        cases[at].processor.push(ratios[1]);
        cases[at].is_busy |= busy::is_busy(wall.0 + wall.1, processor.0 + processor.1, threads);
    }
    Ok(())
}

/// A program that runs one round per line.
#[derive(Debug)]
struct Turns {
    path: PathBuf,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Turns {
    fn start(path: &Path, cases: &[OsString]) -> Result<Self> {
        // A bare name would be searched in PATH.
        let file = path.canonicalize().with_context(|| format!("{} cannot be started", path.display()))?;
        let child = Command::new(file)
            .arg("bench")
            .args(cases)
            .arg("--turns")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.with_context(|| format!("{} cannot be started", path.display()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Ok(Self { path: path.to_owned(), child, input, output: BufReader::new(output) })
    }

    /// Runs one round; returns the records of all cases.
    fn turn(&mut self) -> Result<Vec<Value>> {
        // The read below reports a program that has ended.
        let _ = self.input.as_mut().expect("open until the end").write_all(b"\n");
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            return Err(anyhow!("{}: ended before its round ({})", self.path.display(), self.child.wait()?));
        }
        serde_json::from_str(&line)
            .with_context(|| format!("{}: expected records of bench --turns", self.path.display()))
    }

    fn end(&mut self) -> Result<()> {
        self.input = None;
        let status = self.child.wait()?;
        ensure!(status.success(), "{}: ended with {status}", self.path.display());
        Ok(())
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        // The process has already ended, unless there was an error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
