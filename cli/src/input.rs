//! Lines of text from a file, a pipe or standard input, compressed or not, as they arrive.
//!
//! ```text
//! reader thread ── up to 1,024 lines ──► batch of available lines ── model ──► one line of output each, flushed
//! ```
//!
//! A command waits for one line and then reads all lines that have arrived: a script that sends one line at a time receives one
//! result at a time, and a file fills batches. While a GPU computes a batch, the one before it is written and the next one is
//! tokenized, if its lines have arrived: no result waits for further lines.
//!
//! An unusable line affects only itself: its entry is null, with its number and the reason ([`answer`], [`Errors`]).

use crate::output::tell;
use anyhow::{Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use engine::{
    Device,
    io::limits::{
        mended_surrogates,
        text::{self, LineError, STANDARD_INPUT},
    },
};
use serde_json::{Map, Value, json};
use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
};

/// Number of lines of a batch on the CPU.
const BATCH: usize = 64;

/// Number of lines of a batch on a GPU, which the model sorts by length and splits by tokens.
const GPU_BATCH: usize = 1024;

/// Maximum number of lines waiting for the model.
const WAITING: usize = GPU_BATCH;

/// Size and order of a command's batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batches {
    /// Maximum number of lines of a batch.
    lines: usize,
    /// True if a batch begins before the previous one is finished.
    is_ahead: bool,
}

impl Batches {
    /// Batches of at most `lines` for a model on `device`.
    pub(crate) fn on(device: &Device, lines: Option<usize>) -> Self {
        let is_ahead = device.gpu().is_some();
        Self { lines: lines.unwrap_or(if is_ahead { GPU_BATCH } else { BATCH }), is_ahead }
    }

    /// Batches of at most `lines` that do not use a device.
    pub(crate) fn host(lines: usize) -> Self {
        Self { lines, is_ahead: false }
    }
}

/// Maximum length of a line, in bytes.
const LONGEST: u64 = 16 << 20;

/// A line without its end, and its number, counted from 1.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) number: u64,
    pub(crate) text: String,
    /// Reason why it cannot be used.
    problem: Option<String>,
}

/// Kind of lines that a command reads.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Texts, or pairs separated by a TAB.
    Texts { pairs: bool },
    /// JSON objects with the text in a field.
    Field(String),
    /// JSON objects.
    Objects,
}

impl Kind {
    /// Texts, or a field of objects.
    pub(crate) fn texts(field: Option<&String>, pairs: bool) -> Self {
        field.map_or(Self::Texts { pairs }, |field| Self::Field(field.clone()))
    }

    /// Rejects a file whose name indicates another kind.
    fn check(&self, path: &Path) -> Result<()> {
        const TABLES: &[&str] = &["csv", "tsv"];
        const OBJECTS: &[&str] = &["jsonl", "ndjson", "json"];
        const OTHERS: &[&str] = &[
            "parquet",
            "arrow",
            "feather",
            "npy",
            "npz",
            "pt",
            "pth",
            "bin",
            "safetensors",
            "pkl",
            "h5",
            "xlsx",
            "xls",
            "ods",
            "docx",
            "doc",
            "pdf",
        ];
        let of = |path: &Path| path.extension().map_or(String::new(), |name| name.to_string_lossy().to_lowercase());
        let (name, ending) = (path.display(), of(path));
        let ending = if matches!(&*ending, "gz" | "zst") { of(&path.with_extension("")) } else { ending };
        let is_in = |list: &[&str]| list.contains(&ending.as_str());
        match self {
            Self::Texts { .. } if is_in(OBJECTS) => {
                bail!("{name}: lines of JSON, expected a text per line; name the field of the text with --field NAME")
            }
            Self::Texts { pairs: true } if ending == "tsv" => Ok(()),
            _ if is_in(TABLES) => {
                let expected = if matches!(self, Self::Texts { .. }) { "a text per line" } else { "lines of JSON" };
                bail!("{name}: a table, expected {expected}; convert it, or use albert predict, which reads tables")
            }
            _ if is_in(OTHERS) => {
                bail!("{name}: a .{ending} file is not supported; expected lines of text, such as .txt or .jsonl")
            }
            _ => Ok(()),
        }
    }

