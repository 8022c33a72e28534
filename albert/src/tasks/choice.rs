//! Multiple choice in files of one's own.
//!
//! ```text
//! {"id": "7", "passage": "...", "question": "...", "options": ["...", "..."], "answer": 1}
//! ```
//!
//! One object a line (`.jsonl`), or an array of such objects (`.json`), alone or under the key `data`. `answer` is
//! the index of the right option from 0, or its letter from "A". Without `id`, examples are numbered from 0.
//! `passage` may also be called `article` or `context`, and may be missing where a question stands for itself.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::{Place, TaskError};
use super::example::Choice;
use super::json::Elements;
use super::lines::Lines;
use super::reader::{Purpose, Reader, Remarks, Rows};

const EXPECTED: &str =
    "objects such as {\"passage\": \"...\", \"question\": \"...\", \"options\": [\"...\", \"...\"], \"answer\": 0}";

/// Reads questions with options from a file whose name ends in `.jsonl`, `.ndjson` or `.json`.
///
/// # Errors
/// If the file's name has another ending or it cannot be opened; all else the reader says when it comes to it.
pub fn read_choices(path: &Path, purpose: Purpose) -> Result<Reader<Choice>, TaskError> {
    let ending = path.extension().and_then(|ending| ending.to_str()).map(str::to_lowercase);
    let objects = match ending.as_deref() {
        Some("jsonl" | "ndjson") => Objects::Lines(Lines::open(path)?),
        Some("json") => Objects::Array(Elements::open(path, "data", EXPECTED)?),
        _ => return Err(TaskError::Layout { path: path.to_owned(), expected: ".jsonl, .ndjson or .json" }),
    };
    Ok(Reader::new(path, ChoiceRows { objects, purpose, passage: Arc::from(""), count: 0 }))
}

#[derive(Deserialize)]
struct Object {
    id: Option<Id>,
    #[serde(alias = "article", alias = "context")]
    passage: Option<String>,
    question: String,
    options: Vec<String>,
    answer: Option<Given>,
}

/// An id, which some write as a number.
///
/// Both types here are read by hand: derived untagged enums buffer a value of any size before they refuse it.
pub(super) struct Id(String);

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.0
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Id;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an id, text or a whole number")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Id, E> {
                Ok(Id(text.to_owned()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Id, E> {
                Ok(Id(number.to_string()))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Id, E> {
                Ok(Id(number.to_string()))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

enum Given {
    Index(u64),
    Letter(String),
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Answer;
        impl Visitor<'_> for Answer {
            type Value = Given;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an index from 0 or a letter from \"A\"")
            }

            fn visit_str<E: Error>(self, letter: &str) -> Result<Given, E> {
                Ok(Given::Letter(letter.to_owned()))
            }

            fn visit_u64<E: Error>(self, index: u64) -> Result<Given, E> {
                Ok(Given::Index(index))
            }
        }
        deserializer.deserialize_any(Answer)
    }
}

/// The index of a letter, "A" being 0.
pub(super) fn letter_index(letter: &str) -> Option<u64> {
    match letter.as_bytes() {
        [letter @ b'A'..=b'Z'] => Some(u64::from(letter - b'A')),
        _ => None,
    }
}

enum Objects {
    Lines(Lines),
    Array(Elements),
}

impl Objects {
    fn next(&mut self) -> Result<Option<Object>, TaskError> {
        let lines = match self {
            Self::Array(elements) => return elements.next(),
            Self::Lines(lines) => lines,
        };
        let parsed = match lines.next()? {
            None => return Ok(None),
            Some(line) => serde_json::from_str(line),
        };
        let error = |error: serde_json::Error| TaskError::Json {
            at: lines.place(),
            problem: error.to_string(),
            expected: EXPECTED,
        };
        parsed.map(Some).map_err(error)
    }

    fn place(&self) -> Place {
        match self {
            Self::Lines(lines) => lines.place(),
            Self::Array(elements) => elements.place(),
        }
    }
}

struct ChoiceRows {
    objects: Objects,
    purpose: Purpose,
    /// The passage of the last example, which is shared while it is the same.
    passage: Arc<str>,
    count: u64,
}

impl Rows<Choice> for ChoiceRows {
    fn next(&mut self, _remarks: &mut Remarks) -> Result<Option<Choice>, TaskError> {
        let Some(object) = self.objects.next()? else { return Ok(None) };
        let at = || self.objects.place();
        let id = object.id.map_or_else(|| self.count.to_string(), String::from);
        let contradiction =
            |problem: String| Err(TaskError::Contradiction { at: at(), subject: format!("question {id:?}"), problem });
        let options = object.options;
        if options.len() < 2 {
            return contradiction(format!("{} options, expected two or more", options.len()));
        }
        let index = match object.answer {
            None if self.purpose.needs_labels() => return Err(TaskError::NoLabel { at: at() }),
            None => None,
            Some(Given::Index(index)) => Some(index),
            Some(Given::Letter(letter)) => match letter_index(&letter) {
                Some(index) => Some(index),
                None => {
                    return contradiction(format!(
                        "the answer is {letter:?}, expected an index from 0 or a letter from A"
                    ));
                }
            },
        };
        if let Some(index) = index
            && index >= options.len() as u64
        {
            return contradiction(format!("the answer is option {index} (from 0), but there are {}", options.len()));
        }
        let passage = object.passage.unwrap_or_default();
        if *self.passage != *passage {
            self.passage = passage.into();
        }
        self.count += 1;
        let answer = index.map(|index| index as u32);
        Ok(Some(Choice { id, passage: self.passage.clone(), question: object.question, options, answer, level: None }))
    }

    fn place(&self) -> Place {
        self.objects.place()
    }
}
