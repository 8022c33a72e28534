//! Tokens to a module.

use super::{
    Error, Place, decode,
    lex::{Kind, Token, tokens},
    module::{Entry, Module, Names, Register, Scope, Space, Statement, Variable, Written},
    types::Type,
};
use std::collections::HashMap;

impl Module {
    /// Reads the text of a module.
    ///
    /// # Errors
    /// [`Error::Syntax`] with the line, or [`Error::UnknownInstruction`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let tokens = tokens(text)?;
        let mut parser = Parser { tokens: &tokens, at: 0, external: false };
        let identity = text
            .bytes()
            .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3));
        let (target, files) = (String::new(), HashMap::new());
        let mut module = Module { target, files, entries: Vec::new(), globals: Vec::new(), identity };
        // `.file` may stand behind the code that refers to it, so it is read first.
        for (i, token) in tokens.iter().enumerate() {
            if let (Kind::Word(".file"), Some([number, name])) = (token.kind, tokens.get(i + 1..i + 3)) {
                let (Kind::Number(number), Kind::Text(name)) = (number.kind, name.kind) else {
                    return Err(parser.expected(token.line, "a number and a name after .file"));
                };
                module.files.insert(number, name.to_string());
            }
        }
        let mut shared = Vec::new();
        while let Some(token) = parser.next() {
            match token.kind {
                Kind::Word(".target") => {
                    module.target = parser.word("an architecture")?.to_string();
                    parser.skip_line(token.line);
                }
                Kind::Word(".version" | ".address_size" | ".file" | ".pragma" | ".alias") => {
                    parser.skip_line(token.line);
                }
                Kind::Word(".visible" | ".weak" | ".common") => {}
                Kind::Word(".extern") => parser.external = true,
                Kind::Word(".section") => {
                    parser.word("the name of a section")?;
                    parser.skip_braces()?;
                }
                Kind::Word(".entry") => {
                    parser.external = false;
                    let entry = parser.entry(&module, &shared)?;
                    module.entries.push(entry);
                }
                Kind::Word(".shared") => shared.extend(parser.variables(Space::Shared)?),
                Kind::Word(".global") => module.globals.extend(parser.variables(Space::Global)?),
                Kind::Word(".const") => module.globals.extend(parser.variables(Space::Const)?),
                Kind::Word(".func") => parser.function()?,
                _ => return Err(parser.expected(token.line, "a directive of the module, such as .entry")),
            }
        }
        Ok(module)
    }
}

struct Parser<'t, 'a> {
    tokens: &'t [Token<'a>],
    at: usize,
    /// Whether `.extern` stands before what is read.
    external: bool,
}

/// An entry's body while it is read.
#[derive(Default)]
struct Body<'a> {
    registers: Vec<Register>,
    names: Names<'a>,
    statements: Vec<Statement<'a>>,
    variables: Vec<Variable>,
    source: Option<(u64, u32)>,
}

impl<'t, 'a> Parser<'t, 'a> {
    fn next(&mut self) -> Option<&'t Token<'a>> {
        self.at += 1;
        self.tokens.get(self.at - 1)
    }

