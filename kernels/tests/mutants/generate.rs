//! Mutants of a PTX text: every way in which its synchronisation can be wrong by one edit.
//!
//! | what | how it is found | edits |
//! |---|---|---|
//! | barrier | `bar`, `barrier`, `mbarrier` but for waits | delete, duplicate, move up and down by one instruction |
//! | wait | `…wait_group`, `…wait_all`, the loop around `mbarrier.try_wait` | the same |
//! | commit | `…commit_group` | the same |
//! | fence | `fence`, `membar`, `wgmma.fence` | the same |
//! | expect_tx | `mbarrier.….expect_tx` | the same |
//! | guard | `@p` and `@!p` | drop, negate |
//! | swizzle | `xor` whose result becomes part of an address | replace by its first or second operand |
//! | update | assignment to an integer that the text assigns more than once: stages, phases, counters, pointers | delete, duplicate, move up and down |
//!
//! Everything is a function of the text. Some mutants are right by construction; [`Mutant::equivalent`] says by which
//! rule, and each rule is an argument about any text, not about a kernel:
//!
//! * `REPEATED`: who has waited, fenced or met the others does it once more, and nothing happened in between. (A barrier
//!   at which some only arrive, or one that counts arrivals, is no such thing.)
//! * `APART`: two neighbours change places that share no register, of which one touches nothing but registers,
//!   parameters and memory that is constant during a launch. (Registers of `wgmma` count as shared with its fences and waits.)
//! * `OVERWRITTEN`: an assignment that does not read its destination, or that chooses between it and something else, is
//!   done twice.
//! * `UNUSED`: what an instruction without its guard computes in registers where the guard does not hold is read by nobody
//!   but instructions with the same guard.

use std::collections::{BTreeMap, BTreeSet};

/// What is mutated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Barrier,
    Wait,
    Commit,
    Fence,
    Expect,
    Guard,
    Swizzle,
    Update,
}

/// How.
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

/// One edit of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mutant {
    pub(crate) kind: Kind,
    pub(crate) change: Change,
    /// Line of the text, from 1, of what is mutated.
    pub(crate) line: usize,
    /// What stands there, and for a move what it changes places with.
    pub(crate) what: String,
    /// The rule by which the mutant does what the text does.
    pub(crate) equivalent: Option<&'static str>,
    /// Lines from the first to before the second, from 0, become these.
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

    /// The same for mutants of different kernels that are alike: what, how, and the instructions without registers.
    pub(crate) fn shape(&self) -> String {
        without_numbers(&self.exact())
    }

    /// What, how and where.
    pub(crate) fn exact(&self) -> String {
        format!("{:?} {:?}: {}", self.kind, self.change, self.what)
    }
}

/// A text with `#` for numbers.
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

/// An instruction.
#[derive(Clone, Debug)]
struct Instruction<'a> {
    guard: Option<&'a str>,
    opcode: &'a str,
    operands: Vec<&'a str>,
}

/// Operands at commas that stand in no bracket.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut all) = (0, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                all.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    all.push(text[start..].trim());
    all.retain(|operand| !operand.is_empty());
    all
}

