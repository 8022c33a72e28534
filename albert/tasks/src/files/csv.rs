//! CSV records, as Python's `csv` and pandas read them.
//!
//! ```text
//! a,"b, c",12" disc      a double quote opens a value only as its first character: three values
//! "5"" disc"             inside quotes, two quotes are one: 5" disc
//! "5" disc               text after the closing quote is part of the value: 5 disc
//! "a,b                   a quote that is never closed is an error, with its line
//! ```
//!
//! The separator is a comma, or a semicolon or TAB if the header contains one of them and no comma, as spreadsheets in many
//! countries write it; a first line `sep=;` sets it.
//!
//! The `csv` crate accepts a quote that is never closed, and counts only line feeds, that of CR LF as part of the next record.
//! Therefore [`Quotes`] tracks the same states and the lines.

use std::collections::VecDeque;
use std::io::{BufRead, Cursor, Read};
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

/// Input of the parser that tracks open quotes and lines.
struct Quotes {
    file: Input,
    separator: u8,
    state: State,
    line: u64,
    /// Line of the last opening quote.
    opened: u64,
    is_over: bool,
    last: u8,
    /// Number of bytes so far.
    count: u64,
    /// First byte and number of each line that is not empty, starting at the last record.
    starts: VecDeque<(u64, u64)>,
}

impl Quotes {
    /// Line of the record that the parser found at `byte`, which may be preceded by line ends. Records come in order.
    fn line_of(&mut self, byte: u64) -> u64 {
        while self.starts.front().is_some_and(|&(start, _)| start < byte) {
            self.starts.pop_front();
        }
        self.starts.front().map_or(self.line, |&(_, line)| line)
    }

    fn follow(&mut self, byte: u8) {
        let is_end = matches!(byte, b'\r' | b'\n');
        if !is_end && (self.count == 0 || matches!(self.last, b'\r' | b'\n')) {
            self.starts.push_back((self.count, self.line));
        }
        self.state = match (self.state, byte) {
            (State::Start, b'"') => {
                self.opened = self.line;
                State::Quoted
            }
            (State::Closing, b'"') => State::Quoted,
            (State::Quoted, b'"') => State::Closing,
            (State::Quoted, _) => State::Quoted,
            (_, byte) if is_end || byte == self.separator => State::Start,
            _ => State::Plain,
        };
        self.line += u64::from(byte == b'\r' || byte == b'\n' && self.last != b'\r');
        self.last = byte;
        self.count += 1;
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

/// Returns the separator of a file by its first line, the number of the line after `sep=`, and the text from there on.
fn separator_of(mut file: Input) -> std::io::Result<(u8, u64, Input)> {
    let mut first = Vec::new();
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    // A header is short; for a file without line feeds, the first buffer suffices.
    file.by_ref().take(1 << 16).read_until(b'\n', &mut first)?;
    let line = first.split(is_end).next().unwrap_or_default();
    if let [b's', b'e', b'p', b'=', separator @ (b',' | b';' | b'\t')] = *line {
        let end = if first[5..].starts_with(b"\r\n") { 7 } else { 6.min(first.len()) };
        return Ok((separator, 2, Box::new(Cursor::new(first.split_off(end)).chain(file))));
    }
    let unquoted = || line.split(|&byte| byte == b'"').step_by(2);
    let is_in = |separator: &u8| unquoted().any(|part| part.contains(separator));
    let separator = [b',', b';', b'\t'].into_iter().find(is_in).unwrap_or(b',');
    Ok((separator, 1, Box::new(Cursor::new(first).chain(file))))
}

/// Records of a file.
pub(super) struct CsvRecords {
    path: Arc<Path>,
    reader: csv::Reader<Quotes>,
    record: csv::ByteRecord,
    line: u64,
    is_broken: bool,
}

impl CsvRecords {
    pub(super) fn open(path: &Path) -> Result<Self, TaskError> {
        let mut file = lines::open(path)?;
        lines::skip_mark(&mut file).map_err(TaskError::io(path, "read"))?;
        let (separator, line, file) = separator_of(file).map_err(TaskError::io(path, "read"))?;
        let (state, starts) = (State::Start, VecDeque::new());
        let quotes = Quotes { file, separator, state, line, opened: 0, is_over: false, last: 0, count: 0, starts };
        let reader =
            csv::ReaderBuilder::new().has_headers(false).flexible(true).delimiter(separator).from_reader(quotes);
        Ok(Self { path: path.into(), reader, record: csv::ByteRecord::new(), line: 0, is_broken: false })
    }

    /// Name of the separator.
    pub(super) fn separator(&self) -> &'static str {
        match self.reader.get_ref().separator {
            b';' => "semicolons",
            b'\t' => "TAB",
            _ => "commas",
        }
    }

    /// Reads the next record; false after the last.
    pub(super) fn next(&mut self) -> Result<bool, TaskError> {
        let byte = self.reader.position().byte();
        let is_row = self.reader.read_byte_record(&mut self.record).map_err(|error| match error.into_kind() {
            csv::ErrorKind::Io(source) => TaskError::io(&self.path, "read")(source),
            other => csv_error(self.place(), &format!("{other:?}")),
        })?;
        self.line = self.reader.get_mut().line_of(byte);
        // The parser reads past the end only for a record that ends with the file.
        let quotes = self.reader.get_ref();
        if quotes.is_over && quotes.state == State::Quoted {
            self.is_broken = true;
            return Err(csv_error(self.at(quotes.opened), "a double quote that is never closed"));
        }
        if !is_row {
            return Ok(false);
        }
        if let Some(column) = self.record.iter().position(|field| std::str::from_utf8(field).is_err()) {
            return Err(csv_error(self.place(), &format!("invalid UTF-8 in column {}", column + 1)));
        }
        Ok(true)
    }

    /// False if an open quote extends to the end of the file.
    pub(super) fn resumes(&self) -> bool {
        !self.is_broken
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
