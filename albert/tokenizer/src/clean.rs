//! Text cleaning before segmentation.
//!
//! ```text
//! "  Hello,\tﬁne  Ångström "  ->  "hello, fine angstrom"
//! ```
//!
//! Per character, in this order (Google's `preprocess_text`, then the additional `nmt_nfkc` rules of SentencePiece):
//! 1. white space and invisible separators (zero-width space, byte order mark, U+FFFD, U+2581) become a space; runs become
//!    one space; leading and trailing spaces are dropped;
//! 2. control characters are dropped;
//! 3. with [`Cleaning::strip_accents`]: NFKD, and every character with a non-zero canonical combining class is dropped;
//!    without: NFKC, so that equivalent characters have one spelling;
//! 4. with [`Cleaning::lowercase`]: lower case, by Unicode's full mapping. A capital sigma becomes `ς` or `σ` depending on its neighbors
//!    after step 3, as if steps 1 and 2 came last, so that the result equals Python's `str.lower`.
//!
//! These are the rules of [`Normalization::Released`], which `transformers` cannot reproduce for every script. The rules of all other
//! forms are exactly those of the normalizer steps in `tokenizer.json` (`file.rs`): control characters are dropped first; marks of
//! direction become spaces; U+200C, the zero-width non-joiner of Persian and Indic words, is kept; stripping drops all marks (Unicode
//! category M) of the decomposed text and composes the rest; a capital sigma becomes `ς` after a letter or mark if none follows.
//!
//! Dropping all combining characters makes NFKD's reordering unobservable, so each character is decomposed separately, and
//! each cleaned byte has its source bytes. ASCII costs one table look-up a byte.
//!
//! Source: the released ALBERT `tokenization.py`; Unicode Standard Annex 15 for the stable boundaries used by NFKC.
//! Limits: the source offsets of NFKC text are those of whole composition segments.

use super::TokenizerError;
use serde::{Deserialize, Serialize};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::{canonical_combining_class, decompose_compatible, is_combining_mark};
use unicode_normalization::{IsNormalized, is_nfc_quick, is_nfkc_quick};

/// Unicode normalization form, with its cleaning rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalization {
    /// The rules of the released English models, close to SentencePiece's `nmt_nfkc`.
    #[default]
    Released,
    /// NFKC: compatibility forms such as half-width letters, `ﬁ` and `²` become `ﬁ`'s letters and `2`.
    Nfkc,
    /// NFC: equivalent spellings become one, compatibility forms are kept.
    Nfc,
    /// Characters are unchanged.
    None,
}

/// Cleaning settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cleaning {
    /// Lower-case the text. Released English models: on.
    pub lowercase: bool,
    /// Decompose the text and drop combining characters (Google's `keep_accents = False`). Released English models: on.
    pub strip_accents: bool,
    /// Normalization form. Released English models: [`Normalization::Released`].
    pub normalization: Normalization,
}

impl Default for Cleaning {
    fn default() -> Self {
        Self { lowercase: true, strip_accents: true, normalization: Normalization::Released }
    }
}

/// Cleaned text with source positions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cleaned {
    /// The cleaned text.
    pub text: String,
    /// `[text.len()]`: for each cleaned byte, the source bytes `start..end` of its character.
    pub source: Vec<(usize, usize)>,
}

/// Zero-width non-joiner: part of Persian and Indic words.
pub(super) const NON_JOINER: char = '\u{200c}';

/// True if a character becomes a space by the released rules: Unicode's White_Space, 0x1c to 0x1f (as in Python's `split`) and the characters that
/// `nmt_nfkc` maps to a space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace()
        || matches!(
            c,
            '\u{1c}'
                ..='\u{1f}' | '\u{200b}' | '\u{200c}' | '\u{200e}' | '\u{200f}' | '\u{2581}' | '\u{feff}' | '\u{fffd}'
        )
}

/// True if a character is dropped (control characters of `nmt_nfkc`, and NUL).
pub(super) fn is_dropped(c: char) -> bool {
    matches!(c, '\0'..='\u{8}' | '\u{e}'..='\u{1b}' | '\u{7f}' | '\u{8f}' | '\u{9f}')
}

/// ASCII byte classes: the byte to emit, or one of these two.
const SPACE: u8 = 0x20;
const DROP: u8 = 0;

