//! Loading of files and folders.
//!
//! The content decides the kind of a file: JSON (ours if this crate writes its normalizer, otherwise run by Hugging Face's
//! library), a SentencePiece model, or a BERT vocabulary. The order in a model folder is `tokenizer.json`, `spiece.model` (or
//! Google's `30k-clean.model`), `vocab.txt`; the last two are swapped if `tokenizer_config.json` names a BERT class, the first
//! two if its `ids_by` names the `spiece.model` (as [`Tokenizer::to_files`] writes it). `do_lower_case`, `keep_accents`,
//! `strip_accents` and `tokenize_chinese_chars` of that file apply.

use std::path::Path;

use bounded_input as limits;
use serde_json::Value;

use super::{Cleaning, Tokenizer, TokenizerError, WordPiece};

/// Content of `tokenizer_config.json`.
#[derive(Debug, Default)]
struct Settings {
    is_bert: bool,
    /// Our own key: the `tokenizer.json` is an approximation of the `spiece.model`.
    by_spiece: bool,
    lowercase: Option<bool>,
    keep_accents: Option<bool>,
    strip_accents: Option<bool>,
    split_chinese: Option<bool>,
}

impl Tokenizer {
    /// Loads a `tokenizer.json`, a `spiece.model`, a `vocab.txt`, or one of these from a model folder.
    ///
    /// # Errors
    /// There is no tokenizer, or the file cannot be read, is damaged, or uses an unsupported feature.
    pub fn load(path: &Path) -> Result<Self, TokenizerError> {
        if !path.is_dir() {
            return Self::from_file(path, &Settings::default());
        }
        let settings = Settings::read(&path.join("tokenizer_config.json"))?;
        let mut names = ["tokenizer.json", "spiece.model", "30k-clean.model", "vocab.txt"];
        if settings.is_bert {
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
        match kind_of(&bytes) {
            Kind::Json(text) => Self::from_json_with(text, path, settings.bert_normalizer()),
            Kind::Spiece => Self::from_spiece(&bytes, settings.cleaning(), path),
            Kind::Vocabulary(text) => Self::from_wordpiece(text, settings.wordpiece(), path),
            Kind::Other => {
                let what = limits::mistaken(&bytes).unwrap_or("it is damaged or another kind of file");
                let problem = format!("neither a tokenizer.json, a spiece.model nor a BERT vocab.txt; {what}");
                Err(TokenizerError::file(path)(problem))
            }
        }
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

impl Settings {
    fn read(path: &Path) -> Result<Self, TokenizerError> {
        let bytes = match limits::read(path, limits::LARGEST_SETTINGS) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(cannot_read(path)(source)),
        };
        limits::check_json(&bytes).map_err(TokenizerError::json(path))?;
        let root: Value = serde_json::from_slice(&bytes).map_err(TokenizerError::json(path))?;
        let flag = |key: &str| match &root[key] {
            Value::Null => Ok(None),
            Value::Bool(value) => Ok(Some(*value)),
            other => Err(TokenizerError::file(path)(format!("{key}: expected true or false, found {other}"))),
        };
        Ok(Self {
            is_bert: root["tokenizer_class"].as_str().is_some_and(|class| class.starts_with("Bert")),
            by_spiece: root["ids_by"] == "spiece.model",
            lowercase: flag("do_lower_case")?,
            keep_accents: flag("keep_accents")?,
            strip_accents: flag("strip_accents")?,
            split_chinese: flag("tokenize_chinese_chars")?,
        })
    }

    fn cleaning(&self) -> Cleaning {
        let strip_accents = !self.keep_accents.unwrap_or(false);
        Cleaning { lowercase: self.lowercase.unwrap_or(true), strip_accents, ..Cleaning::default() }
    }

    fn wordpiece(&self) -> WordPiece {
        let usual = WordPiece::default();
        WordPiece {
            lowercase: self.lowercase.unwrap_or(usual.lowercase),
            strip_accents: self.strip_accents,
            split_chinese: self.split_chinese.unwrap_or(usual.split_chinese),
        }
    }

    /// Overrides of a BERT normalizer by the settings: `transformers` applies them over `tokenizer.json`.
    fn bert_normalizer(&self) -> Vec<(&'static str, Value)> {
        [
            ("lowercase", self.lowercase),
            ("strip_accents", self.strip_accents),
            ("handle_chinese_chars", self.split_chinese),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, Value::Bool(value?))))
        .collect()
    }
}
