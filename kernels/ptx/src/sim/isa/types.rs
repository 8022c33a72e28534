//! The types of PTX, and how values of Rust lie in 64-bit registers.

use half::{bf16, f16};

/// A type that an instruction or a declaration names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    F64,
}

impl Type {
    /// The type called `name`, without its dot.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Type::Pred,
            "b8" => Type::B8,
            "b16" => Type::B16,
            "b32" => Type::B32,
            "b64" => Type::B64,
            "b128" => Type::B128,
            "u8" => Type::U8,
            "u16" => Type::U16,
            "u32" => Type::U32,
            "u64" => Type::U64,
            "s8" => Type::S8,
            "s16" => Type::S16,
            "s32" => Type::S32,
            "s64" => Type::S64,
            "f16" => Type::F16,
            "f16x2" => Type::F16x2,
            "bf16" => Type::Bf16,
            "bf16x2" => Type::Bf16x2,
            "tf32" => Type::Tf32,
            "f32" => Type::F32,
            "f64" => Type::F64,
            _ => return None,
        })
    }

    pub(crate) const fn bits(self) -> u32 {
        match self {
            Type::Pred => 1,
            Type::B8 | Type::U8 | Type::S8 => 8,
            Type::B16 | Type::U16 | Type::S16 | Type::F16 | Type::Bf16 => 16,
            Type::B32 | Type::U32 | Type::S32 | Type::F32 | Type::Tf32 | Type::F16x2 | Type::Bf16x2 => 32,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 => 64,
            Type::B128 => 128,
        }
    }

    pub(crate) const fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    pub(crate) const fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 | Type::Tf32 | Type::F32 | Type::F64)
    }
}

/// The lowest `bits` bits, at most 64.
pub(crate) fn low_bits(bits: u32) -> u64 {
    u64::MAX >> (64 - bits.clamp(1, 64))
}

/// A value as the low bits of a register, zeros above.
pub(crate) trait Lane: Copy {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! integer_lanes {
    ($($signed:ident $unsigned:ident)*) => {$(
        impl Lane for $unsigned {
            #[inline(always)]
            fn of(bits: u64) -> Self { bits as $unsigned }
            #[inline(always)]
            fn bits(self) -> u64 { self as u64 }
        }
        impl Lane for $signed {
            #[inline(always)]
            fn of(bits: u64) -> Self { bits as $signed }
            #[inline(always)]
            fn bits(self) -> u64 { self as $unsigned as u64 }
        }
    )*};
}
integer_lanes! { i8 u8  i16 u16  i32 u32  i64 u64 }

impl Lane for f32 {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        f32::from_bits(bits as u32)
    }
    /// There is one NaN on the device.
    #[inline(always)]
    fn bits(self) -> u64 {
        u64::from(if self.is_nan() { 0x7FFF_FFFF } else { self.to_bits() })
    }
}

impl Lane for f64 {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        f64::from_bits(bits)
    }
    #[inline(always)]
    fn bits(self) -> u64 {
        if self.is_nan() { 0x7FFF_FFFF_FFFF_FFFF } else { self.to_bits() }
    }
}

impl Lane for f16 {
    fn of(bits: u64) -> Self {
        f16::from_bits(bits as u16)
    }
    fn bits(self) -> u64 {
        u64::from(if self.is_nan() { 0x7FFF } else { self.to_bits() })
    }
}

impl Lane for bf16 {
    fn of(bits: u64) -> Self {
        bf16::from_bits(bits as u16)
    }
    fn bits(self) -> u64 {
        u64::from(if self.is_nan() { 0x7FFF } else { self.to_bits() })
    }
}

/// Two 16-bit values from the halves of a register.
pub(crate) fn halves<T: Lane>(bits: u64) -> [T; 2] {
    [T::of(bits & 0xFFFF), T::of(bits >> 16 & 0xFFFF)]
}

/// The inverse of [`halves`].
pub(crate) fn join<T: Lane>([low, high]: [T; 2]) -> u64 {
    low.bits() | high.bits() << 16
}

/// Subnormals as zero of their sign.
pub(crate) fn flushed(value: f32) -> f32 {
    if value.is_subnormal() { 0.0f32.copysign(value) } else { value }
}

/// The value with number `v` in a register.
pub(crate) fn element(bits: u64, v: usize, ty: Type) -> f64 {
    match ty {
        Type::Bf16 => f64::from(f32::from_bits(((bits >> (16 * v)) as u32) << 16)),
        Type::F16 => f16::of(bits >> (16 * v) & 0xFFFF).to_f64(),
        // The lower 13 bits are not looked at.
        Type::Tf32 => f64::from(f32::from_bits(bits as u32 & !0x1FFF)),
        Type::S8 => f64::from((bits >> (8 * v)) as u8 as i8),
        _ => f64::from((bits >> (8 * v)) as u8),
    }
}
