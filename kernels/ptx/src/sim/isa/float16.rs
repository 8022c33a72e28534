//! Arithmetic on f16, bf16 and pairs of them.
//!
//! Sums and products of two such numbers are exact in f64; they are rounded to odd into f32 and once more to 16 bits,
//! which together is rounding once.

use super::{Modifiers, Opcode, Run, Short, Type, combined, halves, join, least, odd, saturated, select, two_sum};
use crate::sim::Approximation;
use half::{bf16, f16};

/// Result of one element from up to three.
type Each = fn([f32; 3], &Modifiers, Approximation) -> f32;

fn each<T: Short, const PAIR: bool>(s: &[u64; 4], modifiers: &Modifiers, approximation: Approximation, f: Each) -> u64 {
    let one = |[a, b, c]: [T; 3]| {
        let value = f([a.wide(), b.wide(), c.wide()], modifiers, approximation);
        let value = if modifiers.relu && value < 0.0 { 0.0 } else { value };
        let value = if modifiers.saturate { saturated(value) } else { value };
        let short = T::narrow(value);
        if modifiers.ftz && short.wide() != 0.0 && short.wide().abs() < 6.103_515_6e-5 {
            T::narrow(0.0f32.copysign(value))
        } else {
            short
        }
    };
    if !PAIR {
        return one([T::of(s[0]), T::of(s[1]), T::of(s[2])]).bits();
    }
    let [a, b, c] = [halves::<T>(s[0]), halves::<T>(s[1]), halves::<T>(s[2])];
    join([one([a[0], b[0], c[0]]), one([a[1], b[1], c[1]])])
}

macro_rules! short {
    ($ty:expr, $f:expr) => {
        match $ty {
            Type::F16 => |s, h, a| each::<f16, false>(s, h, a, $f),
            Type::F16x2 => |s, h, a| each::<f16, true>(s, h, a, $f),
            Type::Bf16 => |s, h, a| each::<bf16, false>(s, h, a, $f),
            Type::Bf16x2 => |s, h, a| each::<bf16, true>(s, h, a, $f),
            _ => return None,
        }
    };
}

/// Signs are bits: NaN keeps its other bits.
fn signs(ty: Type) -> Option<[Run; 2]> {
    Some(match ty {
        Type::F16 | Type::Bf16 => [|s, _, _| s[0] ^ 0x8000, |s, _, _| s[0] & 0x7FFF],
        Type::F16x2 | Type::Bf16x2 => [|s, _, _| s[0] ^ 0x8000_8000, |s, _, _| s[0] & 0x7FFF_7FFF],
        _ => return None,
    })
}

fn sum(a: f64, b: f64) -> f32 {
    let (high, low) = two_sum(a, b);
    odd(high, low)
}

/// The form `name` on `ty`: function, sources, FLOPs of a lane.
pub(crate) fn find(name: &str, ty: Type, opcode: &mut Opcode<'_>) -> Option<(Run, usize, u32)> {
    let count = if matches!(ty, Type::F16x2 | Type::Bf16x2) { 2 } else { 1 };
    let approx = opcode.take("approx");
    Some(match name {
        "add" => (short!(ty, |[a, b, _], _, _| sum(a.into(), b.into())), 2, count),
        "sub" => (short!(ty, |[a, b, _], _, _| sum(a.into(), (-b).into())), 2, count),
        "mul" => (short!(ty, |[a, b, _], _, _| odd(f64::from(a) * f64::from(b), 0.0)), 2, count),
        "fma" => (short!(ty, |[a, b, c], _, _| sum(f64::from(a) * f64::from(b), c.into())), 3, 2 * count),
        "min" => (short!(ty, |[a, b, _], h, _| least(a, b, h.nan)), 2, count),
        "max" => (short!(ty, |[a, b, _], h, _| -least(-a, -b, h.nan)), 2, count),
        "ex2" if approx => {
            (short!(ty, |[a, ..], _, modifiers| modifiers.apply(f64::from(a).exp2(), f64::exp2(-9.0))), 1, count)
        }
        "tanh" if approx => {
            (short!(ty, |[a, ..], _, modifiers| modifiers.apply(f64::from(a).tanh(), f64::exp2(-8.0))), 1, count)
        }
        "neg" => (signs(ty)?[0], 1, count),
        "abs" => (signs(ty)?[1], 1, count),
        "selp" => (select, 3, 0),
        _ => return None,
    })
}

/// `setp` of two pairs: a predicate for each half.
pub(crate) fn compare_pair(s: &[u64; 4], modifiers: &Modifiers, _: Approximation) -> (u64, u64) {
    let test = |a: f32, b: f32| combined(modifiers.compare.holds(a, b), s, modifiers);
    let wide = |bits: u64| match modifiers.from {
        Type::F16x2 => halves::<f16>(bits).map(Short::wide),
        _ => halves::<bf16>(bits).map(Short::wide),
    };
    let ([a, b], [c, d]) = (wide(s[0]), wide(s[1]));
    (test(a, c), test(b, d))
}
