//! Tokenizer properties that the data path uses.

use std::hash::Hasher as _;

use engine::io::XxHash64;

use super::error::DataError;
use crate::tokenizer::{SpecialIds, Tokenizer};

/// Size, word starts and special ids of a tokenizer, with a fingerprint that ties shards to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    word_start: Vec<bool>,
    specials: SpecialIds,
    /// Special ids, sorted and without repetition.
    sorted_specials: Vec<u32>,
    fingerprint: u64,
}

impl Vocabulary {
    /// Creates a vocabulary of `word_start.len()` pieces: `word_start[id]` is true if piece `id` starts a word. `content`
    /// identifies the tokenizer, such as the bytes of its file; the fingerprint covers it and everything else.
    ///
    /// # Errors
    /// [`DataError::Setting`] if a special id is not below the vocabulary size, or if all pieces are special.
    pub fn new(word_start: Vec<bool>, specials: SpecialIds, content: &[u8]) -> Result<Self, DataError> {
        let SpecialIds { pad, unk, cls, sep, mask } = specials;
        let mut sorted_specials = vec![pad, unk, cls, sep, mask];
        sorted_specials.sort_unstable();
        sorted_specials.dedup();
        let size = word_start.len();
        if let Some(&id) = sorted_specials.iter().find(|&&id| id as usize >= size) {
            return Err(DataError::setting("special id", id, format!("less than the vocabulary size {size}")));
        }
        if size <= sorted_specials.len() {
            return Err(DataError::setting("vocabulary size", size, "more pieces than the special ones"));
        }
        let mut hash = XxHash64::with_seed(0);
        hash.write(&(size as u64).to_le_bytes());
        for id in [pad, unk, cls, sep, mask] {
            hash.write(&id.to_le_bytes());
        }
        hash.write(&word_start.iter().map(|&b| u8::from(b)).collect::<Vec<_>>());
        hash.write(content);
        Ok(Self { word_start, specials, sorted_specials, fingerprint: hash.finish() })
    }

    /// Vocabulary of `tokenizer`.
    ///
    /// # Errors
    /// [`DataError::Setting`] if all its pieces are special.
    pub fn of(tokenizer: &Tokenizer) -> Result<Self, DataError> {
        let word_start = (0..tokenizer.vocab_size() as u32).map(|id| tokenizer.is_word_start(id)).collect();
        Self::new(word_start, tokenizer.specials(), tokenizer.to_json()?.as_bytes())
    }

    /// Number of pieces, V.
    pub(crate) fn size(&self) -> usize {
        self.word_start.len()
    }

    /// True if piece `id` begins a word. Panics if `id` is not below [`size`](Self::size).
    #[inline]
    pub(crate) fn is_word_start(&self, id: u32) -> bool {
        self.word_start[id as usize]
    }

    /// The special ids.
    pub(crate) fn specials(&self) -> SpecialIds {
        self.specials
    }

    /// Fingerprint, equal for equal tokenizers.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The `index`-th piece that is not special; `index` is below [`ordinary`](Self::ordinary).
    #[inline]
    pub(super) fn nth_ordinary(&self, index: u32) -> u32 {
        self.sorted_specials.iter().fold(index, |id, &special| if id >= special { id + 1 } else { id })
    }

    /// Number of pieces that are not special.
    pub(super) fn ordinary(&self) -> u32 {
        (self.size() - self.sorted_specials.len()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECIALS: SpecialIds = SpecialIds { pad: 0, unk: 1, cls: 2, sep: 6, mask: 4 };

    #[test]
    fn ordinary_pieces_are_all_but_the_special_ones() {
        let vocabulary = Vocabulary::new(vec![true; 9], SPECIALS, b"").unwrap();
        let ordinary: Vec<u32> = (0..vocabulary.ordinary()).map(|i| vocabulary.nth_ordinary(i)).collect();
        assert_eq!(ordinary, [3, 5, 7, 8]);
    }

    #[test]
    fn the_fingerprint_sees_every_part() {
        let base = Vocabulary::new(vec![true; 9], SPECIALS, b"x").unwrap().fingerprint();
        let mut other_starts = vec![true; 9];
        other_starts[8] = false;
        for other in [
            Vocabulary::new(vec![true; 10], SPECIALS, b"x"),
            Vocabulary::new(vec![true; 9], SPECIALS, b"y"),
            Vocabulary::new(vec![true; 9], SpecialIds { mask: 5, ..SPECIALS }, b"x"),
            Vocabulary::new(other_starts, SPECIALS, b"x"),
        ] {
            assert_ne!(other.unwrap().fingerprint(), base);
        }
    }

    #[test]
    fn specials_must_fit() {
        assert!(Vocabulary::new(vec![true; 6], SPECIALS, b"").is_err());
        assert!(Vocabulary::new(vec![true; 5], SpecialIds { sep: 3, ..SPECIALS }, b"").is_err());
    }
}
