//! Training states: one file contains everything that a resumed run needs.
//!
//! ```text
//! step-0000001000.safetensors
//!   parameter/NAME        f32, as in memory (shared tensors once)
//!   first_moment/NAME     f32
//!   second_moment/NAME    f32
//!   __metadata__          state: StateHeader as JSON · checksum over everything
//! ```
//!
//! A checkpoint is one file, so a kill at any moment leaves the earlier checkpoints untouched. The newest
//! [`Checkpoints::KEPT`] are kept; a damaged one is skipped for the one before, and the reason is reported.

use std::path::{Path, PathBuf};

use engine::EngineError;
use engine::io::{Data, Safetensors, TensorOut, create_dir_synced, remove_leftover, save_safetensors};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::CheckpointError;

/// Metadata of a state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateHeader {
    /// Version of this structure.
    pub version: u32,
    /// Number of completed optimizer steps.
    pub step: u64,
    /// Every setting that affects the results, resolved; resuming with other values is refused.
    pub config: Value,
    /// Cursor of the next batch, from the data module.
    pub cursor: Value,
    /// Fingerprints of the inputs of the run, such as the tokenizer's and the data's, in hexadecimal.
    pub inputs: Value,
    /// Counters and best metrics of the training loop.
    pub progress: Value,
}

impl StateHeader {
    /// Version that this program writes. Earlier versions can be read.
    ///
    /// 2: sums have the same order on every instruction set, and logarithms and powers come from `libm`, so a run that
    /// continues from a state of version 1 differs from then on from a run of version 1.
    ///
    /// 3: a dropout mask uses one byte per element, so a run with dropout draws other masks from then on.
    ///
    /// 4: bf16 is multiplied on tiles; `compute.precision` was `compute.activations`.
    pub(crate) const VERSION: u32 = 4;
}

/// A group of tensors of a state: the name before the slash, and the tensors in order.
#[derive(Clone, Debug)]
pub(crate) struct TensorGroup<'a> {
    /// `parameter`, `first_moment` or `second_moment`.
    pub group: &'static str,
    /// Name, shape and elements of each tensor.
    pub tensors: Vec<(&'a str, &'a [usize], &'a [f32])>,
}

/// Folder with the states of a run.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
}

/// Newest intact state.
#[derive(Debug)]
pub struct LoadedState {
    /// File of the state.
    pub path: PathBuf,
    /// Metadata of the state.
    pub header: StateHeader,
    /// Newer files that were skipped, each with the reason.
    pub damaged: Vec<String>,
    file: Safetensors,
}

/// Precision of a run, under the key of the version that wrote it.
fn precision_of(config: &Value) -> Option<&str> {
    let compute = config.get("compute")?;
    compute.get("precision").or_else(|| compute.get("activations"))?.as_str()
}

impl LoadedState {
    /// Message, if an earlier version of the program wrote the state.
    pub(crate) fn earlier_version(&self) -> Option<String> {
        let (written, now) = (self.header.version, StateHeader::VERSION);
        // An f32 run is bit-identical in versions 3 and 4.
        let is_f32 = precision_of(&self.header.config).is_none_or(|precision| precision == "f32");
        (written < 3 || written < now && !is_f32).then(|| {
            let differs = match written {
                1 => "rounds some sums and draws dropout",
                2 => "draws dropout",
                _ => "multiplies bf16",
            };
            format!(
                "{} is a state of version {written}, this program has version {now}, which {differs} differently: \
                 the run continues, but no single version reproduces all of it",
                self.path.display()
            )
        })
    }

    /// Reads `group/name` into `out`.
    ///
    /// # Errors
    /// The tensor is missing or has another shape.
    pub fn read(&self, group: &str, name: &str, shape: &[usize], out: &mut [f32]) -> Result<(), CheckpointError> {
        Ok(self.file.read_f32(&format!("{group}/{name}"), shape, out)?)
    }

    /// Rejects a configuration that differs from the one that the run was started with, naming the first key.
    ///
    /// # Errors
    /// [`CheckpointError::OtherConfig`].
    pub fn expect_config(&self, now: &Value) -> Result<(), CheckpointError> {
        let mut then = self.header.config.clone();
        if let Some(compute) = then.get_mut("compute").and_then(Value::as_object_mut)
            && let Some(precision) = compute.remove("activations")
        {
            compute.insert("precision".to_owned(), precision);
        }
        self.expect(&then, now)
    }

    /// Rejects inputs (tokenizer, data) other than those that the run was started with.
    ///
    /// # Errors
    /// [`CheckpointError::OtherConfig`].
    pub fn expect_inputs(&self, now: &Value) -> Result<(), CheckpointError> {
        self.expect(&self.header.inputs, now)
    }

    fn expect(&self, then: &Value, now: &Value) -> Result<(), CheckpointError> {
        match first_difference(then, now) {
            None => Ok(()),
            Some((key, then, now)) => Err(CheckpointError::OtherConfig { path: self.path.clone(), key, then, now }),
        }
    }
}

impl Checkpoints {
    /// Number of states kept: the last and the one before.
    pub(crate) const KEPT: usize = 2;

    /// States of the run in `run`; creates nothing.
    pub fn of_run(run: &Path) -> Self {
        Self { folder: run.join("checkpoints") }
    }

