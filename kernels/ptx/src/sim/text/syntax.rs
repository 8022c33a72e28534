//! Statements and operands as the text spells them.

/// An operand as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand<'a> {
    Name(&'a str),
    /// `!p`
    Not(&'a str),
    /// `p|q`
    Pair(&'a str, &'a str),
    Number(u64),
    /// `name+4`
    Sum(&'a str, i64),
    /// `{a, b}`
    List(Vec<Operand<'a>>),
    /// `[base+bytes, …]`
    Address(Box<Operand<'a>>, i64, Vec<Operand<'a>>),
}

/// An instruction as it is written.
#[derive(Clone, Debug)]
pub(crate) struct Statement<'a> {
    /// The guard's register, and whether it is negated.
    pub(crate) guard: Option<(&'a str, bool)>,
    pub(crate) opcode: &'a str,
    pub(crate) operands: Vec<Operand<'a>>,
    pub(crate) line: u32,
    /// File and line of the `.loc` before it.
    pub(crate) source: Option<(u64, u32)>,
    /// The innermost scope around it.
    pub(crate) scope: u32,
}
