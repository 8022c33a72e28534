//! Custom files of texts and pairs, with named columns.
//!
//! ```text
//! .tsv     id \t text \t text_b \t label      quotes are literal, a row is a line
//! .csv     id,text,text_b,label               values with commas, quotes or line ends in double quotes
//! .jsonl   {"text": "...", "label": "..."}    one object a line; .json also an array of objects
//! ```
//!
//! The first row of TSV and CSV names the columns; additional columns and keys are ignored, and so are rows without any
//! value. Examples without ids are numbered from 0.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::path::Path;

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::classes::Classes;
use super::csv::CsvRecords;
use super::error::{LISTED, Place, TaskError, listed_of, shortened, shown};
use super::example::{Label, Problem, Text};
use super::glue::number_of;
use super::json::Objects;
use super::lines::{Lines, ending};
use super::reader::{Purpose, Reader, RemarkKind, Remarks, Rows};

/// Columns to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextColumns {
    /// Id. `None`: `id` if the file has this column, otherwise examples are numbered.
    pub id: Option<String>,
    /// The text, or the first text of a pair.
    pub text: String,
    /// The second text of a pair. `None`: `text_b` if the file has this column, otherwise single texts.
    pub text_b: Option<String>,
    /// Label or number.
    pub label: String,
}

impl Default for TextColumns {
    /// `text` and `label`, and `id` and `text_b` if present.
    fn default() -> Self {
        Self { id: None, text: "text".to_owned(), text_b: None, label: "label".to_owned() }
    }
}

/// A column to read.
#[derive(Clone, Copy)]
struct ColumnSpec<'a> {
    column: &'a str,
    /// True if it is required.
    is_needed: bool,
    /// Setting that names the column.
    setting: &'static str,
}

impl ColumnSpec<'_> {
    /// Error for a missing column, among `count` columns that start with `first`.
    fn missing<S: AsRef<str>>(&self, at: Place, first: &[S], count: usize) -> TaskError {
        // Usually the label is the last column and the text the first.
        let guess = if self.setting == "data.label" { first.last() } else { first.first() };
        let example = guess.map_or(String::new(), |name| {
            let name = name.as_ref();
            let needs_quotes = name.contains(|c: char| !c.is_alphanumeric() && !"-_.".contains(c));
            let quote = if needs_quotes { "'" } else { "" };
            format!(", such as {quote}--set {}={}{quote}", self.setting, shortened(name, 40))
        });
        let (column, setting, known) = (self.column, self.setting, listed_of(first.iter(), count));
        let only = if let [only] = first { only.as_ref() } else { "" };
        let remedy = if let Some(separator) = only.chars().find(|c| ",;|\t".contains(*c)) {
            format!("its delimiter seems to be {separator:?}; a .csv has commas, semicolons or TABs, a .tsv has TABs")
        } else {
            format!("name the column with --set {setting}=NAME{example}")
        };
        at.error(format!("no column {column:?}; the file has {known}; {remedy}"))
    }
}

impl TextColumns {
    /// id, text, text_b, label.
    fn wanted(&self, needs_label: bool) -> [ColumnSpec<'_>; 4] {
        let wanted = |column, is_needed, setting| ColumnSpec { column, is_needed, setting };
        [
            wanted(self.id.as_deref().unwrap_or("id"), self.id.is_some(), "data.id"),
            wanted(&self.text, true, "data.text"),
            wanted(self.text_b.as_deref().unwrap_or("text_b"), self.text_b.is_some(), "data.text_b"),
            // A name that no column can have: an unnecessary label is not read.
            wanted(if needs_label { &self.label } else { "\0" }, needs_label, "data.label"),
        ]
    }
}

/// Reads texts or pairs from a `.tsv`, `.csv`, `.jsonl`, `.ndjson` or `.json` file. Labels are required for training and
/// evaluation; prediction does not read them.
///
/// # Errors
/// The file has another type or cannot be opened. The reader returns all other errors.
///
/// # Panics
/// If `problem` is not [`Problem::Classes`] or [`Problem::Number`].
pub fn read_texts(
    path: &Path,
    columns: &TextColumns,
    problem: &Problem,
    purpose: Purpose,
) -> Result<Reader<Text>, TaskError> {
    let labels = match problem {
        Problem::Classes { labels } => Some(Classes::new(labels)),
        Problem::Number => None,
        other => panic!("{other:?} has no texts"),
    };
    let records = open(path)?;
    let rows = TextRows {
        records,
        columns: columns.clone(),
        labels,
        needs_label: purpose.needs_labels(),
        count: 0,
        is_pair: None,
        id: None,
    };
    Ok(Reader::new(path, rows))
}

