//! Precision of a step: storage of its activations and rounding of its products' operands.

use crate::dtype::DType;
use kernels::gemm;
use std::{fmt, str::FromStr};

/// Precision of a step. Parameters, gradients, statistics, softmax, losses and sums are f32 for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// Activations and products in f32.
    #[default]
    F32,
    /// Activations and the operands of all products in bf16.
    Bf16,
    /// f32 activations; dense layers multiply operands split into two parts of bf16. CPUs only.
    Bf16x3,
    /// f32 activations; dense layers multiply operands split into three parts of bf16. CPUs only.
    Bf16x6,
    /// f32 activations; dense layers of the encoder multiply in 8-bit integers ([`kernels::int8`]), weights quantized by output
    /// and activations by row. Steps without gradients, CPUs only.
    Int8,
    /// f32 activations; dense layers multiply weights rounded to bf16 in f32, which reads half the bytes. Steps without
    /// gradients, CPUs only.
    Bf16Weights,
}

impl Precision {
    /// The precisions that a name selects.
    pub(crate) const ALL: [Self; 5] = [Self::F32, Self::Bf16, Self::Bf16x3, Self::Bf16x6, Self::Int8];

    /// Name, such as `bf16x3`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Bf16x3 => "bf16x3",
            Self::Bf16x6 => "bf16x6",
            Self::Int8 => "int8",
            Self::Bf16Weights => "bf16-weights",
        }
    }

    /// Storage type of activations.
    pub const fn activations(self) -> DType {
        if matches!(self, Self::Bf16) { DType::Bf16 } else { DType::F32 }
    }

    /// Precision of a product on the CPU whose activations are stored as `dtype`.
    pub fn of_product(self, dtype: DType) -> gemm::Precision {
        match self {
            _ if dtype == DType::Bf16 => gemm::Precision::Bf16,
            Self::Bf16x3 => gemm::Precision::Bf16x3,
            Self::Bf16x6 => gemm::Precision::Bf16x6,
            Self::F32 | Self::Bf16 | Self::Int8 | Self::Bf16Weights => gemm::Precision::F32,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|precision| precision.name() == text);
        found.ok_or_else(|| format!("unknown precision {text:?}; expected f32, bf16, bf16x3, bf16x6 or int8"))
    }
}
