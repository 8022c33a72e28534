//! `albert fill-mask`: predictions of a model for the `[MASK]`s in texts.

use crate::{
    numbers::whole,
    output::Sink,
    running::{Running, Streaming},
};
use albert::fill_mask::{Candidate, MaskFiller};
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Map, Value, json};
use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert fill-mask --model runs/model \"the [MASK] of the river\"
  albert fill-mask --model runs/model --input texts.txt --json --with-input -o filled.jsonl")]
pub(crate) struct Arguments {
    /// Texts that contain [MASK]; - is the lines of standard input
    #[arg(required_unless_present = "input", conflicts_with = "input")]
    text: Vec<String>,
    /// Model folder: config.json, model.safetensors, tokenizer.json
    #[arg(long)]
    model: PathBuf,
    /// Candidates per mask
    #[arg(long, default_value_t = 5, value_parser = whole::<1, usize>)]
    top: usize,
    #[command(flatten)]
    running: Running,
    #[command(flatten)]
    streaming: Streaming,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut out = arguments.streaming.results.sink()?;
    let device = arguments.running.device()?;
    let mut filler = MaskFiller::load(&arguments.model, device.clone())?;
    filler.set_precision(arguments.running.precision.on(&device))?;
    filler.profile().set(arguments.running.profile.on);
    let only = if let [only] = &arguments.text[..] { Some(only.as_str()) } else { None };
    if let Some(mut lines) = arguments.streaming.lines(only)? {
        loop {
            // A text at a time: a batch would make each wait for all.
            let batch = lines.batch(1)?;
            let [line] = &batch[..] else { break };
            let masks = filler.fill(&line.text, arguments.top).with_context(|| lines.place(line))?;
            put(&mut out, arguments, &line.text, &masks)?;
        }
    } else {
        ensure!(!arguments.text.iter().any(|text| text == "-"), "-: standard input is read alone, without other texts");
        for text in &arguments.text {
            let masks = filler.fill(text, arguments.top)?;
            put(&mut out, arguments, text, &masks)?;
        }
    }
    arguments.running.profile.print(filler.profile(), &device);
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn put(out: &mut Sink, arguments: &Arguments, text: &str, masks: &[Vec<Candidate>]) -> Result<()> {
    if !arguments.streaming.results.json {
        return out.put(&filled(text, masks));
    }
    let of_mask = |candidates: &Vec<Candidate>| -> Value {
        let one = |c: &Candidate| json!({ "token": c.piece, "probability": c.probability });
        candidates.iter().map(one).collect()
    };
    let mut line = Map::new();
    line.insert("text".into(), json!(text));
    line.insert("masks".into(), masks.iter().map(of_mask).collect());
    out.put(&format!("{}\n", Value::Object(line)))
}

/// The text and one line per mask.
pub(crate) fn filled(text: &str, masks: &[Vec<Candidate>]) -> String {
    let mut lines = format!("{text}\n");
    for candidates in masks {
        let _ = writeln!(lines, "    {}", line(candidates));
    }
    lines
}

/// The candidates of a mask.
pub(super) fn line(candidates: &[Candidate]) -> String {
    let word = |c: &Candidate| format!("{} {:.1} %", c.piece.trim_start_matches('▁'), 100.0 * c.probability);
    candidates.iter().map(word).collect::<Vec<_>>().join("   ")
}