    /// Extracts the text of a line.
    fn text(&self, line: &str) -> Result<String> {
        let Self::Field(field) = self else { return Ok(line.to_owned()) };
        let value: Value = serde_json::from_str(&mended_surrogates(line)).map_err(|error| anyhow!("{error}"))?;
        match field.split('.').try_fold(&value, |value, key| value.get(key)) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(other @ (Value::Number(_) | Value::Bool(_))) => Ok(other.to_string()),
            Some(_) => bail!("the field {field:?} is neither text nor a number"),
            None => bail!("no field {field:?}"),
        }
    }
}

/// Lines read by another thread.
#[derive(Debug)]
pub(crate) struct Lines {
    name: String,
    receiver: Receiver<Result<Line>>,
    /// Error after the lines of the last batch.
    failed: Option<anyhow::Error>,
}

/// Name of `path` in messages.
pub(crate) fn name_of(path: &Path) -> String {
    if text::is_standard_input(path) { "standard input".to_owned() } else { path.display().to_string() }
}

impl Lines {
    /// Lines of the file at `path`, or of standard input for `-`. A byte-order mark and carriage returns are removed.
    pub(crate) fn open(path: &Path, kind: Kind) -> Result<Self> {
        kind.check(path)?;
        let (sender, receiver) = sync_channel(WAITING);
        let (name, path) = (name_of(path), path.to_owned());
        let read = {
            let name = name.clone();
            move || {
                if let Err(error) = read(&path, &name, &kind, &sender) {
                    // The command may have ended.
                    let _ = sender.send(Err(error));
                }
            }
        };
        thread::Builder::new().name("reader".to_owned()).spawn(read)?;
        Ok(Self { name, receiver, failed: None })
    }

    /// `FILE:LINE`, for messages.
    pub(crate) fn place(&self, line: &Line) -> String {
        place(&self.name, line.number)
    }

    /// Lines for a command that ends at the first unusable one.
    pub(crate) fn strict(&mut self, most: usize) -> Result<Vec<Line>> {
        let batch = self.batch(most, true)?;
        match batch.iter().find_map(|line| Some((line, line.problem.as_ref()?))) {
            Some((line, problem)) => bail!("{}: {problem}", self.place(line)),
            None => Ok(batch),
        }
    }

    /// Returns the lines that have arrived, at most `most`; with `waits`, at least one. Empty at the end of the input, or without
    /// `waits` if none has arrived.
    pub(crate) fn batch(&mut self, most: usize, waits: bool) -> Result<Vec<Line>> {
        let mut batch = Vec::new();
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut next = if waits { self.receiver.recv().ok() } else { self.receiver.try_recv().ok() };
        while let Some(line) = next {
            match line {
                Ok(line) => batch.push(line),
                Err(error) if batch.is_empty() => return Err(error),
                // The lines before it are processed first.
                Err(error) => self.failed = Some(error),
            }
            let is_full = batch.len() == most || self.failed.is_some();
            next = if is_full { None } else { self.receiver.try_recv().ok() };
        }
        Ok(batch)
    }
}

fn place(name: &str, line: u64) -> String {
    if name == "standard input" { format!("{name}, line {line}") } else { format!("{name}:{line}") }
}

fn read(path: &Path, name: &str, kind: &Kind, sender: &SyncSender<Result<Line>>) -> Result<()> {
    let failed = |error: io::Error| anyhow!("{name} cannot be read: {error}");
    let mut lines = text::Lines::new(text::open(path).map_err(failed)?, LONGEST);
    for number in 1.. {
        let text = match lines.next() {
            Ok(Some(text)) => kind.text(text).map_err(|error| error.to_string()),
            Ok(None) => break,
            Err(LineError::Read(error)) => return Err(failed(error)),
            Err(LineError::TooLong(longest)) => {
                Err(format!("a line of more than {} MiB; put each text on a line of its own", longest >> 20))
            }
            Err(LineError::NotUtf8 { at, byte }) => Err(format!("invalid UTF-8 at byte {at} (0x{byte:02X})")),
        };
        let (text, problem) = match text {
            Ok(text) => (text, None),
            Err(problem) => (String::new(), Some(problem)),
        };
        if sender.send(Ok(Line { number, text, problem })).is_err() {
            break;
        }
    }
    Ok(())
}

/// Handling of a line that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnError {
    /// Write null, with the line number and the reason, and continue
    Skip,
    /// End with an error, after the results before the line
    Stop,
}

