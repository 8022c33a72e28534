//! Word counts, required characters, and segments of words.
//!
//! A segment is a maximal part of a word that pieces can cover: it ends at a change of script, before and after a
//! user-defined symbol, and at characters that are not required. The word mark (a space here) belongs to the text after it.

use std::ops::Range;

use rayon::prelude::*;
use unicode_script::{Script, UnicodeScript};

use super::{Counts, TrainerConfig, losses};
use crate::TokenizerError;
use crate::vocabulary::is_kana_mark;

/// Distinct strings, sorted by bytes, with their counts.
pub(super) type Counted = Vec<(Box<[u8]>, u64)>;

/// Statistics of a text.
pub(super) struct Corpus {
    /// Distinct segments, sorted by bytes, with their counts.
    pub(super) segments: Counted,
    /// Required characters, most frequent first (equal counts by code point); the word mark is a space.
    pub(super) characters: Vec<char>,
    /// Their counts.
    pub(super) character_counts: Vec<u64>,
    pub(super) lines: u64,
    pub(super) skipped: u64,
    pub(super) words: u64,
    pub(super) distinct_words: usize,
    /// Characters without a piece, most frequent first, with their counts.
    pub(super) uncovered: Vec<(char, u64)>,
}

impl Corpus {
    pub(super) fn new(text: WordCounts, config: &TrainerConfig) -> Result<Self, TokenizerError> {
        let WordCounts { counts, lines, skipped, .. } = text;
        if counts.is_empty() {
            return Err(TokenizerError::NoText { lines, skipped, limit: config.max_line_bytes });
        }
        let words = sorted(counts);
        let symbols = Symbols(&config.user_defined_symbols);
        let (characters, character_counts, uncovered) =
            required_characters(&words, &symbols, config.character_coverage);
        let segments = cut_words(&words, &symbols, &characters, config.split_digits);
        Ok(Self {
            segments,
            characters,
            character_counts,
            lines,
            skipped,
            words: words.iter().map(|(_, count)| count).sum(),
            distinct_words: words.len(),
            uncovered,
        })
    }
}

/// Distinct cleaned words of a text with their counts, the only input of training. Counts for parts of a text, made on
/// different machines, add up to those of the whole text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WordCounts {
    /// Counts by a space and the word's bytes.
    counts: Counts<Box<[u8]>>,
    /// Sampled words before cleaning (`losses.rs`).
    pub(super) sample: Counts<Box<[u8]>>,
    pub(super) lines: u64,
    skipped: u64,
}

impl WordCounts {
    /// Counts the words of `lines`, on the threads of the current rayon pool.
    pub fn add<L: AsRef<str> + Sync>(&mut self, lines: &[L], config: &TrainerConfig) {
        // Several chunks for each thread.
        const CHUNK: usize = 1 << 12;
        let before = self.lines;
        let count_chunk = |(number, chunk): (usize, &[L])| {
            let mut counts: Counts<Box<[u8]>> = Counts::default();
            let mut sample = Counts::default();
            let first = before + (number * CHUNK) as u64;
            let mut word = Vec::new();
            let mut skipped = 0;
            for (index, line) in (first..).zip(chunk.iter().map(AsRef::as_ref)) {
                if line.len() > config.max_line_bytes {
                    skipped += 1;
                    continue;
                }
                losses::add(&mut sample, config.cleaning, index, line);
                config.cleaning.for_each_word(line, &mut word, |word| match counts.get_mut(word) {
                    Some(count) => *count += 1,
                    None => drop(counts.insert(word.into(), 1)),
                });
            }
            (counts, sample, skipped)
        };
        let parts: Vec<_> = lines.par_chunks(CHUNK).enumerate().map(count_chunk).collect();
        self.lines += lines.len() as u64;
        for (counts, sample, skipped) in parts {
            self.skipped += skipped;
            for (total, part) in [(&mut self.counts, counts), (&mut self.sample, sample)] {
                part.into_iter().for_each(|(word, count)| *total.entry(word).or_default() += count);
            }
        }
    }

    /// Calls `each` with the counts in messages of about `size` bytes, for [`add_message`](Self::add_message) in another
    /// process; stops at its first error.
    ///
    /// # Errors
    /// The error of `each`.
    pub fn for_each_message<E>(&self, size: usize, mut each: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut message = [self.lines, self.skipped].map(u64::to_le_bytes).concat();
        for (word, count) in self.counts.iter().chain(&self.sample) {
            message.extend(count.to_le_bytes());
            message.extend((word.len() as u64).to_le_bytes());
            message.extend(word);
            if message.len() >= size {
                each(&message)?;
                message.clear();
                message.extend([0; 16]);
            }
        }
        each(&message)
    }

