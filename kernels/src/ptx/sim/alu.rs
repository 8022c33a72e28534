//! Arithmetic of one lane: what an instruction that touches no memory and no other lane computes.
//!
//! A form is a plain function over register bits; [`find`] maps an opcode to it. Roundings other than to nearest are
//! exact: the result is taken as an unevaluated sum of two f64, which holds the sum or product of two f32 without
//! error, and rounded once.

use super::{
    Approximation,
    convert::{self, Rounding, rounded},
    decode::Opcode,
    float16,
    types::{Lane, Type, flushed},
};

/// What a form's function knows beside its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct How {
    pub(super) rounding: Rounding,
    /// Subnormals count as zero.
    pub(super) ftz: bool,
    /// Results are clamped to [0, 1], integers to their range.
    pub(super) saturate: bool,
    /// NaN wins over numbers.
    pub(super) nan: bool,
    /// Negative results become zero.
    pub(super) relu: bool,
    pub(super) compare: Compare,
    pub(super) combine: Combine,
    /// The last source, a predicate, is taken negated.
    pub(super) negated: bool,
    /// What is converted.
    pub(super) from: Type,
    /// Of the result.
    pub(super) to: Type,
    /// A variant of the form: the mode of `prmt`, the direction of `shf`.
    pub(super) mode: u8,
}

impl Default for How {
    fn default() -> Self {
        How {
            rounding: Rounding::Nearest,
            ftz: false,
            saturate: false,
            nan: false,
            relu: false,
            compare: Compare::Eq,
            combine: Combine::None,
            negated: false,
            from: Type::B32,
            to: Type::B32,
            mode: 0,
        }
    }
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// Those with a `u` are true where either is NaN.
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    /// Neither is NaN.
    Num,
    /// Either is NaN.
    Nan,
}

/// How a comparison's result meets a third predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Combine {
    None,
    And,
    Or,
    Xor,
}

/// The result of one lane from its sources.
pub(super) type Run = fn(&[u64; 4], &How, Approximation) -> u64;
/// Two results of one lane.
pub(super) type RunTwo = fn(&[u64; 4], &How, Approximation) -> (u64, u64);

/// A form of an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) run: Function,
    pub(super) sources: usize,
    pub(super) flops: u32,
    pub(super) how: How,
}

/// Its function.
#[derive(Clone, Copy, Debug)]
pub(super) enum Function {
    One(Run),
    Two(RunTwo),
}

/// The same closure for several integer types: `T` is the type within it.
macro_rules! integers {
    ($ty:expr, [$($kind:ident $prim:ident),*], $f:expr) => {
        match $ty {
            $(Type::$kind => { type T = $prim; let f: Run = $f; Some(f) })*
            _ => None,
        }
    };
    ($ty:expr, $f:expr) => {
        integers!($ty, [U16 u16, U32 u32, U64 u64, S16 i16, S32 i32, S64 i64], $f)
    };
}

macro_rules! bits {
    ($ty:expr, $f:expr) => {
        match $ty {
            Type::B16 | Type::U16 | Type::S16 => {
                type T = u16;
                let f: Run = $f;
                Some(f)
            }
            Type::B32 | Type::U32 | Type::S32 => {
                type T = u32;
                let f: Run = $f;
                Some(f)
            }
            Type::B64 | Type::U64 | Type::S64 => {
                type T = u64;
                let f: Run = $f;
                Some(f)
            }
            _ => None,
        }
    };
}

/// The form of `opcode`, if it is arithmetic of one lane. Modifiers that it understands are taken from the opcode;
/// whatever is left over makes the instruction unknown.
pub(super) fn find(opcode: &mut Opcode<'_>) -> Option<Form> {
    let mut how = How::default();
    let name = opcode.name;
    if name == "cvt" {
        return convert::find(opcode);
    }
    if matches!(name, "setp" | "set") {
        return comparison(opcode);
    }
    let parts = opcode.parts.len();
    how.rounding = rounding(opcode);
    how.ftz = opcode.take("ftz");
    how.saturate = opcode.take("sat");
    how.nan = opcode.take("NaN");
    let for_floats = opcode.parts.len() + usize::from(how.saturate) < parts;
    how.relu = opcode.take("relu");
    let form = |run: Run, sources, flops| Some(Form { run: Function::One(run), sources, flops, how });
    if matches!(opcode.parts.last(), Some(&("f16" | "f16x2" | "bf16" | "bf16x2"))) {
        let ty = opcode.ty()?;
        let (run, sources, flops) = float16::find(name, ty, opcode)?;
        return form(run, sources, flops);
    }
    if opcode.parts.last() == Some(&"f32") {
        opcode.ty()?;
        let (run, sources, flops) = f32_form(name, opcode)?;
        return form(run, sources, flops);
    }
    if opcode.parts.last() == Some(&"f64") {
        opcode.ty()?;
        let (run, sources, flops) = f64_form(name)?;
        return form(run, sources, flops);
    }
    let clamps = matches!(name, "min" | "max") && opcode.parts.last() == Some(&"s32");
    let saturates = matches!(name, "add" | "sub") && opcode.parts.last() == Some(&"s32");
    if for_floats || how.relu && !clamps || how.saturate && !saturates {
        return None;
    }
    if opcode.take("cc") || matches!(name, "addc" | "subc" | "madc") {
        return carried(name, opcode, how);
    }
    integer_form(name, opcode, how)
}

