//! JSON objects of a file, streamed: one a line, or the elements of an array, which is the whole file or the value of one key
//! of an object. A file may be larger than memory; an element must fit.
//!
//! An object is first delimited and then parsed, so that a missing or wrong value affects only its object.
//!
//! serde_json reads byte by byte, and one byte too many after a number: [`Bytes`] returns that byte twice.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{BufRead, Cursor, Read};
use std::path::Path;
use std::sync::Arc;

use engine::io::limits::{mended_surrogates, text};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;

use super::csv::CsvRecords;
use super::error::{Place, TaskError};
use super::lines::{self, Input, Lines, ending};
use super::reader::{RemarkKind, Remarks};

/// Objects of a file.
pub(super) struct Objects {
    source: Source,
    expected: &'static str,
    /// Place of the last object.
    at: Place,
    is_broken: bool,
}

enum Source {
    Lines(Lines),
    Array(Elements),
    /// Rows of a table, with its column names.
    Table(CsvRecords, Vec<String>),
}

/// Keys that identify the first line of a `.json` file as an object of a file of lines.
const OF_LINES: [&str; 8] = ["question", "context", "text", "tokens", "words", "sent1", "ctx", "premise"];

/// Number of bytes of the first line that are searched for them.
const FIRST_LINE: u64 = 1 << 20;

impl Objects {
    /// Opens a `.jsonl`, `.ndjson`, `.json` or `.csv` file or standard input. An array may be the value of `key`; messages contain
    /// `expected`.
    pub(super) fn open(path: &Path, key: &'static str, expected: &'static str) -> Result<Self, TaskError> {
        let source = match ending(path).as_deref() {
            Some("csv") => {
                let mut records = CsvRecords::open(path)?;
                records.next()?;
                let names = records.values().map(|name| name.trim().to_owned()).collect();
                Source::Table(records, names)
            }
            Some("jsonl" | "ndjson") if !text::is_standard_input(path) => Source::Lines(Lines::open(path)?),
            _ => return Self::of(path, lines::open_lines(path)?, key, expected),
        };
        Ok(Self::new(path, source, expected))
    }

    /// Objects of `file`, opened from `path`; its first line decides whether it contains lines or an array.
    pub(super) fn of(
        path: &Path,
        mut file: Input,
        key: &'static str,
        expected: &'static str,
    ) -> Result<Self, TaskError> {
        let mut first = Vec::new();
        file.by_ref().take(FIRST_LINE).read_until(b'\n', &mut first).map_err(TaskError::io(path, "read"))?;
        let object = first.strip_prefix(text::BYTE_ORDER_MARK).unwrap_or(&first);
        let keys: HashMap<Cow<'_, str>, IgnoredAny> = serde_json::from_slice(object).unwrap_or_default();
        let are_lines = if text::is_standard_input(path) {
            // Lines, unless it begins like an array or a document: the first line may be malformed.
            let line = object.trim_ascii();
            let is_document = matches!(line.last(), Some(b'{' | b'[' | b',')) || first.len() as u64 == FIRST_LINE;
            !(line.starts_with(b"[") || keys.contains_key(key) || is_document)
        } else {
            !keys.contains_key(key) && OF_LINES.iter().any(|&key| keys.contains_key(key))
        };
        let file: Input = Box::new(Cursor::new(first).chain(file));
        let source = if are_lines {
            Source::Lines(Lines::new(path, file))
        } else {
            Source::Array(Elements::new(path, lines::bounded(path, file), key, expected))
        };
        Ok(Self::new(path, source, expected))
    }

    fn new(path: &Path, source: Source, expected: &'static str) -> Self {
        Self { source, expected, at: Place { path: path.into(), line: 0 }, is_broken: false }
    }

    /// Returns the next object, parsed by `parse`, or `None` after the last. Blank lines are skipped.
    pub(super) fn next_with<T>(
        &mut self,
        remarks: &mut Remarks,
        parse: impl FnOnce(&str) -> serde_json::Result<T>,
    ) -> Result<Option<T>, TaskError> {
        let text = match &mut self.source {
            Source::Lines(lines) => loop {
                let line = lines.next().map(|line| line.map(str::to_owned));
                self.at = lines.place();
                match line? {
                    None => return Ok(None),
                    Some(line) if line.trim().is_empty() => {}
                    Some(line) => break line,
                }
            },
            Source::Array(elements) => match elements.next::<Box<RawValue>>() {
                Ok(None) => return Ok(None),
                Ok(Some(element)) => {
                    self.at.line = elements.start;
                    String::from(Box::<str>::from(element))
                }
                Err(error) => {
                    self.is_broken = true;
                    return Err(error);
                }
            },
            Source::Table(records, names) => loop {
                let is_row = records.next();
                self.at = records.place();
                if !is_row? {
                    return Ok(None);
                }
                if records.len() != names.len() {
                    return Err(self.at.clone().columns(records.len(), names.len(), records.separator()));
                }
                let row =
                    names.iter().zip(records.values()).filter(|(name, value)| !name.is_empty() && !value.is_empty());
                let row: serde_json::Map<_, _> = row.map(|(name, value)| (name.clone(), value.into())).collect();
                if !row.is_empty() {
                    break serde_json::Value::Object(row).to_string();
                }
            },
        };
        let mended = mended_surrogates(&text);
        if let Cow::Owned(_) = mended {
            remarks.count(self.at.clone(), |count| RemarkKind::LoneSurrogates { count });
        }
        parse(&mended).map(Some).map_err(|error| self.at.clone().json_error(&error, self.expected))
    }

