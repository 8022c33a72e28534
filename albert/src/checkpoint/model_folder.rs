//! A Hugging Face model folder: `config.json`, `model.safetensors`, `tokenizer.json`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use engine::EngineError;
use engine::io::{Data, Safetensors, TensorOut, save_safetensors, write_atomically};

use super::CheckpointError;
use super::layout::{Content, Heads, ParameterSpec, StoredTensor, TaskHead, parameters, stored_tensors};
use crate::config::{AlbertConfig, ConfigReading, Family};

const CONFIG: &str = "config.json";
const GOOGLE_CONFIG: &str = "albert_config.json";
const WEIGHTS: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";

/// What became of every tensor when a model was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Parameters that were read from the file.
    pub loaded: Vec<String>,
    /// Parameters that the file lacks and that stay freshly initialised, as asked for by name.
    pub fresh: Vec<String>,
    /// Tensors of the file that the model has no use for.
    pub ignored: Vec<String>,
}

/// An opened model folder.
#[derive(Debug)]
pub struct ModelFolder {
    folder: PathBuf,
    reading: ConfigReading,
    weights: Safetensors,
}

impl ModelFolder {
    /// Opens `folder`, reads its configuration and maps its weights. Weights that carry a checksum of ours are verified.
    ///
    /// # Errors
    /// A file is missing or damaged, or the configuration cannot be used.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let reading = read_config(folder)?;
        let path = folder.join(WEIGHTS);
        if !path.is_file() {
            let other = ["pytorch_model.bin", "tf_model.h5"].into_iter().find(|name| folder.join(name).exists());
            let hint = other.map_or(String::new(), |name| format!("; {name} has to be converted to it first"));
            return Err(CheckpointError::Folder {
                path: folder.to_owned(),
                problem: format!("no {WEIGHTS}; a model folder holds {CONFIG}, {WEIGHTS} and {TOKENIZER}{hint}"),
            });
        }
        let weights = Safetensors::open(&path)?;
        let weights = if weights.has_checksum() { Safetensors::open_checked(&path)? } else { weights };
        Ok(Self { folder: folder.to_owned(), reading, weights })
    }

    /// The configuration, with what was noticed while reading it.
    pub fn config(&self) -> &ConfigReading {
        &self.reading
    }

    /// Where the tokenizer would be.
    pub fn tokenizer_path(&self) -> PathBuf {
        self.folder.join(TOKENIZER)
    }

    /// The heads whose every tensor is in the file.
    pub fn heads(&self) -> Heads {
        let has = |name: &str| self.find(name).is_some();
        let pooler = has("albert.pooler.weight");
        Heads {
            pooler,
            mlm: has("predictions.dense.weight"),
            sop: pooler && has("sop_classifier.classifier.weight"),
            task: self.task(pooler),
        }
    }

    /// The head of a task, by its tensors. A classifier is on the tokens where there is no pooler or the class says so.
    fn task(&self, pooler: bool) -> Option<TaskHead> {
        let rows = |name: &str| self.find(name).and_then(|name| self.weights.shape(&name)?.first().copied());
        let class = self.reading.architecture.as_deref().unwrap_or_default();
        if let Some(labels) = rows("classifier.weight") {
            return Some(match labels {
                1 if pooler && class.ends_with("ForMultipleChoice") => TaskHead::Choice,
                labels if pooler && !class.ends_with("ForTokenClassification") => TaskHead::Sequence { labels },
                labels => TaskHead::Token { labels },
            });
        }
        match (rows("qa_outputs.weight"), rows("answer_class.dense_1.weight")) {
            (Some(2), _) => Some(TaskHead::Span),
            (_, Some(_)) if pooler => Some(TaskHead::SquadV2),
            _ => None,
        }
    }

    /// Reads the parameters of the model with `heads` and hands each to `take`, in the order of [`parameters`].
    ///
    /// `fresh` names what may be missing, by the beginning of the name (such as `sop_classifier`); `take` is not called
    /// for those.
    ///
    /// # Errors
    /// A parameter is missing and not in `fresh`, has another shape, or its copies (see `layout`) are not equal.
    pub fn load(
        &self,
        heads: Heads,
        fresh: &[&str],
        mut take: impl FnMut(&ParameterSpec, &[f32]) -> Result<(), EngineError>,
    ) -> Result<LoadReport, CheckpointError> {
        let config = &self.reading.config;
        let mut report = LoadReport::default();
        let mut missing = Vec::new();
        let mut used: BTreeSet<String> = BTreeSet::new();
        let specs = parameters(config, heads);
        // Names and shapes first, so that a file that does not fit changes nothing.
        for spec in &specs {
            match self.find(&spec.name) {
                Some(name) => self.expect_shape(&name, &spec.shape)?,
                None if fresh.iter().any(|prefix| spec.name.starts_with(prefix)) => {
                    report.fresh.push(spec.name.clone());
                }
                None => missing.push(spec.name.clone()),
            }
        }
        if !missing.is_empty() {
            return Err(CheckpointError::Missing { path: self.weights.path().to_owned(), names: missing });
        }
        for spec in &specs {
            let Some(name) = self.find(&spec.name) else { continue };
            take(spec, &self.weights.f32s(&name, &spec.shape)?)?;
            used.insert(name);
            report.loaded.push(spec.name.clone());
        }
        for stored in stored_tensors(config, heads) {
            if let Some(name) = self.find(&stored.name).filter(|name| !used.contains(name)) {
                self.check_copy(&name, &stored)?;
                used.insert(name);
            }
        }
        report.ignored = self.weights.names().into_iter().filter(|name| !used.contains(name)).collect();
        Ok(report)
    }

    /// The name under which the file holds `name`: as it is, without the prefix of a bare `AlbertModel`, or as the tied
    /// bias that some writers keep instead.
    fn find(&self, name: &str) -> Option<String> {
        let bare = name.strip_prefix("albert.");
        let tied = (name == "predictions.bias").then_some("predictions.decoder.bias");
        [Some(name), bare, tied].into_iter().flatten().find(|name| self.weights.contains(name)).map(str::to_owned)
    }

    fn expect_shape(&self, name: &str, expected: &[usize]) -> Result<(), CheckpointError> {
        match self.weights.shape(name) {
            Some(found) if found != expected => Err(CheckpointError::Tensor {
                path: self.weights.path().to_owned(),
                name: name.to_owned(),
                problem: format!("its shape is {found:?}, but {CONFIG} makes it {expected:?}"),
            }),
            _ => Ok(()),
        }
    }

    /// Verifies what is stored beside the parameters: copies of shared halves, the identity that stands for no map.
    fn check_copy(&self, name: &str, stored: &StoredTensor) -> Result<(), CheckpointError> {
        self.expect_shape(name, &stored.shape)?;
        let found = self.weights.f32s(name, &stored.shape)?;
        let problem = match &stored.content {
            Content::Parameter(original) => {
                let Some(original) = self.find(original) else { return Ok(()) };
                let same = self
                    .weights
                    .f32s(&original, &stored.shape)?
                    .iter()
                    .map(|x| x.to_bits())
                    .eq(found.iter().map(|x| x.to_bits()));
                (!same).then(|| {
                    format!(
                        "differs from {original}, but `sharing` = \"{}\" in {CONFIG} makes them one; use \"none\" to keep both",
                        self.reading.config.sharing
                    )
                })
            }
            Content::Identity => {
                let width = stored.shape[1];
                let same = found.iter().enumerate().all(|(i, x)| *x == if i % width == i / width { 1.0 } else { 0.0 });
                (!same).then(|| {
                    "is not the identity, but `embedding_map` says that there is no map; use \"always\"".to_owned()
                })
            }
            Content::Zeros => {
                let same = found.iter().all(|x| *x == 0.0);
                (!same).then(|| "is not zero, but `embedding_map` says that there is no map; use \"always\"".to_owned())
            }
        };
        match problem {
            None => Ok(()),
            Some(problem) => {
                Err(CheckpointError::Tensor { path: self.weights.path().to_owned(), name: name.to_owned(), problem })
            }
        }
    }
}

