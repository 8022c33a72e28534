//! A module as it is run: variables, entries, and what names stand for.

use super::decode::Instruction;
use std::collections::HashMap;

/// A module that can be launched.
#[derive(Clone, Debug)]
pub struct Module {
    /// The `.target` of the text.
    pub target: String,
    pub(super) files: HashMap<u64, String>,
    pub(super) entries: Vec<Entry>,
    /// `.global` and `.const` variables.
    pub(super) globals: Vec<Variable>,
    /// Tells the variables of one text from those of another.
    pub(super) identity: u64,
}

/// A kernel.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) params: Vec<Variable>,
    pub(super) param_bytes: usize,
    /// The block that the text requires.
    pub(super) block: Option<[u32; 3]>,
    /// The most threads of a block that the text allows.
    pub(super) most_threads: Option<u64>,
    /// The cluster that the text requires.
    pub(super) cluster: Option<[u32; 3]>,
    /// `.maxnreg`
    pub(super) most_registers: Option<u32>,
    /// Names and widths of registers; the position is the slot that instructions name.
    pub(super) registers: Vec<Register>,
    /// Operands that are no registers, the same for all lanes.
    pub(super) constants: Vec<Constant>,
    pub(super) code: Vec<Instruction>,
    /// Bytes of `.shared` variables with a size.
    pub(super) static_shared: u32,
    /// Where dynamic shared memory begins, counted like [`Entry::static_shared`].
    pub(super) dynamic_shared: u32,
    pub(super) local_bytes: u32,
}

/// A declared register.
#[derive(Clone, Debug)]
pub(super) struct Register {
    pub(super) name: String,
    pub(super) mask: u64,
}

/// An operand that is no register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Constant {
    Bits(u64),
    /// The address of a variable of the module, plus bytes.
    Global(usize, i64),
}

/// Where a variable lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// A declared variable or parameter.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) space: Space,
    pub(super) bytes: u64,
    pub(super) align: u64,
    /// Its offset within its space; not for those of the module.
    pub(super) offset: u64,
    /// What it holds at first; empty for one without initialiser.
    pub(super) initial: Vec<u8>,
    pub(super) external: bool,
}

/// An operand as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Written<'a> {
    Name(&'a str),
    /// `!p`
    Not(&'a str),
    /// `p|q`
    Pair(&'a str, &'a str),
    Number(u64),
    /// `name+4`
    Sum(&'a str, i64),
    /// `{a, b}`
    List(Vec<Written<'a>>),
    /// `[base+bytes, …]`
    Address(Box<Written<'a>>, i64, Vec<Written<'a>>),
}

/// An instruction as it is written.
#[derive(Clone, Debug)]
pub(super) struct Statement<'a> {
    /// The guard's register, and whether it is negated.
    pub(super) guard: Option<(&'a str, bool)>,
    pub(super) opcode: &'a str,
    pub(super) operands: Vec<Written<'a>>,
    pub(super) line: u32,
    pub(super) source: Option<(u64, u32)>,
    /// The innermost scope around it.
    pub(super) scope: usize,
}

/// The names between two braces.
#[derive(Debug, Default)]
pub(super) struct Scope<'a> {
    pub(super) parent: Option<usize>,
    /// Name, or what stands before `<n>`: first slot, number of registers where there is one.
    pub(super) registers: HashMap<&'a str, (u32, Option<u32>)>,
    pub(super) labels: HashMap<&'a str, usize>,
    pub(super) variables: HashMap<&'a str, (Space, u64)>,
    /// Labels of `.branchtargets`.
    pub(super) targets: HashMap<&'a str, Vec<&'a str>>,
}

/// What an entry's names stand for while its statements are decoded.
#[derive(Debug, Default)]
pub(super) struct Names<'a> {
    pub(super) scopes: Vec<Scope<'a>>,
    pub(super) globals: HashMap<String, usize>,
    pub(super) module_variables: HashMap<String, (Space, u64)>,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Register(u32),
    Variable(Space, u64),
    Global(usize),
}

impl Names<'_> {
    fn up(&self, from: usize) -> impl Iterator<Item = &Scope<'_>> {
        std::iter::successors(Some(from), |at| self.scopes[*at].parent).map(|at| &self.scopes[at])
    }

    /// What `name` stands for in `scope`.
    pub(super) fn find(&self, scope: usize, name: &str) -> Option<Meaning> {
        for scope in self.up(scope) {
            if let Some((slot, None)) = scope.registers.get(name) {
                return Some(Meaning::Register(*slot));
            }
            if let Some(&(space, offset)) = scope.variables.get(name) {
                return Some(Meaning::Variable(space, offset));
            }
            let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
            for cut in name.len() - digits..name.len() {
                if let Some((slot, Some(count))) = scope.registers.get(&name[..cut])
                    && let Ok(number) = name[cut..].parse::<u32>()
                    && number < *count
                {
                    return Some(Meaning::Register(slot + number));
                }
            }
        }
        if let Some(&(space, offset)) = self.module_variables.get(name) {
            return Some(Meaning::Variable(space, offset));
        }
        self.globals.get(name).map(|&index| Meaning::Global(index))
    }

    /// The statement behind the label `name`.
    pub(super) fn label(&self, scope: usize, name: &str) -> Option<usize> {
        self.up(scope).find_map(|scope| scope.labels.get(name).copied())
    }

    /// The labels of the `.branchtargets` called `name`.
    pub(super) fn targets(&self, scope: usize, name: &str) -> Option<Vec<&str>> {
        self.up(scope).find_map(|scope| scope.targets.get(name).map(|labels| labels.to_vec()))
    }
}

impl Module {
    /// The names of the module's kernels.
    pub fn entry_names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// Names and bytes of the parameters of the kernel `entry`.
    pub fn parameters(&self, entry: &str) -> Option<impl Iterator<Item = (&str, u64)>> {
        let entry = self.entries.iter().find(|candidate| candidate.name == entry)?;
        Some(entry.params.iter().map(|param| (param.name.as_str(), param.bytes)))
    }
}

impl Entry {
    /// Lays out shared memory: variables of the module, then the entry's own, then the dynamic part, at whose start
    /// all `.extern` arrays lie.
    pub(super) fn place_shared(&mut self, names: &mut Names<'_>, variables: &[Variable], shared: &[Variable]) {
        let mut end = 0_u64;
        for variable in shared.iter().filter(|variable| !variable.external && variable.bytes > 0) {
            end = end.next_multiple_of(variable.align);
            names.module_variables.insert(variable.name.clone(), (Space::Shared, end));
            end += variable.bytes;
        }
        let own = variables.iter().filter(|variable| variable.space == Space::Shared);
        let align = own.clone().map(|variable| variable.align).max().unwrap_or(1);
        let base = end.next_multiple_of(align);
        end = own.map(|variable| base + variable.offset + variable.bytes).max().unwrap_or(end);
        for variable in names.scopes.iter_mut().flat_map(|scope| scope.variables.values_mut()) {
            if variable.0 == Space::Shared {
                variable.1 += base;
            }
        }
        let dynamic = shared.iter().filter(|variable| variable.external || variable.bytes == 0);
        let start = end.next_multiple_of(dynamic.clone().map(|variable| variable.align).max().unwrap_or(1).max(16));
        for variable in dynamic {
            names.module_variables.insert(variable.name.clone(), (Space::Shared, start));
        }
        self.static_shared = end as u32;
        self.dynamic_shared = start as u32;
        let local = variables.iter().filter(|variable| variable.space == Space::Local);
        self.local_bytes = local.map(|variable| variable.offset + variable.bytes).max().unwrap_or(0) as u32;
    }
}
