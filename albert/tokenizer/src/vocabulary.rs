//! Pieces with scores and kinds, and derived tables.

use std::collections::HashMap;

use unicode_normalization::char::is_combining_mark;
use unicode_script::{Script, UnicodeScript};

use super::settings::{Names, ROLES};
use super::{TokenizerError, WORD_MARK};

/// Bytes of the longest text in a file: a piece, a prefix, a replacement.
pub(super) const LONGEST_PIECE: usize = 1024;
/// Bytes of all pieces: the trie has at most 2^28 units, at least half of them in use.
const LARGEST: usize = 1 << 26;

/// Role of a piece in encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceKind {
    /// An ordinary piece with a log-probability.
    Normal,
    /// `<unk>`: replaces characters without a piece.
    Unknown,
    /// `<pad>`, `[CLS]`, `[SEP]`, `[MASK]`: never produced from plain text.
    Control,
    /// A symbol that is always a separate piece, such as `(`: its score is 0, above every log-probability.
    UserDefined,
    /// One byte of a character without a piece, such as `<0xE6>` (SentencePiece's byte fallback).
    Byte,
    /// In the vocabulary, but never produced.
    Unused,
}

/// One entry of a vocabulary. Its position is its id.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// Text, with `▁` (U+2581) at the start of a word.
    pub text: String,
    /// Natural log-probability; 0 except for normal pieces.
    pub score: f64,
    /// Role.
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

/// Names of the special pieces: ours and Google's, BERT's, and other usual ones.
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
    /// A piece is empty, repeated or has no finite score, there is not exactly one unknown piece, or a special piece is missing.
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
                return fail(format!(
                    "piece {id} is {:?}; a piece must not be empty or contain spaces or NUL",
                    piece.text
                ));
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
            // Larger sums could overflow in f32.
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
        Self::with_ids(pieces, ids, Some(unknown), &Names::default())
    }

    /// Pieces with their ids; `unknown` is the id of the unknown piece, if not found by name. `given` names special pieces.
    pub(super) fn with_ids(
        pieces: Vec<Piece>,
        ids: HashMap<Box<str>, u32>,
        unknown: Option<u32>,
        given: &Names,
    ) -> Result<Self, TokenizerError> {
        let special = |index: usize| {
            if let Some(&id) = given[index].as_deref().and_then(|name| ids.get(name)) {
                return Ok(id);
            }
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
            if continues {
                !piece.text.starts_with("##")
            } else {
                is_word_start(&piece.text, |c| c.is_ascii_alphabetic())
            }
        };
        Ok(Self { word_start: pieces.iter().map(starts_word).collect(), ids, specials, pieces })
    }

    /// Applies the rule for all scripts.
    pub(super) fn find_word_starts(&mut self) {
        self.word_start = self.pieces.iter().map(|piece| is_word_start(&piece.text, continues_word)).collect();
    }

    /// Makes the pieces called `names` the special ones; those without a name stay.
    ///
    /// # Errors
    /// A name that is not a piece.
    pub(super) fn rename(&mut self, names: &Names) -> Result<(), String> {
        let SpecialIds { pad, unk, cls, sep, mask } = &mut self.specials;
        for ((id, name), role) in [pad, unk, cls, sep, mask].into_iter().zip(names).zip(ROLES) {
            if let Some(name) = name {
                let found = self.ids.get(name.as_str());
                *id = *found.ok_or_else(|| format!("{role} is {name:?}, which the vocabulary lacks"))?;
            }
        }
        Ok(())
    }

    /// Appends a piece that no search produces.
    pub(super) fn push(&mut self, text: &str, kind: PieceKind) {
        self.ids.insert(text.into(), self.pieces.len() as u32);
        self.pieces.push(Piece::new(text, 0.0, kind));
        self.word_start.push(true);
    }

    /// Additional checks of our own vocabularies: names of the special pieces, no piece across words.
    pub(super) fn check_own(&self) -> Result<(), TokenizerError> {
        let fail = |message: String| Err(TokenizerError::Vocabulary(message));
        let unknown = &self.pieces[self.specials.unk as usize].text;
        if unknown != "<unk>" {
            return fail(format!("the unknown piece is {unknown:?}; expected <unk>"));
        }
        if let Some(missing) = SPECIAL_PIECES.iter().find(|&&special| !self.ids.contains_key(special)) {
            return fail(format!("no special piece {missing}"));
        }
        for (id, piece) in self.pieces.iter().enumerate() {
            let plain = matches!(piece.kind, PieceKind::Normal | PieceKind::UserDefined);
            if plain && piece.text.char_indices().any(|(at, c)| c == WORD_MARK && at > 0) {
                return fail(format!(
                    "piece {id}, {:?}, spans two words; a word mark is allowed only at the start of a piece",
                    piece.text
                ));
            }
        }
        Ok(())
    }
}

