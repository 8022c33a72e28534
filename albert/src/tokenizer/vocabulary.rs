//! The pieces, their scores and kinds, and what follows from them once and for all.

use std::collections::HashMap;

use super::trie::Trie;
use super::{TokenizerError, WORD_MARK};

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

/// How far below the worst piece an unknown character scores.
pub(super) const UNKNOWN_PENALTY: f64 = 10.0;

/// A checked set of pieces with everything that encoding needs.
#[derive(Debug, Clone)]
pub(super) struct Vocabulary {
    pub(super) pieces: Vec<Piece>,
    pub(super) scores: Vec<f64>,
    pub(super) unknown_score: f64,
    pub(super) trie: Trie,
    pub(super) ids: HashMap<String, u32>,
    pub(super) specials: SpecialIds,
    pub(super) word_start: Vec<bool>,
}

impl Vocabulary {
    /// Checks the pieces and builds the trie.
    pub(super) fn new(pieces: Vec<Piece>) -> Result<Self, TokenizerError> {
        let fail = |message: String| Err(TokenizerError::Vocabulary(message));
        if pieces.len() >= 1 << 27 {
            return fail(format!("{} pieces; at most {} are possible", pieces.len(), (1 << 27) - 1));
        }
        let mut ids = HashMap::with_capacity(pieces.len());
        let mut unknown = None;
        for (id, piece) in pieces.iter().enumerate() {
            if piece.text.is_empty() || piece.text.contains(['\0', ' ']) {
                return fail(format!("piece {id} is {:?}; a piece is not empty and holds no space or NUL", piece.text));
            }
            if let Some(first) = ids.insert(piece.text.clone(), id as u32) {
                return fail(format!("piece {id} repeats piece {first}, {:?}; each piece may occur once", piece.text));
            }
            if !piece.score.is_finite() {
                return fail(format!("piece {id}, {:?}, has score {}; scores are finite", piece.text, piece.score));
            }
            let plain = matches!(piece.kind, PieceKind::Normal | PieceKind::UserDefined);
            if plain && piece.text.char_indices().any(|(at, c)| c == WORD_MARK && at > 0) {
                return fail(format!(
                    "piece {id}, {:?}, spans two words; the word mark may stand only at a piece's start",
                    piece.text
                ));
            }
            if piece.kind == PieceKind::Unknown && unknown.replace(id).is_some() {
                return fail("two unknown pieces; exactly one is needed".into());
            }
        }
        if unknown.is_none() {
            return fail("no unknown piece (<unk>); characters outside the vocabulary would have no id".into());
        }
        if unknown.is_some_and(|id| pieces[id].text != "<unk>") {
            return fail(format!("the unknown piece is {:?}; it has to be <unk>", unknown.map(|id| &pieces[id].text)));
        }
        let special = |text: &str| {
            ids.get(text).copied().ok_or_else(|| TokenizerError::Vocabulary(format!("no special piece {text}")))
        };
        let specials = SpecialIds {
            pad: special("<pad>")?,
            unk: unknown.unwrap_or_default() as u32,
            cls: special("[CLS]")?,
            sep: special("[SEP]")?,
            mask: special("[MASK]")?,
        };
        let lowest = pieces.iter().filter(|p| p.kind == PieceKind::Normal).map(|p| p.score).fold(0.0, f64::min);
        let keys: Vec<(Vec<u8>, u32)> = {
            let matched = |p: &Piece| matches!(p.kind, PieceKind::Normal | PieceKind::UserDefined);
            let entries = pieces.iter().enumerate().filter(|(_, p)| matched(p));
            let mut keys: Vec<_> = entries.map(|(id, p)| (key_of(&p.text), id as u32)).collect();
            keys.sort_unstable();
            keys
        };
        let borrowed: Vec<(&[u8], u32)> = keys.iter().map(|(key, id)| (key.as_slice(), *id)).collect();
        Ok(Self {
            scores: pieces.iter().map(|p| p.score).collect(),
            unknown_score: lowest - UNKNOWN_PENALTY,
            trie: Trie::new(&borrowed),
            word_start: pieces.iter().map(|p| is_word_start(&p.text)).collect(),
            ids,
            specials,
            pieces,
        })
    }
}

/// A piece as the trie holds it: the word mark is a space, as in cleaned text.
pub(super) fn key_of(piece: &str) -> Vec<u8> {
    piece.replace(WORD_MARK, " ").into_bytes()
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
