//! Texts and pairs in files of one's own, in columns with names.
//!
//! ```text
//! .tsv     id \t text \t text_b \t label      quotes are literal, a row is a line
//! .csv     id,text,text_b,label               values with commas, quotes or line ends in double quotes
//! .jsonl   {"text": "...", "label": "..."}    one object a line; other keys do no harm
//! ```
//!
//! The first row of TSV and CSV names the columns, of which there may be others. Examples without ids are numbered
//! from 0.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::error::{Place, TaskError, listed};
use super::example::{Label, Problem, Text};
use super::glue::{class_of, number_of};
use super::lines::{self, Lines};
use super::reader::{Purpose, Reader, Remark, Rows};

/// Which columns are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextColumns {
    /// The name that a prediction is written under. `None`: `id` if there is such a column, else examples are
    /// numbered.
    pub id: Option<String>,
    /// The text, or the first of a pair.
    pub text: String,
    /// The second of a pair. `None`: `text_b` if there is such a column, else there are no pairs.
    pub text_b: Option<String>,
    /// A label or a number.
    pub label: String,
}

impl Default for TextColumns {
    /// `id` and `text_b` if they are there, `text`, `label`.
    fn default() -> Self {
        Self { id: None, text: "text".to_owned(), text_b: None, label: "label".to_owned() }
    }
}

/// A column and whether it must be there.
type Wanted<'a> = (&'a str, bool);

impl TextColumns {
    /// id, text, text_b, label.
    fn wanted(&self, needs_label: bool) -> [Wanted<'_>; 4] {
        [
            (self.id.as_deref().unwrap_or("id"), self.id.is_some()),
            (&self.text, true),
            (self.text_b.as_deref().unwrap_or("text_b"), self.text_b.is_some()),
            (&self.label, needs_label),
        ]
    }
}

/// Reads texts or pairs from a file whose name ends in `.tsv`, `.csv`, `.jsonl` or `.ndjson`. Labels are read
/// wherever they are, and must be there for training and evaluation.
///
/// # Errors
/// If the file's name has another ending or it cannot be opened; all else the reader says when it comes to it.
///
/// # Panics
/// If `problem` is not about texts.
pub fn read_texts(
    path: &Path,
    columns: &TextColumns,
    problem: &Problem,
    purpose: Purpose,
) -> Result<Reader<Text>, TaskError> {
    let labels = match problem {
        Problem::Classes { labels } => Some(labels.clone()),
        Problem::Number => None,
        other => panic!("{other:?} is not about texts"),
    };
    let records = open(path)?;
    let rows = TextRows {
        records,
        columns: columns.clone(),
        labels,
        needs_label: purpose.needs_labels(),
        count: 0,
        is_pair: false,
    };
    Ok(Reader::new(path, rows))
}

/// The labels in a file, for a [`Problem::Classes`]: whole numbers by size, all else in the order of the alphabet.
///
/// # Errors
/// As [`read_texts`] and its reader, and [`TaskError::NoLabel`] for an example without.
pub fn labels_of_texts(path: &Path, columns: &TextColumns) -> Result<Vec<String>, TaskError> {
    let mut records = open(path)?;
    let mut labels = BTreeSet::new();
    while let Some([_, _, _, label]) = records.next(&columns.wanted(true))? {
        match label {
            Some(label) if !label.is_empty() => labels.insert(label),
            _ => return Err(TaskError::NoLabel { at: records.place() }),
        };
    }
    if labels.is_empty() {
        return Err(TaskError::Empty { path: path.to_owned() });
    }
    Ok(in_order(labels))
}

/// Whole numbers by size, all else in the order of the alphabet.
pub(super) fn in_order(labels: BTreeSet<String>) -> Vec<String> {
    let mut labels: Vec<String> = labels.into_iter().collect();
    if labels.iter().all(|label| label.parse::<i64>().is_ok()) {
        labels.sort_by_key(|label| label.parse::<i64>().ok());
    }
    labels
}

fn open(path: &Path) -> Result<Box<dyn Records>, TaskError> {
    let ending = path.extension().and_then(|ending| ending.to_str()).map(str::to_lowercase);
    Ok(match ending.as_deref() {
        Some("tsv") => Box::new(Tsv { lines: Lines::open(path)?, header: None }),
        Some("csv") => Box::new(Csv::open(path)?),
        Some("jsonl" | "ndjson") => Box::new(Jsonl { lines: Lines::open(path)? }),
        _ => return Err(TaskError::Layout { path: path.to_owned(), expected: ".tsv, .csv, .jsonl or .ndjson" }),
    })
}

