//! Parser of modules: directives, variables and parameters. Bodies of entries are skipped here; `body` reads them.

use super::{Kind, Lexer, Module, ModuleShared, Operand, Outline, Token, Variable, shown};
use crate::sim::{
    Error,
    isa::{Space, Type},
    limits::{Limits, at_most},
};
use std::{collections::HashMap, fmt::Display, sync::Arc};

impl Module {
    /// Reads the directives of a module. Bodies of entries are decoded where they are needed: [`Module::decode`].
    ///
    /// # Errors
    /// [`Error::Syntax`] with the line.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Self::parse_within(text, Limits::default())
    }

    /// As [`Module::parse`], within other limits, which also hold for decoding and for launches.
    ///
    /// # Errors
    /// [`Error::Syntax`] with the line.
    pub fn parse_within(text: &str, limits: Limits) -> Result<Self, Error> {
        at_most(1, text.len() as u64, limits.text_bytes as u64, "the text has too many bytes")?;
        let identity = text
            .bytes()
            .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3));
        let mut module = Module { text: text.into(), limits, files: files(text)?, identity, ..Module::default() };
        module.directives(&mut Parser::new(text, 0, 1, limits))?;
        Ok(module)
    }

    fn directives(&mut self, parser: &mut Parser<'_>) -> Result<(), Error> {
        let (mut external, mut memory, mut variables) = (false, 0, 0);
        while let Some(token) = parser.next() {
            match token.kind {
                Kind::Word(".target") => {
                    self.target = parser.word("an architecture")?.to_string();
                    parser.skip_line(token.line);
                }
                Kind::Word(".version" | ".address_size" | ".file" | ".pragma" | ".alias") => {
                    parser.skip_line(token.line);
                }
                Kind::Word(".visible" | ".weak" | ".common") => {}
                Kind::Word(".extern") => external = true,
                Kind::Word(".section") => {
                    parser.word("the name of a section")?;
                    parser.skip_braces()?;
                }
                Kind::Word(".entry") => {
                    external = false;
                    let entry = parser.outline()?;
                    self.outlines.push(entry);
                }
                Kind::Word(".shared") => {
                    for variable in parser.variables(Space::Shared)? {
                        variables += 1;
                        self.shared.place(variable, external);
                    }
                    external = false;
                }
                Kind::Word(word @ (".global" | ".const")) => {
                    let space = if word == ".global" { Space::Global } else { Space::Const };
                    for variable in parser.variables(space)? {
                        memory += variable.bytes;
                        variables += 1;
                        self.global_names.insert(variable.name.clone(), self.globals.len());
                        self.globals.push(variable);
                    }
                    external = false;
                }
                Kind::Word(".func") => parser.function()?,
                _ => return Err(parser.expected(token.line, "a directive of the module, such as .entry")),
            }
            at_most(token.line, memory, self.limits.memory_bytes, "the module's variables have too many bytes")?;
            at_most(token.line, variables, self.limits.variables as u64, "the module has too many variables")?;
        }
        Ok(())
    }
}

/// Checks that `text` consists of tokens, and collects its `.file` directives, which may follow references to them.
fn files(text: &str) -> Result<HashMap<u64, Arc<str>>, Error> {
    /// Bytes of a name: every finding has a copy.
    const MOST: u64 = 4096;
    let (mut lexer, mut files) = (Lexer::new(text, 0, 1), HashMap::new());
    while let Some(token) = lexer.next()? {
        if token.kind != Kind::Word(".file") {
            continue;
        }
        let (number, name) = (lexer.next()?.map(|token| token.kind), lexer.next()?.map(|token| token.kind));
        let (Some(Kind::Number(number)), Some(Kind::Text(name))) = (number, name) else {
            return Err(Error::Syntax { line: token.line, message: "expected a number and a name after .file".into() });
        };
        at_most(token.line, name.len() as u64, MOST, "the name of a file has too many bytes")?;
        files.insert(number, name.into());
    }
    Ok(files)
}

