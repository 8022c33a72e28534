//! The pieces, their scores and kinds, and what follows from them once and for all.

use std::collections::HashMap;

use super::{TokenizerError, WORD_MARK};

/// Bytes of the longest text in a file: a piece, a prefix, a replacement.
pub(super) const LONGEST_PIECE: usize = 1024;
/// Bytes of all pieces together: the trie has at most 2^28 places, and at least half of them are used.
const LARGEST: usize = 1 << 26;

/// How a piece takes part in encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceKind {
    /// An ordinary piece with a log-probability.
    Normal,
    /// `<unk>`: stands for characters that no piece covers.
    Unknown,
    /// `<pad>`, `[CLS]`, `[SEP]`, `[MASK]`: never produced from plain text.
    Control,
    /// A symbol that stands alone, such as `(`: its score is 0, above every log-probability, and no trained piece holds
    /// it.
    UserDefined,
    /// One byte of a character that no piece covers, such as `<0xE6>` (SentencePiece's byte fallback).
    Byte,
    /// In the vocabulary, but never produced.
    Unused,
}

/// One entry of a vocabulary. Its position is its id.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// The text, with `▁` (U+2581) where a word starts.
    pub text: String,
    /// Natural log-probability; 0 for everything but normal pieces.
    pub score: f64,
    /// Its part in encoding.
    pub kind: PieceKind,
}

impl Piece {
    /// A piece of any kind.
    pub fn new(text: impl Into<String>, score: f64, kind: PieceKind) -> Self {
        Self { text: text.into(), score, kind }
    }

    /// A normal piece with its log-probability.
    pub fn normal(text: impl Into<String>, score: f64) -> Self {
        Self::new(text, score, PieceKind::Normal)
    }
}

/// The ids of the five special pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialIds {
    /// `<pad>`, 0 in every ALBERT vocabulary.
    pub pad: u32,
    /// `<unk>`, 1.
    pub unk: u32,
    /// `[CLS]`, 2.
    pub cls: u32,
    /// `[SEP]`, 3.
    pub sep: u32,
    /// `[MASK]`, 4.
    pub mask: u32,
}

/// The texts of the special pieces, in the order of their ids in a trained vocabulary.
pub const SPECIAL_PIECES: [&str; 5] = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"];

/// A checked set of pieces: texts, special ids, starts of words.
#[derive(Debug, Clone)]
pub(super) struct Vocabulary {
    pub(super) pieces: Vec<Piece>,
    pub(super) ids: HashMap<Box<str>, u32>,
    pub(super) specials: SpecialIds,
    pub(super) word_start: Vec<bool>,
}

/// What the five special pieces may be called: ours and Google's, BERT's, and the usual names elsewhere.
const NAMES: [(&str, &[&str]); 5] = [
    ("pad", &["<pad>", "[PAD]"]),
    ("unk", &["<unk>", "[UNK]"]),
    ("cls", &["[CLS]", "<s>"]),
    ("sep", &["[SEP]", "</s>"]),
    ("mask", &["[MASK]", "<mask>"]),
];

impl Vocabulary {
    /// Checks the pieces of a unigram vocabulary.
    ///
    /// # Errors
    /// If a piece is empty, repeated or has no finite score, or if there is not exactly one unknown piece, or if a special
    /// piece is missing.
    pub(super) fn of_unigram(pieces: Vec<Piece>) -> Result<Self, TokenizerError> {
        let fail = |message: String| Err(TokenizerError::Vocabulary(message));
        if pieces.len() >= 1 << 27 {
            return fail(format!("{} pieces; at most {} are possible", pieces.len(), (1 << 27) - 1));
        }
        let bytes: usize = pieces.iter().map(|piece| piece.text.len()).sum();
        if bytes > LARGEST {
            return fail(format!("its pieces have {bytes} bytes in all; at most {LARGEST} are possible"));
        }
        let mut ids = HashMap::with_capacity(pieces.len());
        let mut unknown = None;
        for (id, piece) in (0u32..).zip(&pieces) {
            if piece.text.is_empty() || piece.text.contains(['\0', ' ']) {
                return fail(format!("piece {id} is {:?}; a piece is not empty and holds no space or NUL", piece.text));
            }
            if piece.text.len() > LONGEST_PIECE {
                let (bytes, shown) = (piece.text.len(), piece.text.chars().take(20).collect::<String>());
                return fail(format!(
                    "piece {id}, {shown:?}..., has {bytes} bytes; at most {LONGEST_PIECE} are possible"
                ));
            }
            if let Some(first) = ids.insert(piece.text.as_str().into(), id) {
                return fail(format!("piece {id} repeats piece {first}, {:?}; each piece may occur once", piece.text));
            }
            // Beyond, sums in 32 bits could overflow.
            if piece.score.is_nan() || piece.score.abs() > 1e9 {
                let (text, score) = (&piece.text, piece.score);
                return fail(format!(
                    "piece {id}, {text:?}, has score {score}; scores are log-probabilities, at most 1e9"
                ));
            }
            if piece.kind == PieceKind::Unknown && unknown.replace(id).is_some() {
                return fail("two unknown pieces; exactly one is needed".into());
            }
        }
        let Some(unknown) = unknown else {
            return fail("no unknown piece (<unk>); characters outside the vocabulary would have no id".into());
        };
        Self::with_ids(pieces, ids, Some(unknown))
    }

