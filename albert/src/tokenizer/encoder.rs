//! Encoding: the best segmentation of each word, and a memo of words seen.
//!
//! ```text
//! best[0] = 0        best[e] = max over pieces w[s..e] of best[s] + score(piece)        (Viterbi, strict >)
//! ```
//!
//! A word is a space and its bytes; no piece reaches across words, so a text's best segmentation is that of its words.
//! A character that is no piece by itself may be crossed at `lowest score - 10` as unknown. Among equal segmentations
//! the one found first stays: starts go left to right, ends from short to long. Unknown pieces that follow each other
//! become one.
//!
//! Cost: O(bytes x longest piece) trie steps a word; words of running text repeat, so [`Encoder`] keeps the pieces of
//! words it has seen in a direct-mapped table and most words cost one look-up. Nothing is allocated once buffers have
//! grown to the longest word.
//!
//! Source: Kudo, "Subword Regularization", 2018 (the unigram model); Viterbi 1967.

use std::cell::RefCell;

use super::vocabulary::{Piece, PieceKind, Vocabulary};
use super::{DigitComma, Tokenizer, WORD_MARK};

/// The best way to reach one byte of a word.
#[derive(Clone, Copy)]
struct Cell {
    score: f64,
    start: u32,
    id: u32,
}

const UNREACHED: Cell = Cell { score: f64::NEG_INFINITY, start: 0, id: 0 };

/// A piece of a word: its id and where it ends in the word's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) id: u32,
    pub(super) end: u32,
}

/// Buffers of the Viterbi search.
#[derive(Default)]
pub(super) struct Scratch {
    cells: Vec<Cell>,
    steps: Vec<Step>,
    /// Where cleaning builds the current word.
    pub(super) word: Vec<u8>,
    /// The pieces of the current word.
    pub(super) pieces: Vec<Step>,
}

impl Scratch {
    /// Gives memory back after a monstrous word, so that one bad line does not cost 16 bytes for each of its own.
    fn shrink(&mut self) {
        const KEEP: usize = 1 << 16;
        if self.cells.capacity().max(self.word.capacity()).max(self.pieces.capacity()) > KEEP {
            *self = Self::default();
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Lends this thread's buffers to `run`.
pub(super) fn with_scratch<R>(run: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| {
        let result = run(scratch);
        scratch.shrink();
        result
    })
}

/// Bytes of the UTF-8 character that starts with `lead`.
fn character_len(lead: u8) -> usize {
    match lead {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    }
}

impl Vocabulary {
    /// Finds the best segmentation of `word`; its score is that of the last cell.
    fn search(&self, word: &[u8], cells: &mut Vec<Cell>) -> f64 {
        let n = word.len();
        cells.clear();
        cells.resize(n + 1, UNREACHED);
        cells[0].score = 0.0;
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
                    if score > cells[end].score {
                        cells[end] = Cell { score, start: start as u32, id };
                    }
                }
            }
            if !covered {
                let score = base + self.unknown_score;
                if score > cells[next].score {
                    cells[next] = Cell { score, start: start as u32, id: self.specials.unk };
                }
            }
            start = next;
        }
        cells[n].score
    }

    /// The best segmentation of `word` in order, consecutive unknowns merged.
    fn segment<'s>(&self, word: &[u8], cells: &mut Vec<Cell>, steps: &'s mut Vec<Step>) -> &'s [Step] {
        self.search(word, cells);
        steps.clear();
        let mut end = word.len();
        while end > 0 {
            let Cell { start, id, .. } = cells[end];
            let merges = id == self.specials.unk && steps.last().is_some_and(|step| step.id == id);
            if !merges {
                steps.push(Step { id, end: end as u32 });
            }
            end = start as usize;
        }
        steps.reverse();
        steps
    }
}

impl Tokenizer {
    /// Natural log-probability of the best segmentation of one word (a space and its bytes).
    pub(super) fn word_score(&self, word: &[u8]) -> f64 {
        with_scratch(|scratch| self.vocabulary.search(word, &mut scratch.cells))
    }

