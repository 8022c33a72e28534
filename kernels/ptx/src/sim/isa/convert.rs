//! `cvt`: between integers and floats of all widths.
//!
//! A value is converted by way of an integer of 128 bits or of an f64, which holds every f32, f16 and bf16 and is
//! rounded once to the result.

use super::{Form, Function, Lane, Modifiers, Opcode, Rounding, Type, flushed, odd, rounded, saturated, two_sum};
use crate::sim::Approximation;
use half::{bf16, f16};

/// A value between its two types.
enum Value {
    Integer(i128),
    Float(f64),
}

pub(crate) fn find(opcode: &mut Opcode<'_>) -> Option<Form> {
    let mut modifiers = Modifiers {
        ftz: opcode.take("ftz"),
        saturate: opcode.take("sat"),
        relu: opcode.take("relu"),
        ..Modifiers::default()
    };
    if opcode.take("satfinite") {
        modifiers.mode |= 4;
    }
    modifiers.from = opcode.ty()?;
    modifiers.to = opcode.ty()?;
    let mut whole = None;
    for (name, rounding, integer) in [
        ("rn", Rounding::Nearest, false),
        ("rz", Rounding::Zero, false),
        ("rm", Rounding::Down, false),
        ("rp", Rounding::Up, false),
        ("rna", Rounding::NearestAway, false),
        ("rni", Rounding::Nearest, true),
        ("rzi", Rounding::Zero, true),
        ("rmi", Rounding::Down, true),
        ("rpi", Rounding::Up, true),
    ] {
        if opcode.take(name) {
            modifiers.rounding = rounding;
            whole = Some(integer);
        }
    }
    // `cvt.rzi.f32.f32` gives a whole number as a float.
    modifiers.mode |= u8::from(whole == Some(true) && modifiers.to.is_float());
    let from_float = modifiers.from.is_float();
    let sensible = match (from_float, modifiers.to.is_float()) {
        (true, false) => whole == Some(true),
        (false, false) => whole.is_none(),
        (false, true) => whole == Some(false),
        (true, true) => whole.is_some() || modifiers.to.bits() >= modifiers.from.bits(),
    };
    let known = !modifiers.to.is_float8() && !modifiers.from.is_float8();
    let unknown = matches!(modifiers.from, Type::Pred | Type::B128 | Type::F16x2 | Type::Bf16x2 | Type::Tf32);
    if !sensible || !known || unknown {
        return None;
    }
    let run = match (modifiers.to, modifiers.from) {
        (Type::F16x2 | Type::Bf16x2, Type::F32) => {
            return Some(Form { run: Function::One(pair), sources: 2, flops: 0, modifiers });
        }
        (Type::F16x2 | Type::Bf16x2 | Type::Pred | Type::B128, _) => return None,
        (Type::Tf32, Type::F32) => tf32,
        (Type::F32, Type::Bf16) => |s: &[u64; 4], _: &Modifiers, _| bf16::of(s[0]).to_f32().bits(),
        (Type::U64 | Type::B64, Type::U32 | Type::B32) if !modifiers.saturate => {
            |s: &[u64; 4], _: &Modifiers, _| s[0] & 0xFFFF_FFFF
        }
        (Type::S64, Type::S32) => |s: &[u64; 4], _: &Modifiers, _| i64::from(i32::of(s[0])).bits(),
        (Type::U32 | Type::S32 | Type::B32, Type::U64 | Type::S64 | Type::B64) if !modifiers.saturate => {
            |s: &[u64; 4], _: &Modifiers, _| s[0] & 0xFFFF_FFFF
        }
        _ => convert,
    };
    Some(Form { run: Function::One(run), sources: 1, flops: 0, modifiers })
}

