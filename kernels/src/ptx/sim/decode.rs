//! Statements to operations with resolved operands: the closed list of what the simulator knows.

use super::{
    Error, Place,
    parse::{Scope, Statement, Written},
};

/// An instruction, ready to run.
#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub(super) guard: Option<(u32, bool)>,
    pub(super) operation: Operation,
    /// Registers written: one, or as many as a vector load moves.
    pub(super) destinations: Vec<u32>,
    /// Values read.
    pub(super) sources: Vec<Source>,
    /// Offset added to an address.
    pub(super) offset: i64,
    /// Where a branch goes.
    pub(super) target: usize,
    pub(super) place: Place,
    /// The full name, for counts and messages.
    pub(super) opcode: String,
}

/// A value that an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Register(u32),
    Immediate(u64),
    Special(Special),
    /// A parameter, by position.
    Param(u32),
}

/// A register that the device fills in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    Eq,
    Lt,
    Le,
    Gt,
    Ge,
    /// Not <: true where either is NaN.
    NotLt,
    /// Not ≤: true where either is NaN.
    NotLe,
    /// Not ≥: true where either is NaN.
    NotGe,
    /// Not >: true where either is NaN.
    NotGt,
}

/// Types of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    F32,
    U32,
    U64,
    S32,
    S64,
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// A copy of so many bytes.
    Move(u32),
    Add(Kind),
    Sub(Kind),
    Multiply,
    MultiplyLow(Kind),
    MultiplyWide(Kind),
    Fma,
    MadLow(Kind),
    MadWide(Kind),
    Negate,
    Absolute,
    CopySign,
    Min,
    Max,
    MaxNan,
    Divide,
    ReciprocalApprox,
    Exp2Approx,
    TanhApprox,
    /// Of so many bits.
    ShiftLeft(u32),
    And,
    Or,
    Select,
    Compare(Compare, Kind),
    /// The lower bits, zeros above.
    WidenUnsigned(u32),
    /// The lower bits, copies of the highest of them above.
    WidenSigned(u32),
    /// To the nearest integer towards zero, as a float.
    Truncate,
    RoundBf16,
    RoundBf16x2,
    LoadParam,
    /// Bytes of one value; whether the memory must be constant.
    Load {
        bytes: u32,
        constant: bool,
    },
    Store {
        bytes: u32,
    },
    Branch,
    Return,
}

/// Resolves `statement`.
pub(super) fn decode(statement: &Statement<'_>, scope: &Scope<'_>, place: Place) -> Result<Instruction, Error> {
    let unknown = || Error::UnknownInstruction { place: place.clone(), instruction: statement.opcode.to_string() };
    let (operation, shape) = operation(statement.opcode).ok_or_else(unknown)?;
    let syntax = |message: String| Error::Syntax { line: statement.line, message };
    let register = |name: &str| {
        let slot = scope.registers.get(name).copied();
        slot.ok_or_else(|| syntax(format!("`{}` names the register {name}, which is not declared", statement.opcode)))
    };
    let mut instruction = Instruction {
        guard: statement.guard.map(|(name, negated)| Ok((register(name)?, negated))).transpose()?,
        operation,
        destinations: Vec::new(),
        sources: Vec::new(),
        offset: 0,
        target: 0,
        place: place.clone(),
        opcode: statement.opcode.to_string(),
    };
    let mut operands = statement.operands.iter();
    let fits = statement.operands.len() == usize::from(shape.defines) + shape.reads;
    if !fits {
        let (found, wanted) = (statement.operands.len(), usize::from(shape.defines) + shape.reads);
        return Err(syntax(format!("`{}` has {found} operands, expected {wanted}", statement.opcode)));
    }
    if shape.defines {
        instruction.destinations = match operands.next() {
            Some(Written::Name(name)) => vec![register(name)?],
            Some(Written::List(names)) => names.iter().map(|name| register(name)).collect::<Result<_, _>>()?,
            other => return Err(syntax(format!("`{}` cannot write to {other:?}", statement.opcode))),
        };
    }
    for operand in operands {
        match operand {
            Written::Name(label) if operation == Operation::Branch => {
                let target = scope.labels.get(label).copied();
                instruction.target = target.ok_or_else(|| syntax(format!("the label {label} stands nowhere")))?;
            }
            Written::Name(name) => instruction.sources.push(match special(name) {
                Some(special) => Source::Special(special),
                None => Source::Register(register(name)?),
            }),
            Written::Number(bits) => instruction.sources.push(Source::Immediate(*bits)),
            Written::List(names) => {
                for name in names {
                    instruction.sources.push(Source::Register(register(name)?));
                }
            }
            Written::Address(base, offset) => {
                instruction.offset = *offset;
                instruction.sources.push(if operation == Operation::LoadParam {
                    let position = scope.params.iter().position(|param| param.name == *base);
                    Source::Param(position.ok_or_else(|| syntax(format!("there is no parameter {base}")))? as u32)
                } else {
                    Source::Register(register(base)?)
                });
            }
        }
    }
    let moved = match operation {
        Operation::Load { .. } => instruction.destinations.len(),
        Operation::Store { .. } => instruction.sources.len() - 1,
        _ => return Ok(instruction),
    };
    if moved != shape.vector {
        return Err(syntax(format!("`{}` moves {} values and names {moved}", statement.opcode, shape.vector)));
    }
    Ok(instruction)
}

