//! What all readers have in common: examples one at a time, each under an id of its own, and remarks on what the file
//! holds but no example can be made of.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use super::error::{Place, TaskError};
use super::example::{Choice, Question, Tagged, Text};

/// An example under an id.
pub trait Example {
    /// The name that a prediction is written under.
    fn id(&self) -> &str;
}

impl Example for Text {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Example for Tagged {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Example for Choice {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Example for Question {
    fn id(&self) -> &str {
        &self.id
    }
}

/// What examples are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To learn from: what is right must be there, and of use.
    Training,
    /// To be judged by: what is right must be there.
    Evaluation,
    /// To be answered: what is right is read where it is there.
    Prediction,
}

impl Purpose {
    pub(super) fn needs_labels(self) -> bool {
        self != Self::Prediction
    }
}

/// What a remark is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemarkKind {
    /// A row with too few columns to be an example; the published files of QQP have such, and it was left out.
    ShortRow {
        /// How many columns it has.
        columns: usize,
    },
    /// An answer whose text is not in the passage at the place that the file names. It was left out for training, and
    /// kept for evaluation, where only its text counts.
    AnswerElsewhere {
        /// Its question.
        id: String,
        /// Its text.
        text: String,
        /// The character at which the file says that it starts.
        start: u64,
    },
    /// A question for training of whose answers none could be used; it was left out.
    NoUsableAnswer {
        /// Its id.
        id: String,
    },
    /// Further remarks, which are counted and not kept: a file may give rise to one with every line.
    Further {
        /// How many.
        count: u64,
    },
    /// Files beside an `all.txt`, which is read in their place.
    BesideAll {
        /// How many.
        files: usize,
    },
}

/// Something about a file that its user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// Where.
    pub at: Place,
    /// What.
    pub kind: RemarkKind,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = &self.at;
        match &self.kind {
            RemarkKind::ShortRow { columns } => write!(f, "{at}: left out: a row of {columns} columns is no example"),
            RemarkKind::AnswerElsewhere { id, text, start } => {
                write!(f, "{at}: question {id:?}: the answer {text:?} is not in the passage at character {start}")
            }
            RemarkKind::NoUsableAnswer { id } => write!(f, "{at}: left out: no answer to question {id:?} can be used"),
            RemarkKind::Further { count } => write!(f, "{at}: and {count} more remarks like these"),
            RemarkKind::BesideAll { files } => write!(f, "{at}: read in place of {files} other files beside it"),
        }
    }
}

/// The first remarks about a file, and how many there are besides.
#[derive(Default)]
pub(super) struct Remarks {
    list: Vec<Remark>,
}

impl Remarks {
    /// Remarks that are kept.
    const MOST: usize = 1000;

    /// Adds a remark, which is not made if there are too many.
    pub(super) fn push(&mut self, at: Place, kind: impl FnOnce() -> RemarkKind) {
        if self.list.len() < Self::MOST {
            return self.list.push(Remark { at, kind: kind() });
        }
        match self.list.last_mut().map(|last| &mut last.kind) {
            Some(RemarkKind::Further { count }) => *count += 1,
            _ => self.list.push(Remark { at: Place { line: 0, ..at }, kind: RemarkKind::Further { count: 1 } }),
        }
    }
}

/// Examples of one file or folder, in its order. After an error there are no more.
pub struct Reader<E> {
    path: PathBuf,
    rows: Box<dyn Rows<E>>,
    ids: Ids,
    remarks: Remarks,
    count: u64,
    is_done: bool,
}

/// A layout: makes the examples of a [`Reader`].
pub(super) trait Rows<E>: Send {
    /// The next example, or `None` after the last.
    fn next(&mut self, remarks: &mut Remarks) -> Result<Option<E>, TaskError>;

    /// Where the example that was read last is.
    fn place(&self) -> Place;

    /// Whether ids are numbers that were given here, so that none can be there twice.
    fn are_numbered(&self) -> bool {
        false
    }
}

impl<E: Example> Reader<E> {
    pub(super) fn new(path: &Path, rows: impl Rows<E> + 'static) -> Self {
        let path = path.to_owned();
        Self { path, rows: Box::new(rows), ids: Ids::default(), remarks: Remarks::default(), count: 0, is_done: false }
    }

    /// The file or folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is to be said about what was read so far; whoever reads to the end should print it.
    pub fn remarks(&self) -> &[Remark] {
        &self.remarks.list
    }

    /// All examples, and the remarks.
    ///
    /// # Errors
    /// The first that the reader finds.
    pub fn read_all(mut self) -> Result<(Vec<E>, Vec<Remark>), TaskError> {
        let examples = self.by_ref().collect::<Result<_, _>>()?;
        Ok((examples, self.remarks.list))
    }

    fn read(&mut self) -> Result<Option<E>, TaskError> {
        let example = self.rows.next(&mut self.remarks)?;
        match &example {
            None if self.count == 0 => return Err(TaskError::Empty { path: self.path.clone() }),
            None => {}
            Some(example) if !self.rows.are_numbered() && !self.ids.insert(example.id()) => {
                return Err(TaskError::DuplicateId { at: self.rows.place(), id: example.id().to_owned() });
            }
            Some(_) => self.count += 1,
        }
        Ok(example)
    }
}

impl<E: Example> Iterator for Reader<E> {
    type Item = Result<E, TaskError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let read = self.read().transpose();
        self.is_done = !matches!(read, Some(Ok(_)));
        read
    }
}

impl<E> fmt::Debug for Reader<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("path", &self.path).field("count", &self.count).finish_non_exhaustive()
    }
}

/// The ids seen so far, as 128 bits of two keyed hashes: 16 bytes an id of any length. Two ids of a billion are taken
/// for one with a probability of 10^-21.
#[derive(Default)]
struct Ids {
    keys: (RandomState, RandomState),
    seen: HashSet<(u64, u64)>,
}

impl Ids {
    /// Whether the id is new.
    fn insert(&mut self, id: &str) -> bool {
        self.seen.insert((self.keys.0.hash_one(id), self.keys.1.hash_one(id)))
    }
}
