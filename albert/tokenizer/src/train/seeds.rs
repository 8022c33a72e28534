//! Seed pieces: required characters, and the repeated substrings that cover the most text.
//!
//! ```text
//! suffixes of all segments, sorted      common prefix with the one before
//!   0  at   (of "cat",   weight 3)         -
//!   1  at   (of "rat",   weight 2)         2      "at" : weight 3 + 2 + 1
//!   2  ate  (of "crate", weight 1)         2
//! ```
//!
//! Candidates are the substrings that become rarer when extended: the inner nodes of the suffix tree, which are the intervals
//! of equal common prefix, and its leaves (a suffix of one segment, which may be frequent). Initial score: log of frequency x
//! length, as a share of the sum.
//!
//! Cost: O(n log n) comparisons for n characters of distinct segments (not of the text), most decided by the first
//! eight bytes; 16 bytes a character.
//! Source: Kasai et al. 2001 and Abouelhoda et al. 2004 for intervals of common prefixes; Kudo 2018 for the score.

use rayon::prelude::*;

use super::count::Corpus;
use super::{Pieces, TrainerConfig};

/// A suffix of a segment.
#[derive(Clone, Copy)]
struct Suffix {
    /// Its first eight bytes, zero-padded, as a big-endian number: orders like the bytes.
    head: u64,
    segment: u32,
    start: u32,
}

struct Suffixes<'c> {
    segments: &'c [(Box<[u8]>, u64)],
    /// Comparisons are limited to this many bytes.
    depth: usize,
    sorted: Vec<Suffix>,
}

/// A repeated substring and its score.
struct Candidate<'c> {
    text: &'c [u8],
    score: u64,
}

pub(super) fn find(corpus: &Corpus, config: &TrainerConfig) -> Pieces {
    let suffixes = Suffixes::new(&corpus.segments, config.max_piece_length);
    let mut candidates = suffixes.repeated(config);
    candidates.par_sort_unstable_by(|a, b| b.score.cmp(&a.score).then_with(|| a.text.cmp(b.text)));
    candidates.truncate(config.seed_pieces);

    let characters: Vec<String> = corpus.characters.iter().map(char::to_string).collect();
    let single = characters.iter().zip(&corpus.character_counts);
    let mut all: Vec<(&[u8], u64)> = single.map(|(text, &count)| (text.as_bytes(), count)).collect();
    all.extend(candidates.iter().map(|candidate| (candidate.text, candidate.score)));
    all.par_sort_unstable();
    let total: u64 = all.iter().map(|(_, score)| score).sum();
    let mut pieces = Pieces::default();
    for (text, score) in all {
        pieces.push(text, libm::log(score as f64) - libm::log(total as f64));
    }
    pieces
}

impl<'c> Suffixes<'c> {
    fn new(segments: &'c [(Box<[u8]>, u64)], max_characters: usize) -> Self {
        // One character more than a piece may have, to recognize longer repeats.
        let depth = 4 * (max_characters + 1);
        let starts = |(index, (text, _)): (usize, &'c (Box<[u8]>, u64))| {
            let is_start = |at: &usize| text[*at] & 0xc0 != 0x80;
            let suffix = move |at: usize| Suffix { head: head(&text[at..]), segment: index as u32, start: at as u32 };
            (0..text.len()).filter(is_start).map(suffix).collect::<Vec<_>>()
        };
        let mut sorted: Vec<Suffix> = segments.par_iter().enumerate().flat_map_iter(starts).collect();
        let text = |suffix: &Suffix| bounded(segments, suffix, depth);
        sorted.par_sort_unstable_by(|a, b| {
            let heads = a.head.cmp(&b.head);
            let by_text = || text(a).cmp(text(b)).then((a.segment, a.start).cmp(&(b.segment, b.start)));
            heads.then_with(by_text)
        });
        Self { segments, depth, sorted }
    }

