//! The tokeniser: text to piece ids and back, and the training of its vocabulary.
//!
//! ```text
//! text ── clean ──> words ── best segmentation ──> pieces ── rule for "1," ──> ids
//! "Hello, World"    ▁hello, ▁world                  ▁hello  ,  ▁world          [10975, 15, 126]
//! ```
//!
//! A unigram model: each piece has a log-probability, and a word is cut so that the sum over its pieces is greatest.
//! `▁` (U+2581) marks the start of a word, so pieces of a text joined together give the text back.
//!
//! | file            | what                                                             |
//! |-----------------|------------------------------------------------------------------|
//! | `clean.rs`      | white space, NFKD, accents, lower case, offsets into the source  |
//! | `vocabulary.rs` | pieces, kinds, checks, starts of words                           |
//! | `trie.rs`       | all pieces that start at a position, one memory access a byte    |
//! | `encoder.rs`    | Viterbi search, digit-comma rule, memo of words                  |
//! | `file.rs`       | `tokenizer.json` in the Hugging Face layout                      |
//! | `train/`        | the vocabulary trainer                                           |
//!
//! Sources: Kudo 2018 (unigram model), Kudo and Richardson 2018 (SentencePiece), the released ALBERT `tokenization.py`
//! (cleaning, digit-comma rule, start-of-word rule). As there, special pieces typed in text are text:
//! [`Tokenizer::encode_with_specials`] is for those who mean them.

mod clean;
mod encoder;
mod error;
mod file;
mod train;
mod trie;
mod vocabulary;

#[cfg(test)]
mod tests;

use rayon::prelude::*;

pub use clean::{Cleaned, Cleaning};
pub use encoder::Encoder;
pub use error::TokenizerError;
pub use train::{Progress, TrainerConfig, train};
pub use vocabulary::{Piece, PieceKind, SPECIAL_PIECES, SpecialIds};

use vocabulary::Vocabulary;

/// The character that stands for the space before a word.
pub const WORD_MARK: char = '\u{2581}';

/// What to do with pieces that end in a digit and a comma, such as `▁2010,`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DigitComma {
    /// The comma becomes a piece of its own, and the number is encoded anew as part of the same word.
    #[default]
    Intended,
    /// As the released code does under Python 3: in the middle of a word, the number gains a word mark.
    Released,
    /// The pieces are left whole.
    Off,
}

/// A text's pieces and where they are in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Encoding {
    /// Piece ids.
    pub ids: Vec<u32>,
    /// For each piece, the bytes `start..end` of the source text whose characters it covers. White space before a word
    /// belongs to no piece; a lone `▁` covers nothing.
    pub offsets: Vec<(usize, usize)>,
}

/// A vocabulary with its cleaning: everything needed to turn text into ids and back.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    cleaning: Cleaning,
    digit_comma: Vec<Option<Box<[u32]>>>,
}

impl Tokenizer {
    /// A tokeniser of the given pieces; a piece's position is its id.
    ///
    /// # Errors
    /// If a piece is empty, repeated, spans words or has no finite score, or if a special piece is missing.
    pub fn from_pieces(pieces: Vec<Piece>, cleaning: Cleaning) -> Result<Self, TokenizerError> {
        let vocabulary = Vocabulary::new(pieces)?;
        let digit_comma = Self::digit_comma_table(&vocabulary, DigitComma::default());
        Ok(Self { vocabulary, cleaning, digit_comma })
    }

    /// The same tokeniser under another rule for pieces such as `▁2010,`. The rule is not part of the saved file.
    #[must_use]
    pub fn with_digit_comma(mut self, rule: DigitComma) -> Self {
        self.digit_comma = Self::digit_comma_table(&self.vocabulary, rule);
        self
    }

