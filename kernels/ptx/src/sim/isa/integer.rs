//! Arithmetic of one lane on integers, bits and predicates.

use super::{Form, Function, Lane, Modifiers, Opcode, Run, RunTwo, Type, low_bits};
use crate::sim::Approximation;

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

/// [`integers`] on unsigned integers of the type's width.
macro_rules! bits {
    ($ty:expr, $f:expr) => {
        integers!(
            $ty,
            [B16 u16, U16 u16, S16 u16, B32 u32, U32 u32, S32 u32, B64 u64, U64 u64, S64 u64],
            $f
        )
    };
}

/// [`integers`] of 32 bits.
macro_rules! words {
    ($ty:expr, $f:expr) => {
        integers!($ty, [U32 u32, S32 i32], $f)
    };
}

/// [`integers`] of at most 32 bits.
macro_rules! narrow {
    ($ty:expr, $f:expr) => {
        integers!($ty, [U16 u16, S16 i16, U32 u32, S32 i32], $f)
    };
}

/// The form `name` on integers, bits or predicates.
pub(crate) fn find(name: &str, opcode: &mut Opcode<'_>, mut modifiers: Modifiers) -> Option<Form> {
    if name == "prmt" {
        const MODES: [&str; 6] = ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"];
        modifiers.mode = MODES.iter().position(|mode| opcode.take(mode)).map_or(0, |at| at as u8 + 1);
    }
    if name == "shf" {
        modifiers.mode = u8::from(opcode.take("r")) | u8::from(opcode.take("wrap")) << 1;
        opcode.take("l");
        opcode.take("clamp");
    }
    let part = opcode.choose(&[("lo", "lo"), ("hi", "hi"), ("wide", "wide"), ("shiftamt", "shiftamt")]).unwrap_or("");
    let ty = opcode.ty()?;
    if name == "dp4a" {
        modifiers.mode = u8::from(opcode.ty()?.is_signed()) | u8::from(ty.is_signed()) << 1;
    }
    (modifiers.from, modifiers.to) = (ty, ty);
    let run = match ty {
        Type::Pred => predicates(name),
        _ => arithmetic(name, part, ty, modifiers.saturate).or_else(|| bits(name, part, ty)),
    };
    let sources = match name {
        "neg" | "abs" | "not" | "cnot" | "popc" | "clz" | "brev" | "bfind" => 1,
        "mad" | "mad24" | "sad" | "bfe" | "prmt" | "shf" | "selp" | "dp4a" => 3,
        "bfi" | "lop3" => 4,
        _ => 2,
    };
    Some(Form { run: Function::One(run?), sources, flops: 0, modifiers })
}

fn predicates(name: &str) -> Option<Run> {
    Some(match name {
        "and" => |s, _, _| s[0] & s[1],
        "or" => |s, _, _| s[0] | s[1],
        "xor" => |s, _, _| s[0] ^ s[1],
        "not" => |s, _, _| s[0] ^ 1,
        _ => return None,
    })
}

