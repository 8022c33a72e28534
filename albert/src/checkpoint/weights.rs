//! Tensors of a checkpoint by parameter, in one or several files.
//!
//! ```text
//! model.safetensors                                              one file
//! model.safetensors.index.json  {"weight_map": {"name": "model-00001-of-00002.safetensors", ..}}     several
//! model.ckpt-best.index + .data-00000-of-00001                   TensorFlow
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::EngineError;
use engine::io::{Mmap, Safetensors, limits};
use serde_json::Value;

use super::names::{self, TensorRole};
use super::tensorflow::Bundle;

/// Location of a tensor in the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Name in the file.
    pub(super) name: String,
    /// True if it is stored transposed.
    transposed: bool,
    /// True for a second name of a tied parameter.
    pub(super) tied: bool,
}

#[derive(Debug)]
enum Files {
    Safetensors { files: Vec<Safetensors>, file_of: BTreeMap<String, usize> },
    TensorFlow(Bundle),
}

/// Opened weights.
#[derive(Debug)]
pub(super) struct Weights {
    path: PathBuf,
    files: Files,
    sources: BTreeMap<String, Vec<Source>>,
    /// Tensors that are recognized but not needed.
    pub(super) not_needed: Vec<String>,
}

impl Weights {
    /// Opens one safetensors file and verifies our checksum, if it has one.
    pub(super) fn open(path: &Path) -> Result<Self, EngineError> {
        let file = Safetensors::open(path)?;
        let file_of = file.names().into_iter().map(|name| (name, 0)).collect();
        Ok(Self::new(path, Files::Safetensors { files: vec![file], file_of }))
    }

    /// Opens the safetensors files that the index at `path` names.
    pub(super) fn open_sharded(path: &Path) -> Result<Self, EngineError> {
        let wrong = |problem: String| EngineError::file(path, problem);
        let text = Mmap::open(path)?;
        limits::check_json(&text).map_err(|error| wrong(format!("not JSON: {error}")))?;
        let index: Value = serde_json::from_slice(&text).map_err(|error| wrong(format!("not JSON: {error}")))?;
        let map = index.get("weight_map").and_then(Value::as_object);
        let map = map.ok_or_else(|| wrong("`weight_map`, which says where each tensor is, is missing".to_owned()))?;
        let (mut files, mut opened, mut file_of) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for (tensor, file) in map {
            let Some(file) = file.as_str().filter(|file| is_plain_name(file)) else {
                return Err(wrong(format!(
                    "`weight_map` has {file} for tensor {tensor}; expected the name of a file in the same folder"
                )));
            };
            let at = match opened.get(file) {
                Some(&at) => at,
                None => {
                    let shard = path.with_file_name(file);
                    if !shard.is_file() {
                        return Err(wrong(format!(
                            "it names {file}, which is not there; fetch all files of the model"
                        )));
                    }
                    files.push(Safetensors::open(shard)?);
                    opened.insert(file, files.len() - 1);
                    files.len() - 1
                }
            };
            if !files[at].contains(tensor) {
                return Err(wrong(format!("`weight_map` has {file} for tensor {tensor}, which is not in it")));
            }
            file_of.insert(tensor.clone(), at);
        }
        Ok(Self::new(path, Files::Safetensors { files, file_of }))
    }

    /// Opens a TensorFlow checkpoint by its index.
    pub(super) fn open_tensorflow(index: &Path) -> Result<Self, EngineError> {
        Ok(Self::new(index, Files::TensorFlow(Bundle::open(index)?)))
    }

    fn new(path: &Path, files: Files) -> Self {
        let meaning: fn(&str) -> TensorRole = match files {
            Files::Safetensors { .. } => names::hugging_face,
            Files::TensorFlow(_) => names::google,
        };
        let mut sources: BTreeMap<String, Vec<Source>> = BTreeMap::new();
        let mut not_needed = Vec::new();
        for name in names_of(&files) {
            match meaning(name) {
                TensorRole::Parameter { name: parameter, transposed, tied } => {
                    sources.entry(parameter).or_default().push(Source { name: name.to_owned(), transposed, tied });
                }
                TensorRole::Ignored => not_needed.push(name.to_owned()),
            }
        }
        // A parameter's own name comes before tied copies, an untranslated name before translated ones.
        for (parameter, sources) in &mut sources {
            sources.sort_by_key(|source| (source.tied, source.name != *parameter));
        }
        Self { path: path.to_owned(), files, sources, not_needed }
    }

    /// File that the user named or would look at first.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Number of tensors.
    pub(super) fn len(&self) -> usize {
        names_of(&self.files).count()
    }

    /// Tensors with the values of a parameter; several if the file contains tied copies.
    pub(super) fn sources(&self, parameter: &str) -> &[Source] {
        self.sources.get(parameter).map_or(&[], Vec::as_slice)
    }

    /// The first source of a parameter.
    pub(super) fn find(&self, parameter: &str) -> Option<&Source> {
        self.sources(parameter).first()
    }

    /// All tensors except those not needed.
    pub(super) fn all(&self) -> impl Iterator<Item = &Source> {
        self.sources.values().flatten()
    }

    /// Unknown prefix of the name of the word embeddings, if any.
    pub(super) fn foreign_prefix(&self) -> Option<String> {
        let words = "embeddings.word_embeddings.weight";
        let name = self.sources.values().flatten().map(|source| &source.name).find(|name| name.ends_with(words))?;
        let before = name.strip_suffix(words)?;
        (names::without_wrappers(before) != before || !matches!(before, "" | "albert." | "bert."))
            .then(|| before.to_owned())
            .filter(|_| self.find(&format!("albert.{words}")).is_none())
    }

    /// Shape of a tensor, Linear weights as `[out, in]`.
    pub(super) fn shape(&self, source: &Source) -> Vec<usize> {
        let mut shape = match &self.files {
            Files::Safetensors { files, file_of } => {
                file_of.get(&source.name).and_then(|&at| files[at].shape(&source.name))
            }
            Files::TensorFlow(bundle) => bundle.shape(&source.name),
        }
        .unwrap_or_default()
        .to_vec();
        if source.transposed {
            shape.reverse();
        }
        shape
    }

    /// Reads the values of a tensor of shape `shape`.
    pub(super) fn floats(&self, source: &Source, shape: &[usize]) -> Result<Cow<'_, [f32]>, EngineError> {
        match &self.files {
            Files::Safetensors { files, file_of } => files[file_of[&source.name]].floats(&source.name, shape),
            Files::TensorFlow(bundle) => bundle.floats(&source.name, source.transposed).map(Cow::Owned),
        }
    }
}

fn names_of(files: &Files) -> Box<dyn Iterator<Item = &str> + '_> {
    match files {
        Files::Safetensors { file_of, .. } => Box::new(file_of.keys().map(String::as_str)),
        Files::TensorFlow(bundle) => Box::new(bundle.names()),
    }
}

/// True if `name` cannot lead out of its folder.
fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(std::path::Component::Normal(_)), None))
}
