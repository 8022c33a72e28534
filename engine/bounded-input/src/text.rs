//! Text from files, pipes and standard input, decoded while it is read if it is compressed with gzip or zstd.
//!
//! The kind is found by the first bytes, not by the name; so is UTF-16 with a byte-order mark. Memory: the window of the compressed data (32 KiB for gzip, at most
//! [`LARGEST_WINDOW`] for zstd) and a few blocks, whatever the text takes; callers bound what they keep of it. A frame of a few
//! bytes may ask for a large window.

use super::{LARGEST_STREAM, mistaken, too_large};
use encoding_rs_io::DecodeReaderBytes;
use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{
    FrameDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Cursor, Read},
    path::Path,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
};

/// Name of standard input, in arguments.
pub const STANDARD_INPUT: &str = "-";

/// First bytes of a frame of zstd.
pub const ZSTD_MAGIC: [u8; 4] = *b"\x28\xb5\x2f\xfd";

/// Largest window of zstd: that of `zstd --ultra -22` and of `--long`.
pub const LARGEST_WINDOW: u64 = 128 << 20;

/// U+FEFF, which some editors write at the start of a file.
pub const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Size of buffers.
const BUFFER: usize = 1 << 20;

/// Blocks that a thread decodes ahead.
const AHEAD: usize = 8;

/// Text that is read once, from its start to its end.
pub type Text = Box<dyn BufRead + Send>;

/// Compression of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952; several members are one text.
    Gzip,
    /// RFC 8878; several frames are one text.
    Zstd,
}

impl Compression {
    /// Number of bytes from which the kind of a file is detected.
    const LONGEST: usize = 10;

    /// Kind of data that begins with `bytes`.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            // `pzstd` and seekable files begin with a frame to be skipped.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// True if the file at `path` is compressed, or UTF-16 with a byte-order mark: its bytes are not those of its text. False for what
/// is not a regular file.
///
/// # Errors
/// It cannot be read.
pub fn is_encoded(path: &Path) -> io::Result<bool> {
    if is_standard_input(path) || !std::fs::metadata(path)?.is_file() {
        return Ok(false);
    }
    let mut head = Vec::new();
    File::open(path)?.take(Compression::LONGEST as u64).read_to_end(&mut head)?;
    Ok(Compression::of(&head).is_some() || is_utf_16(&head))
}

/// Refuses text that begins as UTF-32, or as UTF-16 without a byte-order mark: read as UTF-8, it would have a NUL after each letter.
///
/// # Errors
/// `head`, the first bytes of the text, is of one of these kinds.
pub fn expect_utf_8(head: &[u8]) -> io::Result<()> {
    let head = &head[..head.len().min(4)];
    let is_wide = if is_utf_16(head) {
        head.get(2..) == Some(&[0, 0])
    } else {
        head.contains(&0) && head.iter().any(|&byte| byte != 0)
    };
    let problem = "it is UTF-32, UTF-16 without a byte-order mark, or not text; save it as UTF-8";
    if is_wide { Err(io::Error::new(io::ErrorKind::InvalidData, problem)) } else { Ok(()) }
}

/// True for the name of standard input.
pub fn is_standard_input(path: &Path) -> bool {
    path == Path::new(STANDARD_INPUT)
}

/// Opens the file at `path`, or standard input for `-`.
///
/// # Errors
/// It cannot be opened, is a folder, or has a compression that is not known here; the message names it.
pub fn open(path: &Path) -> io::Result<Text> {
    if is_standard_input(path) {
        return decoded(io::stdin());
    }
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::Error::other("it is a directory; expected a file"));
    }
    decoded(file)
}

/// `text`, of which at most `limit` bytes are read; the next one is an error.
pub fn bounded(text: Text, limit: u64) -> Text {
    Box::new(BufReader::with_capacity(BUFFER, Limited { text, limit, left: limit }))
}

/// Text with a limit.
struct Limited {
    text: Text,
    limit: u64,
    left: u64,
}

impl Read for Limited {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !out.is_empty() {
            return if self.text.fill_buf()?.is_empty() { Ok(0) } else { Err(too_large(self.limit)) };
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(out.len());
        let count = self.text.read(&mut out[..most])?;
        self.left -= count as u64;
        Ok(count)
    }
}

