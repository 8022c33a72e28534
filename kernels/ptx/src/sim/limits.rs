//! Bounds on the resources of a text and a launch.
//!
//! A PTX text is untrusted input: `%r<4294967295>` is 14 bytes and declares a terabyte of registers. Every size, count,
//! alignment and nesting depth that a text or a launch names is compared with the [`Limits`] of its module before
//! anything is allocated; what exceeds them is an [`Error`] with the line of the text. Reading and decoding one entry
//! takes at most 64 times the bytes of the text and 64 MiB, in a time that grows linearly with the text (`n log n` for
//! post-dominators).

use super::Error;

/// Bounds on texts and launches. The default admits every kernel that an H100 can run and that fits this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a text.
    pub text_bytes: usize,
    /// Nested braces, brackets or parentheses.
    pub depth: usize,
    /// Registers that an entry declares.
    pub registers: u32,
    /// Variables of a module, and of an entry.
    pub variables: usize,
    /// Operands of an instruction, elements of lists included; the longest known form (`wgmma`) has 141.
    pub operands: usize,
    /// Labels in the tables of an entry's indexed branches, each table counted once for each branch that uses it.
    pub branch_targets: usize,
    /// Bytes of an alignment, a power of two.
    pub alignment: u64,
    /// Bytes of an entry's parameters.
    pub param_bytes: u64,
    /// Bytes of local memory of a thread.
    pub local_bytes: u64,
    /// Bytes of shared memory of a block, static and dynamic.
    pub shared_bytes: u64,
    /// Bytes of device memory: variables of a module, and buffers of a launch file. Each byte takes two of the host.
    pub memory_bytes: u64,
    /// Blocks of a grid.
    pub blocks: u64,
    /// Bytes of the host for the registers, the local and the shared memory of one block.
    pub block_bytes: u64,
    /// Bytes of the host for all resident blocks, which wait for each other.
    pub resident_bytes: u64,
    /// Instructions of warps in a launch.
    pub instructions: u64,
}

impl Limits {
    const DEVICE: Limits = Limits {
        text_bytes: 64 << 20,
        depth: 64,
        registers: 1 << 20,
        variables: 1 << 16,
        operands: 512,
        branch_targets: 1 << 20,
        alignment: 1 << 16,
        param_bytes: 32_764,
        local_bytes: 512 << 10,
        shared_bytes: 227 << 10,
        memory_bytes: 4 << 30,
        blocks: 1 << 22,
        block_bytes: 1 << 30,
        resident_bytes: 4 << 30,
        instructions: 1 << 36,
    };

    /// Limits for mutated texts: a launch within them takes milliseconds and a few MiB.
    pub const SMALL: Limits = Limits {
        text_bytes: 1 << 20,
        registers: 1 << 14,
        variables: 1 << 10,
        branch_targets: 1 << 12,
        local_bytes: 1 << 12,
        memory_bytes: 1 << 20,
        blocks: 1 << 10,
        block_bytes: 32 << 20,
        resident_bytes: 64 << 20,
        instructions: 2_000,
        ..Self::DEVICE
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEVICE
    }
}

/// An error of a launch unless `holds`.
pub(crate) fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Launch(message())) }
}

/// An error at `line` unless `found` is at most `most`.
pub(crate) fn at_most(line: u32, found: u64, most: u64, what: &str) -> Result<(), Error> {
    if found <= most {
        return Ok(());
    }
    Err(Error::Syntax { line, message: format!("{what}; expected at most {most}, found {found}") })
}
