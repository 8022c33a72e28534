//! Loading: which kind of tokenizer a file or folder is.
//!
//! A file is told by its content: JSON (ours if its normalizer is one that we write, otherwise Hugging Face's library runs
//! it), a SentencePiece model, or a BERT vocabulary. In a model folder the order is `tokenizer.json`, then `spiece.model`
//! (or Google's `30k-clean.model`), then `vocab.txt`, the last two swapped where `tokenizer_config.json` names a BERT class,
//! and the first two where its `ids_by` says that the model has the rules (our own folders do, of models trained with one);
//! `do_lower_case`, `keep_accents`, `strip_accents` and `tokenize_chinese_chars` in it are obeyed.

use std::path::{Path, PathBuf};

use bounded_input as limits;
use serde_json::Value;

use super::{Cleaning, Tokenizer, TokenizerError, WordPiece};

/// What `tokenizer_config.json` says.
#[derive(Debug, Default)]
struct Settings {
    is_bert: bool,
    /// Our own key: the `tokenizer.json` beside it is the nearest that others can run.
    by_spiece: bool,
    lowercase: Option<bool>,
    keep_accents: Option<bool>,
    strip_accents: Option<bool>,
    split_chinese: Option<bool>,
}

impl Tokenizer {
    /// Loads a `tokenizer.json`, a `spiece.model`, a `vocab.txt`, or what a model folder holds of these.
    ///
    /// # Errors
    /// If nothing there is a tokenizer, or if the file cannot be read, is damaged, or asks for something that this program
    /// does not do.
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
            None => Err(TokenizerError::NoTokenizer {
                path: path.into(),
                expected: "tokenizer.json, spiece.model or vocab.txt",
            }),
        }
    }

    fn from_file(path: &Path, settings: &Settings) -> Result<Self, TokenizerError> {
        let bytes = limits::read(path, limits::LARGEST_FILE)
            .map_err(|source| TokenizerError::Read { path: path.into(), source })?;
        match kind_of(&bytes) {
            Kind::Json(text) => Self::from_json_with(text, path, settings.bert_normalizer()),
            Kind::Spiece => Self::from_spiece(&bytes, settings.cleaning(), path),
            Kind::Vocabulary(text) => Self::from_wordpiece(text, settings.wordpiece(), path),
            Kind::Other => {
                let what = limits::mistaken(&bytes).unwrap_or("it is damaged or another kind of file");
                Err(TokenizerError::Unrecognized { path: path.into(), what })
            }
        }
    }
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
            Err(source) => return Err(TokenizerError::Read { path: path.into(), source }),
        };
        let not_json = |reason: String| TokenizerError::Json { path: path.into(), reason };
        limits::check_json(&bytes).map_err(|error| not_json(error.to_string()))?;
        let root: Value = serde_json::from_slice(&bytes).map_err(|error| not_json(error.to_string()))?;
        let flag = |key: &str| match &root[key] {
            Value::Null => Ok(None),
            Value::Bool(value) => Ok(Some(*value)),
            other => Err(TokenizerError::Layout {
                path: PathBuf::from(path),
                key: key.into(),
                expected: "true or false".into(),
                found: other.to_string(),
            }),
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
        Cleaning { lowercase: self.lowercase.unwrap_or(true), strip_accents: !self.keep_accents.unwrap_or(false) }
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
