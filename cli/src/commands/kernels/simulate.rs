//! `albert kernels simulate`: one launch of any PTX on the simulated GPU.

use super::launch::{Description, Prepared};
use crate::output::{self, results_beside_files};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use ptx::sim::{
    self, Approximation, Completion, Fidelity, Finding, Limits, Metrics, Module, Options, Place, Reach, Report,
    Schedule, SiteMemory,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Order {
    /// One instruction of each warp in turn
    RoundRobin,
    /// Random warps, a few instructions each
    Random,
    /// One warp runs until it blocks before another runs
    Adversarial,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Ending {
    /// As late as the memory model allows
    Latest,
    /// Immediately
    Earliest,
    /// At a random time in between
    Random,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rounding {
    /// Results of a Hopper GPU if they are known, otherwise correctly rounded ones
    Device,
    /// Largest results within the documented error
    High,
    /// Smallest results within the documented error
    Low,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Agreement {
    /// Count the instructions by agreement with the device
    Count,
    /// Also reject a launch that ran instructions without the bits of the device
    Exact,
}

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// PTX file, from our assembler, nvcc, Triton or by hand
    file: PathBuf,
    /// Launch description as JSON: entry, grid, block, shared_bytes, args, outputs (docs/simulator.md)
    #[arg(long)]
    launch: PathBuf,
    /// Order in which warps run
    #[arg(long, value_enum, default_value = "round-robin")]
    schedule: Order,
    /// Completion time of asynchronous operations
    #[arg(long, value_enum, default_value = "latest")]
    completion: Ending,
    /// Seed of random orders
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Results of approximate instructions
    #[arg(long, value_enum, default_value = "device")]
    approximation: Rounding,
    /// Agreement of the instructions' results with the bits of an H200
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "count", conflicts_with = "approximation")]
    fidelity: Option<Agreement>,
    /// Do not require a fence between the initialization of an mbarrier and its first asynchronous use (Triton omits it)
    #[arg(long)]
    ignore_init_fence: bool,
    /// Do not require a fence between cp.async and the wgmma or bulk copy that reads its bytes (Triton omits it)
    #[arg(long)]
    ignore_copy_fence: bool,
    /// Assume that lanes of a warp that execute an instruction together are ordered by it, like code for GPUs before
    /// Volta; PTX does not guarantee it
    #[arg(long)]
    assume_convergence: bool,
    /// Print findings and metrics as JSON
    #[arg(long)]
    json: bool,
}

/// Exit codes: no findings, findings, kernel not run.
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
        .with_context(|| format!("{}: not a launch", arguments.launch.display()))?;
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
            Rounding::Device => Approximation::Device,
            Rounding::High => Approximation::High,
            Rounding::Low => Approximation::Low,
        },
        init_fence: !arguments.ignore_init_fence,
        copy_fence: !arguments.ignore_copy_fence,
        assume_convergence: arguments.assume_convergence,
        ..Options::default()
    };
    let report = module
        .launch(&description.entry, description.launch(), &prepared.arguments, &mut prepared.memory, &options)
        .with_context(|| arguments.file.display().to_string())?;
    let agreement = arguments.fidelity.map(|_| Agreed::of(&report.metrics, &module, &description.entry)).transpose()?;
    if let Some(agreed) = agreement.as_ref().filter(|_| arguments.fidelity == Some(Agreement::Exact)) {
        agreed.expect_exact(&module.target).with_context(|| arguments.file.display().to_string())?;
    }
    let unwritten = prepared.save(&description, folder)?;
    // The exit code reports findings even if standard output is closed.
    let mut out = results_beside_files();
    if arguments.json {
        let mut value = as_json(&report, &unwritten);
        if let Some(agreed) = agreement {
            value["fidelity"] = agreed.as_json();
        }
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
    } else {
        if let Some(agreed) = agreement {
            agreed.print(&mut out)?;
        }
        print(&mut out, &report, &unwritten)?;
    }
    Ok(report)
}

/// Number of instructions of threads by agreement with the device.
struct Agreed {
    exact: u64,
    /// Instructions whose results may have other bits: name, "unrecorded" or "approximate", times.
    others: Vec<(String, &'static str, u64)>,
    /// "branch", "address" and "output", each with the first place that such results may reach.
    reach: [(&'static str, Option<Place>); 3],
}

impl Agreed {
    fn of(metrics: &Metrics, module: &Module, entry: &str) -> Result<Self> {
        let Reach { branch, address, output } = module.reach(entry)?;
        let reach = [("branch", branch), ("address", address), ("output", output)];
        let mut agreed = Self { exact: 0, others: Vec::new(), reach };
        for (name, &times) in metrics.instructions.iter().filter(|(_, times)| **times > 0) {
            match sim::fidelity(name, &module.target) {
                Fidelity::Exact => agreed.exact += times,
                Fidelity::Unrecorded => agreed.others.push((name.clone(), "unrecorded", times)),
                Fidelity::Approximate => agreed.others.push((name.clone(), "approximate", times)),
            }
        }
        Ok(agreed)
    }

    fn expect_exact(&self, target: &str) -> Result<()> {
        match self.others.first() {
            None => Ok(()),
            Some((name, what, times)) => bail!(
                "`{name}` is {what} on {target} and ran {times} times; --fidelity exact allows instructions with the bits of the device only"
            ),
        }
    }

    fn as_json(&self) -> Value {
        let places = self.reach.iter().map(|(what, place)| (*what, place.as_ref().map(Place::to_string)));
        let reach: BTreeMap<&str, Option<String>> = places.collect();
        json!({ "exact": self.exact, "others": self.others, "reach": reach })
    }

    fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "fidelity         {} instructions of threads exact", self.exact)?;
        for (name, what, times) in &self.others {
            writeln!(out, "                 {times} {what}: {name}")?;
        }
        for (what, place) in &self.reach {
            match place {
                Some(place) => writeln!(out, "                 may change the {what} at {place}")?,
                None => writeln!(out, "                 cannot change any {what}")?,
            }
        }
        Ok(())
    }
}

/// Reads a text of at most `most` bytes.
fn read(path: &Path, most: usize) -> Result<String> {
    let what = || format!("{} cannot be read", path.display());
    let mut text = String::new();
    File::open(path).with_context(what)?.take(most as u64 + 1).read_to_string(&mut text).with_context(what)?;
    ensure!(text.len() <= most, "{}: the text is too long; expected at most {most} bytes", path.display());
    Ok(text)
}

/// Buffers with bytes that were never written, with the number of these bytes.
type Unwritten = [(String, usize)];

fn print(out: &mut impl Write, report: &Report, unwritten: &Unwritten) -> Result<()> {
    for finding in &report.findings {
        writeln!(out, "{finding}")?;
    }
    if report.dropped > 0 {
        writeln!(out, "and {} more findings", report.dropped)?;
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
            "{place}: {}: {:.2} {what} per request, {:.2} needed, {} at worst",
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
            "text": finding.text,
            "block": finding.block,
            "thread": finding.thread,
            "address": finding.address,
            "message": finding.message,
            "other": finding.other.as_deref().map(|other| json!({
                "who": other.who,
                "line": other.place.line,
                "source": other.place.source.as_ref().map(|(file, line)| format!("{file}:{line}")),
                "instruction": other.instruction,
                "text": other.text,
            })),
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
