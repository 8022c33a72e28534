//! Lines of a UTF-8 file, one at a time: a byte-order mark and carriage returns before line feeds are dropped,
//! nothing else is changed. A line may be of any length that fits in memory.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::error::{Place, TaskError};

/// U+FEFF, which some editors put in front of a file.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Opens a file, but not a folder.
pub(super) fn open(path: &Path) -> Result<BufReader<File>, TaskError> {
    let file = File::open(path).map_err(TaskError::io(path, "read"))?;
    if file.metadata().map_err(TaskError::io(path, "read"))?.is_dir() {
        return Err(TaskError::io(path, "read")(std::io::Error::other("it is a folder; give a file")));
    }
    Ok(BufReader::with_capacity(1 << 20, file))
}

/// A file's lines.
pub(super) struct Lines {
    path: PathBuf,
    file: BufReader<File>,
    bytes: Vec<u8>,
    line: u64,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self, TaskError> {
        Ok(Self { path: path.to_owned(), file: open(path)?, bytes: Vec::new(), line: 0 })
    }

    /// The line that was read last.
    pub(super) fn place(&self) -> Place {
        Place { path: self.path.clone(), line: self.line }
    }

    /// The next line without its end, or `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<&str>, TaskError> {
        self.bytes.clear();
        if self.file.read_until(b'\n', &mut self.bytes).map_err(TaskError::io(&self.path, "read"))? == 0 {
            return Ok(None);
        }
        self.line += 1;
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