pub(super) fn rounding(opcode: &mut Opcode<'_>) -> Rounding {
    for (name, rounding) in
        [("rn", Rounding::Nearest), ("rz", Rounding::Zero), ("rm", Rounding::Down), ("rp", Rounding::Up)]
    {
        if opcode.take(name) {
            return rounding;
        }
    }
    Rounding::Nearest
}

/// An f32 operand.
fn float(bits: u64, how: &How) -> f32 {
    let value = f32::from_bits(bits as u32);
    if how.ftz { flushed(value) } else { value }
}

/// The bits of `high + low`, rounded as `how` says.
fn out(high: f64, low: f64, how: &How) -> u64 {
    let value = rounded(high, low, how.rounding);
    finish(value, how)
}

/// Clamped to [0, 1]; NaN becomes 0.
pub(super) fn saturated(value: f32) -> f32 {
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

fn finish(value: f32, how: &How) -> u64 {
    let value = if how.ftz { flushed(value) } else { value };
    (if how.saturate { saturated(value) } else { value }).bits()
}

/// The sum of two f64 without error: the rounded sum and what was lost.
pub(super) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

fn f32_form(name: &str, opcode: &mut Opcode<'_>) -> Option<(Run, usize, u32)> {
    let approx = opcode.take("approx");
    let full = opcode.take("full");
    Some(match name {
        "add" => (add_f32, 2, 1),
        "sub" => (|s, h, a| add_f32(&[s[0], s[1] ^ 0x8000_0000, 0, 0], h, a), 2, 1),
        "mul" => (|s, h, _| out(f64::from(float(s[0], h)) * f64::from(float(s[1], h)), 0.0, h), 2, 1),
        "fma" | "mad" => (fma_f32, 3, 2),
        "neg" => (|s, h, _| u64::from((-float(s[0], h)).to_bits()), 1, 1),
        "abs" => (|s, h, _| u64::from(float(s[0], h).abs().to_bits()), 1, 1),
        "copysign" => (|s, h, _| u64::from(float(s[1], h).copysign(float(s[0], h)).to_bits()), 2, 0),
        "min" => (|s, h, _| finish(least(float(s[0], h), float(s[1], h), h.nan), h), 2, 1),
        "max" => (|s, h, _| finish(-least(-float(s[0], h), -float(s[1], h), h.nan), h), 2, 1),
        "div" if approx || full => {
            (|s, h, a| near(f64::from(float(s[0], h)) / f64::from(float(s[1], h)), -22.0, h, a), 2, 1)
        }
        "div" => (|s, h, _| quotient(float(s[0], h), float(s[1], h), h), 2, 1),
        "rcp" if approx => (|s, h, a| near(1.0 / f64::from(float(s[0], h)), -23.0, h, a), 1, 1),
        "rcp" => (|s, h, _| quotient(1.0, float(s[0], h), h), 1, 1),
        "sqrt" if approx => (|s, h, a| near(f64::from(float(s[0], h)).sqrt(), -23.0, h, a), 1, 1),
        "sqrt" => (|s, h, _| root(float(s[0], h), h), 1, 1),
        "rsqrt" if approx => (|s, h, a| near(1.0 / f64::from(float(s[0], h)).sqrt(), -22.4, h, a), 1, 1),
        "ex2" if approx => (|s, h, a| near(f64::from(float(s[0], h)).exp2(), -22.0, h, a), 1, 1),
        "lg2" if approx => (|s, h, a| near(f64::from(float(s[0], h)).log2(), -22.0, h, a), 1, 1),
        "sin" if approx => (|s, h, a| absolute(f64::from(float(s[0], h)).sin(), -20.5, h, a), 1, 1),
        "cos" if approx => (|s, h, a| absolute(f64::from(float(s[0], h)).cos(), -20.5, h, a), 1, 1),
        "tanh" if approx => (|s, h, a| near(f64::from(float(s[0], h)).tanh(), -11.0, h, a), 1, 1),
        "selp" => (select, 3, 0),
        "testp" => testp(opcode)?,
        _ => return None,
    })
}

fn add_f32(s: &[u64; 4], how: &How, _: Approximation) -> u64 {
    let (a, b) = (float(s[0], how), float(s[1], how));
    if how.rounding == Rounding::Nearest {
        return finish(a + b, how);
    }
    let (high, low) = two_sum(f64::from(a), f64::from(b));
    out(high, low, how)
}

fn fma_f32(s: &[u64; 4], how: &How, _: Approximation) -> u64 {
    let (a, b, c) = (float(s[0], how), float(s[1], how), float(s[2], how));
    if how.rounding == Rounding::Nearest {
        return finish(a.mul_add(b, c), how);
    }
    let (high, low) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    out(high, low, how)
}

/// a / b rounded as asked: the remainder tells on which side of the f64 quotient the exact one lies.
fn quotient(a: f32, b: f32, how: &How) -> u64 {
    let (a, b) = (f64::from(a), f64::from(b));
    let quotient = a / b;
    let remainder = (-quotient).mul_add(b, a) / b;
    out(quotient, if remainder.is_finite() { remainder } else { 0.0 }, how)
}

fn root(x: f32, how: &How) -> u64 {
    let x = f64::from(x);
    let root = x.sqrt();
    let rest = (-root).mul_add(root, x) / (2.0 * root);
    out(root, if rest.is_finite() { rest } else { 0.0 }, how)
}

/// `exact`, anywhere within the relative error 2^`bound`.
fn near(exact: f64, bound: f64, how: &How, approximation: Approximation) -> u64 {
    finish(approximation.apply(exact, bound.exp2()), how)
}

/// `exact`, anywhere within the absolute error 2^`bound`.
fn absolute(exact: f64, bound: f64, how: &How, approximation: Approximation) -> u64 {
    let off = match approximation {
        Approximation::Exact => 0.0,
        Approximation::High => bound.exp2(),
        Approximation::Low => -bound.exp2(),
    };
    finish((exact + off) as f32, how)
}

/// The lesser of two: the number where one is NaN, unless NaN shall win; -0 is less than +0.
pub(super) fn least(a: f32, b: f32, nan: bool) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => f32::NAN,
        (true, false) => {
            if nan {
                f32::NAN
            } else {
                b
            }
        }
        (false, true) => {
            if nan {
                f32::NAN
            } else {
                a
            }
        }
        _ if a < b || (a == b && a.is_sign_negative()) => a,
        _ => b,
    }
}

