//! `albert embed`: one vector per line of text.

use super::Precision;
use crate::{
    output::{results, tell},
    roofline::Profiling,
};
use albert::embed::{Embedded, Embedder, Pooling};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use engine::{
    Device,
    io::{check_output, write_atomically},
};
use npyz::WriterBuilder;
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
    /// Arithmetic of the encoder's GEMMs
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Precision,
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
    embedder.set_int8(arguments.dtype == Precision::Int8)?;
    let texts = lines(arguments)?;
    let embedded = embedder.embed(&texts, arguments.normalize)?;
    if embedded.truncated > 0 {
        tell!("{} lines exceeded the model's maximum length and were truncated", embedded.truncated);
    }
    arguments.profile.print(embedder.profile(), &device);
    match &arguments.output {
        Some(path) => {
            write_atomically(path, |out| write_npy(out, &embedded))?;
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

/// Writes a NumPy file of shape `[lines, H]`.
fn write_npy(out: &mut dyn Write, embedded: &Embedded) -> std::io::Result<()> {
    let shape = [embedded.vectors.len() / embedded.width, embedded.width].map(|size| size as u64);
    let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(out).begin_nd()?;
    writer.extend(&embedded.vectors)?;
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_numpy_file_has_a_row_for_each_line() {
        let embedded = Embedded { vectors: vec![1.0, -2.0, 0.5, 3.0, 7.0, 0.25], width: 2, truncated: 0 };
        let mut bytes = Vec::new();
        write_npy(&mut bytes, &embedded).unwrap();
        let file = npyz::NpyFile::new(&bytes[..]).unwrap();
        assert_eq!((file.shape(), file.order()), (&[3, 2][..], npyz::Order::C));
        assert_eq!(file.into_vec::<f32>().unwrap(), embedded.vectors);
        assert_eq!(
            bytes[bytes.len() - 24..],
            embedded.vectors.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()
        );
    }
}