/// Lines of a text: UTF-8, without their ends, carriage returns before them, and a byte-order mark before the first. In a text
/// without a line feed, as old Macs and some exports write it, a carriage return ends a line.
pub struct Lines {
    text: Text,
    longest: u64,
    bytes: Vec<u8>,
    number: u64,
    end: u8,
}

/// Why a line cannot be read.
#[derive(Debug)]
pub enum LineError {
    /// The text cannot be read.
    Read(io::Error),
    /// It is longer than the limit, in bytes.
    TooLong(u64),
    /// It is not UTF-8, from this byte on, counted from 1.
    NotUtf8 {
        /// The byte's position in the line.
        at: usize,
        /// The byte.
        byte: u8,
    },
}

impl Lines {
    /// The lines of `text`, of at most `longest` bytes each.
    pub fn new(text: Text, longest: u64) -> Self {
        Self { text, longest, bytes: Vec::new(), number: 0, end: b'\n' }
    }

    /// Number of the line that was read last, counted from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The next line, or `None` after the last.
    ///
    /// # Errors
    /// See [`LineError`]. The line counts as read, and the next call returns the line behind it.
    #[allow(clippy::should_implement_trait)] // the line is borrowed
    pub fn next(&mut self) -> Result<Option<&str>, LineError> {
        if self.read()? == 0 {
            return Ok(None);
        }
        if self.number == 0 && !self.bytes.ends_with(b"\n") && self.bytes[..self.bytes.len() - 1].contains(&b'\r') {
            self.end = b'\r';
            let first = Cursor::new(std::mem::take(&mut self.bytes));
            let rest = std::mem::replace(&mut self.text, Box::new(io::empty()));
            self.text = Box::new(first.chain(rest));
            self.read()?;
        }
        self.number += 1;
        let is_whole = self.bytes.ends_with(&[self.end]);
        let line = self.bytes.strip_suffix(&[self.end]).unwrap_or(&self.bytes);
        let returns = line.iter().rev().take_while(|&&byte| byte == b'\r').count();
        let mut line = &line[..line.len() - returns];
        if line.len() as u64 > self.longest {
            if !is_whole {
                skip_line(&mut self.text, self.end).map_err(LineError::Read)?;
            }
            return Err(LineError::TooLong(self.longest));
        }
        if self.number == 1 {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        std::str::from_utf8(line).map(Some).map_err(|error| {
            let at = error.valid_up_to();
            LineError::NotUtf8 { at: at + 1, byte: line[at] }
        })
    }

    /// Reads a line with its end, or the beginning of one that is too long; returns the number of bytes.
    fn read(&mut self) -> Result<usize, LineError> {
        self.bytes.clear();
        // Two bytes more: those of its end.
        let mut text = self.text.by_ref().take(self.longest + 2);
        text.read_until(self.end, &mut self.bytes).map_err(LineError::Read)
    }
}

/// Skips the rest of a line, of at most [`LARGEST_STREAM`] bytes.
fn skip_line(text: &mut Text, end: u8) -> io::Result<()> {
    match text.take(LARGEST_STREAM).skip_until(end)? as u64 {
        LARGEST_STREAM => Err(too_large(LARGEST_STREAM)),
        _ => Ok(()),
    }
}

/// Byte-order marks of UTF-16, which Excel's "Unicode text" begins with.
const UTF_16: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// True if `head` begins with one of [`UTF_16`].
fn is_utf_16(head: &[u8]) -> bool {
    UTF_16.iter().any(|mark| head.starts_with(mark))
}

/// UTF-8 of a text in UTF-16 with a byte-order mark; what is not valid becomes U+FFFD.
fn from_utf_16(text: impl Read + Send + 'static) -> Text {
    Box::new(BufReader::with_capacity(BUFFER, DecodeReaderBytes::new(text)))
}

/// UTF-8 of a decompressed text, which may be UTF-16.
fn transcoded(mut text: Text) -> io::Result<Text> {
    let head = text.fill_buf()?;
    expect_utf_8(head)?;
    Ok(if is_utf_16(head) { from_utf_16(text) } else { text })
}

/// The text of `source`, which may be compressed or UTF-16. Waits for the first bytes, and for more only if they may be of a compressed
/// file.
///
/// # Errors
/// As [`open`].
pub fn decoded(mut source: impl Read + Send + 'static) -> io::Result<Text> {
    let mut head = [0; Compression::LONGEST];
    let mut len = 0;
    while len < head.len() && may_be_binary(&head[..len]) {
        match source.read(&mut head[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let head = &head[..len];
    let all = BufReader::with_capacity(BUFFER, Cursor::new(head.to_vec()).chain(source));
    match Compression::of(head) {
        Some(Compression::Gzip) => transcoded(Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(all)))),
        Some(Compression::Zstd) => transcoded(Box::new(BufReader::with_capacity(BUFFER, Frames::new(all)))),
        None if is_utf_16(head) => expect_utf_8(head).map(|()| from_utf_16(all)),
        None => match mistaken(head).filter(|what| what.contains("compressed") || what.contains("archive")) {
            Some(what) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, format!("{what}; gzip and zstd are read as they are")))
            }
            None => expect_utf_8(head).map(|()| Box::new(all) as Text),
        },
    }
}

