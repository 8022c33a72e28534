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
//! from 0; `-DOCSTART-` lines and, before a sentence, comments such as `# sent_id = 1` are skipped. A file whose first
//! words mostly contain spaces is an error: it contains texts.
//!
//! JSON files contain `{"tokens": ["Peter", "sleeps"], "ner_tags": ["B-PER", "O"]}`, one object a line or in an array.
//!
//! Source: Tjong Kim Sang and De Meulder 2003 (CoNLL-2003).

use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::Path;

use engine::io::limits::text;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::choice::Scalar;
use super::classes::Classes;
use super::error::{Place, TaskError, shown};
use super::example::Tagged;
use super::json::Objects;
use super::lines::{Lines, ending, open_lines};
use super::reader::{Purpose, Reader, Remarks, Rows};
use super::table::in_order;

/// Columns to read, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagColumns {
    /// Column of the word.
    pub word: usize,
    /// Column of the tag; `None` for the last column.
    pub tag: Option<usize>,
}

/// Reads sentences of tagged words. Tags are not required for prediction.
///
/// # Errors
/// The file cannot be opened. The reader returns all other errors.
pub fn read_tagged(
    path: &Path,
    columns: TagColumns,
    labels: &[String],
    purpose: Purpose,
) -> Result<Reader<Tagged>, TaskError> {
    let needs_tags = purpose.needs_labels();
    let words = match open(path, columns, needs_tags)? {
        Source::Words(words) => words,
        Source::Objects(objects) => {
            let (labels, id) = (Classes::new(labels), None);
            let rows = TaggedObjects { objects, labels, needs_tags, count: 0, id, is_numbered: true };
            return Ok(Reader::new(path, rows));
        }
    };
    Ok(Reader::new(path, Sentences { words, labels: Classes::new(labels), count: 0, first_line: 0 }))
}

/// Words of CoNLL, or objects of JSON.
enum Source {
    Words(Words),
    Objects(Objects),
}

/// Opens a file in the format of its extension, or standard input in the format of its first bytes.
fn open(path: &Path, columns: TagColumns, needs_tags: bool) -> Result<Source, TaskError> {
    let ending = ending(path);
    if text::is_standard_input(path) {
        let mut file = open_lines(path)?;
        let head = file.fill_buf().map_err(TaskError::io(path, "read"))?;
        if head.starts_with(b"{\"") || head.starts_with(b"[{") {
            return Objects::of(path, file, "data", OBJECTS).map(Source::Objects);
        }
        return Ok(Source::Words(Words::new(Lines::new(path, file), columns, needs_tags)));
    }
    match ending.as_deref() {
        Some("jsonl" | "ndjson" | "json") => Objects::open(path, "data", OBJECTS).map(Source::Objects),
        Some("csv" | "parquet" | "arrow" | "npy" | "xml" | "xlsx") => {
            Err(TaskError::file_type(path, ".conll, .tsv, .txt or .bio with a word a line, or .jsonl or .json"))
        }
        _ => Ok(Source::Words(Words::new(Lines::open(path)?, columns, needs_tags))),
    }
}

const OBJECTS: &str = "objects such as {\"tokens\": [\"Oslo\"], \"ner_tags\": [\"B-LOC\"]}";

/// A sentence as JSON.
#[derive(Deserialize)]
struct Object {
    id: Option<Scalar>,
    #[serde(alias = "words")]
    tokens: Vec<String>,
    #[serde(alias = "tags", alias = "labels", alias = "pos_tags")]
    ner_tags: Option<Box<RawValue>>,
}

impl Object {
    /// Names of the tags; numbers are used as names.
    fn tags(&self, at: impl Fn() -> Place) -> Result<Vec<String>, TaskError> {
        let Some(tags) = &self.ner_tags else { return Err(at().no_label()) };
        let tags: Vec<Scalar> = serde_json::from_str(tags.get()).map_err(|error| at().json_error(&error, OBJECTS))?;
        if tags.len() != self.tokens.len() {
            let problem = format!("{} words and {} tags; expected a tag for each word", self.tokens.len(), tags.len());
            return Err(at().error(problem));
        }
        Ok(tags.into_iter().map(String::from).collect())
    }
}

