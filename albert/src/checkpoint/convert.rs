//! From any model that is read to a Hugging Face folder, whole or not at all.
//!
//! Everything is written to a folder beside the target, which then takes the target's name in one step
//! ([`AtomicFolder`]): a reader finds the whole model or none, and of two conversions to one name one is refused. The
//! target must not exist or be empty.
//! Cost: the parameters once in memory.

use std::collections::BTreeMap;
use std::path::Path;

use engine::EngineError;
use engine::io::{AtomicFolder, FileDType, write_atomically};

use super::CheckpointError;
use super::model_folder::{LoadReport, ModelFolder};
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
    /// Another number of attention heads than the configuration's.
    pub attention_heads: Option<usize>,
}

/// Result of a conversion.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// The configuration, as written.
    pub config: AlbertConfig,
    /// Family of tensor names read and written.
    pub family: Family,
    /// The heads that were found.
    pub heads: Heads,
    /// Result for every tensor.
    pub report: LoadReport,
    /// Remarks for the user: traps of the configuration, the number of attention heads.
    pub remarks: Vec<String>,
    /// Keys of the configuration that mean nothing here and are not carried over.
    pub ignored_keys: Vec<String>,
    /// The files that were written, by name.
    pub files: Vec<String>,
}

/// Converts the model at `from` (see [`ModelFolder::open`]) to the folder `to`.
///
/// # Errors
/// The model cannot be read, or lacks tensors; `to` is in use; a file cannot be written. `to` is then as it was.
pub fn convert(from: &Path, to: &Path, options: ConvertOptions) -> Result<Conversion, CheckpointError> {
    let mut model = ModelFolder::open(from)?;
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
    let files = write(folder.path(), &model, heads, options.dtype, &values)?;
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

/// Writes the model to `folder` and copies what belongs to its tokenizer.
fn write(
    folder: &Path,
    model: &ModelFolder,
    heads: Heads,
    dtype: FileDType,
    values: &BTreeMap<String, Vec<f32>>,
) -> Result<Vec<String>, CheckpointError> {
    let reading = model.config();
    let labels = match heads.task.map(TaskHead::labels) {
        Some(count) if count == reading.labels.len() => &reading.labels[..],
        _ => &[],
    };
    let format = SaveFormat { family: reading.family, dtype, labels, problem_type: reading.problem_type };
    save_model_as(folder, &reading.config, heads, format, |name| &values[name])?;
    let (google, ours) = GOOGLE_VOCABULARY;
    for (from, to) in TOKENIZER_FILES.map(|name| (name, name)).into_iter().chain([(google, ours)]) {
        let (source, target) = (model.path().join(from), folder.join(to));
        if source.is_file() && !target.exists() {
            let bytes = std::fs::read(&source).map_err(|error| EngineError::io(&source, "read the file", error))?;
            write_atomically(target, |out| out.write_all(&bytes))?;
        }
    }
    let files = std::fs::read_dir(folder).map_err(|error| EngineError::io(folder, "list the folder", error))?;
    let mut names: Vec<String> =
        files.filter_map(|file| Some(file.ok()?.file_name().to_string_lossy().into_owned())).collect();
    names.sort();
    Ok(names)
}
