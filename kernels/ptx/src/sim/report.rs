//! Report of a launch: findings and metrics.

use super::{Place, metrics::Metrics};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

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
        /// A kernel with `griddepcontrol.wait` accesses global memory, or ends a block, before it.
        Dependency "dependency",
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
    /// The line of the text, cut after 200 characters.
    pub text: String,
    /// The block's position in the grid.
    pub block: [u32; 3],
    /// The thread's position in its block.
    pub thread: [u32; 3],
    /// The address, as the instruction was given it.
    pub address: Option<u64>,
    /// Description, with the instruction as its subject.
    pub message: String,
    /// The earlier access that it conflicts with.
    pub other: Option<Box<Other>>,
    /// Number of findings of this kind at this instruction; the other fields describe the first.
    pub times: u64,
}

/// The earlier one of two accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its thread, warp or asynchronous operation, with the block if that is not the finding's.
    pub who: String,
    /// The line of the text, and of the source where the text says it.
    pub place: Place,
    /// The instruction's full name.
    pub instruction: String,
    /// The line of the text, cut after 200 characters.
    pub text: String,
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Other { who, place, instruction, .. } = self;
        write!(f, "{who} (`{instruction}`, {place})")
    }
}

/// A first line that says what is wrong, then the text of the instruction and of the earlier access, one a line.
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
        write!(f, "\n    PTX line {}, thread {thread:?}: {}", place.line, self.text)?;
        if let Some(Other { who, place, text, .. }) = self.other.as_deref() {
            write!(f, "\n    PTX line {}, {who}: {text}", place.line)?;
        }
        Ok(())
    }
}

/// Report of a launch.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Defects, one of each kind and instruction: first the races, because what a racing thread reads may cause the
    /// others; then those in the order in which they were found.
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
    /// All findings, each with its lines of the text.
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

impl Report {
    /// Moves races to the front, and quotes `text`, the module's.
    pub(super) fn sort_and_quote(&mut self, text: &str) {
        /// Characters of a quoted line.
        const MOST: usize = 200;
        self.findings.sort_by_key(|finding| finding.kind != FindingKind::Race);
        let mut quotes: BTreeMap<u32, Vec<&mut String>> = BTreeMap::new();
        for finding in &mut self.findings {
            quotes.entry(finding.place.line).or_default().push(&mut finding.text);
            if let Some(Other { place, text, .. }) = finding.other.as_deref_mut() {
                quotes.entry(place.line).or_default().push(text);
            }
        }
        let (mut lines, mut next) = (text.lines(), 1);
        for (line, targets) in quotes {
            let found = lines.nth((line - next) as usize).unwrap_or_default().trim();
            next = line + 1;
            let cut = found.char_indices().nth(MOST).map(|(end, _)| format!("{} …", &found[..end]));
            let quote = cut.unwrap_or_else(|| found.to_string());
            targets.into_iter().for_each(|target| target.clone_from(&quote));
        }
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
    /// Whether there is a finding of this kind at instruction `pc`; counts another one.
    pub(crate) fn again(&mut self, kind: FindingKind, pc: usize) -> bool {
        let found = self.known.get(&(kind, pc as u32)).map(|at| &mut self.all[*at]);
        found.map(|found| found.times += 1).is_some()
    }

    /// Adds a finding at instruction `pc`, which `make` builds if it is the first of its kind there. A race takes the
    /// place of another kind if there are `limit` of them.
    pub(crate) fn add(&mut self, kind: FindingKind, pc: usize, limit: usize, make: impl FnOnce() -> Finding) {
        if self.again(kind, pc) {
            return;
        }
        let mut at = self.all.len();
        if at >= limit {
            self.dropped += 1;
            let other = self.all.iter().rposition(|found| found.kind != FindingKind::Race);
            let Some(other) = other.filter(|_| kind == FindingKind::Race) else { return };
            self.known.retain(|_, known| *known != other);
            at = other;
            self.all[at] = make();
        } else {
            self.all.push(make());
        }
        self.known.insert((kind, pc as u32), at);
    }
}