fn convert(s: &[u64; 4], modifiers: &Modifiers, _: Approximation) -> u64 {
    let shift = 64 - modifiers.from.bits();
    let value = match modifiers.from {
        Type::F32 => Value::Float(f64::from(if modifiers.ftz { flushed(f32::of(s[0])) } else { f32::of(s[0]) })),
        Type::F64 => Value::Float(f64::of(s[0])),
        Type::F16 => Value::Float(f16::of(s[0]).to_f64()),
        Type::Bf16 => Value::Float(bf16::of(s[0]).to_f64()),
        ty if ty.is_signed() => Value::Integer(i128::from((s[0] << shift).cast_signed() >> shift)),
        _ => Value::Integer(i128::from(s[0] << shift >> shift)),
    };
    if modifiers.to.is_float() {
        let value = match value {
            Value::Float(value) if modifiers.mode & 1 != 0 => (whole(value, modifiers.rounding), 0.0),
            Value::Float(value) => (value, 0.0),
            // An integer of 64 bits is the sum of two f64 without error.
            Value::Integer(value) => two_sum((value >> 32 << 32) as f64, (value & 0xFFFF_FFFF) as f64),
        };
        return narrowed(value.0, value.1, modifiers);
    }
    let integer = match value {
        Value::Integer(value) if !modifiers.saturate => {
            return (value as u64) & (u64::MAX >> (64 - modifiers.to.bits()));
        }
        Value::Integer(value) => value,
        Value::Float(value) if value.is_nan() => match modifiers.to {
            Type::U64 | Type::S64 | Type::B64 => return 1 << 63,
            _ => 0,
        },
        Value::Float(value) => whole(value, modifiers.rounding).clamp(-1e30, 1e30) as i128,
    };
    let bits = modifiers.to.bits();
    let (least, most) =
        if modifiers.to.is_signed() { (-(1_i128 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    (integer.clamp(least, most) as u64) & (u64::MAX >> (64 - bits))
}

fn whole(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::NearestAway => value.round(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

/// The exact sum as a float of the result's type.
fn narrowed(high: f64, low: f64, modifiers: &Modifiers) -> u64 {
    let adjust = |value: f32| {
        let value = if modifiers.relu && value < 0.0 { 0.0 } else { value };
        let value = if modifiers.saturate { saturated(value) } else { value };
        if modifiers.ftz { flushed(value) } else { value }
    };
    match modifiers.to {
        Type::F64 => f64::bits(high + low),
        Type::F32 => adjust(rounded(high, low, modifiers.rounding)).bits(),
        Type::F16 => {
            let value = adjust(odd(high, low));
            if modifiers.rounding == Rounding::Zero { cut_f16(value) } else { f16::from_f32(value).bits() }
        }
        _ => {
            let value = adjust(odd(high, low));
            if modifiers.rounding == Rounding::Zero && !value.is_nan() {
                u64::from(value.to_bits() >> 16)
            } else {
                bf16::from_f32(value).bits()
            }
        }
    }
}

/// Towards zero.
fn cut_f16(value: f32) -> u64 {
    let near = f16::from_f32(value);
    if !near.is_nan() && near.to_f32().abs() > value.abs() { near.bits() - 1 } else { near.bits() }
}

/// `cvt.rn.bf16x2.f32 d, a, b`: a in the upper half.
fn pair(s: &[u64; 4], modifiers: &Modifiers, _: Approximation) -> u64 {
    let to = if modifiers.to == Type::F16x2 { Type::F16 } else { Type::Bf16 };
    let half = |bits: u64| narrowed(f64::from(f32::of(bits)), 0.0, &Modifiers { to, ..*modifiers });
    half(s[0]) << 16 | half(s[1])
}

/// The upper 19 bits: 8 of exponent, 10 of fraction.
fn tf32(s: &[u64; 4], modifiers: &Modifiers, _: Approximation) -> u64 {
    let bits = s[0] as u32;
    if f32::from_bits(bits).is_nan() {
        return 0x7FFF_FFFF;
    }
    if bits & 0x7F80_0000 == 0x7F80_0000 {
        return u64::from(bits);
    }
    let bits = match modifiers.rounding {
        Rounding::Zero => bits,
        Rounding::NearestAway => bits + 0x1000,
        _ => bits + 0xFFF + (bits >> 13 & 1),
    };
    u64::from(if modifiers.relu && bits >> 31 == 1 { 0 } else { bits & !0x1FFF })
}
