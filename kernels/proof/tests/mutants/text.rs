//! Parser of a PTX text for mutation: instructions, the registers that they read and write, and units of edits.

use std::collections::{BTreeMap, BTreeSet};

/// Kind of a mutated unit.
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

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction<'a> {
    pub(crate) guard: Option<&'a str>,
    pub(crate) opcode: &'a str,
    pub(crate) operands: Vec<&'a str>,
}

/// Splits operands at commas outside of brackets.
pub(crate) fn split(text: &str) -> Vec<&str> {
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
    pub(crate) fn read(line: &'a str) -> Option<Self> {
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

    /// True if the instruction writes only this thread's registers, and reads only memory that is constant during a launch.
    pub(crate) fn is_local(&self) -> bool {
        const LOCAL: [&str; 34] = [
            "mov", "add", "sub", "mul", "mad", "fma", "and", "or", "xor", "not", "shl", "shr", "shf", "setp", "selp",
            "cvt", "cvta", "min", "max", "neg", "abs", "lop3", "prmt", "div", "rem", "ex2", "lg2", "rcp", "rsqrt",
            "sqrt", "tanh", "copysign", "bfe", "bfi",
        ];
        let head = self.opcode.split('.').next().unwrap_or("");
        let constant = self.opcode.starts_with("ld.param") || self.opcode.starts_with("ld.global.nc");
        LOCAL.contains(&head) || constant || self.opcode.starts_with("mma.sync")
    }

    pub(crate) fn is_branch(&self) -> bool {
        ["bra", "brx", "ret", "exit", "trap"].contains(&self.opcode.split('.').next().unwrap_or(""))
    }

    /// Registers that are written; for an unknown opcode, those of the first operand.
    pub(crate) fn written(&self) -> BTreeSet<&'a str> {
        let none = ["st.", "red.", "bar.", "barrier.", "cp.", "fence", "membar", "bra", "wgmma.fence", "mbarrier.init"];
        if none.iter().any(|head| self.opcode.starts_with(head)) {
            return BTreeSet::new();
        }
        self.operands.first().map(|first| registers(first)).unwrap_or_default()
    }

    /// Registers that are read.
    pub(crate) fn read_registers(&self) -> BTreeSet<&'a str> {
        let skip = usize::from(!self.written().is_empty());
        let mut all: BTreeSet<&str> = self.operands.iter().skip(skip).flat_map(|operand| registers(operand)).collect();
        all.extend(self.guard.map(|guard| guard.trim_start_matches('!')));
        // A guarded instruction may keep the old value of its destination, so it reads it.
        if self.guard.is_some() {
            all.extend(self.written());
        }
        all
    }

    /// True if a source operand or the guard contains `register`.
    pub(crate) fn reads(&self, register: &str) -> bool {
        let sources = self.operands.iter().skip(usize::from(!self.written().is_empty()));
        sources.flat_map(|operand| registers(operand)).any(|name| name == register)
            || self.guard.is_some_and(|guard| guard.trim_start_matches('!') == register)
    }

    /// True if one instruction writes a register that the other reads or writes.
    pub(crate) fn shares_registers(&self, other: &Instruction<'_>) -> bool {
        let meet = |a: &BTreeSet<&str>, b: &BTreeSet<&str>| a.intersection(b).next().is_some();
        let (w, r) = (self.written(), self.read_registers());
        let (ow, or) = (other.written(), other.read_registers());
        meet(&w, &or) || meet(&w, &ow) || meet(&r, &ow)
    }
}

/// Names of registers in an operand.
pub(crate) fn registers(operand: &str) -> BTreeSet<&str> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || "%_$".contains(c));
    // Special registers such as `%tid.x` are read-only and are left out.
    operand.split(word).filter(|name| name.starts_with('%') && name.ends_with(|c: char| c.is_ascii_digit())).collect()
}

/// Lines that are edited together: an instruction, a label, or a wait loop.
#[derive(Clone, Debug)]
pub(crate) struct Unit<'a> {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) instructions: Vec<Instruction<'a>>,
    pub(crate) label: bool,
}

pub(crate) fn kind_of(opcode: &str) -> Option<Kind> {
    let has = |part: &str| opcode.contains(part);
    Some(match opcode {
        _ if has("wait_group") || has("wait_all") || has("try_wait") || has("test_wait") => Kind::Wait,
        "griddepcontrol.wait" => Kind::Wait,
        _ if has("commit_group") => Kind::Commit,
        _ if opcode.starts_with("fence") || opcode.starts_with("membar") || opcode.starts_with("wgmma.fence") => {
            Kind::Fence
        }
        _ if has("expect_tx") => Kind::Expect,
        _ if opcode.starts_with("bar") || opcode.starts_with("mbarrier") => Kind::Barrier,
        _ => return None,
    })
}

/// Units of the body: instructions, labels and wait loops.
pub(crate) fn units<'a>(lines: &[&'a str]) -> Vec<Unit<'a>> {
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

/// Joins the last units into one if they are a label, a wait for an mbarrier, and a branch back.
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

/// Registers that occur in an address, or from which one is computed.
pub(crate) fn address_registers<'a>(units: &[Unit<'a>]) -> BTreeSet<&'a str> {
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

/// Integers that are assigned more than once, with the line of each assignment except the first.
pub(crate) fn variables<'a>(lines: &[&'a str], units: &[Unit<'a>]) -> BTreeSet<(&'a str, usize)> {
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
