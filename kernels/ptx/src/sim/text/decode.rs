//! Statements to instructions with resolved operands.

use super::{Constant, Names, Operand, Registers, Statement, Symbol, cfg};
use crate::sim::{
    Error,
    isa::{
        Async, CARRY, CONSTANT, Function, Instruction, Opcode, Operation, SINK, SPECIALS, Source, Type, alu, base,
        table,
    },
    limits::{Limits, at_most},
};
use std::{collections::HashMap, sync::Arc};

/// The table of constants while it grows.
#[derive(Debug, Default)]
pub(crate) struct Constants {
    pub(crate) all: Vec<Constant>,
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

/// The instructions of an entry while they are decoded.
#[derive(Debug)]
pub(crate) struct Decoded<'d, 'a> {
    names: &'d Names<'a>,
    registers: &'d Registers,
    limits: Limits,
    constants: Constants,
    code: Vec<Instruction>,
    opcodes: HashMap<&'a str, Arc<str>>,
    files: Vec<Arc<str>>,
    file_numbers: HashMap<u64, u32>,
    /// Resolved tables of indexed branches, by scope and name.
    tables: HashMap<(u32, &'a str), Arc<[u32]>>,
    branch_targets: usize,
}

impl<'d, 'a> Decoded<'d, 'a> {
    /// Room for `statements` instructions.
    pub(crate) fn new(names: &'d Names<'a>, registers: &'d Registers, statements: usize, limits: Limits) -> Self {
        Decoded {
            names,
            registers,
            limits,
            constants: Constants::default(),
            code: Vec::with_capacity(statements),
            opcodes: HashMap::new(),
            files: Vec::new(),
            file_numbers: HashMap::new(),
            tables: HashMap::new(),
            branch_targets: 0,
        }
    }

    /// Decodes the next instruction.
    pub(crate) fn add(&mut self, statement: Statement<'a>) -> Result<(), Error> {
        let opcode = self.opcodes.entry(statement.opcode).or_insert_with(|| statement.opcode.into()).clone();
        let instruction = Instruction {
            reconvergence: usize::MAX,
            line: statement.line,
            source: statement.source.and_then(|(file, line)| Some(Source { file: self.file(file)?, line })),
            opcode,
            ..Instruction::default()
        };
        let mut decoder = Decoder { statement: &statement, all: self, instruction, address: 0, lengths: Vec::new() };
        decoder.decode()?;
        let instruction = decoder.instruction;
        self.code.push(instruction);
        Ok(())
    }

    /// The position in `files` of the file that the text gives this number.
    fn file(&mut self, number: u64) -> Option<u32> {
        if let Some(known) = self.file_numbers.get(&number) {
            return Some(*known);
        }
        let name = self.names.module.files.get(&number)?;
        let position = self.files.len() as u32;
        self.files.push(name.clone());
        self.file_numbers.insert(number, position);
        Some(position)
    }

    /// The instructions, their constants and their source files.
    pub(crate) fn finish(mut self) -> (Vec<Instruction>, Vec<Constant>, Vec<Arc<str>>) {
        cfg::find_reconvergence(&mut self.code);
        (self.code, self.constants.all, self.files)
    }
}

struct Decoder<'s, 'm, 'd, 'a> {
    statement: &'s Statement<'a>,
    all: &'m mut Decoded<'d, 'a>,
    instruction: Instruction,
    /// Number of addresses so far.
    address: usize,
    /// Slots of each operand.
    lengths: Vec<usize>,
}

impl<'a> Decoder<'_, '_, '_, 'a> {
    fn syntax(&self, message: String) -> Error {
        Error::Syntax { line: self.statement.line, message }
    }

    fn unknown(&self) -> Error {
        let place = self.instruction.place(&self.all.files);
        Error::UnknownInstruction { place, instruction: self.statement.opcode.to_string() }
    }

