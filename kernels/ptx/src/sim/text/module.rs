//! A module: its variables and the outlines of its entries.

use super::Entry;
use crate::sim::{Error, Limits, isa::Space};
use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

/// A module that can be launched.
///
/// An entry's body is decoded when the entry is launched for the first time, or by [`Module::decode`]: an instruction
/// that the simulator does not know refuses the entries that contain it and no other.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// The `.target` of the text.
    pub target: String,
    pub(crate) text: Arc<str>,
    pub(crate) limits: Limits,
    pub(crate) files: HashMap<u64, Arc<str>>,
    pub(crate) outlines: Vec<Outline>,
    /// `.global` and `.const` variables.
    pub(crate) globals: Vec<Variable>,
    /// The position of each in [`Module::globals`].
    pub(crate) global_names: HashMap<String, usize>,
    pub(crate) shared: ModuleShared,
    /// Hash of the text, the key of its variables.
    pub(crate) identity: u64,
}

/// The `.shared` variables of a module, laid out before those of the entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModuleShared {
    /// The offset of each; `None` for one without a size, which is the dynamic shared memory.
    pub(crate) names: HashMap<String, Option<u64>>,
    pub(crate) bytes: u64,
    /// The largest alignment of the dynamic ones.
    pub(crate) dynamic_align: u64,
}

/// An entry as the text declares it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outline {
    pub(crate) name: String,
    pub(crate) params: Vec<Variable>,
    pub(crate) param_bytes: u64,
    /// The block that the text requires.
    pub(crate) block: Option<[u32; 3]>,
    /// The most threads of a block that the text allows.
    pub(crate) most_threads: Option<u64>,
    /// The cluster that the text requires.
    pub(crate) cluster: Option<[u32; 3]>,
    /// `.maxnreg`
    pub(crate) maxnreg: Option<u32>,
    /// Byte and line of the opening brace of its body.
    pub(crate) body: (usize, u32),
    /// The body, once it is decoded.
    pub(crate) decoded: OnceLock<Result<Entry, Error>>,
}

/// A declared variable or parameter.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) space: Space,
    pub(crate) bytes: u64,
    pub(crate) align: u64,
    /// Its offset within its space; not for those of the module.
    pub(crate) offset: u64,
    /// Initial bytes, up to the last that the initializer gives; the rest is zero.
    pub(crate) initial: Vec<u8>,
    /// Line of an initializer that cannot be read; uses of the variable are refused.
    pub(crate) refused: Option<u32>,
}

impl Module {
    /// The names of the module's kernels.
    pub fn entry_names(&self) -> impl Iterator<Item = &str> {
        self.outlines.iter().map(|entry| entry.name.as_str())
    }

    /// Names and bytes of the parameters of the kernel `entry`.
    pub fn parameters(&self, entry: &str) -> Option<impl Iterator<Item = (&str, u64)>> {
        let entry = self.outlines.iter().find(|candidate| candidate.name == entry)?;
        Some(entry.params.iter().map(|param| (param.name.as_str(), param.bytes)))
    }
}
