//! Class names and indices.

use std::collections::HashMap;

use super::error::{Place, TaskError, listed, shown};

/// Names by index and indices by name; a file may have as many classes as rows.
pub(super) struct Classes {
    names: Vec<String>,
    index: HashMap<String, u32>,
}

impl Classes {
    pub(super) fn new(names: &[String]) -> Self {
        let index = names.iter().cloned().zip(0..).collect();
        Self { names: names.to_vec(), index }
    }

    /// Index of a label.
    pub(super) fn find(&self, found: &str, at: impl FnOnce() -> Place) -> Result<u32, TaskError> {
        self.index.get(found).copied().ok_or_else(|| unknown(found, &self.names, at()))
    }
}

/// Index of a label in a short list.
pub(super) fn class_of<S: AsRef<str>>(found: &str, labels: &[S], at: impl FnOnce() -> Place) -> Result<u32, TaskError> {
    let index = labels.iter().position(|label| label.as_ref() == found);
    index.map(|index| index as u32).ok_or_else(|| unknown(found, labels, at()))
}

fn unknown<S: AsRef<str>>(found: &str, labels: &[S], at: Place) -> TaskError {
    match found {
        "" => at.no_label(),
        _ => at.error(format!("unknown label {}; expected one of {}", shown(found), listed(labels))),
    }
}
