//! `albert kernels`: the CUDA kernels as PTX, drawings of layouts, and a simulated GPU that runs any PTX.
//!
//! This is the only command that uses the crates `kernels` and `ptx` directly.

mod draw;
mod launch;
mod list;
mod simulate;

use crate::output::results;
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use kernels_cuda::program::Program;
use kernels_proof::OPERATIONS;
use ptx::Sm;
use std::{io::Write, process::ExitCode, thread};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Draw a tile, fragment, swizzle, packing or pipeline as SVG
    Draw(draw::Arguments),
    /// List the CUDA kernels; with a part of a name, also the FLOPs and bytes of an example
    List(list::Arguments),
    /// Print the PTX of a kernel
    Ptx(PtxArguments),
    /// Run any PTX file on a simulated GPU: values, races, bank conflicts
    Simulate(simulate::Arguments),
}

#[derive(Debug, Args)]
pub(crate) struct PtxArguments {
    /// Kernel name as printed by `albert kernels list`, or a prefix of exactly one name
    name: String,
    /// Architecture: sm_80 or sm_90a [default: that of the name, or the first that has the kernel]
    #[arg(long)]
    arch: Option<String>,
    /// Include the lines of the Rust source (.loc), as passed to the driver
    #[arg(long)]
    lines: bool,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Draw(arguments) => draw::run(arguments),
        Command::List(arguments) => list::run(arguments),
        Command::Ptx(arguments) => ptx(arguments),
        Command::Simulate(arguments) => Ok(simulate::run(arguments)),
    }
}

/// All programs for one architecture or for all.
fn programs(only: Option<Sm>) -> Vec<Program> {
    let of = |sm: Sm| OPERATIONS.iter().flat_map(move |operation| (operation.ptx)(sm)).collect();
    thread::scope(|scope| {
        let wanted = Sm::ALL.into_iter().filter(|sm| only.is_none_or(|only| only == *sm));
        let running: Vec<_> = wanted.map(|sm| scope.spawn(move || -> Vec<Program> { of(sm) })).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("every kernel can be emitted")).collect()
    })
}

fn architecture(name: &str) -> Result<Sm> {
    let found = Sm::ALL.into_iter().find(|sm| sm.target() == name || sm.name() == name);
    let known: Vec<&str> = Sm::ALL.iter().map(|sm| sm.target()).collect();
    found.ok_or_else(|| anyhow::anyhow!("no kernels for architecture `{name}`; expected {}", known.join(" or ")))
}

fn ptx(arguments: &PtxArguments) -> Result<ExitCode> {
    let only = arguments.arch.as_deref().map(architecture).transpose()?;
    let all = programs(only);
    let exact = all.iter().find(|program| program.name.as_str() == arguments.name);
    let begins: Vec<&Program> =
        all.iter().filter(|program| program.name.as_str().starts_with(&arguments.name)).collect();
    let program = match (exact, &begins[..]) {
        (Some(program), _) => program,
        (None, [program]) => program,
        (None, []) => bail!("no kernel name starts with `{}`; `albert kernels list` prints all", arguments.name),
        (None, several) => {
            let names: Vec<&str> = several.iter().take(12).map(|program| program.name.as_str()).collect();
            let more = if several.len() > names.len() { "\n  ..." } else { "" };
            bail!(
                "{} kernel names start with `{}`; expected one of:\n  {}{more}",
                several.len(),
                arguments.name,
                names.join("\n  ")
            )
        }
    };
    let text = if arguments.lines { program.text.clone() } else { program.listing() };
    write!(results(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}
