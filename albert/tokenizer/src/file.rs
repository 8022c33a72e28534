//! `tokenizer.json` in the layout of Hugging Face's fast tokenizers.
//!
//! ```text
//! added_tokens    <pad> <unk> [CLS] [SEP] [MASK], special, not normalized; [MASK] includes the space before it
//! normalizer      Sequence: drop control characters, NFKD + StripAccents (or NFKC), Lowercase, spaces, Strip
//! pre_tokenizer   Metaspace, mark also before the first word, split
//! post_processor  [CLS] A [SEP] and [CLS] A [SEP] B [SEP]
//! model           Unigram: vocab = [[piece, score], ...], score 0 = special or user-defined
//! ```
//!
//! Cleaning is read back from the normalizer list, kinds from `added_tokens`, `unk_id` and the scores. Files with another
//! normalizer are third-party files and run by Hugging Face's library (`hugging_face.rs`).
//!
//! Differences that the layout cannot express: with [`Normalization::Released`], Hugging Face's StripAccents drops all marks, ours
//! (as released) only those with a non-zero combining class, and its Lowercase has no final sigma. It also encodes special pieces
//! typed in text as special. This crate treats them as text for all files that it writes, including those converted from a
//! `spiece.model` ([`Tokenizer::encode_with_specials`] encodes them as special).

use std::fmt::Write as _;
use std::path::Path;

use base64::prelude::*;
use bounded_input as limits;
use serde_json::{Map, Value, json};

use super::settings::Settings;
use super::unigram::TextRules;
use super::vocabulary::{Piece, PieceKind, SpecialIds};
use super::{Cleaning, Model, Normalization, Tokenizer, TokenizerError};

/// Control characters, as a character class.
const CONTROLS: &str = "[\u{0}-\u{8}\u{e}-\u{1b}\u{7f}\u{8f}\u{9f}]";
/// White space and its substitutes, as a character class.
const SPACES: &str = "[\\s\u{1c}-\u{1f}\u{85}\u{200b}\u{200c}\u{200e}\u{200f}\u{2581}\u{feff}\u{fffd}]+";

/// Marks of direction, which become spaces instead of the non-joiner except in the released rules.
const DIRECTIONS: &str = "\u{61c}\u{202a}-\u{202e}\u{2066}-\u{2069}";
/// A capital sigma at the end of a word (`clean.rs`).
const FINAL_SIGMA: &str = r"(?<=[\p{Alphabetic}\p{M}])Σ(?![\p{Alphabetic}\p{M}])";

fn normalizers(cleaning: Cleaning) -> Vec<Value> {
    let replace = |regex: &str, with: &str| json!({"type": "Replace", "pattern": {"Regex": regex}, "content": with});
    let released = cleaning.normalization == Normalization::Released;
    let forms: &[&str] = match (cleaning.normalization, cleaning.strip_accents) {
        (Normalization::Released, true) => &["NFKD", "StripAccents"],
        (Normalization::Nfkc, true) => &["NFKD", "StripAccents", "NFC"],
        (Normalization::Nfc, true) => &["NFD", "StripAccents", "NFC"],
        (Normalization::Released | Normalization::Nfkc, false) => &["NFKC"],
        (Normalization::Nfc, false) => &["NFC"],
        (Normalization::None, _) => &[],
    };
    let mut list = vec![replace(CONTROLS, "")];
    list.extend(forms.iter().map(|form| json!({ "type": form })));
    if cleaning.lowercase && !released {
        list.push(replace(FINAL_SIGMA, "ς"));
    }
    if cleaning.lowercase {
        list.push(json!({"type": "Lowercase"}));
    }
    let spaces = if released { SPACES.to_owned() } else { SPACES.replace('\u{200c}', DIRECTIONS) };
    list.push(replace(&spaces, " "));
    list.push(json!({"type": "Strip", "strip_left": true, "strip_right": true}));
    list
}

/// Google's preprocessing and the rules of a SentencePiece model, in base64.
fn spiece_normalizers(cleaning: Cleaning, charsmap: &str) -> Vec<Value> {
    let space = json!({"type": "Replace", "pattern": {"Regex": "[\\s\u{1c}-\u{1f}\u{85}]+"}, "content": " "});
    let mut list = vec![space, json!({"type": "Strip", "strip_left": true, "strip_right": true})];
    if cleaning.strip_accents {
        list.extend([json!({"type": "NFKD"}), json!({"type": "StripAccents"})]);
    }
    if cleaning.lowercase {
        list.push(json!({"type": "Lowercase"}));
    }
    if !charsmap.is_empty() {
        list.push(json!({"type": "Precompiled", "precompiled_charsmap": charsmap}));
    }
    list.push(json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}));
    list.push(json!({"type": "Strip", "strip_left": true, "strip_right": true}));
    list
}

