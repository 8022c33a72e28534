//! `albert forward`: writes the tensors of a model for given ids to one file, for comparison with another implementation.

use crate::{
    input::{Kind, Lines, name_of},
    output::{check_ending, results, tell},
    running::Running,
};
use albert::{
    forward::{Deviation, Example, Forward, NamedTensor, OutputSelection, deviations},
    tokenizer::Tokenizer,
};
use anyhow::{Context, Result, bail};
use clap::Args;
use engine::{
    Precision,
    io::{Data, TensorOut, check_output, save_safetensors},
};
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert forward --model runs/model --text \"the river\" --layers -o hidden.safetensors
  albert forward --model runs/model --ids batch.jsonl --loss --gradients -o gradients.safetensors
  echo '{\"input_ids\": [2, 7, 3]}' | albert forward --model runs/model --ids - -o hidden.safetensors")]
pub(crate) struct Arguments {
    /// Model folder: config.json and model.safetensors
    #[arg(long)]
    model: PathBuf,
    /// Text to run; may be repeated. Requires the folder's tokenizer
    #[arg(long, required_unless_present = "ids", conflicts_with = "ids")]
    text: Vec<String>,
    /// File of JSON lines (- is standard input; .gz and .zst are read): input_ids and optionally attention_mask,
    /// token_type_ids, labels, sentence_order_label, start_positions, end_positions; a list of lists contains the choices
    /// of one question
    #[arg(long)]
    ids: Option<PathBuf>,
    /// Output file of tensors {line}.hidden.{k}, {line}.pooled, {line}.logits, ..., lines (or texts) counted from 0, including blank ones
    #[arg(short, long)]
    output: PathBuf,
    /// Write all hidden states instead of the last one; 0 is the encoder's input
    #[arg(long)]
    layers: bool,
    /// Write the attention probabilities of every block
    #[arg(long)]
    attention: bool,
    /// Require labels on every line (with labels, the loss is always written)
    #[arg(long)]
    loss: bool,
    /// Write the gradients of the sum of the losses, as grad.NAME
    #[arg(long)]
    gradients: bool,
    #[command(flatten)]
    running: Running,
    /// Print the names and shapes of the tensors as JSON, one object per line
    #[arg(long)]
    json: bool,
    /// Also run in f32 and print the deviation of each tensor
    #[arg(long)]
    compare: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    check_ending(&arguments.output, &["safetensors"])?;
    check_output(&arguments.output)?;
    let device = arguments.running.device()?;
    let precision = arguments.running.precision(&device)?;
    if arguments.gradients && matches!(precision, Precision::Int8 | Precision::Bf16Weights) {
        bail!("--gradients: neither --precision int8 nor --weights bf16 has a backward pass; choose f32");
    }
    let mut forward = Forward::load(&arguments.model, device.clone())?;
    forward.profile().set(arguments.running.profile.on);
    report(&forward);
    let examples = match &arguments.ids {
        Some(path) => from_lines(path, &forward)?,
        None => from_texts(arguments, &forward)?,
    };
    let selection = OutputSelection {
        layers: arguments.layers,
        attention: arguments.attention,
        loss: arguments.loss,
        gradients: arguments.gradients,
    };
    forward.set_precision(precision)?;
    let mut all = run_all(&mut forward, &examples, selection)?;
    if arguments.gradients {
        all.extend(forward.gradients()?);
    }
    arguments.running.profile.print(forward.profile(), &device);
    save(&arguments.output, &all)?;
    if arguments.json {
        let mut out = results();
        for tensor in &all {
            writeln!(out, "{}", serde_json::json!({ "name": tensor.name, "shape": tensor.shape }))?;
        }
    }
    if arguments.compare {
        compare(&mut forward, &examples, selection, &all)?;
    }
    tell!("{} tensors of {} lines written to {}", all.len(), examples.len(), arguments.output.display());
    Ok(ExitCode::SUCCESS)
}

