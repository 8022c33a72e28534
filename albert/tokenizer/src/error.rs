//! Errors of the tokenizer.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Error of loading, building, training or running a tokenizer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A file cannot be read or is not a usable tokenizer.
    #[error("{}: {problem}", .path.display())]
    File {
        /// File or folder.
        path: PathBuf,
        /// The problem and its remedy.
        problem: String,
    },
    /// A third-party tokenizer failed.
    #[error("the tokenizer cannot {action} {bytes} bytes: {reason}")]
    Pipeline {
        /// Name of the failed action.
        action: &'static str,
        /// Size of the input.
        bytes: usize,
        /// Message of the `tokenizers` library.
        reason: String,
    },
    /// The tokenizer cannot be written in this format.
    #[error("cannot write this tokenizer as {format}: {reason}")]
    Export {
        /// Name of the format.
        format: &'static str,
        /// Reason, as the end of the message.
        reason: &'static str,
    },
    /// The tokenizer does not belong to the model.
    #[error(
        "the tokenizer has {pieces} pieces and the model {model}; use the tokenizer that the model was trained with"
    )]
    VocabularySize {
        /// Number of pieces of the tokenizer.
        pieces: usize,
        /// Vocabulary size V of the model.
        model: usize,
    },
    /// An id is outside the vocabulary.
    #[error("id {id} is not in the vocabulary; its ids are 0 to {last}")]
    Id {
        /// Invalid id.
        id: u32,
        /// Last valid id.
        last: usize,
    },
    /// The pieces are not a valid vocabulary: no unknown piece, a duplicate, a piece that spans two words, ...
    #[error("vocabulary: {0}")]
    Vocabulary(String),
    /// A setting of the trainer is out of range.
    #[error("tokenizer setting {name} = {value}: {expected}")]
    Setting {
        /// Name in [`super::TrainerConfig`].
        name: &'static str,
        /// Value of the setting.
        value: String,
        /// Allowed values.
        expected: &'static str,
    },
    /// The text is empty.
    #[error(
        "no text to train a vocabulary on: {lines} lines read, {skipped} of them longer than {limit} bytes and skipped"
    )]
    NoText {
        /// Number of lines read.
        lines: u64,
        /// Number of lines skipped for their length.
        skipped: u64,
        /// [`super::TrainerConfig::max_line_bytes`].
        limit: usize,
    },
    /// The vocabulary size is too large for the text.
    #[error("vocab_size {asked} is too large for this text; use at most {most}, or train on more text")]
    TooManyPieces {
        /// Requested size.
        asked: usize,
        /// Maximum size for this text and these settings.
        most: usize,
    },
    /// The vocabulary size is too small for the special pieces and the required characters.
    #[error(
        "vocab_size {asked} is too small: {special} special pieces and {characters} characters (coverage {coverage}) \
         need {least}"
    )]
    TooFewPieces {
        /// Requested size.
        asked: usize,
        /// Number of control, unknown and user-defined pieces.
        special: usize,
        /// Number of required characters.
        characters: usize,
        /// [`super::TrainerConfig::character_coverage`].
        coverage: f64,
        /// Minimum size.
        least: usize,
    },
}

impl TokenizerError {
    /// Names the file of a problem.
    pub(super) fn file<P: Display>(path: &Path) -> impl Fn(P) -> Self {
        move |problem| Self::File { path: path.into(), problem: problem.to_string() }
    }

    /// Wraps an error of a JSON parser.
    pub(super) fn json<P: Display>(path: &Path) -> impl Fn(P) -> Self {
        let file = Self::file(path);
        move |reason| {
            file(format!("not valid JSON ({reason}); the file is cut short or damaged, restore it or train it again"))
        }
    }
}
