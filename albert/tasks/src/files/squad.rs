//! SQuAD 1.1 and 2.0, and custom files in their layout.
//!
//! ```text
//! {"version": "v2.0", "data": [{"title", "paragraphs": [{"context", "qas": [
//!     {"id", "question", "answers": [{"text", "answer_start"}], "is_impossible"}]}]}]}
//! ```
//!
//! Flat questions in Hugging Face's export format, one object a line or in an array:
//!
//! ```text
//! {"id", "context", "question", "answers": {"text": ["..."], "answer_start": [0]}}
//! ```
//!
//! `answer_start` counts characters (Unicode code points); examples count bytes. An answer whose text is not at its position
//! in the passage causes a remark: training skips it, and also the question if it has no other answer; evaluation compares
//! texts and keeps it. Articles are streamed.
//!
//! Source: Rajpurkar et al. 2016 and 2018.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::choice::Scalar;
use super::error::{Place, TaskError, shortened};
use super::example::{Answer, Question};
use super::json::Objects;
use super::lines::ending;
use super::reader::{Purpose, Reader, RemarkKind, Remarks, Rows};

const EXPECTED: &str = "SQuAD's layout, {\"data\": [{\"paragraphs\": [{\"context\": \"...\", \"qas\": [{\"id\": \"...\", \
                        \"question\": \"...\", \"answers\": [{\"text\": \"...\", \"answer_start\": 0}]}]}]}]}";

/// Reads questions; `may_be_impossible` for SQuAD 2.0. Answers are optional for prediction only.
///
/// # Errors
/// The file cannot be opened. The reader returns all other errors.
pub fn read_squad(path: &Path, may_be_impossible: bool, purpose: Purpose) -> Result<Reader<Question>, TaskError> {
    if !matches!(ending(path).as_deref(), Some("json" | "jsonl" | "ndjson")) {
        return Err(TaskError::file_type(path, ".json, .jsonl or .ndjson"));
    }
    let objects = Objects::open(path, "data", EXPECTED)?;
    let (ready, count) = (Vec::new(), 0);
    Ok(Reader::new(path, SquadRows { objects, ready, may_be_impossible, purpose, count, id: None }))
}

/// An article, a paragraph, or a flat question, which is also an [`Asked`].
#[derive(Deserialize)]
struct Object {
    paragraphs: Option<Vec<Paragraph>>,
    context: Option<String>,
    qas: Option<Vec<Box<RawValue>>>,
}

#[derive(Deserialize)]
struct Paragraph {
    context: String,
    qas: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Asked {
    id: Option<Scalar>,
    question: String,
    answers: Option<Box<RawValue>>,
    is_impossible: Option<bool>,
}

#[derive(Deserialize)]
struct Given {
    text: String,
    answer_start: Scalar,
}

/// Answers in columns.
#[derive(Deserialize)]
struct Columns {
    text: OneOrMore<String>,
    answer_start: OneOrMore<Scalar>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T> From<OneOrMore<T>> for Vec<T> {
    fn from(values: OneOrMore<T>) -> Self {
        match values {
            OneOrMore::One(value) => vec![value],
            OneOrMore::More(values) => values,
        }
    }
}

/// Parses the paragraphs of an article, or one with only a flat question, and true for the latter.
fn paragraphs(text: &str) -> serde_json::Result<(Vec<Paragraph>, bool)> {
    let object: Object = serde_json::from_str(text)?;
    match (object.paragraphs, object.context, object.qas) {
        (Some(paragraphs), ..) => Ok((paragraphs, false)),
        (None, Some(context), Some(qas)) => Ok((vec![Paragraph { context, qas }], false)),
        (None, Some(context), None) => Ok((vec![Paragraph { context, qas: vec![serde_json::from_str(text)?] }], true)),
        (None, None, _) => Err(serde::de::Error::missing_field("paragraphs")),
    }
}

/// Answers as text and first character.
fn answers(text: &str) -> Result<Vec<(String, i64)>, String> {
    let given: Vec<(String, Scalar)> = if text.starts_with('{') {
        let Columns { text, answer_start } = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let (texts, starts) = (Vec::from(text), Vec::from(answer_start));
        if texts.len() != starts.len() {
            return Err(format!("{} texts of answers and {} starts; expected one each", texts.len(), starts.len()));
        }
        texts.into_iter().zip(starts).collect()
    } else {
        let list: Vec<Given> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        list.into_iter().map(|Given { text, answer_start }| (text, answer_start)).collect()
    };
    let start = |start: Scalar| match start {
        Scalar::Number(number) => Ok(i64::try_from(number).unwrap_or(i64::MAX)),
        Scalar::Text(text) => {
            text.trim().parse().map_err(|_| format!("answer_start is {text:?}, expected a number of characters"))
        }
    };
    given.into_iter().map(|(text, answer_start)| Ok((text, start(answer_start)?))).collect()
}

struct SquadRows {
    objects: Objects,
    /// Questions of the last article, the next one last; or the reason why one cannot be used.
    ready: Vec<(Option<String>, Result<Question, TaskError>)>,
    may_be_impossible: bool,
    purpose: Purpose,
    /// Questions so far.
    count: u64,
    /// Id of the last question.
    id: Option<String>,
}

/// First bytes of the characters of a passage.
struct Starts<'a> {
    passage: &'a str,
    /// Empty if all characters have one byte.
    bytes: Vec<usize>,
}

impl<'a> Starts<'a> {
    fn new(passage: &'a str) -> Self {
        let bytes =
            if passage.is_ascii() { Vec::new() } else { passage.char_indices().map(|(byte, _)| byte).collect() };
        Self { passage, bytes }
    }