    /// The file of the state after `step` steps.
    pub fn path(&self, step: u64) -> PathBuf {
        self.folder.join(format!("step-{step:010}.safetensors"))
    }

    /// Steps of all states, newest first.
    ///
    /// # Errors
    /// The folder exists and cannot be listed.
    pub fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        let mut steps: Vec<u64> = self.names()?.iter().filter_map(|name| step_of(name)).collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        Ok(steps)
    }

    /// Names of all files in the folder that are valid UTF-8; none if there is no folder.
    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(EngineError::io(&self.folder, "list the checkpoints", error).into()),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| EngineError::io(&self.folder, "list the checkpoints", error))?;
            names.extend(entry.file_name().into_string().ok());
        }
        Ok(names)
    }

    /// Writes a state atomically, then removes the oldest beyond [`Checkpoints::KEPT`].
    ///
    /// # Errors
    /// The state cannot be written; earlier states are then untouched.
    pub(crate) fn save(&self, header: &StateHeader, groups: &[TensorGroup<'_>]) -> Result<PathBuf, CheckpointError> {
        create_dir_synced(&self.folder)?;
        let tensors: Vec<TensorOut<'_>> = groups
            .iter()
            .flat_map(|group| {
                group.tensors.iter().map(|(name, shape, data)| TensorOut {
                    name: format!("{}/{name}", group.group),
                    shape: shape.to_vec(),
                    data: Data::F32(data),
                })
            })
            .collect();
        let path = self.path(header.step);
        let text = serde_json::to_string(header).expect("a header has string keys");
        save_safetensors(&path, &tensors, &[("state", &text)])?;
        self.remove_old(header.step)?;
        Ok(path)
    }

    /// Removes the leftovers of a kill during [`Checkpoints::save`]: a half-written state, and one beyond
    /// [`Checkpoints::KEPT`] if the kill came before its removal. `step` is the step of the newest intact state. The
    /// caller has locked the run.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub(crate) fn tidy(&self, step: u64) -> Result<(), CheckpointError> {
        for name in self.names()? {
            if let Some(name) = name.strip_prefix('.').and_then(|name| name.strip_suffix(".partial"))
                && step_of(name).is_some()
            {
                remove_leftover(self.folder.join(name))?;
            }
        }
        self.remove_old(step)
    }

    /// Removes all states up to `step` except the last [`Checkpoints::KEPT`]. A newer one that was found damaged is
    /// overwritten when the run reaches its step.
    fn remove_old(&self, step: u64) -> Result<(), CheckpointError> {
        for step in self.steps()?.into_iter().filter(|other| *other <= step).skip(Self::KEPT) {
            let old = self.path(step);
            std::fs::remove_file(&old).map_err(|error| EngineError::io(&old, "remove the old checkpoint", error))?;
        }
        Ok(())
    }

    /// Loads the newest intact state, with the reason for skipping every newer one; `None` if there is no file.
    ///
    /// # Errors
    /// There are states, but none is intact.
    pub fn newest(&self) -> Result<Option<LoadedState>, CheckpointError> {
        let mut damaged = Vec::new();
        for step in self.steps()? {
            let path = self.path(step);
            match open(&path, step) {
                Ok((file, header)) => return Ok(Some(LoadedState { path, header, damaged, file })),
                Err(error) => damaged.push(error.to_string()),
            }
        }
        match damaged.first() {
            None => Ok(None),
            Some(first) => Err(CheckpointError::Folder {
                path: self.folder.clone(),
                problem: format!("none of the {} checkpoints is intact; the newest: {first}", damaged.len()),
            }),
        }
    }
}

/// The step in the name of a state's file.
fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok()
}

fn open(path: &Path, step: u64) -> Result<(Safetensors, StateHeader), CheckpointError> {
    let file = Safetensors::open_checked(path)?;
    let wrong = |problem: String| CheckpointError::Folder { path: path.to_owned(), problem };
    let text =
        file.metadata().get("state").cloned().ok_or_else(|| wrong("it has tensors but no training state".into()))?;
    let header: StateHeader =
        serde_json::from_str(&text).map_err(|error| wrong(format!("its training state cannot be read: {error}")))?;
    if !(1..=StateHeader::VERSION).contains(&header.version) || header.step != step {
        return Err(wrong(format!(
            "it is version {} at step {}, expected version 1 to {} at step {step}",
            header.version,
            header.step,
            StateHeader::VERSION
        )));
    }
    Ok((file, header))
}

/// First key, in the order of `then`, whose value differs between two JSON values: its dotted path and both values.
pub(crate) fn first_difference(then: &Value, now: &Value) -> Option<(String, String, String)> {
    fn walk(path: &str, then: Option<&Value>, now: Option<&Value>) -> Option<(String, String, String)> {
        if let (Some(Value::Object(a)), Some(Value::Object(b))) = (then, now) {
            let added = b.keys().filter(|key| !a.contains_key(*key));
            return a.keys().chain(added).find_map(|key| {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                walk(&path, a.get(key), b.get(key))
            });
        }
        let text = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
        (then != now).then(|| (path.to_owned(), text(then), text(now)))
    }
    walk("", Some(then), Some(now))
}