/// Flags of streams for unusable lines.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Faults {
    /// Handling of a line or example that cannot be used
    #[arg(long, value_enum, default_value = "skip")]
    on_error: OnError,
    /// Maximum number of skipped ones; one more ends the command
    #[arg(long, value_name = "N", default_value_t = MAX_ERRORS)]
    max_errors: u64,
}

/// Flags of commands that train or evaluate on their input.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct LabeledFaults {
    /// Handling of an example that cannot be used: skip omits it and lists it
    #[arg(long, value_enum, default_value = "stop")]
    on_error: OnError,
    /// Maximum number of skipped ones; one more ends the command
    #[arg(long, value_name = "N", default_value_t = MAX_ERRORS)]
    max_errors: u64,
}

const MAX_ERRORS: u64 = 1000;

impl LabeledFaults {
    /// Maximum number of examples to skip.
    pub(crate) fn skips(self) -> u64 {
        if self.on_error == OnError::Skip { self.max_errors } else { 0 }
    }
}

/// Lines that could not be used.
#[derive(Debug)]
pub(crate) struct Errors {
    faults: Faults,
    count: u64,
    first: String,
    /// True if the output has no room for reasons, so that they are printed.
    are_told: bool,
}

impl Errors {
    pub(crate) fn new(faults: Faults, are_told: bool) -> Self {
        Self { faults, count: 0, first: String::new(), are_told }
    }

    /// Number of lines that may still be skipped.
    pub(crate) fn left(&self) -> u64 {
        if self.faults.on_error == OnError::Skip { self.faults.max_errors - self.count } else { 0 }
    }

    /// Counts a line; `place` and `reason` form the error that ends the command if no more may be skipped.
    pub(crate) fn add(&mut self, place: &str, reason: &str) -> Result<()> {
        let Faults { on_error, max_errors } = self.faults;
        ensure!(on_error == OnError::Skip, "{place}: {reason}");
        ensure!(self.count < max_errors, "{place}: {reason}; {}", self.too_many());
        self.count += 1;
        if self.count == 1 {
            self.first = format!("{place}: {reason}");
        }
        if self.are_told {
            tell!("{place}: {reason}");
        }
        Ok(())
    }

    /// Description of the limit, once it is reached.
    pub(crate) fn too_many(&self) -> String {
        format!(
            "{} before it could not be used either (--max-errors {}); is it the right file?",
            self.count, self.faults.max_errors
        )
    }

    pub(crate) fn any(&self) -> bool {
        self.count > 0
    }

    /// Prints the count, if it is not zero.
    pub(crate) fn tell(&self, total: usize) {
        if self.any() {
            tell!("{} of {total} could not be used and are null, the first: {}", self.count, self.first);
        }
    }
}

/// Entry of an unusable line, as JSON: `field` is null, and `line` and `error` contain its number and the reason.
pub(crate) fn null_entry(field: &str, line: u64, reason: &str) -> Map<String, Value> {
    [(field.to_owned(), Value::Null), ("line".to_owned(), json!(line)), ("error".to_owned(), json!(reason))]
        .into_iter()
        .collect()
}

/// Entry of an unusable line, as text.
pub(crate) fn null_text(line: u64, reason: &str) -> String {
    format!("null\tline {line}: {}", albert_tasks::finetune::escaped(reason))
}

/// A line with an item and its result, or the reason why there is none.
pub(crate) type Entry<T, R> = (Line, Result<(T, R), String>);

/// Entries of a batch.
pub(crate) type Entries<T, R> = Vec<Entry<T, R>>;

/// A batch that has begun: `later` waits for the results of its items.
struct Begun<T, F> {
    lines: Vec<Line>,
    items: Vec<T>,
    /// For each line, the reason why it is not an item, if any.
    reasons: Vec<Result<(), String>>,
    later: Option<F>,
}