    /// Returns the next object as a value of type `T`.
    pub(super) fn next<T: DeserializeOwned>(&mut self, remarks: &mut Remarks) -> Result<Option<T>, TaskError> {
        self.next_with(remarks, |text| serde_json::from_str(text))
    }

    /// Place of the last object.
    pub(super) fn place(&self) -> Place {
        self.at.clone()
    }

    /// Place of a part of the last object, which may have many lines in an array.
    pub(super) fn place_of_part(&self) -> Place {
        if let Source::Array(_) = self.source { Place { line: 0, ..self.place() } } else { self.place() }
    }

    /// False if objects after an error cannot be delimited.
    pub(super) fn resumes(&self) -> bool {
        !self.is_broken
    }
}

/// Bytes of a file; the last one can be read twice.
struct Bytes {
    file: Input,
    last: u8,
    is_again: bool,
    line: u64,
    /// True if the file has ended.
    is_over: bool,
}

impl Bytes {
    fn next(&mut self) -> std::io::Result<Option<u8>> {
        if std::mem::take(&mut self.is_again) {
            return Ok(Some(self.last));
        }
        let mut byte = [0];
        if self.file.read(&mut byte)? == 0 {
            self.is_over = true;
            return Ok(None);
        }
        // A carriage return and a line feed end one line.
        self.line += u64::from(byte[0] == b'\r' || byte[0] == b'\n' && self.last != b'\r');
        self.last = byte[0];
        Ok(Some(self.last))
    }
}

impl Read for Bytes {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        match (out, self.next()?) {
            ([], _) | (_, None) => Ok(0),
            ([first, ..], Some(byte)) => {
                *first = byte;
                Ok(1)
            }
        }
    }
}

/// Elements of an array.
struct Elements {
    path: Arc<Path>,
    bytes: Bytes,
    /// First line of the last element.
    start: u64,
    /// Key of the array, if the file is an object.
    key: &'static str,
    expected: &'static str,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Before,
    First,
    Further,
    After,
}

impl Elements {
    /// Elements of the array that is the whole of `file` or the value of `key`; messages contain `expected`.
    fn new(path: &Path, file: Input, key: &'static str, expected: &'static str) -> Self {
        let bytes = Bytes { file, last: 0, is_again: false, line: 1, is_over: false };
        Self { path: path.into(), bytes, start: 0, key, expected, state: State::Before }
    }

    fn error(&self, problem: impl ToString) -> TaskError {
        // The line of the last byte read.
        Place { path: self.path.clone(), line: self.bytes.line }.json(problem, self.expected)
    }

    /// Returns the next byte that is not white space.
    fn byte(&mut self) -> Result<Option<u8>, TaskError> {
        loop {
            match self.bytes.next().map_err(TaskError::io(&self.path, "read"))? {
                Some(b' ' | b'\t' | b'\r' | b'\n') => {}
                other => return Ok(other),
            }
        }
    }

    /// Parses the value that starts with the next byte.
    fn value<T: DeserializeOwned>(&mut self) -> Result<T, TaskError> {
        let first = self.byte()?;
        self.bytes.is_again = first.is_some();
        self.start = self.bytes.line;
        let value = T::deserialize(&mut serde_json::Deserializer::from_reader(&mut self.bytes)).map_err(|error| {
            // The parser counts lines from the start of the value.
            let problem = error.to_string();
            self.error(problem.rsplit_once(" at line ").map_or(problem.as_str(), |(problem, _)| problem))
        })?;
        self.bytes.is_again = matches!(first, Some(b'-' | b'0'..=b'9')) && !self.bytes.is_over;
        Ok(value)
    }

    /// Skips to the first element.
    fn begin(&mut self) -> Result<(), TaskError> {
        let mut first = self.byte()?;
        if first == Some(0xEF) {
            let mark = [self.byte()?, self.byte()?];
            if mark != [Some(0xBB), Some(0xBF)] {
                return Err(self.error("a character before the first value"));
            }
            first = self.byte()?;
        }
        match first {
            None => return Err(TaskError::no_example(&self.path)),
            Some(b'[') => return Ok(()),
            Some(b'{') => {}
            Some(_) => return Err(self.error("neither an object nor an array")),
        }
        loop {
            if self.byte()? != Some(b'"') {
                return Err(self.error(format!("no key {:?}", self.key)));
            }
            self.bytes.is_again = true;
            let key: String = self.value()?;
            if self.byte()? != Some(b':') {
                return Err(self.error(format!("no colon after key {key:?}")));
            }
            if key == self.key {
                return match self.byte()? {
                    Some(b'[') => Ok(()),
                    _ => Err(self.error(format!("the value of {key:?} is not an array"))),
                };
            }
            self.value::<IgnoredAny>()?;
            match self.byte()? {
                Some(b',') => {}
                _ => return Err(self.error(format!("no key {:?}", self.key))),
            }
        }
    }

    /// Returns the next element, or `None` after the last. The rest of the file is ignored.
    fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, TaskError> {
        match self.state {
            State::After => return Ok(None),
            State::Before => {
                self.begin()?;
                self.state = State::First;
            }
            State::First | State::Further => {}
        }
        let byte = self.byte()?;
        match (&self.state, byte) {
            (_, Some(b']')) => {
                self.state = State::After;
                return Ok(None);
            }
            (State::First, Some(_)) => self.bytes.is_again = true,
            (_, Some(b',')) => {}
            (_, None) => return Err(self.error("the file ends within the array")),
            (_, Some(_)) => return Err(self.error("no comma between two elements")),
        }
        self.state = State::Further;
        self.value().map(Some)
    }
}
