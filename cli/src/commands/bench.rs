//! `albert bench`: how fast kernels and whole steps are, beside the peak of this machine measured in the same run.

use albert_benches::{
    cases::{Ready, Work},
    plan::{Selection, What, processors},
    report::{Machine, Record, Report},
};
use anyhow::{Result, ensure};
use clap::Args;
use engine::Cpu;
use std::{
    io::{BufRead, Write},
    process::ExitCode,
};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// What is measured
    #[arg(value_enum)]
    what: What,
    #[command(flatten)]
    selection: Selection,
    /// Worker threads; a list measures with each [default: all cores]
    #[arg(long, value_delimiter = ',')]
    threads: Vec<usize>,
    /// Instruction set: scalar, avx2 or avx512 [default: the widest]
    #[arg(long)]
    isa: Option<String>,
    /// Seconds for a case at least
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Rounds for a case at least [default: 15, for a step 5]
    #[arg(long)]
    rounds: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// One round of all cases, as one line of JSON, for each line on standard input: for programs that let this one and
    /// others take turns
    #[arg(long, conflicts_with_all = ["json", "rounds"])]
    turns: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let seconds = arguments.seconds;
    ensure!((0.0..=3600.0).contains(&seconds), "--seconds {seconds}: expected 0 to 3600");
    let works = arguments.selection.works(arguments.what)?;
    let cpus = processors(&arguments.threads, arguments.isa.as_deref())?;
    if arguments.turns {
        return take_turns(&cpus, &works);
    }
    let mut out = std::io::stdout().lock();
    let mut report = Report { machine: Machine::this(), records: Vec::new() };
    if !arguments.json {
        writeln!(
            out,
            "{}, {} cores; time: median ± half the width of the middle half",
            report.machine.processor, report.machine.cores
        )?;
    }
    for cpu in &cpus {
        for work in &works {
            let rounds = arguments.rounds.unwrap_or(work.rounds());
            let record = Ready::new(cpu, work)?.run(rounds, seconds);
            if !arguments.json {
                writeln!(out, "{record}")?;
            }
            report.records.push(record);
        }
    }
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A round for each line that comes in.
fn take_turns(cpus: &[Cpu], works: &[Work]) -> Result<ExitCode> {
    let mut ready = Vec::new();
    for cpu in cpus {
        for work in works {
            ready.push(Ready::new(cpu, work)?);
        }
    }
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        line?;
        let records: Vec<Record> = ready.iter_mut().map(Ready::round).collect();
        writeln!(out, "{}", serde_json::to_string(&records)?)?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}