    fn peek(&self) -> Option<Kind<'a>> {
        self.tokens.get(self.at).map(|token| token.kind)
    }

    /// The line of the next token, or of the last one.
    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    fn expected(&self, line: u32, what: &str) -> Error {
        let found = match self.tokens.get(self.at.saturating_sub(1)) {
            Some(token) => format!("{:?}", token.kind),
            None => "the end of the text".to_string(),
        };
        Error::Syntax { line, message: format!("expected {what}, found {found}") }
    }

    fn skip_line(&mut self, line: u32) {
        while self.tokens.get(self.at).is_some_and(|token| token.line == line) {
            self.at += 1;
        }
    }

    /// Skips from the next opening brace to the one that closes it.
    fn skip_braces(&mut self) -> Result<(), Error> {
        self.mark('{')?;
        let mut depth = 1;
        while depth > 0 {
            let line = self.line();
            match self.next().map(|token| token.kind) {
                Some(Kind::Mark('{')) => depth += 1,
                Some(Kind::Mark('}')) => depth -= 1,
                Some(_) => {}
                None => return Err(self.expected(line, "`}`")),
            }
        }
        Ok(())
    }

    /// Whether the next token is `mark`; takes it if so.
    fn take(&mut self, mark: char) -> bool {
        let found = self.peek() == Some(Kind::Mark(mark));
        self.at += usize::from(found);
        found
    }

    fn mark(&mut self, mark: char) -> Result<(), Error> {
        let line = self.line();
        match self.next() {
            Some(token) if token.kind == Kind::Mark(mark) => Ok(()),
            _ => Err(self.expected(line, &format!("`{mark}`"))),
        }
    }

    fn word(&mut self, what: &str) -> Result<&'a str, Error> {
        let line = self.line();
        match self.next().map(|token| token.kind) {
            Some(Kind::Word(word)) => Ok(word),
            _ => Err(self.expected(line, what)),
        }
    }

    fn number(&mut self, what: &str) -> Result<u64, Error> {
        let line = self.line();
        match self.next().map(|token| token.kind) {
            Some(Kind::Number(bits)) => Ok(bits),
            _ => Err(self.expected(line, what)),
        }
    }

    /// A number with a sign.
    fn signed(&mut self, what: &str) -> Result<i64, Error> {
        let mut sign = 1;
        loop {
            match self.peek() {
                Some(Kind::Mark('-')) => sign = -sign,
                Some(Kind::Mark('+')) => {}
                _ => return Ok((self.number(what)? as i64).wrapping_mul(sign)),
            }
            self.at += 1;
        }
    }

    /// Up to three numbers with commas between; ones behind them.
    fn box_of(&mut self, what: &str) -> Result<[u32; 3], Error> {
        let mut size = [1; 3];
        for (i, size) in size.iter_mut().enumerate() {
            if i == 0 || self.take(',') {
                *size = self.number(what)? as u32;
            }
        }
        Ok(size)
    }

    /// A function that is only declared. Those with a body are refused where they are called.
    fn function(&mut self) -> Result<(), Error> {
        loop {
            let line = self.line();
            match self.peek() {
                Some(Kind::Mark(';')) => return self.mark(';'),
                Some(Kind::Mark('{')) => return self.skip_braces(),
                Some(_) => self.at += 1,
                None => return Err(self.expected(line, "`;` or a body")),
            }
        }
    }

    /// An entry from its name to its closing brace.
    fn entry(&mut self, module: &Module, shared: &[Variable]) -> Result<Entry, Error> {
        let name = self.word("the name of an entry")?.to_string();
        let (params, param_bytes) = self.params()?;
        let (mut block, mut most_threads, mut cluster, mut most_registers) = (None, None, None, None);
        while let Some(Kind::Word(directive)) = self.peek() {
            let line = self.line();
            self.at += 1;
            match directive {
                ".reqntid" => block = Some(self.box_of("a number of threads")?),
                ".maxntid" => {
                    let size = self.box_of("a number of threads")?;
                    most_threads = Some(size.iter().map(|n| u64::from(*n)).product());
                }
                ".reqnctapercluster" => cluster = Some(self.box_of("a number of blocks")?),
                ".maxnreg" => most_registers = Some(self.number("a number of registers")? as u32),
                ".minnctapersm" | ".maxclusterrank" => {
                    self.number("a number")?;
                }
                ".explicitcluster" | ".noreturn" => {}
                ".pragma" => self.skip_line(line),
                _ => return Err(self.expected(line, "a directive of an entry, such as .reqntid")),
            }
        }
        let mut body = Body::default();
        body.registers.extend(decode::special_registers());
        body.variables.extend(params.iter().cloned());
        for (index, global) in module.globals.iter().enumerate() {
            body.names.globals.insert(global.name.clone(), index);
        }
        self.mark('{')?;
        self.body(&mut body, None)?;
        let mut entry = Entry {
            name,
            params,
            param_bytes,
            block,
            most_threads,
            cluster,
            most_registers,
            registers: Vec::new(),
            constants: Vec::new(),
            code: Vec::new(),
            static_shared: 0,
            dynamic_shared: 0,
            local_bytes: 0,
        };
        for param in &entry.params {
            body.names.module_variables.insert(param.name.clone(), (Space::Param, param.offset));
        }
        entry.place_shared(&mut body.names, &body.variables, shared);
        let place = |statement: &Statement<'_>| Place {
            line: statement.line,
            source: statement.source.and_then(|(file, line)| Some((module.files.get(&file)?.clone(), line))),
        };
        entry.registers = body.registers;
        let mut constants = decode::Constants::default();
        let statements = &body.statements;
        entry.code = decode::decode_all(statements, &body.names, &entry.registers, &mut constants, place)?;
        entry.constants = constants.all;
        Ok(entry)
    }

    fn params(&mut self) -> Result<(Vec<Variable>, usize), Error> {
        let (mut params, mut end) = (Vec::new(), 0_u64);
        if !self.take('(') {
            return Ok((params, 0));
        }
        while !self.take(')') {
            let line = self.line();
            if self.word("`.param`")? != ".param" {
                return Err(self.expected(line, "`.param`"));
            }
            let mut variable = self.variable(Space::Param)?;
            variable.offset = end.next_multiple_of(variable.align);
            end = variable.offset + variable.bytes;
            params.push(variable);
            self.take(',');
        }
        Ok((params, end as usize))
    }

    /// What follows `.shared`, `.global`, `.const` or `.local`, to its semicolon.
    fn variables(&mut self, space: Space) -> Result<Vec<Variable>, Error> {
        let external = std::mem::take(&mut self.external);
        let first = self.variable(space)?;
        let (align, mut all) = (first.align, vec![first]);
        while self.take(',') {
            let name = self.word("the name of a variable")?;
            let again = all[0].clone();
            all.push(Variable { name: name.to_string(), align, ..again });
        }
        self.mark(';')?;
        all.iter_mut().for_each(|variable| variable.external = external);
        Ok(all)
    }

    /// `.align 16 .b8 name[64] = {…}`
    fn variable(&mut self, space: Space) -> Result<Variable, Error> {
        let (mut align, mut kind) = (None, None);
        let line = self.line();
        let name = loop {
            match self.word("the name of a variable")? {
                ".align" => align = Some(self.number("an alignment")?),
                // `.param .u64 .ptr .global .align 16 x`: what the pointer points to, not the parameter.
                ".ptr" => {
                    let pointed = self.pointed()?;
                    align = None;
                    kind = kind.or(Some(Type::U64));
                    break pointed;
                }
                ".v2" | ".v4" => return Err(self.expected(line, "a scalar or an array")),
                ".attribute" => {
                    while !self.take(')') {
                        self.at += 1;
                    }
                }
                word if word.starts_with('.') => {
                    let found = Type::named(&word[1..]);
                    kind = Some(found.ok_or_else(|| self.expected(line, "a type"))?);
                }
                name => break name,
            }
        };
        let kind = kind.ok_or_else(|| self.expected(line, "a type"))?;
        let size = u64::from(kind.bits()).div_ceil(8);
        let mut count = 1;
        while self.take('[') {
            if self.take(']') {
                count = 0;
            } else {
                count *= self.number("a number of elements")?;
                self.mark(']')?;
            }
        }
        let mut initial = Vec::new();
        if self.take('=') {
            self.initial(size as usize, &mut initial)?;
            if count == 0 {
                count = initial.len() as u64 / size;
            }
            initial.resize((count * size) as usize, 0);
        }
        let align = align.unwrap_or(size);
        Ok(Variable { name: name.to_string(), space, bytes: count * size, align, offset: 0, initial, external: false })
    }

    /// What follows `.ptr`: a space, an alignment, the name.
    fn pointed(&mut self) -> Result<&'a str, Error> {
        loop {
            match self.word("the name of a parameter")? {
                ".align" => {
                    self.number("an alignment")?;
                }
                word if word.starts_with('.') => {}
                name => return Ok(name),
            }
        }
    }

    /// The bytes of an initialiser, nested braces flattened.
    fn initial(&mut self, size: usize, bytes: &mut Vec<u8>) -> Result<(), Error> {
        if !self.take('{') {
            let value = self.signed("a number of an initialiser")?;
            bytes.extend_from_slice(&value.to_le_bytes()[..size]);
            return Ok(());
        }
        while !self.take('}') {
            self.initial(size, bytes)?;
            self.take(',');
        }
        Ok(())
    }

    /// The statements of a scope up to its closing brace.
    fn body(&mut self, body: &mut Body<'a>, parent: Option<usize>) -> Result<(), Error> {
        let scope = body.names.scopes.len();
        body.names.scopes.push(Scope { parent, ..Scope::default() });
        loop {
            let line = self.line();
            if self.take('}') {
                return Ok(());
            }
            if self.take('{') {
                self.body(body, Some(scope))?;
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
                    body.source = Some((self.number("a file's number")?, self.number("a line's number")? as u32));
                    self.skip_line(line);
                }
                ".pragma" => self.skip_line(line),
                ".reg" => self.registers(body, scope)?,
                ".shared" => self.declare(Space::Shared, body, scope)?,
                ".local" => self.declare(Space::Local, body, scope)?,
                directive if directive.starts_with('.') => {
                    return Err(self.expected(line, "an instruction, a label, .reg, .shared, .local or .loc"));
                }
                label if self.take(':') => {
                    if self.peek() == Some(Kind::Word(".branchtargets")) {
                        self.at += 1;
                        let mut labels = Vec::new();
                        while !self.take(';') {
                            labels.push(self.word("a label")?);
                            self.take(',');
                        }
                        body.names.scopes[scope].targets.insert(label, labels);
                    } else if body.names.scopes[scope].labels.insert(label, body.statements.len()).is_some() {
                        return Err(Error::Syntax { line, message: format!("the label {label} stands twice") });
                    }
                }
                opcode => {
                    let operands = self.operands()?;
                    let source = body.source;
                    body.statements.push(Statement { guard, opcode, operands, line, source, scope });
                }
            }
        }
    }

    /// Variables of an entry; their offsets are given when all are known.
    fn declare(&mut self, space: Space, body: &mut Body<'a>, scope: usize) -> Result<(), Error> {
        let start = self.at;
        for mut variable in self.variables(space)? {
            let end = |all: &[Variable]| {
                let last = all.iter().filter(|other| other.space == space).map(|other| other.offset + other.bytes);
                last.max().unwrap_or(0)
            };
            variable.offset = end(&body.variables).next_multiple_of(variable.align);
            // The name in the text lives as long as the tokens, the variable's own does not.
            let name = self.tokens[start..self.at].iter().find_map(|token| match token.kind {
                Kind::Word(word) if word == variable.name => Some(word),
                _ => None,
            });
            let name = name.ok_or_else(|| self.expected(self.line(), "the name of a variable"))?;
            body.names.scopes[scope].variables.insert(name, (space, variable.offset));
            body.variables.push(variable);
        }
        Ok(())
    }

    /// `.f32 %f<8>;` or `.pred p, q;`
    fn registers(&mut self, body: &mut Body<'a>, scope: usize) -> Result<(), Error> {
        let line = self.line();
        let kind = self.word("a register's type")?;
        let kind = kind.strip_prefix('.').and_then(Type::named).ok_or_else(|| self.expected(line, "a type"))?;
        let mask = u64::MAX >> (64 - kind.bits().min(64));
        loop {
            let name = self.word("a register's name")?;
            let first = body.registers.len() as u32;
            if self.take('<') {
                let count = self.number("a number of registers")?;
                body.registers.extend((0..count).map(|i| Register { name: format!("{name}{i}"), mask }));
                body.names.scopes[scope].registers.insert(name, (first, Some(count as u32)));
                self.mark('>')?;
            } else {
                body.registers.push(Register { name: name.to_string(), mask });
                body.names.scopes[scope].registers.insert(name, (first, None));
            }
            if !self.take(',') {
                return self.mark(';');
            }
        }
    }

    /// The operands of an instruction up to its semicolon.
    fn operands(&mut self) -> Result<Vec<Written<'a>>, Error> {
        let mut operands = Vec::new();
        while !self.take(';') {
            operands.push(self.operand()?);
            self.take(',');
        }
        Ok(operands)
    }

    fn operand(&mut self) -> Result<Written<'a>, Error> {
        if self.take('{') {
            let mut list = Vec::new();
            while !self.take('}') {
                list.push(self.operand()?);
                self.take(',');
            }
            return Ok(Written::List(list));
        }
        if self.take('[') {
            let (base, offset) = match self.operand()? {
                Written::Sum(name, offset) => (Written::Name(name), offset),
                base => (base, 0),
            };
            let mut rest = Vec::new();
            while self.take(',') {
                rest.push(self.operand()?);
            }
            self.mark(']')?;
            return Ok(Written::Address(Box::new(base), offset, rest));
        }
        // The lists of `call`, which is refused by its name later.
        if self.take('(') {
            let mut list = Vec::new();
            while !self.take(')') {
                list.push(self.operand()?);
                self.take(',');
            }
            return Ok(Written::List(list));
        }
        if self.take('!') {
            return Ok(Written::Not(self.word("a predicate")?));
        }
        match self.peek() {
            Some(Kind::Number(_) | Kind::Mark('-')) => Ok(Written::Number(self.signed("a number")? as u64)),
            _ => {
                let name = self.word("an operand")?;
                if self.take('|') {
                    return Ok(Written::Pair(name, self.word("a second destination")?));
                }
                match self.peek() {
                    Some(Kind::Mark('+' | '-')) => Ok(Written::Sum(name, self.signed("a number of bytes")?)),
                    _ => Ok(Written::Name(name)),
                }
            }
        }
    }
}
