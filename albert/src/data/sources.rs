//! Sources of text (files, name patterns, memory) and their division into parts for ranks.
//!
//! Ranks read different parts of a source (`Part`):
//!
//! ```text
//! bytes       0            1 Mi           2 Mi           3 Mi
//! cuts             |   |            |  |                    |  |
//! documents   [ part 0             ][ part 1                ][ part 3 ..       part 2 is empty: no cut in it
//! ```
//!
//! A cut is the end of a blank line; if N consecutive blank lines end a document (paragraphs), it is the end of the last of N
//! in one part. It depends only on the bytes of that part, so a reader that arrives from an earlier part finds the same cut.
//! A part begins after its first cut and ends at the first cut of a later part.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::io::limits::{self, text};

use super::error::DataError;

static BYTES_READ: AtomicU64 = AtomicU64::new(0);

/// Number of bytes of text, uncompressed, that this process has read from all sources.
pub fn bytes_read() -> u64 {
    BYTES_READ.load(Ordering::Relaxed)
}

/// Reader that counts its bytes in [`bytes_read`].
struct Counted<R>(R);

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(out)?;
        self.consume(count);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        BYTES_READ.fetch_add(count as u64, Ordering::Relaxed);
        self.0.consume(count);
    }
}

/// Source of text. A file may be plain, compressed with gzip or zstd, or UTF-16 with a byte-order mark; the path `-` is standard input.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file, or standard input for `-`.
    File(PathBuf),
    /// Text in memory.
    Memory {
        /// Name for messages and for the index.
        name: String,
        /// Bytes of the text, checked like those of a file.
        text: Arc<[u8]>,
    },
}

impl Source {
    /// Name in messages and in the index.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Memory { name, .. } => name.clone(),
        }
    }

    /// True if it can be read more than once, unlike a pipe or device.
    pub(super) fn is_lasting(&self) -> bool {
        match self {
            Self::File(path) => {
                !text::is_standard_input(path) && std::fs::metadata(path).is_ok_and(|about| about.is_file())
            }
            Self::Memory { .. } => true,
        }
    }

    /// True if it is compressed or UTF-16.
    fn is_encoded(&self) -> Result<bool, DataError> {
        match self {
            Self::File(path) => text::is_encoded(path).map_err(DataError::io(path, "read")),
            Self::Memory { .. } => Ok(false),
        }
    }

    /// Rejects files that are not UTF-8 text, by their first line. HTML is text.
    pub(super) fn expect_text(&self, first_line: &[u8]) -> Result<(), DataError> {
        let of = |problem: String| DataError::input(self.name(), problem);
        if let Some(what) = limits::mistaken(first_line).filter(|_| !first_line.starts_with(b"<")) {
            let read = if what.contains("compressed") { "; gzip and zstd are read as they are" } else { "" };
            return Err(of(format!("not a text file: {what}{read}")));
        }
        text::expect_utf_8(first_line).map_err(|error| of(error.to_string()))
    }

    /// Maximum size of a document or line in bytes: a few bytes of a compressed file may expand to a gigabyte, and a pipe may never end.
    pub(super) fn largest_document(&self) -> Result<u64, DataError> {
        let is_bounded = self.is_lasting() && !self.is_encoded()?;
        Ok(if is_bounded { u64::MAX } else { limits::LARGEST_STREAM })
    }

    /// Size of its text in bytes, if known before reading.
    pub fn text_size(&self) -> Option<u64> {
        if self.is_lasting() { self.size().ok() } else { None }
    }

    /// Size in bytes, for dividing it among ranks.
    fn size(&self) -> Result<u64, DataError> {
        match self {
            Self::File(path) => {
                if self.is_encoded()? {
                    let problem = "compressed or UTF-16, but ranks read different parts of a text; unpack it and save it as \
                                   UTF-8 first, or start one process";
                    return Err(DataError::input(self.name(), problem));
                }
                let about = std::fs::metadata(path).map_err(DataError::io(path, "read"))?;
                if !about.is_file() {
                    let problem = "not a file, but ranks read different parts of a text; write the text to a file first, or \
                                   start one process";
                    return Err(DataError::input(self.name(), problem));
                }
                Ok(about.len())
            }
            Self::Memory { text, .. } => Ok(text.len() as u64),
        }
    }

    /// Opens the source at the first line that starts in `range`, and returns the position of that line, or the end of
    /// `range` if there is none.
    pub(super) fn open(&self, range: &Range<u64>) -> Result<(Box<dyn BufRead + Send>, u64), DataError> {
        let before = range.start.saturating_sub(1);
        let mut reader: Box<dyn BufRead + Send> = match self {
            Self::File(path) if !self.is_lasting() || self.is_encoded()? => {
                // Only one process reads it, from the start.
                let text = text::open(path).and_then(text::ahead).map_err(DataError::io(path, "read"))?;
                debug_assert!(before == 0);
                text
            }
            Self::File(path) => {
                let mut file = File::open(path).map_err(DataError::io(path, "read"))?;
                let about = file.metadata().map_err(DataError::io(path, "read"))?;
                if about.is_dir() {
                    let source = std::io::Error::other("it is a directory; give files or a pattern such as DIR/*.txt");
                    return Err(DataError::io(path, "read")(source));
                }
                if before > 0 {
                    file.seek(SeekFrom::Start(before)).map_err(DataError::io(path, "read"))?;
                }
                Box::new(BufReader::with_capacity(1 << 20, file))
            }
            Self::Memory { text, .. } => {
                let mut cursor = Cursor::new(Arc::clone(text));
                cursor.set_position(before);
                Box::new(cursor)
            }
        };
        let mut skipped = 0;
        if range.start > 0 {
            // Skip the rest of the line that starts before.
            let read = reader.by_ref().take(range.end - before).skip_until(b'\n');
            skipped = read.map_err(DataError::io(Path::new(&self.name()), "read"))? as u64;
        }
        Ok((Box::new(Counted(reader)), before + skipped))
    }

    /// Number of lines that end in the first `bytes` bytes, for messages.
    pub(super) fn lines_before(&self, bytes: u64) -> Result<u64, DataError> {
        if bytes == 0 {
            // A pipe cannot be read a second time.
            return Ok(0);
        }
        let mut reader = self.open(&(0..u64::MAX))?.0.take(bytes);
        let mut lines = 0;
        while reader.skip_until(b'\n').map_err(DataError::io(Path::new(&self.name()), "read"))? > 0 {
            lines += 1;
        }
        Ok(lines)
    }
}