/// A special piece in `added_tokens`.
pub(super) fn added_token(id: &Value, content: &str, lstrip: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": lstrip, "rstrip": false, "normalized": false,
           "special": true})
}

/// Post-processor for `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`.
pub(super) fn template([(cls, cls_id), (sep, sep_id)]: [(&str, Value); 2]) -> Value {
    let special = |text: &str, segment: u32| json!({"SpecialToken": {"id": text, "type_id": segment}});
    let sequence = |name: &str, segment: u32| json!({"Sequence": {"id": name, "type_id": segment}});
    let token = |text: &str, id: Value| json!({"id": text, "ids": [id], "tokens": [text]});
    json!({
        "type": "TemplateProcessing",
        "single": [special(cls, 0), sequence("A", 0), special(sep, 0)],
        "pair": [special(cls, 0), sequence("A", 0), special(sep, 0), sequence("B", 1), special(sep, 1)],
        "special_tokens": {cls: token(cls, cls_id), sep: token(sep, sep_id)},
    })
}

/// All keys except the model.
fn frame(normalizers: Vec<Value>, tokenizer: &Tokenizer) -> Map<String, Value> {
    let SpecialIds { pad, unk, cls, sep, mask } = tokenizer.specials();
    let special = [pad, unk, cls, sep, mask].map(|id| added_token(&json!(id), tokenizer.piece(id), id == mask));
    let added: Vec<Value> = special.into_iter().chain(tokenizer.added_entries()).collect();
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let Value::Object(frame) = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": metaspace,
        "post_processor": template([cls, sep].map(|id| (tokenizer.piece(id), json!(id)))),
        "decoder": metaspace,
    }) else {
        unreachable!("the literal above is an object")
    };
    frame
}

impl Tokenizer {
    /// Content of `tokenizer.json`, which `transformers` can load; equal tokenizers have equal bytes.
    ///
    /// A `spiece.model` is approximated: pieces under the digit-comma rule have a score lower by 100 instead of being split.
    ///
    /// # Errors
    /// [`TokenizerError::Pipeline`] if a third-party tokenizer cannot be written.
    pub fn to_json(&self) -> Result<String, TokenizerError> {
        let unigram = match &self.model {
            Model::Unigram(unigram) => unigram,
            Model::HuggingFace(pipeline) => return pipeline.to_json(),
        };
        let normalizers = match &unigram.text {
            TextRules::Own(cleaning) => normalizers(*cleaning),
            TextRules::SentencePiece { normalizer, file } => {
                spiece_normalizers(normalizer.cleaning(), &BASE64_STANDARD.encode(file.charsmap()))
            }
        };
        let mut text = String::from("{\n");
        for (key, value) in frame(normalizers, self) {
            writeln!(text, "  {}: {value},", Value::from(key)).expect("a string can be written to");
        }
        let unk = self.specials().unk;
        let bytes = self.pieces().iter().any(|piece| piece.kind == PieceKind::Byte);
        writeln!(
            text,
            "  \"model\": {{\"type\": \"Unigram\", \"unk_id\": {unk}, \"byte_fallback\": {bytes}, \"vocab\": ["
        )
        .expect("a string can be written to");
        let trained = self.trained_pieces();
        for (id, piece) in (0u32..).zip(trained) {
            let comma = if (id as usize) + 1 < trained.len() { "," } else { "" };
            let score = match unigram.text {
                TextRules::Own(_) => piece.score,
                TextRules::SentencePiece { .. } if unigram.is_cut(id) => piece.score - 100.0,
                TextRules::SentencePiece { .. } => piece.score,
            };
            writeln!(text, "    {}{comma}", json!([piece.text, score])).expect("a string can be written to");
        }
        text.push_str("  ]}\n}\n");
        Ok(text)
    }