pub(super) fn select(s: &[u64; 4], _: &How, _: Approximation) -> u64 {
    if s[2] != 0 { s[0] } else { s[1] }
}

fn testp(opcode: &mut Opcode<'_>) -> Option<(Run, usize, u32)> {
    let class: Run = match opcode.parts.pop()? {
        "finite" => |s, _, _| u64::from(f32::of(s[0]).is_finite()),
        "infinite" => |s, _, _| u64::from(f32::of(s[0]).is_infinite()),
        "number" => |s, _, _| u64::from(!f32::of(s[0]).is_nan()),
        "notanumber" => |s, _, _| u64::from(f32::of(s[0]).is_nan()),
        "normal" => |s, _, _| u64::from(f32::of(s[0]).is_normal()),
        "subnormal" => |s, _, _| u64::from(f32::of(s[0]).is_subnormal()),
        _ => return None,
    };
    Some((class, 1, 0))
}

fn f64_form(name: &str) -> Option<(Run, usize, u32)> {
    Some(match name {
        "add" => (|s, _, _| (f64::of(s[0]) + f64::of(s[1])).bits(), 2, 1),
        "sub" => (|s, _, _| (f64::of(s[0]) - f64::of(s[1])).bits(), 2, 1),
        "mul" => (|s, _, _| (f64::of(s[0]) * f64::of(s[1])).bits(), 2, 1),
        "fma" | "mad" => (|s, _, _| f64::of(s[0]).mul_add(f64::of(s[1]), f64::of(s[2])).bits(), 3, 2),
        "div" => (|s, _, _| (f64::of(s[0]) / f64::of(s[1])).bits(), 2, 1),
        "rcp" => (|s, _, _| (1.0 / f64::of(s[0])).bits(), 1, 1),
        "sqrt" => (|s, _, _| f64::of(s[0]).sqrt().bits(), 1, 1),
        "neg" => (|s, _, _| s[0] ^ (1 << 63), 1, 1),
        "abs" => (|s, _, _| s[0] & !(1 << 63), 1, 1),
        "min" => (|s, _, _| f64::of(s[0]).min(f64::of(s[1])).bits(), 2, 1),
        "max" => (|s, _, _| f64::of(s[0]).max(f64::of(s[1])).bits(), 2, 1),
        "selp" => (select, 3, 0),
        _ => return None,
    })
}