impl<'a> Instruction<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let text = line.trim().strip_suffix(';')?;
        if text.starts_with(['.', '/', '$']) {
            return None;
        }
        let (guard, text) = match text.strip_prefix('@') {
            Some(rest) => {
                let (guard, rest) = rest.split_once(' ')?;
                (Some(guard), rest.trim_start())
            }
            None => (None, text),
        };
        let (opcode, operands) = text.split_once(' ').unwrap_or((text, ""));
        Some(Self { guard, opcode, operands: split(operands) })
    }

    /// Whether nobody but this thread's registers is touched, and memory only where nobody writes.
    fn is_local(&self) -> bool {
        const LOCAL: [&str; 34] = [
            "mov", "add", "sub", "mul", "mad", "fma", "and", "or", "xor", "not", "shl", "shr", "shf", "setp", "selp",
            "cvt", "cvta", "min", "max", "neg", "abs", "lop3", "prmt", "div", "rem", "ex2", "lg2", "rcp", "rsqrt",
            "sqrt", "tanh", "copysign", "bfe", "bfi",
        ];
        let head = self.opcode.split('.').next().unwrap_or("");
        let constant = self.opcode.starts_with("ld.param") || self.opcode.starts_with("ld.global.nc");
        LOCAL.contains(&head) || constant || self.opcode.starts_with("mma.sync")
    }

    fn is_branch(&self) -> bool {
        ["bra", "brx", "ret", "exit", "trap"].contains(&self.opcode.split('.').next().unwrap_or(""))
    }

    /// Registers that are written, as far as is known of `opcode`.
    fn written(&self) -> BTreeSet<&'a str> {
        let none = ["st.", "red.", "bar.", "barrier.", "cp.", "fence", "membar", "bra", "wgmma.fence", "mbarrier.init"];
        if none.iter().any(|head| self.opcode.starts_with(head)) {
            return BTreeSet::new();
        }
        self.operands.first().map(|first| registers(first)).unwrap_or_default()
    }

    /// Registers that are read.
    fn read_registers(&self) -> BTreeSet<&'a str> {
        let skip = usize::from(!self.written().is_empty());
        let mut all: BTreeSet<&str> = self.operands.iter().skip(skip).flat_map(|operand| registers(operand)).collect();
        all.extend(self.guard.map(|guard| guard.trim_start_matches('!')));
        // What a guard may leave as it was is read too.
        if self.guard.is_some() {
            all.extend(self.written());
        }
        all
    }

    /// Whether the two may change places as far as registers go.
    fn shares_registers(&self, other: &Instruction<'_>) -> bool {
        let meet = |a: &BTreeSet<&str>, b: &BTreeSet<&str>| a.intersection(b).next().is_some();
        let (w, r) = (self.written(), self.read_registers());
        let (ow, or) = (other.written(), other.read_registers());
        meet(&w, &or) || meet(&w, &ow) || meet(&r, &ow)
    }
}

/// Names of registers in an operand.
fn registers(operand: &str) -> BTreeSet<&str> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || "%_$".contains(c));
    // `%tid.x` and its like are read-only.
    operand.split(word).filter(|name| name.starts_with('%') && name.ends_with(|c: char| c.is_ascii_digit())).collect()
}

/// A stretch of lines that is edited as one: an instruction, or a loop that waits.
#[derive(Clone, Debug)]
struct Unit<'a> {
    from: usize,
    to: usize,
    instructions: Vec<Instruction<'a>>,
    label: bool,
}

fn kind_of(opcode: &str) -> Option<Kind> {
    let has = |part: &str| opcode.contains(part);
    Some(match opcode {
        _ if has("wait_group") || has("wait_all") || has("try_wait") || has("test_wait") => Kind::Wait,
        _ if has("commit_group") => Kind::Commit,
        _ if opcode.starts_with("fence") || opcode.starts_with("membar") || opcode.starts_with("wgmma.fence") => {
            Kind::Fence
        }
        _ if has("expect_tx") => Kind::Expect,
        _ if opcode.starts_with("bar") || opcode.starts_with("mbarrier") => Kind::Barrier,
        _ => return None,
    })
}

const REPEATED: &str = "REPEATED";
const APART: &str = "APART";
const OVERWRITTEN: &str = "OVERWRITTEN";
const UNUSED: &str = "UNUSED";

/// Every mutant of a text, in the order of its lines.
pub(crate) fn mutants(lines: &[&str]) -> Vec<Mutant> {
    let units = units(lines);
    let addresses = address_registers(&units);
    let variables = variables(lines, &units);
    let wgmma: BTreeSet<&str> = units.iter().flat_map(|unit| &unit.instructions).fold(BTreeSet::new(), |mut all, i| {
        if i.opcode.starts_with("wgmma.mma_async") {
            all.extend(
                i.operands.iter().filter(|operand| operand.starts_with('{')).flat_map(|operand| registers(operand)),
            );
        }
        all
    });
    let all_of = || units.iter().flat_map(|unit| &unit.instructions);
    let arrives = all_of().any(|i| i.opcode.starts_with("bar") && i.opcode.contains("arrive"));
    let context = Context { lines, units: &units, wgmma, arrives };
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

/// The body of the text in units: instructions, labels, and loops that wait as one.
fn units<'a>(lines: &[&'a str]) -> Vec<Unit<'a>> {
    let begin = lines.iter().position(|line| line.trim() == "{").map_or(0, |at| at + 1);
    let mut all: Vec<Unit<'a>> = Vec::new();
    for (at, line) in lines.iter().enumerate().skip(begin) {
        if let Some(instruction) = Instruction::read(line) {
            let loops = instruction.opcode == "bra";
            all.push(Unit { from: at, to: at + 1, instructions: vec![instruction], label: false });
            if loops {
                join_wait(lines, &mut all);
            }
        } else if line.trim().ends_with(':') {
            all.push(Unit { from: at, to: at + 1, instructions: Vec::new(), label: true });
        }
    }
    all
}

