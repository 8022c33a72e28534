//! Element types of tensors, as values and as types.
use half::bf16;
use std::fmt;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit floats.
    F32,
    /// bfloat16: storage only, arithmetic is always f32.
    Bf16,
    /// Unsigned integers: token ids, labels, offsets.
    U32,
}

impl DType {
    /// Bytes of one element.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// True for the types that can have a gradient.
    pub(crate) const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::Bf16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::U32 => "u32",
        })
    }
}

impl From<kernels::DType> for DType {
    fn from(dtype: kernels::DType) -> Self {
        match dtype {
            kernels::DType::F32 => Self::F32,
            kernels::DType::Bf16 => Self::Bf16,
        }
    }
}

/// A Rust type that a tensor can hold.
pub trait Scalar: bytemuck::Pod + Send + Sync + fmt::Debug {
    /// The type as a value.
    const DTYPE: DType;
}

impl Scalar for f32 {
    const DTYPE: DType = DType::F32;
}
impl Scalar for bf16 {
    const DTYPE: DType = DType::Bf16;
}
impl Scalar for u32 {
    const DTYPE: DType = DType::U32;
}

/// A float type that kernels compute on and tensors hold.
pub trait Float: Scalar + kernels::Element {}
impl Float for f32 {}
impl Float for bf16 {}

/// Runs a body for the Rust type of a float dtype: `floats!(dtype, X => f::<X>(..))`. Operations refuse integers before.
macro_rules! floats {
    ($dtype:expr, $X:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $X = f32;
                $body
            }
            $crate::DType::Bf16 => {
                type $X = half::bf16;
                $body
            }
            $crate::DType::U32 => unreachable!("integers were refused when the shapes were checked"),
        }
    };
}
pub(crate) use floats;