fn integer_form(name: &str, opcode: &mut Opcode<'_>, mut how: How) -> Option<Form> {
    if name == "prmt" {
        const MODES: [&str; 6] = ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"];
        how.mode = MODES.iter().position(|mode| opcode.take(mode)).map_or(0, |at| at as u8 + 1);
    }
    if name == "shf" {
        how.mode = u8::from(opcode.take("r")) | u8::from(opcode.take("wrap")) << 1;
        opcode.take("l");
        opcode.take("clamp");
    }
    let lo = opcode.take("lo");
    let hi = opcode.take("hi");
    let wide = opcode.take("wide");
    let shiftamt = opcode.take("shiftamt");
    if name == "dp4a" {
        let (b, a) = (opcode.ty()?, opcode.ty()?);
        how.mode = u8::from(a.is_signed()) | u8::from(b.is_signed()) << 1;
        return Some(Form { run: Function::One(dp4a), sources: 3, flops: 0, how });
    }
    let ty = opcode.ty()?;
    (how.from, how.to) = (ty, ty);
    if ty == Type::Pred {
        let (run, sources): (Run, usize) = match name {
            "and" => (|s, _, _| s[0] & s[1], 2),
            "or" => (|s, _, _| s[0] | s[1], 2),
            "xor" => (|s, _, _| s[0] ^ s[1], 2),
            "not" => (|s, _, _| s[0] ^ 1, 1),
            _ => return None,
        };
        return Some(Form { run: Function::One(run), sources, flops: 0, how });
    }
    let (run, sources) = match name {
        "add" if how.saturate && ty == Type::S32 => {
            (Some::<Run>(|s, _, _| i32::of(s[0]).saturating_add(i32::of(s[1])).bits()), 2)
        }
        "sub" if how.saturate && ty == Type::S32 => {
            (Some::<Run>(|s, _, _| i32::of(s[0]).saturating_sub(i32::of(s[1])).bits()), 2)
        }
        "add" => (integers!(ty, |s, _, _| T::of(s[0]).wrapping_add(T::of(s[1])).bits()), 2),
        "sub" => (integers!(ty, |s, _, _| T::of(s[0]).wrapping_sub(T::of(s[1])).bits()), 2),
        "mul" if wide => (wide_product(ty), 2),
        "mul" if hi => (high_product(ty), 2),
        "mul" if lo => (integers!(ty, |s, _, _| T::of(s[0]).wrapping_mul(T::of(s[1])).bits()), 2),
        "mad" if wide => (wide_sum(ty), 3),
        "mad" if hi => (high_sum(ty), 3),
        "mad" if lo => {
            (integers!(ty, |s, _, _| T::of(s[0]).wrapping_mul(T::of(s[1])).wrapping_add(T::of(s[2])).bits()), 3)
        }
        "mul24" if lo => (mul24(ty), 2),
        "mad24" if lo => (mad24(ty), 3),
        "sad" => (
            integers!(ty, |s, _, _| {
                let (a, b) = (T::of(s[0]), T::of(s[1]));
                T::of(s[2]).wrapping_add(if a < b { b.wrapping_sub(a) } else { a.wrapping_sub(b) }).bits()
            }),
            3,
        ),
        // Division by zero gives all ones on the device.
        "div" => (
            integers!(ty, |s, _, _| match T::of(s[1]) {
                0 => u64::MAX,
                b => T::of(s[0]).wrapping_div(b).bits(),
            }),
            2,
        ),
        "rem" => (
            integers!(ty, |s, _, _| match T::of(s[1]) {
                0 => s[0],
                b => T::of(s[0]).wrapping_rem(b).bits(),
            }),
            2,
        ),
        "neg" => (integers!(ty, |s, _, _| T::of(s[0]).wrapping_neg().bits()), 1),
        "abs" => (integers!(ty, [S16 i16, S32 i32, S64 i64], |s, _, _| T::of(s[0]).wrapping_abs().bits()), 1),
        "min" => (integers!(ty, |s, h, _| clamp(T::of(s[0]).min(T::of(s[1])).bits(), h)), 2),
        "max" => (integers!(ty, |s, h, _| clamp(T::of(s[0]).max(T::of(s[1])).bits(), h)), 2),
        "and" => (bits!(ty, |s, _, _| T::of(s[0] & s[1]).bits()), 2),
        "or" => (bits!(ty, |s, _, _| T::of(s[0] | s[1]).bits()), 2),
        "xor" => (bits!(ty, |s, _, _| T::of(s[0] ^ s[1]).bits()), 2),
        "not" => (bits!(ty, |s, _, _| T::of(!s[0]).bits()), 1),
        "cnot" => (bits!(ty, |s, _, _| u64::from(T::of(s[0]) == 0)), 1),
        "shl" => (bits!(ty, |s, _, _| T::of(s[0]).checked_shl(s[1] as u32).unwrap_or(0).bits()), 2),
        "shr" if ty.is_signed() => {
            (integers!(ty, |s, _, _| (T::of(s[0]) >> (s[1] as u32).min(ty_bits::<T>() - 1)).bits()), 2)
        }
        "shr" => (bits!(ty, |s, _, _| T::of(s[0]).checked_shr(s[1] as u32).unwrap_or(0).bits()), 2),
        "popc" => (bits!(ty, |s, _, _| u64::from(T::of(s[0]).count_ones())), 1),
        "clz" => (bits!(ty, |s, _, _| u64::from(T::of(s[0]).leading_zeros())), 1),
        "brev" => (bits!(ty, |s, _, _| T::of(s[0]).reverse_bits().bits()), 1),
        "bfind" if shiftamt => (
            integers!(ty, |s, _, _| match u64::from(leading(T::of(s[0]))) {
                n if n >= u64::from(ty_bits::<T>()) => 0xFFFF_FFFF,
                n => n,
            }),
            1,
        ),
        "bfind" => (integers!(ty, |s, _, _| u64::from((ty_bits::<T>() - 1).wrapping_sub(leading(T::of(s[0]))))), 1),
        "bfe" => (Some(bfe as Run), 3),
        "bfi" => (Some(bfi as Run), 4),
        "lop3" => (Some(lop3 as Run), 4),
        "prmt" => (Some(prmt as Run), 3),
        "shf" => (Some(shf as Run), 3),
        "selp" => (bits!(ty, |s, _, _| T::of(if s[2] != 0 { s[0] } else { s[1] }).bits()), 3),
        _ => return None,
    };
    Some(Form { run: Function::One(run?), sources, flops: 0, how })
}

