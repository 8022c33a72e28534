//! Viterbi search for the best segmentation.
//!
//! ```text
//! best[0] = base     best[e] = max over pieces w[s..e] of best[s] + score(piece)        (Viterbi, strict >)
//! ```
//!
//! A character without a piece is unknown, at `lowest score - 10`. Among equal segmentations the first one found wins:
//! starts from left to right, ends from short to long. Consecutive unknown pieces become one or, with byte fallback, the
//! bytes of their characters.
//!
//! There are two kinds of arithmetic. Our vocabularies sum in f64, word by word from 0. SentencePiece stores the best sum up
//! to each byte of the *whole text* in f32 and compares an f64 sum with it; rounding decides near ties, so
//! [`Arithmetic::Single`] does the same, and the search of a word starts from the sum of the preceding text (`base`).
//!
//! To make words cacheable, [`Lattice::segment_anywhere`] searches once in f64 from 0 and records the smallest difference
//! `gap` between two compared sums. Rounding changes a sum by at most half a unit in the last place a piece, which is less
//! than `n · x · 2^-24` over n pieces if no sum exceeds x. While twice that is below the gap, every comparison has the result
//! of exact arithmetic for any base, so the pieces equal those of the search from `base`
//! (`tests::remembered_words_are_those_of_the_search_from_any_base`).
//!
//! Cost: O(bytes x longest piece) trie steps. Source: Kudo, "Subword Regularization", 2018; Viterbi 1967.

use super::trie::Trie;
use super::vocabulary::{Piece, PieceKind, Vocabulary};
use super::{TokenizerError, WORD_MARK};

/// Difference between the score of the worst piece and that of an unknown character.
pub(super) const UNKNOWN_PENALTY: f64 = 10.0;

/// Arithmetic of score sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arithmetic {
    /// f64, user-defined symbols at 0: our vocabularies.
    Double,
    /// f32, user-defined symbols at -0.1: SentencePiece models.
    Single,
}

/// Best segmentation up to one byte.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    score: f64,
    start: u32,
    id: u32,
}

const UNREACHED: Cell = Cell { score: f64::NEG_INFINITY, start: 0, id: 0 };

/// A piece of a word: id and end in the bytes of the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) id: u32,
    pub(super) end: u32,
}

/// Pieces, prepared for the search.
#[derive(Debug, Clone)]
pub(super) struct Lattice {
    arithmetic: Arithmetic,
    scores: Vec<f64>,
    unknown: u32,
    unknown_score: f64,
    trie: Trie,
    /// Pieces of every byte, for byte fallback.
    bytes: Option<Box<[u32; 256]>>,
}

/// Length of the UTF-8 character that starts with `lead`.
pub(super) fn character_len(lead: u8) -> usize {
    match lead {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    }
}

/// Trie of the pieces that the search may return. In its keys the word mark is a space, as in cleaned text.
fn trie_of(vocabulary: &Vocabulary) -> Trie {
    let Vocabulary { pieces, by_text, spans_words, .. } = vocabulary;
    // Ids in the order of their keys, unless a piece contains a mark.
    let before = |text: &str| by_text.partition_point(|&id| pieces[id as usize].text.as_str() < text);
    let [space, mark, other] = [" ", "▁", "\u{2582}"].map(before);
    let sorted = [&by_text[..space], &by_text[mark..other], &by_text[space..mark], &by_text[other..]];
    let mut text = Vec::with_capacity(pieces.iter().map(|piece| piece.text.len() + 1).sum());
    let mut ids = Vec::with_capacity(pieces.len());
    for &id in sorted.into_iter().flatten() {
        let piece = &pieces[id as usize];
        if matches!(piece.kind, PieceKind::Normal | PieceKind::UserDefined) {
            match piece.text.strip_prefix(WORD_MARK) {
                _ if *spans_words => text.extend_from_slice(piece.text.replace(WORD_MARK, " ").as_bytes()),
                Some(rest) => {
                    text.push(b' ');
                    text.extend_from_slice(rest.as_bytes());
                }
                None => text.extend_from_slice(piece.text.as_bytes()),
            }
            text.push(0);
            ids.push(id);
        }
    }
    let mut keys: Vec<(&[u8], u32)> = text.split(|&byte| byte == 0).zip(ids).collect();
    if *spans_words {
        keys.sort_unstable();
    }
    Trie::new(&keys)
}