/// Labels of a file, for a [`Problem::Classes`]: whole numbers by size, other labels alphabetically.
///
/// # Errors
/// As [`read_texts`] and its reader, and for an example without a label.
pub fn labels_of_texts(path: &Path, columns: &TextColumns) -> Result<Vec<String>, TaskError> {
    labels_of(path, columns, 0)
}

/// As [`labels_of_texts`], without the labels of up to `skipped` unusable rows.
pub(crate) fn labels_of(path: &Path, columns: &TextColumns, skipped: u64) -> Result<Vec<String>, TaskError> {
    let mut records = open(path)?;
    let (mut labels, mut remarks, mut unusable) = (BTreeSet::new(), Remarks::default(), 0);
    loop {
        let error = match records.next(&columns.wanted(true), &mut remarks) {
            Ok(None) => break,
            Ok(Some([_, _, _, Some(label)])) if !label.is_empty() => {
                labels.insert(label);
                continue;
            }
            Ok(Some(_)) => records.place().no_label(),
            Err(error) => error,
        };
        unusable += 1;
        if unusable > skipped || !records.resumes() {
            return Err(error);
        }
    }
    if labels.is_empty() {
        return Err(TaskError::no_example(path));
    }
    Ok(in_order(labels))
}

/// Whole numbers by size, other labels alphabetically.
pub(super) fn in_order(labels: BTreeSet<String>) -> Vec<String> {
    let mut labels: Vec<String> = labels.into_iter().collect();
    if labels.iter().all(|label| label.parse::<i64>().is_ok()) {
        labels.sort_by_key(|label| label.parse::<i64>().ok());
    }
    labels
}

fn open(path: &Path) -> Result<Box<dyn Records>, TaskError> {
    let ending = ending(path);
    Ok(match ending.as_deref() {
        Some("tsv") => Box::new(Tsv { lines: Lines::open(path)?, header: None }),
        Some("csv") => Box::new(Csv { records: CsvRecords::open(path)?, header: None }),
        Some("jsonl" | "ndjson" | "json") => Box::new(Json { objects: Objects::open(path, "data", OBJECTS)? }),
        _ => return Err(TaskError::file_type(path, ".tsv, .csv, .jsonl, .ndjson or .json")),
    })
}

/// Values of the wanted columns in a row; `None` for an optional column that is missing.
type Values = [Option<String>; 4];

