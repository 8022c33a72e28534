//! `albert data`: builds shards from text files and prints their contents.

use crate::{
    numbers::whole,
    output::{results, tell},
    ranks,
};
use albert::{
    data::{self, CorpusSettings, DataSettings, Dataset, Index, Objective, SplitSettings, TextLayout, Vocabulary},
    tokenizer::Tokenizer,
    train::Worker,
};
use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use std::{io::Write, path::PathBuf, process::ExitCode, sync::Arc};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Tokenize text files into a folder of shards, with held-out documents; ranks of a launcher share the text
    Build(Build),
    /// Print counts, balances and an example batch
    Inspect(Inspect),
}

#[derive(Debug, Args)]
pub(crate) struct Build {
    /// Text files: one sentence per line, a blank line between documents
    #[arg(required = true)]
    input: Vec<PathBuf>,
    /// Tokenizer: a tokenizer.json
    #[arg(long)]
    tokenizer: PathBuf,
    /// Output folder; an existing data set is replaced once the new one is complete
    #[arg(short, long)]
    output: PathBuf,
    /// Layout of the text
    #[arg(long, value_enum, default_value_t = Layout::Sentences)]
    layout: Layout,
    /// Fraction of each source's documents to hold out
    #[arg(long)]
    held_out: Option<f64>,
    /// Seed for choosing held-out documents
    #[arg(long, value_parser = whole::<0, u64>)]
    seed: Option<u64>,
    /// Replace bytes that are not UTF-8 instead of refusing the file
    #[arg(long)]
    lossy: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Layout {
    /// One sentence per line
    Sentences,
    /// Running text, split into sentences by rule
    Paragraphs,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// Folder of shards
    data: PathBuf,
    /// Tokenizer that it was built with
    #[arg(long)]
    tokenizer: PathBuf,
    /// Maximum sequence length in tokens, [CLS] and [SEP] included
    #[arg(long, default_value_t = 512, value_parser = whole::<1, usize>)]
    seq: usize,
    /// Maximum number of masked pieces per sequence
    #[arg(long, value_parser = whole::<1, usize>)]
    max_predictions: Option<usize>,
    /// Seed of the epoch to print
    #[arg(long, default_value_t = 12_345, value_parser = whole::<0, u64>)]
    seed: u64,
    /// Mask without sentence pairs
    #[arg(long)]
    mlm_only: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Build(arguments) => ranks::run("cpu", |worker| build(arguments, &worker)),
        Command::Inspect(arguments) => inspect(arguments),
    }
}

fn build(arguments: &Build, Worker { device, communicator }: &Worker) -> Result<ExitCode> {
    let tokenizer = Tokenizer::load(&arguments.tokenizer)?;
    let layout = match arguments.layout {
        Layout::Sentences => TextLayout::Sentences,
        Layout::Paragraphs => TextLayout::Paragraphs,
    };
    let corpus = CorpusSettings { layout, lossy: arguments.lossy, ..CorpusSettings::default() };
    let mut split = SplitSettings::default();
    split.held_out = arguments.held_out.unwrap_or(split.held_out);
    split.seed = arguments.seed.unwrap_or(split.seed);
    let sources = data::files(&arguments.input)?;
    let build = || data::build(sources, &arguments.output, &corpus, &split, &tokenizer, communicator);
    let index = device.processor().install(build)?;
    report(&index);
    tell!("written to {}", arguments.output.display());
    Ok(ExitCode::SUCCESS)
}

/// Prints the counts and remarks of a build to standard error.
pub(crate) fn report(index: &Index) {
    let (train, held_out, met) = (&index.train, &index.held_out, &index.report);
    for (name, side) in [("train", train), ("held out", held_out)] {
        tell!("{name:<9} {:>9} documents {:>10} sentences {:>12} tokens", side.documents, side.sentences, side.tokens);
    }
    let places = |places: &[String]| places.first().map_or(String::new(), |first| format!(", the first at {first}"));
    for (count, what, place) in [
        (
            met.duplicate_documents,
            "documents are duplicates and were assigned to the split of the first copy",
            String::new(),
        ),
        (met.empty_documents, "documents without a token were dropped", String::new()),
        (
            met.one_sentence_documents,
            "documents of one sentence give no sentence pair",
            places(&met.one_sentence_places),
        ),
        (met.empty_sentences, "sentences without a token were dropped", String::new()),
        (met.cut_sentences, "sentences were too long and were cut", places(&met.cut_places)),
        (met.repaired_lines, "lines with invalid UTF-8 were repaired", String::new()),
    ] {
        if count > 0 {
            tell!("{count} {what}{place}");
        }
    }
}

fn inspect(arguments: &Inspect) -> Result<ExitCode> {
    let tokenizer = Tokenizer::load(&arguments.tokenizer)?;
    let vocabulary = Arc::new(Vocabulary::of(&tokenizer)?);
    let dataset = Dataset::open(&arguments.data, &vocabulary)?;
    let mut settings = DataSettings::default();
    settings.instances.max_sequence_length = arguments.seq;
    settings.batch.max_tokens = settings.batch.max_tokens.max(arguments.seq);
    settings.masking.max_predictions = arguments.max_predictions.unwrap_or(settings.masking.max_predictions);
    if arguments.mlm_only {
        settings.instances.objective = Objective::None;
    }
    /// Sequences that masking statistics are computed from.
    const MEASURED: usize = 2000;
    let piece = |id: u32| tokenizer.piece(id);
    let inspection = data::inspect(&dataset, &vocabulary, &settings, arguments.seed, MEASURED, piece)?;
    let mut out = results();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&inspection)?)?;
    } else {
        writeln!(out, "{inspection}")?;
    }
    Ok(ExitCode::SUCCESS)
}
