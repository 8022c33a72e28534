//! `albert kernels`: the CUDA kernels as text, and a GPU to run any PTX on without having one.
//!
//! The one command that speaks to the layer of kernels itself: they are its subject.

mod launch;
mod list;
mod simulate;

use crate::{output::results, progress::Progress};
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use kernels::{OPERATIONS, operation::Program};
use ptx::Sm;
use std::{io::Write, process::ExitCode};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// All CUDA kernels: architectures, registers, spills (with ptxas), FLOPs and bytes
    List(list::Arguments),
    /// Print the PTX of a kernel
    Ptx(PtxArguments),
    /// What the kernels of a training step should take on an H200, predicted from the simulator's counts
    Predict,
    /// Run a PTX file, anybody's, on a simulated GPU: values, races, bank conflicts
    Simulate(simulate::Arguments),
}

#[derive(Debug, Args)]
pub(crate) struct PtxArguments {
    /// A name of `albert kernels list`, or its beginning if only one kernel begins so
    name: String,
    /// sm_80 or sm_90a; by default what the name says, or the first that has the kernel
    #[arg(long)]
    arch: Option<String>,
    /// With the lines of the Rust source (.loc), as the driver gets it
    #[arg(long)]
    lines: bool,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::List(arguments) => list::run(arguments),
        Command::Ptx(arguments) => ptx(arguments),
        Command::Predict => {
            let groups = kernels::predicted::GROUPS.len();
            let mut progress = Progress::new("group", 0, groups as u64);
            let predictions = kernels::predicted::predict_all(|done, title| progress.step(done as u64, title));
            progress.finish();
            let predictions = predictions.map_err(anyhow::Error::msg)?;
            write!(results(), "{}", kernels::predicted::report(&predictions))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Simulate(arguments) => Ok(simulate::run(arguments)),
    }
}

/// All programs for one architecture, or for all.
fn programs(only: Option<Sm>) -> Vec<Program> {
    let of = |sm: Sm| OPERATIONS.iter().flat_map(move |operation| (operation.ptx)(sm));
    Sm::ALL.into_iter().filter(|sm| only.is_none_or(|only| only == *sm)).flat_map(of).collect()
}

fn architecture(name: &str) -> Result<Sm> {
    let found = Sm::ALL.into_iter().find(|sm| sm.target() == name || sm.name() == name);
    let known: Vec<&str> = Sm::ALL.iter().map(|sm| sm.target()).collect();
    found.ok_or_else(|| anyhow::anyhow!("no kernels are written for `{name}`; there are {}", known.join(" and ")))
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
    write!(results(), "{}", if arguments.lines { &program.text } else { &program.listing })?;
    Ok(ExitCode::SUCCESS)
}
