//! Folders of sentence-transformers: a model, and the reduction of its token vectors to one vector.
//!
//! ```text
//! modules.json                      the steps: Transformer, Pooling, and perhaps Normalize; each with its folder
//! 1_Pooling/config.json             pooling_mode, or pooling_mode_mean_tokens, ..; include_prompt
//! sentence_bert_config.json         max_seq_length: tokens of a text, specials included; do_lower_case
//! config_sentence_transformers.json prompts, default_prompt_name, truncate_dim
//! ```
//!
//! Source: sentence-transformers 6.2. Limits: other steps (Dense, CNN, ..) are refused by name.

use std::path::{Path, PathBuf};

use engine::io::{create_dir_synced, write_atomically};
use serde_json::{Value, json};

use crate::checkpoint::{LIMITS, MODULES, Module, PROMPTS, folder_keys, modules, read_settings};
use crate::loaded::InferenceError;

const POOLING: &str = "1_Pooling";
const CONFIG: &str = "config.json";

/// Reduction of the token vectors of a text to one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Mean of all tokens.
    Mean,
    /// First token, `[CLS]`.
    Cls,
    /// Pooler output for the first token.
    Pooler,
    /// Maximum of each column.
    Max,
    /// Sum of all tokens divided by the square root of their number.
    MeanSqrtLen,
    /// Mean of all tokens, each weighted by its position from 1.
    WeightedMean,
    /// Last token of the text.
    LastToken,
}

/// Names in `pooling_mode` and in `pooling_mode_*`, in the order of concatenation.
const POOLINGS: [(&str, &str, Pooling); 6] = [
    ("cls", "cls_token", Pooling::Cls),
    ("max", "max_tokens", Pooling::Max),
    ("mean", "mean_tokens", Pooling::Mean),
    ("mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pooling::MeanSqrtLen),
    ("weightedmean", "weightedmean_tokens", Pooling::WeightedMean),
    ("lasttoken", "lasttoken", Pooling::LastToken),
];

/// Sentence-transformers settings of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentenceSettings {
    /// Folder of the model.
    pub model: PathBuf,
    /// Poolings, whose results are concatenated.
    pub poolings: Vec<Pooling>,
    /// False if the tokens of the prompt are not pooled.
    pub include_prompt: bool,
    /// True if vectors are scaled to unit length.
    pub normalize: bool,
    /// Maximum number of tokens of a text, including special pieces.
    pub longest: Option<usize>,
    /// True if texts are converted to lower case before tokenization.
    pub lowercase: bool,
    /// Prompts by name, in the order of the file.
    pub prompts: Vec<(String, String)>,
    /// Name of the prompt for texts without a chosen one.
    pub default_prompt: Option<String>,
    /// Number of columns that are kept.
    pub width: Option<usize>,
}

fn wrong(path: &Path, problem: &str) -> InferenceError {
    InferenceError::Input(format!("{}: {problem}", path.display()))
}

