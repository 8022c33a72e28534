//! `albert tokenizer`: train a vocabulary, encode lines of text, decode lines of ids.

use crate::{
    input::{Batches, Errors, Faults, Kind, Line, Lines, answer, null_entry, null_text},
    numbers::whole,
    output::{Sink, check_ending, tell},
    progress::Reading,
    ranks,
    running::{Field, Places, Threads},
};
use albert::{
    data::{self, CorpusSettings},
    tokenizer::{self, Cleaning, Loss, LossKind, Normalization, Progress, Tokenizer, TrainerConfig},
    train::Worker,
};
use albert_tasks::finetune::Offsets;
use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use engine::io::{check_output, limits::text::STANDARD_INPUT, write_atomically};
use serde_json::{Value, json};
use std::{
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
    /// Text files, one sentence per line, also .gz and .zst; a quoted pattern such as "texts/*.txt" expands to its files in
    /// order; - is standard input
    #[arg(required = true)]
    input: Vec<PathBuf>,
    /// Field of JSON Lines with the text [default: the files are text]
    #[arg(long)]
    field: Option<String>,
    #[command(flatten)]
    threads: Threads,
    /// Output file, .json (tokenizer convert makes a spiece.model of it)
    #[arg(short, long, default_value = "tokenizer.json")]
    output: PathBuf,
    /// Number of pieces, including special tokens
    #[arg(long, default_value_t = 30_000, value_parser = whole::<1, usize>)]
    vocab_size: usize,
    /// Fraction of the text's characters that the alphabet covers
    #[arg(long)]
    character_coverage: Option<f64>,
    /// Distinguish upper and lower case [default: lower case]
    #[arg(long)]
    cased: bool,
    /// Keep accents, vowel signs and other marks [default: stripped]
    #[arg(long)]
    keep_accents: bool,
    /// Unicode normalization [default: nfkc with --cased or --keep-accents, otherwise the rules of the released English models]
    #[arg(long, value_enum)]
    normalization: Option<Form>,
    /// Replace bytes that are not UTF-8 instead of rejecting the file
    #[arg(long)]
    lossy: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// Compatibility forms become usual ones: full-width letters, half-width kana, ligatures, x² to x2
    Nfkc,
    /// Composed and decomposed spellings become one
    Nfc,
    /// Characters are unchanged; requires --keep-accents
    None,
}

impl Train {
    /// Cleaning according to the flags; by default that of the released English models.
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
    #[command(flatten)]
    field: Field,
    /// Print JSON, one object per line: ids, pieces, and the position of each piece in the text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    threads: Threads,
}

/// Input and output of lines.
#[derive(Debug, Args)]
pub(crate) struct Files {
    /// File of lines, as --input [default: standard input]
    #[arg(conflicts_with = "input", value_name = "INPUT")]
    file: Option<PathBuf>,
    /// File of lines, also .gz and .zst; - is standard input
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// File for the results, which appears when all results are written; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    faults: Faults,
}

