//! A saved model: a Hugging Face folder, or a TensorFlow checkpoint with its `albert_config.json`.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use engine::io::limits;
use engine::param::ParamInfo;
use engine::{Cpu, EngineError, ParamStore};

use super::folder_keys;
use super::names::stored_name;
use super::stored::{Content, StoredTensor, stored_tensors};
use super::weights::{Source, Weights};
use super::{CheckpointError, remedy};
use crate::config::{AlbertConfig, ConfigReading, Family, Heads, TaskHead};
use crate::model::{Model, ModelError, parameters};
use crate::tokenizer::Tokenizer;

pub(super) const CONFIG: &str = "config.json";
const GOOGLE_CONFIGS: [&str; 2] = ["albert_config.json", "bert_config.json"];
pub(super) const WEIGHTS: &str = "model.safetensors";
const WEIGHTS_INDEX: &str = "model.safetensors.index.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Result of loading for every tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Parameters that were read from the file.
    pub loaded: Vec<String>,
    /// Parameters missing from the file and initialized at random, because the caller named them.
    pub fresh: Vec<String>,
    /// Tensors of the file that the model does not use.
    pub ignored: Vec<String>,
    /// Tensors that belong to no model: constant buffers, optimizer moments, step counts.
    pub not_needed: Vec<String>,
}

/// An opened model.
#[derive(Debug)]
pub struct ModelFolder {
    folder: PathBuf,
    config_path: PathBuf,
    reading: ConfigReading,
    weights: Weights,
}

