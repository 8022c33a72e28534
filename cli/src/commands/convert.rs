//! `albert convert`: converts a Google checkpoint or a Hugging Face folder to a Hugging Face folder.

use crate::{numbers::whole, output::results};
use albert::{
    checkpoint::{Conversion, ConvertOptions, convert, torch_name},
    embed::Pooling,
    sentence::write_sentence_settings,
};
use anyhow::Result;
use clap::{Args, ValueEnum};
use engine::io::FileDType;
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert convert --from albert_base --to runs/albert-base
  albert convert --from runs/model --to runs/sentences --sentence-transformers mean --normalize")]
pub(crate) struct Arguments {
    /// Hugging Face folder, folder with albert_config.json and a TensorFlow checkpoint, or such a checkpoint
    #[arg(long)]
    from: PathBuf,
    /// Output folder; must not exist or be empty
    #[arg(long)]
    to: PathBuf,
    /// Element type of the weights
    #[arg(long, value_enum, default_value_t = DType::F32)]
    dtype: DType,
    /// Number of attention heads, if the configuration is wrong: tensors do not determine it
    #[arg(long, value_parser = whole::<1, usize>)]
    heads: Option<usize>,
    /// Make it a folder of sentence-transformers, with this pooling
    #[arg(long, value_enum, value_name = "POOLING")]
    sentence_transformers: Option<SentencePooling>,
    /// Sentence vectors have unit length
    #[arg(long, requires = "sentence_transformers")]
    normalize: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SentencePooling {
    /// Mean of all tokens
    Mean,
    /// First token
    Cls,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DType {
    F32,
    Bf16,
    F16,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let dtype = match arguments.dtype {
        DType::F32 => FileDType::F32,
        DType::Bf16 => FileDType::Bf16,
        DType::F16 => FileDType::F16,
    };
    let options = ConvertOptions { dtype, attention_heads: arguments.heads };
    let mut conversion = convert(&arguments.from, &arguments.to, options)?;
    if let Some(pooling) = arguments.sentence_transformers {
        let pooling = match pooling {
            SentencePooling::Mean => Pooling::Mean,
            SentencePooling::Cls => Pooling::Cls,
        };
        let config = &conversion.config;
        let (width, longest) = (config.hidden_size, config.max_position_embeddings);
        let files = write_sentence_settings(&arguments.to, width, pooling, arguments.normalize, longest)?;
        conversion.files.extend(files);
    }
    print(&mut results(), &arguments.to, dtype, &conversion)?;
    Ok(ExitCode::SUCCESS)
}

fn print(out: &mut impl Write, to: &Path, dtype: FileDType, conversion: &Conversion) -> Result<()> {
    let Conversion { config, family, heads, report, remarks, ignored_keys, files } = conversion;
    let class = heads.architecture(*family);
    writeln!(
        out,
        "{class}: {} layers, H {}, E {}, V {}; weights as {}",
        config.num_hidden_layers,
        config.hidden_size,
        config.embedding_size,
        config.vocab_size,
        torch_name(dtype)
    )?;
    for remark in remarks {
        writeln!(out, "note: {remark}")?;
    }
    writeln!(out, "loaded {} tensors, {} missing", report.loaded.len(), report.fresh.len())?;
    listed(out, "ignored", &report.ignored)?;
    listed(out, "not model weights (buffers, moments, counters)", &report.not_needed)?;
    listed(out, "configuration keys ignored", ignored_keys)?;
    writeln!(out, "wrote {}: {}", to.display(), files.join(", "))?;
    Ok(())
}

/// Prints a count and the first names.
fn listed(out: &mut impl Write, what: &str, names: &[String]) -> Result<()> {
    const SHOWN: usize = 8;
    if names.is_empty() {
        return Ok(());
    }
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if names.len() > SHOWN { ", .." } else { "" };
    writeln!(out, "{} {what}: {shown}{more}", names.len())?;
    Ok(())
}
