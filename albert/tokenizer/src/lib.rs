//! Unigram tokenizer: text to piece ids and back, and the training of its vocabulary.
//!
//! ```text
//! text ── clean ──> words ── best segmentation ──> pieces ── digit-comma rule ──> ids
//! "Hello, World"    ▁hello, ▁world                 ▁hello  ,  ▁world              [10975, 15, 126]
//! ```
//!
//! Each piece has a log-probability, and a word is split into the pieces with the greatest sum. `▁` (U+2581) marks the
//! start of a word, so joining the pieces restores the text.
//!
//! ```
//! use albert_tokenizer::{TrainerConfig, train};
//!
//! let lines = ["the cat sat on the mat", "the rat sat on the cat", "a cat, a rat, a mat"];
//! let config = TrainerConfig { vocab_size: 32, ..TrainerConfig::default() };
//! let tokenizer = train(lines, &config, |_| ())?;
//!
//! let ids = tokenizer.encode("The cat sat.")?;
//! assert_eq!(tokenizer.decode(&ids)?, "the cat sat.");
//! let json = tokenizer.to_json()?; // for `Tokenizer::from_json` and for transformers
//! # assert!(json.contains("Unigram"));
//! # Ok::<(), albert_tokenizer::TokenizerError>(())
//! ```
//!
//! Results of training and encoding do not depend on the number of threads. [`train`] and [`Tokenizer::encode_batch`] run
//! on the current rayon pool.
//!
//! | file              | content                                                        |
//! |-------------------|----------------------------------------------------------------|
//! | `clean.rs`        | text cleaning: white space, NFKD, accents, lower case, offsets |
//! | `vocabulary.rs`   | pieces, kinds, checks, word starts                             |
//! | `trie.rs`         | double-array trie: all pieces that start at a position         |
//! | `lattice.rs`      | Viterbi search, in f64 and in SentencePiece's f32              |
//! | `unigram.rs`      | combination of text rules, lattice and digit-comma rule        |
//! | `encoder.rs`      | word cache for large texts                                     |
//! | `load.rs`         | files and folders, recognized by content                       |
//! | `settings.rs`     | settings of a folder: class, case, length, added words         |
//! | `added.rs`        | words added to a unigram vocabulary                            |
//! | `frame.rs`        | special pieces around a text and around a pair                 |
//! | `file.rs`         | our `tokenizer.json` in the Hugging Face layout                |
//! | `sentencepiece/`  | SentencePiece: messages, normalizer, character map             |
//! | `spiece.rs`       | reading and writing of `spiece.model`                          |
//! | `hugging_face.rs` | third-party `tokenizer.json` and `vocab.txt`                   |
//! | `bounds.rs`       | bounds on third-party pipelines                                |
//! | `train/`          | vocabulary trainer                                             |
//!
//! Sources: Kudo 2018 (unigram model), Kudo and Richardson 2018 (SentencePiece), the released ALBERT `tokenization.py`
//! (cleaning, digit-comma rule, word starts). As in the released code, special pieces typed in a text are text;
//! [`Tokenizer::encode_with_specials`] encodes them as special pieces.
//!
//! # Precedence of files
//! A `tokenizer.json` cannot express all rules of a `spiece.model`, so the ids of the two differ for unusual text (digits
//! with commas, odd white space, marks of combining class 0, near ties).
//!
//! | files in the folder                                | ids are those of                                        |
//! |----------------------------------------------------|---------------------------------------------------------|
//! | `tokenizer.json`, with or without a `spiece.model` | the fast tokenizer of `transformers` with that file     |
//! | `spiece.model` alone                               | Google's code: the model and `preprocess_text`          |
//! | both, from [`Tokenizer::to_files`]                 | the `spiece.model`: `ids_by` in `tokenizer_config.json` |
//! | our own `tokenizer.json`                           | our cleaning and search; same ids as `transformers`     |
//!
//! | source of `[MASK]` typed in text, to [`Tokenizer::encode`]        | result  |
//! |-------------------------------------------------------------------|---------|
//! | our `tokenizer.json`, a `spiece.model`, a file converted from one | text    |
//! | third-party `tokenizer.json` and `vocab.txt`, `transformers`      | special |
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![forbid(unsafe_code)]

mod added;
mod bounds;
mod clean;
mod encoder;
mod error;
mod file;
mod frame;
mod hugging_face;
mod lattice;
mod load;
mod sentencepiece;
mod settings;
mod spiece;
mod train;
mod trie;
mod unigram;
mod vocabulary;

#[cfg(test)]
mod tests;

use rayon::prelude::*;

pub use clean::{Cleaned, Cleaning, Normalization};
pub use encoder::Encoder;
pub use error::TokenizerError;
pub use frame::Frame;
pub use hugging_face::WordPiece;
pub use train::{Loss, LossKind, Progress, TrainerConfig, WordCounts, train, train_on_words};
pub use vocabulary::{Piece, PieceKind, SPECIAL_PIECES, SpecialIds};