/// Value of `config` that `of` accepts; `None` if it is `null` or missing.
fn optional<T>(
    path: &Path,
    config: &Value,
    key: &str,
    expected: &str,
    of: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>, InferenceError> {
    match &config[key] {
        Value::Null => Ok(None),
        value => match of(value) {
            Some(value) => Ok(Some(value)),
            None => Err(wrong(path, &format!("`{key}` is {value}; expected {expected}"))),
        },
    }
}

/// Converts a number of at least 1.
fn count(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok().filter(|&count| count > 0)
}

impl SentenceSettings {
    /// Reads the settings of `folder`; `None` if it has no `modules.json`.
    ///
    /// # Errors
    /// A file is damaged, or requires an unsupported step or pooling.
    pub fn of_folder(folder: &Path) -> Result<Option<Self>, InferenceError> {
        let Some(modules) = modules(folder)? else { return Ok(None) };
        let path = folder.join(MODULES);
        let mut found = Self {
            model: folder.to_owned(),
            poolings: vec![Pooling::Mean],
            include_prompt: true,
            normalize: false,
            longest: None,
            lowercase: false,
            prompts: Vec::new(),
            default_prompt: None,
            width: None,
        };
        for module in &modules {
            let config = folder.join(&module.path).join(CONFIG);
            match module.name() {
                _ if !module.kind.starts_with("sentence_transformers.") => {
                    let problem = "expected a class of sentence_transformers; code in the folder is not run";
                    return Err(wrong(&path, &format!("module {}: {problem}", module.kind)));
                }
                "Transformer" => found.model = folder.join(&module.path),
                "Pooling" => (found.poolings, found.include_prompt) = pooling(&config)?,
                "Normalize" => found.normalize = true,
                _ => {
                    let problem = format!("module {}: expected Transformer, Pooling and Normalize alone", module.kind);
                    return Err(wrong(&path, &problem));
                }
            }
        }
        let kinds: Vec<&str> = modules.iter().map(Module::name).collect();
        if !matches!(kinds[..], ["Transformer", "Pooling"] | ["Transformer", "Pooling", "Normalize"]) {
            let problem =
                format!("modules {}: expected Transformer, Pooling, Normalize in this order", kinds.join(", "));
            return Err(wrong(&path, &problem));
        }
        if found.model != folder.join("") {
            // The files of the root folder; those of the model are checked when it is opened.
            folder_keys::check(folder)?;
        }
        found.read_limits()?;
        found.read_prompts(&folder.join(PROMPTS))?;
        Ok(Some(found))
    }

    fn read_limits(&mut self) -> Result<(), InferenceError> {
        let paths = LIMITS.map(|name| self.model.join(name));
        let Some(path) = paths.iter().find(|path| path.is_file()) else { return Ok(()) };
        let config = read_settings(path)?;
        self.longest = optional(path, &config, "max_seq_length", "a number of tokens", count)?;
        self.lowercase = optional(path, &config, "do_lower_case", "true or false", Value::as_bool)?.unwrap_or(false);
        Ok(())
    }

    fn read_prompts(&mut self, path: &Path) -> Result<(), InferenceError> {
        if !path.is_file() {
            return Ok(());
        }
        let config = read_settings(path)?;
        let text = |value: &Value| Some(if value.is_null() { String::new() } else { value.as_str()?.to_owned() });
        let all = |value: &Value| {
            let prompts = value.as_object()?.iter();
            prompts.map(|(name, prompt)| Some((name.clone(), text(prompt)?))).collect::<Option<Vec<_>>>()
        };
        self.prompts = optional(path, &config, "prompts", "texts by name", all)?.unwrap_or_default();
        self.default_prompt = optional(path, &config, "default_prompt_name", "a name", text)?;
        self.width = optional(path, &config, "truncate_dim", "a number of columns", count)?;
        match &self.default_prompt {
            Some(name) if self.prompt(name).is_none() => {
                Err(wrong(path, &format!("`default_prompt_name` is {name:?}; expected one of {}", self.prompt_names())))
            }
            _ => Ok(()),
        }
    }

    /// Prompt called `name`; sentence-transformers adds empty ones for "query" and "document".
    pub fn prompt(&self, name: &str) -> Option<&str> {
        let own = self.prompts.iter().find(|(known, _)| known == name).map(|(_, prompt)| prompt.as_str());
        own.or_else(|| ["query", "document"].contains(&name).then_some(""))
    }

    /// Names of the prompts, for messages.
    pub fn prompt_names(&self) -> String {
        let names: Vec<&str> = self.prompts.iter().map(|(name, _)| name.as_str()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

/// Poolings of the file, and whether the prompt is pooled.
fn pooling(path: &Path) -> Result<(Vec<Pooling>, bool), InferenceError> {
    let config = read_settings(path)?;
    let modes: Vec<&str> = match &config["pooling_mode"] {
        Value::String(mode) => vec![mode],
        Value::Array(modes) => modes.iter().map(|mode| mode.as_str().unwrap_or("?")).collect(),
        _ => {
            let of = |(mode, key, _): &(&'static str, &str, Pooling)| {
                (config[format!("pooling_mode_{key}")] == true).then_some(*mode)
            };
            POOLINGS.iter().filter_map(of).collect()
        }
    };
    let known = |mode: &&str| POOLINGS.iter().find(|(name, key, _)| name == mode || key == mode).map(|found| found.2);
    let found: Option<Vec<Pooling>> = modes.iter().map(known).collect();
    let other = config.as_object().into_iter().flatten().find(|(key, value)| {
        let name = key.strip_prefix("pooling_mode_").unwrap_or("cls_token");
        **value == true && POOLINGS.iter().all(|(_, key, _)| *key != name)
    });
    let found = match (found, other) {
        (Some(found), None) => found,
        (_, other) => {
            let mode = other.map_or(modes.join(" and "), |(key, _)| key.clone());
            return Err(wrong(path, &format!("pooling {mode}: expected {}", POOLINGS.map(|known| known.0).join(", "))));
        }
    };
    let include_prompt = optional(path, &config, "include_prompt", "true or false", Value::as_bool)?.unwrap_or(true);
    Ok((if found.is_empty() { vec![Pooling::Mean] } else { found }, include_prompt))
}

/// Adds the sentence-transformers files to the model in `folder`, with vectors of `width`; returns the names of the files.
///
/// # Errors
/// `pooling` is neither the mean nor `[CLS]`, or a file cannot be written.
pub fn write_sentence_settings(
    folder: &Path,
    width: usize,
    pooling: Pooling,
    normalize: bool,
    longest: usize,
) -> Result<Vec<String>, InferenceError> {
    if !matches!(pooling, Pooling::Mean | Pooling::Cls) {
        return Err(InferenceError::Input(format!("folders are written with mean or cls pooling, not {pooling:?}")));
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
        (LIMITS[0].to_owned(), json!({ "max_seq_length": longest, "do_lower_case": false })),
        // Last: it marks the folder as a sentence-transformers model.
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
            let found = SentenceSettings::of_folder(folder.path()).unwrap().unwrap();
            assert_eq!((found.model.clone(), &found.poolings[..]), (folder.path().join(""), &[pooling][..]));
            assert_eq!((found.normalize, found.longest, found.include_prompt), (normalize, Some(99), true));
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
        let error = said("1_Pooling/config.json", r#"{"pooling_mode_median_tokens": true}"#);
        assert!(error.contains("config.json: pooling pooling_mode_median_tokens: expected cls, max, mean,"), "{error}");
        std::fs::write(folder.path().join("1_Pooling/config.json"), r#"{"pooling_mode": "mean"}"#).unwrap();
        let error = said(PROMPTS, r#"{"prompts": {"a": "b: "}, "default_prompt_name": "c"}"#);
        assert!(error.ends_with("`default_prompt_name` is \"c\"; expected one of a"), "{error}");
        let error = said(PROMPTS, r#"{"truncate_dim": 0}"#);
        assert!(error.ends_with("`truncate_dim` is 0; expected a number of columns"), "{error}");
        let error = said("modules.json", r#"[{"path": "../x", "type": "sentence_transformers.models.Transformer"}]"#);
        assert!(error.contains("`path` is \"../x\"; expected a folder inside this one"), "{error}");
        let error = said("modules.json", r#"[{"path": "", "type": "custom_st.Transformer"}]"#);
        assert!(error.contains("module custom_st.Transformer: expected a class of sentence_transformers"), "{error}");
        assert!(said("modules.json", "[]").contains("in this order"));
        assert!(said("modules.json", "{}").contains("expected a list of modules"));
    }
}
