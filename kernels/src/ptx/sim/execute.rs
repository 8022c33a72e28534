//! Runs a grid, one thread after the other.

use super::{
    Error, Memory, Module,
    decode::{Compare, Instruction, Kind, Operation, Source, Special},
    parse::Entry,
};
use crate::operation::Launch;
use std::collections::BTreeMap;

/// More instructions than this in one thread are taken for a loop that does not end.
const MAX_INSTRUCTIONS: u64 = 10_000_000;

/// Which value within its documented error an approximate instruction gives.
///
/// | instruction | error at most, relative |
/// |---|---|
/// | `rcp.approx.ftz.f32` | 2⁻²³ (1 ulp) |
/// | `ex2.approx.ftz.f32` | 2⁻²² (2 ulp) |
/// | `tanh.approx.f32` | 2⁻¹¹ |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approximation {
    /// The correctly rounded one.
    Exact,
    /// The one largest in magnitude.
    High,
    /// The one smallest in magnitude.
    Low,
}

impl Approximation {
    /// All of them: a tolerance that holds for each holds on the device.
    pub const ALL: [Approximation; 3] = [Approximation::Exact, Approximation::High, Approximation::Low];

    /// `exact`, moved by the relative error `bound`, rounded.
    fn apply(self, exact: f64, bound: f64) -> f32 {
        match self {
            Approximation::Exact => exact as f32,
            Approximation::High => (exact * (1.0 + bound)) as f32,
            Approximation::Low => (exact * (1.0 - bound)) as f32,
        }
    }
}

/// A kernel's argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// An address or a 64-bit number.
    U64(u64),
    /// A 32-bit number.
    U32(u32),
    /// A float.
    F32(f32),
}

impl Argument {
    fn bits(self) -> (u64, usize) {
        match self {
            Argument::U64(value) => (value, 8),
            Argument::U32(value) => (u64::from(value), 4),
            Argument::F32(value) => (u64::from(value.to_bits()), 4),
        }
    }
}

/// How often each instruction ran in a launch, over all threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Full name of the instruction, times it ran. One whose guard did not hold counts too: the device issues it.
    pub instructions: BTreeMap<String, u64>,
}

impl Module {
    /// Runs the kernel `entry` over a grid.
    ///
    /// # Errors
    /// [`Error::Launch`] if grid, block or arguments do not fit the kernel; [`Error::Fault`] if a thread does something
    /// forbidden, with the place in the text and in the Rust source.
    pub fn launch(
        &self,
        entry: &str,
        launch: Launch,
        arguments: &[Argument],
        memory: &mut Memory,
        approximation: Approximation,
    ) -> Result<Counts, Error> {
        let found = self.entries.iter().find(|candidate| candidate.name == entry);
        let entry = found.ok_or_else(|| Error::Launch(format!("the module has no entry `{entry}`")))?;
        let params = check(entry, launch, arguments)?;
        memory.begin_launch();
        let mut times = vec![0; entry.code.len()];
        let mut number = 0;
        for block in positions(launch.grid) {
            for thread in positions(launch.block) {
                number += 1;
                let mut state = Thread {
                    entry,
                    launch,
                    params: &params,
                    approximation,
                    block,
                    thread,
                    number,
                    values: vec![None; entry.registers.len()],
                };
                state.run(memory, &mut times)?;
            }
        }
        let mut counts = Counts::default();
        for (instruction, times) in entry.code.iter().zip(times) {
            *counts.instructions.entry(instruction.opcode.clone()).or_default() += times;
        }
        Ok(counts)
    }
}

/// The bits of the arguments, if they and the launch fit `entry`.
fn check(entry: &Entry, launch: Launch, arguments: &[Argument]) -> Result<Vec<u64>, Error> {
    if let Some(block) = entry.block.filter(|block| *block != launch.block) {
        let name = &entry.name;
        return Err(Error::Launch(format!("`{name}` wants blocks of {block:?} threads, not {:?}", launch.block)));
    }
    if launch.grid.contains(&0) || launch.block.contains(&0) || launch.grid[1] > 65_535 || launch.grid[2] > 65_535 {
        return Err(Error::Launch(format!("the device takes no grid of {:?} blocks", launch.grid)));
    }
    if entry.params.len() != arguments.len() {
        let (wanted, given) = (entry.params.len(), arguments.len());
        return Err(Error::Launch(format!("`{}` has {wanted} parameters and got {given} arguments", entry.name)));
    }
    let fitted = entry.params.iter().zip(arguments).map(|(param, argument)| match argument.bits() {
        (bits, bytes) if bytes == param.bytes => Ok(bits),
        (_, bytes) => {
            let (name, wanted) = (&param.name, param.bytes);
            Err(Error::Launch(format!("parameter `{name}` has {wanted} bytes and its argument {bytes}")))
        }
    });
    fitted.collect()
}