use added::Added;
use hugging_face::HuggingFace;
use unigram::{TextRules, Unigram};
use vocabulary::Vocabulary;

/// Replaces the space before a word.
pub const WORD_MARK: char = '\u{2581}';

/// Rule for pieces that end in a digit and a comma, such as `▁2010,`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DigitComma {
    /// The comma is a separate piece, and the number is encoded a second time as part of the same word.
    #[default]
    Intended,
    /// As in the released code under Python 3: in the middle of a word, the number is prefixed with a word mark.
    Released,
    /// Pieces are unchanged.
    Off,
}

/// Pieces of a text and their positions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Encoding {
    /// Piece ids.
    pub ids: Vec<u32>,
    /// For each piece, its bytes `start..end` of the source text. White space before a word does not belong to a piece; a
    /// lone `▁` has an empty range.
    pub offsets: Vec<(usize, usize)>,
}

/// Tokenizer: text to ids and back.
///
/// | loaded from                             | behavior                                                             |
/// |-----------------------------------------|----------------------------------------------------------------------|
/// | our `tokenizer.json`                    | our cleaning and unigram search, as trained                          |
/// | `spiece.model`                          | Google's: `preprocess_text`, SentencePiece, [`DigitComma::Intended`] |
/// | any other `tokenizer.json`, `vocab.txt` | Hugging Face's fast tokenizers                                       |
#[derive(Debug, Clone)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    model: Model,
    frame: Frame,
    /// Words added to a unigram vocabulary.
    added: Option<Box<Added>>,
    /// Maximum number of tokens of a sequence, if the folder limits them.
    longest: Option<usize>,
    /// True if long texts are truncated at the start.
    cuts_left: bool,
}

/// Segmentation of a text.
#[derive(Debug, Clone)]
enum Model {
    Unigram(Box<Unigram>),
    HuggingFace(Box<HuggingFace>),
}

impl Tokenizer {
    /// Creates a tokenizer from the given pieces; a piece's position is its id.
    ///
    /// # Errors
    /// A piece is empty, repeated, spans words or has no finite score, or a special piece is missing.
    pub fn from_pieces(pieces: Vec<Piece>, cleaning: Cleaning) -> Result<Self, TokenizerError> {
        cleaning.check()?;
        let mut vocabulary = Vocabulary::of_unigram(pieces)?;
        vocabulary.check_own()?;
        if cleaning.normalization != Normalization::Released {
            vocabulary.find_word_starts();
        }
        let model = Unigram::new(&vocabulary, TextRules::Own(cleaning), DigitComma::default())?;
        Ok(Self::new(vocabulary, Model::Unigram(Box::new(model))))
    }

    /// Creates a tokenizer with BERT's frame and no limits.
    fn new(vocabulary: Vocabulary, model: Model) -> Self {
        let frame = Frame::of_bert(vocabulary.specials.cls, vocabulary.specials.sep);
        Self { vocabulary, model, frame, added: None, longest: None, cuts_left: false }
    }

    /// Special pieces around a text and around a pair.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Maximum number of tokens of a sequence, including special pieces, if the folder limits them (`model_max_length`).
    pub fn longest(&self) -> Option<usize> {
        self.longest
    }

    /// Truncates the pieces of a text to `most`: at its end, or at its start with the folder's `truncation_side`.
    pub fn cut(&self, ids: &mut Vec<u32>, most: usize) {
        match ids.len().saturating_sub(most) {
            extra if self.cuts_left => drop(ids.drain(..extra)),
            _ => ids.truncate(most),
        }
    }

    /// Converts texts to lower case before all other rules.
    ///
    /// # Errors
    /// [`TokenizerError::Pipeline`] if a third-party tokenizer does not support it, [`TokenizerError::Vocabulary`] if
    /// a unigram vocabulary keeps case.
    pub fn lowercase_first(&mut self) -> Result<(), TokenizerError> {
        let keeps_case = self.cleaning().is_some_and(|cleaning| !cleaning.lowercase);
        match &mut self.model {
            Model::HuggingFace(model) => model.lowercase_first(),
            Model::Unigram(_) if keeps_case => Err(TokenizerError::Vocabulary(
                "do_lower_case is true, but this tokenizer keeps case; expected one of them".to_owned(),
            )),
            Model::Unigram(_) => Ok(()),
        }
    }

    /// Sets the rule for pieces such as `▁2010,`. It is not stored in files; third-party tokenizers do not have it.
    #[must_use]
    pub fn with_digit_comma(mut self, rule: DigitComma) -> Self {
        if let Model::Unigram(model) = &mut self.model {
            model.set_digit_comma(&self.vocabulary, rule);
        }
        self
    }