    /// Content of a `tokenizer_config.json` to accompany [`Self::to_json`]: it names the special pieces and the inputs of
    /// the model, and prevents `transformers` 5 from replacing the pipeline of the file.
    pub fn to_config_json(&self) -> String {
        let SpecialIds { pad, unk, cls, sep, mask } = self.specials();
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": self.piece(cls),
            "eos_token": self.piece(sep),
            "cls_token": self.piece(cls),
            "sep_token": self.piece(sep),
            "unk_token": self.piece(unk),
            "pad_token": self.piece(pad),
            "mask_token": self.piece(mask),
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            "clean_up_tokenization_spaces": false,
        });
        if !self.frame.has_segments {
            config["model_input_names"] = json!(["input_ids", "attention_mask"]);
        }
        if let Some(longest) = self.longest {
            config["model_max_length"] = longest.into();
        }
        if self.cuts_left {
            config["truncation_side"] = "left".into();
        }
        let cleaning = self.cleaning().filter(|&cleaning| self.is_from_spiece() || cleaning != Cleaning::default());
        if self.is_from_spiece() {
            // For this program: the file that defines the ids.
            config["ids_by"] = "spiece.model".into();
        }
        if let Some(Cleaning { lowercase, strip_accents, .. }) = cleaning {
            // The preprocessing of the spiece.model or, for programs that read these keys, of the tokenizer.json.
            config["do_lower_case"] = lowercase.into();
            config["keep_accents"] = (!strip_accents).into();
        }
        format!("{config:#}\n")
    }

    /// The tokenizer files of a model folder, by name and content: [`Self::to_json`], [`Self::to_config_json`] and, for a tokenizer that
    /// was read from one, the `spiece.model`. Loading the folder with [`Self::load`] reproduces the same ids.
    ///
    /// # Errors
    /// As [`Self::to_json`].
    pub fn to_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>, TokenizerError> {
        let mut files = vec![
            ("tokenizer.json", self.to_json()?.into_bytes()),
            ("tokenizer_config.json", self.to_config_json().into_bytes()),
        ];
        if self.is_from_spiece() {
            files.push(("spiece.model", self.to_spiece()?));
            let ids = self
                .added_entries()
                .map(|token| (token["content"].as_str().unwrap_or_default().to_owned(), token["id"].clone()));
            let ids: Map<String, Value> = ids.collect();
            if !ids.is_empty() {
                files.push(("added_tokens.json", json!(ids).to_string().into_bytes()));
            }
        }
        Ok(files)
    }

    /// Added words of a unigram vocabulary, as in `added_tokens`.
    fn added_entries(&self) -> impl Iterator<Item = Value> + '_ {
        self.added.iter().flat_map(|added| added.entries.iter().cloned())
    }

    /// The pieces before the added words.
    pub(super) fn trained_pieces(&self) -> &[Piece] {
        &self.pieces()[..self.vocab_size() - self.added_entries().count()]
    }

    /// True if the rules are those of a SentencePiece model, which a `tokenizer.json` cannot express.
    fn is_from_spiece(&self) -> bool {
        matches!(&self.model, Model::Unigram(unigram) if matches!(unigram.text, TextRules::SentencePiece { .. }))
    }

    /// Reads the content of a `tokenizer.json`; `path` is for messages.
    ///
    /// # Errors
    /// The file is damaged or uses an unsupported feature.
    pub fn from_json(text: &str, path: &Path) -> Result<Self, TokenizerError> {
        Self::from_json_with(text, path, &Settings::default())
    }

    /// As [`Self::from_json`]; the settings of the folder override those of a third-party file.
    pub(super) fn from_json_with(text: &str, path: &Path, settings: &Settings) -> Result<Self, TokenizerError> {
        limits::check_json(text.as_bytes()).map_err(TokenizerError::json(path))?;
        let mut root: Value = serde_json::from_str(text).map_err(TokenizerError::json(path))?;
        let reader = Reader { path };
        let Some(cleaning) = own_cleaning(&root) else {
            return match settings.override_pipeline(&mut root) {
                true => Self::from_pipeline(&root.to_string(), root, &settings.names, path),
                false => Self::from_pipeline(text, root, &settings.names, path),
            };
        };
        reader.check_word_marks(&root)?;
        let pieces = reader.pieces(&root)?;
        Self::from_pieces(pieces, cleaning).map_err(TokenizerError::file(path))
    }
}

/// Cleaning settings of the normalizer list, if it is one of ours; a file with another post-processor is not ours.
fn own_cleaning(root: &Value) -> Option<Cleaning> {
    let ids = &root["post_processor"]["special_tokens"];
    let own = template(["[CLS]", "[SEP]"].map(|piece| (piece, ids[piece]["ids"][0].clone())));
    if root["post_processor"] == own { cleaning_of(root, normalizers) } else { None }
}