/// All positions in a box, x first.
fn positions(size: [u32; 3]) -> impl Iterator<Item = [u32; 3]> {
    let [x, y, z] = size;
    (0..z).flat_map(move |k| (0..y).flat_map(move |j| (0..x).map(move |i| [i, j, k])))
}

/// One thread.
struct Thread<'a> {
    entry: &'a Entry,
    launch: Launch,
    params: &'a [u64],
    approximation: Approximation,
    block: [u32; 3],
    thread: [u32; 3],
    /// Its number in the launch, from 1.
    number: u32,
    /// Registers; `None` until written.
    values: Vec<Option<u64>>,
}

impl Thread<'_> {
    fn run(&mut self, memory: &mut Memory, times: &mut [u64]) -> Result<(), Error> {
        let (mut at, mut executed) = (0, 0);
        let entry = self.entry;
        while let Some(instruction) = entry.code.get(at) {
            let fault = |message| Error::Fault {
                place: instruction.place.clone(),
                block: self.block,
                thread: self.thread,
                message: format!("`{}` {message}", instruction.opcode),
            };
            times[at] += 1;
            executed += 1;
            if executed > MAX_INSTRUCTIONS {
                return Err(fault(format!("is instruction {executed} of its thread; a loop does not end")));
            }
            at += 1;
            if let Some((guard, negated)) = instruction.guard {
                let holds = self.value(Source::Register(guard)).map_err(fault)? != 0;
                if holds == negated {
                    continue;
                }
            }
            match instruction.operation {
                Operation::Return => return Ok(()),
                Operation::Branch => at = instruction.target,
                _ => self.step(instruction, memory).map_err(|message| Error::Fault {
                    place: instruction.place.clone(),
                    block: self.block,
                    thread: self.thread,
                    message: format!("`{}` {message}", instruction.opcode),
                })?,
            }
        }
        Ok(())
    }

    fn value(&self, source: Source) -> Result<u64, String> {
        Ok(match source {
            Source::Immediate(bits) => bits,
            Source::Register(slot) => self.values[slot as usize].ok_or_else(|| {
                let name = &self.entry.registers[slot as usize];
                format!("reads the register {name}, which was never written")
            })?,
            Source::Param(position) => self.params[position as usize],
            Source::Special(Special::Tid(axis)) => u64::from(self.thread[axis]),
            Source::Special(Special::Ntid(axis)) => u64::from(self.launch.block[axis]),
            Source::Special(Special::Ctaid(axis)) => u64::from(self.block[axis]),
            Source::Special(Special::Nctaid(axis)) => u64::from(self.launch.grid[axis]),
        })
    }

    /// Runs anything but a branch.
    fn step(&mut self, instruction: &Instruction, memory: &mut Memory) -> Result<(), String> {
        match instruction.operation {
            Operation::Load { bytes, constant } => {
                let address = self.address(instruction, bytes, instruction.destinations.len())?;
                for (i, &slot) in instruction.destinations.iter().enumerate() {
                    let value = memory.load(address + i as u64 * u64::from(bytes), bytes, self.number, constant)?;
                    self.values[slot as usize] = Some(value);
                }
            }
            Operation::Store { bytes } => {
                let values = &instruction.sources[1..];
                let address = self.address(instruction, bytes, values.len())?;
                for (i, &source) in values.iter().enumerate() {
                    let value = self.value(source)?;
                    memory.store(address + i as u64 * u64::from(bytes), bytes, value, self.number)?;
                }
            }
            operation => {
                let mut read = [0; 3];
                for (value, source) in read.iter_mut().zip(&instruction.sources) {
                    *value = self.value(*source)?;
                }
                self.values[instruction.destinations[0] as usize] = Some(compute(operation, read, self.approximation));
            }
        }
        Ok(())
    }

    /// The address of an access to `count` values of `bytes` each, which must be aligned to all of them.
    fn address(&self, instruction: &Instruction, bytes: u32, count: usize) -> Result<u64, String> {
        let address = self.value(instruction.sources[0])?.wrapping_add_signed(instruction.offset);
        let whole = u64::from(bytes) * count as u64;
        if !address.is_multiple_of(whole) {
            return Err(format!("goes to {address:#x}, which is no multiple of its {whole} bytes"));
        }
        Ok(address)
    }
}