/// Processes lines until the input ends: `parse` converts each to an item, `run` begins the computation of items and returns a
/// function that waits for their results, `write` writes an entry for each line in order. Returns the number of lines, and the
/// error of the line that ends the command, if any; all entries before it are written.
pub(crate) fn answer<T, R, F: FnOnce() -> Result<Vec<Result<R, String>>>>(
    lines: &mut Lines,
    batches: Batches,
    errors: &mut Errors,
    parse: impl Fn(&Line) -> Result<T>,
    mut run: impl FnMut(&[T]) -> Result<F>,
    mut write: impl FnMut(Entries<T, R>) -> Result<()>,
) -> Result<(usize, Option<anyhow::Error>)> {
    let mut begin = |lines: Vec<Line>| -> Result<Begun<T, F>> {
        let (mut items, mut reasons) = (Vec::new(), Vec::new());
        for line in &lines {
            let item = line.problem.clone().map_or_else(|| parse(line).map_err(|error| format!("{error:#}")), Err);
            reasons.push(item.map(|item| items.push(item)));
        }
        let later = if items.is_empty() { None } else { Some(run(&items)?) };
        Ok(Begun { lines, items, reasons, later })
    };
    let (mut total, mut begun) = (0, VecDeque::new());
    loop {
        let is_idle = begun.is_empty();
        let batch = lines.batch(batches.lines, is_idle);
        let next = batch.and_then(|batch| if batch.is_empty() { Ok(None) } else { begin(batch).map(Some) });
        let (next, unfinished) = match next {
            Ok(Some(next)) => {
                begun.push_back(next);
                (Ok(()), usize::from(batches.is_ahead))
            }
            Ok(None) if is_idle => return Ok((total, None)),
            // Finish batches that have begun before waiting for more lines, and before reporting the error after them.
            other => (other.map(|_| ()), 0),
        };
        while begun.len() > unfinished {
            let (entries, ended) = finish(begun.pop_front().expect("there is one"), lines, errors)?;
            total += entries.len();
            write(entries)?;
            if ended.is_some() {
                return Ok((total, ended));
            }
        }
        next?;
    }
}

/// Entries of the lines of a batch, up to one that ends the command, with its error.
fn finish<T, R, F: FnOnce() -> Result<Vec<Result<R, String>>>>(
    batch: Begun<T, F>,
    lines: &Lines,
    errors: &mut Errors,
) -> Result<(Entries<T, R>, Option<anyhow::Error>)> {
    let results = batch.later.map_or_else(|| Ok(Vec::new()), |later| later())?;
    let mut results = batch.items.into_iter().zip(results);
    let mut entries = Vec::with_capacity(batch.lines.len());
    for (line, reason) in batch.lines.into_iter().zip(batch.reasons) {
        let result = reason.and_then(|()| {
            let (item, result) = results.next().expect("one for each item");
            result.map(|result| (item, result))
        });
        if let Err(reason) = &result
            && let Err(error) = errors.add(&lines.place(&line), reason)
        {
            return Ok((entries, Some(error)));
        }
        entries.push((line, result));
    }
    Ok((entries, None))
}

/// Path of an argument that may be a text, or `-` for the lines of standard input; `--input FILE` has precedence.
pub(crate) fn lines_of(text: Option<&str>, file: Option<&PathBuf>) -> Option<PathBuf> {
    match (file, text) {
        (Some(file), _) => Some(file.clone()),
        (None, Some(STANDARD_INPUT)) => Some(PathBuf::from(STANDARD_INPUT)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    fn all(bytes: &[u8], most: usize) -> (Vec<(u64, String)>, Result<()>) {
        let file = file(bytes);
        let mut lines = Lines::open(file.path(), Kind::Objects).unwrap();
        let mut all = vec![];
        loop {
            match lines.strict(most) {
                Ok(batch) if batch.is_empty() => return (all, Ok(())),
                Ok(batch) => {
                    assert!(batch.len() <= most);
                    all.extend(batch.into_iter().map(|line| (line.number, line.text)));
                }
                Err(error) => return (all, Err(error)),
            }
        }
    }

    #[test]
    fn lines_come_in_order_without_their_ends() {
        let text = "\u{feff}one\r\n\ntwo\nthree";
        for most in [1, 2, 64] {
            let (lines, end) = all(text.as_bytes(), most);
            end.unwrap();
            assert_eq!(lines, [(1, "one".into()), (2, String::new()), (3, "two".into()), (4, "three".into())]);
        }
        assert!(all(b"", 4).0.is_empty());
    }

    #[test]
    fn an_error_comes_after_the_lines_before_it() {
        let (lines, end) = all(b"one\ntwo\nthr\xffee\nfour\n", 64);
        assert!(lines.len() <= 2);
        let error = end.unwrap_err().to_string();
        assert!(error.ends_with(":3: invalid UTF-8 at byte 4 (0xFF)"), "{error}");
        let mut lines = Lines::open(Path::new("no such file"), Kind::Objects).unwrap();
        assert!(lines.batch(1, true).unwrap_err().to_string().contains("no such file cannot be read"));
    }
}