struct TaggedObjects {
    objects: Objects,
    labels: Classes,
    needs_tags: bool,
    count: u64,
    id: Option<String>,
    /// True if the last sentence had no id.
    is_numbered: bool,
}

impl Rows<Tagged> for TaggedObjects {
    fn next(&mut self, remarks: &mut Remarks) -> Result<Option<Tagged>, TaskError> {
        self.id = None;
        let read = self.objects.next::<Object>(remarks);
        let number = self.count;
        self.count += 1;
        let Some(object) = read? else { return Ok(None) };
        let at = || self.objects.place();
        let tags = if self.needs_tags { object.tags(at)? } else { Vec::new() };
        let tags = tags.iter().map(|tag| self.labels.find(tag, at)).collect::<Result<_, _>>()?;
        self.is_numbered = object.id.is_none();
        let id = object.id.map_or_else(|| number.to_string(), String::from);
        self.id = Some(id.clone());
        if object.tokens.is_empty() {
            return Err(at().empty("the list of words"));
        }
        Ok(Some(Tagged { id, words: object.tokens, tags }))
    }

    fn place(&self) -> Place {
        self.objects.place()
    }

    fn id(&self) -> Option<String> {
        self.id.clone()
    }

    fn resumes(&self) -> bool {
        self.objects.resumes()
    }

    fn are_numbered(&self) -> bool {
        self.is_numbered
    }
}

/// Tags of a file: `O` first, then alphabetically.
///
/// # Errors
/// As [`read_tagged`] and its reader.
pub fn labels_of_tagged(path: &Path, columns: TagColumns) -> Result<Vec<String>, TaskError> {
    labels_of_words(path, columns, 0)
}

