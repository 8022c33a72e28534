//! Third-party tokenizers, run by Hugging Face's `tokenizers` library.
//!
//! A `tokenizer.json` describes any pipeline (BERT's WordPiece, byte-level BPE, ALBERT as converted by `transformers`). The
//! library that defines the format runs it, so ids are those of the fast tokenizers. A BERT `vocab.txt` becomes such a
//! pipeline: clean, separate CJK characters, optionally lower-case and strip accents, split at white space and punctuation,
//! then match the longest piece first; words over 100 characters are unknown.
//!
//! Truncation and padding of the pipeline are disabled, as in `transformers`. Special pieces typed in text are special, except
//! in files that this crate wrote (`file.rs`).
//! Cost: about 2 MB/s a core.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use tokenizers::{
    DecoderWrapper, ModelWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl, TruncationDirection,
};

use super::bounds::{Limited, check_pipeline, watched};
use super::file::{added_token, is_written_from_spiece, template};
use super::settings::{Names, Settings};
use super::vocabulary::{Piece, PieceKind, Vocabulary, sorted_by_text};
use super::{Encoding, Frame, Model, Tokenizer, TokenizerError};

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

/// A pipeline of the library with a bounded normalizer.
type Pipeline = TokenizerImpl<ModelWrapper, Limited, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// A pipeline of the library.
#[derive(Debug, Clone)]
pub(super) struct HuggingFace {
    pipeline: Pipeline,
    /// True if special pieces typed in text are text, as in all files of this crate.
    pub(super) specials_are_text: bool,
}

/// Maximum number of ids per piece: a table by id must be in proportion to the file.
const SPARSE: usize = 16;

impl Tokenizer {
    /// Creates a pipeline from the text of a `tokenizer.json` and its parsed value; `names` are those of special pieces.
    pub(super) fn from_pipeline(text: &str, root: Value, names: &Names, path: &Path) -> Result<Self, TokenizerError> {
        let file = TokenizerError::file(path);
        let refuse =
            |reason: String| file(format!("not a tokenizer.json that Hugging Face's tokenizers can read ({reason})"));
        check_pipeline(&root, text.len()).map_err(refuse)?;
        let specials_are_text = is_written_from_spiece(&root);
        // Free it before the library allocates its own tree.
        drop(root);
        let mut pipeline: Pipeline = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
        let cuts_left = pipeline.get_truncation().is_some_and(|how| how.direction == TruncationDirection::Left);
        pipeline.with_truncation(None).map_err(|error| refuse(error.to_string()))?;
        pipeline.with_padding(None);
        pipeline.set_encode_special_tokens(specials_are_text);
        let by_text = pipeline.get_vocab(true);
        let size = by_text.values().max().map_or(0, |&id| id as usize + 1);
        if size > SPARSE * (by_text.len() + 64) {
            return Err(refuse(format!("{} pieces with ids up to {}", by_text.len(), size - 1)));
        }
        let mut pieces = vec![Piece::new("", 0.0, PieceKind::Unused); size];
        let ids: BTreeSet<u32> = by_text.values().copied().collect();
        let added = pipeline.get_added_tokens_decoder();
        for (text, id) in by_text {
            let (token, piece) = (added.get(&id), &mut pieces[id as usize]);
            let kind = if token.is_some_and(|token| token.special) { PieceKind::Control } else { PieceKind::Normal };
            // Of texts with the same id, in any order, keep the added word, or the last one of the alphabet.
            if token.map_or(piece.text <= text, |token| token.content == text) {
                *piece = Piece::new(text, 0.0, kind);
            }
        }
        let ids = sorted_by_text(&pieces, ids);
        let mut vocabulary = Vocabulary::with_ids(pieces, ids, None, names).map_err(TokenizerError::file(path))?;
        let unknown = vocabulary.specials.unk;
        vocabulary.pieces[unknown as usize].kind = PieceKind::Unknown;
        let frame = frame_of(&pipeline).map_err(|problem| file(format!("post_processor: {problem}")))?;
        let model = Model::HuggingFace(Box::new(HuggingFace { pipeline, specials_are_text }));
        Ok(Self { frame, cuts_left, ..Self::new(vocabulary, model) })
    }

    /// Reads the content of a BERT `vocab.txt`, one piece per line; `path` is for messages.
    ///
    /// # Errors
    /// A special piece is missing.
    pub fn from_wordpiece(vocab: &str, how: WordPiece, path: &Path) -> Result<Self, TokenizerError> {
        Self::wordpiece(vocab, how, &Settings::default(), path)
    }

