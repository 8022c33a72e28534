//! A decoded kernel: its instructions, registers and constants.

use crate::sim::{
    Place,
    isa::{Instruction, SPECIALS},
};
use std::sync::Arc;

/// A decoded kernel.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) maxnreg: Option<u32>,
    pub(crate) registers: Registers,
    /// Constant operands, the same for all lanes.
    pub(crate) constants: Vec<Constant>,
    pub(crate) code: Vec<Instruction>,
    /// Source files of the `.loc` directives, as [`Source::file`] numbers them.
    pub(crate) files: Vec<Arc<str>>,
    /// Bytes of `.shared` variables with a size.
    pub(crate) static_shared: u64,
    /// Start of dynamic shared memory, in bytes from the start of shared memory.
    pub(crate) dynamic_shared: u64,
    pub(crate) local_bytes: u64,
}

impl Entry {
    /// Source location of instruction `pc`.
    pub(crate) fn place(&self, pc: usize) -> Place {
        self.code[pc].place(&self.files)
    }
}

/// The registers of an entry, by slot. Slots of one declaration are contiguous.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registers {
    /// Mask of the bits of each slot.
    pub(crate) masks: Vec<u64>,
    /// First slot, name, whether a number follows the name.
    declarations: Vec<(u32, String, bool)>,
}

impl Registers {
    /// Adds `count` registers `name0`, `name1`, …, or one called `name`.
    pub(crate) fn declare(&mut self, name: &str, count: Option<u32>, mask: u64) -> u32 {
        let first = self.masks.len() as u32;
        self.declarations.push((first, name.to_string(), count.is_some()));
        self.masks.resize(self.masks.len() + count.unwrap_or(1) as usize, mask);
        first
    }

    /// Number of slots.
    pub(crate) fn len(&self) -> usize {
        self.masks.len()
    }

    /// The name of a slot, as the text spells it.
    pub(crate) fn name(&self, slot: u32) -> String {
        let behind = self.declarations.partition_point(|(first, ..)| *first <= slot);
        match behind.checked_sub(1).map(|at| &self.declarations[at]) {
            Some((first, name, true)) => format!("{name}{}", slot - first),
            Some((_, name, false)) => name.clone(),
            None => "_".to_string(),
        }
    }
}

/// A constant operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Bits(u64),
    /// The address of a variable of the module, plus bytes.
    Global(usize, i64),
}

/// Declares the registers that every kernel has.
pub(crate) fn declare_specials(registers: &mut Registers) {
    for name in SPECIALS.iter().copied().chain(["the carry"]) {
        registers.declare(name, None, u64::MAX);
    }
}
