//! Streams documents of sentences from text files: one document is in memory at a time.
//!
//! Two layouts ([`TextLayout`]): one sentence a line with a blank line between documents, or running text whose paragraphs are
//! split by [`split_sentences`]. Sentences are only trimmed; the tokenizer cleans them. A byte-order mark and carriage returns are
//! removed. A line of a file may have any length that fits in memory; a document from a pipe, a device or a compressed file may
//! have at most [`engine::io::limits::LARGEST_STREAM`] bytes. A thread decodes gzip and zstd ahead. Other compression formats and
//! Git LFS pointers are errors, even with `lossy`. With [`CorpusSettings::field`] each line is JSON and a document.
//!
//! Cost: reading and checking UTF-8, about 1 GB/s.
//!
//! Ranks read different parts of a source (`Part` in `sources`): a part begins after its first cut and ends at the first cut of a
//! later part.

use std::io::{BufRead, Read};
use std::ops::Range;
use std::path::Path;

use engine::io::hash64;

use super::error::DataError;
use super::json_lines;
use super::sentences::split_sentences;
use super::settings::{CorpusSettings, TextLayout};
use super::sources::{Part, Source};

/// A document: at least one sentence, none of them empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Index of its source in the list given to [`Documents::new`].
    pub source: usize,
    /// Line of its first sentence, counted from 1.
    pub line: u64,
    text: String,
    ends: Vec<usize>,
}

impl Document {
    fn push(&mut self, sentence: &str) {
        self.text.push_str(sentence);
        self.ends.push(self.text.len());
    }

    /// The sentences in order.
    pub fn sentences(&self) -> impl ExactSizeIterator<Item = &str> {
        let start = |i: usize| if i == 0 { 0 } else { self.ends[i - 1] };
        (0..self.ends.len()).map(move |i| &self.text[start(i)..self.ends[i]])
    }

    /// Number of sentences.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if it has no sentence; documents of [`Documents`] always have one.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of text.
    pub(crate) fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Hash of the text.
    pub(super) fn exact_hash(&self) -> u64 {
        hash64(self.text.as_bytes())
    }

    /// Hash of the text without case, punctuation and white space: equal for copies, so that they stay on one side of the split.
    pub fn content_hash(&self) -> u64 {
        let mut folded = String::with_capacity(self.text.len());
        for c in self.text.chars() {
            // ASCII does not need a Unicode table.
            if c.is_ascii() {
                if c.is_ascii_alphanumeric() {
                    folded.push(c.to_ascii_lowercase());
                }
            } else if c.is_alphanumeric() {
                folded.extend(c.to_lowercase());
            }
        }
        // Texts without a letter or digit are hashed as they are: otherwise all of them would be one document.
        hash64(if folded.is_empty() { self.text.as_bytes() } else { folded.as_bytes() })
    }
}

/// Counters of the reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadCounts {
    /// Bytes read.
    pub bytes: u64,
    /// Documents read.
    pub documents: u64,
    /// Lines read.
    pub lines: u64,
    /// Lines in which invalid UTF-8 was replaced (`lossy`).
    pub repaired_lines: u64,
}

/// Bounds of a part while it is read.
struct Bounds {
    bytes: Range<u64>,
    /// Position of its first line, once found.
    first: Option<u64>,
    /// Consecutive blank lines so far, and the number of the part that they are in.
    blank_lines: usize,
    number: u64,
}

impl Bounds {
    /// True if the line at `start` ends with a cut: `needed` blank lines, or any line if `needed` is 0.
    fn is_cut(&mut self, start: u64, raw: &[u8], needed: usize) -> bool {
        let number = start / Part::BYTES;
        if number != self.number {
            (self.number, self.blank_lines) = (number, 0);
        }
        if needed == 0 {
            return true;
        }
        let is_blank = std::str::from_utf8(raw).is_ok_and(|line| line.trim().is_empty());
        self.blank_lines = if is_blank { self.blank_lines + 1 } else { 0 };
        self.blank_lines == needed
    }
}

