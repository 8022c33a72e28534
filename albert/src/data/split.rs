//! Assignment of documents to the training or the held-out side.
//!
//! Held-out document number k is drawn from the documents `[k / f, (k + 1) / f)` in corpus order, for the share f: one in ten
//! consecutive documents for f = 0.1. In one pass, every contiguous region of the corpus therefore contributes its share, to
//! within one document.
//!
//! Copies of a document (ignoring case, punctuation and white space) go to the side of the first one and are not
//! counted, so no document is on both sides. Limits: documents that share a part of their text are different documents.

use std::collections::HashMap;

use engine::philox::Stream;
use serde::{Deserialize, Serialize};

use super::settings::SplitSettings;

/// First word of the keys of the random streams.
const PURPOSE: u32 = u32::from_be_bytes(*b"dSPL");

/// A side of the split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Used for training.
    Train,
    /// Used for evaluation.
    HeldOut,
}

impl Side {
    /// Both sides, in the order in which they are stored.
    pub(crate) const ALL: [Self; 2] = [Self::Train, Self::HeldOut];

    /// Name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::HeldOut => "held_out",
        }
    }
}

/// Decides the side of each document, in corpus order.
#[derive(Clone, Debug)]
pub struct Splitter {
    settings: SplitSettings,
    /// Sides of earlier documents, by content hash.
    seen: HashMap<u64, Side>,
    /// First document after this block, and the chosen document.
    block_end: u64,
    chosen: u64,
    blocks: u64,
    first_block: Option<u64>,
    duplicates: u64,
}

impl Splitter {
    /// Creates a splitter before the first document.
    pub fn new(settings: &SplitSettings) -> Self {
        Self {
            settings: settings.clone(),
            seen: HashMap::new(),
            block_end: 0,
            chosen: 0,
            blocks: 0,
            first_block: None,
            duplicates: 0,
        }
    }

    /// Splitter for a corpus with fewer distinct documents than one block: one of them is held out.
    pub(crate) fn for_few_documents(settings: &SplitSettings, distinct: u64) -> Self {
        Self { first_block: Some(distinct), ..Self::new(settings) }
    }

    /// Returns the side of the next document, whose [`content_hash`](super::corpus::Document::content_hash) is `hash`.
    pub fn assign(&mut self, hash: u64) -> Side {
        if let Some(&side) = self.seen.get(&hash) {
            self.duplicates += 1;
            return side;
        }
        let index = self.seen.len() as u64;
        let side = if self.is_chosen(index) { Side::HeldOut } else { Side::Train };
        self.seen.insert(hash, side);
        side
    }

    /// Number of copies of earlier documents.
    pub(crate) fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Number of distinct documents.
    pub(crate) fn distinct(&self) -> u64 {
        self.seen.len() as u64
    }

    fn is_chosen(&mut self, index: u64) -> bool {
        if self.settings.held_out <= 0.0 {
            return false;
        }
        if index >= self.block_end {
            let boundary = |k: u64| (k as f64 / self.settings.held_out).round() as u64;
            let start = self.block_end;
            self.block_end = boundary(self.blocks + 1);
            if let (0, Some(end)) = (self.blocks, self.first_block) {
                self.block_end = self.block_end.min(end);
            }
            let name = [PURPOSE, self.blocks as u32, (self.blocks >> 32) as u32];
            let size = u32::try_from(self.block_end - start).unwrap_or(u32::MAX);
            self.chosen = start + u64::from(Stream::new(self.settings.seed, name).below(size));
            self.blocks += 1;
        }
        index == self.chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides(settings: &SplitSettings, hashes: impl Iterator<Item = u64>) -> Vec<Side> {
        let mut splitter = Splitter::new(settings);
        hashes.map(|h| splitter.assign(h)).collect()
    }

    fn held_out(sides: &[Side]) -> usize {
        sides.iter().filter(|&&s| s == Side::HeldOut).count()
    }

    #[test]
    fn every_contiguous_region_gives_its_share() {
        for share in [0.01, 0.07, 0.1, 0.25, 0.3, 0.5] {
            let settings = SplitSettings { held_out: share, seed: 9 };
            let all = sides(&settings, 0..3000);
            for (start, end) in [(0, 3000), (0, 100), (137, 731), (999, 2001), (2900, 3000), (5, 65)] {
                let expected = share * (end - start) as f64;
                let found = held_out(&all[start..end]) as f64;
                // A region contains parts of at most two blocks.
                assert!((found - expected).abs() <= 2.0, "share {share}, {start}..{end}: {found}, expected {expected}");
            }
        }
    }

    #[test]
    fn copies_are_on_the_side_of_the_first() {
        let settings = SplitSettings::default();
        let hashes: Vec<u64> = (0..500u64).map(|i| if i % 3 == 0 { i % 30 } else { i + 1000 }).collect();
        let mut splitter = Splitter::new(&settings);
        let mut first = HashMap::new();
        for &hash in &hashes {
            let side = splitter.assign(hash);
            assert_eq!(*first.entry(hash).or_insert(side), side, "document {hash}");
        }
        assert_eq!(splitter.distinct() as usize, first.len());
        assert_eq!(splitter.duplicates() as usize, hashes.len() - first.len());
    }

    #[test]
    fn the_seed_decides_and_nothing_else() {
        let settings = |seed| SplitSettings { held_out: 0.1, seed };
        let hashes = || (0..400u64).map(|i| i * 7919);
        assert_eq!(sides(&settings(1), hashes()), sides(&settings(1), hashes()));
        assert_ne!(sides(&settings(1), hashes()), sides(&settings(2), hashes()));
        assert_eq!(held_out(&sides(&SplitSettings { held_out: 0.0, seed: 1 }, hashes())), 0);
    }
}
