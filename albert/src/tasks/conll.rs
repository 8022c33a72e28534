//! CoNLL files: one word with its tag a line, a blank line between sentences.
//!
//! ```text
//! -DOCSTART- -X- -X- O
//!
//! Peter NNP B-NP B-PER      word, ..., tag
//! sleeps VBZ B-VP O
//! ```
//!
//! Columns are separated by spaces, or by single TABs. All lines have as many columns as the first. Sentences are numbered
//! from 0; `-DOCSTART-` lines are skipped. A file whose first words mostly contain spaces is an error: it contains texts.
//!
//! Source: Tjong Kim Sang and De Meulder 2003 (CoNLL-2003).

use std::collections::BTreeSet;
use std::path::Path;

use super::classes::Classes;
use super::error::{Place, TaskError, shown};
use super::example::Tagged;
use super::lines::Lines;
use super::reader::{Purpose, Reader, Remarks, Rows};
use super::table::in_order;

/// Columns to read, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagColumns {
    /// Word.
    pub word: usize,
    /// Tag; `None` for the last column.
    pub tag: Option<usize>,
}

/// Reads sentences of tagged words. Prediction needs no tags.
///
/// # Errors
/// The file cannot be opened. The reader returns all other errors.
pub fn read_tagged(
    path: &Path,
    columns: TagColumns,
    labels: &[String],
    purpose: Purpose,
) -> Result<Reader<Tagged>, TaskError> {
    let words = Words::open(path, columns, purpose.needs_labels())?;
    Ok(Reader::new(path, Sentences { words, labels: Classes::new(labels), count: 0, first_line: 0 }))
}

/// Tags of a file: `O` first, then alphabetically.
///
/// # Errors
/// As [`read_tagged`] and its reader.
pub fn labels_of_tagged(path: &Path, columns: TagColumns) -> Result<Vec<String>, TaskError> {
    let mut words = Words::open(path, columns, true)?;
    let mut tags = BTreeSet::new();
    while let Some(line) = words.next()? {
        if let Line::Word(_, Some(tag)) = line {
            tags.insert(tag);
        }
    }
    if tags.is_empty() {
        return Err(TaskError::no_example(path));
    }
    let outside = tags.take("O");
    Ok(outside.into_iter().chain(in_order(tags)).collect())
}

enum Line {
    Word(String, Option<String>),
    Blank,
}

struct Words {
    lines: Lines,
    columns: TagColumns,
    needs_tag: bool,
    /// Columns of the first line.
    width: Option<usize>,
    /// The first words, until they are judged.
    shape: Option<Shape>,
}

/// Statistics of the first words, which detect a file of texts.
#[derive(Default)]
struct Shape {
    words: usize,
    /// Words that contain a space, and the first of them.
    spaced: usize,
    first: Option<(Place, String)>,
}

impl Shape {
    /// Number of words to judge.
    const ENOUGH: usize = 20;

    fn add(&mut self, word: &str, tag: Option<&str>, at: impl FnOnce() -> Place) {
        self.words += 1;
        let is_header = self.words == 1 && (word, tag) == ("text", Some("label"));
        if is_header || word.contains(' ') {
            // The header of a classification file decides at once.
            self.spaced += if is_header { Self::ENOUGH } else { 1 };
            self.first.get_or_insert_with(|| (at(), word.to_owned()));
        }
    }

    /// Some corpora have words with spaces, but not every second word.
    fn judge(self) -> Result<(), TaskError> {
        match self.first {
            Some((at, found)) if 2 * self.spaced > self.words => Err(at.error(format!(
                "{} is not a word; a file for `tag` has a word and its tag in each line and an empty line between \
                 sentences, such as \"Oslo B-LOC\"; texts with a label are for `classify`",
                shown(&found)
            ))),
            _ => Ok(()),
        }
    }
}

