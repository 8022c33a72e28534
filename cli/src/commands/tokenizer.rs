//! `albert tokenizer`: train a vocabulary, encode lines of text, decode lines of ids.

use crate::{
    numbers::whole,
    output::{results, tell},
    ranks,
};
use albert::{
    data,
    tokenizer::{self, Progress, Tokenizer, TrainerConfig},
    train::Worker,
};
use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use engine::io::{check_output, write_atomically};
use std::{
    io::{BufRead, BufWriter, Write},
    path::PathBuf,
    process::ExitCode,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a unigram vocabulary on text files; ranks of a launcher share the counting of words
    Train(Train),
    /// Encode text: one text per line to one line of ids separated by spaces
    Encode(Encode),
    /// Decode ids: one line of ids separated by spaces to one line of text
    Decode(Decode),
    /// Convert a tokenizer to spiece.model or tokenizer.json
    Convert(Convert),
}

#[derive(Debug, Args)]
pub(crate) struct Train {
    /// Text files, one sentence per line; a quoted pattern such as "texts/*.txt" is its files in order
    #[arg(required = true)]
    input: Vec<PathBuf>,
    /// Output file
    #[arg(short, long, default_value = "tokenizer.json")]
    output: PathBuf,
    /// Number of pieces, special tokens included
    #[arg(long, default_value_t = 30_000, value_parser = whole::<1, usize>)]
    vocab_size: usize,
    /// Fraction of the text's characters that the alphabet covers
    #[arg(long)]
    character_coverage: Option<f64>,
    /// Replace bytes that are not UTF-8 instead of refusing the file
    #[arg(long)]
    lossy: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Encode {
    /// Tokenizer: tokenizer.json, spiece.model, vocab.txt, or a model folder with one of them
    #[arg(long)]
    tokenizer: PathBuf,
    /// Put [CLS] before and [SEP] after each text
    #[arg(long)]
    specials: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Decode {
    /// Tokenizer: tokenizer.json, spiece.model, vocab.txt, or a model folder with one of them
    #[arg(long)]
    tokenizer: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Convert {
    /// Tokenizer: tokenizer.json, spiece.model, vocab.txt, or a model folder with one of them
    #[arg(long)]
    tokenizer: PathBuf,
    /// Output file: .model writes a SentencePiece model, .json a tokenizer.json
    #[arg(short, long)]
    output: PathBuf,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Train(arguments) => return ranks::run("cpu", |worker| train(arguments, worker)),
        Command::Encode(arguments) => encode(arguments),
        Command::Decode(arguments) => decode(arguments),
        Command::Convert(arguments) => convert(arguments),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn train(arguments: &Train, Worker { device, communicator }: Worker) -> Result<ExitCode> {
    if communicator.is_first() {
        check_output(&arguments.output)?;
    }
    let mut config = TrainerConfig { vocab_size: arguments.vocab_size, ..TrainerConfig::default() };
    if let Some(coverage) = arguments.character_coverage {
        config.character_coverage = coverage;
    }
    let sources = data::files(&arguments.input)?;
    let count = || data::count_words(&sources, arguments.lossy, &config, &communicator);
    let words = device.processor().install(count)?;
    if communicator.is_first() {
        // The other ranks wait, and leave their cores of this host.
        let cpu = engine::Cpu::detect()?;
        let tokenizer = cpu.install(|| tokenizer::train_on_words(words, &config, report))?;
        let json = tokenizer.to_json()?;
        write_atomically(&arguments.output, |out| out.write_all(json.as_bytes()))?;
        tell!("{} pieces written to {}", tokenizer.vocab_size(), arguments.output.display());
    }
    let timeout = communicator.set_timeout(ranks::LONGEST_RUN);
    communicator.barrier("the vocabulary")?;
    communicator.set_timeout(timeout);
    Ok(ExitCode::SUCCESS)
}

/// One line on standard error for each step of training.
pub(crate) fn report(progress: Progress) {
    match progress {
        Progress::Counted { lines, skipped, words, distinct, characters } => {
            tell!("{lines} lines, {words} words, {distinct} of them distinct, {characters} characters");
            if skipped > 0 {
                tell!("{skipped} lines were too long and were skipped");
            }
        }
        Progress::Seeded { pieces } => tell!("{pieces} seed pieces"),
        Progress::Iterated { round, pieces, log_likelihood_per_word } => {
            tell!("round {round}: {pieces} pieces, {log_likelihood_per_word:.4} nats per word");
        }
        Progress::Pruned { .. } => {}
    }
}

/// The line without its line break, or the first byte that is not UTF-8.
fn text_of(line: &[u8]) -> Result<&str, String> {
    let text = std::str::from_utf8(line).map_err(|error| {
        let at = error.valid_up_to();
        format!("invalid UTF-8 at byte {} (0x{:02X})", at + 1, line[at])
    })?;
    Ok(text.trim_end_matches(['\n', '\r']))
}

/// Texts that are encoded together: enough to keep all cores busy, few enough for early output.
const BATCH: usize = 4096;

fn encode(arguments: &Encode) -> Result<()> {
    let tokenizer = Tokenizer::load(&arguments.tokenizer)?;
    let specials = tokenizer.specials();
    let mut out = BufWriter::new(results());
    let mut input = std::io::stdin().lock();
    let cpu = engine::Cpu::detect()?;
    let mut lines = 0u64;
    loop {
        let mut texts = Vec::with_capacity(BATCH);
        let mut line = Vec::new();
        while texts.len() < BATCH && input.read_until(b'\n', &mut line).context("standard input")? > 0 {
            lines += 1;
            let text = text_of(&line).map_err(|problem| anyhow!("standard input, line {lines}: {problem}"))?;
            texts.push(text.to_owned());
            line.clear();
        }
        if texts.is_empty() {
            break;
        }
        for ids in cpu.install(|| tokenizer.encode_batch(&texts))? {
            let (before, behind) =
                if arguments.specials { (Some(specials.cls), Some(specials.sep)) } else { (None, None) };
            let mut separator = "";
            for id in before.into_iter().chain(ids).chain(behind) {
                write!(out, "{separator}{id}")?;
                separator = " ";
            }
            writeln!(out)?;
        }
    }
    out.flush()?;
    Ok(())
}

fn decode(arguments: &Decode) -> Result<()> {
    let tokenizer = Tokenizer::load(&arguments.tokenizer)?;
    let mut out = BufWriter::new(results());
    for (i, line) in std::io::stdin().lock().lines().enumerate() {
        let line = line.context("standard input")?;
        let ids = line
            .split_whitespace()
            .map(|word| {
                let id: u32 =
                    word.parse().ok().filter(|&id| (id as usize) < tokenizer.vocab_size()).with_context(|| {
                        format!("line {}: `{word}` is not an id; expected 0 to {}", i + 1, tokenizer.vocab_size() - 1)
                    })?;
                Ok(id)
            })
            .collect::<Result<Vec<_>>>()?;
        writeln!(out, "{}", tokenizer.decode(&ids)?)?;
    }
    out.flush()?;
    Ok(())
}

fn convert(arguments: &Convert) -> Result<()> {
    let Convert { tokenizer, output } = arguments;
    check_output(output)?;
    let tokenizer = Tokenizer::load(tokenizer)?;
    let content = match output.extension().and_then(|extension| extension.to_str()) {
        Some("model") => tokenizer.to_spiece()?,
        Some("json") => tokenizer.to_json()?.into_bytes(),
        _ => bail!("{}: expected a name that ends in .model or .json, which sets the format", output.display()),
    };
    write_atomically(output, |out| out.write_all(&content))?;
    tell!("{} pieces written to {}", tokenizer.vocab_size(), output.display());
    Ok(())
}
