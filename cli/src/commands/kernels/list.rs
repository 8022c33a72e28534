//! `albert kernels list`: registers and architectures of every CUDA kernel, spills, and an example for kernels selected by name.
//!
//! The example is the smallest case that launches the kernel. The simulator counts its FLOPs and the bytes of global memory
//! that are read or written, each byte once: half a minute for all kernels.

use super::{architecture, programs};
use crate::{
    output::{results, tell},
    progress::Progress,
};
use anyhow::{Context, Result, bail};
use clap::Args;
use kernels_cuda::program::{Name, Program};
use kernels_proof::{OPERATIONS, operation::Operation, simulated};
use ptx::Sm;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};
use tempfile::TempDir;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only kernels for sm_80 or sm_90a
    #[arg(long)]
    arch: Option<String>,
    /// Only kernels whose name contains this text, with sizes, FLOPs and bytes of an example on the simulated GPU
    filter: Option<String>,
    /// Assemble each kernel with this ptxas and print its registers and spills
    #[arg(long)]
    ptxas: Option<PathBuf>,
}

/// Report of ptxas on a kernel.
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
        bail!("no kernel matches; `albert kernels list` without a filter prints all");
    }
    let assembler = arguments.ptxas.as_deref().map(Assembler::new).transpose()?;
    let examples = arguments.filter.is_some().then(|| examples(&programs)).transpose()?;
    let mut headings = vec!["kernel", "architectures", "registers"];
    headings.extend(assembler.is_some().then_some("spilled"));
    headings.extend(examples.iter().flat_map(|_| ["example", "FLOPs", "bytes"]));
    let mut rows: Vec<Vec<String>> = vec![headings.into_iter().map(str::to_owned).collect()];
    let mut progress = Progress::idle();
    if assembler.is_some() {
        progress = Progress::new("kernel", 0, programs.len() as u64);
    }
    for (done, program) in programs.iter().enumerate() {
        let mut row = vec![program.name.to_string(), program.sm.runs_on().join(" ")];
        match &assembler {
            None => row.push(format!("<= {}", program.registers)),
            Some(assembler) => {
                progress.step(done as u64, program.name.as_str());
                let Assembled { registers, spilled_bytes } = assembler.assemble(program)?;
                row.extend([format!("{registers}/{}", program.registers), spilled_bytes.to_string()]);
            }
        }
        if let Some(examples) = &examples {
            let example = examples.get(&program.name);
            row.extend(example.with_context(|| format!("{} is launched by no case", program.name))?.clone());
        }
        rows.push(row);
    }
    progress.finish();
    print(&mut results(), &rows)?;
    tell!("{} kernels", programs.len());
    Ok(ExitCode::SUCCESS)
}

/// Prints a table; text is left-aligned, numbers are right-aligned.
fn print(out: &mut impl Write, rows: &[Vec<String>]) -> Result<()> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    for row in rows {
        let cells = rows[0].iter().zip(row).zip(&widths).map(|((heading, cell), &width)| match heading.as_str() {
            "kernel" | "architectures" | "example" => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// Sizes, FLOPs and bytes of the smallest case that launches each program, from the simulator.
fn examples(programs: &[Program]) -> Result<BTreeMap<Name, [String; 3]>> {
    let wanted: BTreeSet<&Name> = programs.iter().map(|program| &program.name).collect();
    let mut all = BTreeMap::new();
    let are_wanted =
        |operation: &Operation, sm| (operation.ptx)(sm).iter().any(|program| wanted.contains(&program.name));
    let rows = OPERATIONS.iter().flat_map(|operation| Sm::ALL.map(|sm| (operation, sm)));
    let rows: Vec<_> = rows.filter(|&(operation, sm)| are_wanted(operation, sm)).collect();
    let mut progress = Progress::new("operation", 0, rows.len() as u64);
    for (done, (operation, sm)) in rows.into_iter().enumerate() {
        progress.step(done as u64, &format!("simulating {} for {}", operation.name, sm.target()));
        let found = simulated::examples(operation, sm, |name| wanted.contains(name));
        for (name, (case, launched)) in found.map_err(anyhow::Error::msg)? {
            let shape: Vec<String> = case.dims.iter().map(|(letter, size)| format!("{letter}={size}")).collect();
            let flops = launched.metrics.scalar_flops + launched.metrics.tensor_flops;
            let bytes = launched.touched.read + launched.touched.written;
            all.insert(name, [shape.join(" "), flops.to_string(), bytes.to_string()]);
        }
    }
    progress.finish();
    Ok(all)
}

/// The ptxas program and its temporary folder.
struct Assembler<'p> {
    ptxas: &'p Path,
    scratch: TempDir,
}

impl<'p> Assembler<'p> {
    fn new(ptxas: &'p Path) -> Result<Self> {
        // A new folder with an unpredictable name, private to this user, so that no planted link is followed.
        let scratch = tempfile::Builder::new().prefix("albert-kernels-").tempdir();
        let scratch = scratch.context("cannot create a temporary folder; set TMPDIR to a writable folder")?;
        Ok(Self { ptxas, scratch })
    }

    /// Assembles a kernel for the oldest architecture that it supports.
    fn assemble(&self, program: &Program) -> Result<Assembled> {
        let [source, object] = ["kernel.ptx", "kernel.cubin"].map(|name| self.scratch.path().join(name));
        std::fs::write(&source, &program.text).with_context(|| source.display().to_string())?;
        let architecture = match program.sm {
            Sm::Sm80 => "sm_80",
            other => other.target(),
        };
        let ptxas = self.ptxas.display();
        let run = Command::new(self.ptxas)
            .args(["--verbose", "--gpu-name", architecture, "--output-file"])
            .args([&object, &source])
            .output()
            .with_context(|| format!("cannot run {ptxas}; --ptxas names the program"))?;
        let log = String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned();
        if !run.status.success() {
            bail!("{ptxas} rejects {}: {}", program.name, log.trim());
        }
        let number_before = |what: &str| {
            let at = log.find(what)?;
            log[..at].split_whitespace().last()?.parse().ok()
        };
        let (Some(registers), Some(spilled_bytes)) =
            (number_before(" registers"), number_before(" bytes spill stores"))
        else {
            bail!("{ptxas} reports no registers or spills of {}: {}", program.name, log.trim());
        };
        Ok(Assembled { registers, spilled_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::print;

    #[test]
    fn columns_begin_at_the_same_place_in_every_row() {
        let row = |name: &str, example: &str, flops: &str| {
            [name, "sm_80 sm_90a", "<= 32", example, flops, "96"].map(str::to_owned).to_vec()
        };
        let rows = [
            ["kernel", "architectures", "registers", "example", "FLOPs", "bytes"].map(str::to_owned).to_vec(),
            row(&"k".repeat(80), &"T=3 ".repeat(12), "0"),
            row("b", "", "12345678901234"),
        ];
        let mut text = Vec::new();
        print(&mut text, &rows).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let begins: Vec<_> = lines[1..].iter().map(|line| (line.find("sm_80"), line.find("<= 32"))).collect();
        assert_eq!(begins, [(Some(82), Some(101)); 2], "{text}");
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{text}");
    }
}