fn ty_bits<T>() -> u32 {
    8 * size_of::<T>() as u32
}

/// Leading bits that say nothing: zeros, or copies of the sign.
fn leading<T: Lane + PartialOrd + Default>(value: T) -> u32 {
    let bits = ty_bits::<T>();
    let raw = if value < T::default() { !value.bits() & (u64::MAX >> (64 - bits)) } else { value.bits() };
    raw.leading_zeros() - (64 - bits)
}

/// `.relu` of integers.
fn clamp(value: u64, how: &How) -> u64 {
    if how.relu && i32::of(value) < 0 { 0 } else { value }
}

fn wide_product(ty: Type) -> Option<Run> {
    Some(match ty {
        Type::U16 => |s, _, _| u64::from(u16::of(s[0])) * u64::from(u16::of(s[1])),
        Type::S16 => |s, _, _| (i32::from(i16::of(s[0])) * i32::from(i16::of(s[1]))).bits(),
        Type::U32 => |s, _, _| u64::from(u32::of(s[0])) * u64::from(u32::of(s[1])),
        Type::S32 => |s, _, _| (i64::from(i32::of(s[0])) * i64::from(i32::of(s[1]))).bits(),
        _ => return None,
    })
}

fn wide_sum(ty: Type) -> Option<Run> {
    Some(match ty {
        Type::U16 => |s, _, _| (u32::from(u16::of(s[0])) * u32::from(u16::of(s[1]))).wrapping_add(s[2] as u32).bits(),
        Type::S16 => |s, _, _| (i32::from(i16::of(s[0])) * i32::from(i16::of(s[1]))).wrapping_add(s[2] as i32).bits(),
        Type::U32 => |s, _, _| (u64::from(u32::of(s[0])) * u64::from(u32::of(s[1]))).wrapping_add(s[2]),
        Type::S32 => |s, _, _| (i64::from(i32::of(s[0])) * i64::from(i32::of(s[1]))).bits().wrapping_add(s[2]),
        _ => return None,
    })
}