/// Documents of a list of sources, in order. An error ends the iteration.
pub struct Documents {
    sources: Vec<Source>,
    settings: CorpusSettings,
    reader: Option<Box<dyn BufRead + Send>>,
    /// Largest document of this source, in bytes.
    limit: u64,
    /// Index of the source being read or read next, and the index after the last.
    source: usize,
    end: usize,
    /// Part of the source, if not all is read.
    part: Option<Bounds>,
    /// Position of the next line.
    position: u64,
    line: u64,
    raw: Vec<u8>,
    paragraph: String,
    blank_lines: usize,
    document: Document,
    counts: ReadCounts,
    done: bool,
}

impl Documents {
    /// Reads `sources` in order.
    ///
    /// # Errors
    /// [`DataError::Setting`] if a setting is out of range; errors of reading come from the iterator.
    pub fn new(sources: Vec<Source>, settings: &CorpusSettings) -> Result<Self, DataError> {
        settings.validate()?;
        Ok(Self {
            end: sources.len(),
            sources,
            settings: settings.clone(),
            reader: None,
            limit: u64::MAX,
            source: 0,
            part: None,
            position: 0,
            line: 0,
            raw: Vec::new(),
            paragraph: String::new(),
            blank_lines: 0,
            document: Document::default(),
            counts: ReadCounts::default(),
            done: false,
        })
    }

    /// Reads a part of one of `sources`, which may be empty. Lines of documents are counted from the start of the part.
    pub(super) fn of_part(sources: Vec<Source>, part: Part, settings: &CorpusSettings) -> Result<Self, DataError> {
        let Part { source, bytes } = part;
        let first = (bytes.start == 0).then_some(0);
        let bounds = Bounds { bytes, first, blank_lines: 0, number: 0 };
        Ok(Self { source, end: source + 1, part: Some(bounds), ..Self::new(sources, settings)? })
    }

    /// Counters so far.
    pub(crate) fn counts(&self) -> ReadCounts {
        self.counts
    }

    fn read(&mut self) -> Result<Option<Document>, DataError> {
        loop {
            let is_empty = |part: &Bounds| part.first.is_none() && self.position >= part.bytes.end;
            if self.part.as_ref().is_some_and(is_empty) {
                (self.reader, self.source) = (None, self.end);
            }
            let Some(reader) = self.reader.take() else {
                if self.source == self.end {
                    return self.finish();
                }
                self.open()?;
                continue;
            };
            let start = self.position;
            let read = self.read_line(reader)?;
            let mut is_last = false;
            if let Some(part) = self.part.as_mut().filter(|_| read > 0) {
                let needed = match self.settings.layout {
                    // Every line is a document.
                    _ if self.settings.field.is_some() => 0,
                    TextLayout::Sentences => 1,
                    TextLayout::Paragraphs => self.settings.blank_lines_between_documents,
                };
                let is_own = start < part.bytes.end;
                // Cuts of other parts do not bound this one.
                let is_cut = (part.first.is_none() || !is_own) && part.is_cut(start, &self.raw, needed);
                if part.first.is_none() {
                    part.first = is_cut.then_some(self.position);
                    continue;
                }
                is_last = is_cut && !is_own;
            }
            self.counts.bytes += read as u64;
            if read == 0 {
                self.end_paragraph();
                self.reader = None;
                let document = self.take_document();
                self.source += 1;
                if document.is_some() {
                    return Ok(document);
                }
                continue;
            }
            self.line += 1;
            self.counts.lines += 1;
            let is_end = self.take_line(start == 0)?;
            let document = if is_end { self.take_document() } else { None };
            if is_last {
                (self.reader, self.source) = (None, self.end);
            }
            if document.is_some() {
                return Ok(document);
            }
        }
    }