/// An example and its line, counted from 0.
type Numbered = (usize, Example);

/// Runs every line.
fn run_all(forward: &mut Forward, examples: &[Numbered], selection: OutputSelection) -> Result<Vec<NamedTensor>> {
    let mut all = Vec::new();
    for (line, example) in examples {
        let tensors = forward.run(example, selection).with_context(|| format!("line {}", line + 1))?;
        let named = |tensor: NamedTensor| NamedTensor { name: format!("{line}.{}", tensor.name), ..tensor };
        all.extend(tensors.into_iter().map(named));
    }
    Ok(all)
}

/// Prints the deviation of `tensors` from f32, the largest of all lines for each kind.
fn compare(
    forward: &mut Forward,
    examples: &[Numbered],
    selection: OutputSelection,
    tensors: &[NamedTensor],
) -> Result<()> {
    forward.set_precision(Precision::F32)?;
    let reference = run_all(forward, examples, OutputSelection { gradients: false, ..selection })?;
    let mut worst: Vec<Deviation> = Vec::new();
    for deviation in deviations(tensors, &reference) {
        let (_, kind) = deviation.name.split_once('.').expect("names begin with the line");
        let deviation = Deviation { name: kind.to_owned(), ..deviation.clone() };
        match worst.iter_mut().find(|known| known.name == deviation.name) {
            Some(known) => {
                known.greatest = known.greatest.max(deviation.greatest);
                known.relative = known.relative.max(deviation.relative);
                known.cosine = known.cosine.min(deviation.cosine);
            }
            None => worst.push(deviation),
        }
    }
    let mut out = results();
    writeln!(out, "{:<24}{:>14}{:>14}{:>12}", "against f32", "max |diff|", "relative", "cosine")?;
    for Deviation { name, greatest, relative, cosine } in worst {
        writeln!(out, "{name:<24}{greatest:>14.3e}{relative:>14.3e}{cosine:>12.6}")?;
    }
    Ok(())
}

/// Prints the loaded tensors and the unused ones.
fn report(forward: &Forward) {
    let report = forward.report();
    tell!("{} tensors loaded", report.loaded.len());
    if !report.ignored.is_empty() {
        tell!("ignored (not used by the model): {}", report.ignored.join(", "));
    }
}

fn from_lines(path: &Path, forward: &Forward) -> Result<Vec<Numbered>> {
    let (mut lines, mut examples) = (Lines::open(path, Kind::Objects)?, Vec::new());
    let config = forward.model().config();
    loop {
        let batch = lines.strict(usize::MAX)?;
        if batch.is_empty() {
            break;
        }
        for line in batch.iter().filter(|line| !line.text.trim().is_empty()) {
            let example = Example::from_json(&line.text, config).with_context(|| lines.place(line))?;
            examples.push((line.number as usize - 1, example));
        }
    }
    if examples.is_empty() {
        bail!("{}: the file has no lines", name_of(path));
    }
    Ok(examples)
}

fn from_texts(arguments: &Arguments, forward: &Forward) -> Result<Vec<Numbered>> {
    let tokenizer = Tokenizer::load(forward.folder())?;
    let config = forward.model().config();
    tokenizer.expect_vocab_size(config.vocab_size)?;
    let of = |(at, text): (usize, &String)| {
        let ids = tokenizer.frame().one(&tokenizer.encode_with_specials(text)?.ids);
        let example = Example::from_ids(&ids, &vec![0; ids.len()], config);
        Ok((at, example.with_context(|| format!("the text \"{text}\""))?))
    };
    arguments.text.iter().enumerate().map(of).collect()
}

fn save(path: &Path, tensors: &[NamedTensor]) -> Result<()> {
    let out: Vec<TensorOut<'_>> = tensors
        .iter()
        .map(|tensor| TensorOut {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            data: Data::F32(&tensor.values),
        })
        .collect();
    Ok(save_safetensors(path, &out, &[("format", "pt")])?)
}
