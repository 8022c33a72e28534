//! `albert info`: parameters, FLOPs and memory of a configuration.

use crate::{
    numbers::whole,
    output::{results, tell},
};
use albert::{
    config::AlbertConfig,
    cost::{Recompute, Report, Training, Workload},
};
use anyhow::{Context, Result};
use clap::Args;
use std::{fs, io::Write, path::Path, process::ExitCode};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Preset (base, large, xlarge, xxlarge, tiny, ...), model folder or config.json
    model: String,
    /// Batch size for FLOPs and memory
    #[arg(long, default_value_t = 8, value_parser = whole::<1, usize>)]
    batch: usize,
    /// Sequence length [default: 512, or the model's maximum]
    #[arg(long, value_parser = whole::<1, usize>)]
    seq: Option<usize>,
    /// Activations to recompute in backward; runs default to cheap on a CPU and to none on a GPU
    #[arg(long, value_name = "none|cheap|layer", default_value = "cheap")]
    checkpointing: Recompute,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let config = config(&arguments.model)?;
    let sequence_length = arguments.seq.unwrap_or(512.min(config.max_position_embeddings));
    let most = config.max_position_embeddings;
    anyhow::ensure!(
        (1..=most).contains(&sequence_length),
        "--seq {sequence_length}: expected 1 to {most}, the positions of the model"
    );
    anyhow::ensure!((1..=1 << 20).contains(&arguments.batch), "--batch {}: expected 1 to 1048576", arguments.batch);
    // Pre-training masks 15 % of a sequence.
    let masked_per_sequence = (0.15 * sequence_length as f64).round_ties_even().max(1.0) as usize;
    let workload = Workload { sequences: arguments.batch, sequence_length, masked_per_sequence };
    let checkpointing = arguments.checkpointing;
    let report = Report::new(&config, workload, Training { activation_bytes: 4, checkpointing });
    let mut out = results();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        print(&mut out, &arguments.model, &report)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the configuration of a preset or a path.
pub(crate) fn config(model: &str) -> Result<AlbertConfig> {
    let path = Path::new(model);
    if !path.exists() {
        return Ok(AlbertConfig::preset(model)?);
    }
    let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let text = fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?;
    let reading = AlbertConfig::from_hf_json(&text).with_context(|| file.display().to_string())?;
    for note in &reading.notes {
        tell!("note: {}: {note}", file.display());
    }
    Ok(reading.config)
}

fn print(out: &mut impl Write, model: &str, report: &Report) -> Result<()> {
    let (c, p) = (&report.config, &report.components);
    writeln!(
        out,
        "{model}: H {}, N {}, A {}, F {}, E {}, V {}, {} positions",
        c.hidden_size,
        c.num_hidden_layers,
        c.num_attention_heads,
        c.intermediate_size,
        c.embedding_size,
        c.vocab_size,
        c.max_position_embeddings
    )?;
    writeln!(out, "\nparameters by component")?;
    let attention = format!("attention block, {} set(s)", p.attention_sets);
    let ffn = format!("feed-forward block, {} set(s)", p.ffn_sets);
    for (name, count) in [
        ("word embeddings", p.word_embeddings),
        ("position embeddings", p.position_embeddings),
        ("segment embeddings", p.segment_embeddings),
        ("embedding LayerNorm", p.embedding_layer_norm),
        ("embedding map E to H", p.embedding_map),
        (&attention, p.attention_sets * p.attention_block),
        (&ffn, p.ffn_sets * p.ffn_block),
        ("pooler", p.pooler),
        ("MLM head (decoder tied)", p.mlm_head),
        ("SOP head", p.sop_head),
    ] {
        writeln!(out, "  {name:<44} {:>15}", thousands(count))?;
    }
    writeln!(out, "\nparameters by head")?;
    for head in &report.heads {
        writeln!(out, "  {:<44} {:>15}", head.head, thousands(head.parameters))?;
    }
    writeln!(out, "\ncompute parameters V·E + E·H + N·12·H² + H²   {:>15}", thousands(report.compute_parameters))?;
    writeln!(out, "normalized cost (125,000 steps of 4096 x 512)  {:>15.3e}", report.normalized_cost)?;
    let w = report.workload;
    writeln!(
        out,
        "\nbatch of {} sequences of {} tokens, {} of them masked",
        w.sequences, w.sequence_length, w.masked_per_sequence
    )?;
    writeln!(out, "  FLOPs/token, forward    {:>10.1} M", report.forward_flops_per_token / 1e6)?;
    writeln!(out, "  FLOPs/token, training   {:>10.1} M", report.training_flops_per_token / 1e6)?;
    for (name, bytes) in [
        ("parameters", report.memory.parameters),
        ("gradients", report.memory.gradients),
        ("optimizer", report.memory.optimizer),
        ("packed weights", report.memory.packed),
        ("activations", report.memory.activations),
        ("memory in total", report.memory.total()),
    ] {
        writeln!(out, "  {name:<23} {:>10.1} MiB", bytes as f64 / f64::from(1 << 20))?;
    }
    Ok(())
}

/// Formats 11683584 as 11,683,584.
pub(crate) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
