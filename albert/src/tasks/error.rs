//! What can be wrong with a file of examples, each with what to do about it.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::EngineError;

/// A line of a file, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file; shared, because a reader names places by the thousand.
    pub path: Arc<Path>,
    /// The line; 0 for the file as a whole.
    pub line: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.path.display()),
            line => write!(f, "{}:{line}", self.path.display()),
        }
    }
}

/// An error of a reader or of a file that is written. Every message names the file and, where there is one, the line,
/// and is short whatever the file holds.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The operating system refused to read or write.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or folder concerned.
        path: PathBuf,
        /// What was tried: `read`, `write`.
        action: &'static str,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] EngineError),
    /// A file of a task that is not where it is published.
    #[error("{}: no {file} here; give the folder that holds it, as it is published", folder.display())]
    Missing {
        /// The folder that was given.
        folder: PathBuf,
        /// What was looked for.
        file: String,
    },
    /// A part that a task does not have.
    #[error("{task} has no {split} set; it has {known}")]
    NoSplit {
        /// Published name of the task.
        task: String,
        /// The part that was asked for.
        split: &'static str,
        /// The parts that there are.
        known: String,
    },
    /// A file name that does not say which layout it has.
    #[error("{}: no layout goes by this name; expected it to end in {expected}", path.display())]
    Layout {
        /// The file.
        path: PathBuf,
        /// The endings that are known.
        expected: &'static str,
    },
    /// A line longer than any example.
    #[error("{at}: a line of more than {most} bytes; is it a file of examples?")]
    LongLine {
        /// File and line.
        at: Place,
        /// Most bytes of a line.
        most: u64,
    },
    /// Bytes that are not UTF-8.
    #[error("{at}: invalid UTF-8 at byte {byte}; save the file as UTF-8")]
    InvalidUtf8 {
        /// File and line.
        at: Place,
        /// Byte in the line, counted from 1.
        byte: usize,
    },
    /// A file without an example.
    #[error("{}: no example in the file; is it the right one, and did it arrive whole?", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A row with too many or too few columns.
    #[error("{at}: {found} columns, expected {expected}; columns are parted by {separator}")]
    Columns {
        /// File and line.
        at: Place,
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: String,
        /// What parts them, in words.
        separator: &'static str,
    },
    /// A first line that is not the header of the published file.
    #[error(
        "{at}: column {column} of the header is called {}, expected {expected:?}; is it the published file?",
        shown(found)
    )]
    Header {
        /// File and line.
        at: Place,
        /// Which column, counted from 1.
        column: usize,
        /// What it is called.
        found: String,
        /// What it should be called.
        expected: String,
    },
    /// A column or key that was asked for and is not there.
    #[error("{at}: no column {column:?}; there are {known}; name the one to be read by --set {setting}=NAME{example}")]
    NoColumn {
        /// File and line.
        at: Place,
        /// The column that was asked for.
        column: String,
        /// The columns that there are.
        known: String,
        /// The setting that names the column.
        setting: &'static str,
        /// An example of it, from `, such as` on; empty if the file has no column.
        example: String,
    },
    /// Two columns of one name.
    #[error("{at}: two columns are called {}; give each a name of its own", shown(column))]
    TwoColumns {
        /// File and line.
        at: Place,
        /// The name.
        column: String,
    },
    /// An example without what is right about it, where that is needed.
    #[error("{at}: no label; training and evaluation need one for every example, prediction does without")]
    NoLabel {
        /// File and line.
        at: Place,
    },
    /// A label that is not one of the task's.
    #[error("{at}: unknown label {}; expected one of {expected}", shown(found))]
    UnknownLabel {
        /// File and line.
        at: Place,
        /// What the file says.
        found: String,
        /// The labels of the task.
        expected: String,
    },
    /// A score that is not a finite number.
    #[error("{at}: {} is no number; expected a decimal such as 3.25", shown(found))]
    NotANumber {
        /// File and line.
        at: Place,
        /// What the file says.
        found: String,
    },
    /// A text that is needed and is not there.
    #[error("{at}: {what} is empty; fill it in or take the example out")]
    NoText {
        /// File and line.
        at: Place,
        /// Which part of the example.
        what: &'static str,
    },
    /// Two examples under one name.
    #[error("{at}: the id {} was used before; predictions are written under ids, so each may be used once", shown(id))]
    DuplicateId {
        /// File and line of the second.
        at: Place,
        /// The id.
        id: String,
    },
    /// What is not JSON, or not of the layout.
    #[error("{at}: {}; expected {expected}", shortened(problem, 200))]
    Json {
        /// File and line.
        at: Place,
        /// What is wrong, in the parser's words or in ours.
        problem: String,
        /// The layout that is expected.
        expected: &'static str,
    },
    /// What is not CSV.
    #[error(
        "{at}: {problem}; expected values parted by commas, those with commas, quotes or line ends in double quotes"
    )]
    Csv {
        /// File and line.
        at: Place,
        /// What is wrong.
        problem: String,
    },
    /// Texts in the place of words.
    #[error(
        "{at}: {} is not a word; a file for `tag` has a word and its tag in each line and an empty line between \
         sentences, such as \"Oslo B-LOC\"; texts with a label are for `classify`",
        shown(found)
    )]
    NotAWord {
        /// File and line.
        at: Place,
        /// What is in the word's place.
        found: String,
    },
    /// An example that contradicts itself.
    #[error("{at}: {}: {}", shortened(subject, 200), shortened(problem, 400))]
    Contradiction {
        /// File and line.
        at: Place,
        /// Which example.
        subject: String,
        /// What is wrong, and what to do about it.
        problem: String,
    },
    /// A prediction that a submission cannot hold.
    #[error("prediction {}: {problem}", shown(id))]
    Prediction {
        /// The id of the example.
        id: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl TaskError {
    pub(super) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }
}

/// The beginning of a text that may be of any length, as a message shows it.
pub(super) fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}... ({} bytes)", &text[..end], text.len())),
    }
}

/// A value of a file in quotes.
pub(super) fn shown(value: &str) -> String {
    match shortened(value, 80) {
        Cow::Borrowed(value) => format!("{value:?}"),
        Cow::Owned(_) => {
            let beginning: String = value.chars().take(80).collect();
            format!("{beginning:?}... ({} bytes)", value.len())
        }
    }
}

/// Names that a message lists.
pub(super) const LISTED: usize = 20;

/// Names in a message: `"a", "b", "c"`; of many, the first.
pub(crate) fn listed<S: AsRef<str>>(names: &[S]) -> String {
    listed_of(names.iter().take(LISTED), names.len())
}

/// The first of `count` names.
pub(super) fn listed_of<S: AsRef<str>>(first: impl Iterator<Item = S>, count: usize) -> String {
    let mut text = first.map(|name| shown(name.as_ref())).collect::<Vec<_>>().join(", ");
    if count > LISTED {
        text.push_str(&format!(" and {} more", count - LISTED));
    }
    if text.is_empty() { "none".to_owned() } else { text }
}