impl Files {
    fn open(&self, kind: Kind) -> Result<(Lines, Sink)> {
        let input = self.file.as_deref().or(self.input.as_deref()).unwrap_or(Path::new(STANDARD_INPUT));
        Ok((Lines::open(input, kind)?, Sink::create(self.output.as_deref())?))
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
    check_ending(&arguments.output, &["json"])?;
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
    let reading = communicator.is_first().then(|| Reading::of(&sources));
    let words = device.processor().install(count)?;
    drop(reading);
    if communicator.is_first() {
        // The other ranks wait and do not use their cores of this host.
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

/// Prints one line on standard error for each step of training.
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

/// Warning with the share of words, an example and the flag that preserves them.
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

/// Number of texts that are encoded together: enough to keep all cores busy.
const BATCH: usize = 4096;

fn encode(arguments: &Encode) -> Result<()> {
    let (mut lines, mut out) = arguments.files.open(Kind::texts(arguments.field.field.as_ref(), false))?;
    let tokenizer = Tokenizer::load(&arguments.tokenizer)?;
    let cpu = engine::Cpu::detect()?;
    let around = if arguments.specials { tokenizer.frame().single.clone() } else { Default::default() };
    let run = |texts: &[String]| {
        if arguments.json {
            return texts
                .iter()
                .map(|text| Ok(Ok(pieces(&tokenizer, text, &around, arguments.places.offsets())?)))
                .collect();
        }
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let encoded = cpu.install(|| tokenizer.encode_batch(&texts))?.into_iter().map(|ids| {
            let (mut text, mut digits) = (String::with_capacity(6 * ids.len()), itoa::Buffer::new());
            for &id in around[0].iter().chain(&ids).chain(&around[1]) {
                if !text.is_empty() {
                    text.push(' ');
                }
                text += digits.format(id);
            }
            Ok(text)
        });
        Ok(encoded.collect())
    };
    let parse = |line: &Line| Ok(line.text.clone());
    let ended = stream(&mut lines, &mut out, arguments.files.faults, parse, run, arguments.json.then_some("ids"))?;
    out.finish()?;
    ended.map_or(Ok(()), Err)
}

/// Processes lines, see [`answer`]; the entry of an unusable line is JSON if `json` is the name of its field. Returns the error
/// that ends the command.
fn stream(
    lines: &mut Lines,
    out: &mut Sink,
    faults: Faults,
    parse: impl Fn(&Line) -> Result<String>,
    mut run: impl FnMut(&[String]) -> Result<Vec<Result<String, String>>>,
    json: Option<&str>,
) -> Result<Option<anyhow::Error>> {
    let mut errors = Errors::new(faults, false);
    let entry = |(line, result): (Line, Result<(String, String), String>)| match (result, json) {
        (Ok((_, text)), _) => text + "\n",
        (Err(reason), Some(field)) => format!("{}\n", Value::Object(null_entry(field, line.number, &reason))),
        (Err(reason), None) => format!("{}\n", null_text(line.number, &reason)),
    };
    let run = |texts: &[String]| run(texts).map(|results| || Ok(results));
    let write = |entries: Vec<_>| out.put(&entries.into_iter().map(entry).collect::<String>());
    let (total, ended) = answer(lines, Batches::host(BATCH), &mut errors, parse, run, write)?;
    errors.tell(total);
    Ok(ended)
}

/// Ids, pieces and positions of a text as JSON. Special pieces have an empty position.
fn pieces(tokenizer: &Tokenizer, text: &str, around: &[Vec<u32>; 2], offsets: Offsets) -> Result<String> {
    let encoding = tokenizer.encode_with_offsets(text)?;
    let before = around[0].iter().map(|&id| (id, (0, 0)));
    let behind = around[1].iter().map(|&id| (id, (text.len(), text.len())));
    let within = encoding.ids.iter().copied().zip(encoding.offsets.iter().copied());
    let all: Vec<_> = before.chain(within).chain(behind).collect();
    let ids: Vec<u32> = all.iter().map(|(id, _)| *id).collect();
    let pieces: Vec<_> = ids.iter().map(|&id| tokenizer.piece(id)).collect();
    let places: Vec<_> = all.iter().map(|(_, place)| *place).collect();
    let places: Vec<_> = offsets.of_all(text, &places).into_iter().map(<[usize; 2]>::from).collect();
    Ok(json!({ "ids": ids, "pieces": pieces, "offsets": places }).to_string())
}

fn decode(arguments: &Decode) -> Result<()> {
    let (mut lines, mut out) = arguments.files.open(Kind::Texts { pairs: false })?;
    let tokenizer = Tokenizer::load(&arguments.tokenizer)?;
    let run = |lines: &[String]| lines.iter().map(|line| Ok(of_ids(&tokenizer, line))).collect();
    let parse = |line: &Line| Ok(line.text.clone());
    let ended = stream(&mut lines, &mut out, arguments.files.faults, parse, run, None)?;
    out.finish()?;
    ended.map_or(Ok(()), Err)
}

/// Decodes a line of ids.
fn of_ids(tokenizer: &Tokenizer, line: &str) -> Result<String, String> {
    let last = tokenizer.vocab_size() - 1;
    let id = |word: &str| word.parse().ok().filter(|&id: &u32| id as usize <= last).ok_or_else(|| word.to_owned());
    let ids = line.split_whitespace().map(id).collect::<Result<Vec<_>, _>>();
    let ids = ids.map_err(|word| format!("`{word}` is not an id; expected 0 to {last}"))?;
    tokenizer.decode(&ids).map_err(|error| error.to_string())
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