impl ModuleShared {
    /// Lays out a variable; `external` ones and those without a size begin where the dynamic shared memory does.
    fn place(&mut self, variable: Variable, external: bool) {
        if external || variable.bytes == 0 {
            self.dynamic_align = self.dynamic_align.max(variable.align);
            self.names.insert(variable.name, None);
            return;
        }
        let offset = self.bytes.next_multiple_of(variable.align);
        self.bytes = offset + variable.bytes;
        self.names.insert(variable.name, Some(offset));
    }
}

/// Reads tokens, with one token of lookahead.
pub(crate) struct Parser<'a> {
    lexer: Lexer<'a>,
    ahead: Option<Token<'a>>,
    /// The token taken last.
    last: Option<Token<'a>>,
    pub(crate) limits: Limits,
}

impl<'a> Parser<'a> {
    /// Reads `text`, which [`files`] has checked, from byte `at` on `line`.
    pub(crate) fn new(text: &'a str, at: usize, line: u32, limits: Limits) -> Self {
        let mut parser = Parser { lexer: Lexer::new(text, at, line), ahead: None, last: None, limits };
        parser.advance();
        parser
    }

    fn advance(&mut self) {
        // The text was read to its end before, so there is no error here.
        self.ahead = self.lexer.next().unwrap_or(None);
    }

