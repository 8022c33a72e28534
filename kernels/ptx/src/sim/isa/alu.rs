//! Arithmetic of one lane: instructions that access neither memory nor other lanes.
//!
//! A form is a plain function over register bits; [`find`] maps an opcode to it. Roundings other than to nearest are
//! exact: the result is taken as an unevaluated sum of two f64, which holds the sum or product of two f32 without
//! error, and rounded once.

use super::{
    Combine, Compare, Form, Function, Lane, Modifiers, Opcode, Rounding, Run, Type, combined, convert, float16,
    flushed, integer, least, rounded, saturated, select, sfu, two_sum,
};
use crate::sim::Approximation;

/// The form of `opcode`, if it is arithmetic of one lane. Known modifiers are taken from the opcode; any that are left
/// make the instruction unknown.
pub(crate) fn find(opcode: &mut Opcode<'_>) -> Option<Form> {
    let mut modifiers = Modifiers::default();
    let name = opcode.name;
    if name == "cvt" {
        return convert::find(opcode);
    }
    if matches!(name, "setp" | "set") {
        return comparison(opcode);
    }
    let parts = opcode.parts.len();
    modifiers.selects = name == "selp";
    modifiers.rounding = rounding(opcode);
    modifiers.ftz = opcode.take("ftz");
    modifiers.saturate = opcode.take("sat");
    modifiers.nan = opcode.take("NaN");
    let for_floats = opcode.parts.len() + usize::from(modifiers.saturate) < parts;
    modifiers.relu = opcode.take("relu");
    let form = |run: Run, sources, flops| Some(Form { run: Function::One(run), sources, flops, modifiers });
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
    if for_floats || modifiers.relu && !clamps || modifiers.saturate && !saturates {
        return None;
    }
    if opcode.take("cc") || matches!(name, "addc" | "subc" | "madc") {
        return integer::carried(name, opcode, modifiers);
    }
    integer::find(name, opcode, modifiers)
}

pub(crate) fn rounding(opcode: &mut Opcode<'_>) -> Rounding {
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
fn float(bits: u64, modifiers: &Modifiers) -> f32 {
    let value = f32::from_bits(bits as u32);
    if modifiers.ftz { flushed(value) } else { value }
}

/// The bits of `high + low`, rounded by the modifiers.
fn out(high: f64, low: f64, modifiers: &Modifiers) -> u64 {
    let value = rounded(high, low, modifiers.rounding);
    finish(value, modifiers)
}

fn finish(value: f32, modifiers: &Modifiers) -> u64 {
    let value = if modifiers.ftz { flushed(value) } else { value };
    (if modifiers.saturate { saturated(value) } else { value }).bits()
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
        "rcp" if approx => (|s, h, a| special(s[0], (sfu::rcp, f64::recip, -23.0), h, a), 1, 1),
        "rcp" => (|s, h, _| quotient(1.0, float(s[0], h), h), 1, 1),
        "sqrt" if approx => (|s, h, a| near(f64::from(float(s[0], h)).sqrt(), -23.0, h, a), 1, 1),
        "sqrt" => (|s, h, _| root(float(s[0], h), h), 1, 1),
        "rsqrt" if approx => (|s, h, a| special(s[0], (sfu::rsqrt, |x| 1.0 / x.sqrt(), -22.4), h, a), 1, 1),
        "ex2" if approx => (|s, h, a| special(s[0], (sfu::ex2, f64::exp2, -22.0), h, a), 1, 1),
        "lg2" if approx => (|s, h, a| special(s[0], (sfu::lg2, f64::log2, -22.0), h, a), 1, 1),
        "sin" if approx => (|s, h, a| absolute(f64::from(float(s[0], h)).sin(), -20.5, h, a), 1, 1),
        "cos" if approx => (|s, h, a| absolute(f64::from(float(s[0], h)).cos(), -20.5, h, a), 1, 1),
        "tanh" if approx => (|s, h, a| special(s[0], (|x, _| sfu::tanh(x), f64::tanh, -11.0), h, a), 1, 1),
        "selp" => (select, 3, 0),
        "testp" => testp(opcode)?,
        _ => return None,
    })
}

fn add_f32(s: &[u64; 4], modifiers: &Modifiers, _: Approximation) -> u64 {
    let (a, b) = (float(s[0], modifiers), float(s[1], modifiers));
    if modifiers.rounding == Rounding::Nearest {
        return finish(a + b, modifiers);
    }
    let (high, low) = two_sum(f64::from(a), f64::from(b));
    out(high, low, modifiers)
}

