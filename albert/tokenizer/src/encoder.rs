//! Encoder for large texts, with a word cache.
//!
//! Words of a text repeat, so [`Encoder`] caches the pieces of words in a direct-mapped table, and most words cost one
//! look-up. In SentencePiece models the pieces of a word can depend, through rounding, on the preceding text; an entry is
//! valid up to a sum (`lattice.rs`); beyond it the search is repeated. Nothing is allocated once the buffers have the size of
//! the longest word.

use super::unigram::{Scratch, append};
use super::{Model, Tokenizer, TokenizerError};

/// Encoder of many texts on one thread, with a word cache of at most 6 MB.
///
/// Results equal those of [`Tokenizer::encode`].
pub struct Encoder<'t> {
    tokenizer: &'t Tokenizer,
    scratch: Scratch,
    cache: Cache,
}

impl<'t> Encoder<'t> {
    /// An encoder with an empty cache.
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, scratch: Scratch::default(), cache: Cache::new() }
    }

    /// Appends the ids of `text` to `out`, without `[CLS]` and `[SEP]`.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_into(&mut self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let Self { tokenizer, scratch, cache } = self;
        let (Model::Unigram(model), None) = (&tokenizer.model, &tokenizer.added) else {
            return tokenizer.encode_into(text, out);
        };
        let vocabulary = &tokenizer.vocabulary;
        let (first, unk) = (out.len(), vocabulary.specials.unk);
        let (mut buffer, mut pieces) = (std::mem::take(&mut scratch.word), std::mem::take(&mut scratch.pieces));
        let mut sum = 0.0f64;
        model.for_each_word(text, &mut buffer, |word| {
            let hash = Cache::hash(word);
            let (ids, reach) = match cache.get(hash, word) {
                Some(found) => found,
                None => {
                    let reach = model.segment_anywhere(word, scratch, &mut pieces);
                    cache.insert(hash, word, pieces.iter().map(|step| step.id), reach)
                }
            };
            if sum.abs() <= f64::from(reach) {
                append(out, first, ids.iter().copied(), unk);
                sum = model.advance(sum, ids);
            } else {
                sum = model.segment_word(word, sum, scratch, &mut pieces);
                append(out, first, pieces.iter().map(|step| step.id), unk);
            }
        });
        (scratch.word, scratch.pieces) = (buffer, pieces);
        scratch.shrink();
        Ok(())
    }
}

/// Direct-mapped cache of words and their ids; a new word replaces the old one. Long words are not cached.
struct Cache {
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
    /// Largest magnitude of the preceding sum for which the entry is valid.
    reach: f32,
}

impl Cache {
    const SLOTS: usize = 1 << 15;
    const MAX_BYTES: usize = 1 << 20;
    const MAX_WORD: usize = 64;

    fn new() -> Self {
        Self { slots: vec![Slot::default(); Self::SLOTS], bytes: Vec::new(), ids: Vec::new() }
    }

    /// Multiply and fold, eight bytes at a time. The encoding does not depend on it.
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
    fn get(&self, hash: u64, word: &[u8]) -> Option<(&[u32], f32)> {
        let slot = &self.slots[hash as usize % Self::SLOTS];
        let key = &self.bytes[slot.word as usize..][..usize::from(slot.word_len)];
        let ids = || &self.ids[slot.ids as usize..][..usize::from(slot.ids_len)];
        (slot.hash == hash && key == word).then(|| (ids(), slot.reach))
    }

    /// Caches the ids of a word and returns them with their reach.
    fn insert(&mut self, hash: u64, word: &[u8], ids: impl Iterator<Item = u32>, reach: f32) -> (&[u32], f32) {
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
                reach,
            };
            self.bytes.extend_from_slice(word);
            self.slots[hash as usize % Self::SLOTS] = slot;
        }
        (&self.ids[at..], reach)
    }
}
