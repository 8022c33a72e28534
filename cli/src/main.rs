//! `albert`: from raw text to a trained ALBERT, in one program.
//!
//! This crate knows people: arguments, progress, reports and messages. What it does is done by the library `albert`.
//! An error is one sentence on standard error and exit code 1; wrong usage is exit code 2 (clap); an interrupted run
//! that was saved cleanly ends with 130.
#![forbid(unsafe_code)]

mod commands;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// ALBERT from scratch: train a vocabulary, build data, pre-train, inspect and use the model.
#[derive(Debug, Parser)]
#[command(name = "albert", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a vocabulary; turn text into ids and back
    #[command(subcommand)]
    Tokenizer(commands::tokenizer::Command),
    /// Turn a corpus into shards; look into them
    #[command(subcommand)]
    Data(commands::data::Command),
    /// What this machine is and what of it will be used
    Doctor(commands::doctor::Arguments),
    /// Parameters, FLOPs and memory of a configuration
    Info(commands::info::Arguments),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Tokenizer(command) => commands::tokenizer::run(&command),
        Command::Data(command) => commands::data::run(&command),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Info(arguments) => commands::info::run(&arguments),
    };
    match result {
        Ok(code) => code,
        // A reader that went away (`albert ... | head`) is no error of ours.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}