impl Lattice {
    /// Creates the lattice of a checked vocabulary.
    pub(super) fn new(vocabulary: &Vocabulary, arithmetic: Arithmetic) -> Result<Self, TokenizerError> {
        let (pieces, unknown) = (&vocabulary.pieces, vocabulary.specials.unk);
        let normal = || pieces.iter().filter(|piece| piece.kind == PieceKind::Normal).map(|piece| piece.score);
        let (unknown_score, scores) = match arithmetic {
            Arithmetic::Double => {
                (normal().fold(0.0, f64::min) - UNKNOWN_PENALTY, pieces.iter().map(|piece| piece.score).collect())
            }
            Arithmetic::Single => {
                let lowest = normal().map(|score| score as f32).reduce(f32::min).unwrap_or(0.0);
                let highest = normal().map(|score| score as f32).fold(f32::MIN_POSITIVE, f32::max);
                let score = |piece: &Piece| match piece.kind {
                    PieceKind::UserDefined => f64::from(piece.text.len() as f32 * highest) - 0.1,
                    _ => f64::from(piece.score as f32),
                };
                (f64::from(lowest - UNKNOWN_PENALTY as f32), pieces.iter().map(score).collect())
            }
        };
        let bytes = byte_pieces(pieces)?;
        Ok(Self { arithmetic, scores, unknown, unknown_score, trie: trie_of(vocabulary), bytes })
    }

    /// Sum after a word of the known pieces `ids`, starting at `base`.
    #[inline]
    pub(super) fn advance(&self, base: f64, ids: &[u32]) -> f64 {
        match self.arithmetic {
            Arithmetic::Double => 0.0,
            Arithmetic::Single => ids.iter().fold(base, |sum, &id| f64::from((sum + self.scores[id as usize]) as f32)),
        }
    }

    /// Finds the best segmentation of `word`, and the largest base (in magnitude) for which it is valid; negative if it is
    /// valid for none, as for unknown characters.
    pub(super) fn segment_anywhere(&self, word: &[u8], cells: &mut Vec<Cell>, steps: &mut Vec<Step>) -> f32 {
        if self.arithmetic == Arithmetic::Double {
            self.segment(word, 0.0, cells, steps);
            return f32::INFINITY;
        }
        let mut gap = f64::INFINITY;
        self.search_with(word, 0.0, cells, |score| score, |difference| gap = gap.min(difference));
        self.trace(word, cells, steps);
        if steps.iter().any(|step| step.id == self.unknown) || self.bytes.is_some() {
            return -1.0;
        }
        let depth = cells.iter().map(|cell| cell.score.abs()).filter(|score| score.is_finite()).fold(0.0, f64::max);
        // Twice n · x · 2^-24, and a factor of two for safety.
        (gap * f64::from(1 << 22) / word.len() as f64 - depth) as f32
    }

    /// Base of the word after one that ended with `sum`.
    #[inline]
    pub(super) fn carried(&self, sum: f64) -> f64 {
        match self.arithmetic {
            Arithmetic::Double => 0.0,
            Arithmetic::Single => sum,
        }
    }

    /// Finds the best segmentation of `word`, starting at `base`; returns its sum.
    pub(super) fn search(&self, word: &[u8], base: f64, cells: &mut Vec<Cell>) -> f64 {
        match self.arithmetic {
            Arithmetic::Double => self.search_with(word, base, cells, |score| score, |_| ()),
            Arithmetic::Single => self.search_with(word, base, cells, |score| f64::from(score as f32), |_| ()),
        }
    }

    #[inline(always)]
    fn search_with(
        &self,
        word: &[u8],
        base: f64,
        cells: &mut Vec<Cell>,
        round: impl Fn(f64) -> f64,
        mut compared: impl FnMut(f64),
    ) -> f64 {
        let n = word.len();
        cells.clear();
        cells.resize(n + 1, UNREACHED);
        cells[0].score = base;
        let mut start = 0;
        while start < n {
            let base = cells[start].score;
            let next = (start + character_len(word[start])).min(n);
            let mut node = self.trie.root();
            let mut covered = false;
            for (at, &byte) in word[start..].iter().enumerate() {
                let Some(child) = self.trie.step(node, byte) else { break };
                node = child;
                if let Some(id) = node.id() {
                    let end = start + at + 1;
                    covered |= end == next;
                    let score = base + self.scores[id as usize];
                    compared((score - cells[end].score).abs());
                    if score > cells[end].score {
                        cells[end] = Cell { score: round(score), start: start as u32, id };
                    }
                }
            }
            if !covered {
                let score = base + self.unknown_score;
                compared((score - cells[next].score).abs());
                if score > cells[next].score {
                    cells[next] = Cell { score: round(score), start: start as u32, id: self.unknown };
                }
            }
            start = next;
        }
        cells[n].score
    }

