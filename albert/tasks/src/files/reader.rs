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
        /// Number of its columns.
        columns: usize,
    },
    /// An answer whose text is not in the passage at the stated position. Training skips it; evaluation keeps it, because
    /// only its text is compared there.
    AnswerElsewhere {
        /// Id of the question.
        id: String,
        /// Text of the answer.
        text: String,
        /// Its stated first character.
        start: i64,
    },
    /// A training question without a usable answer; it is skipped.
    NoUsableAnswer {
        /// Id of the question.
        id: String,
    },
    /// Rows without any value, as spreadsheets write them; they are skipped. The remark is at the first one.
    EmptyRows {
        /// Their number.
        count: u64,
    },
    /// Examples with an escape of half a character (a lone surrogate), which becomes U+FFFD. The remark is at the first one.
    LoneSurrogates {
        /// Their number.
        count: u64,
    },
    /// An example that cannot be used; it is skipped.
    Unusable {
        /// Reason, as the end of the message.
        problem: String,
    },
    /// Remarks beyond the limit, which are counted but not stored.
    Further {
        /// Their number.
        count: u64,
    },
    /// Files in the same folder as an `all.txt`, which is read instead of them.
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
    /// Kind and details.
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
            RemarkKind::EmptyRows { count } => write!(f, "{at}: skipped: the first of {count} rows without any value"),
            RemarkKind::LoneSurrogates { count } => {
                write!(f, "{at}: the first of {count} examples with a lone surrogate, which becomes U+FFFD")
            }
            RemarkKind::Unusable { problem } => write!(f, "{at}: skipped: {problem}"),
            RemarkKind::Further { count } => write!(f, "{at}: {count} more remarks"),
            RemarkKind::BesideAll { files } => write!(f, "{at}: read instead of {files} other files in its folder"),
        }
    }
}

/// The first remarks on a file, and the number of all further ones.
#[derive(Default)]
pub(super) struct Remarks {
    list: Vec<Remark>,
}

impl Remarks {
    /// Maximum number of stored remarks.
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

impl Remarks {
    /// Increments the counter of a kind of remark, which is at the first place.
    pub(super) fn count(&mut self, at: Place, kind: fn(u64) -> RemarkKind) {
        let is_same = |remark: &&mut Remark| std::mem::discriminant(&remark.kind) == std::mem::discriminant(&kind(0));
        match self.list.iter_mut().find(is_same).map(|remark| &mut remark.kind) {
            Some(RemarkKind::EmptyRows { count } | RemarkKind::LoneSurrogates { count }) => *count += 1,
            _ => self.push(at, || kind(1)),
        }
    }
}

/// An example that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// Number of usable examples before it in its portion.
    pub before: usize,
    /// Its id, if known.
    pub id: Option<String>,
    /// File and line.
    pub at: Place,
    /// Reason, as the end of the message.
    pub problem: String,
}

/// Examples of one file or folder, in its order. An error ends the iteration if the examples after it cannot be found.
pub struct Reader<E> {
    path: PathBuf,
    rows: Box<dyn Rows<E>>,
    ids: Ids,
    remarks: Remarks,
    /// Number of examples so far, usable or not.
    count: u64,
    is_done: bool,
}

/// Layout of a file: yields the examples of a [`Reader`].
pub(super) trait Rows<E>: Send {
    /// Returns the next example, or `None` after the last.
    fn next(&mut self, remarks: &mut Remarks) -> Result<Option<E>, TaskError>;

    /// Place of the last example read.
    fn place(&self) -> Place;

    /// Id of the last example read, even if it cannot be used; `None` if unknown.
    fn id(&self) -> Option<String> {
        None
    }

    /// True if examples after an error can be read, because it does not concern the whole file.
    fn resumes(&self) -> bool {
        false
    }

    /// True if ids are assigned by counting, so that they are unique.
    fn are_numbered(&self) -> bool {
        false
    }
}

impl<E: Example> Reader<E> {
    pub(super) fn new(path: &Path, rows: impl Rows<E> + 'static) -> Self {
        let path = path.to_owned();
        Self { path, rows: Box::new(rows), ids: Ids::default(), remarks: Remarks::default(), count: 0, is_done: false }
    }

    /// Remarks on the part read so far; print them after the last example.
    pub(crate) fn remarks(&self) -> &[Remark] {
        &self.remarks.list
    }

    /// Reads all examples and remarks.
    ///
    /// # Errors
    /// The first error of the reader.
    pub fn read_all(mut self) -> Result<(Vec<E>, Vec<Remark>), TaskError> {
        let examples = self.by_ref().collect::<Result<_, _>>()?;
        Ok((examples, self.remarks.list))
    }

    /// Reads up to `count` more examples, of which up to `skips` may be unusable, and returns the error after them, if any.
    pub(crate) fn portion(&mut self, count: usize, skips: u64) -> (Vec<E>, Vec<Unusable>, Option<TaskError>) {
        let (mut list, mut unusable) = (Vec::new(), Vec::<Unusable>::new());
        while list.len() + unusable.len() < count {
            match self.next() {
                None => break,
                Some(Ok(example)) => list.push(example),
                Some(Err(TaskError::Input { at, problem })) if !self.is_done && (unusable.len() as u64) < skips => {
                    unusable.push(Unusable { before: list.len(), id: self.rows.id(), at, problem });
                }
                Some(Err(error)) => return (list, unusable, Some(error)),
            }
        }
        (list, unusable, None)
    }

    /// Adds remarks on skipped examples.
    pub(crate) fn remark(&mut self, unusable: impl IntoIterator<Item = Unusable>) {
        for Unusable { at, problem, .. } in unusable {
            self.remarks.push(at, || RemarkKind::Unusable { problem });
        }
    }
}

impl<E: Example> Iterator for Reader<E> {
    type Item = Result<E, TaskError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let read = match self.rows.next(&mut self.remarks) {
            Ok(None) => {
                self.is_done = true;
                return (self.count == 0).then(|| Err(TaskError::no_example(&self.path)));
            }
            Ok(Some(example)) if !self.rows.are_numbered() && !self.ids.insert(example.id()) => {
                let id = shown(example.id());
                Err(self.rows.place().error(format!("duplicate id {id}; ids name predictions and must be unique")))
            }
            Ok(Some(example)) => Ok(example),
            Err(error) => Err(error),
        };
        self.count += 1;
        self.is_done = match &read {
            Ok(_) => false,
            Err(TaskError::Input { .. }) => !self.rows.resumes(),
            Err(_) => true,
        };
        Some(read)
    }
}

impl<E> fmt::Debug for Reader<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("path", &self.path).field("count", &self.count).finish_non_exhaustive()
    }
}

/// Ids so far, as two keyed 64-bit hashes: 16 bytes an id. Among a billion ids, two collide with a probability of
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
