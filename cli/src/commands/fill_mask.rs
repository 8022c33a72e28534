//! `albert fill-mask`: predictions of a model for the `[MASK]`s in texts.

use crate::{
    input::{Batches, Entries, Entry, Errors, Kind, answer, null_entry, null_text},
    numbers::whole,
    running::{Field, Running, Streaming},
};
use albert::{
    fill_mask::{Candidate, MaskFiller},
    loaded::InferenceError,
};
use anyhow::{Result, ensure};
use clap::Args;
use serde_json::{Map, Value, json};
use std::{cell::RefCell, fmt::Write as _, path::PathBuf, process::ExitCode};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert fill-mask --model runs/model \"the [MASK] of the river\"
  albert fill-mask --model runs/model --input texts.txt --json --with-input -o filled.jsonl")]
pub(crate) struct Arguments {
    /// Texts that contain [MASK]; - reads lines of standard input
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
    #[command(flatten)]
    field: Field,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let results = &arguments.streaming.results;
    let mut out = results.sink()?;
    let only = if let [only] = &arguments.text[..] { Some(only.as_str()) } else { None };
    let lines = arguments.streaming.lines(only, Kind::texts(arguments.field.field.as_ref(), false))?;
    let device = arguments.running.device()?;
    let mut filler = MaskFiller::load(&arguments.model, device.clone())?;
    filler.set_precision(arguments.running.precision(&device)?)?;
    filler.profile().set(arguments.running.profile.on);
    let (mut ended, filler) = (None, RefCell::new(filler));
    if let Some(mut lines) = lines {
        let mut errors = Errors::new(arguments.streaming.faults, false);
        let filler = &filler;
        // One text at a time: in a batch, each text would wait for all.
        let run = |texts: &[String]| {
            let begun = filler.borrow_mut().fill_later(&texts[0], arguments.top);
            Ok(move || match begun.and_then(|later| later(&filler.borrow())) {
                Err(InferenceError::Input(problem)) => Ok(vec![Err(problem)]),
                filled => Ok(vec![Ok(filled?)]),
            })
        };
        let write = |entries: Entries<String, Vec<Vec<Candidate>>>| {
            let entry = |(line, result): Entry<String, Vec<Vec<Candidate>>>| match result {
                Ok((text, masks)) => of_text(arguments, &text, &masks),
                Err(reason) if results.json() => {
                    let mut entry = Map::new();
                    entry.insert("text".into(), json!(line.text));
                    entry.extend(null_entry("masks", line.number, &reason));
                    format!("{}\n", Value::Object(entry))
                }
                Err(reason) => format!("{}\n", null_text(line.number, &reason)),
            };
            out.put(&entries.into_iter().map(entry).collect::<String>())
        };
        let one = Batches::on(&device, Some(1));
        let (total, stopped) = answer(&mut lines, one, &mut errors, |line| Ok(line.text.clone()), run, write)?;
        errors.tell(total);
        ended = stopped;
    } else {
        ensure!(!arguments.text.iter().any(|text| text == "-"), "-: standard input cannot be combined with texts");
        for text in &arguments.text {
            let masks = filler.borrow_mut().fill(text, arguments.top)?;
            out.put(&of_text(arguments, text, &masks))?;
        }
    }
    arguments.running.profile.print(filler.borrow().profile(), &device);
    out.finish()?;
    ended.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Entry of a text.
fn of_text(arguments: &Arguments, text: &str, masks: &[Vec<Candidate>]) -> String {
    if !arguments.streaming.results.json() {
        return filled(text, masks);
    }
    let of_mask = |candidates: &Vec<Candidate>| -> Value {
        let one = |c: &Candidate| json!({ "token": c.piece, "probability": c.probability });
        candidates.iter().map(one).collect()
    };
    let mut line = Map::new();
    line.insert("text".into(), json!(text));
    line.insert("masks".into(), masks.iter().map(of_mask).collect());
    format!("{}\n", Value::Object(line))
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
