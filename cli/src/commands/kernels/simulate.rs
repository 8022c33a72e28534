//! `albert kernels simulate`: one launch of any PTX text on the simulated GPU.

use super::launch::{Description, Prepared};
use crate::output::{self, results_beside_files};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use ptx::sim::{Approximation, Completion, Finding, Limits, Metrics, Module, Options, Report, Schedule, SiteMemory};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Order {
    /// Warps take turns
    RoundRobin,
    /// Warps run at random, a few instructions each
    Random,
    /// One warp runs as far as it can before any other
    Adversarial,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Ending {
    /// As late as allowed
    Latest,
    /// At once
    Earliest,
    /// At some time in between
    Random,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rounding {
    /// Correctly rounded
    Exact,
    /// The largest that the documented error allows
    High,
    /// The smallest
    Low,
}

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The PTX text, from our assembler, nvcc, Triton or by hand
    file: PathBuf,
    /// The launch as JSON: entry, grid, block, shared_bytes, args, outputs (docs/simulator.md)
    #[arg(long)]
    launch: PathBuf,
    /// The order in which warps run
    #[arg(long, value_enum, default_value = "round-robin")]
    schedule: Order,
    /// When asynchronous operations are over
    #[arg(long, value_enum, default_value = "latest")]
    completion: Ending,
    /// For random orders
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// What approximate instructions give
    #[arg(long, value_enum, default_value = "exact")]
    approximation: Rounding,
    /// Do not ask for a fence between an mbarrier's initialization and its first asynchronous use; Triton leaves it out
    #[arg(long)]
    ignore_init_fence: bool,
    /// Do not ask for a fence between cp.async and the wgmma or bulk copy that reads its bytes; Triton leaves it out
    #[arg(long)]
    ignore_copy_fence: bool,
    /// Findings and measurements as JSON on standard output
    #[arg(long)]
    json: bool,
}

/// Exit code of a run without, and of one with a finding, and where the kernel could not be run.
const CLEAN: u8 = 0;
const FOUND: u8 = 1;
const COULD_NOT_RUN: u8 = 2;

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let code = |report: Report| ExitCode::from(if report.findings.is_empty() { CLEAN } else { FOUND });
    output::exit_code(simulate(arguments).map(code), COULD_NOT_RUN)
}

fn simulate(arguments: &Arguments) -> Result<Report> {
    let limits = Limits::default();
    let text = read(&arguments.file, limits.text_bytes)?;
    let module = Module::parse(&text).with_context(|| arguments.file.display().to_string())?;
    let description = Description::parse(&read(&arguments.launch, limits.text_bytes)?)
        .with_context(|| format!("{}: no launch", arguments.launch.display()))?;
    let folder = arguments.launch.parent().unwrap_or(Path::new("."));
    let mut prepared = Prepared::new(&description, folder, &limits)?;
    let options = Options {
        schedule: match arguments.schedule {
            Order::RoundRobin => Schedule::RoundRobin,
            Order::Random => Schedule::Random(arguments.seed),
            Order::Adversarial => Schedule::Adversarial(arguments.seed),
        },
        completion: match arguments.completion {
            Ending::Latest => Completion::Latest,
            Ending::Earliest => Completion::Earliest,
            Ending::Random => Completion::Random(arguments.seed),
        },
        approximation: match arguments.approximation {
            Rounding::Exact => Approximation::Exact,
            Rounding::High => Approximation::High,
            Rounding::Low => Approximation::Low,
        },
        init_fence: !arguments.ignore_init_fence,
        copy_fence: !arguments.ignore_copy_fence,
        ..Options::default()
    };
    let report = module
        .launch(&description.entry, description.launch(), &prepared.arguments, &mut prepared.memory, &options)
        .with_context(|| arguments.file.display().to_string())?;
    let unwritten = prepared.save(&description, folder)?;
    // The exit code tells of findings whether or not their text is read.
    let mut out = results_beside_files();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&as_json(&report, &unwritten))?)?;
    } else {
        print(&mut out, &report, &unwritten)?;
    }
    Ok(report)
}