    /// Vocabulary size V, the number of pieces.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.pieces.len()
    }

    /// Checks that a model with `model` rows in its table fits the tokenizer. Up to 127 additional rows are padding to a
    /// multiple of 8, 64 or 128.
    ///
    /// # Errors
    /// [`TokenizerError::VocabularySize`] if not.
    pub fn expect_vocab_size(&self, model: usize) -> Result<(), TokenizerError> {
        const MOST_PADDING: usize = 127;
        let pieces = self.vocab_size();
        if (pieces..=pieces + MOST_PADDING).contains(&model) {
            Ok(())
        } else {
            Err(TokenizerError::VocabularySize { pieces, model })
        }
    }

    /// Checks that all ids are in the vocabulary.
    ///
    /// # Errors
    /// [`TokenizerError::Id`] for the first id outside.
    pub fn check_ids(&self, ids: &[u32]) -> Result<(), TokenizerError> {
        match ids.iter().find(|&&id| id as usize >= self.vocab_size()) {
            Some(&id) => Err(TokenizerError::Id { id, last: self.vocab_size() - 1 }),
            None => Ok(()),
        }
    }

    /// All pieces, by id.
    pub fn pieces(&self) -> &[Piece] {
        &self.vocabulary.pieces
    }

    /// Text of a piece.
    ///
    /// # Panics
    /// If `id` is not below [`Self::vocab_size`].
    pub fn piece(&self, id: u32) -> &str {
        &self.vocabulary.pieces[id as usize].text
    }

    /// Id of the piece with the text `piece`.
    pub fn id(&self, piece: &str) -> Option<u32> {
        self.vocabulary.id(piece)
    }

    /// True if a piece is special: one of [`Self::specials`], or a control piece.
    pub fn is_special(&self, id: u32) -> bool {
        let SpecialIds { pad, unk, cls, sep, mask } = self.specials();
        let kind = self.vocabulary.pieces.get(id as usize).map(|piece| piece.kind);
        [pad, unk, cls, sep, mask].contains(&id) || kind == Some(PieceKind::Control)
    }

    /// Ids of the special pieces.
    pub fn specials(&self) -> SpecialIds {
        self.vocabulary.specials
    }

    /// Cleaning before the segmentation: ours, or Google's preprocessing for a SentencePiece model. `None` for third-party
    /// tokenizers.
    pub fn cleaning(&self) -> Option<Cleaning> {
        match &self.model {
            Model::Unigram(model) => Some(match &model.text {
                TextRules::Own(cleaning) => *cleaning,
                TextRules::SentencePiece { normalizer, .. } => normalizer.cleaning(),
            }),
            Model::HuggingFace(_) => None,
        }
    }

    /// True if a piece starts a word, by the released rule for whole-word masking, which includes every piece with a letter
    /// that is not ASCII; by a rule for all scripts if the normalization is not [`Normalization::Released`]; in vocabularies
    /// with `##`, if the piece has no `##`. Callers exclude special pieces.
    ///
    /// # Panics
    /// If `id` is not below [`Self::vocab_size`].
    pub fn is_word_start(&self, id: u32) -> bool {
        self.vocabulary.word_start[id as usize]
    }

    /// Encodes `text`, without `[CLS]` and `[SEP]`.
    ///
    /// # Errors
    /// [`TokenizerError::Pipeline`] if a third-party tokenizer fails; our vocabularies and SentencePiece models can encode
    /// every text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 4);
        self.encode_into(text, &mut ids)?;
        Ok(ids)
    }

    /// Appends the ids of `text` to `out`, without `[CLS]` and `[SEP]`. For large texts, an [`Encoder`] is faster.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_into(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        match &self.model {
            Model::Unigram(model) if self.added.is_none() => model.encode_into(&self.vocabulary, text, out),
            _ => out.extend(self.encode_with_offsets(text)?.ids),
        }
        Ok(())
    }

    /// Encodes `text` with the source bytes of each id.
    ///
    /// ```
    /// # use albert_tokenizer::{TrainerConfig, train};
    /// # let config = TrainerConfig { vocab_size: 32, ..TrainerConfig::default() };
    /// # let tokenizer = train(["the cat sat on the mat", "the rat sat on the cat", "a cat, a rat, a mat"], &config, |_| ())?;
    /// let text = "The cat";
    /// let encoding = tokenizer.encode_with_offsets(text)?;
    /// let last = encoding.offsets[encoding.ids.len() - 1];
    /// assert!("The cat".ends_with(&text[last.0..last.1]));
    /// # Ok::<(), albert_tokenizer::TokenizerError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_with_offsets(&self, text: &str) -> Result<Encoding, TokenizerError> {
        let mut encoding = Encoding::default();
        self.encode_part(text, 0, true, &mut encoding)?;
        Ok(encoding)
    }

    /// Encodes `[CLS] text [SEP]`, or the form defined by the post-processor of a third-party tokenizer.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_single(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.frame.one(&self.encode(text)?))
    }

    /// As [`Self::encode_with_offsets`], but `[MASK]` and all other special pieces typed in `text` are special (as always in
    /// third-party tokenizers). White space before `[MASK]` belongs to it; in our vocabularies, text adjacent to a special
    /// piece continues the word.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_with_specials(&self, text: &str) -> Result<Encoding, TokenizerError> {
        if let Model::HuggingFace(model) = &self.model
            && !model.specials_are_text
        {
            return model.encode(text);
        }
        let mut encoding = Encoding::default();
        let (mut from, mut touches) = (0, false);
        while let Some((at, special)) = next_special(text, from) {
            self.encode_part(&text[from..at], from, !touches, &mut encoding)?;
            encoding.ids.push(self.vocabulary.id(special).unwrap_or(self.specials().unk));
            encoding.offsets.push((at, at + special.len()));
            from = at + special.len();
            touches = true;
        }
        self.encode_part(&text[from..], from, !touches, &mut encoding)?;
        Ok(encoding)
    }

    /// Appends the encoding of the part of a text that starts at its byte `from`.
    fn encode_part(
        &self,
        part: &str,
        from: usize,
        opens_word: bool,
        encoding: &mut Encoding,
    ) -> Result<(), TokenizerError> {
        match (&self.model, &self.added) {
            (Model::Unigram(model), None) => model.encode_part(&self.vocabulary, part, from, opens_word, encoding),
            (Model::Unigram(model), Some(added)) => {
                for (bytes, word) in added.split(part) {
                    let Some(id) = word else {
                        let opens_word = opens_word || bytes.start > 0;
                        model.encode_part(
                            &self.vocabulary,
                            &part[bytes.clone()],
                            from + bytes.start,
                            opens_word,
                            encoding,
                        );
                        continue;
                    };
                    encoding.ids.push(id);
                    encoding.offsets.push((from + bytes.start, from + bytes.end));
                }
            }
            (Model::HuggingFace(model), _) => {
                let found = model.encode(part)?;
                encoding.ids.extend(found.ids);
                encoding.offsets.extend(found.offsets.into_iter().map(|(start, end)| (from + start, from + end)));
            }
        }
        Ok(())
    }

    /// Encodes many texts, in their order, on all threads of the current rayon pool.
    ///
    /// # Errors
    /// As [`Self::encode`], for the first text that fails.
    pub fn encode_batch<S: AsRef<str> + Sync>(&self, texts: &[S]) -> Result<Vec<Vec<u32>>, TokenizerError> {
        texts
            .par_iter()
            .with_min_len(256)
            .map_init(
                || Encoder::new(self),
                |encoder, text| {
                    let mut ids = Vec::with_capacity(text.as_ref().len() / 4 + 4);
                    encoder.encode_into(text.as_ref(), &mut ids)?;
                    Ok(ids)
                },
            )
            .collect()
    }

    /// Decodes `ids`: joined pieces, word marks as spaces, without leading space. Control pieces are omitted; unknown
    /// pieces and ids outside the vocabulary are `<unk>`. Third-party tokenizers use their own decoder.
    ///
    /// # Errors
    /// [`TokenizerError::Pipeline`] if a third-party tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        match &self.model {
            Model::Unigram(_) => Ok(self.join(ids)),
            Model::HuggingFace(model) => model.decode(ids),
        }
    }

    fn join(&self, ids: &[u32]) -> String {
        let mut text = Vec::new();
        for &id in ids {
            let unknown = self.specials().unk as usize;
            let piece = &self.vocabulary.pieces.get(id as usize).unwrap_or(&self.vocabulary.pieces[unknown]);
            match piece.kind {
                PieceKind::Control => {}
                PieceKind::Byte => text.extend(lattice::byte_of(&piece.text)),
                _ => text.extend_from_slice(piece.text.replace(WORD_MARK, " ").as_bytes()),
            }
        }
        if text.starts_with(b" ") {
            text.remove(0);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Natural log-probability of the best segmentation of `text`: the sum over its words, before the digit-comma rule.
    /// `None` for third-party tokenizers.
    pub fn log_likelihood(&self, text: &str) -> Option<f64> {
        match &self.model {
            Model::Unigram(model) => Some(model.log_likelihood(text)),
            Model::HuggingFace(_) => None,
        }
    }
}

/// Finds the first special piece in `text` at or after byte `from`.
fn next_special(text: &str, from: usize) -> Option<(usize, &'static str)> {
    text[from..].match_indices(['<', '[']).find_map(|(at, _)| {
        let rest = &text[from + at..];
        SPECIAL_PIECES.into_iter().find(|special| rest.starts_with(special)).map(|special| (from + at, special))
    })
}
