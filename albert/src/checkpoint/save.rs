//! Writes model folders that Hugging Face reads as the same model.

use std::path::Path;

use engine::io::{Data, FileDType, TensorOut, create_dir_synced, save_safetensors, write_atomically};

use super::CheckpointError;
use super::model_folder::{CONFIG, WEIGHTS};
use super::names::stored_name;
use super::stored::{Content, stored_tensors};
use crate::config::{AlbertConfig, ConfigIdentity, Family, Heads, ProblemType, TaskHead};

/// PyTorch's name of an element type, as in `config.json`.
pub fn torch_name(dtype: FileDType) -> &'static str {
    match dtype {
        FileDType::F32 => "float32",
        FileDType::Bf16 => "bfloat16",
        FileDType::F16 => "float16",
    }
}

/// Format of a saved model.
#[derive(Clone, Copy, Debug, Default)]
pub struct SaveFormat<'a> {
    /// Family of tensor names.
    pub family: Family,
    /// Element type of the weights.
    pub dtype: FileDType,
    /// Names of the labels of the task's head; empty for `LABEL_0` and so on.
    pub labels: &'a [String],
    /// Meaning of the scores of a sequence head; `None`: derived from the number of labels.
    pub problem_type: Option<ProblemType>,
}

/// Writes the model to `folder` in f32 under ALBERT's names, each file atomically; the weights come last.
///
/// `values` returns the elements of a parameter of [`crate::model::parameters`]; `tokenizer` contains names and contents of the
/// tokenizer files (see [`crate::tokenizer::Tokenizer::to_files`]).
///
/// # Errors
/// The folder cannot be created or a file cannot be written.
pub fn save_model<'a>(
    folder: &Path,
    config: &AlbertConfig,
    heads: Heads,
    tokenizer: &[(&str, Vec<u8>)],
    values: impl Fn(&str) -> &'a [f32],
) -> Result<(), CheckpointError> {
    create_dir_synced(folder)?;
    for (name, content) in tokenizer {
        write_atomically(folder.join(name), |out| out.write_all(content))?;
    }
    save_model_as(folder, config, heads, SaveFormat::default(), values)
}

/// Writes `config.json` and `model.safetensors` to `folder` in the given format, as [`save_model`] does.
///
/// # Errors
/// As [`save_model`]; the names are BERT's but the model is not a BERT; a value is too large for f16.
pub fn save_model_as<'a>(
    folder: &Path,
    config: &AlbertConfig,
    heads: Heads,
    format: SaveFormat<'_>,
    values: impl Fn(&str) -> &'a [f32],
) -> Result<(), CheckpointError> {
    if format.family == Family::Bert && !config.is_bert() {
        let problem = "a BERT has separate weights in every layer, E = H and no map between them; this model is an \
                       ALBERT, write it as one";
        return Err(CheckpointError::Folder { path: folder.to_owned(), problem: problem.to_owned() });
    }
    create_dir_synced(folder)?;
    let path = folder.join(WEIGHTS);
    let stored = stored_tensors(config, heads, format.family);
    let h = config.hidden_size;
    let has = |content: &Content| stored.iter().any(|tensor| tensor.content == *content);
    let identity: Vec<f32> = if has(&Content::Identity) {
        (0..h * h).map(|i| if i % h == i / h { 1.0 } else { 0.0 }).collect()
    } else {
        Vec::new()
    };
    let zeros = if has(&Content::Zeros) { vec![0.0; h] } else { Vec::new() };
    let mut tensors: Vec<TensorOut<'_>> = Vec::with_capacity(stored.len());
    for tensor in stored {
        let values = match &tensor.content {
            Content::Parameter(name) => values(name),
            Content::Identity => &identity,
            Content::Zeros => &zeros,
        };
        let name = stored_name(&tensor.name, format.family);
        let is_too_large = |value: &&f32| value.is_finite() && value.abs() >= 65_520.0;
        if format.dtype == FileDType::F16
            && let Some(value) = values.iter().find(is_too_large)
        {
            let problem = format!("contains {value}, but f16 ends at 65504; write bf16 or f32");
            return Err(CheckpointError::Tensor { path, name, problem });
        }
        let data = Data::floats(values, format.dtype);
        tensors.push(TensorOut { name, shape: tensor.shape, data });
    }
    let text = config.to_hf_json_as(&ConfigIdentity {
        family: format.family,
        architecture: heads.architecture(format.family),
        torch_dtype: torch_name(format.dtype),
        num_labels: heads.task.map(TaskHead::labels),
        labels: format.labels,
        problem_type: format.problem_type,
    });
    write_atomically(folder.join(CONFIG), |out| out.write_all(text.as_bytes()))?;
    // `transformers` checks `format` before it reads the tensors.
    save_safetensors(&path, &tensors, &[("format", "pt")])?;
    Ok(())
}
