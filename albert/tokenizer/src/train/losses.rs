//! Losses by cleaning: words of the corpus that become equal, or lose a part.
//!
//! ```text
//! sampled lines ── NFC, words of Unicode Annex 29 ──> "würde" 41, "wurde" 67, ...
//!               ── stripped ──> "wurde" {67, 41}: 41 occurrences are merged with a more frequent word
//! ```
//!
//! Annex 29 separates words without spaces: a run of Katakana is a word, and so is each Hiragana, Han or Thai character with
//! its marks. The sample is all of the first 2^15 lines, then half, a quarter, ... of later ones with weight 2, 4, ..., so its
//! cost does not grow with the corpus and the shares are those of all lines. Of lines whose words lose nothing, a sixteenth with
//! weight 16 is enough: finding words takes longer than the rest of counting.
//!
//! Thresholds: in frequency lists of 43 languages, stripping accents merges at most 0.010 % of the occurrences of English,
//! Indonesian, Malay and Filipino, and changes less than 0.05 %. In Latin, Cyrillic, Greek, Arabic, Indic and Japanese script it
//! merges 0.13 % (Dutch) to 25 % (Vietnamese), or changes at least 2.5 % (Macedonian, Bulgarian). Lower-casing has no threshold:
//! it merges as much in English (10.6 % of a manual) as in its German translation (8.6 %).
//! Source: Unicode Standard Annex 29.

use std::collections::BTreeMap;
use std::hash::Hasher;

use rustc_hash::{FxHashMap, FxHasher};
use unicode_normalization::UnicodeNormalization;
use unicode_segmentation::UnicodeSegmentation;

use super::Counts;
use crate::clean::NON_JOINER;
use crate::{Cleaning, Normalization};

/// First byte of a sampled word, which no cleaned word contains.
pub(super) const SAMPLED: u8 = 1;
/// Lines that are all sampled, as a power of two.
const ALL: u32 = 14;
/// Lines without a character that cleaning may lose, for each one that is sampled.
const PLAIN: u64 = 16;
/// Share of occurrences that are merged.
const MERGED: f64 = 0.001;
/// Share of occurrences that are changed.
const CHANGED: f64 = 0.02;
/// Least number of occurrences.
const LEAST: u64 = 5;

/// Words of the corpus that cleaning merges or changes; see [`LossKind`].
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// Step of the cleaning.
    pub kind: LossKind,
    /// Share of the words that the step changes.
    pub changed: f64,
    /// Share of the words that become equal to a more frequent one.
    pub merged: f64,
    /// Two frequent words that become equal; if `merged` is 0, a word and its result.
    pub example: [String; 2],
}

/// A step of cleaning that loses distinctions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossKind {
    /// Stripped accents, vowel signs and other marks.
    Accents,
    /// The zero-width non-joiner becomes a space, which cuts words.
    Joiners,
    /// Lower case of a text with `ı`, whose capital `I` becomes `i`.
    DotlessI,
}

/// Adds the words of line `index` to `sample`, if it is sampled.
pub(super) fn add(sample: &mut Counts<Box<[u8]>>, cleaning: Cleaning, index: u64, line: &str) {
    let loses = cleaning.lowercase || cleaning.strip_accents || cleaning.normalization == Normalization::Released;
    let mut stride = (index >> ALL).next_power_of_two();
    if !loses || !index.is_multiple_of(stride) {
        return;
    }
    if !line.chars().any(may_be_lost) {
        // By content: ranks, which count lines from 0 each, choose the lines that one process would.
        let mut hasher = FxHasher::default();
        hasher.write(line.as_bytes());
        if !hasher.finish().is_multiple_of(PLAIN) {
            return;
        }
        stride *= PLAIN;
    }
    let mut key = vec![SAMPLED];
    let mut count = |text: &str| {
        for word in text.unicode_words() {
            key.truncate(1);
            key.extend_from_slice(word.as_bytes());
            match sample.get_mut(key.as_slice()) {
                Some(total) => *total += stride,
                None => drop(sample.insert(key.as_slice().into(), stride)),
            }
        }
    };
    if line.is_ascii() { count(line) } else { count(&line.nfc().collect::<String>()) }
}

/// False for ASCII, and for the dashes and quotation marks of English text.
fn may_be_lost(c: char) -> bool {
    c >= '\u{c0}' && !('\u{2010}'..='\u{206f}').contains(&c)
}

