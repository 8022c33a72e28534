//! `albert kernels list`: every CUDA kernel with what it needs and what it costs.
//!
//! The example is the smallest case of the table that launches the kernel; FLOPs and bytes are counted by the simulator
//! while it runs (bytes: those of global memory that are read or written, each once).

use super::{architecture, programs};
use anyhow::{Context, Result, bail};
use clap::Args;
use kernels::{
    OPERATIONS,
    operation::{Name, Operation, Program},
    ptx::Sm,
    simulated,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only kernels for sm_80 or sm_90a
    #[arg(long)]
    arch: Option<String>,
    /// Only kernels whose name holds this
    filter: Option<String>,
    /// Assemble each with this ptxas, and show the registers it takes and what it spills
    #[arg(long)]
    ptxas: Option<PathBuf>,
}

/// What ptxas says of a kernel.
struct Assembled {
    registers: u32,
    spilled_bytes: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let only = arguments.arch.as_deref().map(architecture).transpose()?;
    let wanted =
        |program: &Program| arguments.filter.as_deref().is_none_or(|part| program.name.as_str().contains(part));
    let programs: Vec<Program> = programs(only).into_iter().filter(wanted).collect();
    if programs.is_empty() {
        bail!("no kernel fits; `albert kernels list` has all");
    }
    let examples = examples(&programs)?;
    println!(
        "{:<64} {:>9} {:>7}  {:<24} {:>10} {:>10}  architectures",
        "kernel", "registers", "spilled", "example", "FLOPs", "bytes"
    );
    for program in &programs {
        let (registers, spilled) = match &arguments.ptxas {
            None => (format!("<= {}", program.registers), "-".to_owned()),
            Some(ptxas) => {
                let Assembled { registers, spilled_bytes } = assemble(ptxas, program)?;
                (format!("{registers}/{}", program.registers), spilled_bytes.to_string())
            }
        };
        let [shape, flops, bytes] =
            examples.get(&program.name).with_context(|| format!("{} is launched by no case", program.name))?;
        println!(
            "{:<64} {registers:>9} {spilled:>7}  {shape:<24} {flops:>10} {bytes:>10}  {}",
            program.name,
            program.sm.runs_on().join(" ")
        );
    }
    eprintln!("{} kernels", programs.len());
    Ok(ExitCode::SUCCESS)
}

/// For each program the smallest case that launches it, run in the simulator: its sizes, FLOPs, bytes.
fn examples(programs: &[Program]) -> Result<BTreeMap<Name, [String; 3]>> {
    let wanted: BTreeSet<&Name> = programs.iter().map(|program| &program.name).collect();
    let mut all = BTreeMap::new();
    let are_wanted =
        |operation: &Operation, sm| (operation.ptx)(sm).iter().any(|program| wanted.contains(&program.name));
    let rows = OPERATIONS.iter().flat_map(|operation| Sm::ALL.map(|sm| (operation, sm)));
    for (operation, sm) in rows.filter(|&(operation, sm)| are_wanted(operation, sm)) {
        let found = simulated::examples(operation, sm, |name| wanted.contains(name));
        for (name, (case, launched)) in found.map_err(anyhow::Error::msg)? {
            let shape: Vec<String> = case.dims.iter().map(|(letter, size)| format!("{letter}={size}")).collect();
            let flops = launched.metrics.scalar_flops + launched.metrics.tensor_flops;
            let bytes = launched.touched.read + launched.touched.written;
            all.insert(name, [shape.join(" "), flops.to_string(), bytes.to_string()]);
        }
    }
    Ok(all)
}

/// Assembles a kernel for the first architecture that takes it.
fn assemble(ptxas: &Path, program: &Program) -> Result<Assembled> {
    let folder = std::env::temp_dir().join(format!("albert-kernels-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let (source, object) = (folder.join("kernel.ptx"), folder.join("kernel.cubin"));
    std::fs::write(&source, &program.text).with_context(|| source.display().to_string())?;
    let architecture = match program.sm {
        Sm::Sm80 => "sm_80",
        other => other.target(),
    };
    let run = Command::new(ptxas)
        .args(["--verbose", "--gpu-name", architecture, "--output-file"])
        .args([&object, &source])
        .output()
        .with_context(|| format!("{} cannot be run", ptxas.display()));
    // The folder is only scratch.
    let cleaned = std::fs::remove_dir_all(&folder);
    let run = run?;
    cleaned.with_context(|| folder.display().to_string())?;
    let log = String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned();
    if !run.status.success() {
        bail!("{} refuses {}: {}", ptxas.display(), program.name, log.trim());
    }
    let number_before = |what: &str| {
        let at = log.find(what)?;
        log[..at].split_whitespace().last()?.parse().ok()
    };
    let (Some(registers), Some(spilled_bytes)) = (number_before(" registers"), number_before(" bytes spill stores"))
    else {
        bail!("{} said nothing about registers or spills of {}: {}", ptxas.display(), program.name, log.trim());
    };
    Ok(Assembled { registers, spilled_bytes })
}
