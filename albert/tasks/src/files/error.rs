//! Errors of example files.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::EngineError;

/// Line of a file, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// File; shared, because a reader creates thousands of places.
    pub path: Arc<Path>,
    /// Line; 0 for the file as a whole.
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

impl Place {
    /// Error at this place.
    pub(super) fn error(self, problem: impl Into<String>) -> TaskError {
        TaskError::Input { at: self, problem: problem.into() }
    }

    pub(super) fn no_label(self) -> TaskError {
        self.error("no label; training and evaluation need one for every example, prediction does not")
    }

    pub(super) fn columns(self, found: usize, expected: impl fmt::Display, separator: &str) -> TaskError {
        self.error(format!("{found} columns, expected {expected}; columns are separated by {separator}"))
    }

    pub(super) fn empty(self, part: &str) -> TaskError {
        self.error(format!("{part} is empty; fill it in or remove the example"))
    }

    pub(super) fn json(self, problem: impl ToString, expected: &str) -> TaskError {
        self.error(format!("{}; expected {expected}", shortened(&problem.to_string(), 200)))
    }

    /// Error of a JSON text that starts at this place.
    pub(super) fn json_error(mut self, error: &serde_json::Error, expected: &str) -> TaskError {
        let problem = error.to_string();
        let problem = problem.rsplit_once(" at line ").map_or(problem.as_str(), |(problem, _)| problem);
        if self.line > 0 {
            self.line += (error.line() as u64).saturating_sub(1);
        }
        self.json(problem, expected)
    }

    pub(super) fn contradiction(self, subject: &str, problem: &str) -> TaskError {
        self.error(format!("{}: {}", shortened(subject, 200), shortened(problem, 400)))
    }
}

/// Error of a reader or of an output file. Messages name the file and the line, and are short for any content.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] EngineError),
    /// A published file is missing.
    #[error("{}: no {file} in this folder; give the folder that contains it, as published", folder.display())]
    Missing {
        /// Folder of the task.
        folder: PathBuf,
        /// Name of the missing file.
        file: String,
    },
    /// The task has no such split.
    #[error("{task} has no {split} split; it has {known}")]
    NoSplit {
        /// Published name of the task.
        task: String,
        /// Split that was requested.
        split: &'static str,
        /// The splits of the task.
        known: String,
    },
    /// A file or an example cannot be used.
    #[error("{at}: {problem}")]
    Input {
        /// File and line.
        at: Place,
        /// The problem and its remedy.
        problem: String,
    },
    /// A submission cannot contain a prediction.
    #[error("prediction {}: {problem}", shown(id))]
    Prediction {
        /// Id of the example.
        id: String,
        /// Reason, as the end of the message.
        problem: String,
    },
}

impl TaskError {
    pub(super) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| EngineError::io(path, action, source).into()
    }

    /// Error for a file whose name does not end in one of the types `expected`.
    pub(super) fn file_type(path: &Path, expected: &str) -> Self {
        let at = Place { path: path.into(), line: 0 };
        at.error(format!("unknown file type; expected a name that ends in {expected}"))
    }

    /// Error for a file without examples.
    pub(super) fn no_example(path: &Path) -> Self {
        Place { path: path.into(), line: 0 }.error("no example in the file; is it the right file, and complete?")
    }
}

/// Beginning of a text of any length, for messages.
pub(super) fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}... ({} bytes)", &text[..end], text.len())),
    }
}

/// Value from a file in quotes.
pub(super) fn shown(value: &str) -> String {
    match value.char_indices().nth(80) {
        None => format!("{value:?}"),
        Some((end, _)) => format!("{:?}... ({} bytes)", &value[..end], value.len()),
    }
}

/// Maximum number of names in a message.
pub(super) const LISTED: usize = 20;

/// The first names of a list: `"a", "b", "c"`.
pub(crate) fn listed<S: AsRef<str>>(names: &[S]) -> String {
    listed_of(names.iter().take(LISTED), names.len())
}

/// First of `count` names.
pub(super) fn listed_of<S: AsRef<str>>(first: impl Iterator<Item = S>, count: usize) -> String {
    let mut text = first.map(|name| shown(name.as_ref())).collect::<Vec<_>>().join(", ");
    if count > LISTED {
        text.push_str(&format!(" and {} more", count - LISTED));
    }
    if text.is_empty() { "none".to_owned() } else { text }
}
