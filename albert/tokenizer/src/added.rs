//! Words added to a vocabulary after its training, for unigram models: each is one id wherever it occurs in a text.
//!
//! The text between added words is encoded as separate texts, as in `transformers`. Their flags (`single_word`, `lstrip`,
//! `rstrip`, `normalized`) are those of Hugging Face's library, which is also used to find them here.

use std::ops::Range;

use serde_json::Value;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::normalizers::{Lowercase, NormalizerWrapper};
use tokenizers::{AddedToken, AddedVocabulary, OffsetReferential, OffsetType};

use super::vocabulary::Vocabulary;

/// Added words of a unigram vocabulary.
#[derive(Debug, Clone)]
pub(super) struct Added {
    vocabulary: AddedVocabulary,
    normalizer: Option<NormalizerWrapper>,
    /// Their entries, as in a `tokenizer.json`.
    pub(super) entries: Vec<Value>,
}

impl Added {
    /// Prepares the search for the words of `entries`. A word with `normalized` matches any case if `lowercase`.
    ///
    /// # Errors
    /// An entry lacks a key, or its id is not the next one.
    pub(super) fn new(mut entries: Vec<Value>, vocabulary: &Vocabulary, lowercase: bool) -> Result<Self, String> {
        let known = (0u32..).zip(&vocabulary.pieces).map(|(id, piece)| (piece.text.clone(), id)).collect();
        let unknown = vocabulary.pieces[vocabulary.specials.unk as usize].text.clone();
        let model = WordLevel::builder().vocab(known).unk_token(unknown).build().map_err(|error| error.to_string())?;
        let normalizer = lowercase.then_some(NormalizerWrapper::Lowercase(Lowercase));
        let mut found = AddedVocabulary::new();
        for (entry, id) in entries.iter_mut().zip(vocabulary.pieces.len()..) {
            let token: AddedToken = serde_json::from_value(entry.clone()).map_err(|error| error.to_string())?;
            if entry["id"].as_u64().is_some_and(|given| given != id as u64) {
                let content = &token.content;
                return Err(format!("the added token {content:?} has id {}; expected {id}, the next one", entry["id"]));
            }
            entry["id"] = id.into();
            found.add_tokens([token], &model, normalizer.as_ref()).map_err(|error| error.to_string())?;
        }
        Ok(Self { vocabulary: found, normalizer, entries })
    }

    /// Splits `text` into parts in order: the bytes of each, and its id if it is an added word.
    pub(super) fn split(&self, text: &str) -> Vec<(Range<usize>, Option<u32>)> {
        let parts = self.vocabulary.extract_and_normalize(self.normalizer.as_ref(), text);
        let parts = parts.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let id = |tokens: &Option<Vec<tokenizers::Token>>| Some(tokens.as_ref()?.first()?.id);
        parts.into_iter().map(|(_, (start, end), tokens)| (start..end, id(tokens))).collect()
    }
}
