//! `albert tokenizer`: train a vocabulary, encode lines of text, decode lines of ids.

use crate::{
    input::{Line, Lines},
    numbers::whole,
    output::{Sink, tell},
    ranks,
    running::Threads,
};
use albert::{
    data::{self, CorpusSettings},
    tokenizer::{self, Cleaning, Loss, LossKind, Normalization, Progress, Tokenizer, TrainerConfig},
    train::Worker,
};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use engine::io::{check_output, limits::text::STANDARD_INPUT, write_atomically};
use serde_json::json;
use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
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
#[command(after_help = "Examples:
  albert tokenizer train \"texts/*.txt\" --vocab-size 30000 -o tokenizer.json
  albert tokenizer train german.txt --cased --keep-accents -o tokenizer.json
  zcat dump.jsonl.gz | albert tokenizer train --field text -o tokenizer.json -")]
pub(crate) struct Train {
    /// Text files, one sentence per line, also .gz and .zst; a quoted pattern such as "texts/*.txt" is its files in order; - is
    /// standard input
    #[arg(required = true)]
    input: Vec<PathBuf>,
    /// Field of JSON Lines that holds the text [default: the files are text]
    #[arg(long)]
    field: Option<String>,
    #[command(flatten)]
    threads: Threads,
    /// Output file
    #[arg(short, long, default_value = "tokenizer.json")]
    output: PathBuf,
    /// Number of pieces, special tokens included
    #[arg(long, default_value_t = 30_000, value_parser = whole::<1, usize>)]
    vocab_size: usize,
    /// Fraction of the text's characters that the alphabet covers
    #[arg(long)]
    character_coverage: Option<f64>,
    /// Keep upper and lower case apart [default: lower case]
    #[arg(long)]
    cased: bool,
    /// Keep accents, vowel signs and other marks [default: stripped]
    #[arg(long)]
    keep_accents: bool,
    /// Unicode normalization [default: nfkc with --cased or --keep-accents, otherwise the rules of the released English models]
    #[arg(long, value_enum)]
    normalization: Option<Form>,
    /// Replace bytes that are not UTF-8 instead of refusing the file
    #[arg(long)]
    lossy: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// Compatibility forms become usual ones: full-width letters, half-width kana, ligatures, x² to x2
    Nfkc,
    /// Composed and decomposed spellings become one
    Nfc,
    /// Characters stay as they are; needs --keep-accents
    None,
}

impl Train {
    /// Cleaning by the flags; without a flag, that of the released English models.
    fn cleaning(&self) -> Result<Cleaning> {
        let normalization = match self.normalization {
            None if !self.cased && !self.keep_accents => Normalization::Released,
            None | Some(Form::Nfkc) => Normalization::Nfkc,
            Some(Form::Nfc) => Normalization::Nfc,
            Some(Form::None) if self.keep_accents => Normalization::None,
            Some(Form::None) => bail!(
                "--normalization none cannot strip accents, which are parts of letters; add --keep-accents, or use nfkc or nfc"
            ),
        };
        Ok(Cleaning { lowercase: !self.cased, strip_accents: !self.keep_accents, normalization })
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert tokenizer encode --tokenizer tokenizer.json texts.txt -o ids.txt
  echo \"the river\" | albert tokenizer encode --tokenizer runs/model --json -")]
pub(crate) struct Encode {
    /// Tokenizer: tokenizer.json, spiece.model, vocab.txt, or a model folder with one of them
    #[arg(long)]
    tokenizer: PathBuf,
    /// Put [CLS] before and [SEP] after each text
    #[arg(long)]
    specials: bool,
    #[command(flatten)]
    files: Files,
    /// Print JSON, one object per line: ids, pieces, and the bytes of each piece in the text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    threads: Threads,
}

