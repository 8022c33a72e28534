//! Bodies of entries, read twice: first for their names, since labels and shared memory are used before all of them are
//! declared, then for their instructions, each of which is decoded as soon as it is read.

use super::{Decoded, Entry, Kind, Module, Names, Outline, Parser, Registers, Statement, declare_specials};
use crate::sim::{
    Error,
    isa::{Space, Type, low_bits},
    limits::at_most,
};

/// Callbacks of a pass over a body.
trait Pass<'a> {
    /// A scope begins.
    fn open(&mut self, _parent: u32) {}
    /// `.reg`, `.shared` or `.local`; its operands are taken.
    fn directive(&mut self, parser: &mut Parser<'a>, name: &str, scope: u32) -> Result<(), Error>;
    fn label(&mut self, _name: &'a str, _scope: u32, _line: u32) -> Result<(), Error> {
        Ok(())
    }
    /// `.branchtargets`; its labels are taken.
    fn targets(&mut self, parser: &mut Parser<'a>, name: &'a str, scope: u32) -> Result<(), Error>;
    /// An instruction whose operands and semicolon follow, and are taken.
    fn statement(&mut self, parser: &mut Parser<'a>, statement: Statement<'a>) -> Result<(), Error>;
}

impl<'a> Parser<'a> {
    /// Reads a body from its opening to its closing brace.
    fn body(&mut self, pass: &mut impl Pass<'a>) -> Result<(), Error> {
        self.mark('{')?;
        let (mut open, mut scopes, mut source) = (vec![0], 1, None);
        pass.open(0);
        while let Some(&scope) = open.last() {
            let line = self.line();
            if self.take('}') {
                open.pop();
                continue;
            }
            if self.take('{') {
                at_most(line, open.len() as u64 + 1, self.limits.depth as u64, "braces are nested too deeply")?;
                pass.open(scope);
                open.push(scopes);
                scopes += 1;
                continue;
            }
            if self.take(';') {
                continue;
            }
            let guard = if self.take('@') {
                let negated = self.take('!');
                Some((self.word("a predicate")?, negated))
            } else {
                None
            };
            match self.word("an instruction or `}`")? {
                ".loc" => {
                    let file = self.number("a file's number")?;
                    source = Some((file, self.number_up_to(u64::from(u32::MAX), "a line's number")? as u32));
                    self.skip_line(line);
                }
                ".pragma" => self.skip_line(line),
                name @ (".reg" | ".shared" | ".local") => pass.directive(self, name, scope)?,
                directive if directive.starts_with('.') => {
                    return Err(self.expected(line, "an instruction, a label, .reg, .shared, .local or .loc"));
                }
                name if self.take(':') => {
                    if self.peek() == Some(Kind::Word(".branchtargets")) {
                        self.next();
                        pass.targets(self, name, scope)?;
                    } else {
                        pass.label(name, scope, line)?;
                    }
                }
                opcode => {
                    let statement = Statement { guard, opcode, operands: Vec::new(), line, source, scope };
                    pass.statement(self, statement)?;
                }
            }
        }
        Ok(())
    }
}

/// The first pass: names.
struct Naming<'a> {
    names: Names<'a>,
    registers: Registers,
    statements: usize,
    variables: usize,
    /// Bytes and largest alignment of the entry's own variables.
    shared: (u64, u64),
    local: u64,
    branch_targets: usize,
}

impl<'a> Pass<'a> for Naming<'a> {
    fn open(&mut self, parent: u32) {
        self.names.parents.push(parent);
    }

    fn directive(&mut self, parser: &mut Parser<'a>, name: &str, scope: u32) -> Result<(), Error> {
        match name {
            ".reg" => self.registers(parser, scope),
            ".shared" => self.declare(parser, Space::Shared, scope),
            _ => self.declare(parser, Space::Local, scope),
        }
    }

    fn label(&mut self, name: &'a str, scope: u32, line: u32) -> Result<(), Error> {
        if self.names.labels.insert((scope, name), self.statements as u32).is_some() {
            return Err(Error::Syntax { line, message: format!("the label {name} is defined twice") });
        }
        Ok(())
    }

    fn targets(&mut self, parser: &mut Parser<'a>, name: &'a str, scope: u32) -> Result<(), Error> {
        let mut labels = Vec::new();
        while !parser.take(';') {
            let line = parser.line();
            labels.push(parser.word("a label")?);
            self.branch_targets += 1;
            at_most(line, self.branch_targets as u64, parser.limits.branch_targets as u64, "too many branch targets")?;
            parser.take(',');
        }
        self.names.targets.insert((scope, name), labels);
        Ok(())
    }

    fn statement(&mut self, parser: &mut Parser<'a>, _: Statement<'a>) -> Result<(), Error> {
        self.statements += 1;
        parser.skip_statement()
    }
}