fn high_product(ty: Type) -> Option<Run> {
    Some(match ty {
        Type::U16 => |s, _, _| (u64::from(u16::of(s[0])) * u64::from(u16::of(s[1]))) >> 16,
        Type::S16 => |s, _, _| ((i32::from(i16::of(s[0])) * i32::from(i16::of(s[1]))) >> 16) as u16 as u64,
        Type::U32 => |s, _, _| (u64::from(u32::of(s[0])) * u64::from(u32::of(s[1]))) >> 32,
        Type::S32 => |s, _, _| ((i64::from(i32::of(s[0])) * i64::from(i32::of(s[1]))) >> 32) as u32 as u64,
        Type::U64 => |s, _, _| ((u128::from(s[0]) * u128::from(s[1])) >> 64) as u64,
        Type::S64 => |s, _, _| ((i128::from(i64::of(s[0])) * i128::from(i64::of(s[1]))) >> 64) as u64,
        _ => return None,
    })
}

fn high_sum(ty: Type) -> Option<Run> {
    Some(match ty {
        Type::U32 => {
            |s, h, a| (high_product(Type::U32).map_or(0, |f| f(s, h, a)) as u32).wrapping_add(s[2] as u32).bits()
        }
        Type::S32 => {
            |s, h, a| (high_product(Type::S32).map_or(0, |f| f(s, h, a)) as u32).wrapping_add(s[2] as u32).bits()
        }
        Type::U64 => |s, h, a| high_product(Type::U64).map_or(0, |f| f(s, h, a)).wrapping_add(s[2]),
        Type::S64 => |s, h, a| high_product(Type::S64).map_or(0, |f| f(s, h, a)).wrapping_add(s[2]),
        _ => return None,
    })
}

fn mul24(ty: Type) -> Option<Run> {
    Some(match ty {
        Type::U32 => |s, _, _| ((s[0] & 0xFF_FFFF) * (s[1] & 0xFF_FFFF)) as u32 as u64,
        Type::S32 => |s, _, _| (i32::of(s[0]) << 8 >> 8).wrapping_mul(i32::of(s[1]) << 8 >> 8).bits(),
        _ => return None,
    })
}

fn mad24(ty: Type) -> Option<Run> {
    Some(match ty {
        Type::U32 => |s, _, _| (((s[0] & 0xFF_FFFF) * (s[1] & 0xFF_FFFF)) as u32).wrapping_add(s[2] as u32).bits(),
        Type::S32 => {
            |s, _, _| (i32::of(s[0]) << 8 >> 8).wrapping_mul(i32::of(s[1]) << 8 >> 8).wrapping_add(i32::of(s[2])).bits()
        }
        _ => return None,
    })
}

/// Bits `start..start+length` of a; signed ones are extended from the field's highest bit.
fn bfe(s: &[u64; 4], how: &How, _: Approximation) -> u64 {
    let bits = how.to.bits();
    let (a, start, length) = (s[0], (s[1] & 0xFF) as u32, (s[2] & 0xFF) as u32);
    let signed = how.to.is_signed();
    let top = (start + length).saturating_sub(1).min(bits - 1);
    let sign = signed && length > 0 && a >> top & 1 == 1;
    let mut value = if start < bits { a >> start } else { 0 };
    if length < 64 {
        value &= (1 << length) - 1;
    }
    // Beyond the register's own bits the field holds copies of the sign.
    let kept = length.min(bits.saturating_sub(start));
    if sign && kept < bits {
        value |= u64::MAX << kept;
    }
    value & (u64::MAX >> (64 - bits))
}

/// Bits of a put into b at `start..start+length`.
fn bfi(s: &[u64; 4], how: &How, _: Approximation) -> u64 {
    let bits = how.to.bits();
    let (start, length) = ((s[2] & 0xFF) as u32, (s[3] & 0xFF) as u32);
    if start >= bits || length == 0 {
        return s[1];
    }
    let field = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
    let mask = (field << start) & (u64::MAX >> (64 - bits));
    s[1] & !mask | s[0] << start & mask
}

