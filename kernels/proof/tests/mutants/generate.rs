//! Mutants of a PTX text: every single edit of its synchronization.
//!
//! | kind | instructions | edits |
//! |---|---|---|
//! | barrier | `bar`, `barrier`, `mbarrier` except waits | delete, duplicate, move up and down by one instruction |
//! | wait | `…wait_group`, `…wait_all`, `griddepcontrol.wait`, the loop around `mbarrier.try_wait` | the same |
//! | commit | `…commit_group` | the same |
//! | fence | `fence`, `membar`, `wgmma.fence` | the same |
//! | expect_tx | `mbarrier.….expect_tx` | the same |
//! | guard | `@p` and `@!p` | drop, negate |
//! | swizzle | `xor` whose result is part of an address | replace by its first or second operand |
//! | update | assignment to an integer that is assigned more than once: stage, phase, counter, pointer | the same |
//!
//! Mutants are a function of the text. Some are equivalent by construction: [`Mutant::equivalent`] names the
//! [rule](crate::rules).

use crate::{
    rules::{Moved, OVERWRITTEN, Rules},
    text::{Instruction, Kind, Unit, address_registers, kind_of, units, variables},
};

use std::ops::Range;

/// Edit of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Change {
    Delete,
    Duplicate,
    Up,
    Down,
    Drop,
    Negate,
    First,
    Second,
}

/// A text with one edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mutant {
    pub(crate) kind: Kind,
    pub(crate) change: Change,
    /// Line of the mutated unit in the text, from 1.
    pub(crate) line: usize,
    /// Text of the mutated unit, with its neighbors for edits that depend on them.
    pub(crate) what: String,
    /// Rule by which the mutant is equivalent.
    pub(crate) equivalent: Option<&'static str>,
    /// Replaced lines, from 0: start, end (exclusive), and the new lines.
    edit: (usize, usize, Vec<String>),
}

impl Mutant {
    /// The mutated text.
    pub(crate) fn text(&self, lines: &[&str]) -> String {
        let (from, to, new) = &self.edit;
        let mut all: Vec<&str> = lines[..*from].to_vec();
        all.extend(new.iter().map(String::as_str));
        all.extend(&lines[*to..]);
        all.join("\n") + "\n"
    }

    /// Lines, from 0, of the mutated unit and of the one that it is swapped with.
    pub(crate) fn lines(&self) -> Range<usize> {
        self.edit.0.min(self.line - 1)..self.edit.1.max(self.line)
    }

    /// [`Mutant::exact`] without numbers: equal for similar mutants of different kernels.
    pub(crate) fn shape(&self) -> String {
        without_numbers(&self.exact())
    }

    /// Kind, change and text.
    pub(crate) fn exact(&self) -> String {
        format!("{:?} {:?}: {}", self.kind, self.change, self.what)
    }
}

/// `text` with `#` in place of each number.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c.is_ascii_digit() {
            true if out.ends_with('#') => {}
            true => out.push('#'),
            false => out.push(c),
        }
    }
    out
}

/// Every mutant of a text, in the order of its lines.
pub(crate) fn mutants(lines: &[&str]) -> Vec<Mutant> {
    let units = units(lines);
    let addresses = address_registers(&units);
    let variables = variables(lines, &units);
    let context = Context { lines, units: &units, rules: Rules::new(&units) };
    let mut all = Vec::new();
    for (number, unit) in units.iter().enumerate() {
        let Some(first) = unit.instructions.first() else { continue };
        if let Some(kind) = unit.instructions.iter().find_map(|i| kind_of(i.opcode)) {
            context.edits(number, kind, &mut all);
        } else if unit.instructions.len() == 1
            && first.is_local()
            && first.operands.first().is_some_and(|to| variables.contains(&(*to, unit.from)))
        {
            context.edits(number, Kind::Update, &mut all);
        }
        if unit.instructions.len() == 1 {
            context.guards(unit, &mut all);
            let to_address = first.operands.first().is_some_and(|to| addresses.contains(to));
            if first.opcode.starts_with("xor.b") && to_address && first.operands.len() == 3 {
                context.swizzles(unit, &mut all);
            }
        }
    }
    all
}

/// Facts of a text that edits use.
struct Context<'a> {
    lines: &'a [&'a str],
    units: &'a [Unit<'a>],
    rules: Rules<'a>,
}

