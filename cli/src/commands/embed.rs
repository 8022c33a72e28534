//! `albert embed`: one vector per line of text.

use crate::{
    input::{Batches, Entries, Entry, Errors, Kind, Line, Lines, answer, null_entry},
    npy,
    output::tell,
    running::{Batch, Field, Running, Streaming},
};
use albert::embed::{Embedder, Pooling, Prompt};
use albert_tasks::finetune::escaped;
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use engine::{
    Device,
    io::{check_output, limits::text::STANDARD_INPUT, write_atomically},
};
use serde_json::{Map, Value, json};
use std::{
    cell::{Cell, RefCell},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Pooling of the tokens of a line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Pool {
    /// Mean of all tokens
    Mean,
    /// First token
    Cls,
    /// The model's pooler, applied to the first token
    Pooler,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert embed --model runs/model texts.txt --output vectors.npy
  albert embed --model all-MiniLM-L6-v2 --similarity texts.txt
  albert embed --model all-MiniLM-L6-v2 --json --with-input texts.txt.gz > vectors.jsonl
  some-script | albert embed --model runs/model - | other-script")]
pub(crate) struct Arguments {
    /// Model folder
    #[arg(long)]
    model: PathBuf,
    /// Pooling of a line's tokens into one vector [default: the folder's, or mean]
    #[arg(long, value_enum)]
    pool: Option<Pool>,
    /// Scale each vector to unit length [default: the folder's setting]
    #[arg(long)]
    normalize: bool,
    /// Print the cosine similarity of each line to the first usable one, instead of the vectors
    #[arg(long)]
    similarity: bool,
    /// Prompt of the model before each line, by name [default: the folder's default_prompt_name]
    #[arg(long, value_name = "NAME", conflicts_with = "prompt_text")]
    prompt: Option<String>,
    /// Text before each line; "" for none
    #[arg(long, value_name = "TEXT")]
    prompt_text: Option<String>,
    #[command(flatten)]
    running: Running,
    #[command(flatten)]
    streaming: Streaming,
    #[command(flatten)]
    field: Field,
    #[command(flatten)]
    batch: Batch,
    /// File of texts, one per line, as --input [default: standard input]
    #[arg(conflicts_with = "input", value_name = "INPUT")]
    file: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    // A NumPy file starts with the number of its rows.
    let results = &arguments.streaming.results;
    let array = results.output.as_deref().filter(|path| path.extension().is_some_and(|ending| ending == "npy"));
    ensure!(!arguments.similarity || array.is_none(), "--similarity prints lines; leave out --output FILE.npy");
    array.map_or(Ok(()), check_output)?;
    let mut out = if array.is_some() { None } else { Some(results.sink()?) };
    let input = arguments.file.as_ref().or(arguments.streaming.input.as_ref());
    let path = input.map_or(Path::new(STANDARD_INPUT), PathBuf::as_path);
    let mut lines = Lines::open(path, Kind::texts(arguments.field.field.as_ref(), false))?;
    let device = arguments.running.device()?;
    let embedder = embedder(arguments, &device)?;
    let (width, truncated, mut all) = (embedder.width(), Cell::new(0), Vec::new());
    let embedder = &RefCell::new(embedder);
    // Arrays and lists of numbers have no room for reasons.
    let mut errors = Errors::new(arguments.streaming.faults, array.is_some() || !results.json());
    let run = |texts: &[String]| {
        let later = embedder.borrow_mut().embed_later(texts, arguments.normalize)?;
        let truncated = &truncated;
        Ok(move || {
            let embedded = later(&embedder.borrow())?;
            truncated.set(truncated.get() + embedded.truncated);
            Ok(embedded.vectors.chunks_exact(width).map(|vector| Ok(vector.to_vec())).collect())
        })
    };
    let mut first: Option<Vec<f32>> = None;
    let write = |entries: Entries<String, Vec<f32>>| match &mut out {
        Some(out) => {
            if first.is_none() {
                first = entries.iter().find_map(|(_, result)| result.as_ref().ok().map(|(_, vector)| vector.clone()));
            }
            out.put(&in_lines(arguments, &entries, first.as_deref().unwrap_or_default())?)
        }
        None => {
            let nan = || vec![f32::NAN; width];
            all.extend(entries.into_iter().flat_map(|(_, result)| result.map_or_else(|_| nan(), |(_, vector)| vector)));
            Ok(())
        }
    };
    let parse = |line: &Line| Ok(line.text.clone());
    let (count, ended) =
        answer(&mut lines, Batches::on(&device, arguments.batch.lines), &mut errors, parse, run, write)?;
    errors.tell(count);
    let truncated = truncated.get();
    if truncated > 0 {
        tell!("{truncated} lines exceeded the model's maximum length and were truncated");
    }
    arguments.running.profile.print(embedder.borrow().profile(), &device);
    if let Some(path) = array {
        write_atomically(path, |out| npy::write(out, "<f4", &[count, width], bytemuck::cast_slice(&all)))?;
        tell!("{count} vectors of {width} written to {}", path.display());
    }
    out.map_or(Ok(()), crate::output::Sink::finish)?;
    ended.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Loads the model and applies the pooling, prompt and precision of the arguments.
fn embedder(arguments: &Arguments, device: &Device) -> Result<Embedder> {
    let pooling = arguments.pool.map(|pool| match pool {
        Pool::Mean => Pooling::Mean,
        Pool::Cls => Pooling::Cls,
        Pool::Pooler => Pooling::Pooler,
    });
    let mut embedder = Embedder::load(&arguments.model, pooling, device.clone())?;
    if let Some(name) = &arguments.prompt {
        embedder.set_prompt(Prompt::Named(name))?;
    } else if let Some(text) = &arguments.prompt_text {
        embedder.set_prompt(Prompt::Text(text))?;
    }
    embedder.profile().set(arguments.running.profile.on);
    embedder.set_precision(arguments.running.precision(device)?)?;
    Ok(embedder)
}

/// One list, number or object per line of input; null for a line that cannot be used. `first` is the first vector of the input.
fn in_lines(arguments: &Arguments, entries: &[Entry<String, Vec<f32>>], first: &[f32]) -> Result<String> {
    let (results, mut text) = (&arguments.streaming.results, String::new());
    let name = if arguments.similarity { "similarity" } else { "embedding" };
    let value = |vector: &[f32]| if arguments.similarity { json!(cosine(first, vector)) } else { json!(vector) };
    for (line, result) in entries {
        if results.json() {
            let mut entry = Map::new();
            if results.with_input {
                entry.insert("text".into(), json!(line.text));
            }
            match result {
                Ok((_, vector)) => drop(entry.insert(name.into(), value(vector))),
                Err(reason) => entry.extend(null_entry(name, line.number, reason)),
            }
            text += &Value::Object(entry).to_string();
        } else {
            if results.with_input {
                text += &format!("{}\t", escaped(&line.text));
            }
            text += &match result {
                Ok((_, vector)) if arguments.similarity => format!("{:.4}", cosine(first, vector)),
                Ok((_, vector)) => serde_json::to_string(vector)?,
                Err(_) => "null".to_owned(),
            };
        }
        text.push('\n');
    }
    Ok(text)
}

/// Cosine of the angle between two vectors; 0 if one of them is 0.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms > 0.0 { dot(a, b) / norms } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::cosine;

    #[test]
    fn a_cosine_ignores_length() {
        assert_eq!(cosine(&[3.0, 4.0], &[6.0, 8.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 2.0]), 0.0);
        assert_eq!(cosine(&[1.0, 1.0], &[-2.0, -2.0]), -1.0);
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 2.0]), 0.0);
    }
}
