//! SQuAD 1.1 and 2.0, and custom files in their layout.
//!
//! ```text
//! {"version": "v2.0", "data": [{"title", "paragraphs": [{"context", "qas": [
//!     {"id", "question", "answers": [{"text", "answer_start"}], "is_impossible"}]}]}]}
//! ```
//!
//! `answer_start` counts characters (Unicode code points); examples count bytes. An answer whose text is not at its position
//! in the passage is a remark: training skips it, and a question without another answer; evaluation compares texts and keeps
//! it. Articles are streamed.
//!
//! Source: Rajpurkar et al. 2016 and 2018.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use super::choice::Scalar;
use super::error::{Place, TaskError, shortened};
use super::example::{Answer, Question};
use super::json::Elements;
use super::reader::{Purpose, Reader, RemarkKind, Remarks, Rows};

const EXPECTED: &str = "SQuAD's layout, {\"data\": [{\"paragraphs\": [{\"context\": \"...\", \"qas\": [{\"id\": \"...\", \
                        \"question\": \"...\", \"answers\": [{\"text\": \"...\", \"answer_start\": 0}]}]}]}]}";

/// Reads questions; `may_be_impossible` for SQuAD 2.0. Answers are optional for prediction only.
///
/// # Errors
/// The file cannot be opened. The reader returns all other errors.
pub fn read_squad(path: &Path, may_be_impossible: bool, purpose: Purpose) -> Result<Reader<Question>, TaskError> {
    let articles = Elements::open(path, "data", EXPECTED)?;
    Ok(Reader::new(path, SquadRows { articles, ready: Vec::new(), may_be_impossible, purpose }))
}

#[derive(Deserialize)]
struct Article {
    paragraphs: Vec<Paragraph>,
}

#[derive(Deserialize)]
struct Paragraph {
    context: String,
    qas: Vec<Asked>,
}

#[derive(Deserialize)]
struct Asked {
    id: Scalar,
    question: String,
    answers: Option<Vec<Given>>,
    is_impossible: Option<bool>,
}

#[derive(Deserialize)]
struct Given {
    text: String,
    answer_start: u64,
}

struct SquadRows {
    articles: Elements,
    /// Questions of the last article, the next one last.
    ready: Vec<Question>,
    may_be_impossible: bool,
    purpose: Purpose,
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
    fn byte(&self, character: u64) -> usize {
        let character = usize::try_from(character).unwrap_or(usize::MAX);
        let byte = if self.bytes.is_empty() { Some(character) } else { self.bytes.get(character).copied() };
        byte.map_or(self.passage.len(), |byte| byte.min(self.passage.len()))
    }
}

impl SquadRows {
    /// A question, or `None` for training without a usable answer.
    fn question(
        &self,
        asked: Asked,
        passage: &Arc<str>,
        starts: &Starts<'_>,
        remarks: &mut Remarks,
    ) -> Result<Option<Question>, TaskError> {
        let id = String::from(asked.id);
        // A question may have a remark for each answer.
        let short = |text: &str| shortened(text, 200).into_owned();
        let at = Place { line: 0, ..self.articles.place() };
        let contradiction = |problem: &str| {
            let subject = format!("question {id:?}");
            Err(at.clone().contradiction(&subject, problem))
        };
        let has_none = asked.answers.as_ref().is_some_and(Vec::is_empty);
        let is_impossible = asked.is_impossible.unwrap_or(has_none && self.may_be_impossible);
        let given = match asked.answers {
            _ if is_impossible && !self.may_be_impossible => {
                return contradiction("it is marked as impossible, which only SQuAD 2.0 files may contain");
            }
            Some(given) if is_impossible && !given.is_empty() => {
                return contradiction("it is marked as impossible and has answers; remove one of the two");
            }
            given if is_impossible => given.unwrap_or_default(),
            Some(given) if !given.is_empty() => given,
            _ if self.purpose.needs_labels() => {
                return contradiction(
                    "no answers; training and evaluation need some, or \"is_impossible\": true in SQuAD 2.0",
                );
            }
            _ => Vec::new(),
        };
        let is_training = self.purpose == Purpose::Training;
        let (count, mut answers) = (given.len(), Vec::with_capacity(given.len()));
        for Given { text, answer_start } in given {
            let start = starts.byte(answer_start);
            let is_there = !text.is_empty() && passage[start..].starts_with(&text);
            if !is_there {
                remarks.push(at.clone(), || RemarkKind::AnswerElsewhere {
                    id: short(&id),
                    text: short(&text),
                    start: answer_start,
                });
            }
            if is_there || !is_training {
                answers.push(Answer { text, start });
            }
        }
        if is_training && count > 0 && answers.is_empty() {
            remarks.push(at, || RemarkKind::NoUsableAnswer { id: short(&id) });
            return Ok(None);
        }
        Ok(Some(Question { id, passage: passage.clone(), question: asked.question, answers, is_impossible }))
    }
}

impl Rows<Question> for SquadRows {
    fn next(&mut self, remarks: &mut Remarks) -> Result<Option<Question>, TaskError> {
        while self.ready.is_empty() {
            let Some(article) = self.articles.next::<Article>()? else { return Ok(None) };
            for paragraph in article.paragraphs {
                let passage: Arc<str> = paragraph.context.into();
                let starts = Starts::new(&passage);
                for asked in paragraph.qas {
                    self.ready.extend(self.question(asked, &passage, &starts, remarks)?);
                }
            }
            self.ready.reverse();
        }
        Ok(self.ready.pop())
    }

    fn place(&self) -> Place {
        Place { line: 0, ..self.articles.place() }
    }
}
