//! Types of PTX, and values of Rust in 64-bit registers.

use half::{bf16, f16};

macro_rules! types {
    ($($(#[$meta:meta])* $name:ident $text:literal $bits:literal,)*) => {
        /// A type that an instruction or a declaration names.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub(crate) enum Type { $($(#[$meta])* $name),* }

        impl Type {
            /// The type called `name`, without its dot.
            pub(crate) fn named(name: &str) -> Option<Self> {
                match name {
                    $($text => Some(Type::$name),)*
                    _ => None,
                }
            }

            pub(crate) const fn bits(self) -> u32 {
                match self { $(Type::$name => $bits),* }
            }
        }
    };
}
types! {
    Pred "pred" 1, B8 "b8" 8, B16 "b16" 16, #[default] B32 "b32" 32, B64 "b64" 64, B128 "b128" 128,
    U8 "u8" 8, U16 "u16" 16, U32 "u32" 32, U64 "u64" 64, S8 "s8" 8, S16 "s16" 16, S32 "s32" 32, S64 "s64" 64,
    F16 "f16" 16, F16x2 "f16x2" 32, Bf16 "bf16" 16, Bf16x2 "bf16x2" 32, Tf32 "tf32" 32,
    E4m3 "e4m3" 8, E5m2 "e5m2" 8, F32 "f32" 32, F64 "f64" 64,
}

impl Type {
    /// Whether it is two elements in one register.
    pub(crate) const fn is_pair(self) -> bool {
        matches!(self, Type::F16x2 | Type::Bf16x2)
    }

    /// True for floats of 8 bits, which only tensor cores compute with.
    pub(crate) const fn is_float8(self) -> bool {
        matches!(self, Type::E4m3 | Type::E5m2)
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

/// A float of 16 bits.
pub(crate) trait Short: Lane {
    fn wide(self) -> f32;
    fn narrow(value: f32) -> Self;
}

macro_rules! short_lanes {
    ($($float:ident $nan:literal)*) => {$(
        impl Lane for $float {
            fn of(bits: u64) -> Self { $float::from_bits(bits as u16) }
            fn bits(self) -> u64 { u64::from(if self.is_nan() { $nan } else { self.to_bits() }) }
        }
        impl Short for $float {
            fn wide(self) -> f32 { self.to_f32() }
            fn narrow(value: f32) -> Self { $float::from_f32(value) }
        }
    )*};
}
short_lanes! { f16 0x7FFF  bf16 0x7FFF }

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

/// Bits of element `v` of a register with elements of `bits` bits.
#[inline]
pub(crate) fn element(register: u64, v: usize, bits: u32) -> u32 {
    (register >> (bits * v as u32) & low_bits(bits)) as u32
}

/// The integer in up to eight bytes, the lowest first.
pub(crate) fn word(bytes: &[u8]) -> u64 {
    let mut raw = [0; 8];
    raw[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(raw)
}