fn lop3(s: &[u64; 4], _: &How, _: Approximation) -> u64 {
    let (a, b, c, table) = (s[0] as u32, s[1] as u32, s[2] as u32, s[3]);
    let mut d = 0;
    for row in 0..8 {
        if table >> row & 1 == 1 {
            let pick = |value: u32, bit: u32| if row >> bit & 1 == 1 { value } else { !value };
            d |= pick(a, 2) & pick(b, 1) & pick(c, 0);
        }
    }
    u64::from(d)
}

fn prmt(s: &[u64; 4], how: &How, _: Approximation) -> u64 {
    let bytes = (s[0] & 0xFFFF_FFFF) | s[1] << 32;
    let selector = s[2] as u32;
    let first = selector & 3;
    let picks: [u32; 4] = std::array::from_fn(|i| {
        let i = i as u32;
        match how.mode {
            0 => selector >> (4 * i) & 0xF,
            1 => first + i,
            2 => first.wrapping_sub(i) & 7,
            3 => first,
            4 => first.max(i),
            5 => first.min(i),
            _ => (selector & 1) * 2 + (i & 1),
        }
    });
    let byte = |pick: u32| {
        let byte = (bytes >> (8 * (pick & 7))) as u8;
        if how.mode == 0 && pick & 8 != 0 { (byte.cast_signed() >> 7).cast_unsigned() } else { byte }
    };
    u64::from(u32::from_le_bytes(picks.map(byte)))
}

fn shf(s: &[u64; 4], how: &How, _: Approximation) -> u64 {
    let both = (s[0] & 0xFFFF_FFFF) | s[1] << 32;
    let n = if how.mode & 2 != 0 { s[2] as u32 & 31 } else { (s[2] as u32).min(32) };
    let shifted = if how.mode & 1 != 0 { both >> n } else { (both << n) >> 32 };
    shifted & 0xFFFF_FFFF
}

fn dp4a(s: &[u64; 4], how: &How, _: Approximation) -> u64 {
    let part = |bits: u64, i: u32, signed: bool| {
        let byte = (bits >> (8 * i)) as u8;
        if signed { i32::from(byte.cast_signed()) } else { i32::from(byte) }
    };
    let products = (0..4).map(|i| part(s[0], i, how.mode & 1 != 0) * part(s[1], i, how.mode & 2 != 0));
    (s[2] as u32).wrapping_add(products.sum::<i32>() as u32).bits()
}

/// Forms that leave or take a carry: the last source, the second result.
fn carried(name: &str, opcode: &mut Opcode<'_>, mut how: How) -> Option<Form> {
    let (low, high) = (opcode.take("lo"), opcode.take("hi"));
    opcode.take("cc");
    let ty = opcode.ty()?;
    how.to = ty;
    how.mode = u8::from(high);
    fn cut(value: u128, how: &How) -> (u64, u64) {
        let bits = how.to.bits();
        let mask = u128::from(u64::MAX >> (64 - bits));
        ((value & mask) as u64, (value >> bits & 1) as u64)
    }
    fn product(s: &[u64; 4], how: &How) -> u128 {
        let bits = how.to.bits();
        let mask = u128::from(u64::MAX >> (64 - bits));
        let product = if how.to.is_signed() {
            let sign = |v: u64| i128::from((v << (64 - bits)).cast_signed() >> (64 - bits));
            (sign(s[0]).wrapping_mul(sign(s[1]))).cast_unsigned()
        } else {
            u128::from(s[0]) * u128::from(s[1])
        };
        if how.mode == 1 { product >> bits & mask } else { product & mask }
    }
    fn inverted(value: u64, how: &How) -> u128 {
        u128::from(!value & (u64::MAX >> (64 - how.to.bits())))
    }
    let (run, sources): (RunTwo, usize) = match name {
        "add" => (|s, h, _| cut(u128::from(s[0]) + u128::from(s[1]), h), 2),
        "addc" => (|s, h, _| cut(u128::from(s[0]) + u128::from(s[1]) + u128::from(s[2]), h), 3),
        // a - b = a + ~b + 1: the carry is the absence of a borrow.
        "sub" => (|s, h, _| cut(u128::from(s[0]) + inverted(s[1], h) + 1, h), 2),
        "subc" => (|s, h, _| cut(u128::from(s[0]) + inverted(s[1], h) + u128::from(s[2]), h), 3),
        "mad" if low || high => (|s, h, _| cut(product(s, h) + u128::from(s[2]), h), 3),
        "madc" if low || high => (|s, h, _| cut(product(s, h) + u128::from(s[2]) + u128::from(s[3]), h), 4),
        _ => return None,
    };
    Some(Form { run: Function::Two(run), sources, flops: 0, how })
}

