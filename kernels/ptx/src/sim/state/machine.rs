//! A launch while it runs: registers, findings and counts.

use super::{Block, Cluster, Epoch, Issue, Memory, Published, Thread, first, lanes, timelines};
use crate::Launch;
use crate::sim::{
    Approximation, Finding, FindingKind, Options, Other,
    isa::{CONSTANT, SINK, TensorCore},
    metrics::{Metrics, Traffic},
    report::Findings,
    schedule::{Chooser, Draw},
    text::Entry,
};
use std::collections::HashMap;

/// A launch while it runs.
pub(crate) struct Machine<'a> {
    pub(crate) entry: &'a Entry,
    pub(crate) launch: Launch,
    pub(crate) tensor_core: TensorCore,
    pub(crate) options: &'a Options,
    pub(crate) constants: Vec<[u64; 32]>,
    pub(crate) params: Vec<u8>,
    /// Of each warp, the special registers.
    pub(crate) specials: Vec<Vec<[u64; 32]>>,
    pub(crate) memory: &'a mut Memory,
    pub(crate) findings: Findings,
    pub(crate) counts: Vec<u64>,
    pub(crate) traffic: Vec<Traffic>,
    pub(crate) metrics: Metrics,
    /// Views published by strong stores, by block (0 for global memory) and address.
    pub(crate) published: HashMap<(u32, u64), Published>,
    pub(crate) chooser: Chooser,
    pub(crate) completions: Draw,
    /// The launch cannot go on.
    pub(crate) fatal: bool,
    /// The kernel has products of warpgroups, so registers are watched.
    pub(crate) has_products: bool,
    /// The kernel has strong accesses or fences whose scope does not reach other blocks.
    pub(crate) has_scopes: bool,
    /// The kernel has `griddepcontrol.wait`, so it may start before earlier kernels are complete.
    pub(crate) has_grid_wait: bool,
    pub(crate) warps: usize,
    /// Blocks of a cluster, in x, y and z.
    pub(crate) cluster_size: [u32; 3],
    /// The cluster that runs.
    pub(crate) cluster: Cluster,
    /// The allocation accessed last.
    pub(crate) guess: usize,
    /// Blocks that may wait for each other at the same time.
    pub(crate) resident: usize,
    pub(crate) most_instructions: u64,
}

/// Continuation of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    /// The warp's turn is over: it waits, has ended, or lets others run.
    Yield,
}

/// Position `index` of a box, x first.
pub(crate) fn position(index: usize, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let index = index as u32;
    [index % x, index / x % y, index / x / y]
}

