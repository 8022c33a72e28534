//! Errors of the data path, from text files to batches.

use std::path::{Path, PathBuf};

use engine::EngineError;

use crate::tokenizer::TokenizerError;

/// Error of the data path. Messages name the file and line or the setting, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// An input file or pattern matches nothing.
    #[error("{}: no such file; check the path, or quote a pattern such as \"texts/*.txt\"", path.display())]
    Missing {
        /// Path or pattern as given.
        path: PathBuf,
    },
    /// A file cannot be read, mapped or written.
    #[error(transparent)]
    File(#[from] EngineError),
    /// A text cannot be used.
    #[error("{at}: {problem}")]
    Input {
        /// Name of the source, with the line if there is one.
        at: String,
        /// The problem and its remedy.
        problem: String,
    },
    /// Another rank failed.
    #[error("rank {rank}: {problem}")]
    Rank {
        /// Number of the rank that failed.
        rank: usize,
        /// Error of that rank.
        problem: String,
    },
    /// No source contains a sentence.
    #[error(
        "the corpus is empty: no sentence in {names}; expected one sentence a line and blank lines between documents"
    )]
    EmptyCorpus {
        /// The sources.
        names: String,
    },
    /// No sentence contains a token.
    #[error(
        "the corpus has no token: all {sentences} sentences are empty after cleaning; is this the right tokenizer for the text?"
    )]
    NoTokens {
        /// Number of sentences read.
        sentences: u64,
    },
    /// A split by document needs two different documents.
    #[error(
        "the corpus has one distinct document, and the held-out split is by document; put blank lines between documents, add files, or set held_out = 0"
    )]
    OneDocument,
    /// A setting is out of range.
    #[error("{name} = {value}: expected {expected}")]
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// Value of the setting.
        value: String,
        /// Allowed values.
        expected: String,
    },
    /// The tokenizer has no file contents, so data cannot be tied to it.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A shard or index is cut short, was changed, or was written by another program.
    #[error("{}: {problem}; build the data again with `albert data build`", path.display())]
    Damaged {
        /// Damaged file.
        path: PathBuf,
        /// Reason, as the end of the message.
        problem: String,
    },
    /// A folder without an index.
    #[error("{}: no data in this folder (dataset.json is missing); build it with `albert data build`", path.display())]
    NoDataset {
        /// Folder.
        path: PathBuf,
    },
    /// The data was built with another tokenizer.
    #[error(
        "{}: tokenized with another tokenizer (fingerprint {found:016x}, this one has {expected:016x}); use the tokenizer that the data was built with, or build the data again", path.display()
    )]
    OtherTokenizer {
        /// Shard or index.
        path: PathBuf,
        /// Fingerprint in the file.
        found: u64,
        /// Fingerprint of this tokenizer.
        expected: u64,
    },
    /// The prefetch thread cannot be started.
    #[error("cannot start the prefetch thread ({0}); raise the limit on threads, or disable prefetch")]
    Thread(std::io::Error),
    /// A split without a training instance under the settings.
    #[error("the {split} split has no instance: {reason}")]
    NoInstances {
        /// Name of the split.
        split: &'static str,
        /// Reason and remedy, for the message.
        reason: String,
    },
}

impl DataError {
    /// Wraps an error of the operating system with the file and the action.
    pub(super) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| match source.kind() {
            std::io::ErrorKind::NotFound if action == "read" => Self::Missing { path },
            _ => EngineError::io(path, action, source).into(),
        }
    }

    /// A text that cannot be used.
    pub(super) fn input(at: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Input { at: at.into(), problem: problem.into() }
    }

    /// A setting out of range.
    pub(super) fn setting(name: &'static str, value: impl ToString, expected: impl Into<String>) -> Self {
        Self::Setting { name, value: value.to_string(), expected: expected.into() }
    }

    /// A damaged file.
    pub(super) fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_path_buf(), problem: problem.into() }
    }
}