fn read_config(folder: &Path) -> Result<ConfigReading, CheckpointError> {
    let (path, google) = match (folder.join(CONFIG), folder.join(GOOGLE_CONFIG)) {
        (hf, google) if !hf.is_file() && google.is_file() => (google, true),
        (hf, _) if hf.is_file() => (hf, false),
        _ => {
            let problem = if folder.is_dir() {
                format!("no {CONFIG}; a model folder holds {CONFIG}, {WEIGHTS} and {TOKENIZER}")
            } else {
                format!("no such folder; a model folder holds {CONFIG}, {WEIGHTS} and {TOKENIZER}")
            };
            return Err(CheckpointError::Folder { path: folder.to_owned(), problem });
        }
    };
    let text =
        std::fs::read_to_string(&path).map_err(|error| EngineError::io(&path, "read the configuration", error))?;
    let reading = if google { AlbertConfig::from_google_json(&text) } else { AlbertConfig::from_hf_json(&text) };
    reading.map_err(|source| CheckpointError::Config { path, source })
}

/// Writes the model to `folder`, each file whole or not at all; the weights come last.
///
/// `values` gives the elements of a parameter of [`parameters`]; `tokenizer_json` is the text of `tokenizer.json`.
///
/// # Errors
/// The folder cannot be created or a file not be written.
pub fn save_model<'a>(
    folder: &Path,
    config: &AlbertConfig,
    heads: Heads,
    tokenizer_json: Option<&str>,
    values: impl Fn(&str) -> &'a [f32],
) -> Result<(), CheckpointError> {
    std::fs::create_dir_all(folder).map_err(|error| EngineError::io(folder, "create the folder", error))?;
    let stored = stored_tensors(config, heads);
    let h = config.hidden_size;
    let has = |content: &Content| stored.iter().any(|tensor| tensor.content == *content);
    let identity: Vec<f32> = if has(&Content::Identity) {
        (0..h * h).map(|i| if i % h == i / h { 1.0 } else { 0.0 }).collect()
    } else {
        Vec::new()
    };
    let zeros = if has(&Content::Zeros) { vec![0.0; h] } else { Vec::new() };
    let tensors: Vec<TensorOut<'_>> = stored
        .into_iter()
        .map(|tensor| TensorOut {
            data: Data::F32(match &tensor.content {
                Content::Parameter(name) => values(name),
                Content::Identity => &identity,
                Content::Zeros => &zeros,
            }),
            name: tensor.name,
            shape: tensor.shape,
        })
        .collect();
    let text = config.to_hf_json(heads.architecture(Family::Albert));
    write_atomically(folder.join(CONFIG), |out| out.write_all(text.as_bytes()))?;
    if let Some(text) = tokenizer_json {
        write_atomically(folder.join(TOKENIZER), |out| out.write_all(text.as_bytes()))?;
    }
    // `format` is what `transformers` asks for before it reads the tensors.
    save_safetensors(folder.join(WEIGHTS), &tensors, &[("format", "pt")])?;
    Ok(())
}
