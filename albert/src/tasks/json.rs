//! Elements of a JSON array, streamed: of the array that is the whole file, or of the value of one key of an object. A file
//! may be larger than memory; an element may not.
//!
//! serde_json reads byte by byte, and one byte too many after a number: [`Bytes`] returns that byte again.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use serde::de::{DeserializeOwned, IgnoredAny};

use super::error::{Place, TaskError};
use super::lines::{self, Input};

/// Bytes of a file; the last one can be read again.
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
        self.last = byte[0];
        self.line += u64::from(self.last == b'\n');
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
pub(super) struct Elements {
    path: Arc<Path>,
    bytes: Bytes,
    /// The key of the array, where the file is an object.
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
    /// Elements of the array that is the whole file, or of the value of `key`; messages contain `expected`.
    pub(super) fn open(path: &Path, key: &'static str, expected: &'static str) -> Result<Self, TaskError> {
        let bytes = Bytes { file: lines::open(path)?, last: 0, is_again: false, line: 1, is_over: false };
        Ok(Self { path: path.into(), bytes, key, expected, state: State::Before })
    }

    /// The last line read.
    pub(super) fn place(&self) -> Place {
        Place { path: self.path.clone(), line: self.bytes.line }
    }

    fn error(&self, problem: impl ToString) -> TaskError {
        self.place().json(problem, self.expected)
    }

    /// The next byte that is not white space.
    fn byte(&mut self) -> Result<Option<u8>, TaskError> {
        loop {
            match self.bytes.next().map_err(TaskError::io(&self.path, "read"))? {
                Some(b' ' | b'\t' | b'\r' | b'\n') => {}
                other => return Ok(other),
            }
        }
    }

    /// The value that starts with the next byte.
    fn value<T: DeserializeOwned>(&mut self) -> Result<T, TaskError> {
        let first = self.byte()?;
        self.bytes.is_again = first.is_some();
        let value = T::deserialize(&mut serde_json::Deserializer::from_reader(&mut self.bytes)).map_err(|error| {
            // The parser counts lines from the value.
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

    /// The next element, or `None` after the last. The rest of the file is ignored.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, TaskError> {
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
