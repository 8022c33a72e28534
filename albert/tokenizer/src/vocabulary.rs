//! Pieces with scores and kinds, and derived tables.

use unicode_normalization::char::is_combining_mark;
use unicode_script::{Script, UnicodeScript};

use super::settings::{Names, ROLES};
use super::{TokenizerError, WORD_MARK};

/// Maximum bytes of a text in a file: a piece, a prefix, a replacement.
pub(super) const LONGEST_PIECE: usize = 1024;
/// Maximum bytes of all pieces: the trie has at most 2^28 units, at least half of them in use.
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
    /// Role in encoding.
    pub kind: PieceKind,
}

impl Piece {
    /// Creates a piece of any kind.
    pub fn new(text: impl Into<String>, score: f64, kind: PieceKind) -> Self {
        Self { text: text.into(), score, kind }
    }

    /// Creates a normal piece with its log-probability.
    pub fn normal(text: impl Into<String>, score: f64) -> Self {
        Self::new(text, score, PieceKind::Normal)
    }

    /// True if the search may return the piece and it has a word mark after its start.
    fn spans_words(&self) -> bool {
        // Fast path: no byte is the first byte of a mark.
        let plain = matches!(self.kind, PieceKind::Normal | PieceKind::UserDefined);
        let rest = self.text.as_bytes().get(1..).unwrap_or_default();
        plain && rest.contains(&0xe2) && self.text.char_indices().any(|(at, c)| c == WORD_MARK && at > 0)
    }
}

/// Ids of the five special pieces.
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

/// Texts of the special pieces, in the order of their ids in a trained vocabulary.
pub const SPECIAL_PIECES: [&str; 5] = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"];

/// A checked set of pieces: texts, special ids, word starts.
#[derive(Debug, Clone)]
pub(super) struct Vocabulary {
    pub(super) pieces: Vec<Piece>,
    /// Ids sorted by text; of equal texts, the last one counts.
    pub(super) by_text: Vec<u32>,
    pub(super) specials: SpecialIds,
    pub(super) word_start: Vec<bool>,
    /// True if the search may return a piece with a word mark after its start.
    pub(super) spans_words: bool,
}

