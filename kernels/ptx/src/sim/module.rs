//! A module as it is run: variables, entries, and what names stand for.

use super::{Error, Limits, Place, decode::Instruction};
use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

/// A module that can be launched.
///
/// An entry's body is decoded when the entry is launched for the first time, or by [`Module::decode`]: an instruction
/// that the simulator does not know refuses the entries that contain it and no other.
#[derive(Clone, Debug)]
pub struct Module {
    /// The `.target` of the text.
    pub target: String,
    pub(super) text: Arc<str>,
    pub(super) limits: Limits,
    pub(super) files: HashMap<u64, Arc<str>>,
    pub(super) outlines: Vec<Outline>,
    /// `.global` and `.const` variables.
    pub(super) globals: Vec<Variable>,
    /// The position of each in [`Module::globals`].
    pub(super) global_names: HashMap<String, usize>,
    pub(super) shared: ModuleShared,
    /// Tells the variables of one text from those of another.
    pub(super) identity: u64,
}

/// The `.shared` variables of a module, which lie before those of the entry.
#[derive(Clone, Debug, Default)]
pub(super) struct ModuleShared {
    /// The offset of each; `None` for one without a size, which is the dynamic shared memory.
    pub(super) names: HashMap<String, Option<u64>>,
    pub(super) bytes: u64,
    /// The largest alignment of the dynamic ones.
    pub(super) dynamic_align: u64,
}

/// An entry as the text declares it.
#[derive(Clone, Debug)]
pub(super) struct Outline {
    pub(super) name: String,
    pub(super) params: Vec<Variable>,
    pub(super) param_bytes: u64,
    /// The block that the text requires.
    pub(super) block: Option<[u32; 3]>,
    /// The most threads of a block that the text allows.
    pub(super) most_threads: Option<u64>,
    /// The cluster that the text requires.
    pub(super) cluster: Option<[u32; 3]>,
    /// `.maxnreg`
    pub(super) maxnreg: Option<u32>,
    /// Byte and line of the opening brace of its body.
    pub(super) body: (usize, u32),
    /// The decoded body, once somebody has needed it.
    pub(super) decoded: OnceLock<Result<Entry, Error>>,
}

/// A decoded kernel.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) maxnreg: Option<u32>,
    pub(super) registers: Registers,
    /// Operands that are no registers, the same for all lanes.
    pub(super) constants: Vec<Constant>,
    pub(super) code: Vec<Instruction>,
    /// Source files of the `.loc` directives, as [`Source::file`] numbers them.
    pub(super) files: Vec<Arc<str>>,
    /// Bytes of `.shared` variables with a size.
    pub(super) static_shared: u64,
    /// Where dynamic shared memory begins, counted like [`Entry::static_shared`].
    pub(super) dynamic_shared: u64,
    pub(super) local_bytes: u64,
}

/// The registers of an entry, by slot. Slots of one declaration are contiguous.
#[derive(Clone, Debug, Default)]
pub(super) struct Registers {
    /// The bits that a slot keeps.
    pub(super) masks: Vec<u64>,
    /// First slot, name, whether a number follows the name.
    declarations: Vec<(u32, String, bool)>,
}

impl Registers {
    /// Adds `count` registers `name0`, `name1`, …, or one called `name`.
    pub(super) fn declare(&mut self, name: &str, count: Option<u32>, mask: u64) -> u32 {
        let first = self.masks.len() as u32;
        self.declarations.push((first, name.to_string(), count.is_some()));
        self.masks.resize(self.masks.len() + count.unwrap_or(1) as usize, mask);
        first
    }

    /// Number of slots.
    pub(super) fn len(&self) -> usize {
        self.masks.len()
    }

    /// The name of a slot, as the text spells it.
    pub(super) fn name(&self, slot: u32) -> String {
        let behind = self.declarations.partition_point(|(first, ..)| *first <= slot);
        match behind.checked_sub(1).map(|at| &self.declarations[at]) {
            Some((first, name, true)) => format!("{name}{}", slot - first),
            Some((_, name, false)) => name.clone(),
            None => "_".to_string(),
        }
    }
}