    /// Puts the pieces of one word (a space and its bytes) into `out`, the digit-comma rule applied.
    pub(super) fn segment_word(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<Step>) {
        out.clear();
        let mut start = 0;
        for &step in self.vocabulary.segment(word, &mut scratch.cells, &mut scratch.steps) {
            match self.digit_comma_of(step.id) {
                None => out.push(step),
                Some(replacement) => self.place(replacement, word, start, step.end, out),
            }
            start = step.end;
        }
    }

    /// Lays the pieces of a digit-comma replacement over the bytes `start..end` of the word that they replace.
    fn place(&self, replacement: &[u32], word: &[u8], start: u32, end: u32, out: &mut Vec<Step>) {
        let mut at = start;
        for (index, &id) in replacement.iter().enumerate() {
            let piece = &self.vocabulary.pieces[id as usize];
            // A spurious word mark (rule as released) covers no byte; an unknown covers what is left before the comma.
            let len = match piece.kind {
                PieceKind::Unknown => end - 1 - at,
                _ => {
                    let mark = piece.text.starts_with(WORD_MARK);
                    let letters = piece.text.len() - if mark { WORD_MARK.len_utf8() } else { 0 };
                    letters as u32 + u32::from(mark && word[at as usize] == b' ')
                }
            };
            at = if index + 1 == replacement.len() { end } else { (at + len).min(end) };
            match out.last_mut() {
                Some(last) if last.id == id && piece.kind == PieceKind::Unknown => last.end = at,
                _ => out.push(Step { id, end: at }),
            }
        }
    }

    /// What replaces a piece such as `▁1,`, by the rule in force.
    #[inline]
    fn digit_comma_of(&self, id: u32) -> Option<&[u32]> {
        self.digit_comma.get(id as usize)?.as_deref()
    }

    /// By id, what replaces each piece of two or more characters that ends in a digit and a comma; empty if none does.
    pub(super) fn digit_comma_table(vocabulary: &Vocabulary, rule: DigitComma) -> Vec<Option<Box<[u32]>>> {
        let of_piece = |piece: &Piece| -> Option<Box<[u32]>> {
            let number = piece.text.strip_suffix(',')?;
            let applies = piece.kind == PieceKind::Normal && number.chars().next_back().is_some_and(is_digit);
            applies.then(|| vocabulary.without_comma(number, rule))
        };
        match rule {
            DigitComma::Off => Vec::new(),
            _ if vocabulary.pieces.iter().all(|piece| of_piece(piece).is_none()) => Vec::new(),
            _ => vocabulary.pieces.iter().map(of_piece).collect(),
        }
    }
}

impl Vocabulary {
    /// The pieces of `number` (which may start with a word mark) as the digit-comma rule has them, then the comma.
    fn without_comma(&self, number: &str, rule: DigitComma) -> Box<[u32]> {
        let unk = self.specials.unk;
        let bare = number.trim_start_matches(WORD_MARK);
        let word = [b" ", bare.as_bytes()].concat();
        let mut steps = Vec::new();
        self.segment(&word, &mut Vec::new(), &mut steps);
        let mut ids: Vec<u32> = steps.iter().map(|step| step.id).collect();
        if rule == DigitComma::Intended && bare.len() == number.len() {
            // The mark that encoding put before the number is taken off again.
            match self.pieces[ids[0] as usize].text.strip_prefix(WORD_MARK) {
                Some("") => drop(ids.remove(0)),
                Some(rest) => ids[0] = self.ids.get(rest).copied().unwrap_or(unk),
                None => {}
            }
        }
        ids.push(self.ids.get(",").copied().unwrap_or(unk));
        ids.into()
    }
}

/// Python's `str.isdigit` on decomposed text: decimal digits of any script.
fn is_digit(c: char) -> bool {
    c.is_ascii_digit() || (!c.is_ascii() && c.is_numeric() && !c.is_alphabetic())
}

/// Encodes many texts on one thread, remembering the pieces of words it has seen.
///
/// Results are those of [`Tokenizer::encode`], bit for bit; the memory is bounded (about 3 MB).
pub struct Encoder<'t> {
    tokenizer: &'t Tokenizer,
    scratch: Scratch,
    memo: Memo,
}