/// Names of the special pieces: ours and Google's, BERT's, and further usual ones.
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
        let by_text = sorted_by_text(&pieces, 0..pieces.len() as u32);
        let text = |id: u32| &pieces[id as usize].text;
        if let Some(pair) = by_text.windows(2).find(|pair| text(pair[0]) == text(pair[1])) {
            let (first, id, text) = (pair[0], pair[1], text(pair[0]));
            return fail(format!("piece {id} repeats piece {first}, {text:?}; each piece may occur once"));
        }
        let mut unknown = None;
        for (id, piece) in (0u32..).zip(&pieces) {
            if piece.text.is_empty() || piece.text.bytes().any(|byte| byte == 0 || byte == b' ') {
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
        Self::with_ids(pieces, by_text, Some(unknown), &Names::default())
    }

    /// Pieces with their ids, sorted by text; `unknown` is the id of the unknown piece, if it cannot be found by name.
    /// `given` contains names of special pieces.
    pub(super) fn with_ids(
        pieces: Vec<Piece>,
        by_text: Vec<u32>,
        unknown: Option<u32>,
        given: &Names,
    ) -> Result<Self, TokenizerError> {
        let special = |index: usize| {
            if let Some(id) = given[index].as_deref().and_then(|name| find(&pieces, &by_text, name)) {
                return Ok(id);
            }
            let (role, names) = NAMES[index];
            names.iter().find_map(|&name| find(&pieces, &by_text, name)).ok_or_else(|| {
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
        let word_start = pieces.iter().map(starts_word).collect();
        let spans_words = pieces.iter().any(Piece::spans_words);
        Ok(Self { pieces, by_text, specials, word_start, spans_words })
    }

    /// Applies the rule for all scripts.
    pub(super) fn find_word_starts(&mut self) {
        self.word_start = self.pieces.iter().map(|piece| is_word_start(&piece.text, continues_word)).collect();
    }

    /// Makes the pieces called `names` the special ones; roles without a name are unchanged.
    ///
    /// # Errors
    /// A name is not a piece.
    pub(super) fn rename(&mut self, names: &Names) -> Result<(), String> {
        let SpecialIds { pad, unk, cls, sep, mask } = &mut self.specials;
        for ((id, name), role) in [pad, unk, cls, sep, mask].into_iter().zip(names).zip(ROLES) {
            if let Some(name) = name {
                let found = find(&self.pieces, &self.by_text, name);
                *id = found.ok_or_else(|| format!("{role} is {name:?}, which the vocabulary lacks"))?;
            }
        }
        Ok(())
    }

    /// The id of the piece `text`.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        find(&self.pieces, &self.by_text, text)
    }

    /// Appends pieces that the search never returns.
    pub(super) fn extend(&mut self, pieces: impl Iterator<Item = Piece>) {
        self.pieces.extend(pieces);
        self.word_start.resize(self.pieces.len(), true);
        self.by_text = sorted_by_text(&self.pieces, 0..self.pieces.len() as u32);
    }

    /// Additional checks of our own vocabularies: names of the special pieces, no piece across words.
    pub(super) fn check_own(&self) -> Result<(), TokenizerError> {
        let fail = |message: String| Err(TokenizerError::Vocabulary(message));
        let unknown = &self.pieces[self.specials.unk as usize].text;
        if unknown != "<unk>" {
            return fail(format!("the unknown piece is {unknown:?}; expected <unk>"));
        }
        if let Some(missing) = SPECIAL_PIECES.iter().find(|special| self.id(special).is_none()) {
            return fail(format!("no special piece {missing}"));
        }
        if let Some(id) = self.pieces.iter().position(Piece::spans_words) {
            return fail(format!(
                "piece {id}, {:?}, spans two words; a word mark is allowed only at the start of a piece",
                self.pieces[id].text
            ));
        }
        Ok(())
    }
}

/// Sorts ids by the texts of their pieces. Comparisons usually end at the first eight bytes, compared as one number.
pub(super) fn sorted_by_text(pieces: &[Piece], ids: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let text = |id: u32| pieces[id as usize].text.as_bytes();
    let with_prefix = |id| {
        let mut prefix = [0; 8];
        text(id).iter().zip(&mut prefix).for_each(|(&byte, to)| *to = byte);
        (u64::from_be_bytes(prefix), id)
    };
    let mut keys: Vec<(u64, u32)> = ids.into_iter().map(with_prefix).collect();
    keys.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| (text(a.1), a.1).cmp(&(text(b.1), b.1))));
    keys.into_iter().map(|(_, id)| id).collect()
}

/// Finds the piece `text` among ids sorted by text.
fn find(pieces: &[Piece], by_text: &[u32], text: &str) -> Option<u32> {
    let after = by_text.partition_point(|&id| pieces[id as usize].text.as_str() <= text);
    let id = by_text[after.checked_sub(1)?];
    (pieces[id as usize].text == text).then_some(id)
}

/// The released rule for word starts, used by whole-word masking.
///
/// A piece starts a word if it begins with `▁` or `<`, is one punctuation mark, or contains a character other than `letters`
/// (ASCII in the released rule) and punctuation. The apostrophe does not count as punctuation: it starts a word, which the
/// letters after it continue.
fn is_word_start(piece: &str, letter: impl Fn(char) -> bool) -> bool {
    const MARKS: &str = "!\"#$%&\"()*+,-./:;?@[\\]^_`{|}~";
    let mut characters = piece.chars();
    let alone = matches!((characters.next(), characters.next()), (Some(first), None) if MARKS.contains(first));
    alone || piece.starts_with([WORD_MARK, '<']) || piece.chars().any(|c| !letter(c) && !MARKS.contains(c))
}

/// True for letters, marks and joiners of scripts that separate words. In all other scripts every piece starts a word: otherwise
/// a sentence would be one word, which a mask hides as a whole.
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

/// True for the marks of Kana in the script Common.
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