    /// As [`Self::from_wordpiece`], with the settings of a folder.
    pub(super) fn from_wordpiece_with(vocab: &str, settings: &Settings, path: &Path) -> Result<Self, TokenizerError> {
        Self::wordpiece(vocab, WordPiece::of_folder(settings), settings, path)
    }

    fn wordpiece(vocab: &str, how: WordPiece, settings: &Settings, path: &Path) -> Result<Self, TokenizerError> {
        let in_file = |message: String| TokenizerError::file(path)(TokenizerError::Vocabulary(message));
        let lines = vocab.trim_end_matches(['\n', '\r']).split('\n');
        let (mut ids, mut count) = (Map::new(), 0);
        let mut replaced = Vec::new();
        // As in `transformers`, a repeated piece has the id of its last line.
        for line in lines {
            let piece = line.strip_suffix('\r').unwrap_or(line);
            replaced.extend(ids.insert(piece.to_owned(), json!(count)));
            count += 1;
        }
        // The library numbers added words starting at the number of pieces; cleaned text has no NUL.
        ids.extend(replaced.into_iter().map(|id| (format!("\0{id}"), id)));
        let mut special_ids = Vec::new();
        for (usual, given) in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].into_iter().zip(&settings.names) {
            let special = given.as_deref().unwrap_or(usual);
            let Some(id) = ids.get(special) else {
                return Err(in_file(format!("no line {special}; it is not a BERT vocabulary")));
            };
            special_ids.push((special, id.clone()));
        }
        let mut pipeline = wordpiece_pipeline(ids, &special_ids, how);
        settings.override_pipeline(&mut pipeline);
        Self::from_pipeline(&pipeline.to_string(), pipeline, &settings.names, path)
    }
}

/// Special pieces that the post-processor adds.
fn frame_of(pipeline: &Pipeline) -> Result<Frame, String> {
    const MARKS: [u32; 2] = [u32::MAX, u32::MAX - 1];
    let mark = |segment: u32| {
        let token = tokenizers::Token::new(MARKS[segment as usize], String::new(), (0, 0));
        tokenizers::Encoding::from_tokens(vec![token], segment)
    };
    let run = |pair: Option<tokenizers::Encoding>| {
        pipeline.post_process(mark(0), pair, true).map_err(|error| error.to_string())
    };
    let (one, two) = (run(None)?, run(Some(mark(1)))?);
    Frame::of_marks(MARKS, (one.get_ids(), one.get_type_ids()), (two.get_ids(), two.get_type_ids()))
}

/// Pipeline of `BertTokenizerFast`.
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
        "model": {"type": "WordPiece", "unk_token": special_ids[1].0, "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": ids},
    })
}

impl WordPiece {
    /// Settings of a folder, with the usual defaults.
    fn of_folder(settings: &Settings) -> Self {
        let usual = Self::default();
        Self {
            lowercase: settings.lowercase.unwrap_or(usual.lowercase),
            strip_accents: settings.strip_accents,
            split_chinese: settings.split_chinese.unwrap_or(usual.split_chinese),
        }
    }
}

impl HuggingFace {
    /// Changes texts to lower case before the normalizer of the file.
    pub(super) fn lowercase_first(&mut self) -> Result<(), TokenizerError> {
        let own = self.pipeline.get_normalizer().cloned();
        let changed = Limited::lowercase_before(own);
        self.pipeline.with_normalizer(Some(changed)).map_err(failed("change the normalizer of", 0))?;
        Ok(())
    }

    /// Ids of `text`, without those that the post-processor adds.
    pub(super) fn encode(&self, text: &str) -> Result<Encoding, TokenizerError> {
        let encoding = watched(|| self.pipeline.encode(text, false)).map_err(failed("encode", text.len()))?;
        Ok(Encoding { ids: encoding.get_ids().to_vec(), offsets: encoding.get_offsets().to_vec() })
    }

    pub(super) fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.pipeline.decode(ids, true).map_err(failed("decode", size_of_val(ids)))
    }

    /// Serializes the pipeline as a `tokenizer.json`.
    pub(super) fn to_json(&self) -> Result<String, TokenizerError> {
        self.pipeline.to_string(true).map_err(failed("write as JSON", 0))
    }
}

/// Wraps an error of the library in `action` on an input of `bytes` bytes.
fn failed(action: &'static str, bytes: usize) -> impl FnOnce(tokenizers::Error) -> TokenizerError {
    move |error| TokenizerError::Pipeline { action, bytes, reason: error.to_string() }
}