/// Input and output of lines.
#[derive(Debug, Args)]
pub(crate) struct Files {
    /// File of lines, also .gz and .zst; - is standard input, the default
    #[arg(value_name = "INPUT")]
    input: Option<PathBuf>,
    /// File for the results, which appears when all are written; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Files {
    fn open(&self) -> Result<(Lines, Sink)> {
        let input = self.input.as_deref().unwrap_or(Path::new(STANDARD_INPUT));
        Ok((Lines::open(input)?, Sink::create(self.output.as_deref())?))
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  albert tokenizer decode --tokenizer tokenizer.json ids.txt")]
pub(crate) struct Decode {
    /// Tokenizer: tokenizer.json, spiece.model, vocab.txt, or a model folder with one of them
    #[arg(long)]
    tokenizer: PathBuf,
    #[command(flatten)]
    files: Files,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  albert tokenizer convert --tokenizer tokenizer.json -o spiece.model")]
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
        Command::Train(Train { threads, .. }) | Command::Encode(Encode { threads, .. }) => threads.choose(),
        _ => {}
    }
    match command {
        Command::Train(arguments) => return ranks::run("cpu", |worker| train(arguments, worker)),
        Command::Encode(arguments) => encode(arguments),
        Command::Decode(arguments) => decode(arguments),
        Command::Convert(arguments) => convert(arguments),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn train(arguments: &Train, Worker { device, communicator }: Worker) -> Result<ExitCode> {
    let cleaning = arguments.cleaning()?;
    if communicator.is_first() {
        check_output(&arguments.output)?;
    }
    let mut config = TrainerConfig { vocab_size: arguments.vocab_size, cleaning, ..TrainerConfig::default() };
    if let Some(coverage) = arguments.character_coverage {
        config.character_coverage = coverage;
    }
    let sources = data::files(&arguments.input)?;
    let corpus = CorpusSettings { field: arguments.field.clone(), lossy: arguments.lossy, ..CorpusSettings::default() };
    let count = || data::count_words(&sources, &corpus, &config, &communicator);
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
        Progress::Lost(loss) => tell!("warning: {}", describe(&loss)),
        Progress::Uncovered { characters, share } => {
            let shown: Vec<String> =
                characters.iter().take(5).map(|(c, count)| format!("{} ({count})", c.escape_debug())).collect();
            tell!(
                "{} rare characters have no piece and become <unk>, {:.3} % of the text: {}; --character-coverage 1 keeps them",
                characters.len(),
                100.0 * share,
                shown.join(", ")
            );
        }
        Progress::Seeded { pieces } => tell!("{pieces} seed pieces"),
        Progress::Iterated { round, pieces, log_likelihood_per_word } => {
            tell!("round {round}: {pieces} pieces, {log_likelihood_per_word:.4} nats per word");
        }
        Progress::Pruned { .. } => {}
    }
}

/// A warning that names the share of words, an example and the flag that keeps them.
fn describe(Loss { kind, changed, merged, example: [first, second] }: &Loss) -> String {
    let (changed, merged) = (100.0 * changed, 100.0 * merged);
    match kind {
        LossKind::Accents if merged > 0.0 => format!(
            "stripping accents and marks changes {changed:.1} % of the words and makes {merged:.2} % equal to other words, such \
             as {first} and {second}; --keep-accents keeps them apart"
        ),
        LossKind::Accents => format!(
            "stripping accents and marks changes {changed:.1} % of the words, such as {first} to {second}; --keep-accents keeps \
             them"
        ),
        LossKind::Joiners => format!(
            "zero-width non-joiners (U+200C) become spaces and cut {changed:.1} % of the words, such as {first} to {second}; \
             --keep-accents or --normalization nfkc keeps them"
        ),
        LossKind::DotlessI => format!(
            "lower case turns I into i, but {changed:.1} % of the words contain ı, such as {first}, whose capitals become \
             {second}; --cased keeps them apart"
        ),
    }
}

/// Texts that are encoded together: enough to keep all cores busy.
const BATCH: usize = 4096;

fn encode(arguments: &Encode) -> Result<()> {
    let tokenizer = Tokenizer::load(&arguments.tokenizer)?;
    let (mut lines, mut out) = arguments.files.open()?;
    let cpu = engine::Cpu::detect()?;
    let specials = tokenizer.specials();
    let around = if arguments.specials { (Some(specials.cls), Some(specials.sep)) } else { (None, None) };
    loop {
        let batch = lines.batch(BATCH)?;
        if batch.is_empty() {
            break;
        }
        let mut text = String::new();
        if arguments.json {
            for line in &batch {
                text += &pieces(&tokenizer, line, around).with_context(|| lines.place(line))?;
            }
        } else {
            let texts: Vec<&str> = batch.iter().map(|line| line.text.as_str()).collect();
            for ids in cpu.install(|| tokenizer.encode_batch(&texts))? {
                let mut separator = "";
                for id in around.0.into_iter().chain(ids).chain(around.1) {
                    let _ = write!(text, "{separator}{id}");
                    separator = " ";
                }
                text.push('\n');
            }
        }
        out.put(&text)?;
    }
    out.finish()
}

/// Ids, pieces and places of a line as JSON. Special pieces have an empty place.
fn pieces(tokenizer: &Tokenizer, line: &Line, around: (Option<u32>, Option<u32>)) -> Result<String> {
    let encoding = tokenizer.encode_with_offsets(&line.text)?;
    let before = around.0.map(|id| (id, (0, 0)));
    let behind = around.1.map(|id| (id, (line.text.len(), line.text.len())));
    let within = encoding.ids.iter().copied().zip(encoding.offsets.iter().copied());
    let all: Vec<_> = before.into_iter().chain(within).chain(behind).collect();
    let ids: Vec<u32> = all.iter().map(|(id, _)| *id).collect();
    let pieces: Vec<_> = ids.iter().map(|&id| tokenizer.piece(id)).collect();
    let offsets: Vec<_> = all.iter().map(|(_, place)| place).collect();
    Ok(format!("{}\n", json!({ "ids": ids, "pieces": pieces, "offsets": offsets })))
}

fn decode(arguments: &Decode) -> Result<()> {
    let tokenizer = Tokenizer::load(&arguments.tokenizer)?;
    let (mut lines, mut out) = arguments.files.open()?;
    loop {
        let batch = lines.batch(BATCH)?;
        if batch.is_empty() {
            break;
        }
        let mut text = String::new();
        for line in &batch {
            let ids = line.text.split_whitespace().map(|word| {
                let id: Option<u32> = word.parse().ok().filter(|&id| (id as usize) < tokenizer.vocab_size());
                id.with_context(|| {
                    let last = tokenizer.vocab_size() - 1;
                    format!("{}: `{word}` is not an id; expected 0 to {last}", lines.place(line))
                })
            });
            text += &tokenizer.decode(&ids.collect::<Result<Vec<_>>>()?)?;
            text.push('\n');
        }
        out.put(&text)?;
    }
    out.finish()
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