impl Machine<'_> {
    /// Bytes of shared memory of a block.
    pub(crate) fn shared_bytes(&self) -> u64 {
        match self.launch.shared_bytes {
            0 => self.entry.static_shared,
            bytes => self.entry.dynamic_shared + u64::from(bytes),
        }
    }

    /// The values of a slot.
    #[inline]
    pub(crate) fn value<'v>(&'v self, block: &'v Block, w: usize, slot: u32) -> &'v [u64; 32] {
        if slot & CONSTANT != 0 {
            &self.constants[(slot & !CONSTANT) as usize]
        } else {
            &block.warps[w].registers[slot as usize]
        }
    }

    /// The value of a slot in one lane.
    #[inline]
    pub(crate) fn lane_value(&self, block: &Block, w: usize, slot: u32, lane: usize) -> u64 {
        self.value(block, w, slot)[lane]
    }

    /// The values of source `k` of an instruction.
    #[inline]
    pub(crate) fn source<'v>(&'v self, block: &'v Block, issue: Issue<'_>, k: usize) -> &'v [u64; 32] {
        self.value(block, issue.w, issue.i.sources[k])
    }

    /// The value of source `k` in the first of the lanes.
    pub(crate) fn scalar(&self, block: &Block, issue: Issue<'_>, k: usize) -> u64 {
        self.source(block, issue, k)[first(issue.mask)]
    }

    /// Writes the first destination of an instruction.
    #[inline]
    pub(crate) fn define(&self, block: &mut Block, issue: Issue<'_>, values: &[u64; 32]) {
        self.set(block, issue.w, issue.i.destinations[0], issue.mask, values);
    }

    /// Writes a register in the lanes of `mask`.
    #[inline]
    pub(crate) fn set(&self, block: &mut Block, w: usize, slot: u32, mask: u32, values: &[u64; 32]) {
        if slot == SINK {
            return;
        }
        let kept = self.entry.registers.masks[slot as usize];
        let warp = &mut block.warps[w];
        let register = &mut warp.registers[slot as usize];
        if mask == u32::MAX {
            register.iter_mut().zip(values).for_each(|(to, from)| *to = from & kept);
        } else {
            lanes(mask).for_each(|lane| register[lane] = values[lane] & kept);
        }
        warp.defined[slot as usize] |= mask;
    }

    /// Reports sources that were never written.
    #[inline]
    pub(crate) fn check_sources(&mut self, block: &Block, issue: Issue<'_>, sources: &[u32]) {
        for slot in sources.iter().filter(|slot| **slot & CONSTANT == 0) {
            let missing = issue.mask & !block.warps[issue.w].defined[*slot as usize];
            if missing != 0 {
                self.undefined(block, issue.thread(first(missing)), *slot);
            }
        }
    }

    #[cold]
    pub(crate) fn undefined(&mut self, block: &Block, thread: Thread, slot: u32) {
        let name = self.entry.registers.name(slot);
        let message =
            || format!("uses the register {name}, which was never written or is computed from a value that was not");
        self.report(FindingKind::Uninitialized, block, thread, None, message);
    }

    /// Adds a finding.
    #[cold]
    pub(crate) fn report(
        &mut self,
        kind: FindingKind,
        block: &Block,
        thread: Thread,
        address: Option<u64>,
        message: impl FnOnce() -> String,
    ) {
        self.add(kind, block, thread, address, || (message(), None));
    }

    /// Adds a finding about an access and an earlier one.
    #[cold]
    pub(crate) fn report_pair(
        &mut self,
        kind: FindingKind,
        block: &Block,
        thread: Thread,
        address: Option<u64>,
        (other, message): (Other, String),
    ) {
        self.add(kind, block, thread, address, || (message, Some(Box::new(other))));
    }

    fn add(
        &mut self,
        kind: FindingKind,
        block: &Block,
        thread: Thread,
        address: Option<u64>,
        make: impl FnOnce() -> (String, Option<Box<Other>>),
    ) {
        let Thread { w, lane, pc } = thread;
        self.fatal |= self.options.first_finding_ends;
        let (entry, launch) = (self.entry, self.launch);
        let pc = pc.min(entry.code.len() - 1);
        self.findings.add(kind, pc, self.options.max_findings, || {
            let (message, other) = make();
            Finding {
                kind,
                kernel: entry.name.clone(),
                place: entry.place(pc),
                instruction: entry.code[pc].opcode.to_string(),
                text: String::new(),
                block: block.position,
                thread: position(32 * w + lane, launch.block),
                address,
                message,
                other,
                times: 1,
            }
        });
    }

    /// The access of `epoch`, for a message about an access of `block`.
    pub(crate) fn other(&self, epoch: &Epoch, block: &Block) -> Other {
        let timelines = timelines(self.warps);
        let (other, timeline) = (epoch.timeline / timelines, epoch.timeline % timelines);
        let (class, warp) = (timeline as usize / self.warps, timeline as usize % self.warps);
        let thread = match (class, epoch.lane) {
            (0 | 1, lane) if lane < 32 => {
                format!("thread {:?}", position(32 * warp + usize::from(lane), self.launch.block))
            }
            (0, _) => format!("several threads of warp {warp}"),
            _ => format!("warp {warp}"),
        };
        let unit = ["", "'s cp.async", "'s bulk copy", "'s wgmma"][class];
        let place = if other == block.linear {
            String::new()
        } else {
            format!(" of block {:?}", position(other as usize, self.launch.grid))
        };
        let pc = (epoch.pc as usize).min(self.entry.code.len() - 1);
        Other {
            who: format!("{thread}{unit}{place}"),
            place: self.entry.place(pc),
            instruction: self.entry.code[pc].opcode.to_string(),
            text: String::new(),
        }
    }

    pub(crate) fn approximation(&self) -> Approximation {
        self.options.approximation
    }
}