/// Part of a source that one rank reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Index of the source.
    pub(super) source: usize,
    /// Byte range of the source in which it begins.
    pub(super) bytes: Range<u64>,
}

impl Part {
    /// Bytes of a part; small in tests, so that a part has few documents.
    pub(super) const BYTES: u64 = if cfg!(test) { 300 } else { 1 << 20 };

    /// Parts of `sources` in order, and the sizes of the sources.
    pub(super) fn all(sources: &[Source]) -> Result<(Vec<Self>, Vec<u64>), DataError> {
        let sizes: Vec<u64> = sources.iter().map(Source::size).collect::<Result<_, _>>()?;
        let of_source = |(source, size): (usize, &u64)| {
            let starts = (0..size.div_ceil(Self::BYTES)).map(|i| i * Self::BYTES);
            starts.map(move |start| Self { source, bytes: start..start + Self::BYTES })
        };
        Ok((sizes.iter().enumerate().flat_map(of_source).collect(), sizes))
    }
}

/// Expands a list of paths, in its order; a path whose last component contains `*` or `?` is a pattern, whose files are
/// sorted by name. Repeated files are dropped.
///
/// # Errors
/// [`DataError::Missing`] for a path or pattern that matches no file.
pub fn files(paths: &[PathBuf]) -> Result<Vec<Source>, DataError> {
    let mut found: Vec<PathBuf> = Vec::new();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        let exists = text::is_standard_input(path) || path.exists();
        if exists || !name.contains(['*', '?']) {
            if !exists {
                return Err(DataError::Missing { path: path.clone() });
            }
            found.push(path.clone());
            continue;
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut matching = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(DataError::io(folder, "read"))? {
            let entry = entry.map_err(DataError::io(folder, "read"))?;
            let is_match = entry.file_name().to_str().is_some_and(|n| matches(name.as_bytes(), n.as_bytes()));
            if is_match && entry.path().is_file() {
                matching.push(path.with_file_name(entry.file_name()));
            }
        }
        if matching.is_empty() {
            return Err(DataError::Missing { path: path.clone() });
        }
        matching.sort();
        found.extend(matching);
    }
    let mut unique: Vec<PathBuf> = Vec::with_capacity(found.len());
    for path in found {
        if !unique.contains(&path) {
            unique.push(path);
        }
    }
    Ok(unique.into_iter().map(Source::File).collect())
}

/// True if `pattern` matches all of `name`; `*` is any run of bytes and `?` one byte.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Backtracking: the last star, and the bytes of the name that it matches.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, n));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == b'?' || pattern[p] == name[n]) {
            (p, n) = (p + 1, n + 1);
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            (p, n) = (at + 1, taken + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_stand_for_the_files_that_match() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a.txt", "c.md"] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        let names = |patterns: &[&str]| {
            let paths: Vec<PathBuf> = patterns.iter().map(|p| folder.path().join(p)).collect();
            files(&paths)
                .map(|found| found.iter().map(|s| s.name().rsplit('/').next().unwrap().to_string()).collect::<Vec<_>>())
        };
        assert_eq!(names(&["*.txt"]).unwrap(), ["a.txt", "b.txt"]);
        assert_eq!(names(&["c.md", "?.txt", "a.txt"]).unwrap(), ["c.md", "a.txt", "b.txt"]);
        assert!(names(&["*.rst"]).unwrap_err().to_string().contains("*.rst: no such file"));
        assert!(names(&["gone.txt"]).unwrap_err().to_string().contains("gone.txt: no such file"));
        let directory = Source::File(folder.path().into());
        let error = directory.open(&(0..u64::MAX)).err().expect("a folder is not text");
        assert!(error.to_string().contains("it is a directory"), "{error}");
    }

    #[test]
    fn bytes_are_counted_as_they_are_read() {
        let source = Source::Memory { name: "text".to_owned(), text: Arc::from(&b"one\ntwo\n"[..]) };
        let before = bytes_read();
        let mut text = String::new();
        source.open(&(0..u64::MAX)).unwrap().0.read_to_string(&mut text).unwrap();
        assert_eq!(source.text_size(), Some(text.len() as u64));
        // Other tests read at the same time.
        assert!(bytes_read() - before >= 8 && text == "one\ntwo\n", "{text}");
    }

    #[test]
    fn wildcards_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abcd", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b", "xaxxab", true),
            ("**", "x", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} on {name}");
        }
    }
}
