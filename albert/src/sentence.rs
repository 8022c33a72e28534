//! Folders of sentence-transformers: a model, and what becomes of its token vectors.
//!
//! ```text
//! modules.json              the steps: Transformer, Pooling, and perhaps Normalize; each with its folder
//! 1_Pooling/config.json     pooling_mode_mean_tokens, pooling_mode_cls_token, ..: the one that is true; or pooling_mode
//! sentence_bert_config.json max_seq_length: tokens of a text, specials included
//! ```
//!
//! Limits: other steps (Dense, CNN, ..) and poolings (max, weighted, last token) are refused by name.

use std::path::{Path, PathBuf};

use engine::io::{limits, write_atomically};
use engine::{EngineError, io::create_dir_synced};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::loaded::InferenceError;

const MODULES: &str = "modules.json";
const LIMITS: &str = "sentence_bert_config.json";
const POOLING: &str = "1_Pooling";
const CONFIG: &str = "config.json";

/// Reduction of the token vectors of a text to one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all tokens.
    Mean,
    /// The first token, `[CLS]`.
    Cls,
    /// The pooler's output for the first token.
    Pooler,
}

/// Settings of sentence vectors in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentenceSettings {
    /// Folder of the model.
    pub model: PathBuf,
    /// Pooling.
    pub pooling: Pooling,
    /// True if vectors are scaled to unit length.
    pub normalize: bool,
    /// Most tokens of a text, specials included.
    pub longest: Option<usize>,
}

#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

fn read(path: &Path) -> Result<Value, InferenceError> {
    let text = limits::read_text(path, limits::LARGEST_SETTINGS);
    let text = text.map_err(|error| EngineError::io(path, "read the settings of sentences", error))?;
    serde_json::from_str(&text).map_err(|error| wrong(path, &format!("not JSON: {error}")))
}

fn wrong(path: &Path, problem: &str) -> InferenceError {
    InferenceError::Input(format!("{}: {problem}", path.display()))
}

impl SentenceSettings {
    /// The settings of `folder`; `None` if it has no `modules.json`.
    ///
    /// # Errors
    /// A file is damaged, or asks for a step or a pooling that is not known here.
    pub fn of_folder(folder: &Path) -> Result<Option<Self>, InferenceError> {
        let path = folder.join(MODULES);
        if !path.is_file() {
            return Ok(None);
        }
        let modules: Vec<Module> = serde_json::from_value(read(&path)?)
            .map_err(|error| wrong(&path, &format!("{error}; expected a list of modules")))?;
        let mut found = Self { model: folder.to_owned(), pooling: Pooling::Mean, normalize: false, longest: None };
        let mut kinds = vec![];
        for Module { path: of_module, kind } in &modules {
            let name = kind.rsplit('.').next().unwrap_or(kind);
            match name {
                "Transformer" => found.model = folder.join(of_module),
                "Pooling" => found.pooling = pooling(&folder.join(of_module).join(CONFIG))?,
                "Normalize" => found.normalize = true,
                _ => {
                    let problem = format!("module {kind}: expected Transformer, Pooling and Normalize alone");
                    return Err(wrong(&path, &problem));
                }
            }
            kinds.push(name);
        }
        if !matches!(kinds[..], ["Transformer", "Pooling"] | ["Transformer", "Pooling", "Normalize"]) {
            let problem =
                format!("modules {}: expected Transformer, Pooling, Normalize in this order", kinds.join(", "));
            return Err(wrong(&path, &problem));
        }
        let limits = found.model.join(LIMITS);
        if limits.is_file() {
            let longest = read(&limits)?["max_seq_length"].as_u64();
            found.longest = longest.and_then(|longest| usize::try_from(longest).ok());
        }
        Ok(Some(found))
    }
}