/// True if `head` is the beginning of a compressed file that is told by more bytes.
fn may_be_binary(head: &[u8]) -> bool {
    const MAGIC: [&[u8]; 9] = [
        UTF_16[0],
        UTF_16[1],
        b"\x1f\x8b",
        b"\x28\xb5\x2f\xfd",
        b"\xfd7zXZ\0",
        b"PK\x03\x04",
        b"BZh91AY&SY",
        b"\x04\x22\x4d\x18",
        b"7z\xbc\xaf\x27\x1c",
    ];
    let may_be_skipped = matches!(head, [0x50..=0x5f] | [0x50..=0x5f, 0x2a] | [0x50..=0x5f, 0x2a, 0x4d]);
    may_be_skipped || MAGIC.iter().any(|magic| magic.len() > head.len() && magic.starts_with(head))
}

/// The frames of zstd data, one after the other. Their checksums are compared.
struct Frames<R> {
    source: R,
    frame: FrameDecoder,
    /// True between [`FrameDecoder::reset`] and the end of the frame.
    is_open: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(source: R) -> Self {
        Self { source, frame: FrameDecoder::new(), is_open: false }
    }

    /// Opens the next frame; false at the end of the data.
    fn next(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            // A decoder that is used again holds its old window and the new one at a time.
            self.frame = FrameDecoder::new();
            self.frame.set_max_window_size(LARGEST_WINDOW);
            match self.frame.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut self.source.by_ref().take(length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(cut_short());
                    }
                }
                Err(error) => return Err(damaged(&error)),
            }
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        use ruzstd::decoding::BlockDecodingStrategy::UptoBlocks;
        loop {
            if !self.is_open {
                self.is_open = self.next()?;
                if !self.is_open {
                    return Ok(0);
                }
            }
            while self.frame.can_collect() == 0 && !self.frame.is_finished() {
                self.frame.decode_blocks(&mut self.source, UptoBlocks(1)).map_err(|error| damaged(&error))?;
            }
            let count = self.frame.read(out)?;
            if count > 0 || out.is_empty() {
                return Ok(count);
            }
            let (written, computed) = (self.frame.get_checksum_from_data(), self.frame.get_calculated_checksum());
            if written.is_some() && written != computed {
                return Err(damaged(&"the checksum of the text is another one"));
            }
            self.is_open = false;
        }
    }
}

fn damaged(what: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the zstd data is damaged or cut short: {what}"))
}

fn cut_short() -> io::Error {
    damaged(&"it ends within a frame")
}

/// `text`, read by a thread of its own that is a few blocks ahead of the caller: decoding overlaps the caller's work.
///
/// # Errors
/// The thread cannot be started.
pub fn ahead(text: Text) -> io::Result<Text> {
    let (sender, receiver) = sync_channel(AHEAD);
    thread::Builder::new().name("decoder".into()).spawn(move || decode(text, &sender))?;
    Ok(Box::new(BufReader::with_capacity(BUFFER, Blocks { receiver, block: Cursor::default() })))
}

