//! Models and training states on disk.
//!
//! ```text
//! MODEL/                      a Hugging Face model folder; `transformers` opens it as it is
//!   config.json               the configuration (see `config`)
//!   model.safetensors         the parameters under Hugging Face's names, Linear weights [out, in] (see `stored`)
//!   tokenizer.json            the vocabulary
//!   tokenizer_config.json     its special pieces, and the class that makes `transformers` use tokenizer.json
//! MODEL/                      also read: a model in several files, a BERT (see `names`), a Google checkpoint
//!   model.safetensors.index.json + model-0000i-of-0000n.safetensors
//!   albert_config.json + model.ckpt.index + model.ckpt.data-0000i-of-0000n      (see `tensorflow`)
//! RUN/checkpoints/
//!   step-0000001000.safetensors    everything that resuming needs, one file a checkpoint (see `state`)
//! ```
//!
//! Every file is written under a temporary name, flushed to disk and renamed; the earlier file stays intact until then.
//! Nothing is initialized silently: [`LoadReport`] lists the tensors that were loaded, those initialized at random because
//! the caller named them, and those that the model does not use; any other missing tensor is an error.

mod convert;
pub mod folder_keys;
mod model_folder;
mod modules;
mod names;
mod remedy;
mod save;
mod state;
mod stored;
mod tensorflow;
#[cfg(test)]
mod tests;
mod weights;

pub use crate::config::Heads;
pub use crate::config::TaskHead;
pub use convert::{Conversion, ConvertOptions, convert};
pub use model_folder::{LoadReport, ModelFolder};
pub(crate) use modules::{LIMITS, MODULES, Module, PROMPTS, modules, read_settings};
pub use names::stored_name;
pub use save::{SaveFormat, save_model, save_model_as, torch_name};
pub use state::Checkpoints;
pub use state::{LoadedState, StateHeader};
pub(crate) use state::{TensorGroup, first_difference};

use std::path::PathBuf;

use engine::EngineError;

use crate::config::ConfigError;
use crate::tokenizer::TokenizerError;

/// Error of reading or writing a model or a state.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file could not be read or written, or a tensor in it is missing or has the wrong shape.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The tokenizer cannot be loaded or does not fit the model.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The configuration cannot be used.
    #[error("{}: {source}", path.display())]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// The problem.
        source: ConfigError,
    },
    /// Not a model folder, or not a run.
    #[error("{}: {problem}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Reason, as the end of the message.
        problem: String,
    },
    /// Tensors that the model needs are missing from the file.
    #[error(
        "{}: {} of the model's tensors are missing: {}; {}",
        path.display(), names.len(), listed(names), missing_advice(prefix.as_deref())
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// Names of the missing tensors in a file of this family.
        names: Vec<String>,
        /// Unknown prefix of the file's tensor names, if that explains it.
        prefix: Option<String>,
    },
    /// A tensor is present, but its shape or its values are wrong.
    #[error("{}: tensor {name}: {problem}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// Reason, as the end of the message.
        problem: String,
    },
    /// The run was made with another configuration.
    #[error(
        "{}: the run was started with `{key}` = {then}, but now it is {now}; resume with the old value or start a new run",
        path.display()
    )]
    OtherConfig {
        /// File of the state.
        path: PathBuf,
        /// The first key that differs.
        key: String,
        /// Value in the state.
        then: String,
        /// Value now.
        now: String,
    },
}

fn missing_advice(prefix: Option<&str>) -> String {
    match prefix {
        None => "name the ones that may start fresh, or use a checkpoint that has them".to_owned(),
        Some(prefix) => format!(
            "the names of the file begin with \"{prefix}\", so that they belong to a larger model; save its encoder alone with \
             save_pretrained, or rename the tensors"
        ),
    }
}

fn listed(names: &[String]) -> String {
    const SHOWN: usize = 6;
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown} and {} more", names.len() - SHOWN) } else { shown }
}
