//! Statements to instructions with resolved operands.
//!
//! Every operand becomes the number of a slot: a register of the warp, or, with [`CONSTANT`] set, an entry of the
//! kernel's table of constants. So a lane reads all operands the same way, without a branch on their kind.

use super::{
    Error, Place,
    alu::{self, Function, How},
    cfg,
    module::{Constant, Meaning, Names, Register, Space, Statement, Written},
    operation::{self, Operation},
    types::Type,
};
use std::collections::HashMap;

/// Marks a slot of the table of constants.
pub(super) const CONSTANT: u32 = 1 << 31;
/// The slot of `_`: what is written there is lost.
pub(super) const SINK: u32 = CONSTANT - 1;
/// Where the shared memory of a block begins: the first KiB belongs to the system on sm_90, and an address that was
/// never computed shall not hit anything.
pub(super) const SHARED_BASE: u64 = 0x400;
/// Where a thread's local memory begins.
pub(super) const LOCAL_BASE: u64 = 0x10;

/// An instruction, ready to run.
#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub(super) operation: Operation,
    pub(super) how: How,
    /// The predicate under which it runs, and whether it is negated.
    pub(super) guard: Option<(u32, bool)>,
    /// Slots written.
    pub(super) destinations: Box<[u32]>,
    /// Slots read; an address is its base, then its coordinates.
    pub(super) sources: Box<[u32]>,
    /// What is added to the bases of the addresses, in their order.
    pub(super) offsets: [i64; 3],
    /// Where a branch may go.
    pub(super) targets: Box<[usize]>,
    /// Where lanes that part here meet again; the number of instructions where they meet at the end.
    pub(super) meeting: usize,
    /// FLOPs of a lane.
    pub(super) flops: u32,
    pub(super) place: Place,
    /// The full name, for counts and messages.
    pub(super) opcode: String,
}

/// The opcode's parts while it is understood.
#[derive(Clone, Debug)]
pub(super) struct Opcode<'a> {
    pub(super) name: &'a str,
    /// What stands behind the name and was not taken yet.
    pub(super) parts: Vec<&'a str>,
}

impl<'a> Opcode<'a> {
    fn new(full: &'a str) -> Self {
        let mut parts = full.split('.');
        let name = parts.next().unwrap_or_default();
        Self { name, parts: parts.collect() }
    }

    /// Whether `part` is there; takes it if so.
    pub(super) fn take(&mut self, part: &str) -> bool {
        let at = self.parts.iter().position(|found| *found == part);
        at.map(|at| self.parts.remove(at)).is_some()
    }

    /// Takes all of `parts` that are there.
    pub(super) fn drop_all(&mut self, parts: &[&str]) {
        self.parts.retain(|found| !parts.contains(found));
    }

    /// Takes what begins with `prefix`.
    pub(super) fn drop_prefixed(&mut self, prefixes: &[&str]) {
        self.parts.retain(|found| !prefixes.iter().any(|prefix| found.starts_with(prefix)));
    }

    /// Takes the type at the end.
    pub(super) fn ty(&mut self) -> Option<Type> {
        let ty = Type::named(self.parts.last()?)?;
        self.parts.pop();
        Some(ty)
    }
}

/// The table of constants while it grows.
#[derive(Debug, Default)]
pub(super) struct Constants {
    pub(super) all: Vec<Constant>,
    known: HashMap<Constant, u32>,
}

impl Constants {
    fn slot(&mut self, constant: Constant) -> u32 {
        *self.known.entry(constant).or_insert_with(|| {
            self.all.push(constant);
            CONSTANT | (self.all.len() as u32 - 1)
        })
    }
}

