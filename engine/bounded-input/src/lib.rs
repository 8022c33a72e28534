//! Bounded input: what a file from elsewhere may cost to read.
//!
//! ```text
//! memory   at most 64 × the bytes read + 64 MiB       MEMORY_FACTOR, MEMORY_BASE
//!          and the window of text in zstd             text::LARGEST_WINDOW
//! time     O(n log n) of the bytes read
//! depth    at most 128 levels of nesting              DEEPEST
//! ```
//!
//! Readers of files that this program did not write keep these bounds:
//! 1. [`read`] and [`read_text`] (or [`open`], for streams) check the size of a regular file before they read it, and stop
//!    reading a pipe or an endless device at [`LARGEST_STREAM`];
//! 2. a length or count in a file is compared with the bytes that are left before it is used ([`proto`] does so);
//! 3. [`check_json`] precedes every parse of JSON into a tree, whose nodes are far larger than their text;
//! 4. an error message names the kind of a file that is another one (compressed, a Git LFS pointer): [`mistaken`].
//!
//! ```
//! let folder = std::env::temp_dir();
//! assert!(bounded_input::read(&folder, 1 << 20).is_err());
//! let nested = "[".repeat(1000);
//! assert_eq!(bounded_input::check_json(nested.as_bytes()).unwrap_err().to_string(), "byte 127: more than 128 levels of nesting");
//! ```
#![forbid(unsafe_code)]

pub mod proto;
pub mod text;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Memory budget for each byte of input.
pub const MEMORY_FACTOR: usize = 64;
/// Memory budget for any input, in bytes.
pub const MEMORY_BASE: usize = 64 << 20;
/// Levels of nesting in any file.
pub const DEEPEST: usize = 128;
/// Largest file of settings: `config.json`, a recipe, an index, a state.
pub const LARGEST_SETTINGS: u64 = 64 << 20;
/// Largest file read at once: a vocabulary, a table, a set of questions.
pub const LARGEST_FILE: u64 = 4 << 30;
/// Maximum number of bytes read from a pipe or device, whose size is unknown.
pub const LARGEST_STREAM: u64 = 256 << 20;

/// Memory budget of a reader of `bytes` bytes.
pub fn memory_for(bytes: usize) -> usize {
    bytes.saturating_mul(MEMORY_FACTOR).saturating_add(MEMORY_BASE)
}

/// A file with a limit on the bytes read; the next byte is an error.
#[derive(Debug)]
pub struct Bounded {
    file: File,
    size: u64,
    limit: u64,
    left: u64,
}

/// Opens `path` for reading at most `limit` bytes, at most [`LARGEST_STREAM`] of a pipe or device.
///
/// # Errors
/// `path` cannot be opened, is a folder, or is a regular file of more than `limit` bytes.
pub fn open(path: &Path, limit: u64) -> io::Result<Bounded> {
    let file = File::open(path)?;
    let about = file.metadata()?;
    if about.is_dir() {
        return Err(io::Error::other("it is a directory; expected a file"));
    }
    if about.is_file() && about.len() > limit {
        return Err(too_large(limit));
    }
    let limit = if about.is_file() { limit } else { limit.min(LARGEST_STREAM) };
    Ok(Bounded { file, size: about.len(), limit, left: limit })
}

/// The bytes of the file at `path`, at most `limit` of them.
///
/// # Errors
/// As [`open`], and if reading fails or the file has more than `limit` bytes.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path, limit)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(file.size).unwrap_or(usize::MAX))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of the file at `path`, at most `limit` bytes.
///
/// # Errors
/// As [`read`], and if the file is not UTF-8; the message contains the line, and the kind of the file if recognized.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let bytes = read(path, limit)?;
    text::expect_utf_8(&bytes)?;
    String::from_utf8(bytes).map_err(|error| {
        let (at, bytes) = (error.utf8_error().valid_up_to(), error.as_bytes());
        let line = 1 + bytes[..at].iter().filter(|&&byte| byte == b'\n').count();
        let reason = mistaken(bytes).unwrap_or("re-encode it as UTF-8");
        io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is not UTF-8; {reason}"))
    })
}

