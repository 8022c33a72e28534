//! Decoded instructions and the slots of their operands.
//!
//! Every operand is the number of a slot: a register of the warp, or, with [`CONSTANT`] set, an entry of the kernel's
//! table of constants. So a lane reads all operands the same way, without a branch on their kind.

use super::{Modifiers, Operation};
use crate::sim::Place;
use std::sync::Arc;

/// Marks a slot of the table of constants.
pub(crate) const CONSTANT: u32 = 1 << 31;

/// The slot of `_`; values written to it are discarded.
pub(crate) const SINK: u32 = CONSTANT - 1;

/// An instruction, ready to run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Instruction {
    pub(crate) operation: Operation,
    pub(crate) modifiers: Modifiers,
    /// The guarding predicate, and whether it is negated.
    pub(crate) guard: Option<(u32, bool)>,
    /// Slots written.
    pub(crate) destinations: Box<[u32]>,
    /// Slots read; an address is its base, then its coordinates.
    pub(crate) sources: Box<[u32]>,
    /// Bytes added to the bases of the addresses, in their order.
    pub(crate) offsets: [i64; 3],
    /// Targets of a branch. Branches by one table share them.
    pub(crate) targets: Arc<[u32]>,
    /// Instruction at which lanes that diverge here reconverge; the number of instructions for the end.
    pub(crate) reconvergence: usize,
    /// FLOPs of a lane.
    pub(crate) flops: u32,
    /// Line of the text.
    pub(crate) line: u32,
    /// The last `.loc` before it.
    pub(crate) source: Option<Source>,
    /// The full name, for counts and messages.
    pub(crate) opcode: Arc<str>,
}

impl Instruction {
    /// Source location; `files` are those of its entry.
    pub(crate) fn place(&self, files: &[Arc<str>]) -> Place {
        let source = self.source.map(|source| (files[source.file as usize].to_string(), source.line));
        Place { line: self.line, source }
    }
}

/// Source location that `.loc` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// Position in [`Entry::files`].
    pub(crate) file: u32,
    pub(crate) line: u32,
}

/// Special registers, each with a slot of its own at the front of the register file.
#[rustfmt::skip]
pub(crate) const SPECIALS: [&str; 40] = [
    "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z",
    "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z",
    "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid",
    "%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt",
    "%dynamic_smem_size", "%total_smem_size", "%is_explicit_cluster",
    "%clusterid.x", "%clusterid.y", "%clusterid.z", "%nclusterid.x", "%nclusterid.y", "%nclusterid.z",
    "%cluster_ctaid.x", "%cluster_ctaid.y", "%cluster_ctaid.z",
    "%cluster_nctaid.x", "%cluster_nctaid.y", "%cluster_nctaid.z",
    "%cluster_ctarank", "%cluster_nctarank",
];

/// The slot of the carry that `.cc` leaves.
pub(crate) const CARRY: u32 = SPECIALS.len() as u32;