/// Special registers, each with a slot of its own at the front of the register file.
pub(super) const SPECIALS: [&str; 40] = [
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%smid",
    "%nsmid",
    "%gridid",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%dynamic_smem_size",
    "%total_smem_size",
    "%is_explicit_cluster",
    "%clusterid.x",
    "%clusterid.y",
    "%clusterid.z",
    "%nclusterid.x",
    "%nclusterid.y",
    "%nclusterid.z",
    "%cluster_ctaid.x",
    "%cluster_ctaid.y",
    "%cluster_ctaid.z",
    "%cluster_nctaid.x",
    "%cluster_nctaid.y",
    "%cluster_nctaid.z",
    "%cluster_ctarank",
    "%cluster_nctarank",
];
/// The slot of the carry that `.cc` leaves.
pub(super) const CARRY: u32 = SPECIALS.len() as u32;

/// The registers that every kernel has.
pub(super) fn special_registers() -> impl Iterator<Item = Register> {
    let names = SPECIALS.iter().copied().chain(["the carry"]);
    names.map(|name| Register { name: name.to_string(), mask: u64::MAX })
}

/// Resolves all statements and finds where diverging lanes meet.
pub(super) fn decode_all(
    statements: &[Statement<'_>],
    names: &Names<'_>,
    registers: &[Register],
    constants: &mut Constants,
    place: impl Fn(&Statement<'_>) -> Place,
) -> Result<Vec<Instruction>, Error> {
    let decoded = statements.iter().map(|statement| {
        let mut decoder =
            Decoder { statement, names, constants, instruction: blank(statement, place(statement)), address: 0 };
        decoder.decode(registers)?;
        Ok(decoder.instruction)
    });
    let mut code = decoded.collect::<Result<Vec<_>, Error>>()?;
    cfg::find_meetings(&mut code);
    Ok(code)
}

fn blank(statement: &Statement<'_>, place: Place) -> Instruction {
    Instruction {
        operation: Operation::Nothing,
        how: How::default(),
        guard: None,
        destinations: Box::default(),
        sources: Box::default(),
        offsets: [0; 3],
        targets: Box::default(),
        meeting: usize::MAX,
        flops: 0,
        place,
        opcode: statement.opcode.to_string(),
    }
}

struct Decoder<'d, 'a> {
    statement: &'d Statement<'a>,
    names: &'d Names<'a>,
    constants: &'d mut Constants,
    instruction: Instruction,
    /// How many addresses were met.
    address: usize,
}

impl Decoder<'_, '_> {
    fn syntax(&self, message: String) -> Error {
        Error::Syntax { line: self.statement.line, message }
    }

    fn unknown(&self) -> Error {
        let place = self.instruction.place.clone();
        Error::UnknownInstruction { place, instruction: self.statement.opcode.to_string() }
    }

    fn decode(&mut self, registers: &[Register]) -> Result<(), Error> {
        if let Some((name, negated)) = self.statement.guard {
            self.instruction.guard = Some((self.register(name)?, negated));
        }
        let mut opcode = Opcode::new(self.statement.opcode);
        if opcode.name == "mov" {
            return self.decode_move(&mut opcode, registers);
        }
        let shape = match alu::find(&mut opcode) {
            Some(form) => {
                self.instruction.how = form.how;
                self.instruction.flops = form.flops;
                self.instruction.operation = match form.run {
                    Function::One(run) => Operation::One(run),
                    Function::Two(run) => Operation::Two(run),
                };
                ["D", "DS", "DSS", "DSSS", "DSSSS"][form.sources].to_string()
            }
            None => {
                opcode = Opcode::new(self.statement.opcode);
                let (operation, shape) = operation::find(&mut opcode).ok_or_else(|| self.unknown())?;
                self.instruction.operation = operation;
                shape
            }
        };
        if !opcode.parts.is_empty() {
            return Err(self.unknown());
        }
        if matches!(self.instruction.operation, Operation::Two(_)) && !opcode.name.starts_with("setp") {
            return self.decode_carry(&opcode);
        }
        self.operands(&shape)?;
        self.check_lists()
    }

    /// A load or store moves as many values as its vector says; other lists have their lengths too.
    fn check_lists(&self) -> Result<(), Error> {
        let i = &self.instruction;
        let opcode = self.statement.opcode;
        let (moved, wanted) = match &i.operation {
            Operation::Load(access) => (i.destinations.len(), access.vector),
            Operation::Store(access) => ((i.sources.len() - 1).min(access.vector), access.vector),
            operation if operation.fits(i.destinations.len(), i.sources.len()) => return Ok(()),
            _ => {
                let (to, from) = (i.destinations.len(), i.sources.len());
                return Err(self.syntax(format!("`{opcode}` cannot write {to} and read {from} registers")));
            }
        };
        if moved == wanted {
            return Ok(());
        }
        Err(self.syntax(format!("`{opcode}` moves {wanted} values and names {moved}")))
    }

    /// Matches the operands with `shape`: D writes, S reads, A is an address, L a label; what stands behind `?` may be
    /// missing.
    fn operands(&mut self, shape: &str) -> Result<(), Error> {
        let (required, optional) = shape.split_once('?').unwrap_or((shape, ""));
        let found = self.statement.operands.len();
        if found < required.len() || found > required.len() + optional.len() {
            let (opcode, wanted) = (self.statement.opcode, required.len());
            return Err(self.syntax(format!("`{opcode}` has {found} operands, expected {wanted}")));
        }
        let (mut destinations, mut sources) = (Vec::new(), Vec::new());
        for (operand, kind) in self.statement.operands.iter().zip(required.chars().chain(optional.chars())) {
            match kind {
                'D' => self.destination(operand, &mut destinations)?,
                'S' => self.source(operand, &mut sources)?,
                'A' => self.address(operand, &mut sources)?,
                _ => self.label(operand)?,
            }
        }
        self.instruction.destinations = destinations.into();
        self.instruction.sources = sources.into();
        Ok(())
    }

    fn register(&self, name: &str) -> Result<u32, Error> {
        match self.names.find(self.statement.scope, name) {
            Some(Meaning::Register(slot)) => Ok(slot),
            _ => {
                let opcode = self.statement.opcode;
                Err(self.syntax(format!("`{opcode}` names the register {name}, which is not declared")))
            }
        }
    }

    fn destination(&self, operand: &Written<'_>, slots: &mut Vec<u32>) -> Result<(), Error> {
        match operand {
            Written::Name("_") => slots.push(SINK),
            Written::Name(name) => slots.push(self.register(name)?),
            Written::Pair(first, second) => {
                for name in [first, second] {
                    slots.push(if *name == "_" { SINK } else { self.register(name)? });
                }
            }
            Written::List(list) => list.iter().try_for_each(|operand| self.destination(operand, slots))?,
            other => return Err(self.syntax(format!("`{}` cannot write to {other:?}", self.statement.opcode))),
        }
        Ok(())
    }

    fn source(&mut self, operand: &Written<'_>, slots: &mut Vec<u32>) -> Result<(), Error> {
        match operand {
            Written::List(list) => return list.iter().try_for_each(|operand| self.source(operand, slots)),
            Written::Not(name) => {
                self.instruction.how.negated = true;
                slots.push(self.register(name)?);
            }
            Written::Number(bits) => slots.push(self.constants.slot(Constant::Bits(*bits))),
            Written::Name(name) => slots.push(self.named(name, 0)?),
            Written::Sum(name, offset) => slots.push(self.named(name, *offset)?),
            other => return Err(self.syntax(format!("`{}` cannot read {other:?}", self.statement.opcode))),
        }
        Ok(())
    }

    /// The slot of a register, a special register, or of a variable's address plus `offset`.
    fn named(&mut self, name: &str, offset: i64) -> Result<u32, Error> {
        if let Some(slot) = SPECIALS.iter().position(|special| *special == name) {
            return Ok(slot as u32);
        }
        if let Some(short) = ["%tid", "%ntid", "%ctaid", "%nctaid"].iter().position(|short| *short == name) {
            return Ok(3 * short as u32);
        }
        if name == "WARP_SZ" {
            return Ok(self.constants.slot(Constant::Bits(32)));
        }
        let constant = match self.names.find(self.statement.scope, name) {
            Some(Meaning::Register(slot)) if offset == 0 => return Ok(slot),
            Some(Meaning::Variable(space, at)) => {
                Constant::Bits(base(space).wrapping_add(at).wrapping_add_signed(offset))
            }
            Some(Meaning::Global(index)) => Constant::Global(index, offset),
            _ => return self.register(name),
        };
        Ok(self.constants.slot(constant))
    }

    fn address(&mut self, operand: &Written<'_>, slots: &mut Vec<u32>) -> Result<(), Error> {
        let Written::Address(written, offset, rest) = operand else {
            return Err(self.syntax(format!("`{}` wants an address, found {operand:?}", self.statement.opcode)));
        };
        self.instruction.offsets[self.address] = *offset;
        self.address += 1;
        if let (true, Written::Name(name)) = (self.statement.opcode.starts_with("ld.param"), &**written)
            && self.names.find(self.statement.scope, name).is_none()
        {
            return Err(self.syntax(format!("there is no parameter {name}")));
        }
        self.source(written, slots)?;
        rest.iter().try_for_each(|operand| self.source(operand, slots))
    }

    fn label(&mut self, operand: &Written<'_>) -> Result<(), Error> {
        let Written::Name(name) = operand else {
            return Err(self.syntax(format!("`{}` wants a label, found {operand:?}", self.statement.opcode)));
        };
        let scope = self.statement.scope;
        let names = self.names.targets(scope, name).unwrap_or_else(|| vec![name]);
        let found = names.iter().map(|name| {
            let label = self.names.label(scope, name);
            label.ok_or_else(|| self.syntax(format!("the label {name} stands nowhere")))
        });
        self.instruction.targets = found.collect::<Result<Vec<_>, _>>()?.into();
        Ok(())
    }

    /// `mov` copies, packs and unpacks.
    fn decode_move(&mut self, opcode: &mut Opcode<'_>, registers: &[Register]) -> Result<(), Error> {
        let Some(ty) = opcode.ty().filter(|_| opcode.parts.is_empty()) else { return Err(self.unknown()) };
        let operation = match self.statement.operands.as_slice() {
            [_, Written::Name("%clock" | "%clock64" | "%clock_hi" | "%globaltimer" | "%globaltimer_lo")] => {
                let [destination, _] = self.statement.operands.as_slice() else { return Err(self.unknown()) };
                let mut slots = Vec::new();
                self.destination(destination, &mut slots)?;
                self.instruction.destinations = slots.into();
                self.instruction.operation = Operation::Clock;
                return Ok(());
            }
            [Written::List(parts), _] => Operation::Unpack(ty.bits() / parts.len().max(1) as u32),
            [_, Written::List(parts)] => Operation::Pack(ty.bits() / parts.len().max(1) as u32),
            _ => Operation::Move,
        };
        self.instruction.operation = operation;
        self.operands("DS")?;
        // A narrow register in a wide move would silently lose bits.
        if let (Operation::Move, Some(register)) = (operation, registers.get(self.instruction.destinations[0] as usize))
            && register.mask.count_ones() < ty.bits()
        {
            return Err(self.syntax(format!("`{}` does not fit the register {}", self.statement.opcode, register.name)));
        }
        Ok(())
    }

    /// Forms with a carry read and write the register that no text names.
    fn decode_carry(&mut self, opcode: &Opcode<'_>) -> Result<(), Error> {
        let named = if opcode.name.starts_with("mad") { 3 } else { 2 };
        self.operands(&"DSSSS"[..=named])?;
        let takes = opcode.name.ends_with('c');
        let leaves = self.statement.opcode.contains(".cc");
        let mut sources = self.instruction.sources.to_vec();
        let mut destinations = self.instruction.destinations.to_vec();
        sources.extend(takes.then_some(CARRY));
        destinations.push(if leaves { CARRY } else { SINK });
        (self.instruction.sources, self.instruction.destinations) = (sources.into(), destinations.into());
        Ok(())
    }
}

/// Where addresses of a space begin.
fn base(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED_BASE,
        Space::Local => LOCAL_BASE,
        Space::Param | Space::Global | Space::Const => 0,
    }
}
