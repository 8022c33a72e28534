//! Custom files of multiple-choice questions.
//!
//! ```text
//! {"id": "7", "passage": "...", "question": "...", "options": ["...", "..."], "answer": 1}
//! ```
//!
//! One object a line (`.jsonl`), an array of such objects (`.json`), alone or under the key `data`, or a `.csv` with these
//! columns. `answer` is the index of the right option from 0, its letter from "A", or its text. Without `id`, examples are
//! numbered from 0. `passage` is optional.
//!
//! Names of SWAG, HellaSwag and COPA are also accepted: `sent1`, `ctx`, `premise` or `article`, `context` for the passage, `sent2` for
//! the question, `ending0` .. `ending3`, `endings`, `choice1`, `choice2` or `choices` for the options, `label` for the answer.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::error::{Place, TaskError, shown};
use super::example::Choice;
use super::json::Objects;
use super::lines::ending;
use super::reader::{Purpose, Reader, Remarks, Rows};

const EXPECTED: &str =
    "objects such as {\"passage\": \"...\", \"question\": \"...\", \"options\": [\"...\", \"...\"], \"answer\": 0}";

/// Reads multiple-choice questions from a `.jsonl`, `.ndjson`, `.json` or `.csv` file.
///
/// # Errors
/// The file has another type or cannot be opened. The reader returns all other errors.
pub fn read_choices(path: &Path, purpose: Purpose) -> Result<Reader<Choice>, TaskError> {
    if !matches!(ending(path).as_deref(), Some("jsonl" | "ndjson" | "json" | "csv")) {
        return Err(TaskError::file_type(path, ".jsonl, .ndjson, .json or .csv"));
    }
    let objects = Objects::open(path, "data", EXPECTED)?;
    Ok(Reader::new(path, ChoiceRows { objects, purpose, passage: Arc::from(""), count: 0, id: None }))
}

#[derive(Deserialize)]
struct Object {
    id: Option<Scalar>,
    #[serde(alias = "article", alias = "context", alias = "sent1", alias = "ctx", alias = "premise")]
    passage: Option<String>,
    #[serde(alias = "sent2")]
    question: Option<String>,
    #[serde(default, alias = "endings", alias = "choices")]
    options: Vec<String>,
    #[serde(alias = "choice1")]
    ending0: Option<String>,
    #[serde(alias = "choice2")]
    ending1: Option<String>,
    ending2: Option<String>,
    ending3: Option<String>,
    #[serde(alias = "label")]
    answer: Option<Box<RawValue>>,
}

/// Text or a whole number: an id or an answer.
///
/// Not a derived untagged enum, which would buffer a value of any size before rejecting it.
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

            fn visit_f64<E: Error>(self, number: f64) -> Result<Scalar, E> {
                // pandas writes a column of whole numbers as floats if a value is missing.
                let is_whole = number.fract() == 0.0 && number.abs() < (1u64 << 53) as f64;
                if is_whole {
                    Ok(Scalar::Number(number as i128))
                } else {
                    Err(E::invalid_type(Unexpected::Float(number), &self))
                }
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

/// Index of the option named by `answer`: a whole number, a letter, or the text of an option.
fn answer_index(answer: &Scalar, options: &[String]) -> Result<u32, String> {
    let count = options.len();
    let number = match answer {
        Scalar::Number(number) => Some(*number),
        Scalar::Text(text) => {
            let by_text = options.iter().position(|option| option.trim() == text.trim());
            let number =
                text.trim().parse::<f64>().ok().filter(|number| number.fract() == 0.0).map(|number| number as i128);
            let letter = letter_index(&text.trim().to_uppercase()).map(i128::from);
            match (number.or(letter).filter(|&number| number < count as i128), by_text) {
                (Some(number), Some(option)) if number != option as i128 => {
                    return Err(format!(
                        "the answer {} is option {option} by its text and {number} by its position",
                        shown(text)
                    ));
                }
                (_, Some(option)) => Some(option as i128),
                (_, None) => number.or(letter),
            }
        }
    };
    match number {
        Some(number) if (0..count as i128).contains(&number) => Ok(number as u32),
        Some(number) => Err(format!("the answer is option {number} (from 0), but there are {count} options")),
        None => {
            let Scalar::Text(text) = answer else { unreachable!("numbers are numbers") };
            let text = shown(text);
            Err(format!("the answer is {text}, expected an index from 0, a letter from A or the text of an option"))
        }
    }
}

struct ChoiceRows {
    objects: Objects,
    purpose: Purpose,
    /// Passage of the last example, shared with the next one if equal.
    passage: Arc<str>,
    count: u64,
    /// Id of the last question.
    id: Option<String>,
}

impl ChoiceRows {
    fn choice(&mut self, id: String, object: Object) -> Result<Choice, TaskError> {
        let at = || self.objects.place();
        let contradiction = |problem: String| at().contradiction(&format!("question {id:?}"), &problem);
        let endings = [object.ending0, object.ending1, object.ending2, object.ending3];
        let options: Vec<String> = object.options.into_iter().chain(endings.into_iter().flatten()).collect();
        if options.len() < 2 {
            return Err(contradiction(format!("{} options, expected two or more", options.len())));
        }
        if object.question.is_none() && object.passage.is_none() {
            return Err(at().json("missing field `question`", EXPECTED));
        }
        let answer = match object.answer.filter(|_| self.purpose.needs_labels()) {
            None if self.purpose.needs_labels() => return Err(at().no_label()),
            None => None,
            Some(answer) => {
                let answer = serde_json::from_str(answer.get()).map_err(|error| at().json_error(&error, EXPECTED))?;
                Some(answer_index(&answer, &options).map_err(contradiction)?)
            }
        };
        let passage = object.passage.unwrap_or_default();
        if *self.passage != *passage {
            self.passage = passage.into();
        }
        let question = object.question.unwrap_or_default();
        Ok(Choice { id, passage: self.passage.clone(), question, options, answer, level: None })
    }
}

impl Rows<Choice> for ChoiceRows {
    fn next(&mut self, remarks: &mut Remarks) -> Result<Option<Choice>, TaskError> {
        self.id = None;
        let read = self.objects.next::<Object>(remarks);
        let number = self.count;
        self.count += 1;
        let Some(mut object) = read? else { return Ok(None) };
        let id = object.id.take().map_or_else(|| number.to_string(), String::from);
        self.id = Some(id.clone());
        self.choice(id, object).map(Some)
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
}