/// Rows of named values.
trait Records: Send {
    /// The values of the wanted columns in the next row; `None` for one that is not there and need not be.
    fn next(&mut self, wanted: &[Wanted<'_>; 4]) -> Result<Option<[Option<String>; 4]>, TaskError>;

    /// Where the row that was read last begins.
    fn place(&self) -> Place;
}

struct TextRows {
    records: Box<dyn Records>,
    columns: TextColumns,
    /// Names of the classes; `None` for numbers.
    labels: Option<Vec<String>>,
    needs_label: bool,
    /// Examples so far.
    count: u64,
    /// Whether the first was a pair.
    is_pair: bool,
}

impl Rows<Text> for TextRows {
    fn next(&mut self, _remarks: &mut Vec<Remark>) -> Result<Option<Text>, TaskError> {
        let Some(values) = self.records.next(&self.columns.wanted(self.needs_label))? else { return Ok(None) };
        let at = || self.records.place();
        let [id, text, second, label] = values;
        let first = text
            .filter(|text| !text.trim().is_empty())
            .ok_or_else(|| TaskError::NoText { at: at(), what: "the text" })?;
        if self.count > 0 && second.is_some() != self.is_pair {
            let (is, was) = if self.is_pair { ("one text", "pairs") } else { ("a pair", "single texts") };
            let problem = format!("it is {is}, but the examples before were {was}; keep them in files of their own");
            let subject = format!("example {}", self.count);
            return Err(TaskError::Contradiction { at: at(), subject, problem });
        }
        let label = match label.filter(|label| !label.is_empty()) {
            None if self.needs_label => return Err(TaskError::NoLabel { at: at() }),
            None => None,
            Some(label) => Some(match &self.labels {
                Some(labels) => Label::Class(class_of(&label, labels, at)?),
                None => Label::Number(number_of(&label, at)?),
            }),
        };
        let id = match id {
            Some(id) if id.is_empty() => return Err(TaskError::NoText { at: at(), what: "the id" }),
            Some(id) => id,
            None => self.count.to_string(),
        };
        self.is_pair = second.is_some();
        self.count += 1;
        Ok(Some(Text { id, first, second, label }))
    }

    fn place(&self) -> Place {
        self.records.place()
    }
}

/// The names of columns, from the first row.
struct Header {
    names: Vec<String>,
}

impl Header {
    fn new(names: Vec<String>, at: Place) -> Result<Self, TaskError> {
        match names.iter().enumerate().find(|(index, name)| names[..*index].contains(name)) {
            Some((_, column)) => Err(TaskError::TwoColumns { at, column: column.clone() }),
            None => Ok(Self { names }),
        }
    }

    /// The indices of the wanted columns.
    fn find(&self, wanted: &[Wanted<'_>; 4], at: impl Fn() -> Place) -> Result<[Option<usize>; 4], TaskError> {
        let mut found = [None; 4];
        for (index, &(column, is_needed)) in found.iter_mut().zip(wanted) {
            *index = self.names.iter().position(|name| name == column);
            if is_needed && index.is_none() {
                return Err(TaskError::NoColumn { at: at(), column: column.to_owned(), known: listed(&self.names) });
            }
        }
        Ok(found)
    }
}

struct Tsv {
    lines: Lines,
    header: Option<Header>,
}

impl Records for Tsv {
    fn next(&mut self, wanted: &[Wanted<'_>; 4]) -> Result<Option<[Option<String>; 4]>, TaskError> {
        if self.header.is_none() {
            let Some(line) = self.lines.next()? else { return Ok(None) };
            let names = line.split('\t').map(|name| name.trim().to_owned()).collect();
            let header = Header::new(names, self.lines.place())?;
            header.find(wanted, || self.lines.place())?;
            self.header = Some(header);
        }
        let Some(header) = &self.header else { return Ok(None) };
        let columns = header.find(wanted, || self.lines.place())?;
        let expected = header.names.len();
        let Some(fields) = self.lines.next()?.map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>())
        else {
            return Ok(None);
        };
        if fields.len() != expected {
            let expected = expected.to_string();
            return Err(TaskError::Columns { at: self.lines.place(), found: fields.len(), expected, separator: "TAB" });
        }
        Ok(Some(columns.map(|column| column.map(|column| fields[column].clone()))))
    }

    fn place(&self) -> Place {
        self.lines.place()
    }
}

/// Counts double quotes on their way: in a whole file they come in twos.
struct QuoteCounter {
    file: BufReader<File>,
    quotes: u64,
}

impl Read for QuoteCounter {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(out)?;
        self.quotes += out[..count].iter().filter(|&&byte| byte == b'"').count() as u64;
        Ok(count)
    }
}

struct Csv {
    path: PathBuf,
    reader: csv::Reader<QuoteCounter>,
    record: csv::ByteRecord,
    header: Option<Header>,
    line: u64,
}

impl Csv {
    fn open(path: &Path) -> Result<Self, TaskError> {
        let file = QuoteCounter { file: lines::open(path)?, quotes: 0 };
        let reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(file);
        Ok(Self { path: path.to_owned(), reader, record: csv::ByteRecord::new(), header: None, line: 0 })
    }

    /// The next row's values.
    fn fields(&mut self) -> Result<Option<Vec<String>>, TaskError> {
        let line = self.reader.position().line();
        let is_row = self.reader.read_byte_record(&mut self.record).map_err(|error| match error.into_kind() {
            csv::ErrorKind::Io(source) => TaskError::io(&self.path, "read")(source),
            other => TaskError::Csv { at: Place { path: self.path.clone(), line }, problem: format!("{other:?}") },
        })?;
        if !is_row {
            return if self.reader.get_ref().quotes.is_multiple_of(2) {
                Ok(None)
            } else {
                let problem = "a double quote that is opened and never closed".to_owned();
                Err(TaskError::Csv { at: self.place(), problem })
            };
        }
        self.line = self.record.position().map_or(line, csv::Position::line);
        let mut fields = Vec::with_capacity(self.record.len());
        for (column, field) in self.record.iter().enumerate() {
            let field = std::str::from_utf8(field).map_err(|_| TaskError::Csv {
                at: self.place(),
                problem: format!("invalid UTF-8 in column {}", column + 1),
            })?;
            fields.push(field.to_owned());
        }
        Ok(Some(fields))
    }
}

impl Records for Csv {
    fn next(&mut self, wanted: &[Wanted<'_>; 4]) -> Result<Option<[Option<String>; 4]>, TaskError> {
        if self.header.is_none() {
            let Some(names) = self.fields()? else { return Ok(None) };
            let names = names.iter().map(|name| name.trim().to_owned()).collect();
            let header = Header::new(names, self.place())?;
            header.find(wanted, || self.place())?;
            self.header = Some(header);
        }
        let Some(fields) = self.fields()? else { return Ok(None) };
        let Some(header) = &self.header else { return Ok(None) };
        if fields.len() != header.names.len() {
            let expected = header.names.len().to_string();
            return Err(TaskError::Columns { at: self.place(), found: fields.len(), expected, separator: "commas" });
        }
        Ok(Some(header.find(wanted, || self.place())?.map(|column| column.map(|column| fields[column].clone()))))
    }

    fn place(&self) -> Place {
        Place { path: self.path.clone(), line: self.line }
    }
}

struct Jsonl {
    lines: Lines,
}

/// A value as text; `None` for what is neither text, number, truth value nor null.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some(String::new()),
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

impl Records for Jsonl {
    fn next(&mut self, wanted: &[Wanted<'_>; 4]) -> Result<Option<[Option<String>; 4]>, TaskError> {
        const EXPECTED: &str = "one object a line, such as {\"text\": \"...\", \"label\": \"...\"}";
        let parsed = match self.lines.next()? {
            None => return Ok(None),
            Some(line) => serde_json::from_str::<Map<String, Value>>(line),
        };
        let at = || self.lines.place();
        let object =
            parsed.map_err(|error| TaskError::Json { at: at(), problem: error.to_string(), expected: EXPECTED })?;
        let mut values = [const { None }; 4];
        for (value, &(key, is_needed)) in values.iter_mut().zip(wanted) {
            match object.get(key) {
                None if is_needed => {
                    let known = listed(&object.keys().collect::<Vec<_>>());
                    return Err(TaskError::NoColumn { at: at(), column: key.to_owned(), known });
                }
                None => {}
                Some(found) => {
                    let text = plain(found).ok_or_else(|| TaskError::Json {
                        at: at(),
                        problem: format!("{key:?} is neither text nor a number"),
                        expected: EXPECTED,
                    })?;
                    *value = Some(text);
                }
            }
        }
        Ok(Some(values))
    }

    fn place(&self) -> Place {
        self.lines.place()
    }
}