    /// Opens the next source.
    fn open(&mut self) -> Result<(), DataError> {
        let source = &self.sources[self.source];
        let range = self.part.as_ref().map_or(0..u64::MAX, |part| part.bytes.clone());
        let (reader, position) = source.open(&range)?;
        (self.reader, self.position) = (Some(reader), position);
        self.limit = source.largest_document()?;
        (self.line, self.blank_lines) = (0, 0);
        Ok(())
    }

    /// Reads a line of the open source into `raw` and returns its bytes, 0 at the end.
    fn read_line(&mut self, mut reader: Box<dyn BufRead + Send>) -> Result<usize, DataError> {
        self.raw.clear();
        let so_far = (self.document.bytes() + self.paragraph.len()) as u64;
        let mut bounded = reader.by_ref().take(self.limit.saturating_sub(so_far).saturating_add(1));
        let read = bounded.read_until(b'\n', &mut self.raw);
        let read = read.and_then(|read| match so_far.saturating_add(read as u64) > self.limit {
            false => Ok(read),
            true => Err(too_long("document", self.limit)),
        });
        self.reader = Some(reader);
        let read = read.map_err(DataError::io(Path::new(&self.sources[self.source].name()), "read"))?;
        self.position += read as u64;
        Ok(read)
    }

    /// Adds the line in `raw`; true if it ends the document.
    fn take_line(&mut self, is_first: bool) -> Result<bool, DataError> {
        if is_first {
            self.sources[self.source].expect_text(&self.raw)?;
        }
        if is_first && self.raw.starts_with(b"\xEF\xBB\xBF") {
            self.raw.drain(..3);
        }
        let repaired;
        let line = match std::str::from_utf8(&self.raw) {
            Ok(line) => line,
            Err(_) if self.settings.lossy => {
                self.counts.repaired_lines += 1;
                repaired = String::from_utf8_lossy(&self.raw).into_owned();
                &repaired
            }
            Err(error) => {
                return Err(invalid_utf8(&self.place()?, &self.raw, error));
            }
        };
        let line = line.trim();
        let is_blank = line.is_empty();
        if let Some(field) = &self.settings.field {
            if is_blank {
                return Ok(false);
            }
            let text = match json_lines::field(line, field) {
                Ok(text) => text,
                Err(problem) => return Err(DataError::input(self.place()?, problem)),
            };
            self.document.line = self.line;
            self.take_text(&text);
            return Ok(true);
        }
        match self.settings.layout {
            TextLayout::Sentences if is_blank => return Ok(true),
            TextLayout::Sentences => {
                if self.document.is_empty() {
                    self.document.line = self.line;
                }
                self.document.push(line);
            }
            TextLayout::Paragraphs if is_blank => {
                self.end_paragraph();
                self.blank_lines += 1;
                return Ok(self.blank_lines == self.settings.blank_lines_between_documents);
            }
            TextLayout::Paragraphs => {
                self.blank_lines = 0;
                if self.document.is_empty() && self.paragraph.is_empty() {
                    self.document.line = self.line;
                }
                if !self.paragraph.is_empty() {
                    self.paragraph.push(' ');
                }
                self.paragraph.push_str(line);
            }
        }
        Ok(false)
    }

    /// `FILE:LINE` of the line in `raw`.
    fn place(&self) -> Result<String, DataError> {
        let source = &self.sources[self.source];
        let before = self.part.as_ref().and_then(|part| part.first).map_or(Ok(0), |at| source.lines_before(at))?;
        Ok(format!("{}:{}", source.name(), before + self.line))
    }

    /// Adds all sentences of a text that is a whole document.
    fn take_text(&mut self, text: &str) {
        for line in text.lines().map(str::trim) {
            match self.settings.layout {
                TextLayout::Sentences if line.is_empty() => {}
                TextLayout::Sentences => self.document.push(line),
                TextLayout::Paragraphs if line.is_empty() => self.end_paragraph(),
                TextLayout::Paragraphs => {
                    if !self.paragraph.is_empty() {
                        self.paragraph.push(' ');
                    }
                    self.paragraph.push_str(line);
                }
            }
        }
        self.end_paragraph();
    }

