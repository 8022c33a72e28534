//! `albert bench`: speed of kernels and steps, and their share of the machine's peak, measured in the same run.

mod compare;

use crate::{
    numbers::whole,
    output::{results, results_beside_files, tell},
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use engine::{
    Cpu,
    io::{check_output, write_atomically},
    profile::Peak,
};
use measure::{
    against,
    cases::{Ready, Work},
    chart, html,
    plan::{Selection, What, processors},
    report::{Limits, Machine, Record, Report},
};
use std::{
    fs,
    io::{BufRead, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:
  albert bench gemm --m 1024 --n 768 --k 768 --threads 1,2
  albert bench step --config base --mode train --precision bf16
  albert bench all --report bench.html
  albert bench gemm --shapes albert --save before.json
  albert bench gemm --shapes albert --against before.json
  albert bench compare old/albert new/albert gemm --shapes albert

A value marked * is doubtful; the reason is printed below the table.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Mode>,
    /// Benchmark to run
    #[arg(value_enum, required = true)]
    what: Option<What>,
    #[command(flatten)]
    selection: Selection,
    /// Worker threads; with a list, each is measured [default: all cores]
    #[arg(long, value_delimiter = ',', value_parser = whole::<1, usize>)]
    threads: Vec<usize>,
    /// Instruction set: scalar, avx2 or avx512 [default: the widest]
    #[arg(long)]
    isa: Option<String>,
    /// Minimum seconds per case
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Minimum rounds per case [default: 15, for a step 5]
    #[arg(long, value_parser = whole::<1, usize>)]
    rounds: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write an HTML page with rooflines and a table, or the roofline alone if the name ends in .svg
    #[arg(long, value_name = "FILE.html|FILE.svg", conflicts_with = "turns")]
    report: Option<PathBuf>,
    /// Print the cost of each kernel of a step against the roofline of this machine, instead of timing steps
    #[arg(long, conflicts_with_all = ["json", "report", "turns"])]
    profile: bool,
    /// Run one round of all cases per line on standard input and print it as one line of JSON, so that a script can
    /// interleave it with other programs
    #[arg(long, conflicts_with_all = ["json", "rounds"])]
    turns: bool,
    /// Also write the records to a file, for --against
    #[arg(long, value_name = "FILE", conflicts_with_all = ["turns", "profile"])]
    save: Option<PathBuf>,
    /// Compare with the records of a file: time before over time now, with an interval of 95 % that allows for two processes;
    /// exit code 3 if a case is slower. `bench compare` finds smaller differences
    #[arg(long, value_name = "FILE", conflicts_with_all = ["turns", "profile"])]
    against: Option<PathBuf>,
}

/// Modes of `bench` other than running a benchmark.
#[derive(Clone, Debug, Subcommand)]
enum Mode {
    /// Compare two program files: processes of both run in turns, in at least 11 pairs
    Compare(compare::Compare),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(Mode::Compare(compare)) = &arguments.command {
        return compare::run(compare);
    }
    let seconds = arguments.seconds;
    ensure!((0.0..=3600.0).contains(&seconds), "--seconds {seconds}: expected 0 to 3600");
    let works = arguments.selection.works(arguments.what.expect("clap requires it"))?;
    let cpus = processors(&arguments.threads, arguments.isa.as_deref())?;
    if arguments.turns {
        return rounds_on_request(&cpus, &works);
    }
    if let Some(path) = &arguments.report {
        let known = path.extension().is_some_and(|end| end == "html" || end == "svg");
        ensure!(known, "--report {}: expected a file that ends in .html or .svg", path.display());
        check_output(path)?;
    }
    if let Some(path) = &arguments.save {
        check_output(path)?;
    }
    let saved = arguments.against.as_deref().map(|path| read_saved(path, &works, &cpus)).transpose()?;
    let writes = arguments.report.is_some() || arguments.save.is_some();
    let mut out = if writes { results_beside_files() } else { results() };
    if arguments.profile {
        return profile(&mut out, &cpus, &works, arguments.rounds);
    }
    let report = measure(arguments, &cpus, &works, &mut out)?;
    if let Some(path) = &arguments.report {
        write_report(path, &report)?;
        tell!("report written to {}", path.display());
    }
    if let Some(path) = &arguments.save {
        let text = serde_json::to_string_pretty(&report)?;
        write_atomically(path, |out| out.write_all(text.as_bytes()))?;
        tell!("records written to {}", path.display());
    }
    let is_slower = match (&arguments.against, saved) {
        (Some(path), Some(saved)) => compare_with_saved(&mut out, path, &saved, &report.records)?,
        _ => false,
    };
    Ok(if is_slower { ExitCode::from(SLOWER) } else { ExitCode::SUCCESS })
}

/// Runs the benchmarks and prints each result when it is available, or all as JSON.
fn measure(arguments: &Arguments, cpus: &[Cpu], works: &[Work], out: &mut impl Write) -> Result<Report> {
    let mut report = Report {
        command: command(),
        machine: Machine::this(),
        limits: cpus.iter().map(Limits::of).collect(),
        records: Vec::new(),
    };
    if !arguments.json {
        let Machine { processor, cores, .. } = &report.machine;
        writeln!(out, "{processor}, {cores} cores; time: median ± half the interquartile range")?;
        for limits in &report.limits {
            writeln!(out, "limits: {limits}")?;
        }
    }
    for cpu in cpus {
        for work in works {
            let rounds = arguments.rounds.unwrap_or(work.rounds());
            let record = Ready::new(cpu, work)?.run(rounds, arguments.seconds);
            if !arguments.json {
                writeln!(out, "{record}")?;
            }
            report.records.push(record);
        }
    }
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        for doubt in report.doubts() {
            writeln!(out, "{doubt}")?;
        }
    }
    Ok(report)
}

/// Prints the ratios of the cases to those in the file at `path`; true if one is slower.
fn compare_with_saved(out: &mut impl Write, path: &Path, saved: &against::Saved, records: &[Record]) -> Result<bool> {
    let compared = saved.compare(records).map_err(|problem| anyhow!("{}: {problem}", path.display()))?;
    for case in &compared {
        writeln!(out, "{case}")?;
    }
    let missing = records.len() - compared.len();
    if missing > 0 {
        tell!("{missing} of {} cases are not in {}", records.len(), path.display());
    }
    tell!(
        "the intervals allow for the drift between two processes; albert bench compare OLD NEW detects smaller differences"
    );
    Ok(compared.iter().any(against::Compared::is_slower))
}

/// Reads the records to compare with, and checks that they contain one of the cases.
fn read_saved(path: &Path, works: &[Work], cpus: &[Cpu]) -> Result<against::Saved> {
    let text = fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let cases: Vec<_> = works.iter().map(Work::about).collect();
    let saved = against::Saved::read(&text).and_then(|saved| saved.check(&cases, cpus).map(|()| saved));
    saved.map_err(|problem| anyhow!("{}: {problem}", path.display()))
}

/// Exit code of a comparison in which a case is slower.
const SLOWER: u8 = 3;

/// Command line, with the name of the program without its folder.
fn command() -> String {
    let arguments = std::env::args().skip(1);
    ["albert".to_owned()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
}

fn write_report(path: &Path, report: &Report) -> Result<()> {
    let text = if path.extension().is_some_and(|end| end == "svg") {
        let limits = report.limits.last().expect("`processors` returns at least one");
        chart::roofline(limits, &report.records)
    } else {
        html::page(report)
    };
    let text = text.map_err(|problem| anyhow!("{}: cannot draw the roofline: {problem}", path.display()))?;
    Ok(write_atomically(path, |out| out.write_all(text.as_bytes()))?)
}

/// Prints a table of kernels per step.
fn profile(out: &mut impl Write, cpus: &[Cpu], works: &[Work], rounds: Option<usize>) -> Result<ExitCode> {
    for cpu in cpus {
        let peak = Some(Peak::measured(cpu));
        for work in works {
            let Work::Step(step) = work else { bail!("--profile applies to steps: use albert bench step --profile") };
            let mut table = String::new();
            step.profile(cpu, rounds.unwrap_or(3), |profile| table = profile.table(peak).to_string())?;
            writeln!(out, "{}, {} thread(s)\n{table}", step.title(), cpu.threads())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs one round per input line.
fn rounds_on_request(cpus: &[Cpu], works: &[Work]) -> Result<ExitCode> {
    let mut ready = Vec::new();
    for cpu in cpus {
        for work in works {
            ready.push(Ready::new(cpu, work)?);
        }
    }
    let mut out = results();
    for line in std::io::stdin().lock().lines() {
        line?;
        let records: Vec<Record> = ready.iter_mut().map(Ready::round).collect();
        writeln!(out, "{}", serde_json::to_string(&records)?)?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}
