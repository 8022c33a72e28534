//! `albert embed`: one vector per line of text.

use super::Precision;
use crate::{
    npy,
    output::{results, tell},
    roofline::Profiling,
};
use albert::embed::{Embedder, Pooling};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use engine::{
    Device,
    io::{check_output, write_atomically},
};
use std::{
    io::{BufWriter, Read, Write},
    path::PathBuf,
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
pub(crate) struct Arguments {
    /// Model folder
    #[arg(long)]
    model: PathBuf,
    /// Pooling of a line's tokens into one vector
    #[arg(long, value_enum, default_value = "mean")]
    pool: Pool,
    /// Scale each vector to unit length
    #[arg(long)]
    normalize: bool,
    #[command(flatten)]
    profile: Profiling,
    /// f32, bf16, bf16x3, bf16x6, int8 or auto: bf16 if this machine multiplies it faster than f32
    #[arg(long, alias = "dtype", default_value = "f32")]
    precision: Precision,
    /// Text file, one text per line [default: standard input]
    input: Option<PathBuf>,
    /// NumPy file [lines, H] in f32 [default: one JSON list per line on standard output]
    #[arg(short, long)]
    output: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pooling = match arguments.pool {
        Pool::Mean => Pooling::Mean,
        Pool::Cls => Pooling::Cls,
        Pool::Pooler => Pooling::Pooler,
    };
    arguments.output.as_ref().map_or(Ok(()), check_output)?;
    let device = Device::cpu()?;
    let mut embedder = Embedder::load(&arguments.model, pooling, device.clone())?;
    embedder.profile().set(arguments.profile.on);
    embedder.set_precision(arguments.precision.on(&device))?;
    let texts = lines(arguments)?;
    let embedded = embedder.embed(&texts, arguments.normalize)?;
    if embedded.truncated > 0 {
        tell!("{} lines exceeded the model's maximum length and were truncated", embedded.truncated);
    }
    arguments.profile.print(embedder.profile(), &device);
    match &arguments.output {
        Some(path) => {
            let shape = [texts.len(), embedded.width];
            write_atomically(path, |out| npy::write(out, "<f4", &shape, bytemuck::cast_slice(&embedded.vectors)))?;
            tell!("{} vectors of {} written to {}", texts.len(), embedded.width, path.display());
        }
        None => {
            let mut out = BufWriter::new(results());
            for vector in embedded.vectors.chunks_exact(embedded.width) {
                writeln!(out, "{}", serde_json::to_string(vector)?)?;
            }
            out.flush()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(arguments: &Arguments) -> Result<Vec<String>> {
    let text = match &arguments.input {
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?,
        None => {
            let mut text = String::new();
            std::io::stdin().lock().read_to_string(&mut text).context("standard input")?;
            text
        }
    };
    Ok(text.lines().map(str::to_owned).collect())
}