/// The special register called `name`.
fn special(name: &str) -> Option<Special> {
    let (register, axis) = name.split_once('.')?;
    let axis = ["x", "y", "z"].iter().position(|a| *a == axis)?;
    match register {
        "%tid" => Some(Special::Tid(axis)),
        "%ntid" => Some(Special::Ntid(axis)),
        "%ctaid" => Some(Special::Ctaid(axis)),
        "%nctaid" => Some(Special::Nctaid(axis)),
        _ => None,
    }
}

/// How many operands an instruction has, and how many values it moves.
struct Shape {
    defines: bool,
    reads: usize,
    vector: usize,
}

/// The operation of a full instruction name.
fn operation(opcode: &str) -> Option<(Operation, Shape)> {
    use Operation as O;
    let parts: Vec<&str> = opcode.split('.').collect();
    let reads = |operation, reads| Some((operation, Shape { defines: true, reads, vector: 1 }));
    match parts.as_slice() {
        ["mov", "u32" | "b32" | "f32"] => reads(O::Move(4), 1),
        ["mov", "u64" | "b64"] | ["cvta", "to", "global", "u64"] => reads(O::Move(8), 1),
        ["mov", "b16"] => reads(O::Move(2), 1),
        // Without a rounding mode the device may fuse; the unfused result is one that it may give.
        ["add", "rn", "f32"] | ["add", "f32"] => reads(O::Add(Kind::F32), 2),
        ["sub", "rn", "f32"] | ["sub", "f32"] => reads(O::Sub(Kind::F32), 2),
        ["mul", "rn", "f32"] | ["mul", "f32"] => reads(O::Multiply, 2),
        ["add", integer] => reads(O::Add(self::integer(integer)?), 2),
        ["sub", integer] => reads(O::Sub(self::integer(integer)?), 2),
        ["mul", "lo", integer] => reads(O::MultiplyLow(self::integer(integer)?), 2),
        ["mul", "wide", "u32"] => reads(O::MultiplyWide(Kind::U32), 2),
        ["mul", "wide", "s32"] => reads(O::MultiplyWide(Kind::S32), 2),
        ["mad", "lo", integer] => reads(O::MadLow(self::integer(integer)?), 3),
        ["mad", "wide", "u32"] => reads(O::MadWide(Kind::U32), 3),
        ["mad", "wide", "s32"] => reads(O::MadWide(Kind::S32), 3),
        ["fma", "rn", "f32"] => reads(O::Fma, 3),
        ["neg", "f32"] => reads(O::Negate, 1),
        ["abs", "f32"] => reads(O::Absolute, 1),
        ["copysign", "f32"] => reads(O::CopySign, 2),
        ["min", "f32"] => reads(O::Min, 2),
        ["max", "f32"] => reads(O::Max, 2),
        ["max", "NaN", "f32"] => reads(O::MaxNan, 2),
        ["div", "rn", "f32"] => reads(O::Divide, 2),
        ["rcp", "approx", "ftz", "f32"] => reads(O::ReciprocalApprox, 1),
        ["ex2", "approx", "ftz", "f32"] => reads(O::Exp2Approx, 1),
        ["tanh", "approx", "f32"] => reads(O::TanhApprox, 1),
        ["shl", "b32"] => reads(O::ShiftLeft(32), 2),
        ["shl", "b64"] => reads(O::ShiftLeft(64), 2),
        ["and", "b32"] => reads(O::And, 2),
        ["or", "b32"] => reads(O::Or, 2),
        ["selp", "f32"] => reads(O::Select, 3),
        ["setp", compare, kind] => reads(O::Compare(self::compare(compare)?, self::kind(kind)?), 2),
        ["cvt", "u32", "u16"] => reads(O::WidenUnsigned(16), 1),
        ["cvt", "u64", "u32"] => reads(O::WidenUnsigned(32), 1),
        ["cvt", "s64", "s32"] => reads(O::WidenSigned(32), 1),
        ["cvt", "rzi", "f32", "f32"] => reads(O::Truncate, 1),
        ["cvt", "rn", "bf16", "f32"] => reads(O::RoundBf16, 1),
        ["cvt", "rn", "bf16x2", "f32"] => reads(O::RoundBf16x2, 2),
        ["ld", "param", "u32" | "u64" | "f32"] => reads(O::LoadParam, 1),
        ["ld", "global", how @ ..] => load(how),
        ["st", "global", how @ ..] => store(how),
        ["bra"] => Some((O::Branch, Shape { defines: false, reads: 1, vector: 0 })),
        ["ret"] => Some((O::Return, Shape { defines: false, reads: 0, vector: 0 })),
        _ => None,
    }
}

