//! `albert`: from raw text to a trained ALBERT, in one program.
//!
//! This crate knows people: arguments, progress, reports and messages. What it does is done by the library `albert`.
//! An error is one sentence on standard error and exit code 1; wrong usage is exit code 2 (clap); an interrupted run
//! that was saved cleanly ends with 130.
#![forbid(unsafe_code)]

mod commands;
mod progress;
mod roofline;
mod signals;

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
    /// From the text inside this program to a trained model, its curve and filled masks, in a few minutes
    Quickstart(commands::quickstart::Arguments),
    /// Train a vocabulary; turn text into ids and back
    #[command(subcommand)]
    Tokenizer(commands::tokenizer::Command),
    /// Turn a corpus into shards; look into them
    #[command(subcommand)]
    Data(commands::data::Command),
    /// Pre-train a model from a recipe
    Pretrain(commands::pretrain::Arguments),
    /// Fine-tune a model for a task: GLUE, RACE, or files of your own
    Finetune(Box<commands::finetune::Arguments>),
    /// Measure fine-tuned models on examples with known answers
    Evaluate(commands::evaluate::Arguments),
    /// Write what fine-tuned models say of the examples in a file
    Predict(commands::predict::Arguments),
    /// What a fine-tuned model says of one text or pair
    Classify(commands::classify::Arguments),
    /// Pre-train and fine-tune a set of recipes at equal budgets, into one table
    Ablate(commands::ablate::Arguments),
    /// What fine-tuned models find in a text that answers a question
    Answer(commands::answer::Arguments),
    /// Turn a checkpoint of Google's or a Hugging Face folder into a Hugging Face folder
    Convert(commands::convert::Arguments),
    /// Fill the [MASK]s in a text
    FillMask(commands::fill_mask::Arguments),
    /// Write every tensor that a model computes on given ids
    Forward(commands::forward::Arguments),
    /// One vector for each line of text
    Embed(commands::embed::Arguments),
    /// Parameters, FLOPs and memory of a configuration
    Info(commands::info::Arguments),
    /// The CUDA kernels: their list, their PTX, and a simulated GPU that runs any PTX
    #[command(subcommand)]
    Kernels(commands::kernels::Command),
    /// How fast kernels and steps are, beside the peak of this machine
    Bench(Box<commands::bench::Arguments>),
    /// What this machine is and what of it will be used
    Doctor(commands::doctor::Arguments),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Quickstart(arguments) => commands::quickstart::run(&arguments),
        Command::Tokenizer(command) => commands::tokenizer::run(&command),
        Command::Data(command) => commands::data::run(&command),
        Command::Pretrain(arguments) => commands::pretrain::run(&arguments),
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
        Command::Info(arguments) => commands::info::run(&arguments),
        Command::Kernels(command) => commands::kernels::run(&command),
        Command::Bench(arguments) => commands::bench::run(&arguments),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
    };
    match result {
        Ok(code) => code,
        // A reader that went away (`albert ... | head`) is no error of ours.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", sentence(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error with its causes. Many errors end with the text of their cause; it is not said twice.
fn sentence(error: &anyhow::Error) -> String {
    let mut whole = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !whole.ends_with(&cause) {
            whole = format!("{whole}: {cause}");
        }
    }
    whole
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}