fn arithmetic(name: &str, part: &str, ty: Type, saturates: bool) -> Option<Run> {
    match (name, part) {
        ("add", _) if saturates => Some(|s, _, _| i32::of(s[0]).saturating_add(i32::of(s[1])).bits()),
        ("sub", _) if saturates => Some(|s, _, _| i32::of(s[0]).saturating_sub(i32::of(s[1])).bits()),
        ("add", _) => integers!(ty, |s, _, _| T::of(s[0]).wrapping_add(T::of(s[1])).bits()),
        ("sub", _) => integers!(ty, |s, _, _| T::of(s[0]).wrapping_sub(T::of(s[1])).bits()),
        ("mul", "wide") => narrow!(ty, |s, _, _| wide_sum(T::of(s[0]).into(), T::of(s[1]).into(), 0, 2 * T::BITS)),
        ("mul", "hi") => integers!(ty, |s, _, _| high_sum(T::of(s[0]).into(), T::of(s[1]).into(), 0, T::BITS)),
        ("mul", "lo") => integers!(ty, |s, _, _| T::of(s[0]).wrapping_mul(T::of(s[1])).bits()),
        ("mad", "wide") => narrow!(ty, |s, _, _| wide_sum(T::of(s[0]).into(), T::of(s[1]).into(), s[2], 2 * T::BITS)),
        ("mad", "hi") if ty.bits() >= 32 => {
            integers!(ty, |s, _, _| high_sum(T::of(s[0]).into(), T::of(s[1]).into(), s[2], T::BITS))
        }
        ("mad", "lo") => {
            integers!(ty, |s, _, _| T::of(s[0]).wrapping_mul(T::of(s[1])).wrapping_add(T::of(s[2])).bits())
        }
        ("mul24", "lo") => words!(ty, |s, _, _| (T::of(s[0]) << 8 >> 8).wrapping_mul(T::of(s[1]) << 8 >> 8).bits()),
        ("mad24", "lo") => words!(ty, |s, _, _| {
            (T::of(s[0]) << 8 >> 8).wrapping_mul(T::of(s[1]) << 8 >> 8).wrapping_add(T::of(s[2])).bits()
        }),
        ("sad", _) => integers!(ty, |s, _, _| {
            let (a, b) = (T::of(s[0]), T::of(s[1]));
            T::of(s[2]).wrapping_add(if a < b { b.wrapping_sub(a) } else { a.wrapping_sub(b) }).bits()
        }),
        // Division by zero gives all ones on the device.
        ("div", _) => integers!(ty, |s, _, _| match T::of(s[1]) {
            0 => u64::MAX,
            b => T::of(s[0]).wrapping_div(b).bits(),
        }),
        ("rem", _) => integers!(ty, |s, _, _| match T::of(s[1]) {
            0 => s[0],
            b => T::of(s[0]).wrapping_rem(b).bits(),
        }),
        ("neg", _) => integers!(ty, |s, _, _| T::of(s[0]).wrapping_neg().bits()),
        ("abs", _) => integers!(ty, [S16 i16, S32 i32, S64 i64], |s, _, _| T::of(s[0]).wrapping_abs().bits()),
        ("min", _) => integers!(ty, |s, h, _| clamp(T::of(s[0]).min(T::of(s[1])).bits(), h)),
        ("max", _) => integers!(ty, |s, h, _| clamp(T::of(s[0]).max(T::of(s[1])).bits(), h)),
        ("dp4a", _) => Some(dp4a),
        _ => None,
    }
}