    fn decode(&mut self) -> Result<(), Error> {
        if let Some((name, negated)) = self.statement.guard {
            self.instruction.guard = Some((self.register(name)?, negated));
        }
        let mut opcode = Opcode::new(self.statement.opcode);
        if opcode.name == "mov" {
            return self.decode_move(&mut opcode);
        }
        let shape = match alu::find(&mut opcode) {
            Some(form) => {
                self.instruction.modifiers = form.modifiers;
                self.instruction.flops = form.flops;
                self.instruction.operation = match form.run {
                    Function::One(run) => Operation::One(run),
                    Function::Two(run) => Operation::Two(run),
                };
                ["D", "DS", "DSS", "DSSS", "DSSSS"][form.sources]
            }
            None => {
                opcode = Opcode::new(self.statement.opcode);
                let (operation, shape) = table::find(&mut opcode).ok_or_else(|| self.unknown())?;
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
        self.operands(shape)?;
        self.check_lists()
    }

    /// Checks the lengths of lists: a load or store moves as many values as its vector has.
    fn check_lists(&self) -> Result<(), Error> {
        let (i, opcode, lengths) = (&self.instruction, self.statement.opcode, &self.lengths);
        let (to, from) = (i.destinations.len(), i.sources.len());
        let (moved, wanted) = match &i.operation {
            Operation::Load(access) => (&lengths[..1], access.vector),
            Operation::Store(access) => (&lengths[1..2], access.vector),
            Operation::Atomic(atomic) => {
                let data = 1 + usize::from(atomic.returns);
                if atomic.returns && lengths[0] != atomic.access.vector {
                    (&lengths[..1], atomic.access.vector)
                } else {
                    (&lengths[data..=data], atomic.access.vector)
                }
            }
            operation if operation.fits(to, from, lengths) && self.writes_all() => return Ok(()),
            _ => return Err(self.syntax(format!("`{opcode}` cannot write {to} and read {from} registers"))),
        };
        match moved.iter().find(|moved| **moved != wanted) {
            Some(moved) => Err(self.syntax(format!("`{opcode}` names {moved} values; expected {wanted}"))),
            None => Ok(()),
        }
    }

    /// Whether no result of a matrix operation is `_`.
    fn writes_all(&self) -> bool {
        let matrix = matches!(
            self.instruction.operation,
            Operation::Multiply(_) | Operation::LoadMatrix { .. } | Operation::Async(Async::Product(_))
        );
        !matrix || !self.instruction.destinations.contains(&SINK)
    }

    /// Refuses operands of a form that the operation does not take; their parts would be mistaken for other operands.
    fn check_forms(&self) -> Result<(), Error> {
        let (operation, operands) = (&self.instruction.operation, &self.statement.operands);
        for (at, operand) in operands.iter().enumerate() {
            // The predicate that a comparison combines with comes last.
            let combines = self.statement.opcode.starts_with("set") && at + 1 == operands.len() && at == 3;
            let (taken, form) = match operand {
                Operand::List(list) => {
                    let flat = list.iter().all(|part| !matches!(part, Operand::List(_) | Operand::Not(_)));
                    (operation.takes_lists() && flat, "a list")
                }
                Operand::Pair(..) => (at == 0 && operation.takes_pairs(), "two destinations"),
                Operand::Not(_) => (combines || operation.takes_negation(), "a negated predicate"),
                Operand::Address(base, ..) if !matches!(**base, Operand::Name(_) | Operand::Number(_)) => {
                    (false, "an address of this form")
                }
                Operand::Address(.., rest) if !rest.is_empty() => {
                    (operation.takes_coordinates(), "an address with coordinates")
                }
                _ => (true, ""),
            };
            if !taken {
                return Err(self.syntax(format!("`{}` does not take {form}", self.statement.opcode)));
            }
        }
        Ok(())
    }

    /// Matches the operands with `shape`: D writes, S reads, A is an address, L a label; operands after `?` are
    /// optional.
    fn operands(&mut self, shape: &str) -> Result<(), Error> {
        let (required, optional) = shape.split_once('?').unwrap_or((shape, ""));
        let found = self.statement.operands.len();
        if found < required.len() || found > required.len() + optional.len() {
            let (opcode, wanted) = (self.statement.opcode, required.len());
            return Err(
                self.syntax(format!("wrong number of operands for `{opcode}`; expected {wanted}, found {found}"))
            );
        }
        self.check_forms()?;
        let (mut destinations, mut sources) = (Vec::new(), Vec::new());
        for (operand, kind) in self.statement.operands.iter().zip(required.chars().chain(optional.chars())) {
            match kind {
                'D' => self.destination(operand, &mut destinations)?,
                'S' => self.source(operand, &mut sources)?,
                'A' => self.address(operand, &mut sources)?,
                _ => self.label(operand)?,
            }
            let slots = destinations.len() + sources.len();
            self.lengths.push(slots - self.lengths.iter().sum::<usize>());
        }
        self.instruction.destinations = destinations.into();
        self.instruction.sources = sources.into();
        Ok(())
    }

    fn register(&self, name: &str) -> Result<u32, Error> {
        match self.all.names.find(self.statement.scope, name) {
            Some(Symbol::Register(slot)) => Ok(slot),
            _ => {
                let opcode = self.statement.opcode;
                Err(self.syntax(format!("`{opcode}` names the register {name}, which is not declared")))
            }
        }
    }

    fn destination(&self, operand: &Operand<'_>, slots: &mut Vec<u32>) -> Result<(), Error> {
        match operand {
            Operand::Name("_") => slots.push(SINK),
            Operand::Name(name) => slots.push(self.register(name)?),
            Operand::Pair(first, second) => {
                for name in [first, second] {
                    slots.push(if *name == "_" { SINK } else { self.register(name)? });
                }
            }
            Operand::List(list) => list.iter().try_for_each(|operand| self.destination(operand, slots))?,
            other => return Err(self.syntax(format!("`{}` cannot write to {other:?}", self.statement.opcode))),
        }
        Ok(())
    }

    fn source(&mut self, operand: &Operand<'_>, slots: &mut Vec<u32>) -> Result<(), Error> {
        match operand {
            Operand::List(list) => return list.iter().try_for_each(|operand| self.source(operand, slots)),
            Operand::Not(name) => {
                self.instruction.modifiers.negated = true;
                slots.push(self.register(name)?);
            }
            Operand::Number(bits) => slots.push(self.all.constants.slot(Constant::Bits(*bits))),
            Operand::Name(name) => slots.push(self.named(name, 0)?),
            Operand::Sum(name, offset) => slots.push(self.named(name, *offset)?),
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
            return Ok(self.all.constants.slot(Constant::Bits(32)));
        }
        let constant = match self.all.names.find(self.statement.scope, name) {
            Some(Symbol::Register(slot)) if offset == 0 => return Ok(slot),
            Some(Symbol::Variable(space, at)) => {
                Constant::Bits(base(space).wrapping_add(at).wrapping_add_signed(offset))
            }
            Some(Symbol::Global(index)) => {
                let variable = &self.all.names.module.globals[index];
                if let Some(line) = variable.refused {
                    let message =
                        format!("the initializer of `{}` (line {line}) is not made of numbers", variable.name);
                    return Err(self.syntax(message));
                }
                Constant::Global(index, offset)
            }
            _ => return self.register(name),
        };
        Ok(self.all.constants.slot(constant))
    }

    fn address(&mut self, operand: &Operand<'_>, slots: &mut Vec<u32>) -> Result<(), Error> {
        let Operand::Address(written, offset, rest) = operand else {
            return Err(self.syntax(format!("`{}` takes an address; found {operand:?}", self.statement.opcode)));
        };
        self.instruction.offsets[self.address] = *offset;
        self.address += 1;
        if let (true, Operand::Name(name)) = (self.statement.opcode.starts_with("ld.param"), &**written)
            && self.all.names.find(self.statement.scope, name).is_none()
        {
            return Err(self.syntax(format!("the entry has no parameter {name}")));
        }
        self.source(written, slots)?;
        rest.iter().try_for_each(|operand| self.source(operand, slots))
    }

    /// The label of a branch, or the table of an indexed one.
    fn label(&mut self, operand: &Operand<'a>) -> Result<(), Error> {
        let Operand::Name(name) = *operand else {
            return Err(self.syntax(format!("`{}` takes a label; found {operand:?}", self.statement.opcode)));
        };
        let (scope, names, line) = (self.statement.scope, self.all.names, self.statement.line);
        let find = |name: &str| {
            let message = || format!("the label {name} is not defined");
            names.label(scope, name).ok_or_else(|| Error::Syntax { line, message: message() })
        };
        if !matches!(self.instruction.operation, Operation::BranchIndexed) {
            self.instruction.targets = Arc::new([find(name)?]);
            return Ok(());
        }
        let table = names.targets(scope, name);
        let (owner, labels) = table.ok_or_else(|| self.syntax(format!("{name} is not a table of branch targets")))?;
        self.all.branch_targets += labels.len();
        let most = self.all.limits.branch_targets as u64;
        at_most(line, self.all.branch_targets as u64, most, "too many branch targets")?;
        let table = match self.all.tables.get(&(owner, name)) {
            Some(table) => table.clone(),
            None => {
                let table: Arc<[u32]> = labels.iter().map(|name| find(name)).collect::<Result<_, _>>()?;
                self.all.tables.insert((owner, name), table.clone());
                table
            }
        };
        self.instruction.targets = table;
        Ok(())
    }

    /// Decodes `mov`, which copies, packs and unpacks.
    fn decode_move(&mut self, opcode: &mut Opcode<'_>) -> Result<(), Error> {
        let ty = opcode.ty().filter(|ty| opcode.parts.is_empty() && ty.bits() <= 64).ok_or_else(|| self.unknown())?;
        let operation = match self.statement.operands.as_slice() {
            [destination, Operand::Name("%clock" | "%clock64" | "%clock_hi" | "%globaltimer" | "%globaltimer_lo")] => {
                if matches!(destination, Operand::List(_) | Operand::Pair(..)) {
                    return Err(self.unknown());
                }
                let mut slots = Vec::new();
                self.destination(destination, &mut slots)?;
                self.instruction.destinations = slots.into();
                self.instruction.operation = Operation::Clock;
                return Ok(());
            }
            [Operand::List(parts), _] => Operation::Unpack(self.part_bits(ty, parts)?),
            [_, Operand::List(parts)] => Operation::Pack(self.part_bits(ty, parts)?),
            _ => Operation::Move,
        };
        self.instruction.operation = operation;
        self.operands("DS")?;
        match self.lengths[..] {
            [_, 1] | [1, _] => self.check_widths(operation, ty),
            _ => Err(self.syntax(format!("`{}` packs or unpacks, not both", self.statement.opcode))),
        }
    }

    /// Bits of each of the registers that are packed into a value of type `ty`: two or four of at least 8 bits.
    fn part_bits(&self, ty: Type, parts: &[Operand<'_>]) -> Result<u32, Error> {
        let (bits, count) = (ty.bits(), parts.len() as u32);
        let simple = parts.iter().all(|part| matches!(part, Operand::Name(_) | Operand::Number(_)));
        if simple && matches!(count, 2 | 4) && bits / count >= 8 {
            return Ok(bits / count);
        }
        Err(self.syntax(format!("`{}` cannot have a list of {count} parts", self.statement.opcode)))
    }

    /// Checks the widths of the registers of a `mov`: a narrow register would silently lose bits.
    fn check_widths(&self, operation: Operation, ty: Type) -> Result<(), Error> {
        let i = &self.instruction;
        let width = |slot: u32| {
            let declared = slot & CONSTANT == 0 && slot != SINK && slot > CARRY;
            declared.then(|| self.all.registers.masks[slot as usize].count_ones())
        };
        let wrong = match operation {
            Operation::Unpack(bits) => i.destinations.iter().find(|slot| width(**slot).is_some_and(|w| w != bits)),
            Operation::Pack(bits) => i.sources.iter().find(|slot| width(**slot).is_some_and(|w| w != bits)),
            _ => None,
        };
        let narrow = i.destinations.iter().find(|slot| {
            !matches!(operation, Operation::Unpack(_)) && width(**slot).is_some_and(|width| width < ty.bits())
        });
        match wrong.or(narrow) {
            Some(slot) => {
                let name = self.all.registers.name(*slot);
                Err(self.syntax(format!("`{}` does not fit the register {name}", self.statement.opcode)))
            }
            None => Ok(()),
        }
    }

    /// Decodes forms with a carry, which read and write a register without a name.
    fn decode_carry(&mut self, opcode: &Opcode<'_>) -> Result<(), Error> {
        let named = if opcode.name.starts_with("mad") { 3 } else { 2 };
        self.operands(&"DSSSS"[..=named])?;
        let takes = opcode.name.ends_with('c');
        let leaves = self.statement.opcode.contains(".cc");
        let mut sources = self.instruction.sources.to_vec();
        let mut destinations = self.instruction.destinations.to_vec();
        if destinations.len() != 1 {
            return Err(self.syntax(format!("`{}` has one destination", self.statement.opcode)));
        }
        sources.extend(takes.then_some(CARRY));
        destinations.push(if leaves { CARRY } else { SINK });
        (self.instruction.sources, self.instruction.destinations) = (sources.into(), destinations.into());
        Ok(())
    }
}