/// Sends the blocks of `text` until it ends, fails, or nobody takes them; an empty block is the end.
fn decode(mut text: Text, sender: &SyncSender<io::Result<Vec<u8>>>) {
    loop {
        let mut block = Vec::with_capacity(BUFFER);
        let read = text.by_ref().take(BUFFER as u64).read_to_end(&mut block);
        let is_last = !matches!(read, Ok(1..));
        if sender.send(read.map(|_| block)).is_err() || is_last {
            return;
        }
    }
}

/// Blocks of another thread.
struct Blocks {
    receiver: Receiver<io::Result<Vec<u8>>>,
    block: Cursor<Vec<u8>>,
}

impl Read for Blocks {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.block.read(out)?;
            if count > 0 || out.is_empty() {
                return Ok(count);
            }
            match self.receiver.recv() {
                Ok(block) => self.block = Cursor::new(block?),
                // After the last block, or an error that was returned.
                Err(_) => return Ok(0),
            }
            if self.block.get_ref().is_empty() {
                return Ok(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression as Level, write::GzEncoder};
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut out = GzEncoder::new(Vec::new(), Level::default());
        out.write_all(text).unwrap();
        out.finish().unwrap()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        compress_to_vec(text, CompressionLevel::Fastest)
    }

    fn read(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        decoded(Cursor::new(bytes))?.read_to_end(&mut out)?;
        Ok(out)
    }

    /// Text that is neither constant nor incompressible, of several blocks.
    fn text() -> Vec<u8> {
        (0..200_000u64).flat_map(|i| format!("{} {}\n", i * i % 1009, i % 7).into_bytes()).collect()
    }

    #[test]
    fn compressed_text_is_the_text_also_in_several_members() {
        let text = text();
        let (first, second) = text.split_at(1000);
        let skippable_frame = &b"\x53\x2a\x4d\x18\x03\0\0\0abc"[..];
        let skippable = [skippable_frame, &zstd(second)].concat();
        for bytes in [
            text.clone(),
            gzip(&text),
            zstd(&text),
            [gzip(first), gzip(b""), gzip(second)].concat(),
            [zstd(first), zstd(b""), skippable.clone()].concat(),
            [skippable_frame, &zstd(first), &skippable].concat(),
        ] {
            assert!(read(bytes.clone()).unwrap() == text);
            let mut out = Vec::new();
            ahead(decoded(Cursor::new(bytes)).unwrap()).unwrap().read_to_end(&mut out).unwrap();
            assert!(out == text);
        }
        for short in ["", "P", "B", "(", "\x1f"] {
            assert_eq!(read(short.as_bytes().to_vec()).unwrap(), short.as_bytes());
        }
    }

    #[test]
    fn damaged_data_is_an_error_wherever_it_ends_or_differs() {
        let text = text();
        for whole in [gzip(&text[..5000]), zstd(&text[..5000])] {
            for end in [8, 20, whole.len() / 2, whole.len() - 1] {
                let error = read(whole[..end].to_vec()).unwrap_err();
                let kinds = [io::ErrorKind::UnexpectedEof, io::ErrorKind::InvalidData, io::ErrorKind::InvalidInput];
                assert!(kinds.contains(&error.kind()), "{end} of {}: {error:?}", whole.len());
            }
            for at in (12..whole.len()).step_by(97) {
                let mut other = whole.clone();
                other[at] ^= 0x10;
                assert!(read(other).is_err(), "byte {at} of {}", whole.len());
            }
        }
    }

    #[test]
    fn a_bounded_text_ends_in_an_error_beyond_its_limit() {
        for (limit, is_whole) in [(4, true), (3, false)] {
            let read = bounded(decoded(Cursor::new(gzip(b"text"))).unwrap(), limit).read_to_end(&mut Vec::new());
            assert_eq!(read.is_ok(), is_whole, "{limit}");
        }
    }

    fn lines(bytes: &[u8], longest: u64) -> Lines {
        Lines::new(decoded(Cursor::new(bytes.to_vec())).unwrap(), longest)
    }

