//! Settings of a model folder that affect the interpretation of a vocabulary file.
//!
//! ```text
//! tokenizer_config.json     class, case, accents, length, side, special pieces, added words with their flags
//! special_tokens_map.json   special pieces, before those of the file above unless it has added_tokens_decoder
//! added_tokens.json         added words and their ids, in the form of slow tokenizers
//! config.json               the class, if the first file does not name one
//! ```
//!
//! `docs/folders.md` lists all keys. Source: `PreTrainedTokenizerBase._from_pretrained` of transformers 4 and 5.

use std::collections::BTreeMap;
use std::path::Path;

use bounded_input as limits;
use serde_json::{Map, Value, json};

use super::{Cleaning, TokenizerError};

/// Names of the special pieces in a folder, in the order of [`super::SPECIAL_PIECES`].
pub(super) type Names = [Option<String>; 5];

/// Keys of these names.
pub(super) const ROLES: [&str; 5] = ["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"];

/// Classes with BERT's pipeline, ending in `Tokenizer` or `TokenizerFast`: their settings override a `tokenizer.json`.
const BERT_CLASSES: [&str; 12] = [
    "Bert",
    "ConvBert",
    "DistilBert",
    "Electra",
    "Funnel",
    "LayoutLM",
    "Lxmert",
    "MobileBert",
    "MPNet",
    "Retribert",
    "RoFormer",
    "SqueezeBert",
];

/// Larger lengths are placeholders: `transformers` writes 1e30 for "no limit".
const LONGEST: f64 = 1e9;

/// Kind of the class of a tokenizer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Class {
    /// No class is named.
    #[default]
    Unnamed,
    /// BERT's pipeline.
    Bert,
    /// ALBERT's pipeline.
    Albert,
    /// Any pipeline, defined by its `tokenizer.json`.
    Pipeline,
    /// Any other class.
    Other(String),
}

/// Contents of the files.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) class: Class,
    /// Our own key: true if the `tokenizer.json` is an approximation of the `spiece.model`.
    pub(super) by_spiece: bool,
    pub(super) lowercase: Option<bool>,
    keep_accents: Option<bool>,
    pub(super) strip_accents: Option<bool>,
    pub(super) split_chinese: Option<bool>,
    /// Maximum number of tokens of a sequence.
    pub(super) longest: Option<usize>,
    /// True if long texts are truncated at the start.
    pub(super) cuts_left: Option<bool>,
    /// True if everything is segment 0: `model_input_names` without `token_type_ids`.
    pub(super) no_segments: bool,
    pub(super) names: Names,
    /// Added words as in the `added_tokens` of a `tokenizer.json`, by id; those without an id must be in the vocabulary.
    pub(super) added: Vec<Value>,
    /// True if they come from `added_tokens_decoder`, whose flags override those of a `tokenizer.json`.
    has_decoder: bool,
}

/// Reads the object in a file; empty if there is no file.
fn object(path: &Path) -> Result<Map<String, Value>, TokenizerError> {
    let bytes = match limits::read(path, limits::LARGEST_SETTINGS) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(error) => return Err(TokenizerError::file(path)(format!("cannot read the file: {error}"))),
    };
    limits::check_json(&bytes).map_err(TokenizerError::json(path))?;
    serde_json::from_slice(&bytes).map_err(TokenizerError::json(path))
}

/// Text of a special piece: a string, or an object with its flags.
fn piece_of(value: &Value) -> Option<String> {
    Some(value.as_str().or_else(|| value["content"].as_str())?.to_owned())
}

/// Creates an entry of `added_tokens`, with the defaults of an added word.
fn entry(content: &str, id: Option<u64>, special: bool, flags: &Value) -> Value {
    let flag = |key: &str, default: bool| flags[key].as_bool().unwrap_or(default);
    let special = flag("special", special);
    json!({"id": id, "content": content, "single_word": flag("single_word", false), "lstrip": flag("lstrip", false),
           "rstrip": flag("rstrip", false), "normalized": flag("normalized", !special), "special": special})
}