/// The pooling that the file asks for.
fn pooling(path: &Path) -> Result<Pooling, InferenceError> {
    let config = read(path)?;
    let modes: Vec<String> = match &config["pooling_mode"] {
        Value::String(mode) => vec![mode.clone()],
        _ => {
            let entries = config.as_object().into_iter().flatten();
            let chosen = entries.filter(|(name, value)| name.starts_with("pooling_mode_") && **value == json!(true));
            chosen.map(|(name, _)| name.trim_start_matches("pooling_mode_").to_owned()).collect()
        }
    };
    match modes.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["mean" | "mean_tokens"] => Ok(Pooling::Mean),
        ["cls" | "cls_token"] => Ok(Pooling::Cls),
        _ => Err(wrong(path, &format!("pooling {}: expected mean or cls alone", modes.join(" and ")))),
    }
}

/// Writes to the model in `folder`, with vectors of `width`, what makes it one of sentence-transformers; returns the names of the
/// files.
///
/// # Errors
/// `pooling` is the pooler's, which sentence-transformers does not have, or a file cannot be written.
pub fn write_sentence_settings(
    folder: &Path,
    width: usize,
    pooling: Pooling,
    normalize: bool,
    longest: usize,
) -> Result<Vec<String>, InferenceError> {
    if pooling == Pooling::Pooler {
        return Err(InferenceError::Input("sentence-transformers pools by mean or cls, not by the pooler".into()));
    }
    let module = |idx: usize, path: &str, kind: &str| json!({ "idx": idx, "name": idx.to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}") });
    let mut modules = vec![module(0, "", "Transformer"), module(1, POOLING, "Pooling")];
    if normalize {
        modules.push(module(2, "2_Normalize", "Normalize"));
        create_dir_synced(folder.join("2_Normalize"))?;
    }
    let pooling = json!({
        "word_embedding_dimension": width,
        "pooling_mode_cls_token": pooling == Pooling::Cls,
        "pooling_mode_mean_tokens": pooling == Pooling::Mean,
        "pooling_mode_max_tokens": false,
        "pooling_mode_mean_sqrt_len_tokens": false,
    });
    create_dir_synced(folder.join(POOLING))?;
    let files = [
        (format!("{POOLING}/{CONFIG}"), pooling),
        (LIMITS.to_owned(), json!({ "max_seq_length": longest, "do_lower_case": false })),
        // Last: it makes the folder one of sentence-transformers.
        (MODULES.to_owned(), Value::Array(modules)),
    ];
    for (name, content) in &files {
        write_atomically(folder.join(name), |out| Ok(serde_json::to_writer_pretty(out, content)?))?;
    }
    Ok(files.into_iter().map(|(name, _)| name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_are_written_are_read() {
        for (pooling, normalize) in [(Pooling::Mean, true), (Pooling::Cls, false)] {
            let folder = tempfile::tempdir().unwrap();
            assert_eq!(SentenceSettings::of_folder(folder.path()).unwrap(), None);
            let files = write_sentence_settings(folder.path(), 8, pooling, normalize, 99).unwrap();
            assert_eq!(files, ["1_Pooling/config.json", "sentence_bert_config.json", "modules.json"]);
            let expected = SentenceSettings { model: folder.path().join(""), pooling, normalize, longest: Some(99) };
            assert_eq!(SentenceSettings::of_folder(folder.path()).unwrap(), Some(expected));
        }
        let folder = tempfile::tempdir().unwrap();
        assert!(write_sentence_settings(folder.path(), 8, Pooling::Pooler, false, 99).is_err());
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        write_sentence_settings(folder.path(), 8, Pooling::Mean, false, 99).unwrap();
        let said = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
            SentenceSettings::of_folder(folder.path()).unwrap_err().to_string()
        };
        let error = said("1_Pooling/config.json", r#"{"pooling_mode_max_tokens": true}"#);
        assert!(error.ends_with("config.json: pooling max_tokens: expected mean or cls alone"), "{error}");
        let error = said("1_Pooling/config.json", r#"{"pooling_mode": "lasttoken"}"#);
        assert!(error.ends_with("pooling lasttoken: expected mean or cls alone"), "{error}");
        let error = said("modules.json", r#"[{"path": "", "type": "sentence_transformers.models.Dense"}]"#);
        assert!(error.contains("module sentence_transformers.models.Dense: expected Transformer"), "{error}");
        assert!(said("modules.json", "[]").contains("in this order"));
        assert!(said("modules.json", "{}").contains("expected a list of modules"));
    }
}
