//! Tokens to entries: parameters, registers, labels, statements.

use super::{
    Error, Place,
    decode::{Instruction, decode},
    lex::{Kind, Token, tokens},
};
use std::collections::HashMap;

/// A module that can be launched.
#[derive(Clone, Debug)]
pub struct Module {
    /// The `.target` of the text.
    pub target: String,
    pub(super) files: HashMap<u64, String>,
    pub(super) entries: Vec<Entry>,
}

/// A kernel.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) params: Vec<Parameter>,
    /// The block that the text requires.
    pub(super) block: Option<[u32; 3]>,
    /// Names of registers, for messages; the position is the slot that instructions name.
    pub(super) registers: Vec<String>,
    pub(super) code: Vec<Instruction>,
}

/// A declared parameter.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) bytes: usize,
}

/// An operand as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Written<'a> {
    Name(&'a str),
    Number(u64),
    /// `{a, b}`
    List(Vec<&'a str>),
    /// `[base+bytes]`
    Address(&'a str, i64),
}

/// An instruction as it is written.
#[derive(Clone, Debug)]
pub(super) struct Statement<'a> {
    /// The guard's register, and whether it is negated.
    pub(super) guard: Option<(&'a str, bool)>,
    pub(super) opcode: &'a str,
    pub(super) operands: Vec<Written<'a>>,
    pub(super) line: u32,
    pub(super) source: Option<(u64, u32)>,
}

/// What an entry's names stand for while its statements are decoded.
pub(super) struct Scope<'a> {
    pub(super) registers: HashMap<String, u32>,
    pub(super) labels: HashMap<&'a str, usize>,
    pub(super) params: &'a [Parameter],
}

impl Module {
    /// Reads the text of a module.
    ///
    /// # Errors
    /// [`Error::Syntax`] with the line, or [`Error::UnknownInstruction`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let tokens = tokens(text)?;
        let mut parser = Parser { tokens: &tokens, at: 0 };
        let mut module = Module { target: String::new(), files: HashMap::new(), entries: Vec::new() };
        // `.file` may stand behind the code that refers to it, so it is read first.
        for (i, token) in tokens.iter().enumerate() {
            if let (Kind::Word(".file"), Some([number, name])) = (token.kind, tokens.get(i + 1..i + 3)) {
                let (Kind::Number(number), Kind::Text(name)) = (number.kind, name.kind) else {
                    return Err(parser.expected(token.line, "a number and a name after .file"));
                };
                module.files.insert(number, name.to_string());
            }
        }
        while let Some(token) = parser.next() {
            match token.kind {
                Kind::Word(".target") => {
                    module.target = parser.word("an architecture")?.to_string();
                    parser.skip_line(token.line);
                }
                Kind::Word(".version" | ".address_size" | ".file") => parser.skip_line(token.line),
                Kind::Word(".visible") => {}
                Kind::Word(".entry") => {
                    let entry = parser.entry(&module.files)?;
                    module.entries.push(entry);
                }
                _ => return Err(parser.expected(token.line, "a directive of the module, such as .entry")),
            }
        }
        Ok(module)
    }

    /// The names of the module's kernels.
    pub fn entry_names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }
}