fn fma_f32(s: &[u64; 4], modifiers: &Modifiers, _: Approximation) -> u64 {
    let (a, b, c) = (float(s[0], modifiers), float(s[1], modifiers), float(s[2], modifiers));
    if modifiers.rounding == Rounding::Nearest {
        return finish(a.mul_add(b, c), modifiers);
    }
    let (high, low) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    out(high, low, modifiers)
}

/// a / b, rounded by the modifiers: the sign of the remainder gives the side of the f64 quotient on which the exact one
/// is.
fn quotient(a: f32, b: f32, modifiers: &Modifiers) -> u64 {
    let (a, b) = (f64::from(a), f64::from(b));
    let quotient = a / b;
    let remainder = (-quotient).mul_add(b, a) / b;
    out(quotient, if remainder.is_finite() { remainder } else { 0.0 }, modifiers)
}

fn root(x: f32, modifiers: &Modifiers) -> u64 {
    let x = f64::from(x);
    let root = x.sqrt();
    let rest = (-root).mul_add(root, x) / (2.0 * root);
    out(root, if rest.is_finite() { rest } else { 0.0 }, modifiers)
}

/// Model of a function of the special function unit, the function, and the exponent of its relative error.
type Special = (fn(u32, bool) -> u32, fn(f64) -> f64, f64);

/// A function of the special function unit: the device's bits or a value within its documented error.
#[inline(always)]
fn special(bits: u64, (model, exact, bound): Special, modifiers: &Modifiers, approximation: Approximation) -> u64 {
    if approximation == Approximation::Device {
        return finish(f32::from_bits(model(bits as u32, modifiers.ftz)), modifiers);
    }
    near(exact(f64::from(float(bits, modifiers))), bound, modifiers, approximation)
}

/// `exact`, anywhere within the relative error 2^`bound`.
fn near(exact: f64, bound: f64, modifiers: &Modifiers, approximation: Approximation) -> u64 {
    finish(approximation.apply(exact, bound.exp2()), modifiers)
}

/// `exact`, anywhere within the absolute error 2^`bound`.
fn absolute(exact: f64, bound: f64, modifiers: &Modifiers, approximation: Approximation) -> u64 {
    let off = match approximation {
        Approximation::Device => 0.0,
        Approximation::High => bound.exp2(),
        Approximation::Low => -bound.exp2(),
    };
    finish((exact + off) as f32, modifiers)
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

fn comparison(opcode: &mut Opcode<'_>) -> Option<Form> {
    let to_predicate = opcode.name == "setp";
    let mut modifiers = Modifiers { ftz: opcode.take("ftz"), ..Modifiers::default() };
    modifiers.from = opcode.ty()?;
    if !to_predicate {
        modifiers.to = opcode.ty()?;
    }
    if opcode.parts.is_empty() {
        return None;
    }
    modifiers.compare = Compare::named(opcode.parts.remove(0), modifiers.from.is_float())?;
    for (name, combine) in [("and", Combine::And), ("or", Combine::Or), ("xor", Combine::Xor)] {
        if opcode.take(name) {
            modifiers.combine = combine;
        }
    }
    let sources = if modifiers.combine == Combine::None { 2 } else { 3 };
    let run = match (to_predicate, modifiers.from) {
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
    Some(Form { run, sources, flops: 0, modifiers })
}

fn compared(s: &[u64; 4], modifiers: &Modifiers) -> bool {
    let shift = 64 - modifiers.from.bits();
    match modifiers.from {
        Type::F32 => modifiers.compare.holds(float(s[0], modifiers), float(s[1], modifiers)),
        Type::F64 => modifiers.compare.holds(f64::of(s[0]), f64::of(s[1])),
        Type::F16 => modifiers.compare.holds(half::f16::of(s[0]), half::f16::of(s[1])),
        Type::Bf16 => modifiers.compare.holds(half::bf16::of(s[0]), half::bf16::of(s[1])),
        ty if ty.is_signed() => modifiers.compare.holds((s[0] << shift).cast_signed(), (s[1] << shift).cast_signed()),
        _ => modifiers.compare.holds(s[0] << shift, s[1] << shift),
    }
}