impl Settings {
    /// Reads the files of `folder`.
    pub(super) fn of_folder(folder: &Path) -> Result<Self, TokenizerError> {
        let path = folder.join("tokenizer_config.json");
        let root = object(&path)?;
        let wrong = |key: &str, expected: &str, found: &Value| {
            TokenizerError::file(&path)(format!("{key}: expected {expected}, found {found}"))
        };
        let get = |key: &str| root.get(key).filter(|value| !value.is_null());
        let flag = |key: &str| match get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(wrong(key, "true or false", other)),
        };
        let length = match get("model_max_length").or_else(|| get("max_len")) {
            None => None,
            Some(value) => match value.as_f64() {
                Some(length) if length >= 1.0 => (length < LONGEST).then_some(length as usize),
                _ => return Err(wrong("model_max_length", "a number of tokens", value)),
            },
        };
        let cuts_left = match get("truncation_side").map(|side| (side.as_str(), side)) {
            None => None,
            Some((Some("left"), _)) => Some(true),
            Some((Some("right"), _)) => Some(false),
            Some((_, other)) => return Err(wrong("truncation_side", "\"left\" or \"right\"", other)),
        };
        let inputs = get("model_input_names").and_then(Value::as_array);
        let has_decoder = get("added_tokens_decoder").is_some();
        let map = if has_decoder { Map::new() } else { object(&folder.join("special_tokens_map.json"))? };
        let names = ROLES.map(|role| piece_of(map.get(role).or_else(|| get(role)).unwrap_or(&Value::Null)));
        Ok(Self {
            class: class_of(get("tokenizer_class").and_then(Value::as_str), folder)?,
            by_spiece: root.get("ids_by").is_some_and(|file| file == "spiece.model"),
            lowercase: flag("do_lower_case")?,
            keep_accents: flag("keep_accents")?,
            strip_accents: flag("strip_accents")?,
            split_chinese: flag("tokenize_chinese_chars")?,
            longest: length,
            cuts_left,
            no_segments: inputs.is_some_and(|names| !names.iter().any(|name| name == "token_type_ids")),
            added: added_tokens(folder, &root, &map)?,
            has_decoder,
            names,
        })
    }

    pub(super) fn cleaning(&self) -> Cleaning {
        let strip_accents = !self.keep_accents.unwrap_or(false);
        Cleaning { lowercase: self.lowercase.unwrap_or(true), strip_accents, ..Cleaning::default() }
    }

    /// Checks that the file at `path`, which has the rules of `own`, is not used with another class.
    pub(super) fn expect_class(&self, own: Class, path: &Path) -> Result<(), TokenizerError> {
        match &self.class {
            Class::Other(class) => Err(TokenizerError::file(path)(format!(
                "tokenizer_class {class} is not supported from this file; save a tokenizer.json next to it: python -c \
                 \"from transformers import AutoTokenizer as T; T.from_pretrained('FOLDER').save_pretrained('FOLDER')\""
            ))),
            Class::Bert | Class::Albert if self.class != own => Err(TokenizerError::file(path)(format!(
                "tokenizer_class is {:?}'s, whose rules are not those of this file; correct tokenizer_config.json",
                self.class
            ))),
            _ => Ok(()),
        }
    }

    /// Applies the settings to a `tokenizer.json`, as `transformers` does: BERT's classes override a BERT normalizer, and
    /// words are added. Returns false if nothing changes.
    pub(super) fn override_pipeline(&self, root: &mut Value) -> bool {
        let mut changed = false;
        if matches!(self.class, Class::Unnamed | Class::Bert) && root["normalizer"]["type"] == "BertNormalizer" {
            for (key, value) in [
                ("lowercase", self.lowercase),
                ("strip_accents", self.strip_accents),
                ("handle_chinese_chars", self.split_chinese),
            ] {
                if let Some(value) = value.filter(|&value| root["normalizer"][key] != value) {
                    (root["normalizer"][key], changed) = (value.into(), true);
                }
            }
        }
        if !self.added.is_empty() && !root["added_tokens"].is_array() {
            root["added_tokens"] = json!([]);
        }
        for new in &self.added {
            let tokens = root["added_tokens"].as_array_mut().expect("it is a list if there are any");
            match tokens.iter_mut().find(|old| old["content"] == new["content"]) {
                Some(old) if self.has_decoder && old["id"] == new["id"] && *old != *new => {
                    (*old, changed) = (new.clone(), true)
                }
                Some(_) => {}
                None => {
                    let mut new = new.clone();
                    if new["id"].is_null() {
                        // The library assigns ids itself.
                        new["id"] = json!(0);
                    }
                    tokens.push(new);
                    changed = true;
                }
            }
        }
        changed
    }
}