impl Read for Bounded {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !out.is_empty() {
            // The limit is reached: an error unless the file ends here.
            return match self.file.read(&mut [0])? {
                0 => Ok(0),
                _ => Err(too_large(self.limit)),
            };
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(out.len());
        let count = self.file.read(&mut out[..most])?;
        self.left -= count as u64;
        Ok(count)
    }
}

fn too_large(limit: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than the {limit} bytes that are read; split it"))
}

/// Kind of an unexpected file by its first bytes, with the remedy.
pub fn mistaken(bytes: &[u8]) -> Option<&'static str> {
    const KINDS: &[(&[u8], &str)] = &[
        (
            b"version https://git-lfs.github.com/spec/",
            "it is a Git LFS pointer, not the file itself; run `git lfs pull`",
        ),
        (b"\x1f\x8b", "it is compressed with gzip; unpack it with `gunzip`"),
        (b"PK\x03\x04", "it is a zip archive; unpack it with `unzip`"),
        (b"\xfd7zXZ\0", "it is compressed with xz; unpack it with `unxz`"),
        (b"\x04\x22\x4d\x18", "it is compressed with lz4; unpack it with `unlz4`"),
        (b"7z\xbc\xaf\x27\x1c", "it is a 7-Zip archive; unpack it with `7z x`"),
        (b"\xff\xfe", "it is UTF-16; re-encode it with `iconv -f UTF-16 -t UTF-8`"),
        (b"\xfe\xff", "it is UTF-16; re-encode it with `iconv -f UTF-16 -t UTF-8`"),
        (b"PAR1\x15", "it is a Parquet file; export it as text"),
        (b"%PDF-", "it is a PDF; export it as text"),
        (b"<!DOCTYPE", "it is a web page, not the file itself; fetch the file again"),
        (b"<!doctype", "it is a web page, not the file itself; fetch the file again"),
        (b"<html", "it is a web page, not the file itself; fetch the file again"),
    ];
    if text::Compression::of(bytes) == Some(text::Compression::Zstd) {
        return Some("it is compressed with zstd; unpack it with `unzstd`");
    }
    if bytes.starts_with(b"BZh") && bytes.get(4..10) == Some(b"1AY&SY") {
        return Some("it is compressed with bzip2; unpack it with `bunzip2`");
    }
    KINDS.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|&(_, what)| what)
}

