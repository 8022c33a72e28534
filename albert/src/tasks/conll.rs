//! Words with tags: one word a line, a blank line between sentences.
//!
//! ```text
//! -DOCSTART- -X- -X- O
//!
//! Peter NNP B-NP B-PER      word, ..., tag
//! sleeps VBZ B-VP O
//! ```
//!
//! Columns are parted by spaces, or by single TABs. All lines have as many columns as the first. Sentences are
//! numbered from 0; `-DOCSTART-` lines are no words.
//!
//! Source: Tjong Kim Sang and De Meulder 2003 (CoNLL-2003).

use std::collections::BTreeSet;
use std::path::Path;

use super::error::{Place, TaskError};
use super::example::Tagged;
use super::glue::class_of;
use super::lines::Lines;
use super::reader::{Purpose, Reader, Remark, Rows};
use super::table::in_order;

/// Which columns are read, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagColumns {
    /// The word.
    pub word: usize,
    /// The tag; `None` for the last column.
    pub tag: Option<usize>,
}

/// Reads sentences of tagged words. For prediction, one column of words will do.
///
/// # Errors
/// If the file cannot be opened; all else the reader says when it comes to it.
pub fn read_tagged(
    path: &Path,
    columns: TagColumns,
    labels: &[String],
    purpose: Purpose,
) -> Result<Reader<Tagged>, TaskError> {
    let words = Words { lines: Lines::open(path)?, columns, needs_tag: purpose.needs_labels(), width: None };
    Ok(Reader::new(path, Sentences { words, labels: labels.to_vec(), count: 0, first_line: 0 }))
}

/// The tags in a file, in the order of the alphabet but for `O`, which comes first.
///
/// # Errors
/// As [`read_tagged`] and its reader.
pub fn labels_of_tagged(path: &Path, columns: TagColumns) -> Result<Vec<String>, TaskError> {
    let mut words = Words { lines: Lines::open(path)?, columns, needs_tag: true, width: None };
    let mut tags = BTreeSet::new();
    while let Some(line) = words.next()? {
        if let Line::Word(_, Some(tag)) = line {
            tags.insert(tag);
        }
    }
    if tags.is_empty() {
        return Err(TaskError::Empty { path: path.to_owned() });
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
}

impl Words {
    fn next(&mut self) -> Result<Option<Line>, TaskError> {
        let Some(line) = self.lines.next()? else { return Ok(None) };
        let fields: Vec<String> = if line.contains('\t') {
            line.split('\t').map(|field| field.trim().to_owned()).collect()
        } else {
            line.split(' ').filter(|field| !field.is_empty()).map(str::to_owned).collect()
        };
        if fields.iter().all(String::is_empty) || fields[0] == "-DOCSTART-" {
            return Ok(Some(Line::Blank));
        }
        let at = || self.lines.place();
        let width = *self.width.get_or_insert(fields.len());
        let columns_error = |expected: String| {
            Err(TaskError::Columns { at: at(), found: fields.len(), expected, separator: "spaces or TABs" })
        };
        if fields.len() != width {
            return columns_error(format!("{width} as in the first line"));
        }
        let tag_column = self.columns.tag.unwrap_or(width - 1);
        let is_tagged = tag_column < width && tag_column != self.columns.word;
        if self.columns.word >= width || (self.needs_tag && !is_tagged) {
            let least = self.columns.word.max(self.columns.tag.unwrap_or(self.columns.word + 1)) + 1;
            return columns_error(format!("at least {least}, the tag not being the word"));
        }
        let word = fields[self.columns.word].clone();
        if word.is_empty() {
            return Err(TaskError::NoText { at: at(), what: "the word" });
        }
        Ok(Some(Line::Word(word, is_tagged.then(|| fields[tag_column].clone()))))
    }
}

struct Sentences {
    words: Words,
    labels: Vec<String>,
    count: u64,
    first_line: u64,
}

impl Rows<Tagged> for Sentences {
    fn next(&mut self, _remarks: &mut Vec<Remark>) -> Result<Option<Tagged>, TaskError> {
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
                sentence.tags.push(class_of(&tag, &self.labels, || at)?);
            }
        }
        self.count += 1;
        Ok((!sentence.words.is_empty()).then_some(sentence))
    }

    fn place(&self) -> Place {
        Place { line: self.first_line, ..self.words.lines.place() }
    }
}