/// Class named in `tokenizer_config.json`, or else in `config.json`.
fn class_of(named: Option<&str>, folder: &Path) -> Result<Class, TokenizerError> {
    let config = match named {
        Some(_) => Map::new(),
        None => object(&folder.join("config.json")).unwrap_or_default(),
    };
    let of_config = config.get("tokenizer_class").and_then(Value::as_str);
    let Some(class) = named.or(of_config) else { return Ok(Class::Unnamed) };
    let base = class.strip_suffix("Fast").unwrap_or(class);
    Ok(match base.strip_suffix("Tokenizer") {
        Some(name) if BERT_CLASSES.contains(&name) => Class::Bert,
        Some("Albert") => Class::Albert,
        Some("PreTrained") => Class::Pipeline,
        _ if class == "TokenizersBackend" => Class::Pipeline,
        _ => Class::Other(class.to_owned()),
    })
}

/// All added words, from `added_tokens_decoder` in the configuration `root`, or else from `added_tokens.json`, and the
/// additional special pieces.
fn added_tokens(
    folder: &Path,
    root: &Map<String, Value>,
    map: &Map<String, Value>,
) -> Result<Vec<Value>, TokenizerError> {
    let path = folder.join("added_tokens.json");
    let mut by_id: BTreeMap<u64, Value> = BTreeMap::new();
    let mut additional: Vec<&Value> = Vec::new();
    for key in ["additional_special_tokens", "extra_special_tokens"] {
        match map.get(key).or_else(|| root.get(key)) {
            Some(Value::Array(list)) => additional.extend(list),
            Some(Value::Object(named)) => additional.extend(named.values()),
            _ => {}
        }
    }
    let special = ROLES.iter().chain(&["bos_token", "eos_token"]);
    let special: Vec<&Value> = special.filter_map(|role| map.get(*role).or_else(|| root.get(*role))).collect();
    let is_special =
        |word: &str| additional.iter().chain(&special).any(|value| piece_of(value).is_some_and(|piece| piece == word));
    if let Some(Value::Object(decoder)) = root.get("added_tokens_decoder") {
        for (id, token) in decoder {
            let (Ok(number), Some(content)) = (id.parse(), token["content"].as_str()) else {
                let problem = format!("added_tokens_decoder.{id}: expected an id and a token with `content`");
                return Err(TokenizerError::file(&folder.join("tokenizer_config.json"))(problem));
            };
            by_id.insert(number, entry(content, Some(number), is_special(content), token));
        }
    } else {
        for (word, id) in &object(&path)? {
            let Some(number) = id.as_u64() else {
                return Err(TokenizerError::file(&path)(format!("{word:?}: expected an id, found {id}")));
            };
            by_id.insert(number, entry(word, Some(number), is_special(word), &Value::Null));
        }
    }
    let mut all: Vec<Value> = by_id.into_values().collect();
    for token in additional {
        let Some(content) = piece_of(token) else { continue };
        if !all.iter().any(|known| known["content"] == content.as_str()) {
            all.push(entry(&content, None, true, token));
        }
    }
    Ok(all)
}
