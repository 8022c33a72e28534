//! What can go wrong between a text file and a batch, each with what to do about it.

use std::path::{Path, PathBuf};

use crate::tokenizer::TokenizerError;

/// An error of the data path. Every message names the file (and line) or the setting, and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// An input file or pattern that matches nothing.
    #[error("{}: no such file; check the path, or quote a pattern such as \"texts/*.txt\"", path.display())]
    Missing {
        /// The path or pattern as it was given.
        path: PathBuf,
    },
    /// The operating system refused to read, write, rename or remove.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or directory concerned.
        path: PathBuf,
        /// What was tried: `read`, `write`, ...
        action: &'static str,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A file of ours could not be mapped or written.
    #[error(transparent)]
    File(#[from] engine::EngineError),
    /// A file that is no text.
    #[error("{name}: not a text file: {what}")]
    NotText {
        /// Name of the source as it was given.
        name: String,
        /// Kind of the file, and the remedy.
        what: &'static str,
    },
    /// A pipe or device that would have to be read twice.
    #[error(
        "{name}: a pipe or device gives its text once, and the held-out split of few documents takes two passes; write the \
         text to a file first, or set held_out = 0"
    )]
    ReadTwice {
        /// Name of the source as it was given.
        name: String,
    },
    /// Bytes that are not UTF-8.
    #[error("{name}:{line}: invalid UTF-8 at byte {byte} ({bytes}); re-encode the file or pass --lossy")]
    InvalidUtf8 {
        /// Name of the source as it was given.
        name: String,
        /// Line, counted from 1.
        line: u64,
        /// Byte in the line, counted from 1.
        byte: usize,
        /// The offending bytes, such as `0xC3 0x28`.
        bytes: String,
    },
    /// No source holds a sentence.
    #[error(
        "the corpus is empty: no sentence in {names}; give text with one sentence a line and blank lines between documents"
    )]
    EmptyCorpus {
        /// The sources that were read.
        names: String,
    },
    /// The text is there, but no sentence becomes a token.
    #[error(
        "the corpus gives no token: all {sentences} sentences are empty after cleaning; is this the right tokenizer for the text?"
    )]
    NoTokens {
        /// Sentences that were read.
        sentences: u64,
    },
    /// A split by document needs two different documents.
    #[error(
        "the corpus holds one distinct document, and the held-out split is by document; put blank lines between documents, add files, or set held_out = 0"
    )]
    OneDocument,
    /// A setting out of its range.
    #[error("{name} = {value}: expected {expected}")]
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// The value that it was given.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// The tokenizer cannot be written, so that data could not be tied to it.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The tokenizer gives up on a document.
    #[error("{name}:{line}: {source}")]
    Encode {
        /// Name of the source.
        name: String,
        /// First line of the document.
        line: u64,
        /// Why.
        source: Box<TokenizerError>,
    },
    /// The tokenizer gave an id outside its own vocabulary.
    #[error(
        "{name}:{line}: the tokenizer gave id {id}, but its vocabulary has {size} pieces; the tokenizer file is damaged"
    )]
    IdOutOfRange {
        /// Name of the source.
        name: String,
        /// First line of the document.
        line: u64,
        /// The id.
        id: u32,
        /// The vocabulary size.
        size: usize,
    },
    /// A shard or index that is cut short, changed or not ours.
    #[error("{}: {problem}; build the data again with `albert data build`", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A directory without a data index.
    #[error("{}: no data here (dataset.json is missing); build it with `albert data build`", path.display())]
    NoDataset {
        /// The directory.
        path: PathBuf,
    },
    /// Data that another tokenizer made.
    #[error(
        "{}: tokenized with another tokenizer (fingerprint {found:016x}, this one has {expected:016x}); use the tokenizer that the data was built with, or build the data again", path.display()
    )]
    OtherTokenizer {
        /// The shard or index.
        path: PathBuf,
        /// Fingerprint in the file.
        found: u64,
        /// Fingerprint of the tokenizer at hand.
        expected: u64,
    },
    /// The system gives no thread for making batches ahead.
    #[error("cannot start the thread that makes batches ahead ({0}); raise the limit on threads, or make none ahead")]
    Thread(std::io::Error),
    /// A split that gives no training instance under the settings.
    #[error("the {split} split gives no instance: {reason}")]
    NoInstances {
        /// Which split.
        split: &'static str,
        /// Why, and what to set.
        reason: String,
    },
}

impl DataError {
    /// Wraps an error of the operating system with the file and what was tried.
    pub(super) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| match source.kind() {
            std::io::ErrorKind::NotFound if action == "read" => Self::Missing { path },
            _ => Self::Io { path, action, source },
        }
    }

    /// A setting out of range.
    pub(super) fn setting(name: &'static str, value: impl ToString, expected: impl Into<String>) -> Self {
        Self::Setting { name, value: value.to_string(), expected: expected.into() }
    }

    /// A file that is not what it should be.
    pub(super) fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_path_buf(), problem: problem.into() }
    }
}
