//! F1 of named entities: an entity is correct if its position and kind are correct.
//!
//! ```text
//! Anna   Berg   visited  Oslo          entities: PER 0..2, LOC 3..4
//! B-PER  I-PER  O        B-LOC
//! ```
//!
//! Tags are `O`, or a letter (B, I, E, S), `-` and a kind. Bounds are read leniently, as in `conlleval`: I- after another kind
//! or after O starts an entity. precision = correct / found, recall = correct / gold, F1 = 2·p·r / (p + r), over all kinds;
//! quotients with a zero denominator are 0.
//!
//! Source: Tjong Kim Sang and De Meulder 2003 (CoNLL-2003).

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::confusion::ratio;

/// Counts of entities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntityCounts {
    /// Entities that were found and are correct.
    pub correct: u64,
    /// Entities that were found.
    pub found: u64,
    /// Entities in the gold tags.
    #[serde(rename = "there")]
    pub gold: u64,
}

impl EntityCounts {
    /// Counts a sentence.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn add<S: AsRef<str>, P: AsRef<str>>(&mut self, truth: &[S], prediction: &[P]) {
        assert_eq!(truth.len(), prediction.len(), "one predicted tag for each word");
        let gold: HashSet<Entity<'_>> = entities(truth).into_iter().collect();
        let found = entities(prediction);
        self.correct += found.iter().filter(|entity| gold.contains(entity)).count() as u64;
        self.found += found.len() as u64;
        self.gold += gold.len() as u64;
    }

    /// Share of correct entities among those found.
    pub(crate) fn precision(&self) -> f64 {
        ratio(self.correct, self.found)
    }

    /// Share of correct entities among the gold ones.
    pub(crate) fn recall(&self) -> f64 {
        ratio(self.correct, self.gold)
    }

    /// Harmonic mean of precision and recall.
    pub(crate) fn f1(&self) -> f64 {
        let (precision, recall) = (self.precision(), self.recall());
        if self.correct == 0 { 0.0 } else { 2.0 * precision * recall / (precision + recall) }
    }
}

/// Kind, first word and the word after the last.
type Entity<'a> = (&'a str, usize, usize);

/// The entities of a sentence.
fn entities<S: AsRef<str>>(tags: &[S]) -> Vec<Entity<'_>> {
    let mut found = Vec::new();
    let (mut before, mut kind_before, mut start) = (b'O', "", 0);
    for at in 0..=tags.len() {
        let (letter, kind) = tags.get(at).map_or((b'O', ""), |tag| parts(tag.as_ref()));
        if ends(before, letter, kind_before, kind) {
            found.push((kind_before, start, at));
        }
        if begins(before, letter, kind_before, kind) {
            start = at;
        }
        (before, kind_before) = (letter, kind);
    }
    found
}

/// The letter and the kind of a tag.
fn parts(tag: &str) -> (u8, &str) {
    let letter = tag.bytes().next().unwrap_or(b'O');
    let kind = if letter == b'O' { "" } else { tag.split_once('-').map_or("_", |(_, kind)| kind) };
    (letter, kind)
}

/// True if an entity ends between two tags.
fn ends(before: u8, letter: u8, kind_before: &str, kind: &str) -> bool {
    match before {
        b'O' => false,
        b'E' | b'S' => true,
        _ => matches!(letter, b'B' | b'S' | b'O') || kind_before != kind,
    }
}

/// True if an entity begins between two tags.
fn begins(before: u8, letter: u8, kind_before: &str, kind: &str) -> bool {
    match letter {
        b'O' => false,
        b'B' | b'S' => true,
        _ => matches!(before, b'E' | b'S' | b'O') || kind_before != kind,
    }
}