/// Checks the depth of JSON and the memory of its tree, by the number of its values.
///
/// One pass, no allocation, no recursion; the parser checks the syntax.
///
/// # Errors
/// The nesting exceeds [`DEEPEST`], or the values are so small and many that their tree exceeds [`memory_for`] the text.
pub fn check_json(text: &[u8]) -> io::Result<()> {
    /// A node of `serde_json::Value` has up to 72 bytes, an entry of an object twice that, and lists grow by doubling.
    const NODE: usize = 256;
    let (mut values, mut depth, mut at) = (1usize, 0usize, 0);
    while at < text.len() {
        match text[at] {
            b'"' => {
                at += 1;
                while at < text.len() && text[at] != b'"' {
                    at += if text[at] == b'\\' { 2 } else { 1 };
                }
            }
            b'[' | b'{' => {
                values += 1;
                depth += 1;
                if depth >= DEEPEST {
                    return Err(io::Error::other(format!("byte {at}: more than {DEEPEST} levels of nesting")));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
        at += 1;
    }
    if values.saturating_mul(NODE) > memory_for(text.len()) {
        let problem = format!("{values} values in {} bytes; no file of this kind has as many", text.len());
        return Err(io::Error::other(problem));
    }
    Ok(())
}

/// JSON whose escapes of lone surrogates, which Python writes for a cut emoji and no parser accepts, are U+FFFD.
pub fn mended_surrogates(text: &str) -> Cow<'_, str> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut out, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(found) = text.get(at..).and_then(|rest| rest.find('\\')) {
        at += found;
        at += match unit(at) {
            Some(0xD800..0xDC00) if matches!(unit(at + 6), Some(0xDC00..0xE000)) => 12,
            Some(0xD800..0xE000) => {
                out += &text[copied..at];
                out += "\\ufffd";
                copied = at + 6;
                6
            }
            // A backslash escapes one character.
            _ => 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
        };
    }
    if copied == 0 { Cow::Borrowed(text) } else { Cow::Owned(out + &text[copied..]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_surrogates_are_mended_and_pairs_stay() {
        for (text, mended) in [
            (r#"{"a":"\ud83d"}"#, r#"{"a":"\ufffd"}"#),
            (r#""\ud83d\ude00 \ude00\uD83D\ud83d\ude00""#, r#""\ud83d\ude00 \ufffd\ufffd\ud83d\ude00""#),
            (r#""\\ud83d é\u00e9\n""#, r#""\\ud83d é\u00e9\n""#),
            ("\\", "\\"),
            ("\\u12é4", "\\u12é4"),
        ] {
            assert_eq!(mended_surrogates(text), mended);
        }
    }

    #[test]
    fn both_kinds_of_zstd_are_named() {
        for bytes in [&b"\x28\xb5\x2f\xfd\0"[..], b"\x50\x2a\x4d\x18\x04\0\0\0", b"\x5e\x2a\x4d\x18\x04\0\0\0"] {
            assert_eq!(mistaken(bytes), Some("it is compressed with zstd; unpack it with `unzstd`"), "{bytes:?}");
        }
        assert_eq!(mistaken(b"P*M"), None);
    }

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn reads_up_to_the_limit_and_refuses_one_byte_more() {
        let whole = file(b"12345");
        assert_eq!(read(whole.path(), 5).unwrap(), b"12345");
        let error = read(whole.path(), 4).unwrap_err().to_string();
        assert_eq!(error, "it has more than the 4 bytes that are read; split it");
        assert!(read(Path::new("/"), 4).unwrap_err().to_string().contains("it is a directory"));
    }

    #[cfg(unix)]
    #[test]
    fn an_endless_device_is_read_to_the_limit_alone() {
        let error = read(Path::new("/dev/zero"), 1 << 16).unwrap_err().to_string();
        assert!(error.contains("more than the 65536 bytes"), "{error}");
        assert_eq!(open(Path::new("/dev/zero"), u64::MAX).unwrap().limit, LARGEST_STREAM);
        assert!(read(Path::new("/dev/null"), 1).unwrap().is_empty());
    }

    #[test]
    fn text_that_is_none_says_where_and_what_it_is() {
        let said = |bytes: &[u8]| read_text(file(bytes).path(), 99).unwrap_err().to_string();
        assert_eq!(said(b"a\nb\xff"), "line 2 is not UTF-8; re-encode it as UTF-8");
        assert_eq!(said(b"\x1f\x8b\x08"), "line 1 is not UTF-8; it is compressed with gzip; unpack it with `gunzip`");
        for to in [u16::to_le_bytes, u16::to_be_bytes] {
            let utf_16 = |text: &str| said(&text.encode_utf16().flat_map(to).collect::<Vec<u8>>());
            assert!(utf_16("{}\n").contains("UTF-16 without a byte-order mark"), "{}", utf_16("{}\n"));
            let marked = "line 1 is not UTF-8; it is UTF-16; re-encode it with `iconv -f UTF-16 -t UTF-8`";
            assert_eq!(utf_16("\u{feff}{}\n"), marked);
        }
    }

    #[test]
    fn json_is_bounded_by_depth_and_by_the_number_of_its_values() {
        let nested = |depth: usize| [b"[".repeat(depth), b"]".repeat(depth)].concat();
        assert!(check_json(&nested(DEEPEST - 1)).is_ok());
        let error = check_json(&nested(DEEPEST)).unwrap_err().to_string();
        assert_eq!(error, "byte 127: more than 128 levels of nesting");
        assert!(check_json(&nested(10_000_000)).is_err());
        let dense = |count: usize| [b"[".to_vec(), b"0,".repeat(count), b"0]".to_vec()].concat();
        assert!(check_json(&dense(100_000)).is_ok());
        let error = check_json(&dense(1_000_000)).unwrap_err().to_string();
        assert!(error.contains("1000002 values in 2000003 bytes"), "{error}");
        // Brackets and commas in strings are text, and an escaped quote does not end one.
        assert!(check_json(br#"{"a": "[[[\"[[[,,,"}"#).is_ok());
        assert!(check_json(br#""\"#).is_ok());
    }
}
