//! Lines of a UTF-8 file, streamed. A byte-order mark and carriage returns before line feeds are removed.
//! Limits: 1 GiB a line.

use engine::io::limits::{self, Bounded};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use super::error::{Place, TaskError};

/// U+FEFF, which some editors write.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A file of any size, or at most [`limits::LARGEST_STREAM`] bytes of a pipe or device.
pub(super) type Input = BufReader<Bounded>;

/// Opens a file; a folder is an error.
pub(super) fn open(path: &Path) -> Result<Input, TaskError> {
    let file = limits::open(path, u64::MAX).map_err(TaskError::io(path, "read"))?;
    Ok(BufReader::with_capacity(1 << 20, file))
}

/// Skips a byte-order mark.
pub(super) fn skip_mark(file: &mut Input) -> std::io::Result<()> {
    if file.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
        file.consume(BYTE_ORDER_MARK.len());
    }
    Ok(())
}

/// Longest line, in bytes.
const LONGEST: u64 = 1 << 30;

/// Lines of a file.
pub(super) struct Lines {
    path: Arc<Path>,
    file: Input,
    bytes: Vec<u8>,
    line: u64,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self, TaskError> {
        Ok(Self { path: path.into(), file: open(path)?, bytes: Vec::new(), line: 0 })
    }

    /// The last line read.
    pub(super) fn place(&self) -> Place {
        Place { path: self.path.clone(), line: self.line }
    }

    /// The next line without its end, or `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<&str>, TaskError> {
        self.bytes.clear();
        let mut file = self.file.by_ref().take(LONGEST + 1);
        if file.read_until(b'\n', &mut self.bytes).map_err(TaskError::io(&self.path, "read"))? == 0 {
            return Ok(None);
        }
        self.line += 1;
        if self.bytes.len() as u64 > LONGEST {
            return Err(self.place().error(format!("a line of more than {LONGEST} bytes; is it a file of examples?")));
        }
        let mut line = self.bytes.as_slice();
        line = line.strip_suffix(b"\n").unwrap_or(line);
        line = line.strip_suffix(b"\r").unwrap_or(line);
        if self.line == 1 {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        match std::str::from_utf8(line) {
            Ok(line) => Ok(Some(line)),
            Err(error) => {
                let at = Place { path: self.path.clone(), line: self.line };
                let byte = error.valid_up_to() + 1;
                Err(at.error(format!("invalid UTF-8 at byte {byte}; save the file as UTF-8")))
            }
        }
    }
}