/// True if [`Tokenizer::to_json`] wrote the file from a `spiece.model`.
pub(super) fn is_written_from_spiece(root: &Value) -> bool {
    let steps = root.pointer("/normalizer/normalizers").and_then(Value::as_array);
    let charsmap =
        steps.into_iter().flatten().find_map(|step| step["precompiled_charsmap"].as_str()).unwrap_or_default();
    cleaning_of(root, |cleaning| spiece_normalizers(cleaning, charsmap)).is_some()
}

fn cleaning_of(root: &Value, list: impl Fn(Cleaning) -> Vec<Value>) -> Option<Cleaning> {
    let found = root.pointer("/normalizer/normalizers")?.as_array()?;
    Cleaning::all().find(|&cleaning| *found == list(cleaning))
}

/// Reader of JSON keys whose errors name the key.
struct Reader<'p> {
    path: &'p Path,
}

impl Reader<'_> {
    fn wrong<T>(&self, key: &str, expected: &str, found: &Value) -> Result<T, TokenizerError> {
        let mut found = match found {
            Value::Null => "nothing".to_owned(),
            value => value.to_string(),
        };
        if found.chars().count() > 80 {
            found = found.chars().take(77).chain("...".chars()).collect();
        }
        Err(TokenizerError::file(self.path)(format!("{key}: expected {expected}, found {found}")))
    }

    fn expect(&self, root: &Value, pointer: &str, expected: &Value) -> Result<(), TokenizerError> {
        let found = root.pointer(pointer).unwrap_or(&Value::Null);
        let key = pointer.trim_start_matches('/').replace('/', ".");
        if found == expected { Ok(()) } else { self.wrong(&key, &expected.to_string(), found) }
    }

    fn check_word_marks(&self, root: &Value) -> Result<(), TokenizerError> {
        self.expect(root, "/pre_tokenizer/type", &json!("Metaspace"))?;
        self.expect(root, "/pre_tokenizer/replacement", &json!("▁"))?;
        self.expect(root, "/model/type", &json!("Unigram"))?;
        match root.pointer("/model/byte_fallback") {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(other) => self.wrong("model.byte_fallback", "false", other),
        }
    }

    fn pieces(&self, root: &Value) -> Result<Vec<Piece>, TokenizerError> {
        let found = root.pointer("/model/vocab").unwrap_or(&Value::Null);
        let Some(entries) = found.as_array() else {
            return self.wrong("model.vocab", "a list of [piece, score]", found);
        };
        let unk = root.pointer("/model/unk_id").unwrap_or(&Value::Null);
        let Some(unk_id) = unk.as_u64().filter(|&id| id < entries.len() as u64) else {
            return self.wrong("model.unk_id", "the id of a piece of model.vocab", unk);
        };
        let mut pieces = Vec::with_capacity(entries.len());
        for (id, entry) in entries.iter().enumerate() {
            let pair = entry.as_array().map(Vec::as_slice);
            let Some([Value::String(text), Value::Number(score)]) = pair else {
                return self.wrong(&format!("model.vocab[{id}]"), "[piece, score]", entry);
            };
            let Some(score) = score.as_f64() else {
                return self.wrong(&format!("model.vocab[{id}]"), "a score that is a number", entry);
            };
            let kind = match score {
                _ if id as u64 == unk_id => PieceKind::Unknown,
                0.0 => PieceKind::UserDefined,
                _ => PieceKind::Normal,
            };
            pieces.push(Piece::new(text, score, kind));
        }
        self.mark_controls(root, unk_id, &mut pieces)?;
        Ok(pieces)
    }

    /// Sets the kind of special added tokens to control.
    fn mark_controls(&self, root: &Value, unk_id: u64, pieces: &mut [Piece]) -> Result<(), TokenizerError> {
        let added = root.get("added_tokens").unwrap_or(&Value::Null);
        let Some(tokens) = added.as_array() else {
            return self.wrong("added_tokens", "a list of special tokens", added);
        };
        for (index, token) in tokens.iter().enumerate() {
            let key = format!("added_tokens[{index}]");
            let (id, content) = (token["id"].as_u64(), token["content"].as_str());
            let piece = id.and_then(|id| pieces.get_mut(id as usize)).filter(|piece| content == Some(&piece.text));
            let Some(piece) = piece else {
                return self.wrong(&key, "the id and content of a piece of model.vocab", token);
            };
            match (&token["special"], id == Some(unk_id)) {
                (Value::Bool(true), false) => piece.kind = PieceKind::Control,
                (Value::Bool(true), true) => {}
                _ => return self.wrong(&key, "a token with \"special\": true", token),
            }
        }
        Ok(())
    }
}