    /// Adds the counts in a message from [`for_each_message`](Self::for_each_message).
    ///
    /// # Errors
    /// The message is damaged.
    pub fn add_message(&mut self, message: &[u8]) -> Result<(), TokenizerError> {
        let damaged = || TokenizerError::Vocabulary("a message of word counts is damaged".into());
        let mut rest = message;
        let number = |rest: &mut &[u8]| {
            let (bytes, after) = rest.split_first_chunk().ok_or_else(damaged)?;
            *rest = after;
            Ok::<u64, TokenizerError>(u64::from_le_bytes(*bytes))
        };
        self.lines += number(&mut rest)?;
        self.skipped += number(&mut rest)?;
        while !rest.is_empty() {
            let (count, len) = (number(&mut rest)?, number(&mut rest)?);
            let word = rest.split_off(..len as usize).ok_or_else(damaged)?;
            // Words are used as text everywhere.
            std::str::from_utf8(word).map_err(|_| damaged())?;
            let table = if word.first() == Some(&losses::SAMPLED) { &mut self.sample } else { &mut self.counts };
            match table.get_mut(word) {
                Some(total) => *total += count,
                None => drop(table.insert(word.into(), count)),
            }
        }
        Ok(())
    }
}

fn sorted(counts: Counts<Box<[u8]>>) -> Counted {
    let mut list: Vec<_> = counts.into_iter().collect();
    list.par_sort_unstable();
    list
}

/// User-defined symbols.
struct Symbols<'c>(&'c [String]);

impl Symbols<'_> {
    /// Length of the longest symbol at the start of `text`; 0 if none.
    fn longest_at(&self, text: &str) -> usize {
        self.0.iter().filter(|symbol| text.starts_with(symbol.as_str())).map(String::len).max().unwrap_or(0)
    }
}

/// Characters of a word with their bytes; a user-defined symbol is one character, `None`.
fn characters_of<'w>(word: &'w [u8], symbols: &'w Symbols<'w>) -> impl Iterator<Item = (Range<usize>, Option<char>)> {
    let text = std::str::from_utf8(word).expect("cleaning writes whole characters");
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = &text[at..];
        let c = rest.chars().next()?;
        let symbol = symbols.longest_at(rest);
        let len = if symbol > 0 { symbol } else { c.len_utf8() };
        at += len;
        Some((at - len..at, (symbol == 0).then_some(c)))
    })
}

/// The most frequent characters, which together cover the share `coverage`, with their counts, and the rest.
fn required_characters(
    words: &[(Box<[u8]>, u64)],
    symbols: &Symbols,
    coverage: f64,
) -> (Vec<char>, Vec<u64>, Vec<(char, u64)>) {
    let mut counts: Counts<u32> = Counts::default();
    for (word, count) in words {
        for (_, c) in characters_of(word, symbols) {
            if let Some(c) = c {
                *counts.entry(c.into()).or_default() += count;
            }
        }
    }
    let mut ranked: Vec<(char, u64)> =
        counts.into_iter().map(|(c, count)| (char::from_u32(c).expect("came from a char"), count)).collect();
    ranked.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let total: u64 = ranked.iter().map(|(_, count)| count).sum();
    let mut covered = 0;
    let enough = ranked.iter().position(|&(_, count)| {
        let stop = covered as f64 / total as f64 >= coverage;
        covered += count;
        stop
    });
    let uncovered = ranked.split_off(enough.unwrap_or(ranked.len()));
    let (characters, counts) = ranked.into_iter().unzip();
    (characters, counts, uncovered)
}

/// Script for the segmentation: Kana and Han are one script, inherited characters have none.
fn script_of(c: char) -> Option<Script> {
    // Finding a script requires a search in a table.
    let script = if c.is_ascii_alphabetic() { Script::Latin } else { c.script() };
    match script {
        Script::Inherited => None,
        Script::Hiragana | Script::Katakana => Some(Script::Han),
        _ if is_kana_mark(c) => Some(Script::Han),
        script => Some(script),
    }
}

/// Splits words into segments and counts them.
fn cut_words(words: &[(Box<[u8]>, u64)], symbols: &Symbols, characters: &[char], split_digits: bool) -> Counted {
    let mut required = characters.to_vec();
    required.sort_unstable();
    let mut counts: Counts<Box<[u8]>> = Counts::default();
    for (word, count) in words {
        let mut add = |segment: &[u8]| {
            if !segment.is_empty() {
                match counts.get_mut(segment) {
                    Some(total) => *total += count,
                    None => drop(counts.insert(segment.into(), *count)),
                }
            }
        };
        let mut start = 0;
        let mut current: Option<Script> = None;
        let mut after_digit = false;
        for (at, c) in characters_of(word, symbols) {
            let Some(c) = c.filter(|c| required.binary_search(c).is_ok()) else {
                // Symbols and rare characters are not part of a segment.
                add(&word[start..at.start]);
                start = at.end;
                current = None;
                after_digit = false;
                continue;
            };
            if c == ' ' {
                continue;
            }
            let script = script_of(c).or(current);
            let digit_alone = split_digits && (c.is_ascii_digit() || after_digit);
            if (current.is_some() && script != current) || digit_alone {
                add(&word[start..at.start]);
                start = at.start;
            }
            current = script;
            after_digit = c.is_ascii_digit();
        }
        add(&word[start..]);
    }
    sorted(counts)
}