/// The released rule for word starts, used by whole-word masking.
///
/// A piece starts a word if it begins with `▁` or `<`, is one punctuation mark, or contains a character other than `letters`
/// (ASCII in the released rule) and punctuation. The apostrophe is not in the list: it starts a word, which the letters after it
/// continue.
fn is_word_start(piece: &str, letter: impl Fn(char) -> bool) -> bool {
    const MARKS: &str = "!\"#$%&\"()*+,-./:;?@[\\]^_`{|}~";
    let mut characters = piece.chars();
    let alone = matches!((characters.next(), characters.next()), (Some(first), None) if MARKS.contains(first));
    alone || piece.starts_with([WORD_MARK, '<']) || piece.chars().any(|c| !letter(c) && !MARKS.contains(c))
}

/// True for letters, marks and joiners of scripts that separate words. In the others every piece starts a word: a sentence would
/// be one word, which a mask hides as a whole.
fn continues_word(c: char) -> bool {
    use Script::{Ahom, Khmer, Lao, Myanmar, New_Tai_Lue, Tai_Le, Tai_Tham, Tai_Viet, Thai};
    let is_part = c.is_alphabetic() || is_combining_mark(c) || matches!(c, '\u{200c}' | '\u{200d}');
    let unspaced = [Ahom, Khmer, Lao, Myanmar, New_Tai_Lue, Tai_Le, Tai_Tham, Tai_Viet, Thai];
    is_part && !is_east_asian(c) && !unspaced.contains(&c.script())
}

/// True for Han and Kana with their marks.
fn is_east_asian(c: char) -> bool {
    matches!(c.script(), Script::Han | Script::Hiragana | Script::Katakana | Script::Bopomofo) || is_kana_mark(c)
}

/// True for the marks of Kana that are of script Common.
pub(super) fn is_kana_mark(c: char) -> bool {
    matches!(c, '\u{30fc}' | '\u{ff70}' | '\u{ff9e}' | '\u{ff9f}')
}

#[cfg(test)]
mod tests {
    use super::{continues_word, is_word_start};

    #[test]
    fn word_starts_follow_the_released_rule_and_words_of_every_script_continue() {
        let of_scripts = (
            &["▁प्र", "7", "が", "ガラス", "ー", "漢字", "ก่", "ကို", "'", "。", "€", "é7"][..],
            &["é", "ющий", "ß", "ि", "्य", "한국", "\u{5b8}", "خ\u{200c}", "s,", "ếu", "\u{301}"][..],
            continues_word as fn(char) -> bool,
        );
        let released = (
            &["▁the", "▁", "<unk>", ",", "€", "7", "a1", "'", "é", "n't"][..],
            &["ing", "s", "[MASK]", "s,", "..", "...x"][..],
            (|c| c.is_ascii_alphabetic()) as fn(char) -> bool,
        );
        for (starts, continues, rule) in [released, of_scripts] {
            assert!(starts.iter().all(|piece| is_word_start(piece, rule)), "{starts:?} start a word");
            assert!(!continues.iter().any(|piece| is_word_start(piece, rule)), "{continues:?} continue a word");
        }
    }
}
