//! Loading of files and folders.
//!
//! The content decides the kind of a file: JSON (ours if this crate writes its normalizer, otherwise run by Hugging Face's
//! library), a SentencePiece model, or a BERT vocabulary. The order in a model folder is `tokenizer.json`, `spiece.model` (or
//! Google's `30k-clean.model`), `vocab.txt`; the last two are swapped if `tokenizer_config.json` names a BERT class, the first
//! two if its `ids_by` names the `spiece.model` (as [`Tokenizer::to_files`] writes it). All other settings of the folder also
//! apply (`settings.rs`); a tokenizer class is refused if the file, unless it is a `tokenizer.json`, cannot express it.

use std::path::Path;

use bounded_input as limits;

use serde_json::Value;

use super::added::Added;
use super::settings::{Class, Settings};
use super::{Frame, Model, Piece, PieceKind, SpecialIds, Tokenizer, TokenizerError};

impl Tokenizer {
    /// Loads a `tokenizer.json`, a `spiece.model`, a `vocab.txt`, or one of these from a model folder.
    ///
    /// # Errors
    /// There is no tokenizer, or the file cannot be read, is damaged, or uses an unsupported feature.
    pub fn load(path: &Path) -> Result<Self, TokenizerError> {
        if !path.is_dir() {
            return Self::from_file(path, &Settings::default());
        }
        let settings = Settings::of_folder(path)?;
        let mut names = ["tokenizer.json", "spiece.model", "30k-clean.model", "vocab.txt"];
        if settings.class == Class::Bert {
            names[1..].rotate_right(1);
        } else if settings.by_spiece {
            names.swap(0, 1);
        }
        match names.iter().map(|name| path.join(name)).find(|file| file.is_file()) {
            Some(file) => Self::from_file(&file, &settings),
            None => {
                let problem =
                    "no tokenizer.json, spiece.model or vocab.txt in this folder; put the model's tokenizer there";
                Err(TokenizerError::file(path)(problem))
            }
        }
    }

    fn from_file(path: &Path, settings: &Settings) -> Result<Self, TokenizerError> {
        let bytes = limits::read(path, limits::LARGEST_FILE).map_err(cannot_read(path))?;
        let tokenizer = match kind_of(&bytes) {
            Kind::Json(text) => Self::from_json_with(text, path, settings)?,
            Kind::Spiece => {
                settings.expect_class(Class::Albert, path)?;
                Self::from_spiece(&bytes, settings.cleaning(), path)?
            }
            Kind::Vocabulary(text) => {
                settings.expect_class(Class::Bert, path)?;
                Self::from_wordpiece_with(text, settings, path)?
            }
            Kind::Other => {
                let wide = limits::text::expect_utf_8(&bytes).err().map(|error| error.to_string());
                let what = limits::mistaken(&bytes).map(str::to_owned).or(wide);
                let what = what.unwrap_or_else(|| "it is damaged or another kind of file".to_owned());
                let problem = format!("neither a tokenizer.json, a spiece.model nor a BERT vocab.txt; {what}");
                return Err(TokenizerError::file(path)(problem));
            }
        };
        tokenizer.with_settings(settings).map_err(TokenizerError::file(path))
    }

    /// Applies the names, added words and limits of a folder.
    fn with_settings(mut self, settings: &Settings) -> Result<Self, String> {
        let frame_is_own = matches!(self.model, Model::Unigram(_));
        self.vocabulary.rename(&settings.names)?;
        if frame_is_own {
            let SpecialIds { cls, sep, .. } = self.specials();
            self.frame = Frame::of_bert(cls, sep);
            let is_new = |token: &&Value| token["content"].as_str().is_some_and(|word| self.id(word).is_none());
            let new: Vec<Value> = settings.added.iter().filter(is_new).cloned().collect();
            self.add(new)?;
        }
        for token in &settings.added {
            let (Some(word), Some(id)) = (token["content"].as_str(), token["id"].as_u64()) else { continue };
            let found = self.id(word).map(u64::from);
            if found != Some(id) {
                return Err(format!("the added token {word:?} has id {id}, but the vocabulary makes it {found:?}"));
            }
        }
        self.frame.has_segments &= !settings.no_segments;
        self.longest = settings.longest;
        self.cuts_left = settings.cuts_left.unwrap_or(self.cuts_left);
        Ok(self)
    }

    /// Adds words to a unigram vocabulary.
    fn add(&mut self, entries: Vec<Value>) -> Result<(), String> {
        if entries.is_empty() {
            return Ok(());
        }
        let lowercase = self.cleaning().is_some_and(|cleaning| cleaning.lowercase);
        let added = Added::new(entries, &self.vocabulary, lowercase)?;
        self.vocabulary.extend(added.entries.iter().map(|token| {
            let kind = if token["special"] == true { PieceKind::Control } else { PieceKind::Unused };
            Piece::new(token["content"].as_str().unwrap_or_default(), 0.0, kind)
        }));
        self.added = Some(Box::new(added));
        Ok(())
    }
}

fn cannot_read(path: &Path) -> impl Fn(std::io::Error) -> TokenizerError {
    move |error| TokenizerError::file(path)(format!("cannot read the file: {error}"))
}

enum Kind<'a> {
    Json(&'a str),
    Spiece,
    Vocabulary(&'a str),
    Other,
}

fn kind_of(bytes: &[u8]) -> Kind<'_> {
    let text = std::str::from_utf8(bytes).ok();
    let text = text.map(|text| text.strip_prefix('\u{feff}').unwrap_or(text));
    match text {
        _ if limits::mistaken(bytes).is_some() => Kind::Other,
        Some(text) if text.trim_start().starts_with('{') => Kind::Json(text),
        Some(text) if text.lines().any(|line| line == "[UNK]" || line == "[CLS]") => Kind::Vocabulary(text),
        // The first field of a model is a piece: field 1, a message.
        _ if bytes.first() == Some(&0x0a) => Kind::Spiece,
        _ => Kind::Other,
    }
}