/// The losses of `cleaning` on the sampled words that exceed a threshold.
pub(super) fn find(sample: &Counts<Box<[u8]>>, cleaning: Cleaning) -> Vec<Loss> {
    let text = |word: &'_ [u8]| String::from_utf8(word[1..].to_vec()).expect("sampled words are text");
    let words: Vec<(String, u64)> = sample.iter().map(|(word, &count)| (text(word), count)).collect();
    let all = words.iter().map(|(_, count)| count).sum();
    [accents(&words, cleaning, all), joiners(&words, cleaning, all), dotless_i(&words, cleaning, all)]
        .into_iter()
        .flatten()
        .collect()
}

/// A loss, if enough of `all` words are merged or changed.
fn loss(kind: LossKind, [changed, merged, all]: [u64; 3], example: [String; 2]) -> Option<Loss> {
    let share = |count: u64| count as f64 / all as f64;
    let exceeds = |count: u64, threshold: f64| count >= LEAST && share(count) >= threshold;
    let is_large = exceeds(merged, MERGED) || exceeds(changed, CHANGED);
    is_large.then(|| Loss { kind, changed: share(changed), merged: share(merged), example })
}

fn accents(words: &[(String, u64)], cleaning: Cleaning, all: u64) -> Option<Loss> {
    if !cleaning.strip_accents {
        return None;
    }
    let kept = Cleaning { strip_accents: false, ..cleaning };
    // Stripped word: words that it comes from, in an order that does not depend on a hash table.
    let mut groups: FxHashMap<String, BTreeMap<String, u64>> = FxHashMap::default();
    let mut unchanged = Vec::new();
    let mut changed = 0;
    for (word, count) in words {
        let word = kept.clean(&word.replace(NON_JOINER, "")).text;
        // Stripped Hangul is decomposed, which loses nothing.
        let stripped = if word.is_ascii() { word.clone() } else { cleaning.clean(&word).text.nfc().collect() };
        if stripped == word {
            unchanged.push((word, count));
        } else {
            changed += count;
            *groups.entry(stripped).or_default().entry(word).or_default() += count;
        }
    }
    for (word, count) in unchanged {
        if let Some(group) = groups.get_mut(&word) {
            *group.entry(word).or_default() += count;
        }
    }
    let mut merged = 0;
    let mut best = None;
    for (stripped, group) in groups {
        let mut sources: Vec<(u64, String)> = group.into_iter().map(|(word, count)| (count, word)).collect();
        sources.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        merged += sources[1..].iter().map(|(count, _)| count).sum::<u64>();
        let mut pair = sources.into_iter();
        let (first, second) = (pair.next(), pair.next());
        let Some((count, word)) = first else { continue };
        // Pairs before single words, words before letters.
        let is_word = word.chars().count() > 1;
        let (rank, example) = match second {
            Some((less, other)) => ((true, is_word, less), [word, other]),
            None => ((false, is_word, count), [word, stripped]),
        };
        let candidate = (rank, std::cmp::Reverse(example));
        best = best.max(Some(candidate));
    }
    loss(LossKind::Accents, [changed, merged, all], best?.1.0)
}

fn joiners(words: &[(String, u64)], cleaning: Cleaning, all: u64) -> Option<Loss> {
    if cleaning.normalization != Normalization::Released {
        return None;
    }
    let cut = |word: &str| word.trim_matches(NON_JOINER).contains(NON_JOINER);
    changes(LossKind::Joiners, words, all, cut, |word| word.replace(NON_JOINER, " "))
}

fn dotless_i(words: &[(String, u64)], cleaning: Cleaning, all: u64) -> Option<Loss> {
    let lowered = |word: &str| word.to_uppercase().to_lowercase();
    let has_dotless = |word: &str| cleaning.lowercase && word.contains('ı') && word.chars().count() > 1;
    changes(LossKind::DotlessI, words, all, has_dotless, lowered)
}

/// A loss of the words that `is_changed` selects; the example is the most frequent of them.
fn changes(
    kind: LossKind,
    words: &[(String, u64)],
    all: u64,
    is_changed: impl Fn(&str) -> bool,
    result: impl Fn(&str) -> String,
) -> Option<Loss> {
    let changed = || words.iter().filter(|(word, _)| is_changed(word));
    let (word, _) = changed().max_by_key(|(word, count)| (count, std::cmp::Reverse(word)))?;
    let total = changed().map(|(_, count)| count).sum();
    loss(kind, [total, 0, all], [word.clone(), result(word)])
}