    /// Writes the best segmentation of `word` in order; returns its sum. Unknown pieces are merged or replaced by bytes.
    pub(super) fn segment(&self, word: &[u8], base: f64, cells: &mut Vec<Cell>, steps: &mut Vec<Step>) -> f64 {
        let total = self.search(word, base, cells);
        self.trace(word, cells, steps);
        total
    }

    /// Traces the segmentation back from the end.
    fn trace(&self, word: &[u8], cells: &[Cell], steps: &mut Vec<Step>) {
        steps.clear();
        let mut end = word.len();
        while end > 0 {
            let Cell { start, id, .. } = cells[end];
            match &self.bytes {
                Some(bytes) if id == self.unknown => {
                    push_bytes(bytes, word, start as usize, end, steps);
                }
                _ => {
                    let merges = id == self.unknown && steps.last().is_some_and(|step| step.id == id);
                    if !merges {
                        steps.push(Step { id, end: end as u32 });
                    }
                }
            }
            end = start as usize;
        }
        steps.reverse();
    }
}

/// Pushes the byte pieces of one unknown character in reverse; the last byte covers the character.
fn push_bytes(pieces: &[u32; 256], word: &[u8], start: usize, end: usize, steps: &mut Vec<Step>) {
    let mut buffer = [0; 4];
    let character = match &word[start..end] {
        b" " => WORD_MARK.encode_utf8(&mut buffer).as_bytes(),
        character => character,
    };
    let mut covers = end;
    for &byte in character.iter().rev() {
        steps.push(Step { id: pieces[usize::from(byte)], end: covers as u32 });
        covers = start;
    }
}

/// Pieces `<0x00>` to `<0xFF>`: all or none.
fn byte_pieces(pieces: &[Piece]) -> Result<Option<Box<[u32; 256]>>, TokenizerError> {
    let mut found = [None; 256];
    let mut count = 0;
    for (id, piece) in (0u32..).zip(pieces).filter(|(_, piece)| piece.kind == PieceKind::Byte) {
        let Some(byte) = byte_of(&piece.text) else {
            let text = format!("piece {id}, {:?}, is a byte piece; expected a text such as <0x41>", piece.text);
            return Err(TokenizerError::Vocabulary(text));
        };
        found[usize::from(byte)] = Some(id);
        count += 1;
    }
    if count == 0 {
        return Ok(None);
    }
    match found.iter().position(Option::is_none) {
        Some(byte) => Err(TokenizerError::Vocabulary(format!(
            "{count} byte pieces without <0x{byte:02X}>; byte fallback needs all 256"
        ))),
        None => Ok(Some(Box::new(found.map(Option::unwrap_or_default)))),
    }
}

/// Byte of a piece such as `<0x41>`.
pub(super) fn byte_of(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_upper = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b));
    is_upper.then(|| u8::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Draw, toy_pieces};

    #[test]
    fn remembered_words_are_those_of_the_search_from_any_base() {
        // Scores on a coarse grid of 32-bit numbers cause many ties and near ties.
        let mut draw = Draw(3);
        let (mut remembered, mut refused) = (0, 0);
        for _ in 0..40 {
            let mut pieces = toy_pieces(&[("▁", -3.0)]);
            for text in ["a", "b", "c", "aa", "ab", "ba", "bc", "abc", "▁a", "▁ab", "cab", "bb", "aab", "▁b", "cc"]
            {
                let nearly = -2.0 * text.chars().count() as f32 - draw.below(40) as f32 * 1e-6;
                pieces.push(Piece::normal(text, f64::from(nearly - draw.below(3) as f32)));
            }
            let vocabulary = Vocabulary::of_unigram(pieces).expect("checked pieces");
            let lattice = Lattice::new(&vocabulary, Arithmetic::Single).expect("no byte pieces");
            let (mut cells, mut steps, mut exact) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..500 {
                let word: Vec<u8> =
                    std::iter::once(b' ').chain((0..1 + draw.below(12)).map(|_| b"abc"[draw.below(3)])).collect();
                let reach = lattice.segment_anywhere(&word, &mut cells, &mut steps);
                let base = f64::from(-(draw.below(1 << 24) as f32) / (1 << draw.below(24)) as f32);
                if base.abs() > f64::from(reach) {
                    refused += 1;
                    continue;
                }
                remembered += 1;
                let total = lattice.segment(&word, base, &mut cells, &mut exact);
                assert_eq!(steps, exact, "word {word:?} from {base}, reach {reach}");
                let ids: Vec<u32> = steps.iter().map(|step| step.id).collect();
                assert_eq!(lattice.advance(base, &ids), total, "word {word:?} from {base}");
            }
        }
        assert!(remembered > 1000 && refused > 1000, "{remembered} remembered, {refused} refused: nothing was tried");
    }
}