    fn text(&self, index: usize) -> &'c [u8] {
        bounded(self.segments, &self.sorted[index], self.depth)
    }

    /// Length of the common prefix of suffix `index` and the previous one, in whole characters.
    fn common_with_previous(&self, index: usize) -> usize {
        let (a, b) = (self.text(index - 1), self.text(index));
        let mut len = a.iter().zip(b).take_while(|(x, y)| x == y).count();
        while b.get(len).or(a.get(len)).is_some_and(|byte| byte & 0xc0 == 0x80) {
            len -= 1;
        }
        len
    }

    /// All valid substrings of two or more characters that occur at least twice and become rarer when extended.
    fn repeated(&self, config: &TrainerConfig) -> Vec<Candidate<'c>> {
        let n = self.sorted.len();
        let common: Vec<usize> =
            (0..=n).into_par_iter().map(|i| if i == 0 || i == n { 0 } else { self.common_with_previous(i) }).collect();
        // weight_before[i]: total count of the first i suffixes.
        let mut weight_before = Vec::with_capacity(n + 1);
        weight_before.push(0u64);
        for suffix in &self.sorted {
            weight_before.push(weight_before[weight_before.len() - 1] + self.segments[suffix.segment as usize].1);
        }
        let mut found = Vec::new();
        let mut add = |first: usize, end: usize, len: usize| {
            let frequency = weight_before[end] - weight_before[first];
            let text = &self.text(first)[..len];
            let characters = text.iter().filter(|&byte| byte & 0xc0 != 0x80).count();
            if frequency >= 2 && (2..=config.max_piece_length).contains(&characters) && is_valid(text, config) {
                found.push(Candidate { text, score: frequency * characters as u64 });
            }
        };
        // Open intervals: (common prefix in bytes, first suffix), longer prefixes on top.
        let mut open: Vec<(usize, usize)> = Vec::new();
        for i in 0..n {
            let (before, after) = (common[i], common[i + 1]);
            let whole = self.text(i).len();
            if whole > before.max(after) {
                add(i, i + 1, whole);
            }
            let mut first = i;
            while let Some(&(len, start)) = open.last().filter(|(len, _)| *len > after) {
                add(start, i + 1, len);
                first = start;
                open.pop();
            }
            if after > 0 && open.last().is_none_or(|(len, _)| *len < after) {
                open.push((after, first));
            }
        }
        found
    }
}

fn head(text: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = text.len().min(8);
    bytes[..len].copy_from_slice(&text[..len]);
    u64::from_be_bytes(bytes)
}

fn bounded<'c>(segments: &'c [(Box<[u8]>, u64)], suffix: &Suffix, depth: usize) -> &'c [u8] {
    let text = &segments[suffix.segment as usize].0[suffix.start as usize..];
    &text[..text.len().min(depth)]
}

/// Rejects numbers that end in a comma, unless configured.
fn is_valid(text: &[u8], config: &TrainerConfig) -> bool {
    match text {
        [.., digit, b','] => config.digit_comma_pieces || !digit.is_ascii_digit(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds every valid substring by brute force, with its frequency, unless a longer one occurs as often at the same places.
    fn brute_force(segments: &[(Box<[u8]>, u64)], max: usize) -> Vec<(Vec<u8>, u64)> {
        let mut counts = std::collections::BTreeMap::<Vec<u8>, u64>::new();
        for (text, count) in segments {
            for start in 0..text.len() {
                for end in start + 1..=text.len() {
                    *counts.entry(text[start..end].to_vec()).or_default() += count;
                }
            }
        }
        let extended = |text: &[u8], count: u64| {
            counts.iter().any(|(long, &c)| long.len() == text.len() + 1 && long.starts_with(text) && c == count)
        };
        let kept = counts
            .iter()
            .filter(|(text, count)| **count >= 2 && (2..=max).contains(&text.len()) && !extended(text, **count));
        kept.map(|(text, count)| (text.clone(), count * text.len() as u64)).collect()
    }

    #[test]
    fn repeated_substrings_are_those_of_brute_force() {
        let texts = ["abracadabra", " cat", " rat", "rate", " crate", "aaaa", "aa", "banana", " ban", "x"];
        let counts = [1, 3, 2, 1, 1, 2, 1, 1, 5, 9];
        let mut segments: Vec<(Box<[u8]>, u64)> =
            texts.iter().zip(counts).map(|(text, count)| (text.as_bytes().into(), count)).collect();
        segments.sort();
        for max in [2, 3, 5, 16] {
            let config = TrainerConfig { max_piece_length: max, ..TrainerConfig::default() };
            let suffixes = Suffixes::new(&segments, max);
            let mut found: Vec<(Vec<u8>, u64)> =
                suffixes.repeated(&config).iter().map(|c| (c.text.to_vec(), c.score)).collect();
            found.sort();
            assert_eq!(found, brute_force(&segments, max), "pieces of at most {max} characters");
        }
    }
}