/// Makes one unit of the last ones if they are a label, a wait for an mbarrier, and a branch back.
fn join_wait(lines: &[&str], all: &mut Vec<Unit<'_>>) {
    let Some(target) = all.last().and_then(|unit| unit.instructions[0].operands.first().copied()) else { return };
    let head =
        all.iter().rev().take(5).position(|unit| unit.label && lines[unit.from].trim().trim_end_matches(':') == target);
    let Some(head) = head.map(|behind| all.len() - 1 - behind) else { return };
    if !all[head..].iter().any(|unit| unit.instructions.iter().any(|i| kind_of(i.opcode) == Some(Kind::Wait))) {
        return;
    }
    let parts = all.split_off(head);
    let (from, to) = (parts[0].from, parts[parts.len() - 1].to);
    let instructions = parts.into_iter().flat_map(|unit| unit.instructions).collect();
    all.push(Unit { from, to, instructions, label: false });
}

/// Registers that are part of an address, or make one up.
fn address_registers<'a>(units: &[Unit<'a>]) -> BTreeSet<&'a str> {
    let instructions = || units.iter().flat_map(|unit| &unit.instructions);
    let mut all: BTreeSet<&str> = instructions()
        .flat_map(|i| {
            i.operands.iter().filter(|operand| operand.starts_with('[')).flat_map(|operand| registers(operand))
        })
        .collect();
    loop {
        let before = all.len();
        for i in instructions().filter(|i| i.is_local() && !i.opcode.starts_with("mma")) {
            if i.written().iter().any(|register| all.contains(register)) {
                all.extend(i.read_registers());
            }
        }
        if all.len() == before {
            return all;
        }
    }
}

/// Integers that are assigned more than once, each with the lines of its assignments but for the first.
fn variables<'a>(lines: &[&'a str], units: &[Unit<'a>]) -> BTreeSet<(&'a str, usize)> {
    let mut integers: BTreeMap<&str, bool> = BTreeMap::new();
    for line in lines {
        let words: Vec<&str> = line.trim().trim_end_matches(';').split_whitespace().collect();
        if let [".reg", kind, name] = words[..] {
            let name = name.split('<').next().unwrap_or(name);
            integers.insert(name, [".u", ".s", ".b"].iter().any(|prefix| kind.starts_with(prefix)));
        }
    }
    let is_integer = |register: &str| {
        integers.get(register.trim_end_matches(|c: char| c.is_ascii_digit())).copied().unwrap_or(false)
    };
    let mut seen = BTreeSet::new();
    let mut all = BTreeSet::new();
    for unit in units.iter().filter(|unit| unit.instructions.len() == 1) {
        let instruction = &unit.instructions[0];
        let Some(to) = instruction.operands.first().filter(|to| instruction.written().contains(**to)) else { continue };
        if is_integer(to) && !seen.insert(*to) {
            all.insert((*to, unit.from));
        }
    }
    all
}