impl Context<'_> {
    fn owned(&self, unit: &Unit<'_>) -> Vec<String> {
        self.lines[unit.from..unit.to].iter().map(|line| (*line).to_string()).collect()
    }

    fn what(&self, unit: &Unit<'_>) -> String {
        let wait = unit.instructions.iter().position(|i| kind_of(i.opcode) == Some(Kind::Wait));
        let line = if unit.to - unit.from > 1 { unit.from + 1 + wait.unwrap_or(0) } else { unit.from };
        self.lines[line].trim().to_string()
    }

    /// Adds the mutants that delete, duplicate, move up and move down a unit.
    fn edits(&self, number: usize, kind: Kind, all: &mut Vec<Mutant>) {
        let unit = &self.units[number];
        let what = self.what(unit);
        let around =
            |at: Option<usize>| at.and_then(|at| self.units.get(at)).map_or_else(String::new, |unit| self.what(unit));
        let placed = format!("{what} between {} and {}", around(number.checked_sub(1)), around(Some(number + 1)));
        let of = |change, what, equivalent, edit| Mutant { kind, change, line: unit.from + 1, what, equivalent, edit };
        all.push(of(Change::Delete, placed.clone(), None, (unit.from, unit.to, Vec::new())));
        let (twice, equivalent) = self.twice(number, kind);
        all.push(of(Change::Duplicate, placed, equivalent, twice));
        if let Some(before) = number.checked_sub(1).map(|at| &self.units[at]) {
            let edit = self.swapped(before, unit);
            let with = format!("{what} above {}", self.what(before));
            all.push(of(Change::Up, with, self.rules.swapped([before, unit], Moved::Second, kind), edit));
        }
        if let Some(behind) = self.units.get(number + 1) {
            let edit = self.swapped(unit, behind);
            let with = format!("{what} below {}", self.what(behind));
            all.push(of(Change::Down, with, self.rules.swapped([unit, behind], Moved::First, kind), edit));
        }
    }

    /// Edit that swaps two adjacent units; comments between them come first.
    fn swapped(&self, first: &Unit<'_>, second: &Unit<'_>) -> (usize, usize, Vec<String>) {
        let between = self.lines[first.to..second.from].iter().map(|line| (*line).to_string());
        let new = between.chain(self.owned(second)).chain(self.owned(first)).collect();
        (first.from, second.to, new)
    }

    /// Edit that duplicates a unit. An update is duplicated together with the instructions that compute its new value.
    fn twice(&self, number: usize, kind: Kind) -> ((usize, usize, Vec<String>), Option<&'static str>) {
        let unit = &self.units[number];
        let mut copy = self.owned(unit);
        let first = &unit.instructions[0];
        if unit.instructions.len() > 1 {
            // The copied loop has a new label.
            let label = self.lines[unit.from].trim().trim_end_matches(':').to_string();
            copy.iter_mut().for_each(|line| *line = line.replace(&label, &format!("{label}_again")));
        }
        if kind == Kind::Update && !first.reads(first.operands[0]) {
            return match self.computation(number) {
                Some(from) => {
                    let group = self.lines[self.units[from].from..unit.to].iter().map(|line| (*line).to_string());
                    let chooses =
                        |i: &Instruction<'_>| ["selp.", "min.", "max."].iter().any(|op| i.opcode.starts_with(op));
                    let only = from + 1 == number && self.units[from].instructions.iter().all(chooses);
                    ((unit.to, unit.to, group.collect()), only.then_some(OVERWRITTEN))
                }
                None => ((unit.to, unit.to, copy), Some(OVERWRITTEN)),
            };
        }
        ((unit.to, unit.to, copy), self.rules.twice(unit, kind))
    }

    /// First of up to four units in front of an assignment that compute its new value from the old one.
    fn computation(&self, number: usize) -> Option<usize> {
        let target = self.units[number].instructions[0].operands[0];
        let first = number.saturating_sub(4);
        (first..number)
            .rev()
            .take_while(|at| self.units[*at].instructions.iter().all(Instruction::is_local) && !self.units[*at].label)
            .find(|at| self.units[*at].instructions.iter().any(|i| i.read_registers().contains(target)))
    }

    fn guards(&self, unit: &Unit<'_>, all: &mut Vec<Mutant>) {
        let line = self.lines[unit.from];
        let Some(guard) = unit.instructions[0].guard else { return };
        let negated = match guard.strip_prefix('!') {
            Some(plain) => plain.to_string(),
            None => format!("!{guard}"),
        };
        let unused = self.rules.unused(unit, guard);
        let of = |change, to: String| Mutant {
            kind: Kind::Guard,
            change,
            line: unit.from + 1,
            what: line.trim().to_string(),
            equivalent: unused.filter(|_| change == Change::Drop),
            edit: (unit.from, unit.to, vec![to]),
        };
        all.push(of(Change::Drop, line.replacen(&format!("@{guard} "), "", 1)));
        all.push(of(Change::Negate, line.replacen(&format!("@{guard} "), &format!("@{negated} "), 1)));
    }

    fn swizzles(&self, unit: &Unit<'_>, all: &mut Vec<Mutant>) {
        let first = &unit.instructions[0];
        let width = first.opcode.trim_start_matches("xor");
        let [a, b] = [first.operands[1], first.operands[2]];
        for (change, operand, other) in [(Change::First, a, b), (Change::Second, b, a)] {
            let guard = first.guard.map(|guard| format!("@{guard} ")).unwrap_or_default();
            let new = format!("    {guard}mov{width} {}, {operand};", first.operands[0]);
            all.push(Mutant {
                kind: Kind::Swizzle,
                change,
                line: unit.from + 1,
                what: self.lines[unit.from].trim().to_string(),
                equivalent: self.rules.zero(other),
                edit: (unit.from, unit.to, vec![new]),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{APART, DISJOINT, EMPTY, LATER, MORE, REPEATED, ZERO};

    const TEXT: &str = "\
.visible .entry k(
    .param .u64 a
)
{
    .reg .pred %p<3>;
    .reg .u32 %u<9>;
    .reg .f32 %f<2>;
    .reg .u32 %stage<1>;

    mov.u32 %u0, %tid.x;
    mov.u32 %stage0, 0;
    xor.b32 %u1, %u0, 32;
    add.u32 %u2, %u1, %stage0;
    cp.async.wait_group 1;
    bar.sync 0;
    // comment
    ld.shared.f32 %f0, [%u2+4];
    setp.lt.u32 %p0, %u0, 7;
    @!%p0 st.shared.f32 [%u2], %f0;
$L0:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%u2], %u3;
    not.pred %p2, %p1;
    @%p2 bra $L0;
    add.u32 %u4, %stage0, 64;
    selp.u32 %u5, 0, %u4, %p0;
    mov.u32 %stage0, %u5;
    xor.b32 %u6, %u0, 3;
    ret;
}
";

    fn of(kind: Kind, change: Change) -> (Mutant, String) {
        let lines: Vec<&str> = TEXT.lines().collect();
        let mut found = mutants(&lines);
        found.retain(|mutant| (mutant.kind, mutant.change) == (kind, change));
        assert_eq!(found.len(), 1, "{kind:?} {change:?}: {found:?}");
        let text = found[0].text(&lines);
        assert_ne!(text, TEXT);
        (found.remove(0), text)
    }

    fn has(text: &str, part: &[&str]) -> bool {
        text.contains(&part.iter().map(|line| format!("    {line};\n")).collect::<String>())
    }

    #[test]
    fn a_barrier_is_deleted_doubled_and_moved_by_one_instruction() {
        assert!(!of(Kind::Barrier, Change::Delete).1.contains("bar.sync"));
        let (twice, text) = of(Kind::Barrier, Change::Duplicate);
        assert!(has(&text, &["bar.sync 0", "bar.sync 0"]) && twice.equivalent == Some(REPEATED));
        let (up, text) = of(Kind::Barrier, Change::Up);
        assert!(has(&text, &["bar.sync 0", "cp.async.wait_group 1"]) && up.equivalent.is_none());
        let (down, text) = of(Kind::Barrier, Change::Down);
        assert!(has(&text, &["ld.shared.f32 %f0, [%u2+4]", "bar.sync 0"]) && down.equivalent.is_none());
    }

    #[test]
    fn neighbors_that_share_nothing_change_places_without_effect() {
        let lines: Vec<&str> = TEXT.lines().collect();
        let found = mutants(&lines);
        let waits: Vec<&Mutant> = found.iter().filter(|mutant| mutant.kind == Kind::Wait).collect();
        let first = waits.iter().find(|mutant| mutant.change == Change::Up).expect("a move");
        assert_eq!(first.equivalent, Some(APART), "{first:?}");
        let (up, text) = of(Kind::Update, Change::Up);
        assert!(has(&text, &["mov.u32 %stage0, %u5", "selp.u32 %u5, 0, %u4, %p0"]) && up.equivalent.is_none());
        let (down, _) = of(Kind::Update, Change::Down);
        assert_eq!(down.equivalent, Some(APART));
    }

    /// Rule of the mutant of this kind and change of a text of three lines.
    fn rule(lines: [&str; 3], kind: Kind, change: Change) -> Option<&'static str> {
        let text = [&["{"][..], &lines, &["    ret;", "}"]].concat();
        let mut found = mutants(&text);
        found.retain(|mutant| (mutant.kind, mutant.change) == (kind, change));
        found.first().unwrap_or_else(|| panic!("{lines:?} has no {kind:?} {change:?}")).equivalent
    }

    #[test]
    fn groups_that_are_empty_and_waits_that_are_longer_do_no_harm() {
        let (commit, wait) = ("    cp.async.commit_group;", "    cp.async.wait_group 1;");
        let store = "    st.shared.u32 [%u0], %u1;";
        assert_eq!(rule([store, commit, store], Kind::Commit, Change::Duplicate), Some(EMPTY));
        assert_eq!(rule([store, commit, "$L0:"], Kind::Commit, Change::Down), Some(MORE));
        assert_eq!(rule(["$L0:", commit, store], Kind::Commit, Change::Up), None, "branches skip the commit");
        assert_eq!(rule([store, wait, "$L0:"], Kind::Wait, Change::Down), Some(MORE));
        let aligned = "    wgmma.wait_group.sync.aligned 0;";
        assert_eq!(rule([store, aligned, "$L0:"], Kind::Wait, Change::Down), None, "it is `.aligned`");
        let arrive = "    mbarrier.arrive.shared::cta.b64 %rd0, [%u2];";
        assert_eq!(rule([arrive, wait, store], Kind::Wait, Change::Up), Some(LATER));
        assert_eq!(rule([arrive, wait, store], Kind::Barrier, Change::Down), Some(LATER));
        assert_eq!(rule([wait, arrive, store], Kind::Barrier, Change::Up), None, "the arrival would precede the wait");
        assert_eq!(rule([wait, "    bar.sync 0;", store], Kind::Wait, Change::Down), None);
    }

    #[test]
    fn an_exchange_by_zero_is_none() {
        let (zero, exchange) = ("    mov.u32 %u7, 0;", "    xor.b32 %u8, %u7, %u0;");
        let lines = [zero, exchange, "    ld.shared.f32 %f1, [%u8];"];
        assert_eq!(rule(lines, Kind::Swizzle, Change::Second), Some(ZERO));
        assert_eq!(rule(lines, Kind::Swizzle, Change::First), None);
    }

    #[test]
    fn mbarriers_are_initialized_in_any_order_where_they_are_two() {
        let init = |at: &str| format!("    mbarrier.init.shared::cta.b64 [{at}], 1;");
        let store = "    st.shared.u32 [%u0], %u1;";
        let order = |a: &str, b: &str| rule([&init(a), &init(b), store], Kind::Barrier, Change::Down);
        assert_eq!(order("%u3+16", "%u3+24"), Some(DISJOINT));
        assert_eq!(order("%u3", "%u3+8"), Some(DISJOINT));
        assert_eq!(order("%u3+16", "%u4+24"), None, "the registers may differ by eight");
        assert_eq!(order("%u3+16", "%u3+16"), None);
    }

    #[test]
    fn a_loop_that_waits_is_one_thing() {
        let lines: Vec<&str> = TEXT.lines().collect();
        let found = mutants(&lines);
        let waits: Vec<&Mutant> = found.iter().filter(|mutant| mutant.what.contains("try_wait")).collect();
        assert_eq!(waits.len(), 4, "{waits:?}");
        let text = |change| waits.iter().find(|mutant| mutant.change == change).expect("a change").text(&lines);
        let deleted = text(Change::Delete);
        assert!(!deleted.contains("$L0") && !deleted.contains("try_wait") && !deleted.contains("not.pred"));
        let twice = text(Change::Duplicate);
        assert!(twice.contains("$L0_again:") && twice.contains("bra $L0_again;") && twice.contains("bra $L0;"));
    }

    #[test]
    fn an_update_is_doubled_with_what_it_is_computed_from() {
        let (twice, text) = of(Kind::Update, Change::Duplicate);
        let group = ["add.u32 %u4, %stage0, 64", "selp.u32 %u5, 0, %u4, %p0", "mov.u32 %stage0, %u5"];
        assert!(has(&text, &[group, group].concat()) && twice.equivalent.is_none());
    }

    #[test]
    fn guards_are_dropped_and_negated_and_only_addresses_are_swizzled() {
        let lines: Vec<&str> = TEXT.lines().collect();
        let guards: Vec<String> = mutants(&lines)
            .iter()
            .filter(|mutant| mutant.kind == Kind::Guard)
            .map(|mutant| mutant.text(&lines))
            .collect();
        assert_eq!(guards.len(), 2, "the guard of the loop belongs to the wait");
        assert!(has(&guards[0], &["st.shared.f32 [%u2], %f0"]) && has(&guards[1], &["@%p0 st.shared.f32 [%u2], %f0"]));
        let (_, text) = of(Kind::Swizzle, Change::First);
        assert!(has(&text, &["mov.b32 %u1, %u0"]), "{text}");
        assert!(has(&of(Kind::Swizzle, Change::Second).1, &["mov.b32 %u1, 32"]));
    }
}