const fn ascii_table(lowercase: bool) -> [u8; 128] {
    let mut table = [0u8; 128];
    let mut byte = 0u8;
    while byte < 128 {
        table[byte as usize] = match byte {
            9..=13 | 0x1c..=0x20 => SPACE,
            0..=8 | 14..=0x1b | 0x7f => DROP,
            b'A'..=b'Z' if lowercase => byte + 32,
            _ => byte,
        };
        byte += 1;
    }
    table
}

static ASCII_LOWER: [u8; 128] = ascii_table(true);
static ASCII_KEEP: [u8; 128] = ascii_table(false);

/// Receiver of cleaned characters: words for the encoder, without source positions, or [`Cleaned`].
trait Sink {
    /// Appends the next bytes of a word, from source bytes `start..end`.
    fn push(&mut self, bytes: &[u8], start: usize, end: usize);
    /// Ends a word, which is not empty.
    fn end_word(&mut self);
}

/// Passes on one word at a time, each with a leading space, as in the trie.
struct Words<'a, F: FnMut(&[u8])> {
    word: &'a mut Vec<u8>,
    each: F,
}

impl<F: FnMut(&[u8])> Sink for Words<'_, F> {
    #[inline(always)]
    fn push(&mut self, bytes: &[u8], _: usize, _: usize) {
        self.word.extend_from_slice(bytes);
    }

    #[inline(always)]
    fn end_word(&mut self) {
        (self.each)(self.word);
        self.word.truncate(1);
    }
}

#[derive(Default)]
struct WithSource {
    bytes: Vec<u8>,
    source: Vec<(usize, usize)>,
    pending_space: bool,
}

impl Sink for WithSource {
    fn push(&mut self, bytes: &[u8], start: usize, end: usize) {
        if self.pending_space {
            // The source of a space is between its words, or their common composition segment.
            let before = self.source.last().map_or(start, |&(_, end)| end);
            self.bytes.push(b' ');
            self.source.push((before.min(start), before.max(start)));
            self.pending_space = false;
        }
        self.bytes.extend_from_slice(bytes);
        self.source.extend(std::iter::repeat_n((start, end), bytes.len()));
    }

    fn end_word(&mut self) {
        self.pending_space = true;
    }
}

impl Cleaning {
    /// Checks the combination of settings.
    ///
    /// # Errors
    /// [`TokenizerError::Setting`]: accents can be stripped from decomposed text only.
    pub fn check(&self) -> Result<(), TokenizerError> {
        if self.strip_accents && self.normalization == Normalization::None {
            return Err(TokenizerError::Setting {
                name: "cleaning.normalization",
                value: "none".to_owned(),
                expected: "expected nfkc or nfc, which decompose letters and accents, or strip_accents = false",
            });
        }
        Ok(())
    }