/// What edits of a text need to know of it.
struct Context<'a> {
    lines: &'a [&'a str],
    units: &'a [Unit<'a>],
    /// Registers of `wgmma`.
    wgmma: BTreeSet<&'a str>,
    /// Whether some barrier counts arrivals of threads that do not wait.
    arrives: bool,
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

    /// Delete, duplicate, move up, move down.
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
            all.push(of(Change::Up, with, self.apart(unit, before, kind), edit));
        }
        if let Some(behind) = self.units.get(number + 1) {
            let edit = self.swapped(unit, behind);
            let with = format!("{what} below {}", self.what(behind));
            all.push(of(Change::Down, with, self.apart(unit, behind, kind), edit));
        }
    }

    /// Two neighbours in the other order, with the comments between them in front.
    fn swapped(&self, first: &Unit<'_>, second: &Unit<'_>) -> (usize, usize, Vec<String>) {
        let between = self.lines[first.to..second.from].iter().map(|line| (*line).to_string());
        let new = between.chain(self.owned(second)).chain(self.owned(first)).collect();
        (first.from, second.to, new)
    }

    /// The unit once more behind itself. An update that comes out of the instructions before it is computed again.
    fn twice(&self, number: usize, kind: Kind) -> ((usize, usize, Vec<String>), Option<&'static str>) {
        let unit = &self.units[number];
        let mut copy = self.owned(unit);
        let plain = unit.instructions.len() == 1 && unit.instructions[0].guard.is_none();
        let first = &unit.instructions[0];
        let equivalent = match kind {
            Kind::Wait if unit.instructions.len() == 1 => Some(REPEATED),
            Kind::Fence => Some(REPEATED),
            Kind::Barrier if plain && first.opcode.starts_with("bar.warp") => Some(REPEATED),
            Kind::Barrier if plain && !self.arrives && first.opcode.starts_with("bar") => Some(REPEATED),
            _ => None,
        };
        if unit.instructions.len() > 1 {
            // A loop needs a label of its own.
            let label = self.lines[unit.from].trim().trim_end_matches(':').to_string();
            copy.iter_mut().for_each(|line| *line = line.replace(&label, &format!("{label}_again")));
        }
        if kind == Kind::Update && !first.read_registers().contains(first.operands[0]) {
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
        ((unit.to, unit.to, copy), equivalent)
    }

    /// The first of the few instructions in front of an assignment that make its new value out of the old one.
    fn computation(&self, number: usize) -> Option<usize> {
        let target = self.units[number].instructions[0].operands[0];
        let first = number.saturating_sub(4);
        (first..number)
            .rev()
            .take_while(|at| self.units[*at].instructions.iter().all(Instruction::is_local) && !self.units[*at].label)
            .find(|at| self.units[*at].instructions.iter().any(|i| i.read_registers().contains(target)))
    }

    /// The rule by which a unit and its neighbour may change places.
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

    /// Whether nobody without the same guard reads what a guarded instruction computes in registers.
    fn is_unused(&self, unit: &Unit<'_>, guard: &str) -> bool {
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
        first.is_local()
            && !first.opcode.starts_with("ld.")
            && !written.is_empty()
            && once
            && instructions().filter(|i| reads(i)).all(|i| i.guard == Some(guard))
    }

    fn guards(&self, unit: &Unit<'_>, all: &mut Vec<Mutant>) {
        let line = self.lines[unit.from];
        let Some(guard) = unit.instructions[0].guard else { return };
        let negated = match guard.strip_prefix('!') {
            Some(plain) => plain.to_string(),
            None => format!("!{guard}"),
        };
        let unused = self.is_unused(unit, guard).then_some(UNUSED);
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
        for (change, operand) in [(Change::First, first.operands[1]), (Change::Second, first.operands[2])] {
            let guard = first.guard.map(|guard| format!("@{guard} ")).unwrap_or_default();
            let new = format!("    {guard}mov{width} {}, {operand};", first.operands[0]);
            all.push(Mutant {
                kind: Kind::Swizzle,
                change,
                line: unit.from + 1,
                what: self.lines[unit.from].trim().to_string(),
                equivalent: None,
                edit: (unit.from, unit.to, vec![new]),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn neighbours_that_share_nothing_change_places_without_effect() {
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
        assert_eq!(guards.len(), 2, "that of the loop is part of the wait");
        assert!(has(&guards[0], &["st.shared.f32 [%u2], %f0"]) && has(&guards[1], &["@%p0 st.shared.f32 [%u2], %f0"]));
        let (_, text) = of(Kind::Swizzle, Change::First);
        assert!(has(&text, &["mov.b32 %u1, %u0"]), "{text}");
        assert!(has(&of(Kind::Swizzle, Change::Second).1, &["mov.b32 %u1, 32"]));
    }
}
