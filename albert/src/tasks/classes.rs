//! Names of classes and their indices.

use std::collections::HashMap;

use super::error::{Place, TaskError, listed};

/// Names by index and indices by name: a file may have a class for each of its rows.
pub(super) struct Classes {
    names: Vec<String>,
    index: HashMap<String, u32>,
}

impl Classes {
    pub(super) fn new(names: &[String]) -> Self {
        let index = names.iter().cloned().zip(0..).collect();
        Self { names: names.to_vec(), index }
    }

    /// The index of a label.
    pub(super) fn find(&self, found: &str, at: impl FnOnce() -> Place) -> Result<u32, TaskError> {
        self.index.get(found).copied().ok_or_else(|| unknown(found, &self.names, at()))
    }
}

/// The index of a label among a few.
pub(super) fn class_of<S: AsRef<str>>(found: &str, labels: &[S], at: impl FnOnce() -> Place) -> Result<u32, TaskError> {
    let index = labels.iter().position(|label| label.as_ref() == found);
    index.map(|index| index as u32).ok_or_else(|| unknown(found, labels, at()))
}

fn unknown<S: AsRef<str>>(found: &str, labels: &[S], at: Place) -> TaskError {
    match found {
        "" => TaskError::NoLabel { at },
        _ => TaskError::UnknownLabel { at, found: found.to_owned(), expected: listed(labels) },
    }
}