    fn end_paragraph(&mut self) {
        split_sentences(&self.paragraph, |sentence| self.document.push(sentence));
        self.paragraph.clear();
    }

    fn take_document(&mut self) -> Option<Document> {
        if self.document.is_empty() {
            return None;
        }
        self.counts.documents += 1;
        let mut document = std::mem::take(&mut self.document);
        document.source = self.source;
        Some(document)
    }

    fn finish(&mut self) -> Result<Option<Document>, DataError> {
        if self.counts.documents > 0 || self.part.is_some() {
            return Ok(None);
        }
        Err(empty(&self.sources))
    }
}

impl Iterator for Documents {
    type Item = Result<Document, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.read().transpose();
        self.done = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Error for a text whose documents or lines do not end.
pub(super) fn too_long(what: &str, limit: u64) -> std::io::Error {
    std::io::Error::other(format!(
        "a {what} of more than {limit} bytes from a pipe, a device or a compressed file; put blank lines between documents and \
         sentences on lines of their own, or write the text to a file first"
    ))
}

/// Error for sources without a document.
pub(super) fn empty(sources: &[Source]) -> DataError {
    let names: Vec<String> = sources.iter().map(Source::name).collect();
    DataError::EmptyCorpus { names: if names.is_empty() { "no file".into() } else { names.join(", ") } }
}

pub(super) fn invalid_utf8(place: &str, raw: &[u8], error: std::str::Utf8Error) -> DataError {
    let at = error.valid_up_to();
    // Show the invalid sequence and the byte after it.
    let shown = error.error_len().map_or(raw.len() - at, |len| len + 1).min(raw.len() - at).min(4);
    let bytes: Vec<String> = raw[at..at + shown].iter().map(|b| format!("0x{b:02X}")).collect();
    let (byte, bytes) = (at + 1, bytes.join(" "));
    let problem = format!("invalid UTF-8 at byte {byte} ({bytes}); re-encode the file or pass --lossy");
    DataError::input(place, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(text: impl Into<Vec<u8>>) -> Vec<Source> {
        vec![Source::Memory { name: "corpus.txt".into(), text: text.into().into() }]
    }

    fn read(text: impl Into<Vec<u8>>, settings: &CorpusSettings) -> Result<Vec<Document>, DataError> {
        Documents::new(memory(text), settings)?.collect()
    }

    fn sentences(documents: &[Document]) -> Vec<Vec<&str>> {
        documents.iter().map(|d| d.sentences().collect()).collect()
    }

    #[test]
    fn blank_lines_separate_documents_and_lines_are_sentences() {
        let text = "\u{FEFF}\n\n A b. \r\nC d.\r\n\r\n \t\nE f.";
        let documents = read(text, &CorpusSettings::default()).unwrap();
        assert_eq!(sentences(&documents), [vec!["A b.", "C d."], vec!["E f."]]);
        assert_eq!(documents.iter().map(|d| d.line).collect::<Vec<_>>(), [3, 7]);
    }

    #[test]
    fn a_file_ends_a_document() {
        let sources = [memory("One.\nTwo."), memory(""), memory("Three.")].concat();
        let documents: Vec<_> =
            Documents::new(sources, &CorpusSettings::default()).unwrap().map(Result::unwrap).collect();
        assert_eq!(sentences(&documents), [vec!["One.", "Two."], vec!["Three."]]);
        assert_eq!(documents.iter().map(|d| (d.source, d.line)).collect::<Vec<_>>(), [(0, 1), (2, 1)]);
        let error = Documents::new(Vec::new(), &CorpusSettings::default()).unwrap().next().unwrap().unwrap_err();
        assert!(error.to_string().contains("no file"), "{error}");
    }

    #[test]
    fn paragraphs_are_joined_and_cut_into_sentences() {
        let settings = CorpusSettings { layout: TextLayout::Paragraphs, ..Default::default() };
        let text = "It was\nlate. He\nleft.\n\nShe stayed. Mr.\nB. came.\n\n\n\nNew one.\n";
        let documents = read(text, &settings).unwrap();
        let expected = [vec!["It was late.", "He left.", "She stayed.", "Mr. B. came."], vec!["New one."]];
        assert_eq!(sentences(&documents), expected);
        assert_eq!(documents.iter().map(|d| d.line).collect::<Vec<_>>(), [1, 10]);
        let settings = CorpusSettings { blank_lines_between_documents: 1, ..settings };
        assert_eq!(read(text, &settings).unwrap().len(), 3);
    }

    #[test]
    fn invalid_utf8_is_reported_with_line_and_byte() {
        let mut text = b"Fine.\n".to_vec();
        text.extend(b"x".repeat(36));
        text.extend(b"\xC3\x28 and more\nNext.\n");
        let error = read(text.clone(), &CorpusSettings::default()).unwrap_err().to_string();
        assert_eq!(error, "corpus.txt:2: invalid UTF-8 at byte 37 (0xC3 0x28); re-encode the file or pass --lossy");
        let settings = CorpusSettings { lossy: true, ..Default::default() };
        let mut documents = Documents::new(memory(text), &settings).unwrap();
        let document = documents.next().unwrap().unwrap();
        assert!(document.sentences().nth(1).unwrap().ends_with("\u{FFFD}( and more"), "{document:?}");
        assert_eq!(documents.counts().repaired_lines, 1);

        let error = read(b"cut short \xE2\x82".to_vec(), &CorpusSettings::default()).unwrap_err().to_string();
        assert!(error.starts_with("corpus.txt:1: invalid UTF-8 at byte 11 (0xE2 0x82);"), "{error}");
    }

    #[test]
    fn equal_content_is_recognised_across_case_and_punctuation() {
        let hash = |text: &str| read(text, &CorpusSettings::default()).unwrap()[0].content_hash();
        assert_eq!(hash("The end, he said.\nYes."), hash("the end he said\nYES!"));
        assert_ne!(hash("The end."), hash("The ends."));
        assert_ne!(hash("- - -"), hash("***"));
        let mixed = "Déjà VU. \u{130}z, ΣΑΣ: 4½ x² Ⅷ \u{1FAD}_Ab9!";
        let folded: String = mixed.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
        assert_eq!(hash(mixed), hash64(folded.as_bytes()), "{folded}");
    }

    #[test]
    fn compressed_files_and_pointers_are_named_even_where_damage_is_repaired() {
        let settings = [CorpusSettings::default(), CorpusSettings { lossy: true, ..Default::default() }];
        for (bytes, said) in [
            (&b"\x1f\x8b\x08\0\0\0\0\0\0\x03KL"[..], "compressed with gzip; unpack it with `gunzip`"),
            (b"PK\x03\x04\n\0", "a zip archive; unpack it with `unzip`"),
            (b"\xfd7zXZ\0\0\x04", "`unxz`"),
            (b"\x28\xb5\x2f\xfd\x04", "`unzstd`"),
            (b"BZh91AY&SY", "`bunzip2`"),
            (b"\xff\xfeA\0", "UTF-16"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 5\n", "run `git lfs pull`"),
        ] {
            for settings in &settings {
                let error = read(bytes, settings).unwrap_err().to_string();
                assert!(error.starts_with("corpus.txt: not a text file: it is ") && error.contains(said), "{error}");
            }
        }
        // Text that starts like a binary format is still text.
        for text in ["BZh is a word.", "<!DOCTYPE html>", "version 2", "PAR1 and PAR2"] {
            assert_eq!(read(text, &settings[0]).unwrap().len(), 1, "{text}");
        }
    }
}
