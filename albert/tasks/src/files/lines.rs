//! Lines of a UTF-8 file, streamed. A byte-order mark and carriage returns before line feeds are removed.
//! gzip and zstd are decoded. Limits: 1 GiB a line, 256 MiB in a compressed file, a pipe or a device.

use engine::io::limits::LARGEST_STREAM;
use engine::io::limits::text::{self, BYTE_ORDER_MARK, LineError, Text};
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;

use super::error::{Place, TaskError};

/// Text of a file, or of standard input for `-`.
pub(super) type Input = Text;

/// Opens a file whose parts may have any length; a folder is an error. At most [`LARGEST_STREAM`] bytes are read from a
/// compressed file, a pipe or a device.
pub(super) fn open(path: &Path) -> Result<Input, TaskError> {
    open_lines(path).map(|text| bounded(path, text))
}

/// Applies the limit of [`open`] to `text`, opened from `path`.
pub(super) fn bounded(path: &Path, text: Input) -> Input {
    if is_plain_file(path) { text } else { text::bounded(text, LARGEST_STREAM) }
}

/// Opens a file for [`Lines`], which limits each line.
pub(super) fn open_lines(path: &Path) -> Result<Input, TaskError> {
    text::open(path).map_err(TaskError::io(path, "read"))
}

/// True if the text has the same bytes as the file.
fn is_plain_file(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|about| about.is_file())
        && text::is_encoded(path).is_ok_and(|is_encoded| !is_encoded)
}

/// Extension of a file name in lower case, without the extension of a compression; `jsonl` for standard input.
pub(crate) fn ending(path: &Path) -> Option<String> {
    if text::is_standard_input(path) {
        return Some("jsonl".to_owned());
    }
    let of = |path: &Path| Some(path.extension()?.to_str()?.to_lowercase());
    match of(path)?.as_str() {
        "gz" | "zst" => of(&path.with_extension("")),
        ending => Some(ending.to_owned()),
    }
}

/// Skips a byte-order mark.
pub(super) fn skip_mark(file: &mut Input) -> std::io::Result<()> {
    if file.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
        file.consume(BYTE_ORDER_MARK.len());
    }
    Ok(())
}

/// Maximum length of a line of a file, in bytes.
const LONGEST: u64 = 1 << 30;

/// Maximum length of a line of the file at `path`, in bytes; a few bytes of a compressed file may expand to a gigabyte, and a
/// pipe may never end.
fn longest(path: &Path) -> u64 {
    if is_plain_file(path) { LONGEST } else { LARGEST_STREAM }
}

/// Lines of a file.
pub(super) struct Lines {
    path: Arc<Path>,
    lines: text::Lines,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self, TaskError> {
        Ok(Self::new(path, open_lines(path)?))
    }

    /// Lines of `text`, opened from `path`.
    pub(super) fn new(path: &Path, text: Input) -> Self {
        Self { path: path.into(), lines: text::Lines::new(text, longest(path)) }
    }

    /// Place of the last line read.
    pub(super) fn place(&self) -> Place {
        Place { path: self.path.clone(), line: self.lines.number() }
    }

    /// Returns the next line without its line end, or `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<&str>, TaskError> {
        let at = |line| Place { path: self.path.clone(), line };
        let number = self.lines.number() + 1;
        self.lines.next().map_err(|error| match error {
            LineError::Read(error) => TaskError::io(&self.path, "read")(error),
            LineError::TooLong(longest) => {
                at(number).error(format!("a line of more than {longest} bytes; is it a file of examples?"))
            }
            LineError::NotUtf8 { at: byte, .. } => {
                at(number).error(format!("invalid UTF-8 at byte {byte}; save the file as UTF-8"))
            }
        })
    }
}
