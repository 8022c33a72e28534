//! `albert completions`, `albert man` and the long version.

use crate::output::results;
use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;
use std::{io::Write, process::ExitCode};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert completions bash > ~/.local/share/bash-completion/completions/albert
  albert completions zsh > ~/.zfunc/_albert")]
pub(crate) struct Completions {
    /// Shell to complete commands in
    shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert man | man -l -
  albert man data build > albert-data-build.1")]
pub(crate) struct Man {
    /// Command, such as `data build` [default: the program]
    command: Vec<String>,
}

/// Prints the script for a shell.
pub(crate) fn completions(arguments: &Completions, mut command: Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "albert", &mut script);
    results().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the manual page of a command.
pub(crate) fn man(arguments: &Man, mut command: Command) -> Result<ExitCode> {
    command.build();
    let mut name = "albert".to_owned();
    for word in &arguments.command {
        let found = command.find_subcommand(word).cloned();
        command = found.with_context(|| format!("`{name}` has no command `{word}`; see {name} --help"))?;
        name = format!("{name}-{word}");
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command.name(name)).render(&mut page)?;
    results().write_all(&page)?;
    Ok(ExitCode::SUCCESS)
}

/// Version with commit, target, instruction set and features.
pub(crate) fn long_version() -> String {
    let isa = engine::Isa::choose().map_or_else(|error| error.to_string(), |isa| isa.to_string());
    let features = if cfg!(feature = "peers") { "peers" } else { "none" };
    format!(
        "{}\ncommit {}\ntarget {}\ninstruction set {isa}\nfeatures {features}",
        env!("CARGO_PKG_VERSION"),
        env!("ALBERT_COMMIT"),
        env!("ALBERT_TARGET"),
    )
}