/// Where `.loc` says that an instruction comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Position in [`Entry::files`].
    pub(super) file: u32,
    pub(super) line: u32,
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
    /// What it holds at first, up to its last byte that the initializer gives; the rest is zero.
    pub(super) initial: Vec<u8>,
    /// Line of an initializer that is not understood: the variable cannot be used.
    pub(super) refused: Option<u32>,
}

/// An operand as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand<'a> {
    Name(&'a str),
    /// `!p`
    Not(&'a str),
    /// `p|q`
    Pair(&'a str, &'a str),
    Number(u64),
    /// `name+4`
    Sum(&'a str, i64),
    /// `{a, b}`
    List(Vec<Operand<'a>>),
    /// `[base+bytes, …]`
    Address(Box<Operand<'a>>, i64, Vec<Operand<'a>>),
}

/// An instruction as it is written.
#[derive(Clone, Debug)]
pub(super) struct Statement<'a> {
    /// The guard's register, and whether it is negated.
    pub(super) guard: Option<(&'a str, bool)>,
    pub(super) opcode: &'a str,
    pub(super) operands: Vec<Operand<'a>>,
    pub(super) line: u32,
    /// File and line of the `.loc` before it.
    pub(super) source: Option<(u64, u32)>,
    /// The innermost scope around it.
    pub(super) scope: u32,
}

/// A name within a scope.
pub(super) type Scoped<'a> = (u32, &'a str);

/// What an entry's names stand for while its statements are decoded. A scope is what stands between two braces.
#[derive(Debug)]
pub(super) struct Names<'a> {
    pub(super) module: &'a Module,
    /// Offsets of the parameters.
    params: HashMap<&'a str, u64>,
    /// The scope around each scope; the outermost is its own.
    pub(super) parents: Vec<u32>,
    /// Name, or what stands before `<n>`: first slot, number of registers where there is one.
    pub(super) registers: HashMap<Scoped<'a>, (u32, Option<u32>)>,
    /// Position of the instruction behind a label.
    pub(super) labels: HashMap<Scoped<'a>, u32>,
    /// Space and offset.
    pub(super) variables: HashMap<Scoped<'a>, (Space, u64)>,
    /// Labels of `.branchtargets`.
    pub(super) targets: HashMap<Scoped<'a>, Vec<&'a str>>,
    /// Where the entry's own shared variables and the dynamic shared memory begin.
    pub(super) shared_base: u64,
    pub(super) dynamic_shared: u64,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    Register(u32),
    Variable(Space, u64),
    Global(usize),
}

/// Digits of the largest register number.
const DIGITS: usize = 10;

impl<'a> Names<'a> {
    pub(super) fn new(module: &'a Module, outline: &'a Outline) -> Self {
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

    /// What `name` stands for in `scope`.
    pub(super) fn find(&self, scope: u32, name: &str) -> Option<Symbol> {
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
    pub(super) fn label(&self, scope: u32, name: &str) -> Option<u32> {
        self.up(scope).find_map(|scope| self.labels.get(&(scope, name)).copied())
    }

    /// The scope whose `.branchtargets` called `name` is meant in `scope`, and its labels.
    pub(super) fn targets(&self, scope: u32, name: &'a str) -> Option<(u32, &[&'a str])> {
        self.up(scope).find_map(|scope| Some((scope, self.targets.get(&(scope, name))?.as_slice())))
    }
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

    /// Reads the body of the kernel `entry`, as its first launch does.
    ///
    /// # Errors
    /// [`Error::Launch`] if there is no such entry, [`Error::Syntax`] or [`Error::UnknownInstruction`] with the line if its
    /// body is not understood.
    pub fn decode(&self, entry: &str) -> Result<(), Error> {
        self.decoded(entry).map(|_| ())
    }

    /// The kernel `entry`, as the text declares it and decoded.
    pub(super) fn decoded(&self, entry: &str) -> Result<(&Outline, &Entry), Error> {
        let found = self.outlines.iter().find(|candidate| candidate.name == entry);
        let outline = found.ok_or_else(|| Error::Launch(format!("the module has no entry `{entry}`")))?;
        let decoded = outline.decoded.get_or_init(|| Entry::read(self, outline)).as_ref();
        decoded.map(|entry| (outline, entry)).map_err(Clone::clone)
    }
}

impl Entry {
    /// Where the instruction `pc` stands.
    pub(super) fn place(&self, pc: usize) -> Place {
        self.code[pc].place(&self.files)
    }
}
