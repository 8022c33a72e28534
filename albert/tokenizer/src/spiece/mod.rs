//! SentencePiece models: `spiece.model` in and out.
//!
//! | file            | what                                                   |
//! |-----------------|--------------------------------------------------------|
//! | `proto.rs`      | `ModelProto`, what it says and everything else kept    |
//! | `charsmap.rs`   | the precompiled rules: a double-array trie             |
//! | `normalizer.rs` | Google's `preprocess_text` and the model's normalizer  |

mod charsmap;
mod normalizer;
mod proto;

#[cfg(test)]
mod tests;

use std::path::Path;

pub(super) use normalizer::Normalizer;
pub(super) use proto::ModelProto;

use super::unigram::{TextRules, Unigram};
use super::vocabulary::Vocabulary;
use super::{Cleaning, DigitComma, Model, PieceKind, Tokenizer, TokenizerError, clean};
use charsmap::Charsmap;

/// Checks the precompiled rules of a `tokenizer.json` of other origin as those of a `spiece.model`.
pub(super) fn check_charsmap(blob: &[u8]) -> Result<(), String> {
    Charsmap::read(blob).map(drop)
}

/// What SentencePiece calls the model types.
const MODEL_TYPES: [&str; 5] = ["0", "unigram", "BPE", "word", "character"];

impl Tokenizer {
    /// Reads the content of a `spiece.model`, with Google's preprocessing as `cleaning` says; `path` is for messages.
    ///
    /// # Errors
    /// If it is damaged or no unigram SentencePiece model, if its pieces make no vocabulary, or if a special piece is
    /// missing.
    pub fn from_spiece(bytes: &[u8], cleaning: Cleaning, path: &Path) -> Result<Self, TokenizerError> {
        let wrong = |reason: String| TokenizerError::Spiece { path: path.into(), reason };
        let in_file = |source| TokenizerError::InFile { path: path.into(), source: Box::new(source) };
        let file = ModelProto::read(bytes).map_err(wrong)?;
        check(&file).map_err(wrong)?;
        let vocabulary = Vocabulary::of_unigram(file.pieces.clone()).map_err(in_file)?;
        let normalizer = Normalizer::new(&file, &file.pieces, cleaning).map_err(wrong)?;
        let text = TextRules::SentencePiece { normalizer: Box::new(normalizer), file: Box::new(file) };
        let model = Unigram::new(&vocabulary, text, DigitComma::default()).map_err(in_file)?;
        Ok(Self { vocabulary, model: Model::Unigram(Box::new(model)) })
    }

    /// The content of a `spiece.model`: of a tokenizer that was read from one, that file; of one of our own, the same
    /// pieces (scores in 32 bits) with rules for what our cleaning does beyond Google's preprocessing.
    ///
    /// # Errors
    /// If the tokenizer is no unigram model, or if it keeps accents: then its cleaning is NFKC, which is not written.
    pub fn to_spiece(&self) -> Result<Vec<u8>, TokenizerError> {
        match &self.model {
            Model::Unigram(unigram) => match &unigram.text {
                TextRules::SentencePiece { file, .. } => Ok(file.write()),
                TextRules::Own(cleaning) if cleaning.strip_accents => {
                    Ok(ModelProto::new(self.vocabulary.pieces.clone(), own_rules()).write())
                }
                TextRules::Own(_) => Err(TokenizerError::Export {
                    format: "spiece.model",
                    reason: "it keeps accents and composes characters (NFKC)",
                }),
            },
            Model::HuggingFace(_) => {
                Err(TokenizerError::Export { format: "spiece.model", reason: "it is a tokenizer.json of other origin" })
            }
        }
    }
}

/// What the model asks for that this program does not do.
fn check(file: &ModelProto) -> Result<(), String> {
    let model_type = file.trainer.model_type;
    if model_type != 1 {
        let name = usize::try_from(model_type).ok().and_then(|index| MODEL_TYPES.get(index)).unwrap_or(&"unknown");
        return Err(format!("a SentencePiece model of type {name} ({model_type}); only unigram (1) is supported"));
    }
    if !file.normalizer.escape_whitespaces {
        return Err("normalizer_spec.escape_whitespaces is false; only models with word marks are supported".to_owned());
    }
    let bytes = file.pieces.iter().filter(|piece| piece.kind == PieceKind::Byte).count();
    if (bytes > 0) != file.trainer.byte_fallback {
        return Err(format!(
            "trainer_spec.byte_fallback is {}, but {bytes} bytes are pieces",
            file.trainer.byte_fallback
        ));
    }
    Ok(())
}

/// The rules of our own cleaning beyond Google's preprocessing: characters that count as spaces, and dropped ones.
fn own_rules() -> Vec<u8> {
    let mut rules: Vec<(String, &str)> = ('\u{1}'..='\u{ffff}')
        .filter(|&c| c != ' ')
        .filter_map(|c| {
            let becomes = if clean::is_space(c) { " " } else { "" };
            (clean::is_space(c) || clean::is_dropped(c)).then(|| (c.to_string(), becomes))
        })
        .collect();
    rules.sort_unstable();
    let borrowed: Vec<(&str, &str)> = rules.iter().map(|(key, becomes)| (key.as_str(), *becomes)).collect();
    Charsmap::write(&borrowed)
}
