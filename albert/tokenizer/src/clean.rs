//! Cleaning: what text becomes before it is cut into pieces.
//!
//! ```text
//! "  Hello,\tﬁne  Ångström "  ->  "hello, fine angstrom"
//! ```
//!
//! Per character, in this order (Google's `preprocess_text`, then what SentencePiece's `nmt_nfkc` rules add):
//! 1. white space, and what prints as nothing but separates (zero-width space, byte order mark, U+FFFD, U+2581),
//!    becomes a space; runs become one space; none stays at either end;
//! 2. control characters are dropped;
//! 3. with [`Cleaning::strip_accents`]: NFKD, and every character with a non-zero canonical combining class is dropped;
//!    without: NFKC, so that one character has one spelling;
//! 4. with [`Cleaning::lowercase`]: lower case, by Unicode's full mapping. A capital sigma becomes `ς` or `σ` by its
//!    neighbors in the text after step 3, as if steps 1 and 2 came last: the result is that of Python's `str.lower`.
//!
//! Dropping all combining characters makes NFKD's reordering unobservable, so decomposition goes character by
//! character and each cleaned byte knows the source bytes it came from. ASCII takes a table look-up a byte.
//!
//! Source: the released ALBERT `tokenization.py`; Unicode Standard Annex 15 for the stable boundaries used by NFKC.
//! Limits: the source offsets of NFKC text are those of whole composition segments.

use serde::{Deserialize, Serialize};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::{canonical_combining_class, decompose_compatible};
use unicode_normalization::{IsNormalized, is_nfkc_quick};

/// How text is cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cleaning {
    /// Lower-case everything. Released English models: on.
    pub lowercase: bool,
    /// NFKD and drop combining characters (Google's `keep_accents = False`). Released English models: on.
    pub strip_accents: bool,
}

impl Default for Cleaning {
    fn default() -> Self {
        Self { lowercase: true, strip_accents: true }
    }
}

/// Cleaned text with its way back to the source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cleaned {
    /// The cleaned text.
    pub text: String,
    /// `[text.len()]`: for each cleaned byte, the source bytes `start..end` of the character it came from.
    pub source: Vec<(usize, usize)>,
}

/// Whether a character counts as a space. ASCII 0x1c..0x1f are white space to Python's `split`, the rest of the list
/// beyond Unicode's White_Space is mapped to a space by `nmt_nfkc`.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace()
        || matches!(
            c,
            '\u{1c}'
                ..='\u{1f}' | '\u{200b}' | '\u{200c}' | '\u{200e}' | '\u{200f}' | '\u{2581}' | '\u{feff}' | '\u{fffd}'
        )
}

/// Whether a character is dropped without a trace (control characters of `nmt_nfkc`, and NUL).
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

/// Where cleaned characters go. The two kinds are: words for the encoder, which needs no source, and [`Cleaned`].
trait Sink {
    /// A word's next bytes, which came from source bytes `start..end`.
    fn push(&mut self, bytes: &[u8], start: usize, end: usize);
    /// A word is complete (never called on an empty one).
    fn end_word(&mut self);
}

/// Hands over one word at a time, each preceded by a space: the shape in which the trie holds pieces.
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
            // The space between two words belongs to the source between their characters; if both came from one
            // composition segment, to that.
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
    /// Cleans `text` and keeps, for every cleaned byte, the source bytes it came from.
    pub fn clean(&self, text: &str) -> Cleaned {
        let mut sink = WithSource::default();
        self.run(text, &mut sink);
        let text = String::from_utf8(sink.bytes).expect("cleaning writes whole characters");
        Cleaned { text, source: sink.source }
    }

    /// Calls `each` with every cleaned word of `text`, in order, as a space followed by the word's bytes.
    /// `word` is scratch space that is kept between calls so that nothing is allocated.
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
            // Composition can reach back to an ASCII letter, so NFKC takes the slow way when the next byte is not ASCII.
            let alone = self.strip_accents || bytes.get(at + 1).is_none_or(u8::is_ascii);
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

    /// Takes over at a character that is not ASCII (it may be a space) and goes on to the end of the word;
    /// returns the source offset after it.
    #[cold]
    fn rest_of_word(&self, text: &str, from: usize, in_word: &mut bool, sink: &mut impl Sink) -> usize {
        let rest = &text[from..];
        let len = rest.char_indices().skip(1).find(|&(_, c)| is_space(c)).map_or(rest.len(), |(at, _)| at);
        let mut decomposed: Vec<(char, usize, usize)> = Vec::new();
        if self.strip_accents {
            for (at, c) in rest[..len].char_indices() {
                let (start, end) = (from + at, from + at + c.len_utf8());
                decompose_compatible(c, |d| {
                    if canonical_combining_class(d) == 0 {
                        decomposed.push((d, start, end));
                    }
                });
            }
        } else {
            compose(&rest[..len], from, &mut decomposed);
        }
        if self.lowercase {
            lower_sigmas(&mut decomposed, text, from..from + len, self.strip_accents);
        }
        // Compatibility forms may hold spaces of their own ("´" is a space and an accent): cut there.
        let mut characters = decomposed.as_slice();
        while !characters.is_empty() {
            let cut = characters.iter().position(|&(c, ..)| is_space(c)).unwrap_or(characters.len());
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

/// How a character takes part in Unicode's condition Final_Sigma.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Casing {
    Cased,
    Ignorable,
    Other,
}

impl Casing {
    /// The properties Cased and Case_Ignorable are those that `str::to_lowercase` applies: it is asked for them.
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

/// Replaces each capital sigma in `characters`, which are bytes `range` of `text` after decomposition, by `ς` where it ends
/// a word and by `σ` elsewhere.
///
/// A sigma ends a word if a cased letter precedes it and none follows, case-ignorable characters passed over, anywhere in
/// the text (Unicode 15, section 3.13). A search ends at the next sigma at the latest: the cost is linear.
pub(super) fn lower_sigmas(
    characters: &mut [(char, usize, usize)],
    text: &str,
    range: std::ops::Range<usize>,
    strip_accents: bool,
) {
    let is_cased = |characters: &mut dyn Iterator<Item = char>| {
        characters.map(Casing::of).find(|&casing| casing != Casing::Ignorable) == Some(Casing::Cased)
    };
    // Outside `range` the text is as it was; canonical equivalents have one casing, so their order does not matter.
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

/// NFKC of one word, segment by segment: a segment ends before a character that nothing before it composes with.
fn compose(word: &str, from: usize, out: &mut Vec<(char, usize, usize)>) {
    let is_boundary =
        |c: char| canonical_combining_class(c) == 0 && matches!(is_nfkc_quick(std::iter::once(c)), IsNormalized::Yes);
    let mut start = 0;
    while start < word.len() {
        let segment = &word[start..];
        let len = segment.char_indices().skip(1).find(|&(_, c)| is_boundary(c)).map_or(segment.len(), |(at, _)| at);
        out.extend(segment[..len].nfkc().map(|c| (c, from + start, from + start + len)));
        start += len;
    }
}
