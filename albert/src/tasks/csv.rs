//! CSV records, as Python's `csv` and pandas read them.
//!
//! ```text
//! a,"b, c",12" disc      a double quote opens a value only as its first character: three values
//! "5"" disc"             inside quotes, two quotes are one: 5" disc
//! "5" disc               text after the closing quote is part of the value: 5 disc
//! "a,b                   a quote that is never closed is an error, with its line
//! ```
//!
//! The `csv` crate accepts a quote that is never closed, so [`Quotes`] tracks the same states.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::error::{Place, TaskError};
use super::lines::{self, Input};

/// Parser state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first byte of a value.
    Start,
    /// In a value without quotes, or after the closing one.
    Plain,
    /// Inside quotes.
    Quoted,
    /// After a quote inside quotes: the closing one, or the first of two.
    Closing,
}

/// Input of the parser that tracks open quotes.
struct Quotes {
    file: Input,
    state: State,
    line: u64,
    /// Line of the last opening quote.
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

/// Records of a file.
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

    /// Reads the next record; false after the last.
    pub(super) fn next(&mut self) -> Result<bool, TaskError> {
        let line = self.reader.position().line();
        let is_row = self.reader.read_byte_record(&mut self.record).map_err(|error| match error.into_kind() {
            csv::ErrorKind::Io(source) => TaskError::io(&self.path, "read")(source),
            other => csv_error(self.at(line), &format!("{other:?}")),
        })?;
        // The parser reads past the end only in a record that the end of the file terminates.
        let quotes = self.reader.get_ref();
        if quotes.is_over && quotes.state == State::Quoted {
            return Err(csv_error(self.at(quotes.opened), "a double quote that is never closed"));
        }
        if !is_row {
            return Ok(false);
        }
        self.line = self.record.position().map_or(line, csv::Position::line);
        if let Some(column) = self.record.iter().position(|field| std::str::from_utf8(field).is_err()) {
            return Err(csv_error(self.place(), &format!("invalid UTF-8 in column {}", column + 1)));
        }
        Ok(true)
    }

    /// Number of values of the last record.
    pub(super) fn len(&self) -> usize {
        self.record.len()
    }

    /// Values of the last record.
    pub(super) fn values(&self) -> impl Iterator<Item = &str> {
        self.record.iter().map(text)
    }

    /// A value of the last record.
    pub(super) fn value(&self, column: usize) -> &str {
        self.record.get(column).map_or("", text)
    }

    /// First line of the last record.
    pub(super) fn place(&self) -> Place {
        self.at(self.line)
    }

    fn at(&self, line: u64) -> Place {
        Place { path: self.path.clone(), line }
    }
}

fn csv_error(at: Place, problem: &str) -> TaskError {
    at.error(format!(
        "{problem}; expected values separated by commas, those with commas, quotes or line ends in double quotes"
    ))
}

fn text(field: &[u8]) -> &str {
    std::str::from_utf8(field).expect("checked when it was read")
}
