//! Rules by which mutants are equivalent by construction. Each rule holds for any text, not only for one kernel:
//!
//! * `REPEATED`: a wait, a fence or a barrier is repeated with nothing in between. (Not a barrier with arrivals that do not
//!   wait, or one that counts arrivals.)
//! * `EMPTY`: a group is committed twice. The second group is empty but counts: a wait for all but the last N groups
//!   leaves no more copies or `wgmma` pending than before.
//! * `MORE`: a fence, a wait or a commit moves below a label: on the fall-through path nothing changes, on branches to the
//!   label there is one more. It only adds order, and a wait for groups always ends. (Not `.aligned` instructions, which
//!   all threads of a warp must execute.)
//! * `LATER`: a wait for groups moves in front of an arrival or a barrier that preceded it. Other threads are released
//!   later, with more completed; the groups complete by themselves, so there is no cycle of waits.
//! * `DISJOINT`: two mbarriers at different offsets from one register are initialized in the other order.
//! * `APART`: two adjacent instructions are swapped that share no register, one of which accesses only registers,
//!   parameters and memory that is constant during a launch. (Registers of `wgmma` count as shared with its fences and
//!   waits.)
//! * `OVERWRITTEN`: an assignment that does not read its destination, or that selects between it and another value, is
//!   executed twice, under the same guard if it has one.
//! * `ZERO`: an `xor` with a register that is always 0 is replaced by the other operand.
//! * `UNUSED`: without its guard an instruction writes registers that only instructions with the same guard read.

use crate::text::{Instruction, Kind, Unit, kind_of, registers};
use std::collections::BTreeSet;

pub(crate) const REPEATED: &str = "REPEATED";
pub(crate) const EMPTY: &str = "EMPTY";
pub(crate) const MORE: &str = "MORE";
pub(crate) const LATER: &str = "LATER";
pub(crate) const DISJOINT: &str = "DISJOINT";
pub(crate) const APART: &str = "APART";
pub(crate) const OVERWRITTEN: &str = "OVERWRITTEN";
pub(crate) const ZERO: &str = "ZERO";
pub(crate) const UNUSED: &str = "UNUSED";

/// Facts of a text that the rules use.
pub(crate) struct Rules<'a> {
    units: &'a [Unit<'a>],
    /// Registers of `wgmma`.
    wgmma: BTreeSet<&'a str>,
    /// True if a barrier counts arrivals of threads that do not wait.
    arrives: bool,
}