struct Parser<'t, 'a> {
    tokens: &'t [Token<'a>],
    at: usize,
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

    /// An entry from its name to its closing brace.
    fn entry(&mut self, files: &HashMap<u64, String>) -> Result<Entry, Error> {
        let name = self.word("the name of an entry")?.to_string();
        let params = self.params()?;
        let mut block = None;
        while let Some(Kind::Word(directive)) = self.peek() {
            let line = self.line();
            self.at += 1;
            match directive {
                ".reqntid" => {
                    let mut size = [1; 3];
                    for (i, size) in size.iter_mut().enumerate() {
                        if i == 0 || self.take(',') {
                            *size = self.number("a number of threads")? as u32;
                        }
                    }
                    block = Some(size);
                }
                ".maxntid" | ".minnctapersm" | ".maxnreg" => self.skip_line(line),
                _ => return Err(self.expected(line, "a directive of an entry, such as .reqntid")),
            }
        }
        self.mark('{')?;
        let (mut names, mut labels, mut statements) = (Vec::new(), HashMap::new(), Vec::new());
        self.body(&mut names, &mut labels, &mut statements)?;
        let registers = names.iter().enumerate().map(|(slot, name): (usize, &String)| (name.clone(), slot as u32));
        let scope = Scope { registers: registers.collect(), labels, params: &params };
        let place = |statement: &Statement<'_>| Place {
            line: statement.line,
            source: statement.source.and_then(|(file, line)| Some((files.get(&file)?.clone(), line))),
        };
        let code = statements.iter().map(|s| decode(s, &scope, place(s))).collect::<Result<_, _>>()?;
        Ok(Entry { name, params, block, registers: names, code })
    }

    fn params(&mut self) -> Result<Vec<Parameter>, Error> {
        let mut params = Vec::new();
        self.mark('(')?;
        while !self.take(')') {
            let line = self.line();
            if self.word("`.param`")? != ".param" {
                return Err(self.expected(line, "`.param`"));
            }
            let bytes = match self.word("a type")? {
                ".u64" | ".s64" | ".b64" | ".f64" => 8,
                ".u32" | ".s32" | ".b32" | ".f32" => 4,
                _ => return Err(self.expected(line, "a parameter of 32 or 64 bits")),
            };
            params.push(Parameter { name: self.word("the name of a parameter")?.to_string(), bytes });
            self.take(',');
        }
        Ok(params)
    }

    /// The statements of an entry up to its closing brace.
    fn body(
        &mut self,
        registers: &mut Vec<String>,
        labels: &mut HashMap<&'a str, usize>,
        statements: &mut Vec<Statement<'a>>,
    ) -> Result<(), Error> {
        let mut source = None;
        loop {
            let line = self.line();
            if self.take('}') {
                return Ok(());
            }
            let guard = if self.take('@') {
                let negated = self.take('!');
                Some((self.word("a predicate")?, negated))
            } else {
                None
            };
            match self.word("an instruction or `}`")? {
                ".loc" => {
                    source = Some((self.number("a file's number")?, self.number("a line's number")? as u32));
                    self.skip_line(line);
                }
                ".reg" => self.registers(registers)?,
                directive if directive.starts_with('.') => {
                    return Err(self.expected(line, "an instruction, a label, .reg or .loc"));
                }
                label if self.take(':') => {
                    if labels.insert(label, statements.len()).is_some() {
                        return Err(Error::Syntax { line, message: format!("the label {label} stands twice") });
                    }
                }
                opcode => {
                    let operands = self.operands()?;
                    statements.push(Statement { guard, opcode, operands, line, source });
                }
            }
        }
    }

    /// `.f32 %f<8>;` or `.pred p, q;`
    fn registers(&mut self, names: &mut Vec<String>) -> Result<(), Error> {
        self.word("a register's type")?;
        loop {
            let name = self.word("a register's name")?;
            if self.take('<') {
                let count = self.number("a number of registers")?;
                names.extend((0..count).map(|i| format!("{name}{i}")));
                self.mark('>')?;
            } else {
                names.push(name.to_string());
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
                list.push(self.word("a register")?);
                self.take(',');
            }
            return Ok(Written::List(list));
        }
        if self.take('[') {
            let base = self.word("an address")?;
            let sign = if self.take('-') { -1 } else { i64::from(self.take('+')) };
            let bytes = if sign == 0 { 0 } else { sign * self.number("a number of bytes")? as i64 };
            self.mark(']')?;
            return Ok(Written::Address(base, bytes));
        }
        if self.take('-') {
            return Ok(Written::Number(self.number("a number")?.wrapping_neg()));
        }
        match self.peek() {
            Some(Kind::Number(bits)) => {
                self.at += 1;
                Ok(Written::Number(bits))
            }
            _ => Ok(Written::Name(self.word("an operand")?)),
        }
    }
}