    /// All valid combinations.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        use Normalization::{Nfc, Nfkc, None, Released};
        [Released, Nfkc, Nfc, None].into_iter().flat_map(|normalization| {
            [(true, true), (true, false), (false, true), (false, false)]
                .map(|(lowercase, strip_accents)| Self { lowercase, strip_accents, normalization })
                .into_iter()
                .filter(move |cleaning| !cleaning.strip_accents || normalization != None)
        })
    }

    /// True if a character becomes a space.
    pub(super) fn is_space(self, c: char) -> bool {
        match self.normalization {
            Normalization::Released => is_space(c),
            // In the released rules, U+200E and U+200F are the only marks of direction that become spaces.
            _ => {
                c != NON_JOINER && is_space(c)
                    || matches!(c, '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
            }
        }
    }

    /// Cleans `text`, with source positions.
    pub fn clean(&self, text: &str) -> Cleaned {
        let mut sink = WithSource::default();
        self.run(text, &mut sink);
        let text = String::from_utf8(sink.bytes).expect("cleaning writes whole characters");
        Cleaned { text, source: sink.source }
    }

    /// Calls `each` with every cleaned word of `text`, in order, as a space and the bytes of the word. `word` is a scratch buffer.
    pub(super) fn for_each_word(&self, text: &str, word: &mut Vec<u8>, each: impl FnMut(&[u8])) {
        word.clear();
        word.push(b' ');
        self.run(text, &mut Words { word, each });
    }

    #[inline(always)]
    fn run(&self, text: &str, sink: &mut impl Sink) {
        let table = if self.lowercase { &ASCII_LOWER } else { &ASCII_KEEP };
        let bytes = text.as_bytes();
        let mut in_word = false;
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at];
            // Composition can include a preceding ASCII letter, so the slow path handles a letter before non-ASCII bytes.
            let alone = self.strip_accents || self.next_byte(&bytes[at + 1..]).is_none_or(u8::is_ascii);
            if byte < 128 && alone {
                let class = table[byte as usize];
                if class > SPACE {
                    sink.push(&[class], at, at + 1);
                    in_word = true;
                } else if class == SPACE && in_word {
                    sink.end_word();
                    in_word = false;
                }
                at += 1;
            } else {
                at = self.rest_of_word(text, at, &mut in_word, sink);
            }
        }
        if in_word {
            sink.end_word();
        }
    }

    /// True if a character is dropped before composition.
    fn drops_first(self, c: char) -> bool {
        self.normalization != Normalization::Released && is_dropped(c)
    }

    /// The next byte that a letter could be composed with.
    #[inline(always)]
    fn next_byte(self, rest: &[u8]) -> Option<&u8> {
        match rest.first() {
            Some(&byte) if byte < b' ' && self.drops_first(byte.into()) => {
                rest.iter().find(|&&byte| byte > 127 || !is_dropped(byte.into()))
            }
            first => first,
        }
    }

    /// Slow path, from a character that is not ASCII (possibly a space) to the end of the word; returns its end.
    #[cold]
    fn rest_of_word(&self, text: &str, from: usize, in_word: &mut bool, sink: &mut impl Sink) -> usize {
        let rest = &text[from..];
        let len = rest.char_indices().skip(1).find(|&(_, c)| self.is_space(c)).map_or(rest.len(), |(at, _)| at);
        let mut decomposed: Vec<(char, usize, usize)> = Vec::new();
        if self.normalization != Normalization::Released {
            self.normalize(&rest[..len], from, &mut decomposed);
        } else if self.strip_accents {
            for (at, c) in rest[..len].char_indices() {
                let (start, end) = (from + at, from + at + c.len_utf8());
                decompose_compatible(c, |d| {
                    if canonical_combining_class(d) == 0 {
                        decomposed.push((d, start, end));
                    }
                });
            }
        } else {
            self.normalize(&rest[..len], from, &mut decomposed);
        }
        if self.lowercase && self.normalization != Normalization::Released {
            lower_sigmas_alone(&mut decomposed, &text[..from]);
        } else if self.lowercase {
            lower_sigmas(&mut decomposed, text, from..from + len, self.strip_accents);
        }
        // Compatibility forms may contain spaces ("´" is a space and an accent).
        let mut characters = decomposed.as_slice();
        while !characters.is_empty() {
            let cut = characters.iter().position(|&(c, ..)| self.is_space(c)).unwrap_or(characters.len());
            self.push_part(&characters[..cut], in_word, sink);
            if cut < characters.len() && *in_word {
                sink.end_word();
                *in_word = false;
            }
            characters = &characters[(cut + 1).min(characters.len())..];
        }
        from + len
    }

    fn push_part(&self, part: &[(char, usize, usize)], in_word: &mut bool, sink: &mut impl Sink) {
        let mut buffer = [0u8; 4];
        let mut push = |c: char, start: usize, end: usize| {
            if !is_dropped(c) {
                sink.push(c.encode_utf8(&mut buffer).as_bytes(), start, end);
                *in_word = true;
            }
        };
        for &(c, start, end) in part {
            if self.lowercase {
                c.to_lowercase().for_each(|l| push(l, start, end));
            } else {
                push(c, start, end);
            }
        }
    }
}

/// Role of a character in Unicode's condition Final_Sigma.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Casing {
    Cased,
    Ignorable,
    Other,
}

impl Casing {
    /// Derives the properties Cased and Case_Ignorable from `str::to_lowercase`.
    fn of(c: char) -> Self {
        let ends_word = |text: String| text.to_lowercase().ends_with('ς');
        match c {
            c if c.is_ascii_alphabetic() => Self::Cased,
            c if ends_word(format!("{c}Σ")) => Self::Cased,
            c if ends_word(format!("A{c}Σ")) => Self::Ignorable,
            _ => Self::Other,
        }
    }
}

