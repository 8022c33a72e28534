//! Iterator over the examples of a file: unique ids, and remarks on unusable content.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use super::error::{Place, TaskError, shown};
use super::example::{Choice, Question, Tagged, Text};

/// An example under an id.
pub trait Example {
    /// Name of its prediction.
    fn id(&self) -> &str;
}

macro_rules! examples {
    ($($example:ty),*) => {
        $(impl Example for $example {
            fn id(&self) -> &str {
                &self.id
            }
        })*
    };
}
examples!(Text, Tagged, Choice, Question);

/// Use of the examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Labels are required and must be usable.
    Training,
    /// Labels are required.
    Evaluation,
    /// Labels are optional.
    Prediction,
}

impl Purpose {
    pub(super) fn needs_labels(self) -> bool {
        self != Self::Prediction
    }
}

/// Content of a remark.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemarkKind {
    /// A row with too few columns, as the published QQP files have; it is skipped.
    ShortRow {
        /// Its columns.
        columns: usize,
    },
    /// An answer whose text is not in the passage at the stated position. Training skips it; evaluation keeps it, because
    /// only its text counts there.
    AnswerElsewhere {
        /// Id of the question.
        id: String,
        /// Its text.
        text: String,
        /// Its stated first character.
        start: u64,
    },
    /// A training question without a usable answer; it is skipped.
    NoUsableAnswer {
        /// Its id.
        id: String,
    },
    /// Remarks beyond the limit, which are counted and not kept.
    Further {
        /// Their number.
        count: u64,
    },
    /// Files in the folder of an `all.txt`, which is read instead of them.
    BesideAll {
        /// Their number.
        files: usize,
    },
}

/// A note on unusable content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// File and line.
    pub at: Place,
    /// Content.
    pub kind: RemarkKind,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = &self.at;
        match &self.kind {
            RemarkKind::ShortRow { columns } => write!(f, "{at}: skipped: {columns} columns, too few for an example"),
            RemarkKind::AnswerElsewhere { id, text, start } => {
                write!(f, "{at}: question {id:?}: the answer {text:?} is not in the passage at character {start}")
            }
            RemarkKind::NoUsableAnswer { id } => write!(f, "{at}: skipped: question {id:?} has no usable answer"),
            RemarkKind::Further { count } => write!(f, "{at}: {count} more remarks"),
            RemarkKind::BesideAll { files } => write!(f, "{at}: read instead of {files} other files in its folder"),
        }
    }
}

/// The first remarks on a file, and the number of all others.
#[derive(Default)]
pub(super) struct Remarks {
    list: Vec<Remark>,
}

impl Remarks {
    /// Remarks kept.
    const MOST: usize = 1000;

    /// Adds a remark; `kind` is not called beyond the limit.
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

/// Examples of one file or folder, in its order. An error ends the iteration.
pub struct Reader<E> {
    path: PathBuf,
    rows: Box<dyn Rows<E>>,
    ids: Ids,
    remarks: Remarks,
    count: u64,
    is_done: bool,
}

/// Layout of a file: yields the examples of a [`Reader`].
pub(super) trait Rows<E>: Send {
    /// The next example, or `None` after the last.
    fn next(&mut self, remarks: &mut Remarks) -> Result<Option<E>, TaskError>;

    /// Place of the last example read.
    fn place(&self) -> Place;

    /// True if ids are counted here, so that they are unique.
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

    /// Remarks on the part read so far; print them after the last example.
    pub fn remarks(&self) -> &[Remark] {
        &self.remarks.list
    }

    /// All examples, and the remarks.
    ///
    /// # Errors
    /// The first error of the reader.
    pub fn read_all(mut self) -> Result<(Vec<E>, Vec<Remark>), TaskError> {
        let examples = self.by_ref().collect::<Result<_, _>>()?;
        Ok((examples, self.remarks.list))
    }

    fn read(&mut self) -> Result<Option<E>, TaskError> {
        let example = self.rows.next(&mut self.remarks)?;
        match &example {
            None if self.count == 0 => return Err(TaskError::no_example(&self.path)),
            None => {}
            Some(example) if !self.rows.are_numbered() && !self.ids.insert(example.id()) => {
                let id = shown(example.id());
                return Err(self
                    .rows
                    .place()
                    .error(format!("duplicate id {id}; ids name predictions and must be unique")));
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

/// The ids so far, as two keyed 64-bit hashes: 16 bytes an id. Among a billion ids, two collide with a probability of
/// 10^-21.
#[derive(Default)]
struct Ids {
    keys: (RandomState, RandomState),
    seen: HashSet<(u64, u64)>,
}

impl Ids {
    /// True if the id is new.
    fn insert(&mut self, id: &str) -> bool {
        self.seen.insert((self.keys.0.hash_one(id), self.keys.1.hash_one(id)))
    }
}
