//! `albert data`: builds shards from text files and prints their contents.

use crate::{
    numbers::whole,
    output::{results, tell},
    progress::Reading,
    ranks,
    running::Threads,
};
use albert::{
    data::{self, CorpusSettings, DataSettings, Dataset, Index, Objective, SplitSettings, TextLayout, Vocabulary},
    tokenizer::Tokenizer,
    train::{Setting, Worker},
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
#[command(after_help = "Examples:
  albert data build --tokenizer tokenizer.json -o data \"texts/*.txt\" --layout paragraphs
  albert data build --tokenizer tokenizer.json -o data dump.jsonl.gz --field text --layout paragraphs corpus.duplicates=drop
  zstdcat dump.zst | albert data build --tokenizer tokenizer.json -o data -")]
pub(crate) struct Build {
    /// Text files: one sentence per line, a blank line between documents; also .gz and .zst; - is standard input
    #[arg(required = true)]
    input: Vec<PathBuf>,
    /// Field of JSON Lines with the text; each line is a document [default: the files are text]
    #[arg(long)]
    field: Option<String>,
    #[command(flatten)]
    threads: Threads,
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
#[command(after_help = "Example:
  albert data inspect data --tokenizer tokenizer.json --seq 128")]
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
        Command::Build(arguments) => {
            arguments.threads.choose();
            ranks::run("cpu", |worker| build(arguments, &worker))
        }
        Command::Inspect(arguments) => inspect(arguments),
    }
}

fn build(arguments: &Build, Worker { device, communicator }: &Worker) -> Result<ExitCode> {
    let tokenizer = Tokenizer::load(&arguments.tokenizer)?;
    let layout = match arguments.layout {
        Layout::Sentences => TextLayout::Sentences,
        Layout::Paragraphs => TextLayout::Paragraphs,
    };
    let mut corpus = CorpusSettings { layout, lossy: arguments.lossy, ..CorpusSettings::default() };
    corpus.field.clone_from(&arguments.field);
    let mut split = SplitSettings::default();
    split.held_out = arguments.held_out.unwrap_or(split.held_out);
    split.seed = arguments.seed.unwrap_or(split.seed);
    let (files, settings) = with_settings(&arguments.input)?;
    let (corpus, split) = overridden(corpus, split, &settings)?;
    let sources = data::files(&files)?;
    let reading = communicator.is_first().then(|| Reading::of(&sources));
    let build = || data::build(sources, &arguments.output, &corpus, &split, &tokenizer, communicator);
    let index = device.processor().install(build)?;
    drop(reading);
    report(&index);
    let (train, held_out) = (&index.train, &index.held_out);
    let dropped = match index.report.dropped_duplicates {
        0 => String::new(),
        1 => "; 1 duplicate was dropped".to_owned(),
        count => format!("; {count} duplicates were dropped"),
    };
    tell!(
        "{} documents, {} sentences, {} tokens written to {}{dropped}",
        train.documents + held_out.documents,
        train.sentences + held_out.sentences,
        train.tokens + held_out.tokens,
        arguments.output.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Separates files from settings such as `corpus.duplicates=drop`: an argument that is not a file and has a `.` before its first `=`.
fn with_settings(arguments: &[PathBuf]) -> Result<(Vec<PathBuf>, Vec<Setting>)> {
    let (mut files, mut settings) = (Vec::new(), Vec::new());
    for argument in arguments {
        let text = argument.to_str().unwrap_or_default();
        let is_key = |key: &str| key.starts_with("corpus.") || key.starts_with("split.");
        match text.split_once('=') {
            Some((key, _)) if is_key(key) && !argument.exists() => settings.push(text.parse()?),
            _ => files.push(argument.clone()),
        }
    }
    Ok((files, settings))
}

/// Overrides the settings with those of the command line.
fn overridden(
    corpus: CorpusSettings,
    split: SplitSettings,
    settings: &[Setting],
) -> Result<(CorpusSettings, SplitSettings)> {
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Both {
        corpus: CorpusSettings,
        split: SplitSettings,
    }
    let Both { corpus, split } = albert::train::with_settings(&Both { corpus, split }, settings)?;
    Ok((corpus, split))
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
            "documents of one sentence do not form a sentence pair",
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
    /// Number of sequences used for masking statistics.
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