impl ModelFolder {
    /// Opens a model: reads its configuration and maps its weights. Weights with our checksum are verified.
    ///
    /// `path` is a folder, or one of several TensorFlow checkpoints in a folder (`model.ckpt-best`, with or without
    /// `.index`).
    ///
    /// # Errors
    /// A file is missing or damaged, or the configuration cannot be used.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let (folder, index) = place(path)?;
        let (config_path, reading) = read_config(&folder)?;
        folder_keys::check(&folder)?;
        let weights = match index {
            Some(index) => Weights::open_tensorflow(&index)?,
            None => open_weights(&folder)?,
        };
        Ok(Self { folder, config_path, reading, weights })
    }

    /// Configuration, with the remarks of its reader.
    pub fn config(&self) -> &ConfigReading {
        &self.reading
    }

    /// Folder of the model.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// The tokenizer of the folder.
    ///
    /// # Errors
    /// The folder has no tokenizer, or the tokenizer is damaged or has more pieces than the model.
    pub fn tokenizer(&self) -> Result<Tokenizer, CheckpointError> {
        let tokenizer = Tokenizer::load(&self.folder)?;
        let (rows, pieces) = (self.reading.config.vocab_size, tokenizer.vocab_size());
        tokenizer.expect_vocab_size(rows)?;
        // Rows up to a multiple of 8 are padding.
        if rows > pieces && rows % 8 != 0 {
            let text = format!(
                "the model has {rows} rows of word embeddings and the tokenizer {pieces} pieces, so that the last rows are never \
                 used; is added_tokens.json or another file of the tokenizer missing?"
            );
            folder_keys::remark(&self.folder, &text)?;
        }
        Ok(tokenizer)
    }

    /// Replaces the number of attention heads, which no tensor confirms or contradicts.
    ///
    /// # Errors
    /// H is not a multiple of `heads`.
    pub fn with_attention_heads(mut self, heads: usize) -> Result<Self, CheckpointError> {
        self.reading.config.num_attention_heads = heads;
        match self.reading.config.validate() {
            Ok(()) => Ok(self),
            Err(source) => Err(CheckpointError::Config { path: self.config_path, source }),
        }
    }

    /// Describes the number of attention heads in one sentence: every projection is `[H, H]` for any number of heads,
    /// so a model with a wrong number loads and computes wrong results.
    pub fn attention_heads_remark(&self) -> String {
        let config = &self.reading.config;
        let (heads, size) = (config.num_attention_heads, config.head_size());
        let released = if config.hidden_size == 2048 && config.embedding_size == 128 {
            "; the xlarge releases were published with 16 and with 32, compare both on known text"
        } else {
            ""
        };
        format!("{heads} attention heads of {size} columns; the weights cannot confirm this number{released}")
    }

    /// Heads in the file.
    pub fn heads(&self) -> Heads {
        let has = |name: &str| self.weights.find(name).is_some();
        let pooler = has("albert.pooler.weight");
        Heads {
            pooler,
            mlm: has("predictions.dense.weight"),
            sop: pooler && has("sop_classifier.classifier.weight"),
            task: self.task(pooler),
        }
    }

    /// Task head, by its tensors. A classifier is on the tokens if there is no pooler or the class says so.
    fn task(&self, pooler: bool) -> Option<TaskHead> {
        let rows = |name: &str| self.weights.find(name).and_then(|source| self.weights.shape(source).first().copied());
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

    /// Name of a parameter in the file, such as `bert.encoder.layer.0.output.dense.weight`.
    pub fn name_in_file(&self, parameter: &str) -> Option<&str> {
        self.weights.find(parameter).map(|source| source.name.as_str())
    }

    /// Builds the model with `heads` and loads its parameters from the file; missing ones that `fresh` lists (see
    /// [`Self::load`]) are drawn from `seed`.
    ///
    /// # Errors
    /// As [`Self::load`], or there is not enough memory.
    pub fn model(
        &self,
        heads: Heads,
        fresh: &[&str],
        cpu: &Cpu,
        seed: u64,
    ) -> Result<(Model, ParamStore, LoadReport), CheckpointError> {
        self.expect_room_for_layers()?;
        let (model, mut params) = Model::allocate(&self.reading.config, heads).map_err(|error| match error {
            ModelError::Config(source) => CheckpointError::Config { path: self.config_path.clone(), source },
            ModelError::Engine(source) => source.into(),
        })?;
        let report = self.load(heads, fresh, |spec, values| {
            params.all_values_mut()?[spec.range.clone()].copy_from_slice(values);
            Ok(())
        })?;
        if !report.fresh.is_empty() {
            params.draw(cpu, seed, |info| report.fresh.contains(&info.name))?;
        }
        Ok((model, params, report))
    }

    /// Reads the parameters of the model with `heads` and calls `take` for each, in the order of [`parameters`].
    ///
    /// `fresh` lists prefixes of names that may be missing (such as `sop_classifier`); `take` is not called for those.
    ///
    /// # Errors
    /// A parameter is missing and not in `fresh`, has the wrong shape, or its copies (see `stored`) are not equal.
    pub fn load(
        &self,
        heads: Heads,
        fresh: &[&str],
        mut take: impl FnMut(&ParamInfo, &[f32]) -> Result<(), EngineError>,
    ) -> Result<LoadReport, CheckpointError> {
        let config = &self.reading.config;
        self.expect_room_for_layers()?;
        let mut report = LoadReport { not_needed: self.weights.not_needed.clone(), ..LoadReport::default() };
        let mut missing = Vec::new();
        let mut used: BTreeSet<&str> = BTreeSet::new();
        let specs = parameters(config, heads);
        // Names and shapes are checked first, so that a file that does not match changes nothing.
        for spec in &specs {
            match self.weights.find(&spec.name) {
                Some(source) => self.expect_shape(source, &spec.shape)?,
                None if fresh.iter().any(|prefix| spec.name.starts_with(prefix)) => {
                    report.fresh.push(spec.name.clone());
                }
                None => missing.push(stored_name(&spec.name, self.reading.family)),
            }
        }
        if !missing.is_empty() {
            let prefix = self.weights.foreign_prefix();
            return Err(CheckpointError::Missing { path: self.weights.path().to_owned(), names: missing, prefix });
        }
        for spec in &specs {
            let Some((first, others)) = self.weights.sources(&spec.name).split_first() else { continue };
            let values = self.weights.floats(first, &spec.shape)?;
            used.insert(&first.name);
            for other in others.iter().filter(|other| heads.mlm || !other.tied) {
                self.expect_equal(first, &values, other, &spec.shape)?;
                used.insert(&other.name);
            }
            take(spec, &values)?;
            report.loaded.push(spec.name.clone());
        }
        for stored in stored_tensors(config, heads, Family::Albert) {
            if let Some(source) = self.weights.find(&stored.name).filter(|source| !used.contains(&source.name[..])) {
                self.check_copy(source, &stored)?;
                used.insert(&source.name);
            }
        }
        let unused = self.weights.all().filter(|source| !used.contains(&source.name[..]));
        report.ignored = unused.map(|source| source.name.clone()).collect();
        report.ignored.sort_unstable();
        Ok(report)
    }

    /// Rejects a configuration with more layers than the file has tensors, before the parameters are declared: a few bytes
    /// of `config.json` must not cause unbounded allocation.
    fn expect_room_for_layers(&self) -> Result<(), CheckpointError> {
        let config = &self.reading.config;
        let sets = config.num_hidden_groups() * config.inner_group_num;
        if sets <= self.weights.len() {
            return Ok(());
        }
        let problem = format!(
            "{} has {} tensors, but the configuration describes {sets} layers with separate weights",
            self.weights.path().display(),
            self.weights.len()
        );
        Err(CheckpointError::Folder { path: self.config_path.clone(), problem })
    }

    fn wrong_tensor(&self, source: &Source, problem: String) -> CheckpointError {
        CheckpointError::Tensor { path: self.weights.path().to_owned(), name: source.name.clone(), problem }
    }

    fn expect_shape(&self, source: &Source, expected: &[usize]) -> Result<(), CheckpointError> {
        let found = self.weights.shape(source);
        if found == expected {
            return Ok(());
        }
        let config = self.config_path.file_name().unwrap_or_default().to_string_lossy();
        Err(self.wrong_tensor(source, format!("its shape is {found:?}, but {config} makes it {expected:?}")))
    }

    /// Checks that two names of one tied parameter have equal values.
    fn expect_equal(
        &self,
        first: &Source,
        values: &[f32],
        other: &Source,
        shape: &[usize],
    ) -> Result<(), CheckpointError> {
        self.expect_shape(other, shape)?;
        if same_bits(values, &self.weights.floats(other, shape)?) {
            return Ok(());
        }
        let problem = format!("differs from {}, but the model has one parameter for both (tied weights)", first.name);
        Err(self.wrong_tensor(other, problem))
    }

    /// Verifies tensors that are not parameters: copies of shared halves, the identity map of a model without a map.
    fn check_copy(&self, source: &Source, stored: &StoredTensor) -> Result<(), CheckpointError> {
        self.expect_shape(source, &stored.shape)?;
        let found: Cow<'_, [f32]> = self.weights.floats(source, &stored.shape)?;
        let problem = match &stored.content {
            Content::Parameter(original) => {
                let Some(original) = self.weights.find(original) else { return Ok(()) };
                let same = same_bits(&self.weights.floats(original, &stored.shape)?, &found);
                (!same).then(|| {
                    format!(
                        "differs from {}, but `sharing` = \"{}\" in {CONFIG} makes them one; use \"none\" to keep both",
                        original.name, self.reading.config.sharing
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
        problem.map_or(Ok(()), |problem| Err(self.wrong_tensor(source, problem)))
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits()))
}

fn no_model(path: &Path, problem: impl Into<String>) -> CheckpointError {
    CheckpointError::Folder { path: path.to_owned(), problem: problem.into() }
}

/// Folder of `path`, and the TensorFlow index if `path` names one.
fn place(path: &Path) -> Result<(PathBuf, Option<PathBuf>), CheckpointError> {
    if path.is_dir() {
        return Ok((path.to_owned(), None));
    }
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut index = path.as_os_str().to_owned();
    index.push(".index");
    if Path::new(&index).is_file() {
        return Ok((folder, Some(PathBuf::from(index))));
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        _ if !path.exists() => {
            let text = path.to_string_lossy();
            let is_hub_id = path.is_relative() && !text.starts_with('.') && text.matches('/').count() <= 1;
            let hint = match is_hub_id {
                true => format!("; if it is a model of the Hugging Face hub: hf download {text} --local-dir FOLDER"),
                false => String::new(),
            };
            let problem = format!("no such folder; a model folder contains {CONFIG}, {WEIGHTS} and {TOKENIZER}{hint}");
            Err(no_model(path, problem))
        }
        Some("index") => Ok((folder, Some(path.to_owned()))),
        Some("safetensors") => Err(no_model(path, "this is a file; name the folder that contains it".to_owned())),
        Some("bin" | "pt" | "pth" | "h5" | "ckpt" | "msgpack" | "onnx" | "gguf" | "ot") => {
            Err(no_model(path, remedy::of_file(&path.file_name().unwrap_or_default().to_string_lossy())))
        }
        _ => Err(no_model(path, format!("a folder with {CONFIG} and {WEIGHTS} was expected"))),
    }
}

fn open_weights(folder: &Path) -> Result<Weights, CheckpointError> {
    let path = folder.join(WEIGHTS);
    if path.is_file() {
        return Ok(Weights::open(&path)?);
    }
    let index = folder.join(WEIGHTS_INDEX);
    if index.is_file() {
        return Ok(Weights::open_sharded(&index)?);
    }
    if let Some(index) = tensorflow_index(folder)? {
        return Ok(Weights::open_tensorflow(&index)?);
    }
    let hint = remedy::of_folder(folder).map_or(String::new(), |advice| format!("; {advice}"));
    Err(no_model(folder, format!("no {WEIGHTS}; a model folder contains {CONFIG}, {WEIGHTS} and {TOKENIZER}{hint}")))
}

/// TensorFlow checkpoint in a folder: the one that the file `checkpoint` names, or the only one.
fn tensorflow_index(folder: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    if let Ok(text) = limits::read_text(&folder.join("checkpoint"), limits::LARGEST_SETTINGS) {
        let newest = text.lines().find_map(|line| line.strip_prefix("model_checkpoint_path: \"")?.strip_suffix('"'));
        // Often an absolute path on the training machine.
        let name = newest.and_then(|path| Path::new(path).file_name()).map(|name| name.to_string_lossy());
        let index = name.map(|name| folder.join(format!("{name}.index")));
        if let Some(index) = index.filter(|index| index.is_file()) {
            return Ok(Some(index));
        }
    }
    let files = std::fs::read_dir(folder).map_err(|error| EngineError::io(folder, "list the folder", error))?;
    let mut found: Vec<PathBuf> = files
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "index"))
        .collect();
    found.sort();
    match &found[..] {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        [first, ..] => Err(no_model(
            folder,
            format!("there are {} checkpoints; name one of them, such as {}", found.len(), first.display()),
        )),
    }
}

/// Advice for the folder of a run that was killed before it saved a model.
fn unsaved_run(folder: &Path) -> Option<String> {
    if !folder.join("config.toml").is_file() || !folder.join("metrics.jsonl").is_file() {
        return None;
    }
    let command = if folder.join("task.json").is_file() {
        "the command that started it, with --resume,".to_owned()
    } else {
        format!("albert pretrain --resume -o '{}'", folder.display())
    };
    Some(format!(
        "no {CONFIG}: this run was killed before it saved a model; {command} continues it, and saves one with the next \
         checkpoint or when it is stopped (Ctrl-C)"
    ))
}

fn read_config(folder: &Path) -> Result<(PathBuf, ConfigReading), CheckpointError> {
    let hf = folder.join(CONFIG);
    let google = GOOGLE_CONFIGS.iter().map(|name| folder.join(name)).find(|path| path.is_file());
    let (path, of_google) = match google {
        _ if hf.is_file() => (hf, false),
        Some(google) => (google, true),
        None => {
            if let Some(problem) = unsaved_run(folder) {
                return Err(no_model(folder, problem));
            }
            let hint = remedy::of_folder(folder).map_or(String::new(), |advice| format!("; {advice}"));
            let problem = format!(
                "no {CONFIG}; a model folder contains {CONFIG}, {WEIGHTS} and {TOKENIZER}, one of Google's {} and a \
                 checkpoint{hint}",
                GOOGLE_CONFIGS[0]
            );
            return Err(no_model(folder, problem));
        }
    };
    let text = limits::read_text(&path, limits::LARGEST_SETTINGS)
        .map_err(|error| EngineError::io(&path, "read the configuration", error))?;
    let reading = if of_google { AlbertConfig::from_google_json(&text) } else { AlbertConfig::from_hf_json(&text) };
    match reading {
        Ok(reading) => Ok((path, reading)),
        Err(source) => Err(CheckpointError::Config { path, source }),
    }
}
