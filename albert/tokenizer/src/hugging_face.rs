//! Third-party tokenizers, run by Hugging Face's `tokenizers` library.
//!
//! A `tokenizer.json` describes any pipeline (BERT's WordPiece, byte-level BPE, ALBERT as `transformers` converts it). The
//! library that defines the format runs it, so ids are those of the fast tokenizers. A BERT `vocab.txt` becomes such a
//! pipeline: clean, separate CJK characters, optionally lower-case and strip accents, split at white space and punctuation,
//! then longest piece first; words over 100 characters are unknown.
//!
//! Truncation and padding of the pipeline are disabled, as in `transformers`. Special pieces typed in text are special, except
//! in files that this crate wrote (`file.rs`).
//! Cost: about 2 MB/s a core.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use tokenizers::{DecoderWrapper, ModelWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl};

use super::bounds::{Limited, check_pipeline, watched};
use super::file::{added_token, is_written_from_spiece, template};
use super::vocabulary::{Piece, PieceKind, Vocabulary};
use super::{Encoding, Model, Tokenizer, TokenizerError};

/// Options of a BERT `vocab.txt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordPiece {
    /// Lower-case the text.
    pub lowercase: bool,
    /// Drop accents; `None`: as `lowercase`.
    pub strip_accents: Option<bool>,
    /// Make every CJK ideograph a word.
    pub split_chinese: bool,
}

impl Default for WordPiece {
    fn default() -> Self {
        Self { lowercase: true, strip_accents: None, split_chinese: true }
    }
}

/// A pipeline of the library whose normalizer is bounded.
type Pipeline = TokenizerImpl<ModelWrapper, Limited, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// A pipeline of the library.
#[derive(Debug, Clone)]
pub(super) struct HuggingFace {
    pipeline: Pipeline,
    /// True if special pieces typed in text are text, as in all files of this crate.
    pub(super) specials_are_text: bool,
}

/// Most ids for each piece: a table by id must stay in proportion to the file.
const SPARSE: usize = 16;

impl Tokenizer {
    /// A pipeline from the text of a `tokenizer.json` and its parsed value.
    pub(super) fn from_pipeline(text: &str, root: Value, path: &Path) -> Result<Self, TokenizerError> {
        let file = TokenizerError::file(path);
        let refuse =
            |reason: String| file(format!("not a tokenizer.json that Hugging Face's tokenizers can read ({reason})"));
        check_pipeline(&root, text.len()).map_err(refuse)?;
        let specials_are_text = is_written_from_spiece(&root);
        // Before the library allocates its own tree.
        drop(root);
        let mut pipeline: Pipeline = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
        pipeline.with_truncation(None).map_err(|error| refuse(error.to_string()))?;
        pipeline.with_padding(None);
        pipeline.set_encode_special_tokens(specials_are_text);
        let by_text = pipeline.get_vocab(true);
        let size = by_text.values().max().map_or(0, |&id| id as usize + 1);
        if size > SPARSE * (by_text.len() + 64) {
            return Err(refuse(format!("{} pieces with ids up to {}", by_text.len(), size - 1)));
        }
        let mut pieces = vec![Piece::new("", 0.0, PieceKind::Unused); size];
        let mut ids: HashMap<Box<str>, u32> = HashMap::with_capacity(by_text.len());
        let added = pipeline.get_added_tokens_decoder();
        for (text, id) in by_text {
            let is_special = added.get(&id).is_some_and(|token| token.special);
            let kind = if is_special { PieceKind::Control } else { PieceKind::Normal };
            ids.insert(text.as_str().into(), id);
            pieces[id as usize] = Piece::new(text, 0.0, kind);
        }
        let mut vocabulary = Vocabulary::with_ids(pieces, ids, None).map_err(TokenizerError::file(path))?;
        let unknown = vocabulary.specials.unk;
        vocabulary.pieces[unknown as usize].kind = PieceKind::Unknown;
        Ok(Self { vocabulary, model: Model::HuggingFace(Box::new(HuggingFace { pipeline, specials_are_text })) })
    }

    /// Reads the content of a BERT `vocab.txt`, a piece a line; `path` is for messages.
    ///
    /// # Errors
    /// If a piece is repeated or a special piece is missing.
    pub fn from_wordpiece(vocab: &str, how: WordPiece, path: &Path) -> Result<Self, TokenizerError> {
        let in_file = |message: String| TokenizerError::file(path)(TokenizerError::Vocabulary(message));
        let lines = vocab.strip_suffix('\n').unwrap_or(vocab).split('\n');
        let mut ids = Map::new();
        for (id, line) in lines.enumerate() {
            let piece = line.strip_suffix('\r').unwrap_or(line);
            if let Some(first) = ids.insert(piece.to_owned(), json!(id)) {
                let first = first.as_u64().unwrap_or_default() + 1;
                return Err(in_file(format!("line {} repeats line {first}, {piece:?}", id + 1)));
            }
        }
        let mut special_ids = Vec::new();
        for special in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] {
            let Some(id) = ids.get(special) else {
                return Err(in_file(format!("no line {special}; it is not a BERT vocabulary")));
            };
            special_ids.push((special, id.clone()));
        }
        let pipeline = wordpiece_pipeline(ids, &special_ids, how);
        Self::from_pipeline(&pipeline.to_string(), pipeline, path)
    }
}

/// The pipeline of `BertTokenizerFast`.
fn wordpiece_pipeline(ids: Map<String, Value>, special_ids: &[(&str, Value)], how: WordPiece) -> Value {
    let added: Vec<Value> = special_ids.iter().map(|(text, id)| added_token(id, text, false)).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": how.split_chinese,
                       "strip_accents": how.strip_accents, "lowercase": how.lowercase},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template([2, 3].map(|at| special_ids[at].clone())),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": ids},
    })
}

impl HuggingFace {
    /// The ids of `text` without those that the post-processor adds.
    pub(super) fn encode(&self, text: &str) -> Result<Encoding, TokenizerError> {
        let encoding = watched(|| self.pipeline.encode(text, false)).map_err(failed("encode", text.len()))?;
        Ok(Encoding { ids: encoding.get_ids().to_vec(), offsets: encoding.get_offsets().to_vec() })
    }

    /// The ids of `text` with those that the post-processor adds.
    pub(super) fn encode_single(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = watched(|| self.pipeline.encode(text, true)).map_err(failed("encode", text.len()))?;
        Ok(encoding.get_ids().to_vec())
    }

    pub(super) fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.pipeline.decode(ids, true).map_err(failed("decode", size_of_val(ids)))
    }

    /// The pipeline as a `tokenizer.json`.
    pub(super) fn to_json(&self) -> Result<String, TokenizerError> {
        self.pipeline.to_string(true).map_err(failed("write as JSON", 0))
    }
}

/// Wraps an error of the library in `action` on so many bytes.
fn failed(action: &'static str, bytes: usize) -> impl FnOnce(tokenizers::Error) -> TokenizerError {
    move |error| TokenizerError::Pipeline { action, bytes, reason: error.to_string() }
}