fn comparison(opcode: &mut Opcode<'_>) -> Option<Form> {
    let to_predicate = opcode.name == "setp";
    let mut how = How { ftz: opcode.take("ftz"), ..How::default() };
    how.from = opcode.ty()?;
    if !to_predicate {
        how.to = opcode.ty()?;
    }
    if opcode.parts.is_empty() {
        return None;
    }
    how.compare = compare(opcode.parts.remove(0), how.from)?;
    for (name, combine) in [("and", Combine::And), ("or", Combine::Or), ("xor", Combine::Xor)] {
        if opcode.take(name) {
            how.combine = combine;
        }
    }
    let sources = if how.combine == Combine::None { 2 } else { 3 };
    let run = match (to_predicate, how.from) {
        (true, Type::Bf16x2 | Type::F16x2) => Function::Two(float16::compare_pair),
        (true, _) => Function::Two(|s, h, _| {
            let holds = compared(s, h);
            (combined(holds, s, h), combined(!holds, s, h))
        }),
        (false, Type::Bf16x2 | Type::F16x2) => return None,
        (false, _) => Function::One(|s, h, _| match (combined(compared(s, h), s, h) != 0, h.to) {
            (true, Type::F32) => 1.0f32.bits(),
            (true, _) => 0xFFFF_FFFF,
            _ => 0,
        }),
    };
    Some(Form { run, sources, flops: 0, how })
}

/// The comparison called `name`; `lo`, `ls`, `hi`, `hs` are unsigned ones.
fn compare(name: &str, ty: Type) -> Option<Compare> {
    let float = ty.is_float();
    Some(match name {
        "eq" => Compare::Eq,
        "ne" => Compare::Ne,
        "lt" => Compare::Lt,
        "le" => Compare::Le,
        "gt" => Compare::Gt,
        "ge" => Compare::Ge,
        "lo" if !float => Compare::Lt,
        "ls" if !float => Compare::Le,
        "hi" if !float => Compare::Gt,
        "hs" if !float => Compare::Ge,
        "equ" if float => Compare::Equ,
        "neu" if float => Compare::Neu,
        "ltu" if float => Compare::Ltu,
        "leu" if float => Compare::Leu,
        "gtu" if float => Compare::Gtu,
        "geu" if float => Compare::Geu,
        "num" if float => Compare::Num,
        "nan" if float => Compare::Nan,
        _ => return None,
    })
}

pub(super) fn combined(holds: bool, s: &[u64; 4], how: &How) -> u64 {
    let third = (s[2] != 0) != how.negated;
    u64::from(match how.combine {
        Combine::None => holds,
        Combine::And => holds && third,
        Combine::Or => holds || third,
        Combine::Xor => holds != third,
    })
}

fn compared(s: &[u64; 4], how: &How) -> bool {
    let shift = 64 - how.from.bits();
    match how.from {
        Type::F32 => holds(how.compare, float(s[0], how), float(s[1], how)),
        Type::F64 => holds(how.compare, f64::of(s[0]), f64::of(s[1])),
        Type::F16 => holds(how.compare, half::f16::of(s[0]), half::f16::of(s[1])),
        Type::Bf16 => holds(how.compare, half::bf16::of(s[0]), half::bf16::of(s[1])),
        ty if ty.is_signed() => holds(how.compare, (s[0] << shift).cast_signed(), (s[1] << shift).cast_signed()),
        _ => holds(how.compare, s[0] << shift, s[1] << shift),
    }
}

pub(super) fn holds<T: PartialOrd>(compare: Compare, a: T, b: T) -> bool {
    let order = a.partial_cmp(&b);
    let unordered = order.is_none();
    match compare {
        Compare::Eq => a == b,
        // `ne` of floats is false where either is NaN.
        Compare::Ne => !unordered && a != b,
        Compare::Lt => a < b,
        Compare::Le => a <= b,
        Compare::Gt => a > b,
        Compare::Ge => a >= b,
        Compare::Equ => unordered || a == b,
        Compare::Neu => unordered || a != b,
        Compare::Ltu => unordered || a < b,
        Compare::Leu => unordered || a <= b,
        Compare::Gtu => unordered || a > b,
        Compare::Geu => unordered || a >= b,
        Compare::Num => !unordered,
        Compare::Nan => unordered,
    }
}
