//! `albert`: from raw text to a trained ALBERT, in one program.
//!
//! This crate contains arguments, progress, reports and messages; the library `albert` does the work. An error is one
//! sentence on standard error and exit code 1. Wrong usage is exit code 2 (clap). An interrupted run that was saved ends
//! with 130. The module `output` defines the behavior on closed pipes and full devices.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod commands;
mod input;
mod npy;
mod numbers;
mod output;
mod precision;
mod progress;
mod ranks;
mod roofline;
mod running;
mod signals;
mod tracing;

use anyhow::{Result, ensure};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// Ends the program with a message if an allocation fails.
#[global_allocator]
static ALLOCATOR: engine::memory::ProgramAllocator = engine::memory::ProgramAllocator;

/// ALBERT from scratch: train a tokenizer, build data, pre-train, fine-tune, evaluate and run models.
#[derive(Debug, Parser)]
#[command(name = "albert", version, arg_required_else_help = true)]
struct Cli {
    /// Print only results and errors, no messages
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Reject a model folder with unknown keys, instead of listing them in a note
    #[arg(long, global = true)]
    strict: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Pre-train a small model on the text inside this program, in a few minutes
    Quickstart(commands::quickstart::Arguments),
    /// Train a tokenizer; encode and decode text
    #[command(subcommand)]
    Tokenizer(commands::tokenizer::Command),
    /// Build a data set of shards from text; inspect one
    #[command(subcommand)]
    Data(commands::data::Command),
    /// Pre-train a model from a recipe
    Pretrain(commands::pretrain::Arguments),
    /// Recompute steps of a pre-training run, and compare every bit
    Verify(commands::verify_run::Arguments),
    /// Fine-tune a model: GLUE, SQuAD, RACE or custom files
    Finetune(Box<commands::finetune::Arguments>),
    /// Evaluate fine-tuned models on labeled examples
    Evaluate(commands::evaluate::Arguments),
    /// Write the predictions of fine-tuned models for the examples in a file
    Predict(commands::predict::Arguments),
    /// Classify one text or pair with a fine-tuned model
    Classify(commands::classify::Arguments),
    /// Pre-train and fine-tune a set of recipes at equal budgets, into one table
    Ablate(commands::ablate::Arguments),
    /// Find the answer to a question in a text
    Answer(commands::answer::Arguments),
    /// Convert a Google checkpoint or a Hugging Face folder to a Hugging Face folder
    Convert(commands::convert::Arguments),
    /// Fill the [MASK]s in a text
    FillMask(commands::fill_mask::Arguments),
    /// Write hidden states, attention, logits, losses and gradients of a model as tensors, to compare with another program
    Forward(commands::forward::Arguments),
    /// Compute an embedding of each line of text
    Embed(commands::embed::Arguments),
    /// Show one or several runs on a page: metrics, curves, differences of settings
    Report(commands::report::Arguments),
    /// Print parameters, FLOPs and memory of a configuration
    Info(commands::info::Arguments),
    /// List the CUDA kernels, print their PTX, run any PTX on a simulated GPU
    #[command(subcommand)]
    Kernels(commands::kernels::Command),
    /// Benchmark kernels and training steps against the peak of this machine
    Bench(Box<commands::bench::Arguments>),
    /// Measure the time of summing gradients over the ranks of a launcher, compared with the MPI library's own sum
    Exchange(commands::exchange::Arguments),
    /// Print the hardware found and the settings that will be used
    Doctor(commands::doctor::Arguments),
    /// Print the script that completes commands and flags in a shell
    Completions(commands::manual::Completions),
    /// Print a manual page
    Man(commands::manual::Man),
}

/// Builds the whole command line.
fn command() -> clap::Command {
    Cli::command().long_version(commands::manual::long_version())
}

fn main() -> ExitCode {
    output::exit_code(run(), 1)
}

/// Bytes of stack for parsing the command line.
const PARSER_STACK: usize = 2 << 20;

/// Reads the command line.
fn parse() -> Result<Cli, clap::Error> {
    let matches = numbers::negative_numbers_are_values(command()).try_get_matches()?;
    Cli::from_arg_matches(&matches)
}

fn run() -> Result<ExitCode> {
    // They are parsed as text where they are used, and a value that is not UTF-8 would be ignored.
    for (name, value) in std::env::vars_os() {
        let is_ours = name.to_str().is_some_and(|name| name.starts_with("ALBERT_"));
        ensure!(!is_ours || value.to_str().is_some(), "{}: the value is not UTF-8", name.display());
    }
    // The derived builders have frames of 400 KiB with assertions on, and a main thread may have less (`ulimit -s`).
    let parser = std::thread::Builder::new().stack_size(PARSER_STACK).spawn(parse);
    let cli = match parser.map_or_else(|_| parse(), |parser| parser.join().expect("clap does not panic")) {
        Ok(cli) => cli,
        Err(message) => return print_message(&message),
    };
    if cli.quiet {
        output::be_quiet();
    }
    albert::checkpoint::folder_keys::on_remark(match cli.strict {
        true => output::refuse_remark,
        false => output::note_remark,
    });
    let result = match cli.command {
        Command::Quickstart(arguments) => commands::quickstart::run(&arguments),
        Command::Tokenizer(command) => commands::tokenizer::run(&command),
        Command::Data(command) => commands::data::run(&command),
        Command::Pretrain(arguments) => commands::pretrain::run(&arguments),
        Command::Verify(arguments) => commands::verify_run::run(&arguments),
        Command::Finetune(arguments) => commands::finetune::run(&arguments),
        Command::Evaluate(arguments) => commands::evaluate::run(&arguments),
        Command::Predict(arguments) => commands::predict::run(&arguments),
        Command::Classify(arguments) => commands::classify::run(&arguments),
        Command::Ablate(arguments) => commands::ablate::run(&arguments),
        Command::Answer(arguments) => commands::answer::run(&arguments),
        Command::Convert(arguments) => commands::convert::run(&arguments),
        Command::FillMask(arguments) => commands::fill_mask::run(&arguments),
        Command::Forward(arguments) => commands::forward::run(&arguments),
        Command::Embed(arguments) => commands::embed::run(&arguments),
        Command::Report(arguments) => commands::report::run(&arguments),
        Command::Info(arguments) => commands::info::run(&arguments),
        Command::Kernels(command) => commands::kernels::run(&command),
        Command::Bench(arguments) => commands::bench::run(&arguments),
        Command::Exchange(arguments) => commands::exchange::run(&arguments),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Completions(arguments) => commands::manual::completions(&arguments, command()),
        Command::Man(arguments) => commands::manual::man(&arguments, command()),
    };
    let traced = tracing::finish();
    result.and_then(|code| traced.map(|()| code))
}

/// Prints help and version to standard output and wrong usage to standard error, as clap decides.
fn print_message(message: &clap::Error) -> Result<ExitCode> {
    if message.use_stderr() {
        // If standard error is closed, the exit code remains.
        let _ = message.print();
    } else {
        output::results().check(message.print())?;
    }
    Ok(ExitCode::from(message.exit_code().try_into().unwrap_or(u8::MAX)))
}