fn bits(name: &str, part: &str, ty: Type) -> Option<Run> {
    match name {
        "and" => bits!(ty, |s, _, _| T::of(s[0] & s[1]).bits()),
        "or" => bits!(ty, |s, _, _| T::of(s[0] | s[1]).bits()),
        "xor" => bits!(ty, |s, _, _| T::of(s[0] ^ s[1]).bits()),
        "not" => bits!(ty, |s, _, _| T::of(!s[0]).bits()),
        "cnot" => bits!(ty, |s, _, _| u64::from(T::of(s[0]) == 0)),
        "shl" => bits!(ty, |s, _, _| T::of(s[0]).checked_shl(s[1] as u32).unwrap_or(0).bits()),
        "shr" if ty.is_signed() => {
            integers!(ty, |s, _, _| (T::of(s[0]) >> (s[1] as u32).min(ty_bits::<T>() - 1)).bits())
        }
        "shr" => bits!(ty, |s, _, _| T::of(s[0]).checked_shr(s[1] as u32).unwrap_or(0).bits()),
        "popc" => bits!(ty, |s, _, _| u64::from(T::of(s[0]).count_ones())),
        "clz" => bits!(ty, |s, _, _| u64::from(T::of(s[0]).leading_zeros())),
        "brev" => bits!(ty, |s, _, _| T::of(s[0]).reverse_bits().bits()),
        "bfind" if part == "shiftamt" => integers!(ty, |s, _, _| match u64::from(leading(T::of(s[0]))) {
            n if n >= u64::from(ty_bits::<T>()) => 0xFFFF_FFFF,
            n => n,
        }),
        "bfind" => integers!(ty, |s, _, _| u64::from((ty_bits::<T>() - 1).wrapping_sub(leading(T::of(s[0]))))),
        "bfe" => Some(bfe),
        "bfi" => Some(bfi),
        "lop3" => Some(lop3),
        "prmt" => Some(prmt),
        "shf" => Some(shf),
        "selp" => bits!(ty, |s, _, _| T::of(if s[2] != 0 { s[0] } else { s[1] }).bits()),
        _ => None,
    }
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

/// The lowest `bits` bits of a · b + c.
fn wide_sum(a: i64, b: i64, c: u64, bits: u32) -> u64 {
    a.wrapping_mul(b).cast_unsigned().wrapping_add(c) & low_bits(bits)
}

/// The bits of a · b above the lowest `bits`, plus c.
fn high_sum(a: i128, b: i128, c: u64, bits: u32) -> u64 {
    ((a.wrapping_mul(b) >> bits) as u64).wrapping_add(c) & low_bits(bits)
}

/// `.relu` of integers.
fn clamp(value: u64, modifiers: &Modifiers) -> u64 {
    if modifiers.relu && i32::of(value) < 0 { 0 } else { value }
}

/// Bits `start..start+length` of a; signed ones are extended from the field's highest bit.
fn bfe(s: &[u64; 4], modifiers: &Modifiers, _: Approximation) -> u64 {
    let bits = modifiers.to.bits();
    let (a, start, length) = (s[0], (s[1] & 0xFF) as u32, (s[2] & 0xFF) as u32);
    let signed = modifiers.to.is_signed();
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
fn bfi(s: &[u64; 4], modifiers: &Modifiers, _: Approximation) -> u64 {
    let bits = modifiers.to.bits();
    let (start, length) = ((s[2] & 0xFF) as u32, (s[3] & 0xFF) as u32);
    if start >= bits || length == 0 {
        return s[1];
    }
    let field = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
    let mask = (field << start) & (u64::MAX >> (64 - bits));
    s[1] & !mask | s[0] << start & mask
}

fn lop3(s: &[u64; 4], _: &Modifiers, _: Approximation) -> u64 {
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

fn prmt(s: &[u64; 4], modifiers: &Modifiers, _: Approximation) -> u64 {
    let bytes = (s[0] & 0xFFFF_FFFF) | s[1] << 32;
    let selector = s[2] as u32;
    let first = selector & 3;
    let picks: [u32; 4] = std::array::from_fn(|i| {
        let i = i as u32;
        match modifiers.mode {
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
        if modifiers.mode == 0 && pick & 8 != 0 { (byte.cast_signed() >> 7).cast_unsigned() } else { byte }
    };
    u64::from(u32::from_le_bytes(picks.map(byte)))
}

fn shf(s: &[u64; 4], modifiers: &Modifiers, _: Approximation) -> u64 {
    let both = (s[0] & 0xFFFF_FFFF) | s[1] << 32;
    let n = if modifiers.mode & 2 != 0 { s[2] as u32 & 31 } else { (s[2] as u32).min(32) };
    let shifted = if modifiers.mode & 1 != 0 { both >> n } else { (both << n) >> 32 };
    shifted & 0xFFFF_FFFF
}

fn dp4a(s: &[u64; 4], modifiers: &Modifiers, _: Approximation) -> u64 {
    let part = |bits: u64, i: u32, signed: bool| {
        let byte = (bits >> (8 * i)) as u8;
        if signed { i32::from(byte.cast_signed()) } else { i32::from(byte) }
    };
    let products = (0..4).map(|i| part(s[0], i, modifiers.mode & 1 != 0) * part(s[1], i, modifiers.mode & 2 != 0));
    (s[2] as u32).wrapping_add(products.sum::<i32>() as u32).bits()
}

/// Forms that leave or take a carry: the last source, the second result.
pub(crate) fn carried(name: &str, opcode: &mut Opcode<'_>, mut modifiers: Modifiers) -> Option<Form> {
    let (low, high) = (opcode.take("lo"), opcode.take("hi"));
    opcode.take("cc");
    let ty = opcode.ty()?;
    modifiers.to = ty;
    modifiers.mode = u8::from(high);
    fn cut(value: u128, modifiers: &Modifiers) -> (u64, u64) {
        let bits = modifiers.to.bits();
        let mask = u128::from(u64::MAX >> (64 - bits));
        ((value & mask) as u64, (value >> bits & 1) as u64)
    }
    fn product(s: &[u64; 4], modifiers: &Modifiers) -> u128 {
        let bits = modifiers.to.bits();
        let mask = u128::from(u64::MAX >> (64 - bits));
        let product = if modifiers.to.is_signed() {
            let sign = |v: u64| i128::from((v << (64 - bits)).cast_signed() >> (64 - bits));
            (sign(s[0]).wrapping_mul(sign(s[1]))).cast_unsigned()
        } else {
            u128::from(s[0]) * u128::from(s[1])
        };
        if modifiers.mode == 1 { product >> bits & mask } else { product & mask }
    }
    fn inverted(value: u64, modifiers: &Modifiers) -> u128 {
        u128::from(!value & (u64::MAX >> (64 - modifiers.to.bits())))
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
    Some(Form { run: Function::Two(run), sources, flops: 0, modifiers })
}
