//! Forms of arithmetic instructions: the function of one lane and its modifiers.

use super::{Rounding, Type};
use crate::sim::Approximation;
use std::cmp::Ordering;

/// The result of one lane from its sources.
pub(crate) type Run = fn(&[u64; 4], &Modifiers, Approximation) -> u64;

/// Two results of one lane.
pub(crate) type RunTwo = fn(&[u64; 4], &Modifiers, Approximation) -> (u64, u64);

/// A form of an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) run: Function,
    pub(crate) sources: usize,
    pub(crate) flops: u32,
    pub(crate) modifiers: Modifiers,
}

/// Its function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Function {
    One(Run),
    Two(RunTwo),
}

/// Modifiers of a form: the parameters of its function other than the operands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Modifiers {
    pub(crate) rounding: Rounding,
    /// Subnormals count as zero.
    pub(crate) ftz: bool,
    /// Results are clamped to [0, 1], integers to their range.
    pub(crate) saturate: bool,
    /// NaN wins over numbers.
    pub(crate) nan: bool,
    /// Negative results become zero.
    pub(crate) relu: bool,
    pub(crate) compare: Compare,
    pub(crate) combine: Combine,
    /// The last source, a predicate, is taken negated.
    pub(crate) negated: bool,
    /// Type of the operand.
    pub(crate) from: Type,
    /// Type of the result.
    pub(crate) to: Type,
    /// A variant of the form: the mode of `prmt`, the direction of `shf`.
    pub(crate) mode: u8,
    /// The result is one of the first two sources, by the third.
    pub(crate) selects: bool,
}

/// A comparison, as the set of outcomes for which it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Compare(u8);

impl Compare {
    const LESS: u8 = 1;
    const EQUAL: u8 = 2;
    const GREATER: u8 = 4;
    const UNORDERED: u8 = 8;

    /// The comparison called `name`. Of floats, those with a `u` hold where either is NaN; `lo`, `ls`, `hi` and `hs`
    /// are those of unsigned integers.
    pub(crate) fn named(name: &str, float: bool) -> Option<Self> {
        let (name, unordered) = match name.strip_suffix('u') {
            Some(name) if float => (name, Self::UNORDERED),
            _ => (name, 0),
        };
        let ordered = match name {
            "eq" => Self::EQUAL,
            "ne" => Self::LESS | Self::GREATER,
            "lt" => Self::LESS,
            "le" => Self::LESS | Self::EQUAL,
            "gt" => Self::GREATER,
            "ge" => Self::GREATER | Self::EQUAL,
            "num" if float => Self::LESS | Self::EQUAL | Self::GREATER,
            "nan" if float => Self::UNORDERED,
            "lo" if !float => Self::LESS,
            "ls" if !float => Self::LESS | Self::EQUAL,
            "hi" if !float => Self::GREATER,
            "hs" if !float => Self::GREATER | Self::EQUAL,
            _ => return None,
        };
        Some(Compare(ordered | unordered))
    }

    #[inline]
    pub(crate) fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        let outcome = match a.partial_cmp(&b) {
            Some(Ordering::Less) => Self::LESS,
            Some(Ordering::Equal) => Self::EQUAL,
            Some(Ordering::Greater) => Self::GREATER,
            None => Self::UNORDERED,
        };
        self.0 & outcome != 0
    }
}

/// Combination of a comparison's result with a third predicate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Combine {
    #[default]
    None,
    And,
    Or,
    Xor,
}

pub(crate) fn combined(holds: bool, s: &[u64; 4], modifiers: &Modifiers) -> u64 {
    let third = (s[2] != 0) != modifiers.negated;
    u64::from(match modifiers.combine {
        Combine::None => holds,
        Combine::And => holds && third,
        Combine::Or => holds || third,
        Combine::Xor => holds != third,
    })
}

pub(crate) fn select(s: &[u64; 4], _: &Modifiers, _: Approximation) -> u64 {
    if s[2] != 0 { s[0] } else { s[1] }
}