impl<'t> Encoder<'t> {
    /// An encoder with an empty memory.
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, scratch: Scratch::default(), memo: Memo::new() }
    }

    /// Appends the ids of `text` to `out`, without `[CLS]` and `[SEP]`.
    pub fn encode_into(&mut self, text: &str, out: &mut Vec<u32>) {
        let Self { tokenizer, scratch, memo } = self;
        let first = out.len();
        let unk = tokenizer.vocabulary.specials.unk;
        let (mut word_bytes, mut pieces) = (std::mem::take(&mut scratch.word), std::mem::take(&mut scratch.pieces));
        tokenizer.cleaning.for_each_word(text, &mut word_bytes, |word| {
            let hash = Memo::hash(word);
            if let Some(ids) = memo.get(hash, word) {
                append(out, first, ids, unk);
                return;
            }
            tokenizer.segment_word(word, scratch, &mut pieces);
            append(out, first, memo.insert(hash, word, pieces.iter().map(|step| step.id)), unk);
        });
        (scratch.word, scratch.pieces) = (word_bytes, pieces);
        scratch.shrink();
    }
}

/// Appends a word's ids; an unknown after an unknown (counted from `first`) is the same piece. Words meet in an unknown
/// only if the vocabulary has no piece for the word mark.
#[inline]
fn append(out: &mut Vec<u32>, first: usize, ids: &[u32], unk: u32) {
    let merges = ids.first() == Some(&unk) && out.len() > first && out.last() == Some(&unk);
    out.extend_from_slice(&ids[usize::from(merges)..]);
}

/// Words seen and their ids: direct-mapped, a newcomer takes the slot. Long words are not worth keeping.
struct Memo {
    slots: Vec<Slot>,
    bytes: Vec<u8>,
    ids: Vec<u32>,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    hash: u64,
    word: u32,
    ids: u32,
    word_len: u16,
    ids_len: u16,
}

impl Memo {
    const SLOTS: usize = 1 << 15;
    const MAX_BYTES: usize = 1 << 20;
    const MAX_WORD: usize = 64;

    fn new() -> Self {
        Self { slots: vec![Slot::default(); Self::SLOTS], bytes: Vec::new(), ids: Vec::new() }
    }

    /// Multiply and fold, eight bytes a time. Only speed depends on it, never results.
    #[inline]
    fn hash(word: &[u8]) -> u64 {
        const K: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut hash = word.len() as u64;
        let mut chunks = word.chunks_exact(8);
        for chunk in chunks.by_ref() {
            let value = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
            hash = (hash.rotate_left(23) ^ value).wrapping_mul(K);
        }
        let rest = chunks.remainder().iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        hash = (hash.rotate_left(23) ^ rest).wrapping_mul(K);
        hash ^ hash >> 29
    }

    #[inline]
    fn get(&self, hash: u64, word: &[u8]) -> Option<&[u32]> {
        let slot = &self.slots[hash as usize % Self::SLOTS];
        let key = &self.bytes[slot.word as usize..][..usize::from(slot.word_len)];
        (slot.hash == hash && key == word).then(|| &self.ids[slot.ids as usize..][..usize::from(slot.ids_len)])
    }

    /// Keeps a word's ids and returns them.
    fn insert(&mut self, hash: u64, word: &[u8], ids: impl Iterator<Item = u32>) -> &[u32] {
        if self.bytes.len() > Self::MAX_BYTES || self.ids.len() > Self::MAX_BYTES {
            self.slots.fill(Slot::default());
            self.bytes.clear();
            self.ids.clear();
        }
        let at = self.ids.len();
        self.ids.extend(ids);
        if word.len() <= Self::MAX_WORD {
            let slot = Slot {
                hash,
                word: self.bytes.len() as u32,
                ids: at as u32,
                word_len: word.len() as u16,
                ids_len: (self.ids.len() - at) as u16,
            };
            self.bytes.extend_from_slice(word);
            self.slots[hash as usize % Self::SLOTS] = slot;
        }
        &self.ids[at..]
    }
}