fn compare(name: &str) -> Option<Compare> {
    Some(match name {
        "eq" => Compare::Eq,
        "lt" => Compare::Lt,
        "le" => Compare::Le,
        "gt" => Compare::Gt,
        "ge" => Compare::Ge,
        "geu" => Compare::NotLt,
        "gtu" => Compare::NotLe,
        "ltu" => Compare::NotGe,
        "leu" => Compare::NotGt,
        _ => return None,
    })
}

fn kind(name: &str) -> Option<Kind> {
    if name == "f32" { Some(Kind::F32) } else { integer(name) }
}

fn integer(name: &str) -> Option<Kind> {
    Some(match name {
        "u32" => Kind::U32,
        "u64" => Kind::U64,
        "s32" => Kind::S32,
        "s64" => Kind::S64,
        _ => return None,
    })
}

/// `[.v2|.v4].type`: how many values, and the bytes of each.
fn vector(parts: &[&str]) -> Option<(usize, u32)> {
    let (count, kind) = match parts {
        [kind] => (1, kind),
        ["v2", kind] => (2, kind),
        ["v4", kind] => (4, kind),
        _ => return None,
    };
    let bytes = match *kind {
        "b16" => 2,
        "b32" | "u32" | "f32" => 4,
        "u64" | "b64" => 8,
        _ => return None,
    };
    (count as u32 * bytes <= 16).then_some((count, bytes))
}

fn load(parts: &[&str]) -> Option<(Operation, Shape)> {
    let (constant, parts) = match parts {
        ["nc", "L1::no_allocate", rest @ ..] | ["nc", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (vector, bytes) = vector(parts)?;
    Some((Operation::Load { bytes, constant }, Shape { defines: true, reads: 1, vector }))
}

fn store(parts: &[&str]) -> Option<(Operation, Shape)> {
    let (vector, bytes) = vector(parts)?;
    Some((Operation::Store { bytes }, Shape { defines: false, reads: 2, vector }))
}