/// As [`labels_of_tagged`], without the tags of up to `skipped` unusable lines.
pub(crate) fn labels_of_words(path: &Path, columns: TagColumns, skipped: u64) -> Result<Vec<String>, TaskError> {
    let (mut tags, mut unusable) = (BTreeSet::new(), 0);
    let mut skip = |error| {
        unusable += 1;
        if unusable > skipped { Err(error) } else { Ok(()) }
    };
    match open(path, columns, true)? {
        Source::Objects(mut objects) => {
            let mut remarks = Remarks::default();
            loop {
                let read = objects.next::<Object>(&mut remarks);
                let of_one = match read {
                    Ok(None) => break,
                    Ok(Some(object)) => object.tags(|| objects.place()),
                    Err(error) if !objects.resumes() => return Err(error),
                    Err(error) => Err(error),
                };
                of_one.map(|list| tags.extend(list)).or_else(&mut skip)?;
            }
        }
        Source::Words(mut words) => loop {
            match words.next() {
                Ok(None) => break,
                Ok(Some(Line::Word(_, Some(tag)))) => drop(tags.insert(tag)),
                Ok(Some(_)) => {}
                Err(error @ TaskError::Input { .. }) if words.shape_fits => skip(error)?,
                Err(error) => return Err(error),
            }
        },
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
    /// Number of columns of the first line.
    width: Option<usize>,
    /// Statistics of the first words, until they are checked.
    shape: Option<Shape>,
    /// False if the file contains texts.
    shape_fits: bool,
    /// True after the first word of a sentence.
    is_within: bool,
}

/// True for a comment before a sentence, such as `# sent_id = 1`; the word `#` has a tag and as many columns as other words.
fn is_comment(line: &str, columns: usize, last: &str, width: Option<usize>) -> bool {
    let mut fields = line.split_whitespace();
    let has_tag = last == "O" || last.split_once('-').is_some_and(|(head, _)| "BIESLUM".contains(head));
    let is_word = width.map_or(columns == 1 || has_tag, |width| columns == width);
    let is_known = fields.clone().any(|field| field == "=") || matches!(fields.nth(1), Some("newdoc" | "newpar"));
    line.starts_with('#') && (is_known || !is_word)
}

/// Statistics of the first words, which detect a file of texts.
#[derive(Default)]
struct Shape {
    words: usize,
    /// Number of words that contain a space, and the first of them.
    spaced: usize,
    first: Option<(Place, String)>,
}

impl Shape {
    /// Number of words to check.
    const ENOUGH: usize = 20;

    fn add(&mut self, word: &str, tag: Option<&str>, at: impl FnOnce() -> Place) {
        self.words += 1;
        let is_header = self.words == 1 && (word, tag) == ("text", Some("label"));
        if is_header || word.contains(' ') {
            // The header of a classification file is sufficient.
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
    fn new(lines: Lines, columns: TagColumns, needs_tag: bool) -> Self {
        let shape = Some(Shape::default());
        Self { lines, columns, needs_tag, width: None, shape, shape_fits: true, is_within: false }
    }

    fn next(&mut self) -> Result<Option<Line>, TaskError> {
        let Some(line) = self.line()? else {
            self.judge()?;
            return Ok(None);
        };
        if let (Line::Word(word, tag), Some(shape)) = (&line, &mut self.shape) {
            shape.add(word, tag.as_deref(), || self.lines.place());
            if shape.words == Shape::ENOUGH {
                self.judge()?;
            }
        }
        Ok(Some(line))
    }

    fn judge(&mut self) -> Result<(), TaskError> {
        let judged = self.shape.take().map_or(Ok(()), Shape::judge);
        self.shape_fits &= judged.is_ok();
        judged
    }

    fn line(&mut self) -> Result<Option<Line>, TaskError> {
        let (columns, is_within) = (self.columns, std::mem::replace(&mut self.is_within, true));
        let Some(line) = self.lines.next()? else { return Ok(None) };
        let by = if line.contains('\t') { '\t' } else { ' ' };
        // Without collecting them: a line may have millions of columns.
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
        let is_comment = || !is_within && is_comment(line, found, last, self.width);
        if is_blank || fields().next() == Some("-DOCSTART-") || is_comment() {
            self.is_within = false;
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
        // An error belongs to its sentence, which is read to its end.
        let mut error = None;
        loop {
            let (word, tag) = match self.words.next() {
                Ok(None) => break,
                Err(problem @ TaskError::Input { .. }) if self.words.shape_fits => {
                    error.get_or_insert(problem);
                    continue;
                }
                Err(problem) => return Err(problem),
                Ok(Some(line)) => match line {
                    Line::Word(word, tag) => (word, tag),
                    Line::Blank if sentence.words.is_empty() && error.is_none() => continue,
                    Line::Blank => break,
                },
            };
            let at = self.words.lines.place();
            if sentence.words.is_empty() {
                self.first_line = at.line;
            }
            sentence.words.push(word);
            match tag.filter(|_| self.words.needs_tag).map(|tag| self.labels.find(&tag, || at)) {
                Some(Ok(tag)) => sentence.tags.push(tag),
                Some(Err(problem)) => drop(error.get_or_insert(problem)),
                None => {}
            }
        }
        self.count += 1;
        if let Some(error) = error {
            return Err(error);
        }
        // Memory stays close to the file size for short sentences.
        sentence.words.shrink_to_fit();
        sentence.tags.shrink_to_fit();
        Ok((!sentence.words.is_empty()).then_some(sentence))
    }

    fn place(&self) -> Place {
        Place { line: self.first_line, ..self.words.lines.place() }
    }

    fn id(&self) -> Option<String> {
        self.count.checked_sub(1).map(|number| number.to_string())
    }

    fn resumes(&self) -> bool {
        self.words.shape_fits
    }

    fn are_numbered(&self) -> bool {
        true
    }
}
