//! Precision of a product: rounding of its operands before they are multiplied.

use std::{fmt, str::FromStr};

/// Rounding of the operands of a product. Sums are f32 for all of them.
///
/// [`F32`](Self::F32) runs on the vectors of the instruction set, the others on [`tiles`](crate::tiles). Split operands are
/// sums of bf16 parts, x = x₀ + x₁ (+ x₂), each the bf16 nearest to what is left of x; their product is the sum of products
/// of parts, the smallest first. Errors are those of 64 x 64 sums of 768 normally distributed products, as norms
/// (`tests::accuracy`).
///
/// | precision | parts | products | relative error | f32 operands that are |
/// |---|---|---|---|---|
/// | `f32` | | | 4e-7 | any |
/// | `bf16` | 1 | 1 | 2e-3 | 3.39e38 and more become infinite |
/// | `bf16x3` | 2 | 3: 01 10 00 | 4e-6 | infinite make NaN; low parts below 1.2e-38 are lost |
/// | `bf16x6` | 3 | 6: 02 20 11 01 10 00 | 2e-7 | as `bf16x3` |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Precision {
    /// f32.
    #[default]
    F32,
    /// bf16.
    Bf16,
    /// Two parts of bf16, three products.
    Bf16x3,
    /// Three parts of bf16, six products.
    Bf16x6,
}

impl Precision {
    /// All precisions.
    pub const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::Bf16x3, Self::Bf16x6];

    /// Name, such as `bf16x3`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Bf16x3 => "bf16x3",
            Self::Bf16x6 => "bf16x6",
        }
    }

    /// Parts of an operand.
    pub(crate) const fn parts(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 1,
            Self::Bf16x3 => 2,
            Self::Bf16x6 => 3,
        }
    }

    /// Products of a part of A and a part of B, in the order in which they are added.
    pub(crate) const fn terms(self) -> &'static [[usize; 2]] {
        match self {
            Self::F32 | Self::Bf16 => &[[0, 0]],
            Self::Bf16x3 => &[[0, 1], [1, 0], [0, 0]],
            Self::Bf16x6 => &[[0, 2], [2, 0], [1, 1], [0, 1], [1, 0], [0, 0]],
        }
    }

    /// Maximum number of terms.
    pub(crate) const MOST_TERMS: usize = 6;
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error: the text names no precision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPrecision(String);

impl fmt::Display for UnknownPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown precision {:?}; expected f32, bf16, bf16x3 or bf16x6", self.0)
    }
}

impl std::error::Error for UnknownPrecision {}

impl FromStr for Precision {
    type Err = UnknownPrecision;

    fn from_str(text: &str) -> Result<Self, UnknownPrecision> {
        let found = Self::ALL.into_iter().find(|precision| precision.name() == text);
        found.ok_or_else(|| UnknownPrecision(text.to_owned()))
    }
}