/// Rows of named values.
trait Records: Send {
    /// Returns the next row with a value, or `None` after the last.
    fn next(&mut self, wanted: &[ColumnSpec<'_>; 4], remarks: &mut Remarks) -> Result<Option<Values>, TaskError>;

    /// True if rows after an error can be read.
    fn resumes(&self) -> bool;

    /// First line of the last row.
    fn place(&self) -> Place;

    /// True if rows have no ids.
    fn are_numbered(&self) -> bool {
        false
    }
}

struct TextRows {
    records: Box<dyn Records>,
    columns: TextColumns,
    /// Class names; `None` for numbers.
    labels: Option<Classes>,
    needs_label: bool,
    /// Rows so far.
    count: u64,
    /// True if the first example was a pair.
    is_pair: Option<bool>,
    /// Id of the last row.
    id: Option<String>,
}

impl TextRows {
    /// Converts a row to an example.
    fn example(&mut self, [_, text, second, label]: Values) -> Result<Text, TaskError> {
        let at = || self.records.place();
        let id = match self.id.clone() {
            Some(id) if id.is_empty() => return Err(at().empty("the id")),
            id => id.unwrap_or_default(),
        };
        let first = text.filter(|text| !text.trim().is_empty()).ok_or_else(|| at().empty("the text"))?;
        if let Some(is_pair) = self.is_pair.filter(|&is_pair| second.is_some() != is_pair) {
            let (is, was) = if is_pair { ("one text", "pairs") } else { ("a pair", "single texts") };
            let problem = format!("it is {is}, but the examples before are {was}; put them into separate files");
            return Err(at().contradiction(&format!("example {}", self.count - 1), &problem));
        }
        let label = match label.filter(|label| !label.is_empty()) {
            None if self.needs_label => return Err(at().no_label()),
            None => None,
            Some(label) => Some(match &self.labels {
                Some(labels) => Label::Class(labels.find(&label, at)?),
                None => Label::Number(number_of(&label, at)?),
            }),
        };
        self.is_pair = Some(second.is_some());
        Ok(Text { id, first, second, label })
    }
}

impl Rows<Text> for TextRows {
    fn next(&mut self, remarks: &mut Remarks) -> Result<Option<Text>, TaskError> {
        let number = self.count;
        let read = self.records.next(&self.columns.wanted(self.needs_label), remarks);
        self.count += 1;
        self.id = self.records.are_numbered().then(|| number.to_string());
        let Some(mut values) = read? else { return Ok(None) };
        self.id = Some(values[0].take().unwrap_or_else(|| number.to_string()));
        self.example(values).map(Some)
    }

    fn id(&self) -> Option<String> {
        self.id.clone()
    }

    fn resumes(&self) -> bool {
        self.records.resumes()
    }

    fn place(&self) -> Place {
        self.records.place()
    }

    fn are_numbered(&self) -> bool {
        self.records.are_numbered()
    }
}

/// Columns of a file: their number, and the index of each wanted one.
struct Header {
    count: usize,
    wanted: [Option<usize>; 4],
}

impl Header {
    fn new<'n>(
        names: impl Iterator<Item = &'n str>,
        wanted: &[ColumnSpec<'_>; 4],
        at: impl Fn() -> Place,
    ) -> Result<Self, TaskError> {
        let (mut seen, mut first) = (HashSet::new(), Vec::new());
        let (mut found, mut count) = ([None; 4], 0);
        for (index, name) in names.map(str::trim).enumerate() {
            count = index + 1;
            // Spreadsheets write columns without names.
            if name.is_empty() && index > 0 {
                continue;
            }
            if !seen.insert(name) {
                return Err(at().error(format!("duplicate column {}; rename one of them", shown(name))));
            }
            let places = found.iter_mut().zip(wanted).filter(|(_, wanted)| wanted.column == name);
            places.for_each(|(place, _)| *place = Some(index));
            if first.len() < LISTED {
                first.push(name);
            }
        }
        let missing = found.iter().zip(wanted).find(|(found, wanted)| found.is_none() && wanted.is_needed);
        match missing {
            Some((_, wanted)) => Err(wanted.missing(at(), &first, seen.len())),
            None => Ok(Self { count, wanted: found }),
        }
    }
}

struct Tsv {
    lines: Lines,
    header: Option<Header>,
}

impl Tsv {
    /// Reads the next line with a value; counts skipped ones.
    fn line(&mut self, remarks: &mut Remarks) -> Result<Option<String>, TaskError> {
        loop {
            match self.lines.next()? {
                None => return Ok(None),
                Some(line) if line.trim().is_empty() => {}
                Some(line) => return Ok(Some(line.to_owned())),
            }
            remarks.count(self.lines.place(), |count| RemarkKind::EmptyRows { count });
        }
    }
}

impl Records for Tsv {
    fn next(&mut self, wanted: &[ColumnSpec<'_>; 4], remarks: &mut Remarks) -> Result<Option<Values>, TaskError> {
        if self.header.is_none() {
            let Some(line) = self.line(remarks)? else { return Ok(None) };
            self.header = Some(Header::new(line.split('\t'), wanted, || self.lines.place())?);
        }
        let Some(line) = self.line(remarks)? else { return Ok(None) };
        let Some(header) = &self.header else { return Ok(None) };
        let mut values = [const { None }; 4];
        let mut found = 0;
        for field in line.split('\t') {
            let places = values.iter_mut().zip(header.wanted).filter(|(_, column)| *column == Some(found));
            places.for_each(|(value, _)| *value = Some(field.to_owned()));
            found += 1;
        }
        if found != header.count {
            return Err(self.lines.place().columns(found, header.count, "TAB"));
        }
        Ok(Some(values))
    }

    fn resumes(&self) -> bool {
        self.header.is_some()
    }

    fn place(&self) -> Place {
        self.lines.place()
    }

    fn are_numbered(&self) -> bool {
        self.header.as_ref().is_some_and(|header| header.wanted[0].is_none())
    }
}

struct Csv {
    records: CsvRecords,
    header: Option<Header>,
}

impl Records for Csv {
    fn next(&mut self, wanted: &[ColumnSpec<'_>; 4], remarks: &mut Remarks) -> Result<Option<Values>, TaskError> {
        let records = &mut self.records;
        if self.header.is_none() {
            if !records.next()? {
                return Ok(None);
            }
            self.header = Some(Header::new(records.values(), wanted, || records.place())?);
        }
        let Some(header) = &self.header else { return Ok(None) };
        while records.next()? {
            if records.values().all(|value| value.trim().is_empty()) {
                remarks.count(records.place(), |count| RemarkKind::EmptyRows { count });
                continue;
            }
            if records.len() != header.count {
                return Err(records.place().columns(records.len(), header.count, records.separator()));
            }
            return Ok(Some(header.wanted.map(|column| column.map(|column| records.value(column).to_owned()))));
        }
        Ok(None)
    }

    fn resumes(&self) -> bool {
        self.header.is_some() && self.records.resumes()
    }

    fn place(&self) -> Place {
        self.records.place()
    }

    fn are_numbered(&self) -> bool {
        self.header.as_ref().is_some_and(|header| header.wanted[0].is_none())
    }
}

struct Json {
    objects: Objects,
}

/// Expected objects, for messages.
const OBJECTS: &str = "one object a line, such as {\"text\": \"...\", \"label\": \"...\"}";

/// A value as text.
enum Plain {
    Text(String),
    /// An array or an object.
    Nested,
}

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PlainVisitor)
    }
}

struct PlainVisitor;

impl<'de> Visitor<'de> for PlainVisitor {
    type Value = Plain;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or a number")
    }