/// The result of an instruction that touches no memory.
fn compute(operation: Operation, read: [u64; 3], approximation: Approximation) -> u64 {
    use Operation as O;
    let [a, b, c] = read;
    let [x, y, z] = read.map(|bits| f32::from_bits(bits as u32));
    let [u, v, _] = read.map(|bits| bits as u32);
    match operation {
        O::Move(bytes) => a & (u64::MAX >> (64 - 8 * bytes)),
        O::Add(Kind::F32) => float(x + y),
        O::Add(kind) => narrow(kind, a.wrapping_add(b)),
        O::Sub(Kind::F32) => float(x - y),
        O::Sub(kind) => narrow(kind, a.wrapping_sub(b)),
        O::Multiply => float(x * y),
        O::Fma => float(x.mul_add(y, z)),
        O::Divide => float(x / y),
        O::MultiplyLow(kind) => narrow(kind, a.wrapping_mul(b)),
        O::MadLow(kind) => narrow(kind, a.wrapping_mul(b).wrapping_add(c)),
        O::MultiplyWide(kind) => wide(kind, u, v),
        O::MadWide(kind) => wide(kind, u, v).wrapping_add(c),
        O::Negate => u64::from((-x).to_bits()),
        O::Absolute => u64::from(x.abs().to_bits()),
        O::CopySign => u64::from(y.copysign(x).to_bits()),
        O::Min => float(number(x, y, |a, b| a < b || (a == b && a.is_sign_negative()))),
        O::Max => float(number(x, y, |a, b| a > b || (a == b && a.is_sign_positive()))),
        O::MaxNan if x.is_nan() || y.is_nan() => float(f32::NAN),
        O::MaxNan => compute(O::Max, read, approximation),
        O::ReciprocalApprox => float(flushed(approximation.apply(1.0 / f64::from(flushed(x)), f64::exp2(-23.0)))),
        O::Exp2Approx => float(flushed(approximation.apply(f64::from(flushed(x)).exp2(), f64::exp2(-22.0)))),
        O::TanhApprox => float(approximation.apply(f64::from(x).tanh(), f64::exp2(-11.0))),
        O::ShiftLeft(32) => u64::from(u.checked_shl(v).unwrap_or(0)),
        O::ShiftLeft(_) => a.checked_shl(v).unwrap_or(0),
        O::And => u64::from(u & v),
        O::Or => u64::from(u | v),
        O::Select => u64::from(if c != 0 { u } else { v }),
        O::Compare(compare, Kind::F32) => holds(compare, &x, &y),
        O::Compare(compare, Kind::U32) => holds(compare, &u, &v),
        O::Compare(compare, Kind::U64) => holds(compare, &a, &b),
        O::Compare(compare, Kind::S32) => holds(compare, &u.cast_signed(), &v.cast_signed()),
        O::Compare(compare, Kind::S64) => holds(compare, &a.cast_signed(), &b.cast_signed()),
        O::WidenUnsigned(bits) => a & (u64::MAX >> (64 - bits)),
        O::WidenSigned(bits) => (a.cast_signed() << (64 - bits) >> (64 - bits)).cast_unsigned(),
        O::Truncate => float(x.trunc()),
        O::RoundBf16 => u64::from(bf16(x)),
        O::RoundBf16x2 => u64::from(bf16(x)) << 16 | u64::from(bf16(y)),
        O::LoadParam => a,
        O::Load { .. } | O::Store { .. } | O::Branch | O::Return => unreachable!("{operation:?} computes nothing"),
    }
}

/// A comparison's result. Where the two have no order, the plain ones are false and the negated ones true.
#[allow(clippy::neg_cmp_op_on_partial_ord)]
fn holds<T: PartialOrd>(compare: Compare, a: &T, b: &T) -> u64 {
    u64::from(match compare {
        Compare::Eq => a == b,
        Compare::Lt => a < b,
        Compare::Le => a <= b,
        Compare::Gt => a > b,
        Compare::Ge => a >= b,
        Compare::NotLt => !(a < b),
        Compare::NotLe => !(a <= b),
        Compare::NotGe => !(a >= b),
        Compare::NotGt => !(a > b),
    })
}

/// The lower bits of a sum or product that an integer of `kind` keeps; they are the same with and without a sign.
fn narrow(kind: Kind, value: u64) -> u64 {
    match kind {
        Kind::U32 | Kind::S32 => value & u64::from(u32::MAX),
        Kind::U64 | Kind::S64 => value,
        Kind::F32 => unreachable!("floats are rounded, not cut"),
    }
}

/// All 64 bits of a product of 32-bit integers.
fn wide(kind: Kind, a: u32, b: u32) -> u64 {
    match kind {
        Kind::S32 => (i64::from(a.cast_signed()) * i64::from(b.cast_signed())).cast_unsigned(),
        _ => u64::from(a) * u64::from(b),
    }
}

/// The bits of a result: there is one NaN on the device.
fn float(value: f32) -> u64 {
    u64::from(if value.is_nan() { 0x7FFF_FFFF } else { value.to_bits() })
}

/// The one that `first` prefers; the number where one is NaN.
fn number(a: f32, b: f32, first: impl Fn(f32, f32) -> bool) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if first(a, b) => a,
        _ => b,
    }
}

/// Subnormals as zero of their sign.
fn flushed(value: f32) -> f32 {
    if value.is_subnormal() { 0.0f32.copysign(value) } else { value }
}

/// A float rounded to bf16, ties to even; there is one NaN on the device.
fn bf16(value: f32) -> u16 {
    if value.is_nan() { 0x7FFF } else { half::bf16::from_f32(value).to_bits() }
}
