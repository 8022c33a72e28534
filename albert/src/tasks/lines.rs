//! Lines of a UTF-8 file, one at a time: a byte-order mark and carriage returns before line feeds are dropped,
//! nothing else is changed. A line may have up to 1 GiB; more is a device that never ends, or no text.

use engine::io::limits::{self, Bounded};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use super::error::{Place, TaskError};

/// U+FEFF, which some editors put in front of a file.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A file of any size, or at most [`limits::LARGEST_STREAM`] bytes of a pipe or device, which may never end.
pub(super) type Input = BufReader<Bounded>;

/// Opens a file, but not a folder.
pub(super) fn open(path: &Path) -> Result<Input, TaskError> {
    let file = limits::open(path, u64::MAX).map_err(TaskError::io(path, "read"))?;
    Ok(BufReader::with_capacity(1 << 20, file))
}

/// Passes over a byte-order mark at the beginning of a file.
pub(super) fn skip_mark(file: &mut Input) -> std::io::Result<()> {
    if file.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
        file.consume(BYTE_ORDER_MARK.len());
    }
    Ok(())
}

/// Most bytes of a line.
const LONGEST: u64 = 1 << 30;

/// A file's lines.
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

    /// The line that was read last.
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
            return Err(TaskError::LongLine { at: self.place(), most: LONGEST });
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
                Err(TaskError::InvalidUtf8 { at, byte: error.valid_up_to() + 1 })
            }
        }
    }
}
