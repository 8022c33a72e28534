//! SentencePiece models: reading and writing of `spiece.model`.

#[cfg(test)]
mod tests;

use std::path::Path;

use super::sentencepiece::{Charsmap, ModelProto, Normalizer};
use super::unigram::{TextRules, Unigram};
use super::vocabulary::Vocabulary;
use super::{Cleaning, DigitComma, Model, Piece, PieceKind, Tokenizer, TokenizerError, clean};

/// Checks the precompiled rules of a third-party `tokenizer.json` like those of a `spiece.model`.
pub(super) fn check_charsmap(blob: &[u8]) -> Result<(), String> {
    Charsmap::read(blob).map(drop)
}

/// SentencePiece's names of the model types.
const MODEL_TYPES: [&str; 5] = ["0", "unigram", "BPE", "word", "character"];

impl Tokenizer {
    /// Reads the content of a `spiece.model`; Google's preprocessing uses `cleaning`, and `path` is for messages.
    ///
    /// # Errors
    /// The file is damaged or not a unigram SentencePiece model, its pieces are not a vocabulary, or a special piece is missing.
    pub fn from_spiece(bytes: &[u8], cleaning: Cleaning, path: &Path) -> Result<Self, TokenizerError> {
        let wrong = TokenizerError::file::<String>(path);
        let in_file = TokenizerError::file::<TokenizerError>(path);
        let (file, pieces) = ModelProto::read(bytes).map_err(&wrong)?;
        check(&file, &pieces).map_err(&wrong)?;
        let vocabulary = Vocabulary::of_unigram(pieces).map_err(&in_file)?;
        let normalizer = Normalizer::new(&file, &vocabulary, cleaning).map_err(&wrong)?;
        let text = TextRules::SentencePiece { normalizer: Box::new(normalizer), file: Box::new(file) };
        let model = Unigram::new(&vocabulary, text, DigitComma::default()).map_err(&in_file)?;
        Ok(Self::new(vocabulary, Model::Unigram(Box::new(model))))
    }

    /// Content of a `spiece.model`: the file that the tokenizer was read from; for our own vocabularies, the same pieces
    /// (scores in f32) with rules for the part of our cleaning that Google's preprocessing lacks.
    ///
    /// # Errors
    /// [`TokenizerError::Export`] for a third-party tokenizer, or for our own vocabulary if its cleaning is not the default.
    pub fn to_spiece(&self) -> Result<Vec<u8>, TokenizerError> {
        match &self.model {
            Model::Unigram(unigram) => match &unigram.text {
                TextRules::SentencePiece { file, .. } => Ok(file.write(self.trained_pieces())),
                TextRules::Own(cleaning) if *cleaning == Cleaning::default() => {
                    Ok(ModelProto::new(self.pieces(), own_rules()).write(self.pieces()))
                }
                TextRules::Own(_) => Err(TokenizerError::Export {
                    format: "spiece.model",
                    reason: "its readers lower-case and strip accents before the model, and this tokenizer keeps case or accents, or \
                             states another normalization; use its tokenizer.json, which transformers follows exactly",
                }),
            },
            Model::HuggingFace(_) => {
                Err(TokenizerError::Export { format: "spiece.model", reason: "it is a third-party tokenizer.json" })
            }
        }
    }
}

/// Rejects unsupported features.
fn check(file: &ModelProto, pieces: &[Piece]) -> Result<(), String> {
    let model_type = file.trainer.model_type;
    if model_type != 1 {
        let name = usize::try_from(model_type).ok().and_then(|index| MODEL_TYPES.get(index)).unwrap_or(&"unknown");
        return Err(format!("a SentencePiece model of type {name} ({model_type}); only unigram (1) is supported"));
    }
    if !file.normalizer.escape_whitespaces {
        return Err("normalizer_spec.escape_whitespaces is false; only models with word marks are supported".to_owned());
    }
    let bytes = pieces.iter().filter(|piece| piece.kind == PieceKind::Byte).count();
    if (bytes > 0) != file.trainer.byte_fallback {
        return Err(format!(
            "trainer_spec.byte_fallback is {}, but {bytes} bytes are pieces",
            file.trainer.byte_fallback
        ));
    }
    Ok(())
}

/// Rules for the part of our cleaning that Google's preprocessing lacks: characters that become spaces, and dropped ones.
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