    /// First byte of a character, at most the length of the passage.
    fn byte(&self, character: i64) -> usize {
        let character = usize::try_from(character).unwrap_or(usize::MAX);
        let byte = if self.bytes.is_empty() { Some(character) } else { self.bytes.get(character).copied() };
        byte.map_or(self.passage.len(), |byte| byte.min(self.passage.len()))
    }
}

impl SquadRows {
    /// Converts a question; `None` for training without a usable answer.
    fn question(
        &self,
        id: String,
        asked: Asked,
        at: &Place,
        starts: (&Arc<str>, &Starts<'_>),
        remarks: &mut Remarks,
    ) -> Result<Option<Question>, TaskError> {
        let (passage, starts) = starts;
        // A question may have a remark for each answer.
        let short = |text: &str| shortened(text, 200).into_owned();
        let contradiction = |problem: &str| at.clone().contradiction(&format!("question {id:?}"), problem);
        // `null` means no answers.
        let given = match asked.answers.filter(|_| self.purpose.needs_labels()) {
            None => None,
            Some(given) if given.get() == "null" => None,
            Some(given) => Some(answers(given.get()).map_err(|problem| contradiction(&problem))?),
        };
        let has_none = given.as_ref().is_some_and(Vec::is_empty);
        let is_impossible = asked.is_impossible.unwrap_or(has_none && self.may_be_impossible);
        let given = match given {
            _ if !self.purpose.needs_labels() => Vec::new(),
            _ if is_impossible && !self.may_be_impossible => {
                return Err(contradiction("it is marked as impossible, which only SQuAD 2.0 files may contain"));
            }
            Some(given) if is_impossible && !given.is_empty() => {
                return Err(contradiction("it is marked as impossible and has answers; remove one of the two"));
            }
            given if is_impossible => given.unwrap_or_default(),
            Some(given) if !given.is_empty() => given,
            _ => {
                return Err(contradiction(
                    "no answers; training and evaluation need some, or \"is_impossible\": true in SQuAD 2.0",
                ));
            }
        };
        let is_training = self.purpose == Purpose::Training;
        let (count, mut answers) = (given.len(), Vec::with_capacity(given.len()));
        for (text, first) in given {
            let start = starts.byte(first);
            let is_there = !text.is_empty() && passage[start..].starts_with(&text);
            if !is_there {
                let kind = || RemarkKind::AnswerElsewhere { id: short(&id), text: short(&text), start: first };
                remarks.push(at.clone(), kind);
            }
            if is_there || !is_training {
                answers.push(Answer { text, start });
            }
        }
        if is_training && count > 0 && answers.is_empty() {
            remarks.push(at.clone(), || RemarkKind::NoUsableAnswer { id: short(&id) });
            return Ok(None);
        }
        let is_impossible = is_impossible && self.purpose.needs_labels();
        Ok(Some(Question { id, passage: passage.clone(), question: asked.question, answers, is_impossible }))
    }

    /// Adds the questions of an article in reverse order.
    fn add(&mut self, paragraphs: Vec<Paragraph>, at: &Place, remarks: &mut Remarks) {
        for Paragraph { context, qas } in paragraphs {
            let passage: Arc<str> = context.into();
            let starts = Starts::new(&passage);
            for asked in qas {
                let number = self.count;
                self.count += 1;
                let (id, question) = match serde_json::from_str::<Asked>(asked.get()) {
                    Ok(mut asked) => {
                        let id = asked.id.take().map_or_else(|| number.to_string(), String::from);
                        (Some(id.clone()), self.question(id, asked, at, (&passage, &starts), remarks))
                    }
                    Err(error) => (None, Err(at.clone().json_error(&error, EXPECTED))),
                };
                self.ready.extend(question.transpose().map(|question| (id, question)));
            }
        }
        self.ready.reverse();
    }
}

impl Rows<Question> for SquadRows {
    fn next(&mut self, remarks: &mut Remarks) -> Result<Option<Question>, TaskError> {
        self.id = None;
        while self.ready.is_empty() {
            let Some((paragraphs, is_flat)) = self.objects.next_with(remarks, paragraphs)? else { return Ok(None) };
            let at = if is_flat { self.objects.place() } else { self.objects.place_of_part() };
            self.add(paragraphs, &at, remarks);
        }
        let Some((id, question)) = self.ready.pop() else { return Ok(None) };
        self.id = id;
        question.map(Some)
    }

    fn place(&self) -> Place {
        self.objects.place_of_part()
    }

    fn id(&self) -> Option<String> {
        self.id.clone()
    }

    fn resumes(&self) -> bool {
        self.objects.resumes()
    }
}
