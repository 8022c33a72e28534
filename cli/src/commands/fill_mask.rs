//! `albert fill-mask`: predictions of a model for the `[MASK]`s in a text.

use super::Precision;
use crate::{numbers::whole, output::results, roofline::Profiling};
use albert::fill_mask::{Candidate, MaskFiller};
use anyhow::Result;
use clap::Args;
use engine::Device;
use std::{io::Write, path::PathBuf, process::ExitCode};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Texts that contain [MASK]
    #[arg(required = true)]
    text: Vec<String>,
    /// Model folder: config.json, model.safetensors, tokenizer.json
    #[arg(long)]
    model: PathBuf,
    /// Candidates per mask
    #[arg(long, default_value_t = 5, value_parser = whole::<1, usize>)]
    top: usize,
    /// f32, bf16, bf16x3, bf16x6, int8 or auto: bf16 if this machine multiplies it faster than f32
    #[arg(long, default_value = "f32")]
    precision: Precision,
    #[command(flatten)]
    profile: Profiling,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let device = Device::cpu()?;
    let mut filler = MaskFiller::load(&arguments.model, device.clone())?;
    filler.set_precision(arguments.precision.on(&device))?;
    filler.profile().set(arguments.profile.on);
    let mut out = results();
    for text in &arguments.text {
        print(&mut out, text, &filler.fill(text, arguments.top)?)?;
    }
    arguments.profile.print(filler.profile(), &device);
    Ok(ExitCode::SUCCESS)
}

/// Prints the text and one line per mask.
pub(crate) fn print(out: &mut impl Write, text: &str, masks: &[Vec<Candidate>]) -> Result<()> {
    writeln!(out, "{text}")?;
    for candidates in masks {
        writeln!(out, "    {}", line(candidates))?;
    }
    Ok(())
}

/// The candidates of a mask.
pub(super) fn line(candidates: &[Candidate]) -> String {
    let word = |c: &Candidate| format!("{} {:.1} %", c.piece.trim_start_matches('▁'), 100.0 * c.probability);
    candidates.iter().map(word).collect::<Vec<_>>().join("   ")
}
