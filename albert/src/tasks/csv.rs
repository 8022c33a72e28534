//! Records of a CSV file, as Python's `csv` and pandas read it.
//!
//! ```text
//! a,"b, c",12" disc      a double quote opens a value only as its first character: three values
//! "5"" disc"             inside quotes a doubled one stands for one: 5" disc
//! "5" disc               what follows the closing quote belongs to the value: 5 disc
//! "a,b                   a value whose quote is never closed is refused, with the line of that quote
//! ```
//!
//! Rust's `csv` reads a quote that is never closed to the end of the file without a word, so [`Quotes`] follows the same
//! states beside it.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::error::{Place, TaskError};
use super::lines::{self, Input};

/// Where in a value a byte is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before its first byte.
    Start,
    /// In a value without quotes, or after the closing one.
    Plain,
    /// Inside quotes.
    Quoted,
    /// After a quote inside quotes: the closing one, or the first of two.
    Closing,
}

/// Bytes on their way to the parser, and whether a quote is open.
struct Quotes {
    file: Input,
    state: State,
    line: u64,
    /// The line of the quote that was opened last.
    opened: u64,
    is_over: bool,
}

impl Quotes {
    fn follow(&mut self, byte: u8) {
        self.state = match (self.state, byte) {
            (State::Start, b'"') => {
                self.opened = self.line;
                State::Quoted
            }
            (State::Closing, b'"') => State::Quoted,
            (State::Quoted, b'"') => State::Closing,
            (State::Quoted, _) => State::Quoted,
            (_, b',' | b'\n' | b'\r') => State::Start,
            _ => State::Plain,
        };
        self.line += u64::from(byte == b'\n');
    }
}

impl Read for Quotes {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(out)?;
        self.is_over = count == 0 && !out.is_empty();
        out[..count].iter().for_each(|&byte| self.follow(byte));
        Ok(count)
    }
}

/// The records of a file.
pub(super) struct CsvRecords {
    path: Arc<Path>,
    reader: csv::Reader<Quotes>,
    record: csv::ByteRecord,
    line: u64,
}

impl CsvRecords {
    pub(super) fn open(path: &Path) -> Result<Self, TaskError> {
        let mut file = lines::open(path)?;
        lines::skip_mark(&mut file).map_err(TaskError::io(path, "read"))?;
        let quotes = Quotes { file, state: State::Start, line: 1, opened: 0, is_over: false };
        let reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(quotes);
        Ok(Self { path: path.into(), reader, record: csv::ByteRecord::new(), line: 0 })
    }

    /// Reads the next record; whether there was one.
    pub(super) fn next(&mut self) -> Result<bool, TaskError> {
        let line = self.reader.position().line();
        let is_row = self.reader.read_byte_record(&mut self.record).map_err(|error| match error.into_kind() {
            csv::ErrorKind::Io(source) => TaskError::io(&self.path, "read")(source),
            other => TaskError::Csv { at: self.at(line), problem: format!("{other:?}") },
        })?;
        // The parser asks for more bytes than there are only in a record that the end of the file ends.
        let quotes = self.reader.get_ref();
        if quotes.is_over && quotes.state == State::Quoted {
            let problem = "a double quote that is opened and never closed".to_owned();
            return Err(TaskError::Csv { at: self.at(quotes.opened), problem });
        }
        if !is_row {
            return Ok(false);
        }
        self.line = self.record.position().map_or(line, csv::Position::line);
        if let Some(column) = self.record.iter().position(|field| std::str::from_utf8(field).is_err()) {
            let problem = format!("invalid UTF-8 in column {}", column + 1);
            return Err(TaskError::Csv { at: self.place(), problem });
        }
        Ok(true)
    }

    /// Values of the record that was read last.
    pub(super) fn len(&self) -> usize {
        self.record.len()
    }

    /// The values of the record that was read last.
    pub(super) fn values(&self) -> impl Iterator<Item = &str> {
        self.record.iter().map(text)
    }

    /// A value of the record that was read last.
    pub(super) fn value(&self, column: usize) -> &str {
        self.record.get(column).map_or("", text)
    }

    /// Where the record that was read last begins.
    pub(super) fn place(&self) -> Place {
        self.at(self.line)
    }

    fn at(&self, line: u64) -> Place {
        Place { path: self.path.clone(), line }
    }
}

fn text(field: &[u8]) -> &str {
    std::str::from_utf8(field).expect("checked when it was read")
}