    fn visit_unit<E: Error>(self) -> Result<Plain, E> {
        Ok(Plain::Text(String::new()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Plain, E> {
        Ok(Plain::Text(text.to_owned()))
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<Plain, E> {
        Ok(Plain::Text(truth.to_string()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Plain, E> {
        Ok(Plain::Text(number.to_string()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Plain, E> {
        Ok(Plain::Text(number.to_string()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Plain, E> {
        Ok(Plain::Text(serde_json::Number::from_f64(number).map_or_else(|| number.to_string(), |n| n.to_string())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Plain, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Plain::Nested)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Plain, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Plain::Nested)
    }
}

/// Visitor for the wanted values of an object. Other values are skipped without a copy: a line may have millions.
struct Picker<'w>(&'w [ColumnSpec<'w>; 4]);

#[derive(Default)]
struct Picked {
    values: [Option<Plain>; 4],
    /// The first keys, for messages.
    keys: Vec<String>,
    count: usize,
}

impl<'de> Visitor<'de> for Picker<'_> {
    type Value = Picked;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Picked, A::Error> {
        let mut picked = Picked::default();
        while let Some(key) = map.next_key::<String>()? {
            match self.0.iter().position(|wanted| wanted.column == key) {
                // One column may be used twice, for example as both texts of a pair.
                Some(_) => {
                    let value: Plain = map.next_value()?;
                    let all = self.0.iter().zip(&mut picked.values).filter(|(wanted, _)| wanted.column == key);
                    for (_, place) in all {
                        *place = Some(match &value {
                            Plain::Text(text) => Plain::Text(text.clone()),
                            Plain::Nested => Plain::Nested,
                        });
                    }
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
            picked.count += 1;
            if picked.keys.len() < LISTED {
                picked.keys.push(key);
            }
        }
        Ok(picked)
    }
}

impl Records for Json {
    fn next(&mut self, wanted: &[ColumnSpec<'_>; 4], remarks: &mut Remarks) -> Result<Option<Values>, TaskError> {
        let parse = |text: &str| {
            let mut json = serde_json::Deserializer::from_str(text);
            json.deserialize_map(Picker(wanted)).and_then(|picked| json.end().map(|()| picked))
        };
        let Some(picked) = self.objects.next_with(remarks, parse)? else { return Ok(None) };
        let at = || self.objects.place();
        let mut values = [const { None }; 4];
        for ((value, found), wanted) in values.iter_mut().zip(picked.values).zip(wanted) {
            match found {
                None if wanted.is_needed => return Err(wanted.missing(at(), &picked.keys, picked.count)),
                None => {}
                Some(Plain::Nested) => {
                    return Err(at().json(format!("{:?} is neither text nor a number", wanted.column), OBJECTS));
                }
                Some(Plain::Text(text)) => *value = Some(text),
            }
        }
        Ok(Some(values))
    }

    fn resumes(&self) -> bool {
        self.objects.resumes()
    }

    fn place(&self) -> Place {
        self.objects.place()
    }
}
