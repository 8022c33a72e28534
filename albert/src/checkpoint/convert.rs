//! Converts any supported model to a Hugging Face folder, all or nothing.
//!
//! Everything is written to a temporary folder next to the target and renamed in one step ([`AtomicFolder`]): a
//! reader finds the whole model or nothing, and of two concurrent conversions to one name, one fails. The target must
//! be missing or empty.

use std::collections::BTreeMap;
use std::path::Path;

use engine::EngineError;
use engine::io::{AtomicFolder, FileDType, create_dir_synced, limits, write_atomically};
use serde_json::Value;

use super::CheckpointError;
use super::model_folder::{LoadReport, ModelFolder};
use super::modules::{LIMITS, MODULES, PROMPTS, module_folders};
use super::save::{SaveFormat, save_model_as};
use crate::config::{AlbertConfig, Family, Heads, TaskHead};

/// Files of a tokenizer that are copied as they are.
const TOKENIZER_FILES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "spiece.model",
    "vocab.txt",
];
/// The vocabulary in Google's archives, and its name in a Hugging Face folder.
const GOOGLE_VOCABULARY: (&str, &str) = ("30k-clean.model", "spiece.model");

/// Options of a conversion.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvertOptions {
    /// Element type of the weights that are written.
    pub dtype: FileDType,
    /// Number of attention heads to use instead of the configuration's.
    pub attention_heads: Option<usize>,
}

/// Result of a conversion.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// The configuration, as written.
    pub config: AlbertConfig,
    /// Family of tensor names read and written.
    pub family: Family,
    /// Heads found in the model.
    pub heads: Heads,
    /// Result for every tensor.
    pub report: LoadReport,
    /// Remarks for the user: traps of the configuration, the number of attention heads.
    pub remarks: Vec<String>,
    /// Keys of the configuration that have no meaning here and are not carried over.
    pub ignored_keys: Vec<String>,
    /// Names of the files that were written.
    pub files: Vec<String>,
}

/// Converts the model at `from` (see [`ModelFolder::open`]) to the folder `to`, and copies its sentence-transformers
/// files, if any.
///
/// # Errors
/// The model cannot be read or lacks tensors; `to` is in use; a file cannot be written. `to` is then unchanged.
pub fn convert(from: &Path, to: &Path, options: ConvertOptions) -> Result<Conversion, CheckpointError> {
    let modules = if from.is_dir() { module_folders(from)? } else { Vec::new() };
    let mut model = ModelFolder::open(&modules.first().map_or(from.to_owned(), |module| from.join(module)))?;
    if let Some(heads) = options.attention_heads {
        model = model.with_attention_heads(heads)?;
    }
    let folder = AtomicFolder::create(to)?;
    let (reading, heads) = (model.config().clone(), model.heads());
    let mut values: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    let report = model.load(heads, &[], |spec, data| {
        values.insert(spec.name.clone(), data.to_vec());
        Ok(())
    })?;
    write(folder.path(), &model, heads, options.dtype, &values)?;
    copy_sentences(from, folder.path(), &modules)?;
    let mut files = Vec::new();
    list(folder.path(), "", &mut files)?;
    files.sort();
    folder.commit()?;
    let mut remarks = reading.notes;
    remarks.push(model.attention_heads_remark());
    Ok(Conversion {
        config: reading.config,
        family: reading.family,
        heads,
        report,
        remarks,
        ignored_keys: reading.ignored,
        files,
    })
}

/// Copies the sentence-transformers files of `from`: prompts, modules and their folders. The first of `modules` is the
/// model's folder, which is already in `to`.
fn copy_sentences(from: &Path, to: &Path, modules: &[String]) -> Result<(), CheckpointError> {
    let Some((model, others)) = modules.split_first() else { return Ok(()) };
    for name in std::iter::once(PROMPTS).chain(LIMITS) {
        let of_model = if name == PROMPTS { from.to_owned() } else { from.join(model) };
        copy(&of_model.join(name), &to.join(name))?;
    }
    for module in others {
        create_dir_synced(to.join(module))?;
        let mut files = Vec::new();
        if from.join(module).is_dir() {
            list(&from.join(module), "", &mut files)?;
        }
        for file in files {
            let target = to.join(module).join(file.as_str());
            create_dir_synced(target.parent().unwrap_or(to))?;
            copy(&from.join(module).join(file.as_str()), &target)?;
        }
    }
    let path = from.join(MODULES);
    let text = limits::read_text(&path, limits::LARGEST_SETTINGS)
        .map_err(|error| EngineError::io(&path, "read the modules", error))?;
    let mut list: Vec<Value> = serde_json::from_str(&text).map_err(|error| in_folder(&path, &error))?;
    list.iter_mut()
        .filter(|module| module["path"] == model.as_str())
        .take(1)
        .for_each(|module| module["path"] = "".into());
    Ok(write_atomically(to.join(MODULES), |out| Ok(serde_json::to_writer_pretty(out, &list)?))?)
}

fn in_folder(path: &Path, error: &impl std::fmt::Display) -> CheckpointError {
    CheckpointError::Folder { path: path.to_owned(), problem: error.to_string() }
}

/// Copies a file, if there is one.
fn copy(source: &Path, target: &Path) -> Result<(), EngineError> {
    if !source.is_file() || target.exists() {
        return Ok(());
    }
    let bytes = std::fs::read(source).map_err(|error| EngineError::io(source, "read the file", error))?;
    write_atomically(target, |out| out.write_all(&bytes))
}

/// Appends the files of `folder` and its subfolders, as paths relative to it.
fn list(folder: &Path, inside: &str, files: &mut Vec<String>) -> Result<(), EngineError> {
    let entries = std::fs::read_dir(folder).map_err(|error| EngineError::io(folder, "list the folder", error))?;
    for entry in entries.flatten() {
        let name = format!("{inside}{}", entry.file_name().to_string_lossy());
        // Links to folders are not followed: they may form cycles.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => list(&entry.path(), &format!("{name}/"), files)?,
            _ => files.push(name),
        }
    }
    Ok(())
}

/// Writes the model to `folder` and copies the tokenizer files.
fn write(
    folder: &Path,
    model: &ModelFolder,
    heads: Heads,
    dtype: FileDType,
    values: &BTreeMap<String, Vec<f32>>,
) -> Result<(), CheckpointError> {
    let reading = model.config();
    let labels = match heads.task.map(TaskHead::labels) {
        Some(count) if count == reading.labels.len() => &reading.labels[..],
        _ => &[],
    };
    let format = SaveFormat { family: reading.family, dtype, labels, problem_type: reading.problem_type };
    save_model_as(folder, &reading.config, heads, format, |name| &values[name])?;
    let (google, ours) = GOOGLE_VOCABULARY;
    for (from, to) in TOKENIZER_FILES.map(|name| (name, name)).into_iter().chain([(google, ours)]) {
        copy(&model.path().join(from), &folder.join(to))?;
    }
    Ok(())
}
