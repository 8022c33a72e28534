//! Lines of text from a file, a pipe or standard input, compressed or not, as they come.
//!
//! ```text
//! reader thread ── up to 256 lines ──► batch of those that are there ── model ──► one line of output each, flushed
//! ```
//!
//! A command waits for one line and takes those behind it that have arrived: a script that asks line by line is answered line by
//! line, and a file fills batches.

use anyhow::{Result, anyhow, bail};
use engine::io::limits::text::{self, LineError, STANDARD_INPUT};
use std::{
    io,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
};

/// Lines of a batch.
pub(crate) const BATCH: usize = 64;

/// Lines that wait for the model.
const WAITING: usize = 256;

/// Longest line, in bytes.
const LONGEST: u64 = 16 << 20;

/// A line without its end, and its number, counted from 1.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) number: u64,
    pub(crate) text: String,
}

/// Lines that another thread reads.
#[derive(Debug)]
pub(crate) struct Lines {
    name: String,
    receiver: Receiver<Result<Line>>,
    /// The error behind the lines of the last batch.
    failed: Option<anyhow::Error>,
}

/// The name of `path` in messages.
pub(crate) fn name_of(path: &Path) -> String {
    if text::is_standard_input(path) { "standard input".to_owned() } else { path.display().to_string() }
}

impl Lines {
    /// Lines of the file at `path`, or of standard input for `-`. A byte-order mark and carriage returns are removed.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let (sender, receiver) = sync_channel(WAITING);
        let (name, path) = (name_of(path), path.to_owned());
        let read = {
            let name = name.clone();
            move || {
                if let Err(error) = read(&path, &name, &sender) {
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

    /// Waits for a line, and takes those that have arrived, at most `most`. Empty at the end.
    pub(crate) fn batch(&mut self, most: usize) -> Result<Vec<Line>> {
        let mut batch = Vec::new();
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut next = self.receiver.recv().ok();
        while let Some(line) = next {
            match line {
                Ok(line) => batch.push(line),
                Err(error) if batch.is_empty() => return Err(error),
                // The lines before it are answered first.
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

fn read(path: &Path, name: &str, sender: &SyncSender<Result<Line>>) -> Result<()> {
    let failed = |error: io::Error| anyhow!("{name} cannot be read: {error}");
    let mut lines = text::Lines::new(text::open(path).map_err(failed)?, LONGEST);
    for number in 1.. {
        let text = match lines.next() {
            Ok(Some(text)) => text.to_owned(),
            Ok(None) => break,
            Err(LineError::Read(error)) => return Err(failed(error)),
            Err(LineError::TooLong(longest)) => bail!(
                "{}: a line of more than {} MiB; put each text on a line of its own",
                place(name, number),
                longest >> 20
            ),
            Err(LineError::NotUtf8 { at, byte }) => {
                bail!("{}: invalid UTF-8 at byte {at} (0x{byte:02X})", place(name, number))
            }
        };
        if sender.send(Ok(Line { number, text })).is_err() {
            break;
        }
    }
    Ok(())
}

/// The path of an argument that is a text, or `-` for the lines of standard input; `--input FILE` has precedence.
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
        let mut lines = Lines::open(file.path()).unwrap();
        let mut all = vec![];
        loop {
            match lines.batch(most) {
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
        assert_eq!(lines.len(), 2);
        let error = end.unwrap_err().to_string();
        assert!(error.ends_with(":3: invalid UTF-8 at byte 4 (0xFF)"), "{error}");
        let mut lines = Lines::open(Path::new("no such file")).unwrap();
        assert!(lines.batch(1).unwrap_err().to_string().contains("no such file cannot be read"));
    }
}
