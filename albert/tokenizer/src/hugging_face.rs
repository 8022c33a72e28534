//! Tokenizers of other origin, through Hugging Face's `tokenizers` library.
//!
//! A `tokenizer.json` describes a pipeline of any kind (BERT's WordPiece, byte-level BPE, ALBERT as `transformers`
//! converts it). It is run by the library that defines it, so ids are those of the fast tokenizers. A BERT `vocab.txt` is
//! put into the same form: clean, space out CJK, lower-case and strip accents if asked, split at white space and
//! punctuation, then the longest piece first; words over 100 characters are unknown.
//!
//! The pipeline's truncation and padding are taken off, as `transformers` does. Special pieces typed in text are special,
//! but for files that we wrote ([`file`](super::file)).
//! Cost: about 2 MB/s a core.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use tokenizers::{DecoderWrapper, ModelWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl};

use super::bounds::{Limited, check_pipeline, watched};
use super::file::is_written_from_spiece;
use super::vocabulary::{Piece, PieceKind, Vocabulary};
use super::{Encoding, Model, Tokenizer, TokenizerError};

/// How a BERT `vocab.txt` is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordPiece {
    /// Lower-case everything.
    pub lowercase: bool,
    /// Drop accents; `None`: if lower-casing.
    pub strip_accents: Option<bool>,
    /// Every CJK ideograph is a word.
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
    /// Special pieces typed in text are text, as in our other files; the library takes them for special.
    pub(super) specials_are_text: bool,
}

/// Ids may be sparse, but not so much that a table by id is out of proportion to the file.
const SPARSE: usize = 16;

impl Tokenizer {
    /// A pipeline from the text of a `tokenizer.json`, and the same as a value.
    pub(super) fn from_pipeline(text: &str, root: Value, path: &Path) -> Result<Self, TokenizerError> {
        let refuse = |reason: String| TokenizerError::HuggingFace { path: path.into(), reason };
        check_pipeline(&root, text.len()).map_err(refuse)?;
        let specials_are_text = is_written_from_spiece(&root);
        // Its memory is not needed beside the library's.
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
        let in_file = |source| TokenizerError::InFile { path: path.into(), source: Box::new(source) };
        let mut vocabulary = Vocabulary::with_ids(pieces, ids, None).map_err(in_file)?;
        let unknown = vocabulary.specials.unk;
        vocabulary.pieces[unknown as usize].kind = PieceKind::Unknown;
        Ok(Self { vocabulary, model: Model::HuggingFace(Box::new(HuggingFace { pipeline, specials_are_text })) })
    }

    /// Reads the content of a BERT `vocab.txt`, a piece a line; `path` is for messages.
    ///
    /// # Errors
    /// If a piece is repeated or a special piece is missing.
    pub fn from_wordpiece(vocab: &str, how: WordPiece, path: &Path) -> Result<Self, TokenizerError> {
        let in_file = |message: String| TokenizerError::InFile {
            path: path.into(),
            source: Box::new(TokenizerError::Vocabulary(message)),
        };
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
                return Err(in_file(format!("no line {special}; this is no vocabulary of BERT's kind")));
            };
            special_ids.push((special, id.clone()));
        }
        let pipeline = wordpiece_pipeline(ids, &special_ids, how);
        Self::from_pipeline(&pipeline.to_string(), pipeline, path)
    }
}

/// The pipeline of `BertTokenizerFast`.
fn wordpiece_pipeline(ids: Map<String, Value>, special_ids: &[(&str, Value)], how: WordPiece) -> Value {
    let added: Vec<Value> = special_ids
        .iter()
        .map(|(text, id)| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    let special = |text: &str, segment: u32| json!({"SpecialToken": {"id": text, "type_id": segment}});
    let sequence = |name: &str, segment: u32| json!({"Sequence": {"id": name, "type_id": segment}});
    let in_template =
        |at: usize| json!({"id": special_ids[at].0, "ids": [special_ids[at].1], "tokens": [special_ids[at].0]});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": how.split_chinese,
                       "strip_accents": how.strip_accents, "lowercase": how.lowercase},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0)],
            "pair": [special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0), sequence("B", 1), special("[SEP]", 1)],
            "special_tokens": {"[CLS]": in_template(2), "[SEP]": in_template(3)},
        },
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

    /// `text`, or `text` and `pair`, with what the post-processor adds; ids and segments.
    pub(super) fn encode_finished(
        &self,
        text: &str,
        pair: Option<&str>,
    ) -> Result<(Vec<u32>, Vec<u8>), TokenizerError> {
        let encoding = watched(|| match pair {
            Some(pair) => self.pipeline.encode((text, pair), true),
            None => self.pipeline.encode(text, true),
        });
        let encoding = encoding.map_err(failed("encode", text.len() + pair.map_or(0, str::len)))?;
        let segments = encoding.get_type_ids().iter().map(|&segment| u8::from(segment > 0)).collect();
        Ok((encoding.get_ids().to_vec(), segments))
    }

    pub(super) fn decode(&self, ids: &[u32], skip_specials: bool) -> Result<String, TokenizerError> {
        self.pipeline.decode(ids, skip_specials).map_err(failed("decode", size_of_val(ids)))
    }

    /// The pipeline as a `tokenizer.json`.
    pub(super) fn to_json(&self) -> Result<String, TokenizerError> {
        self.pipeline.to_string(true).map_err(failed("write as JSON", 0))
    }
}

/// The library could not do `action` on so many bytes.
fn failed(action: &'static str, bytes: usize) -> impl FnOnce(tokenizers::Error) -> TokenizerError {
    move |error| TokenizerError::Pipeline { action, bytes, reason: error.to_string() }
}
