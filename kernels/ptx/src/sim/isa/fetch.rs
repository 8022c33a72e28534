//! Read-modify-write operations: `atom`, `red`, `redux` and bulk reductions.

use super::{Lane, Opcode, Short, Type, halves, join};
use half::{bf16, f16};

/// Operator of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareExchange,
    Increment,
    Decrement,
}

pub(crate) fn fetch(opcode: &mut Opcode<'_>) -> Option<Fetch> {
    const FETCHES: [(&str, Fetch); 10] = [
        ("add", Fetch::Add),
        ("min", Fetch::Min),
        ("max", Fetch::Max),
        ("and", Fetch::And),
        ("or", Fetch::Or),
        ("xor", Fetch::Xor),
        ("exch", Fetch::Exchange),
        ("cas", Fetch::CompareExchange),
        ("inc", Fetch::Increment),
        ("dec", Fetch::Decrement),
    ];
    opcode.choose(&FETCHES)
}

/// The result of an atomic operation.
pub(crate) fn fetched(fetch: Fetch, ty: Type, old: u64, a: u64, b: u64) -> u64 {
    let shift = 64 - ty.bits();
    let mask = u64::MAX >> shift;
    let signed = |bits: u64| (bits << shift).cast_signed() >> shift;
    match fetch {
        Fetch::Add => match ty {
            Type::F32 => (f32::of(old) + f32::of(a)).bits(),
            Type::F64 => (f64::of(old) + f64::of(a)).bits(),
            Type::F16 => add(f16::of(old), f16::of(a)).bits(),
            Type::Bf16 => add(bf16::of(old), bf16::of(a)).bits(),
            Type::F16x2 => add_pairs::<f16>(old, a),
            Type::Bf16x2 => add_pairs::<bf16>(old, a),
            _ => old.wrapping_add(a) & mask,
        },
        Fetch::Min if ty.is_signed() => (signed(old).min(signed(a)) as u64) & mask,
        Fetch::Max if ty.is_signed() => (signed(old).max(signed(a)) as u64) & mask,
        Fetch::Min => old.min(a & mask),
        Fetch::Max => old.max(a & mask),
        Fetch::And => old & a,
        Fetch::Or => (old | a) & mask,
        Fetch::Xor => (old ^ a) & mask,
        Fetch::Exchange => a & mask,
        Fetch::CompareExchange if old == a & mask => b & mask,
        Fetch::CompareExchange => old,
        Fetch::Increment if old >= a & mask => 0,
        Fetch::Increment => old + 1,
        Fetch::Decrement if old == 0 || old > a & mask => a & mask,
        Fetch::Decrement => old - 1,
    }
}

fn add<T: Short>(a: T, b: T) -> T {
    T::narrow(a.wide() + b.wide())
}

fn add_pairs<T: Short>(a: u64, b: u64) -> u64 {
    let ([a, c], [b, d]) = (halves::<T>(a), halves::<T>(b));
    join([add(a, b), add(c, d)])
}
