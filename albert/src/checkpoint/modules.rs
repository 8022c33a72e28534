//! Modules of a sentence-transformers folder: names of its files, and `modules.json`.

use std::path::Path;

use engine::EngineError;
use engine::io::limits;
use serde::Deserialize;
use serde_json::Value;

use super::CheckpointError;

pub(crate) const MODULES: &str = "modules.json";
/// Names of the file that sets the sequence length, in order of precedence.
pub(crate) const LIMITS: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];
pub(crate) const PROMPTS: &str = "config_sentence_transformers.json";

#[derive(Deserialize)]
pub(crate) struct Module {
    pub(crate) path: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

impl Module {
    /// Class name without its Python module.
    pub(crate) fn name(&self) -> &str {
        self.kind.rsplit('.').next().unwrap_or(&self.kind)
    }
}

/// Reads a settings file as JSON.
pub(crate) fn read_settings(path: &Path) -> Result<Value, CheckpointError> {
    let text = limits::read_text(path, limits::LARGEST_SETTINGS);
    let text = text.map_err(|error| EngineError::io(path, "read the sentence-transformers settings", error))?;
    limits::check_json(text.as_bytes()).map_err(|error| wrong(path, &format!("not JSON: {error}")))?;
    serde_json::from_str(&text).map_err(|error| wrong(path, &format!("not JSON: {error}")))
}

fn wrong(path: &Path, problem: &str) -> CheckpointError {
    CheckpointError::Folder { path: path.to_owned(), problem: problem.to_owned() }
}

/// The modules of `folder` as `modules.json` lists them; `None` without that file.
pub(crate) fn modules(folder: &Path) -> Result<Option<Vec<Module>>, CheckpointError> {
    let path = folder.join(MODULES);
    if !path.is_file() {
        return Ok(None);
    }
    let modules: Vec<Module> = serde_json::from_value(read_settings(&path)?)
        .map_err(|error| wrong(&path, &format!("{error}; expected a list of modules")))?;
    for Module { path: of_module, .. } in &modules {
        if Path::new(of_module).components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
            return Err(wrong(&path, &format!("`path` is {of_module:?}; expected a folder inside this one")));
        }
    }
    Ok(Some(modules))
}

/// Paths of the sentence-transformers modules in `folder`, the model's first; empty without `modules.json`.
pub(crate) fn module_folders(folder: &Path) -> Result<Vec<String>, CheckpointError> {
    let modules = modules(folder)?.unwrap_or_default();
    let (model, others): (Vec<_>, Vec<_>) = modules.into_iter().partition(|module| module.name() == "Transformer");
    Ok(model.into_iter().take(1).chain(others).map(|module| module.path).collect())
}
