//! Names of an entry and the scopes that hold them.

use super::{Module, Outline};
use crate::sim::isa::Space;
use std::collections::HashMap;

/// A name within a scope.
pub(crate) type Scoped<'a> = (u32, &'a str);

/// Symbol table of an entry while its statements are decoded. A scope is the text between two braces.
#[derive(Debug)]
pub(crate) struct Names<'a> {
    pub(crate) module: &'a Module,
    /// Offsets of the parameters.
    params: HashMap<&'a str, u64>,
    /// The scope around each scope; the outermost is its own.
    pub(crate) parents: Vec<u32>,
    /// Name, or its part before `<n>`: first slot, number of registers where there is one.
    pub(crate) registers: HashMap<Scoped<'a>, (u32, Option<u32>)>,
    /// Position of the instruction behind a label.
    pub(crate) labels: HashMap<Scoped<'a>, u32>,
    /// Space and offset.
    pub(crate) variables: HashMap<Scoped<'a>, (Space, u64)>,
    /// Labels of `.branchtargets`.
    pub(crate) targets: HashMap<Scoped<'a>, Vec<&'a str>>,
    /// Start of the entry's own shared variables, and of the dynamic shared memory.
    pub(crate) shared_base: u64,
    pub(crate) dynamic_shared: u64,
}

/// Meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Symbol {
    Register(u32),
    Variable(Space, u64),
    Global(usize),
}

/// Digits of the largest register number.
const DIGITS: usize = 10;

impl<'a> Names<'a> {
    pub(crate) fn new(module: &'a Module, outline: &'a Outline) -> Self {
        Names {
            module,
            params: outline.params.iter().map(|param| (param.name.as_str(), param.offset)).collect(),
            parents: Vec::new(),
            registers: HashMap::new(),
            labels: HashMap::new(),
            variables: HashMap::new(),
            targets: HashMap::new(),
            shared_base: 0,
            dynamic_shared: 0,
        }
    }

    /// `scope` and the scopes around it.
    fn up(&self, scope: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(scope), |at| Some(self.parents[*at as usize]).filter(|parent| parent != at))
    }

    /// The symbol called `name` in `scope`.
    pub(crate) fn find(&self, scope: u32, name: &str) -> Option<Symbol> {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        for scope in self.up(scope) {
            if let Some((slot, None)) = self.registers.get(&(scope, name)) {
                return Some(Symbol::Register(*slot));
            }
            if let Some(&(space, offset)) = self.variables.get(&(scope, name)) {
                let base = if space == Space::Shared { self.shared_base } else { 0 };
                return Some(Symbol::Variable(space, base + offset));
            }
            for cut in name.len() - digits.min(DIGITS)..name.len() {
                if let Some((slot, Some(count))) = self.registers.get(&(scope, &name[..cut]))
                    && let Ok(number) = name[cut..].parse::<u32>()
                    && number < *count
                {
                    return Some(Symbol::Register(slot + number));
                }
            }
        }
        if let Some(&offset) = self.params.get(name) {
            return Some(Symbol::Variable(Space::Param, offset));
        }
        if let Some(offset) = self.module.shared.names.get(name) {
            return Some(Symbol::Variable(Space::Shared, offset.unwrap_or(self.dynamic_shared)));
        }
        self.module.global_names.get(name).map(|&index| Symbol::Global(index))
    }

    /// The position of the statement behind the label `name`.
    pub(crate) fn label(&self, scope: u32, name: &str) -> Option<u32> {
        self.up(scope).find_map(|scope| self.labels.get(&(scope, name)).copied())
    }

    /// The scope that declares the `.branchtargets` called `name`, and its labels.
    pub(crate) fn targets(&self, scope: u32, name: &'a str) -> Option<(u32, &[&'a str])> {
        self.up(scope).find_map(|scope| Some((scope, self.targets.get(&(scope, name))?.as_slice())))
    }
}
