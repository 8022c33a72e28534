//! `albert embed`: one vector for each line of text.

use albert::embed::{Embedded, Embedder, Pooling};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use engine::{Device, io::write_atomically};
use std::{
    io::{BufWriter, Read, Write},
    path::PathBuf,
    process::ExitCode,
};

/// How the tokens of a line become one vector.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Pool {
    /// The mean of all tokens
    Mean,
    /// The first token
    Cls,
    /// The first token through the model's pooler
    Pooler,
}

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Model folder
    #[arg(long)]
    model: PathBuf,
    /// How the tokens of a line become one vector
    #[arg(long, value_enum, default_value = "mean")]
    pool: Pool,
    /// Scale each vector to length 1
    #[arg(long)]
    normalize: bool,
    /// Text, one line each; standard input by default
    input: Option<PathBuf>,
    /// A NumPy file [lines, H] in f32; without it, a JSON list a line goes to standard output
    #[arg(short, long)]
    output: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pooling = match arguments.pool {
        Pool::Mean => Pooling::Mean,
        Pool::Cls => Pooling::Cls,
        Pool::Pooler => Pooling::Pooler,
    };
    let mut embedder = Embedder::load(&arguments.model, pooling, Device::cpu()?)?;
    let texts = lines(arguments)?;
    let embedded = embedder.embed(&texts, pooling, arguments.normalize)?;
    if embedded.cut > 0 {
        eprintln!("{} lines were longer than the model's positions and were cut", embedded.cut);
    }
    match &arguments.output {
        Some(path) => {
            write_atomically(path, |out| write_npy(out, &embedded))?;
            eprintln!("{} vectors of {} written to {}", texts.len(), embedded.width, path.display());
        }
        None => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            for vector in embedded.vectors.chunks_exact(embedded.width) {
                serde_json::to_writer(&mut out, vector)?;
                writeln!(out)?;
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

/// NumPy's format, version 1.0: magic, length of the header, header padded to a multiple of 64, elements.
fn write_npy(out: &mut dyn Write, embedded: &Embedded) -> std::io::Result<()> {
    let rows = embedded.vectors.len() / embedded.width;
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {}), }}", embedded.width);
    const BEFORE: usize = 10;
    let padding = (BEFORE + header.len() + 1).next_multiple_of(64) - (BEFORE + header.len() + 1);
    header.extend(std::iter::repeat_n(' ', padding));
    header.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(header.len() as u16).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    embedded.vectors.iter().try_for_each(|x| out.write_all(&x.to_le_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_numpy_file_begins_at_a_multiple_of_64() {
        let embedded = Embedded { vectors: vec![1.0, -2.0, 0.5, 3.0], width: 2, cut: 0 };
        let mut bytes = Vec::new();
        write_npy(&mut bytes, &embedded).unwrap();
        assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
        let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        assert!((10 + header).is_multiple_of(64), "the header has {header} bytes");
        assert!(std::str::from_utf8(&bytes[10..10 + header]).unwrap().contains("'shape': (2, 2)"));
        assert_eq!(bytes[10 + header..], [1.0f32, -2.0, 0.5, 3.0].map(f32::to_le_bytes).concat());
    }
}
