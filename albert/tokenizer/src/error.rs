//! Errors of the tokenizer.

use std::path::PathBuf;

/// An error of loading, saving, building or training a tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file could not be read.
    #[error("{}: cannot read the file: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file is not JSON: cut short, damaged, or another kind of file.
    #[error("{}: not valid JSON ({reason}); the file is cut short or damaged, restore it or train it again", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's message with line and column.
        reason: String,
    },
    /// The file is JSON, but a key is missing, has the wrong type, or asks for something this program does not do.
    #[error("{}: {key}: expected {expected}, found {found}", .path.display())]
    Layout {
        /// The file.
        path: PathBuf,
        /// The place inside the file, such as `model.vocab[17]`.
        key: String,
        /// What belongs there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The file is no SentencePiece model, is damaged, or asks for something this program does not do.
    #[error("{}: {reason}", .path.display())]
    Spiece {
        /// The file.
        path: PathBuf,
        /// What is wrong, and at which byte.
        reason: String,
    },
    /// The `tokenizers` library refuses the file.
    #[error("{}: not a tokenizer.json that Hugging Face's tokenizers can read ({reason})", .path.display())]
    HuggingFace {
        /// The file.
        path: PathBuf,
        /// What the library says.
        reason: String,
    },
    /// A `tokenizer.json` of other origin cannot do what it was asked for.
    #[error("the tokenizer cannot {action} {bytes} bytes: {reason}")]
    Pipeline {
        /// What it was to do.
        action: &'static str,
        /// Size of the input.
        bytes: usize,
        /// What the `tokenizers` library says.
        reason: String,
    },
    /// The file is of no kind that is known here.
    #[error("{}: neither a tokenizer.json, a spiece.model nor a BERT vocab.txt; {what}", .path.display())]
    Unrecognized {
        /// The file.
        path: PathBuf,
        /// What it is, where that can be told.
        what: &'static str,
    },
    /// A folder without any tokenizer file.
    #[error("{}: no {expected} in this folder; put the model's tokenizer file there", .path.display())]
    NoTokenizer {
        /// The folder.
        path: PathBuf,
        /// The names that were looked for.
        expected: &'static str,
    },
    /// The tokenizer cannot be written in this format.
    #[error("this tokenizer cannot be written as {format}: {reason}")]
    Export {
        /// The format.
        format: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// The tokenizer is not the one that belongs to the model.
    #[error(
        "the tokenizer has {pieces} pieces and the model {model}; use the tokenizer that the model was trained with"
    )]
    VocabularySize {
        /// Pieces of the tokenizer.
        pieces: usize,
        /// V of the model.
        model: usize,
    },
    /// An id that no piece has.
    #[error("id {id} is not in the vocabulary; its ids are 0 to {last}")]
    Id {
        /// The id.
        id: u32,
        /// The last id.
        last: usize,
    },
    /// The pieces do not make a vocabulary: no unknown piece, a duplicate, a piece that spans two words, ...
    #[error("vocabulary: {0}")]
    Vocabulary(String),
    /// The pieces in a file do not make a vocabulary.
    #[error("{}: {source}", .path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with its pieces.
        source: Box<TokenizerError>,
    },
    /// A setting of the trainer makes no sense.
    #[error("tokenizer setting {name} = {value}: {expected}")]
    Setting {
        /// The setting's name in [`super::TrainerConfig`].
        name: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
    /// The text holds nothing to learn from.
    #[error(
        "no text to train a vocabulary on: {lines} lines read, {skipped} of them longer than {limit} bytes and skipped"
    )]
    NoText {
        /// Lines read.
        lines: u64,
        /// Lines skipped for their length.
        skipped: u64,
        /// The limit, [`super::TrainerConfig::max_line_bytes`].
        limit: usize,
    },
    /// The text cannot give as many pieces as asked for.
    #[error("vocab_size {asked} is more than this text can give; ask for at most {most}, or train on more text")]
    TooManyPieces {
        /// Pieces asked for.
        asked: usize,
        /// The largest vocabulary that the text gives with these settings.
        most: usize,
    },
    /// The special pieces and the characters that must be covered do not fit.
    #[error(
        "vocab_size {asked} is too small: {special} special pieces and {characters} characters (coverage {coverage}) \
         need {least}"
    )]
    TooFewPieces {
        /// Pieces asked for.
        asked: usize,
        /// Control, unknown and user-defined pieces.
        special: usize,
        /// Required characters.
        characters: usize,
        /// [`super::TrainerConfig::character_coverage`].
        coverage: f64,
        /// The smallest size that works.
        least: usize,
    },
}