impl<'a> Naming<'a> {
    /// `.f32 %f<8>;` or `.pred p, q;`
    fn registers(&mut self, parser: &mut Parser<'a>, scope: u32) -> Result<(), Error> {
        let line = parser.line();
        let kind = parser.word("a register's type")?;
        let kind = kind.strip_prefix('.').and_then(Type::named).ok_or_else(|| parser.expected(line, "a type"))?;
        let mask = low_bits(kind.bits());
        loop {
            let line = parser.line();
            let name = parser.word("a register's name")?;
            let mut count = None;
            if parser.take('<') {
                let number = parser.number("a number of registers")?;
                parser.mark('>')?;
                count = Some(number);
            }
            let all = (self.registers.len() as u64).saturating_add(count.unwrap_or(1));
            at_most(line, all, u64::from(parser.limits.registers), "the entry has too many registers")?;
            let count = count.map(|count| count as u32);
            let first = self.registers.declare(name, count, mask);
            self.names.registers.insert((scope, name), (first, count));
            if !parser.take(',') {
                return parser.mark(';');
            }
        }
    }

    /// Variables of the entry, laid out one behind the other.
    fn declare(&mut self, parser: &mut Parser<'a>, space: Space, scope: u32) -> Result<(), Error> {
        let line = parser.line();
        for (name, variable) in parser.named_variables(space)? {
            self.variables += 1;
            at_most(line, self.variables as u64, parser.limits.variables as u64, "the entry has too many variables")?;
            let (end, most) = match space {
                Space::Shared => (&mut self.shared.0, parser.limits.shared_bytes),
                _ => (&mut self.local, parser.limits.local_bytes),
            };
            let offset = end.next_multiple_of(variable.align);
            *end = offset + variable.bytes;
            at_most(line, *end, most, "the entry's variables have too many bytes")?;
            if space == Space::Shared {
                self.shared.1 = self.shared.1.max(variable.align);
            }
            self.names.variables.insert((scope, name), (space, offset));
        }
        Ok(())
    }
}

/// The second pass: instructions.
impl<'a> Pass<'a> for Decoded<'_, 'a> {
    fn directive(&mut self, parser: &mut Parser<'a>, _: &str, _: u32) -> Result<(), Error> {
        parser.skip_statement()
    }

    fn targets(&mut self, parser: &mut Parser<'a>, _: &'a str, _: u32) -> Result<(), Error> {
        parser.skip_statement()
    }

    fn statement(&mut self, parser: &mut Parser<'a>, statement: Statement<'a>) -> Result<(), Error> {
        let operands = parser.operands()?;
        self.add(Statement { operands, ..statement })
    }
}

impl Entry {
    /// Reads and decodes the body of an entry.
    ///
    /// # Errors
    /// [`Error::Syntax`] or [`Error::UnknownInstruction`] with the line.
    pub(crate) fn read(module: &Module, outline: &Outline) -> Result<Entry, Error> {
        let (at, line) = outline.body;
        let parser = || Parser::new(&module.text, at, line, module.limits);
        let mut registers = Registers::default();
        declare_specials(&mut registers);
        let mut naming = Naming {
            names: Names::new(module, outline),
            registers,
            statements: 0,
            variables: 0,
            shared: (0, 1),
            local: 0,
            branch_targets: 0,
        };
        parser().body(&mut naming)?;
        let Naming { mut names, registers, statements, shared, local, .. } = naming;
        names.shared_base = module.shared.bytes.next_multiple_of(shared.1);
        let static_shared = if shared.0 > 0 { names.shared_base + shared.0 } else { module.shared.bytes };
        names.dynamic_shared = static_shared.next_multiple_of(module.shared.dynamic_align.max(16));
        let dynamic_shared = names.dynamic_shared;
        let mut decoded = Decoded::new(&names, &registers, statements, module.limits);
        parser().body(&mut decoded)?;
        let (code, constants, files) = decoded.finish();
        Ok(Entry {
            name: outline.name.clone(),
            maxnreg: outline.maxnreg,
            registers,
            constants,
            code,
            files,
            static_shared,
            dynamic_shared,
            local_bytes: local,
        })
    }
}

impl Module {
    /// Reads the body of the kernel `entry`, as its first launch does.
    ///
    /// # Errors
    /// [`Error::Launch`] if there is no such entry, [`Error::Syntax`] or [`Error::UnknownInstruction`] with the line if
    /// its body is not understood.
    pub fn decode(&self, entry: &str) -> Result<(), Error> {
        self.decoded(entry).map(|_| ())
    }

    /// The kernel `entry`, as the text declares it and decoded.
    pub(crate) fn decoded(&self, entry: &str) -> Result<(&Outline, &Entry), Error> {
        let found = self.outlines.iter().find(|candidate| candidate.name == entry);
        let outline = found.ok_or_else(|| Error::Launch(format!("the module has no entry `{entry}`")))?;
        let decoded = outline.decoded.get_or_init(|| Entry::read(self, outline)).as_ref();
        decoded.map(|entry| (outline, entry)).map_err(Clone::clone)
    }
}