impl<'a> Rules<'a> {
    pub(crate) fn new(units: &'a [Unit<'a>]) -> Self {
        let all = || units.iter().flat_map(|unit| &unit.instructions);
        let products = all().filter(|i| i.opcode.starts_with("wgmma.mma_async"));
        let operands = products.flat_map(|i| i.operands.iter().filter(|operand| operand.starts_with('{')));
        let wgmma = operands.flat_map(|operand| registers(operand)).collect();
        let arrives = all().any(|i| i.opcode.starts_with("bar") && i.opcode.contains("arrive"));
        Self { units, wgmma, arrives }
    }

    /// Rule by which a unit that is not an update may be duplicated.
    pub(crate) fn twice(&self, unit: &Unit<'_>, kind: Kind) -> Option<&'static str> {
        let [first] = &unit.instructions[..] else { return None };
        let plain = first.guard.is_none();
        match kind {
            Kind::Wait | Kind::Fence => Some(REPEATED),
            Kind::Commit => Some(EMPTY),
            Kind::Barrier if plain && first.opcode.starts_with("bar.warp") => Some(REPEATED),
            Kind::Barrier if plain && !self.arrives && first.opcode.starts_with("bar") => Some(REPEATED),
            _ => None,
        }
    }

    /// Rule by which two adjacent units may be swapped; `moved`, of this kind, is the mutated one.
    pub(crate) fn swapped(&self, [first, second]: [&Unit<'_>; 2], moved: Moved, kind: Kind) -> Option<&'static str> {
        if let (true, [more]) = (second.label, &first.instructions[..]) {
            let fence = kind_of(more.opcode) == Some(Kind::Fence);
            let group = more.opcode.contains("commit_group") || waits_for_groups(more);
            return ((fence || group) && !more.opcode.contains(".aligned")).then_some(MORE);
        }
        if let ([upper], [lower]) = (&first.instructions[..], &second.instructions[..]) {
            let meets = kind_of(upper.opcode) == Some(Kind::Barrier) && !upper.opcode.starts_with("mbarrier.in");
            if meets && waits_for_groups(lower) && lower.guard.is_none() {
                return Some(LATER);
            }
            if let (Some((a, at)), Some((b, and))) = (initialized(upper), initialized(lower))
                && a == b
                && at.abs_diff(and) >= 8
            {
                return Some(DISJOINT);
            }
        }
        match moved {
            Moved::First => self.apart(first, second, kind),
            Moved::Second => self.apart(second, first, kind),
        }
    }

    fn apart(&self, unit: &Unit<'_>, other: &Unit<'_>, kind: Kind) -> Option<&'static str> {
        let [with] = &other.instructions[..] else { return None };
        let apart = unit.instructions.iter().all(|i| !i.shares_registers(with)) && !with.is_branch();
        let products = unit.instructions[0].opcode.starts_with("wgmma");
        let touched = |i: &Instruction<'_>| {
            i.written().iter().chain(&i.read_registers()).any(|register| self.wgmma.contains(register))
        };
        let local = match kind {
            Kind::Update => true,
            _ => with.is_local() && !(products && touched(with)),
        };
        (apart && local).then_some(APART)
    }

    /// Rule by which an `xor` may be replaced by one operand, if the other is `operand`.
    pub(crate) fn zero(&self, operand: &str) -> Option<&'static str> {
        let all = self.units.iter().flat_map(|unit| &unit.instructions);
        let mut writers = all.filter(|i| i.written().contains(operand));
        let only =
            writers.next().filter(|i| i.guard.is_none() && i.opcode.starts_with("mov.") && i.operands[1..] == ["0"]);
        (only.is_some() && writers.next().is_none()).then_some(ZERO)
    }

    /// Rule by which the guard of an instruction may be dropped: only instructions with the same guard read its results.
    pub(crate) fn unused(&self, unit: &Unit<'_>, guard: &str) -> Option<&'static str> {
        let first = &unit.instructions[0];
        let written = first.written();
        let instructions = || self.units.iter().flat_map(|unit| &unit.instructions);
        let writers = |register: &str| instructions().filter(|i| i.written().contains(register)).count();
        let once = written.iter().all(|to| writers(to) == 1) && writers(guard.trim_start_matches('!')) == 1;
        let reads = |i: &Instruction<'_>| {
            i.operands
                .iter()
                .skip(usize::from(!i.written().is_empty()))
                .any(|o| registers(o).intersection(&written).next().is_some())
        };
        let unused = first.is_local()
            && !first.opcode.starts_with("ld.")
            && !written.is_empty()
            && once
            && instructions().filter(|i| reads(i)).all(|i| i.guard == Some(guard));
        unused.then_some(UNUSED)
    }
}

/// Mutated one of two adjacent units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    First,
    Second,
}

fn waits_for_groups(instruction: &Instruction<'_>) -> bool {
    ["wait_group", "wait_all"].iter().any(|wait| instruction.opcode.contains(wait))
}

/// Base register and offset of the mbarrier that an instruction initializes.
fn initialized<'a>(instruction: &Instruction<'a>) -> Option<(&'a str, u64)> {
    let at = instruction.operands.first().filter(|_| instruction.opcode.starts_with("mbarrier.init"))?;
    let at = at.strip_prefix('[')?.strip_suffix(']')?;
    match at.split_once('+') {
        Some((register, distance)) => Some((register, distance.parse().ok()?)),
        None => Some((at, 0)),
    }
}
