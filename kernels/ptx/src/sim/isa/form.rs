//! Forms of arithmetic instructions: the function of one lane and its modifiers.

use super::{Rounding, Type};
use crate::sim::Approximation;

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

/// Modifiers of a form: the parameters of its function beside the operands.
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

/// Comparisons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Compare {
    #[default]
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

pub(crate) fn holds<T: PartialOrd>(compare: Compare, a: T, b: T) -> bool {
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

pub(crate) fn select(s: &[u64; 4], _: &Modifiers, _: Approximation) -> u64 {
    if s[2] != 0 { s[0] } else { s[1] }
}