    /// Consumes the next token.
    pub(crate) fn next(&mut self) -> Option<Token<'a>> {
        let token = self.ahead?;
        self.last = Some(token);
        self.advance();
        Some(token)
    }

    pub(crate) fn peek(&self) -> Option<Kind<'a>> {
        self.ahead.map(|token| token.kind)
    }

    /// The line of the next token, or of the last one.
    pub(crate) fn line(&self) -> u32 {
        self.ahead.or(self.last).map_or(1, |token| token.line)
    }

    /// An error about the token taken last.
    pub(crate) fn expected(&self, line: u32, what: impl Display) -> Error {
        let found = match self.last.map(|token| token.kind) {
            Some(Kind::Word(word)) => format!("`{}`", shown(word)),
            Some(Kind::Text(text)) => format!("\"{}\"", shown(text)),
            Some(Kind::Number(bits)) => bits.to_string(),
            Some(Kind::Mark(mark)) => format!("`{mark}`"),
            None => "the end of the text".to_string(),
        };
        Error::Syntax { line, message: format!("expected {what}, found {found}") }
    }

    /// An error at the end of the text.
    fn ended(&self, what: impl Display) -> Error {
        Error::Syntax { line: self.line(), message: format!("expected {what}, found the end of the text") }
    }

    pub(crate) fn skip_line(&mut self, line: u32) {
        while self.ahead.is_some_and(|token| token.line == line) {
            self.next();
        }
    }

    /// Skips from the next opening brace to the one that closes it.
    fn skip_braces(&mut self) -> Result<(), Error> {
        self.mark('{')?;
        let mut depth = 1_u64;
        while depth > 0 {
            match self.next().map(|token| token.kind) {
                Some(Kind::Mark('{')) => depth += 1,
                Some(Kind::Mark('}')) => depth -= 1,
                Some(_) => {}
                None => return Err(self.ended("`}`")),
            }
        }
        Ok(())
    }

    /// Skips up to `;` and takes it.
    pub(crate) fn skip_statement(&mut self) -> Result<(), Error> {
        let mut depth = 0_u64;
        loop {
            let line = self.line();
            match self.next().map(|token| token.kind) {
                Some(Kind::Mark(';')) => return Ok(()),
                Some(Kind::Mark('{')) => depth += 1,
                Some(Kind::Mark('}')) if depth == 0 => return Err(self.expected(line, "`;`")),
                Some(Kind::Mark('}')) => depth -= 1,
                Some(_) => {}
                None => return Err(self.ended("`;`")),
            }
        }
    }

    /// Whether the next token is `mark`; takes it if so.
    pub(crate) fn take(&mut self, mark: char) -> bool {
        let found = self.peek() == Some(Kind::Mark(mark));
        if found {
            self.next();
        }
        found
    }

    /// Consumes the next token and returns the part that `pick` selects.
    fn expect<T>(&mut self, what: impl Display, pick: impl Fn(Kind<'a>) -> Option<T>) -> Result<T, Error> {
        let line = self.line();
        match self.next() {
            Some(token) => pick(token.kind).ok_or_else(|| self.expected(line, what)),
            None => Err(self.ended(what)),
        }
    }

    pub(crate) fn mark(&mut self, mark: char) -> Result<(), Error> {
        self.expect(format_args!("`{mark}`"), |kind| (kind == Kind::Mark(mark)).then_some(()))
    }

    pub(crate) fn word(&mut self, what: &str) -> Result<&'a str, Error> {
        self.expect(what, |kind| if let Kind::Word(word) = kind { Some(word) } else { None })
    }

    pub(crate) fn number(&mut self, what: &str) -> Result<u64, Error> {
        self.expect(what, |kind| if let Kind::Number(bits) = kind { Some(bits) } else { None })
    }

    /// A number of at most `most`.
    pub(crate) fn number_up_to(&mut self, most: u64, what: &str) -> Result<u64, Error> {
        let line = self.line();
        let number = self.number(what)?;
        at_most(line, number, most, &format!("{what} is too large"))?;
        Ok(number)
    }

    /// A number with a sign.
    pub(crate) fn signed(&mut self, what: &str) -> Result<i64, Error> {
        let mut sign = 1;
        loop {
            match self.peek() {
                Some(Kind::Mark('-')) => sign = -sign,
                Some(Kind::Mark('+')) => {}
                _ => return Ok((self.number(what)? as i64).wrapping_mul(sign)),
            }
            self.next();
        }
    }

    /// Up to three numbers with commas between; ones behind them.
    fn box_of(&mut self, what: &str) -> Result<[u32; 3], Error> {
        /// A grid of 2^31 - 1 blocks is the largest that a device takes.
        const MOST: u64 = (1 << 31) - 1;
        let mut size = [1; 3];
        for (i, size) in size.iter_mut().enumerate() {
            if i == 0 || self.take(',') {
                *size = self.number_up_to(MOST, what)? as u32;
            }
        }
        Ok(size)
    }

    /// Skips a function; `call` is refused in the entries that use it.
    fn function(&mut self) -> Result<(), Error> {
        loop {
            match self.peek() {
                Some(Kind::Mark(';')) => return self.mark(';'),
                Some(Kind::Mark('{')) => return self.skip_braces(),
                Some(_) => drop(self.next()),
                None => return Err(self.ended("`;` or a body")),
            }
        }
    }

    /// An entry from its name to its closing brace.
    fn outline(&mut self) -> Result<Outline, Error> {
        let name = self.word("the name of an entry")?.to_string();
        let (params, param_bytes) = self.params()?;
        let mut outline = Outline { name, params, param_bytes, ..Outline::default() };
        while let Some(Kind::Word(directive)) = self.peek() {
            let line = self.line();
            self.next();
            match directive {
                ".reqntid" => outline.block = Some(self.box_of("a number of threads")?),
                ".maxntid" => {
                    let size = self.box_of("a number of threads")?;
                    outline.most_threads = Some(size.iter().fold(1, |all, n| u64::saturating_mul(all, u64::from(*n))));
                }
                ".reqnctapercluster" => outline.cluster = Some(self.box_of("a number of blocks")?),
                ".maxnreg" => outline.maxnreg = Some(self.number_up_to(65_536, "a number of registers")? as u32),
                ".minnctapersm" | ".maxclusterrank" => {
                    self.number("a number")?;
                }
                ".explicitcluster" | ".noreturn" => {}
                ".pragma" => self.skip_line(line),
                _ => return Err(self.expected(line, "a directive of an entry, such as .reqntid")),
            }
        }
        if let Some(brace) = self.ahead {
            outline.body = (brace.at, brace.line);
        }
        self.skip_braces()?;
        Ok(outline)
    }

    fn params(&mut self) -> Result<(Vec<Variable>, u64), Error> {
        let (mut params, mut end) = (Vec::new(), 0_u64);
        if !self.take('(') {
            return Ok((params, 0));
        }
        while !self.take(')') {
            let line = self.line();
            if self.word("`.param`")? != ".param" {
                return Err(self.expected(line, "`.param`"));
            }
            let (name, kind, align) = self.variable_head()?;
            let mut variable = self.declarator(Space::Param, name, kind, align)?;
            variable.offset = end.next_multiple_of(variable.align);
            end = variable.offset + variable.bytes;
            at_most(line, end, self.limits.param_bytes, "the entry's parameters have too many bytes")?;
            if variable.bytes == 0 {
                return Err(Error::Syntax { line, message: format!("the parameter {} has no bytes", variable.name) });
            }
            params.push(variable);
            self.take(',');
        }
        Ok((params, end))
    }

    /// The variables after `.shared`, `.global` or `.const`, up to the semicolon.
    fn variables(&mut self, space: Space) -> Result<Vec<Variable>, Error> {
        Ok(self.named_variables(space)?.into_iter().map(|(_, variable)| variable).collect())
    }

    /// The variables after `.shared` or `.local`, up to the semicolon, with their names in the text.
    pub(crate) fn named_variables(&mut self, space: Space) -> Result<Vec<(&'a str, Variable)>, Error> {
        let (name, kind, align) = self.variable_head()?;
        let mut all = vec![(name, self.declarator(space, name, kind, align)?)];
        while self.take(',') {
            let line = self.line();
            at_most(
                line,
                all.len() as u64 + 1,
                self.limits.variables as u64,
                "too many variables are declared at once",
            )?;
            let name = self.word("the name of a variable")?;
            all.push((name, self.declarator(space, name, kind, align)?));
        }
        self.mark(';')?;
        Ok(all)
    }

    /// `.align 16 .b8 name`: name, type and alignment.
    fn variable_head(&mut self) -> Result<(&'a str, Type, u64), Error> {
        let (mut align, mut kind) = (None, None);
        let line = self.line();
        let name = loop {
            match self.word("the name of a variable")? {
                ".align" => align = Some(self.alignment()?),
                // `.param .u64 .ptr .global .align 16 x`: what the pointer points to, not the parameter.
                ".ptr" => {
                    let pointed = self.pointed()?;
                    align = None;
                    kind = kind.or(Some(Type::U64));
                    break pointed;
                }
                ".v2" | ".v4" => return Err(self.expected(line, "a scalar or an array")),
                ".attribute" => {
                    self.mark('(')?;
                    while !self.take(')') {
                        self.next().ok_or_else(|| self.ended("`)`"))?;
                    }
                }
                word if word.starts_with('.') => {
                    let found = Type::named(&word[1..]).filter(|ty| *ty != Type::Pred);
                    kind = Some(found.ok_or_else(|| self.expected(line, "a type"))?);
                }
                name => break name,
            }
        };
        let kind = kind.ok_or_else(|| self.expected(line, "a type"))?;
        Ok((name, kind, align.unwrap_or(u64::from(kind.bits()) / 8)))
    }

    /// The rest of a variable after its name: `[64] = {…}`.
    fn declarator(&mut self, space: Space, name: &str, kind: Type, align: u64) -> Result<Variable, Error> {
        let (line, size) = (self.line(), u64::from(kind.bits()) / 8);
        let mut count = 1_u64;
        while self.take('[') {
            if self.take(']') {
                count = 0;
            } else {
                count = count.saturating_mul(self.number("a number of elements")?);
                self.mark(']')?;
            }
        }
        let (mut initial, mut refused) = (Vec::new(), None);
        if self.take('=') {
            refused = self.initial(size as usize, &mut initial)?;
            if count == 0 {
                count = initial.len() as u64 / size;
            }
        }
        let bytes = count.saturating_mul(size);
        let most = match space {
            Space::Global | Space::Const => self.limits.memory_bytes,
            Space::Shared | Space::Cluster => self.limits.shared_bytes,
            Space::Local => self.limits.local_bytes,
            Space::Param => self.limits.param_bytes,
        };
        at_most(line, bytes, most, &format!("{} has too many bytes", shown(name)))?;
        initial.truncate(bytes as usize);
        Ok(Variable { name: name.to_string(), space, bytes, align, offset: 0, initial, refused })
    }

    /// The number behind `.align`.
    fn alignment(&mut self) -> Result<u64, Error> {
        let line = self.line();
        let align = self.number_up_to(self.limits.alignment, "an alignment")?;
        if align.is_power_of_two() {
            return Ok(align);
        }
        Err(Error::Syntax { line, message: format!("expected a power of two as alignment, found {align}") })
    }

    /// The rest of a parameter after `.ptr`: a space, an alignment, the name.
    fn pointed(&mut self) -> Result<&'a str, Error> {
        loop {
            match self.word("the name of a parameter")? {
                ".align" => drop(self.alignment()?),
                word if word.starts_with('.') => {}
                name => return Ok(name),
            }
        }
    }

    /// The bytes of an initializer, nested braces flattened. An initializer with anything but numbers is skipped: its
    /// line is returned, and uses of the variable are refused.
    fn initial(&mut self, size: usize, bytes: &mut Vec<u8>) -> Result<Option<u32>, Error> {
        let mut depth = 0_usize;
        loop {
            let line = self.line();
            match self.peek() {
                Some(Kind::Mark('{')) => {
                    depth += 1;
                    at_most(line, depth as u64, self.limits.depth as u64, "braces are nested too deeply")?;
                    self.next();
                }
                Some(Kind::Mark('}')) if depth > 0 => {
                    depth -= 1;
                    self.next();
                }
                Some(Kind::Mark(',')) if depth > 0 => drop(self.next()),
                Some(Kind::Number(_) | Kind::Mark('-' | '+')) => {
                    let value = self.signed("a number of an initializer")?;
                    // 128 bits have no literal; the upper half is the sign's.
                    let raw = i128::from(value).to_le_bytes();
                    bytes.extend_from_slice(&raw[..size]);
                }
                Some(Kind::Mark(';')) | None => return Err(self.expected(line, "a number of an initializer")),
                Some(_) => {
                    while self.peek().is_some_and(|kind| kind != Kind::Mark(';')) {
                        self.next();
                    }
                    return Ok(Some(line));
                }
            }
            if depth == 0 {
                return Ok(None);
            }
        }
    }

    /// The operands of an instruction up to its semicolon.
    pub(crate) fn operands(&mut self) -> Result<Vec<Operand<'a>>, Error> {
        let (mut operands, mut left) = (Vec::new(), self.limits.operands);
        while !self.take(';') {
            operands.push(self.operand(self.limits.depth, &mut left)?);
            self.take(',');
        }
        Ok(operands)
    }

    /// One operand with at most `depth` lists within each other, of at most `left` further operands.
    fn operand(&mut self, depth: usize, left: &mut usize) -> Result<Operand<'a>, Error> {
        let line = self.line();
        let Some(rest) = left.checked_sub(1) else {
            return Err(Error::Syntax {
                line,
                message: format!("an instruction has more than {} operands", self.limits.operands),
            });
        };
        *left = rest;
        if depth == 0 {
            return Err(Error::Syntax {
                line,
                message: format!("operands are nested more than {} deep", self.limits.depth),
            });
        }
        // Round brackets are the lists of `call`, which is refused by its name later.
        for (open, close) in [('{', '}'), ('(', ')')] {
            if self.take(open) {
                let mut list = Vec::new();
                while !self.take(close) {
                    list.push(self.operand(depth - 1, left)?);
                    self.take(',');
                }
                return Ok(Operand::List(list));
            }
        }
        if self.take('[') {
            let (base, offset) = match self.operand(depth - 1, left)? {
                Operand::Sum(name, offset) => (Operand::Name(name), offset),
                base => (base, 0),
            };
            let mut rest = Vec::new();
            while self.take(',') {
                rest.push(self.operand(depth - 1, left)?);
            }
            self.mark(']')?;
            return Ok(Operand::Address(Box::new(base), offset, rest));
        }
        if self.take('!') {
            return Ok(Operand::Not(self.word("a predicate")?));
        }
        if let Some(Kind::Number(_) | Kind::Mark('-')) = self.peek() {
            return Ok(Operand::Number(self.signed("a number")? as u64));
        }
        let name = self.word("an operand")?;
        if self.take('|') {
            return Ok(Operand::Pair(name, self.word("a second destination")?));
        }
        match self.peek() {
            Some(Kind::Mark('+' | '-')) => Ok(Operand::Sum(name, self.signed("a number of bytes")?)),
            _ => Ok(Operand::Name(name)),
        }
    }
}