    #[test]
    fn lines_have_no_ends_and_a_limit() {
        let mut some = lines("\u{feff}one\r\n\n\u{feff}two\nthr\r".as_bytes(), 6);
        for (number, line) in [(1, "one"), (2, ""), (3, "\u{feff}two"), (4, "thr")] {
            assert_eq!(some.next().unwrap(), Some(line));
            assert_eq!(some.number(), number);
        }
        assert!(some.next().unwrap().is_none());
        for (text, is_read) in
            [("12345", true), ("12345\n", true), ("12345\r\n", true), ("123456", false), ("123456\n", false)]
        {
            assert_eq!(lines(text.as_bytes(), 5).next().is_ok(), is_read, "{text:?}");
        }
        let error = lines(b"ab\xffc\n", 5).next().map(|_| ()).unwrap_err();
        assert!(matches!(error, LineError::NotUtf8 { at: 3, byte: 0xFF }));
    }

    #[test]
    fn a_line_that_cannot_be_read_costs_one_line() {
        let all = |bytes: &[u8]| {
            let mut lines = lines(bytes, 5);
            let next = || lines.next().map_or_else(|_| Some("!".to_owned()), |line| line.map(str::to_owned));
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        let some = b"one\n1234567890\ntwo\n\xff\nthree\n123456\n1234567\n12345678";
        assert_eq!(all(some), ["one", "!", "two", "!", "three", "!", "!", "!"]);
        // Carriage returns end lines where there is no line feed, and are text or a part of the end elsewhere.
        assert_eq!(all(b"one\r\rtwo\r123456\rthree"), ["one", "", "two", "!", "three"]);
        assert_eq!(all(b"a\rb\nc\r\r\nd\r"), ["a\rb", "c", "d"]);
        assert_eq!(all(b"one\r"), ["one"]);
    }

    #[test]
    fn utf_16_with_its_mark_is_text() {
        let units: Vec<u16> = "\u{feff}café 😀\r\nb".encode_utf16().collect();
        for bytes in [u16::to_le_bytes, u16::to_be_bytes] {
            let bytes: Vec<u8> = units.iter().flat_map(|&unit| bytes(unit)).collect();
            for bytes in [gzip(&bytes), bytes] {
                let mut lines = lines(&bytes, 99);
                assert_eq!(lines.next().unwrap(), Some("café 😀"));
                assert_eq!(lines.next().unwrap(), Some("b"));
            }
        }
    }

    #[test]
    fn text_of_wider_characters_is_refused() {
        let wide = |text: &str, before: usize, after: usize| -> Vec<u8> {
            text.bytes().flat_map(|byte| [vec![0; before], vec![byte], vec![0; after]].concat()).collect()
        };
        let marked = [b"\xff\xfe\0\0".to_vec(), wide("a", 0, 3)].concat();
        for bytes in [wide("ab", 0, 1), wide("ab", 1, 0), wide("a", 0, 3), wide("a", 3, 0), marked] {
            for bytes in [gzip(&bytes), bytes] {
                assert!(read(bytes).unwrap_err().to_string().starts_with("it is UTF-32, UTF-16 without"));
            }
        }
        for text in ["", "a", "ab\nc\0", "\u{feff}a"] {
            assert_eq!(read(text.into()).unwrap(), text.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn a_folder_and_other_compressions_are_named() {
        assert!(open(Path::new("/")).err().unwrap().to_string().contains("it is a directory"));
        for (bytes, name) in [(&b"\xfd7zXZ\0rest"[..], "xz"), (b"BZh91AY&SY", "bzip2"), (b"PK\x03\x04rest", "zip")] {
            let error = read(bytes.to_vec()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("gzip and zstd are read as they are"), "{error}");
        }
    }

    #[test]
    fn a_first_line_is_there_before_the_input_ends() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"Peter\n").unwrap();
        let mut line = String::new();
        decoded(reader).unwrap().read_line(&mut line).unwrap();
        assert_eq!(line, "Peter\n");
        drop(writer);
    }

    #[test]
    fn the_decoder_ends_if_nobody_reads_on() {
        // A text without an end: the thread would run forever.
        let mut text = ahead(decoded(io::repeat(b'a')).unwrap()).unwrap();
        text.read_exact(&mut [0; 10]).unwrap();
        drop(text);
        let error =
            ahead(decoded(Cursor::new(gzip(b"text")[..12].to_vec())).unwrap()).unwrap().read_to_end(&mut vec![]);
        assert!(error.is_err());
    }
}