/// Replaces each capital sigma in `characters`, the decomposition of bytes `range` of `text`, by `ς` at the end of a word and
/// by `σ` elsewhere.
///
/// A sigma ends a word if a cased letter precedes it and none follows, skipping case-ignorable characters, anywhere in the
/// text (Unicode 15, section 3.13). A search ends at the next sigma at the latest, so the cost is linear.
pub(super) fn lower_sigmas(
    characters: &mut [(char, usize, usize)],
    text: &str,
    range: std::ops::Range<usize>,
    strip_accents: bool,
) {
    let is_cased = |characters: &mut dyn Iterator<Item = char>| {
        characters.map(Casing::of).find(|&casing| casing != Casing::Ignorable) == Some(Casing::Cased)
    };
    // Outside `range` the text is not decomposed; canonical equivalents have the same casing, so their order does not matter.
    let decomposed = |c: char| {
        let mut out = Vec::new();
        decompose_compatible(c, |d| {
            if !strip_accents || canonical_combining_class(d) == 0 {
                out.push(d);
            }
        });
        out.into_iter()
    };
    for at in 0..characters.len() {
        if characters[at].0 != 'Σ' {
            continue;
        }
        let (before, after) = (&characters[..at], &characters[at + 1..]);
        let outside = text[..range.start].chars().rev().flat_map(|c| decomposed(c).rev());
        let is_inside = is_cased(&mut before.iter().rev().map(|&(c, ..)| c).chain(outside));
        let outside = text[range.end..].chars().flat_map(decomposed);
        let goes_on = is_cased(&mut after.iter().map(|&(c, ..)| c).chain(outside));
        characters[at].0 = if is_inside && !goes_on { 'ς' } else { 'σ' };
    }
}

/// As [`lower_sigmas`], with the rule of a regular expression in `tokenizer.json`: `ς` after a letter or mark and not
/// before one. `before` is the text before the characters, which are a whole word or the rest of one after ASCII.
fn lower_sigmas_alone(characters: &mut [(char, usize, usize)], before: &str) {
    let is_letter = |c: char| c.is_alphabetic() || is_combining_mark(c);
    let mut after_letter = before.chars().rev().find(|&c| !is_dropped(c)).is_some_and(is_letter);
    for at in 0..characters.len() {
        let before_letter = characters.get(at + 1).is_some_and(|&(c, ..)| is_letter(c));
        let c = &mut characters[at].0;
        let is_final = *c == 'Σ' && after_letter && !before_letter;
        after_letter = is_letter(*c);
        if is_final {
            *c = 'ς';
        }
    }
}

impl Cleaning {
    /// Normalizes one word by segments: a segment ends before a character that never composes with a preceding one.
    fn normalize(self, word: &str, from: usize, out: &mut Vec<(char, usize, usize)>) {
        let is_boundary = |c: char| {
            let quick = match self.normalization {
                Normalization::None => return true,
                Normalization::Nfc => is_nfc_quick(std::iter::once(c)),
                _ => is_nfkc_quick(std::iter::once(c)),
            };
            canonical_combining_class(c) == 0 && matches!(quick, IsNormalized::Yes) && !self.drops_first(c)
        };
        let mut start = 0;
        while start < word.len() {
            let segment = &word[start..];
            let len = segment.char_indices().skip(1).find(|&(_, c)| is_boundary(c)).map_or(segment.len(), |(at, _)| at);
            let kept = segment[..len].chars().filter(|&c| !self.drops_first(c));
            let mut push = |c| out.push((c, from + start, from + start + len));
            let is_kept = |&c: &char| !is_combining_mark(c);
            match (self.normalization, self.strip_accents) {
                (Normalization::None, _) => kept.for_each(push),
                (Normalization::Nfc, true) => kept.nfd().filter(is_kept).nfc().for_each(push),
                (Normalization::Nfc, false) => kept.nfc().for_each(push),
                (_, true) => kept.nfkd().filter(is_kept).nfc().for_each(push),
                (_, false) => kept.nfkc().for_each(&mut push),
            }
            start += len;
        }
    }
}