/// A text of at most so many bytes.
fn read(path: &Path, most: usize) -> Result<String> {
    let what = || format!("{} cannot be read", path.display());
    let mut text = String::new();
    File::open(path).with_context(what)?.take(most as u64 + 1).read_to_string(&mut text).with_context(what)?;
    ensure!(text.len() <= most, "{}: the text is too long; expected at most {most} bytes", path.display());
    Ok(text)
}

/// Buffers of which some bytes were never written, with their number.
type Unwritten = [(String, usize)];

fn print(out: &mut impl Write, report: &Report, unwritten: &Unwritten) -> Result<()> {
    for finding in &report.findings {
        writeln!(out, "{finding}")?;
    }
    if report.dropped > 0 {
        writeln!(out, "and {} findings more", report.dropped)?;
    }
    let Metrics { issued, lanes, scalar_flops, tensor_flops, global_read, global_written, barriers, phases, .. } =
        report.metrics;
    writeln!(out, "instructions     {issued} of warps, {lanes} of threads")?;
    writeln!(out, "FLOPs            {scalar_flops} scalar, {tensor_flops} of tensor cores")?;
    writeln!(out, "global memory    {global_read} bytes read, {global_written} written")?;
    writeln!(out, "barriers         {barriers} of blocks, {phases} phases of mbarriers")?;
    let wasteful = report.metrics.sites.iter().filter(|site| site.transactions > site.least);
    for site in wasteful {
        let (what, place) = (transactions(site.memory), &site.place);
        writeln!(
            out,
            "{place}: {}: {:.2} {what} a request, {:.2} would do, {} at worst",
            site.instruction,
            site.degree(),
            site.least as f64 / site.requests.max(1) as f64,
            site.worst
        )?;
    }
    for (name, bytes) in unwritten {
        writeln!(out, "{name}: {bytes} bytes were never written; the file has ones there")?;
    }
    match report.findings.len() {
        0 => writeln!(out, "clean")?,
        count => writeln!(out, "{count} findings")?,
    }
    Ok(())
}

fn transactions(memory: SiteMemory) -> &'static str {
    match memory {
        SiteMemory::Global => "sectors",
        SiteMemory::Shared => "wavefronts",
    }
}

fn as_json(report: &Report, unwritten: &Unwritten) -> Value {
    let metrics = &report.metrics;
    let finding = |finding: &Finding| {
        json!({
            "kind": finding.kind.name(),
            "kernel": finding.kernel,
            "line": finding.place.line,
            "source": finding.place.source.as_ref().map(|(file, line)| format!("{file}:{line}")),
            "instruction": finding.instruction,
            "block": finding.block,
            "thread": finding.thread,
            "address": finding.address,
            "message": finding.message,
            "times": finding.times,
        })
    };
    let sites = metrics.sites.iter().map(|site| {
        json!({
            "line": site.place.line,
            "source": site.place.source.as_ref().map(|(file, line)| format!("{file}:{line}")),
            "instruction": site.instruction,
            "memory": match site.memory { SiteMemory::Global => "global", SiteMemory::Shared => "shared" },
            "requests": site.requests,
            "transactions": site.transactions,
            "least": site.least,
            "worst": site.worst,
        })
    });
    json!({
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "findings_dropped": report.dropped,
        "metrics": {
            "instructions": metrics.instructions,
            "warp_instructions": metrics.issued,
            "thread_instructions": metrics.lanes,
            "scalar_flops": metrics.scalar_flops,
            "tensor_flops": metrics.tensor_flops,
            "global_bytes_read": metrics.global_read,
            "global_bytes_written": metrics.global_written,
            "barriers": metrics.barriers,
            "mbarrier_phases": metrics.phases,
            "sites": sites.collect::<Vec<_>>(),
        },
        "unwritten_bytes": unwritten.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
    })
}
