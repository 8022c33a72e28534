//! `albert info`: parameters, FLOPs and memory of a configuration; time of its pre-training on several ranks.

use crate::{
    numbers::{whole, with_suffix},
    output::{results, tell},
};
use albert::pretrain::{PretrainRecipe, settings_of};
use albert::train::Setting;
use albert::{
    checkpoint::Heads,
    config::AlbertConfig,
    cost::{
        Flops, Link, ParameterCounts, RELEASED_STEPS, RELEASED_TOKENS_PER_BATCH, Recompute, Report, Scaled, Training,
        Workload,
    },
};
use anyhow::{Context, Result};
use clap::Args;
use engine::{Cpu, Lanes};
use measure::{
    cases::{Mode, Ready, Step, Work},
    plan,
};
use std::{fs, io::Write, path::Path, process::ExitCode};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert info base
  albert info mine.toml model.hidden_size=512
  albert info xxlarge --ranks 1,8,64 --network 100G --rate 1.5T")]
pub(crate) struct Arguments {
    /// Preset (base, large, xlarge, xxlarge, tiny, ...), model folder, config.json, or recipe in TOML
    model: String,
    /// Settings that override the preset or recipe, such as model.hidden_size=512
    #[arg(value_name = "SECTION.KEY=VALUE")]
    settings: Vec<Setting>,
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
    /// Instead, predict the released pre-training on this number of ranks; a list: 1,4,64
    #[arg(long, value_delimiter = ',', value_parser = whole::<1, usize>, conflicts_with_all = ["json", "batch", "seq"])]
    ranks: Vec<usize>,
    /// Bits per second of a rank's network: 10G, 400G; 90 % are assumed to be usable
    #[arg(long, value_name = "BITS", value_parser = with_suffix, default_value = "10G", requires = "ranks")]
    network: f64,
    /// Latency of an empty message in microseconds
    #[arg(long, value_name = "MICROSECONDS", value_parser = with_suffix, default_value = "20", requires = "ranks")]
    latency: f64,
    /// FLOP/s that a rank reaches in training: 200G, 1.5T [default: measured on this machine]
    #[arg(long, value_name = "FLOPS", value_parser = with_suffix, requires = "ranks")]
    rate: Option<f64>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.ranks.is_empty()
        && let Some(recipe) = recipe(arguments)?
    {
        return of_recipe(arguments, &recipe);
    }
    let config = config(&arguments.model)?;
    if !arguments.ranks.is_empty() {
        return predict(arguments, &config);
    }
    let sequence_length = arguments.seq.unwrap_or(512.min(config.max_position_embeddings));
    let most = config.max_position_embeddings;
    anyhow::ensure!(
        (1..=most).contains(&sequence_length),
        "--seq {sequence_length}: expected 1 to {most}, the positions of the model"
    );
    anyhow::ensure!((1..=1 << 20).contains(&arguments.batch), "--batch {}: expected 1 to 1048576", arguments.batch);
    let workload = pre_training(arguments.batch, sequence_length);
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

/// Recipe of the arguments: a TOML file, or a preset with settings; `None` for a model alone.
fn recipe(arguments: &Arguments) -> Result<Option<PretrainRecipe>> {
    let path = Path::new(&arguments.model);
    let is_file = path.extension().is_some_and(|ending| ending == "toml");
    let recipe = if is_file {
        let text = fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
        PretrainRecipe::from_toml(&text, &arguments.settings).with_context(|| path.display().to_string())?
    } else if arguments.settings.is_empty() {
        return Ok(None);
    } else {
        let model = settings_of(&config(&arguments.model)?);
        let settings: Vec<_> = model.into_iter().chain(arguments.settings.iter().cloned()).collect();
        PretrainRecipe::from_toml("", &settings)?
    };
    recipe.warnings().iter().for_each(|warning| tell!("warning: {warning}"));
    Ok(Some(recipe))
}

/// Prints the model and the amount of training of a recipe.
fn of_recipe(arguments: &Arguments, recipe: &PretrainRecipe) -> Result<ExitCode> {
    let length = arguments.seq.unwrap_or(recipe.data.instances.max_sequence_length);
    let batch = &recipe.data.batch;
    let sequences = (batch.max_tokens / length.max(1)).clamp(1, batch.max_sequences.max(1));
    let training = Training { activation_bytes: 4, checkpointing: arguments.checkpointing };
    let report = Report::new(&recipe.model, pre_training(sequences, length), training);
    let mut out = results();
    if arguments.json {
        let recipe = serde_json::to_value(recipe)?;
        writeln!(out, "{}", serde_json::to_string_pretty(&serde_json::json!({ "recipe": recipe, "model": report }))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let base = recipe.base().map_or(String::new(), |base| format!(" (recipe {base})"));
    print(&mut out, &format!("{}{base}", arguments.model), &report)?;
    let schedule = &recipe.schedule;
    let per_step = batch.sequences_per_step.max(sequences);
    writeln!(out, "\nschedule")?;
    writeln!(out, "  steps                   {:>12}", thousands(schedule.steps))?;
    writeln!(out, "  sequences a step        {:>12}", thousands(per_step as u64))?;
    writeln!(out, "  tokens a step, at most  {:>12}", thousands((per_step * length) as u64))?;
    Ok(ExitCode::SUCCESS)
}

/// Workload of pre-training, with 15 % of the tokens masked.
fn pre_training(sequences: usize, sequence_length: usize) -> Workload {
    let masked_per_sequence = (0.15 * sequence_length as f64).round_ties_even().max(1.0) as usize;
    Workload { sequences, sequence_length, masked_per_sequence }
}

/// Prints the time of the released pre-training on several ranks.
fn predict(arguments: &Arguments, config: &AlbertConfig) -> Result<ExitCode> {
    let length = 512.min(config.max_position_embeddings);
    let workload = pre_training(RELEASED_TOKENS_PER_BATCH as usize / length, length);
    let most = arguments.ranks.iter().copied().max().unwrap_or(1);
    anyhow::ensure!(most <= Lanes::MOST, "--ranks {most}: expected at most {}, one for each lane", Lanes::MOST);
    let lanes = most.next_power_of_two().max(64);
    let (rate, source) = match arguments.rate {
        Some(rate) => (rate, "given".to_owned()),
        None => measured(arguments, config)?,
    };
    let link = Link { bytes_per_second: 0.9 * arguments.network / 8.0, latency: 1e-6 * arguments.latency };
    let mut out = results();
    writeln!(
        out,
        "{}: {} steps of {} sequences of {length} tokens in {lanes} lanes; {:.2} PFLOP a step, {:.0} MB of gradients",
        arguments.model,
        thousands(RELEASED_STEPS),
        thousands(workload.sequences as u64),
        3.0 * Flops::forward(config, &workload).total() / 1e15,
        4e-6 * ParameterCounts::with_heads(config, Heads::PRE_TRAINING) as f64,
    )?;
    writeln!(
        out,
        "a rank: {:.1} GFLOP/s ({source}); network: {} Gbit/s at 90 %, {} µs a message",
        rate / 1e9,
        arguments.network / 1e9,
        arguments.latency
    )?;
    writeln!(out, "{:>6}  {:>12}  {:>12}  {:>10}  {:>10}", "ranks", "step, s", "exchange, s", "efficiency", "days")?;
    for &ranks in &arguments.ranks {
        let scaled = Scaled::new(config, &workload, (lanes, ranks), rate, link);
        writeln!(
            out,
            "{ranks:>6}  {:>12.3}  {:>12.4}  {:>8.1} %  {:>10.2}",
            scaled.seconds(),
            scaled.exchange,
            100.0 * scaled.efficiency,
            scaled.seconds() * RELEASED_STEPS as f64 / 86_400.0
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// FLOP/s of a training step on this machine, with a description of the measurement.
fn measured(arguments: &Arguments, config: &AlbertConfig) -> Result<(f64, String)> {
    let (sequences, length) = (4, 128.min(config.max_position_embeddings));
    let step = Step {
        name: arguments.model.clone(),
        config: config.clone(),
        lengths: vec![length; sequences],
        mode: Mode::Train,
        precision: engine::Precision::F32,
        dropout: None,
        checkpointing: arguments.checkpointing,
    };
    let cpu = Cpu::detect()?;
    let record = Ready::new(&cpu, &Work::Step(step))?.run(3, 0.0);
    let how = format!("a step of {sequences}x{length} here, {} threads, {:.1} s", cpu.threads(), record.seconds.median);
    Ok((1e9 * record.gflops, how))
}

/// Reads the configuration of a preset or a path.
fn config(model: &str) -> Result<AlbertConfig> {
    let (config, notes) = plan::config(model)?;
    notes.iter().for_each(|note| tell!("note: {note}"));
    Ok(config)
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
