//! Report of a launch: findings and metrics.

use super::{Place, metrics::Metrics};
use std::{collections::HashMap, fmt};

named! {
    /// Kind of a defect.
    #[derive(PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum FindingKind {
        /// Two threads touch the same bytes, at least one writes, and nothing orders them.
        Race "race",
        /// An access outside of what was allocated.
        OutOfBounds "out of bounds",
        /// An address that is not a multiple of the access's size.
        Misaligned "misaligned",
        /// A register or memory is read that was never written.
        Uninitialized "uninitialized",
        /// Memory is written that the kernel has read, or was given, as constant.
        Constant "constant",
        /// Lanes execute an instruction separately that they must execute together.
        Divergence "divergence",
        /// The destination of an asynchronous operation, or a register that one still uses, is accessed before a wait.
        Pending "pending",
        /// Memory passes between the generic and the asynchronous proxy without a fence.
        Proxy "proxy",
        /// Registers pass between ordinary instructions and `wgmma` without a `wgmma.fence`.
        Fence "fence",
        /// A barrier is misused: counts that do not match, too many arrivals, too many bytes.
        Barrier "barrier",
        /// No thread can proceed.
        Deadlock "deadlock",
        /// A thread executed `trap`.
        Trap "trap",
        /// A thread never ends.
        Endless "endless",
        /// An operand has a value that the instruction does not take.
        Operand "operand",
        /// The kernel ends with asynchronous operations that no thread has waited for.
        Unfinished "unfinished",
    }
}

/// A defect of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind of defect.
    pub kind: FindingKind,
    /// The entry.
    pub kernel: String,
    /// The line of the text, and of the source where the text says it.
    pub place: Place,
    /// The instruction's full name.
    pub instruction: String,
    /// The block's position in the grid.
    pub block: [u32; 3],
    /// The thread's position in its block.
    pub thread: [u32; 3],
    /// The address, as the instruction was given it.
    pub address: Option<u64>,
    /// Description, with the instruction as its subject.
    pub message: String,
    /// Number of findings of this kind at this instruction; the other fields describe the first.
    pub times: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { kind, kernel, place, instruction, block, thread, message, .. } = self;
        write!(f, "{place}: {}: `{instruction}` {message} (", kind.name())?;
        if let Some(address) = self.address {
            write!(f, "address {address:#x}, ")?;
        }
        write!(f, "block {block:?}, thread {thread:?} of {kernel})")?;
        if self.times > 1 {
            write!(f, "; {} times", self.times)?;
        }
        Ok(())
    }
}

/// Report of a launch.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Defects in the order in which they were found; one of each kind and instruction.
    pub findings: Vec<Finding>,
    /// Findings beyond the limit of [`super::Options`].
    pub dropped: u64,
    /// Costs of the launch.
    pub metrics: Metrics,
}

impl Report {
    /// The measurements, if there is no finding.
    ///
    /// # Errors
    /// All findings, one a line.
    pub fn clean(self) -> Result<Metrics, String> {
        if self.findings.is_empty() {
            return Ok(self.metrics);
        }
        Err(self.findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    }

    /// Whether a finding of this kind is there.
    pub fn has(&self, kind: FindingKind) -> bool {
        self.findings.iter().any(|finding| finding.kind == kind)
    }
}

/// Collector of findings.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) all: Vec<Finding>,
    known: HashMap<(FindingKind, u32), usize>,
    pub(crate) dropped: u64,
}

impl Findings {
    /// Adds a finding at instruction `pc`, which `make` builds if it is the first of its kind there.
    pub(crate) fn add(&mut self, kind: FindingKind, pc: u32, limit: usize, make: impl FnOnce() -> Finding) {
        match self.known.get(&(kind, pc)) {
            Some(at) => self.all[*at].times += 1,
            None if self.all.len() >= limit => self.dropped += 1,
            None => {
                self.known.insert((kind, pc), self.all.len());
                self.all.push(make());
            }
        }
    }
}