impl Words {
    fn open(path: &Path, columns: TagColumns, needs_tag: bool) -> Result<Self, TaskError> {
        Ok(Self { lines: Lines::open(path)?, columns, needs_tag, width: None, shape: Some(Shape::default()) })
    }

    fn next(&mut self) -> Result<Option<Line>, TaskError> {
        let Some(line) = self.line()? else {
            self.shape.take().map_or(Ok(()), Shape::judge)?;
            return Ok(None);
        };
        if let (Line::Word(word, tag), Some(shape)) = (&line, &mut self.shape) {
            shape.add(word, tag.as_deref(), || self.lines.place());
            if shape.words == Shape::ENOUGH {
                self.shape.take().map_or(Ok(()), Shape::judge)?;
            }
        }
        Ok(Some(line))
    }

    fn line(&mut self) -> Result<Option<Line>, TaskError> {
        let columns = self.columns;
        let Some(line) = self.lines.next()? else { return Ok(None) };
        let by = if line.contains('\t') { '\t' } else { ' ' };
        // Without a list: a line may have millions of columns.
        let fields = || line.split(by).map(move |field| if by == '\t' { field.trim() } else { field });
        let fields = || fields().filter(move |field| by == '\t' || !field.is_empty());
        let (mut found, mut is_blank, mut last) = (0, true, "");
        let (mut word, mut tag) = (None, None);
        for field in fields() {
            word = word.or((found == columns.word).then_some(field));
            tag = tag.or((Some(found) == columns.tag).then_some(field));
            is_blank &= field.is_empty();
            last = field;
            found += 1;
        }
        if is_blank || fields().next() == Some("-DOCSTART-") {
            return Ok(Some(Line::Blank));
        }
        let width = self.width.unwrap_or(found);
        let tag_column = columns.tag.unwrap_or(width - 1);
        let is_tagged = tag_column < width && tag_column != columns.word;
        let expected = if found != width {
            Some(format!("{width} as in the first line"))
        } else if columns.word >= width || (self.needs_tag && !is_tagged) {
            let least = columns.word.max(columns.tag.unwrap_or(columns.word + 1)) + 1;
            Some(format!("at least {least}, with the tag in another column than the word"))
        } else {
            None
        };
        let tag = is_tagged.then(|| if columns.tag.is_none() { last } else { tag.unwrap_or_default() });
        let (word, tag) = (word.unwrap_or_default().to_owned(), tag.map(str::to_owned));
        self.width = Some(width);
        if let Some(expected) = expected {
            return Err(self.lines.place().columns(found, expected, "spaces or TABs"));
        }
        if word.is_empty() {
            return Err(self.lines.place().empty("the word"));
        }
        Ok(Some(Line::Word(word, tag)))
    }
}

struct Sentences {
    words: Words,
    labels: Classes,
    count: u64,
    first_line: u64,
}

impl Rows<Tagged> for Sentences {
    fn next(&mut self, _remarks: &mut Remarks) -> Result<Option<Tagged>, TaskError> {
        let mut sentence = Tagged { id: self.count.to_string(), words: Vec::new(), tags: Vec::new() };
        while let Some(line) = self.words.next()? {
            let (word, tag) = match line {
                Line::Word(word, tag) => (word, tag),
                Line::Blank if sentence.words.is_empty() => continue,
                Line::Blank => break,
            };
            let at = self.words.lines.place();
            if sentence.words.is_empty() {
                self.first_line = at.line;
            }
            sentence.words.push(word);
            if let Some(tag) = tag {
                sentence.tags.push(self.labels.find(&tag, || at)?);
            }
        }
        self.count += 1;
        // Memory stays close to the file size for short sentences.
        sentence.words.shrink_to_fit();
        sentence.tags.shrink_to_fit();
        Ok((!sentence.words.is_empty()).then_some(sentence))
    }

    fn place(&self) -> Place {
        Place { line: self.first_line, ..self.words.lines.place() }
    }

    fn are_numbered(&self) -> bool {
        true
    }
}
