//! `albert embed`: one vector per line of text.

use crate::{
    input::{Line, Lines},
    npy,
    output::tell,
    running::{Batch, Running, Streaming},
};
use albert::embed::{Embedder, Pooling};
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use engine::io::{check_output, limits::text::STANDARD_INPUT, write_atomically};
use serde_json::json;
use std::{
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
    /// First token through the model's pooler
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
    /// Scale each vector to unit length [default: as the folder says]
    #[arg(long)]
    normalize: bool,
    /// Print the cosine similarity of each line with the first, instead of the vectors
    #[arg(long)]
    similarity: bool,
    #[command(flatten)]
    running: Running,
    #[command(flatten)]
    streaming: Streaming,
    #[command(flatten)]
    batch: Batch,
    /// File of texts, one per line, as --input [default: standard input]
    #[arg(conflicts_with = "input", value_name = "INPUT")]
    file: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pooling = arguments.pool.map(|pool| match pool {
        Pool::Mean => Pooling::Mean,
        Pool::Cls => Pooling::Cls,
        Pool::Pooler => Pooling::Pooler,
    });
    // A NumPy file begins with the number of its rows.
    let results = &arguments.streaming.results;
    let array = results.output.as_deref().filter(|path| path.extension().is_some_and(|ending| ending == "npy"));
    ensure!(!arguments.similarity || array.is_none(), "--similarity prints lines; leave out --output FILE.npy");
    array.map_or(Ok(()), check_output)?;
    let mut out = if array.is_some() { None } else { Some(results.sink()?) };
    let device = arguments.running.device()?;
    let mut embedder = Embedder::load(&arguments.model, pooling, device.clone())?;
    embedder.profile().set(arguments.running.profile.on);
    embedder.set_precision(arguments.running.precision.on(&device))?;
    let input = arguments.file.as_ref().or(arguments.streaming.input.as_ref());
    let mut lines = Lines::open(input.map_or(Path::new(STANDARD_INPUT), PathBuf::as_path))?;
    let (mut count, mut width, mut truncated, mut all) = (0, 0, 0, Vec::new());
    let mut first = Vec::new();
    loop {
        let batch = lines.batch(arguments.batch.lines)?;
        if batch.is_empty() {
            break;
        }
        let texts: Vec<&str> = batch.iter().map(|line| line.text.as_str()).collect();
        let embedded = embedder.embed(&texts, arguments.normalize)?;
        (count, width, truncated) = (count + batch.len(), embedded.width, truncated + embedded.truncated);
        match &mut out {
            Some(out) => {
                if first.is_empty() {
                    first.extend_from_slice(&embedded.vectors[..embedded.width]);
                }
                out.put(&in_lines(arguments, &batch, &embedded.vectors, &first)?)?;
            }
            None => all.extend(embedded.vectors),
        }
    }
    if truncated > 0 {
        tell!("{truncated} lines exceeded the model's maximum length and were truncated");
    }
    arguments.running.profile.print(embedder.profile(), &device);
    if let Some(path) = array {
        let width = if count == 0 { embedder.width() } else { width };
        write_atomically(path, |out| npy::write(out, "<f4", &[count, width], bytemuck::cast_slice(&all)))?;
        tell!("{count} vectors of {width} written to {}", path.display());
    }
    out.map_or(Ok(()), crate::output::Sink::finish)?;
    Ok(ExitCode::SUCCESS)
}

/// One list, number or object per line of input; `first` is the vector of the first line.
fn in_lines(arguments: &Arguments, batch: &[Line], vectors: &[f32], first: &[f32]) -> Result<String> {
    let mut text = String::new();
    for (line, vector) in batch.iter().zip(vectors.chunks_exact(first.len())) {
        let results = &arguments.streaming.results;
        if arguments.similarity {
            let cosine = cosine(first, vector);
            text += &match (results.json, results.with_input) {
                (false, _) => format!("{cosine:.4}"),
                (true, false) => json!({ "similarity": cosine }).to_string(),
                (true, true) => json!({ "text": line.text, "similarity": cosine }).to_string(),
            };
            text.push('\n');
            continue;
        }
        text += &match (results.json, results.with_input) {
            (false, _) => serde_json::to_string(vector)?,
            (true, false) => json!({ "embedding": vector }).to_string(),
            (true, true) => json!({ "text": line.text, "embedding": vector }).to_string(),
        };
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