    /// Number of pieces V.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.pieces.len()
    }

    /// All pieces, by id.
    pub fn pieces(&self) -> &[Piece] {
        &self.vocabulary.pieces
    }

    /// The text of a piece.
    ///
    /// # Panics
    /// If `id` is not below [`Self::vocab_size`].
    pub fn piece(&self, id: u32) -> &str {
        &self.vocabulary.pieces[id as usize].text
    }

    /// The id of a piece given by its text.
    pub fn id(&self, piece: &str) -> Option<u32> {
        self.vocabulary.ids.get(piece).copied()
    }

    /// The ids of the special pieces.
    pub fn specials(&self) -> SpecialIds {
        self.vocabulary.specials
    }

    /// How text is cleaned before it is cut.
    pub fn cleaning(&self) -> Cleaning {
        self.cleaning
    }

    /// Whether a piece starts a word, by the released rule on which whole-word masking rests. Special pieces are
    /// answered by the same rule; callers leave them out.
    ///
    /// # Panics
    /// If `id` is not below [`Self::vocab_size`].
    pub fn is_word_start(&self, id: u32) -> bool {
        self.vocabulary.word_start[id as usize]
    }

    /// The ids of `text`, without `[CLS]` and `[SEP]`.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 4);
        self.encode_into(text, &mut ids);
        ids
    }

    /// Appends the ids of `text` to `out`, without `[CLS]` and `[SEP]`. For much text, an [`Encoder`] is faster.
    pub fn encode_into(&self, text: &str, out: &mut Vec<u32>) {
        let first = out.len();
        encoder::with_scratch(|scratch| {
            let (mut word_bytes, mut pieces) = (std::mem::take(&mut scratch.word), std::mem::take(&mut scratch.pieces));
            self.cleaning.for_each_word(text, &mut word_bytes, |word| {
                self.segment_word(word, scratch, &mut pieces);
                for step in &pieces {
                    if step.id != self.vocabulary.specials.unk || out[first..].last() != Some(&step.id) {
                        out.push(step.id);
                    }
                }
            });
            (scratch.word, scratch.pieces) = (word_bytes, pieces);
        });
    }

    /// The ids of `text` and the source bytes that each covers.
    pub fn encode_with_offsets(&self, text: &str) -> Encoding {
        let mut encoding = Encoding::default();
        self.encode_part(text, 0, true, &mut encoding);
        encoding
    }

    /// `[CLS] text [SEP]`.
    pub fn encode_single(&self, text: &str) -> Vec<u32> {
        let SpecialIds { cls, sep, .. } = self.specials();
        let mut ids = vec![cls];
        self.encode_into(text, &mut ids);
        ids.push(sep);
        ids
    }

    /// `[CLS] a [SEP] b [SEP]` and the segment of each piece (0 up to the first `[SEP]`, then 1).
    pub fn encode_pair(&self, a: &str, b: &str) -> (Vec<u32>, Vec<u8>) {
        let mut ids = self.encode_single(a);
        let first = ids.len();
        self.encode_into(b, &mut ids);
        ids.push(self.specials().sep);
        let segments = (0..ids.len()).map(|at| u8::from(at >= first)).collect();
        (ids, segments)
    }

    /// Like [`Self::encode_with_offsets`], but `[MASK]` and the other special pieces typed in `text` are themselves.
    /// White space before `[MASK]` belongs to it; text that touches a special piece goes on in the same word.
    pub fn encode_with_specials(&self, text: &str) -> Encoding {
        let mut encoding = Encoding::default();
        let (mut from, mut touches) = (0, false);
        while let Some((at, special)) = next_special(text, from) {
            self.encode_part(&text[from..at], from, !touches, &mut encoding);
            encoding.ids.push(self.vocabulary.ids.get(special).copied().unwrap_or(self.specials().unk));
            encoding.offsets.push((at, at + special.len()));
            from = at + special.len();
            touches = true;
        }
        self.encode_part(&text[from..], from, !touches, &mut encoding);
        encoding
    }

    /// Encodes one stretch of text that starts at source byte `base`; its first word gets a word mark if
    /// `starts_word` or if white space stands before it.
    fn encode_part(&self, text: &str, base: usize, starts_word: bool, encoding: &mut Encoding) {
        let cleaned = self.cleaning.clean(text);
        let first_has_mark = starts_word || text.starts_with(clean::is_space);
        let first = encoding.ids.len();
        let unk = self.vocabulary.specials.unk;
        let mut word = Vec::new();
        let mut steps = Vec::new();
        let mut at = 0; // byte of the current word in the cleaned text
        for (index, bytes) in cleaned.text.split(' ').filter(|word| !word.is_empty()).enumerate() {
            let mark = usize::from(index > 0 || first_has_mark);
            word.clear();
            word.extend_from_slice(&b" "[..mark]);
            word.extend_from_slice(bytes.as_bytes());
            encoder::with_scratch(|scratch| self.segment_word(&word, scratch, &mut steps));
            let mut start = at;
            for step in &steps {
                let end = (at + step.end as usize).saturating_sub(mark).max(start);
                let offset = match cleaned.source.get(start..end) {
                    Some([(start, _), .., (_, end)] | [(start, end)]) => (base + start, base + end),
                    _ => (base + cleaned.source[start].0, base + cleaned.source[start].0),
                };
                if step.id == unk && encoding.ids[first..].last() == Some(&unk) {
                    if let Some(last) = encoding.offsets.last_mut() {
                        last.1 = offset.1;
                    }
                } else {
                    encoding.ids.push(step.id);
                    encoding.offsets.push(offset);
                }
                start = end;
            }
            at += bytes.len() + 1;
        }
    }

    /// The ids of many texts, in their order, on all threads of the current rayon pool.
    pub fn encode_batch<S: AsRef<str> + Sync>(&self, texts: &[S]) -> Vec<Vec<u32>> {
        texts
            .par_iter()
            .with_min_len(256)
            .map_init(
                || Encoder::new(self),
                |encoder, text| {
                    let mut ids = Vec::with_capacity(text.as_ref().len() / 4 + 4);
                    encoder.encode_into(text.as_ref(), &mut ids);
                    ids
                },
            )
            .collect()
    }

    /// The text of `ids`: pieces joined, word marks as spaces, none in front. Control pieces give nothing, an unknown
    /// piece gives `<unk>`, and so does an id that is not in the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.join(ids, |kind| kind == PieceKind::Control)
    }

    /// Like [`Self::decode`], but control pieces are written as they are called, as words of their own.
    pub fn decode_with_specials(&self, ids: &[u32]) -> String {
        self.join(ids, |_| false)
    }

    fn join(&self, ids: &[u32], skip: impl Fn(PieceKind) -> bool) -> String {
        let mut text = String::new();
        for &id in ids {
            let unknown = self.specials().unk as usize;
            let piece = &self.vocabulary.pieces.get(id as usize).unwrap_or(&self.vocabulary.pieces[unknown]);
            if skip(piece.kind) {
                continue;
            }
            if piece.kind == PieceKind::Control && !text.is_empty() {
                text.push(' ');
            }
            text.extend(piece.text.chars().map(|c| if c == WORD_MARK { ' ' } else { c }));
        }
        if text.starts_with(' ') {
            text.remove(0);
        }
        text
    }

    /// Natural log-probability of the best segmentation of `text`: the sum over its words, before the digit-comma rule.
    pub fn log_likelihood(&self, text: &str) -> f64 {
        let mut total = 0.0;
        self.cleaning.for_each_word(text, &mut Vec::new(), |word| total += self.word_score(word));
        total
    }
}

/// The first special piece in `text` at or after byte `from`.
fn next_special(text: &str, from: usize) -> Option<(usize, &'static str)> {
    text[from..].match_indices(['<', '[']).find_map(|(at, _)| {
        let rest = &text[from + at..];
        SPECIAL_PIECES.into_iter().find(|special| rest.starts_with(special)).map(|special| (from + at, special))
    })
}
