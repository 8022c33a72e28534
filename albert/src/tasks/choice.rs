//! Custom files of multiple-choice questions.
//!
//! ```text
//! {"id": "7", "passage": "...", "question": "...", "options": ["...", "..."], "answer": 1}
//! ```
//!
//! One object a line (`.jsonl`), or an array of such objects (`.json`), alone or under the key `data`. `answer` is the index
//! of the right option from 0, or its letter from "A". Without `id`, examples are numbered from 0. `passage` is optional and
//! may also be named `article` or `context`.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::{Place, TaskError};
use super::example::Choice;
use super::json::Elements;
use super::lines::{Lines, ending};
use super::reader::{Purpose, Reader, Remarks, Rows};

const EXPECTED: &str =
    "objects such as {\"passage\": \"...\", \"question\": \"...\", \"options\": [\"...\", \"...\"], \"answer\": 0}";

/// Reads multiple-choice questions from a `.jsonl`, `.ndjson` or `.json` file.
///
/// # Errors
/// The file has another type or cannot be opened. The reader returns all other errors.
pub fn read_choices(path: &Path, purpose: Purpose) -> Result<Reader<Choice>, TaskError> {
    let ending = ending(path);
    let objects = match ending.as_deref() {
        Some("jsonl" | "ndjson") => Objects::Lines(Lines::open(path)?),
        Some("json") => Objects::Array(Elements::open(path, "data", EXPECTED)?),
        _ => return Err(TaskError::file_type(path, ".jsonl, .ndjson or .json")),
    };
    Ok(Reader::new(path, ChoiceRows { objects, purpose, passage: Arc::from(""), count: 0 }))
}

#[derive(Deserialize)]
struct Object {
    id: Option<Scalar>,
    #[serde(alias = "article", alias = "context")]
    passage: Option<String>,
    question: String,
    options: Vec<String>,
    answer: Option<Scalar>,
}

/// Text or a whole number: an id or an answer.
///
/// Not a derived untagged enum, which buffers a value of any size before it rejects it.
pub(super) enum Scalar {
    Text(String),
    Number(i128),
}

impl From<Scalar> for String {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Text(text) => text,
            Scalar::Number(number) => number.to_string(),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalarVisitor;
        impl Visitor<'_> for ScalarVisitor {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text or a whole number")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(text.to_owned()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar::Number(number.into()))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Scalar, E> {
                Ok(Scalar::Number(number.into()))
            }
        }
        deserializer.deserialize_any(ScalarVisitor)
    }
}

/// Index of a letter; "A" is 0.
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
        parsed.map(Some).map_err(|error: serde_json::Error| lines.place().json(error, EXPECTED))
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
    /// Passage of the last example, shared with the next one if equal.
    passage: Arc<str>,
    count: u64,
}

impl Rows<Choice> for ChoiceRows {
    fn next(&mut self, _remarks: &mut Remarks) -> Result<Option<Choice>, TaskError> {
        let Some(object) = self.objects.next()? else { return Ok(None) };
        let at = || self.objects.place();
        let id = object.id.map_or_else(|| self.count.to_string(), String::from);
        let contradiction = |problem: String| Err(at().contradiction(&format!("question {id:?}"), &problem));
        let options = object.options;
        if options.len() < 2 {
            return contradiction(format!("{} options, expected two or more", options.len()));
        }
        let answer = match object.answer {
            None if self.purpose.needs_labels() => return Err(at().no_label()),
            None => None,
            Some(answer) => {
                let index = match &answer {
                    Scalar::Text(letter) => letter_index(letter),
                    Scalar::Number(number) => u64::try_from(*number).ok(),
                };
                match index {
                    Some(index) if index < options.len() as u64 => Some(index as u32),
                    Some(index) => {
                        return contradiction(format!(
                            "the answer is option {index} (from 0), but there are {} options",
                            options.len()
                        ));
                    }
                    None => {
                        let answer = String::from(answer);
                        return contradiction(format!(
                            "the answer is {answer:?}, expected an index from 0 or a letter from A"
                        ));
                    }
                }
            }
        };
        let passage = object.passage.unwrap_or_default();
        if *self.passage != *passage {
            self.passage = passage.into();
        }
        self.count += 1;
        Ok(Some(Choice { id, passage: self.passage.clone(), question: object.question, options, answer, level: None }))
    }

    fn place(&self) -> Place {
        self.objects.place()
    }
}
