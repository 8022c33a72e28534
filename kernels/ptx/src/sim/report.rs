//! What a launch has shown: findings and measurements.

use super::{Place, metrics::Metrics};
use std::{collections::HashMap, fmt};

/// What kind of defect a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// Two threads touch the same bytes, at least one writes, and nothing orders them.
    Race,
    /// An access outside of what was allocated.
    OutOfBounds,
    /// An address that is no multiple of what the access needs.
    Misaligned,
    /// A register or memory that nobody has written is read.
    Uninitialized,
    /// Memory is written that the kernel has read, or was given, as constant.
    Constant,
    /// Lanes execute an instruction apart that they must execute together.
    Divergence,
    /// The destination of an asynchronous operation, or a register that one still uses, is touched before a wait.
    Pending,
    /// Memory passes between the generic and the asynchronous proxy without a fence.
    Proxy,
    /// Registers pass between ordinary instructions and `wgmma` without a `wgmma.fence`.
    Fence,
    /// A barrier is used against its rules: counts that do not fit, too many arrivals, too many bytes.
    Barrier,
    /// Nobody can go on.
    Deadlock,
    /// A thread executed `trap`.
    Trap,
    /// A thread never ends.
    Endless,
    /// An operand has a value that the instruction does not take.
    Operand,
    /// The kernel ends with asynchronous operations that nobody has waited for.
    Unfinished,
}

impl FindingKind {
    /// One or two words.
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::Race => "race",
            FindingKind::OutOfBounds => "out of bounds",
            FindingKind::Misaligned => "misaligned",
            FindingKind::Uninitialized => "uninitialized",
            FindingKind::Constant => "constant",
            FindingKind::Divergence => "divergence",
            FindingKind::Pending => "pending",
            FindingKind::Proxy => "proxy",
            FindingKind::Fence => "fence",
            FindingKind::Barrier => "barrier",
            FindingKind::Deadlock => "deadlock",
            FindingKind::Trap => "trap",
            FindingKind::Endless => "endless",
            FindingKind::Operand => "operand",
            FindingKind::Unfinished => "unfinished",
        }
    }
}

/// Something that a kernel does wrong.
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
    /// What it did.
    pub message: String,
    /// How often the same kind was found at the same instruction; the rest describes the first time.
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

/// What a launch has shown.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What the kernel did wrong, in the order in which it was found; one of each kind and instruction.
    pub findings: Vec<Finding>,
    /// Findings beyond the limit of [`super::Options`].
    pub dropped: u64,
    /// What was measured.
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

/// Findings while they are collected.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) all: Vec<Finding>,
    known: HashMap<(FindingKind, u32), usize>,
    pub(crate) dropped: u64,
}

impl Findings {
    /// Takes a finding at instruction `pc`, made by `make` if it is the first of its kind there.
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