    /// Pieces with their ids; `unknown` is the unknown piece, if it is known which it is.
    pub(super) fn with_ids(
        pieces: Vec<Piece>,
        ids: HashMap<Box<str>, u32>,
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        let special = |index: usize| {
            let (role, names) = NAMES[index];
            names.iter().find_map(|&name| ids.get(name).copied()).ok_or_else(|| {
                let names = names.join(" or ");
                TokenizerError::Vocabulary(format!("no special piece {names} (the {role} token); the model needs one"))
            })
        };
        let specials = SpecialIds {
            pad: special(0)?,
            unk: unknown.map_or_else(|| special(1), Ok)?,
            cls: special(2)?,
            sep: special(3)?,
            mask: special(4)?,
        };
        let continues = pieces.iter().any(|piece| piece.text.starts_with("##"));
        let starts_word = |piece: &Piece| {
            if continues { !piece.text.starts_with("##") } else { is_word_start(&piece.text) }
        };
        Ok(Self { word_start: pieces.iter().map(starts_word).collect(), ids, specials, pieces })
    }

    /// Checks what a vocabulary of our own keeps besides: the names of the special pieces, and words apart.
    pub(super) fn check_own(&self) -> Result<(), TokenizerError> {
        let fail = |message: String| Err(TokenizerError::Vocabulary(message));
        let unknown = &self.pieces[self.specials.unk as usize].text;
        if unknown != "<unk>" {
            return fail(format!("the unknown piece is {unknown:?}; it has to be <unk>"));
        }
        if let Some(missing) = SPECIAL_PIECES.iter().find(|&&special| !self.ids.contains_key(special)) {
            return fail(format!("no special piece {missing}"));
        }
        for (id, piece) in self.pieces.iter().enumerate() {
            let plain = matches!(piece.kind, PieceKind::Normal | PieceKind::UserDefined);
            if plain && piece.text.char_indices().any(|(at, c)| c == WORD_MARK && at > 0) {
                return fail(format!(
                    "piece {id}, {:?}, spans two words; the word mark may stand only at a piece's start",
                    piece.text
                ));
            }
        }
        Ok(())
    }
}

/// The released rule for the start of a word, on which whole-word masking rests.
///
/// A piece starts a word if it begins with `▁` or `<`, is one punctuation mark, or holds anything beside ASCII letters
/// and punctuation. The apostrophe is not in the list of marks: it starts a word and the letters after it continue it.
fn is_word_start(piece: &str) -> bool {
    const MARKS: &str = "!\"#$%&\"()*+,-./:;?@[\\]^_`{|}~";
    let mut characters = piece.chars();
    let alone = matches!((characters.next(), characters.next()), (Some(first), None) if MARKS.contains(first));
    alone
        || piece.starts_with([WORD_MARK, '<'])
        || piece.chars().any(|c| !c.is_ascii_alphabetic() && !MARKS.contains(c))
}

#[cfg(test)]
mod tests {
    use super::is_word_start;

    #[test]
    fn word_starts_follow_the_released_rule() {
        let starts = ["▁the", "▁", "<unk>", ",", "€", "7", "a1", "'", "é", "n't"];
        let continues = ["ing", "s", "[MASK]", "s,", "..", "...x"];
        for piece in starts {
            assert!(is_word_start(piece), "{piece} starts a word");
        }
        for piece in continues {
            assert!(!is_word_start(piece), "{piece} continues a word");
        }
    }
}
