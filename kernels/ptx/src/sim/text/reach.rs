//! Reach of values whose bits may differ from those of the device.
//!
//! Registers and memory spaces are the nodes of a graph; an instruction leads from everything that it reads to everything that
//! it writes. Whatever can be reached from the results of inexact instructions may have other bits on the device. Neither the
//! order of instructions nor addresses within a space matter, so the answer is an upper bound.

use super::{Entry, Module};
use crate::sim::{
    Error, Fidelity, Place, fidelity,
    isa::{Async, CONSTANT, Instruction, Operation, SINK, Space},
};

/// The first place of each kind, by line, that results of inexact instructions may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// A branch, or another instruction with a guard.
    pub branch: Option<Place>,
    /// An access with an address, a size or a descriptor that depends on them.
    pub address: Option<Place>,
    /// A write to global memory.
    pub output: Option<Place>,
}

/// Spaces that are nodes.
const SPACES: [Space; 3] = [Space::Global, Space::Shared, Space::Local];

/// Memory that an instruction accesses.
struct Effects<'i> {
    reads: &'static [Space],
    writes: &'static [Space],
    /// Sources that choose what is accessed.
    addresses: &'i [u32],
}

/// The nodes of a space; all of them for generic addresses.
fn nodes(space: Option<Space>) -> &'static [Space] {
    match space {
        None => &SPACES,
        Some(Space::Global | Space::Const) => &[Space::Global],
        Some(Space::Shared | Space::Cluster) => &[Space::Shared],
        Some(Space::Local) => &[Space::Local],
        Some(Space::Param) => &[],
    }
}

fn effects(i: &Instruction) -> Effects<'_> {
    use Async::{Arrive, Bulk, CompleteBytes, ExpectBytes, Init, Invalidate, Product, Wait};
    let (none, global, shared) = (nodes(Some(Space::Param)), nodes(Some(Space::Global)), nodes(Some(Space::Shared)));
    let (first, all) = (&i.sources[..i.sources.len().min(1)], &i.sources[..]);
    let (reads, writes, addresses) = match i.operation {
        Operation::Load(access) => (nodes(access.space), none, first),
        Operation::Store(access) => (none, nodes(access.space), first),
        Operation::Atomic(atomic) => (nodes(atomic.access.space), nodes(atomic.access.space), first),
        Operation::LoadMatrix { .. } => (shared, none, first),
        Operation::StoreMatrix { .. } => (none, shared, first),
        Operation::CopyAsync => (global, shared, all),
        Operation::Async(Bulk(bulk)) if bulk.loads => (global, shared, all),
        Operation::Async(Bulk(_)) => (shared, global, all),
        Operation::Async(Product(product)) if product.takes_registers(all.len()) => (shared, none, &all[4..]),
        Operation::Async(Product(_)) => (shared, none, all),
        Operation::CopyArrive { .. }
        | Operation::Async(Init | Invalidate | Arrive(_) | ExpectBytes | CompleteBytes | Wait(_)) => (none, none, all),
        _ => (none, none, &all[..0]),
    };
    Effects { reads, writes, addresses }
}

impl Module {
    /// Branches, addresses and outputs of the kernel `entry` that results of instructions other than [`Fidelity::Exact`] may
    /// reach: an upper bound for every launch.
    ///
    /// # Errors
    /// If no kernel has that name or it has an unknown instruction.
    pub fn reach(&self, entry: &str) -> Result<Reach, Error> {
        let entry = self.decoded(entry)?.1;
        let graph = Graph { entry, registers: entry.registers.len() };
        let inexact = |i: &Instruction| fidelity(&i.opcode, &self.target) != Fidelity::Exact;
        let reached = graph.reached(inexact);
        let first = |holds: &dyn Fn(&Instruction) -> bool| entry.code.iter().position(holds).map(|pc| entry.place(pc));
        let any = |slots: &[u32]| slots.iter().any(|slot| graph.register(*slot).is_some_and(|node| reached[node]));
        let guarded = |i: &Instruction| i.guard.is_some_and(|(slot, _)| any(&[slot]));
        Ok(Reach {
            branch: first(&|i| guarded(i) || matches!(i.operation, Operation::BranchIndexed) && any(&i.sources)),
            address: first(&|i| any(effects(i).addresses)),
            output: first(&|i| effects(i).writes.contains(&Space::Global) && graph.inputs(i).any(|node| reached[node])),
        })
    }
}

/// The graph; nodes are slots of registers, then [`SPACES`].
struct Graph<'e> {
    entry: &'e Entry,
    registers: usize,
}

impl Graph<'_> {
    fn register(&self, slot: u32) -> Option<usize> {
        (slot != SINK && slot & CONSTANT == 0).then_some(slot as usize)
    }

    fn memory(&self, spaces: &'static [Space]) -> impl Iterator<Item = usize> {
        (self.registers..).zip(SPACES).filter(|(_, space)| spaces.contains(space)).map(|(node, _)| node)
    }

    fn inputs(&self, i: &Instruction) -> impl Iterator<Item = usize> {
        let slots = i.sources.iter().copied().chain(i.guard.map(|(slot, _)| slot));
        slots.filter_map(|slot| self.register(slot)).chain(self.memory(effects(i).reads))
    }

    fn outputs(&self, i: &Instruction) -> impl Iterator<Item = usize> {
        i.destinations.iter().filter_map(|slot| self.register(*slot)).chain(self.memory(effects(i).writes))
    }

    /// Nodes on a path from the results of the instructions that `starts` selects.
    fn reached(&self, starts: impl Fn(&Instruction) -> bool) -> Vec<bool> {
        let nodes = self.registers + SPACES.len();
        let mut readers = vec![Vec::new(); nodes];
        let mut pending = Vec::new();
        for i in &self.entry.code {
            self.inputs(i).for_each(|node| readers[node].push(i));
            if starts(i) {
                pending.extend(self.outputs(i));
            }
        }
        let mut reached = vec![false; nodes];
        while let Some(node) = pending.pop() {
            if !std::mem::replace(&mut reached[node], true) {
                readers[node].iter().for_each(|i| pending.extend(self.outputs(i)));
            }
        }
        reached
    }
}
