//! Register types, operands and address spaces.
//!
//! A virtual register has an index and a type, which gives its name in the text:
//!
//! | type | declared | name | holds |
//! |---|---|---|---|
//! | [`F32`] | `.f32` | `%f0` | a float |
//! | [`B32`] | `.b32` | `%r0` | 32 untyped bits |
//! | [`U32`] | `.u32` | `%u0` | an unsigned integer, or an address in shared memory |
//! | [`S32`] | `.s32` | `%s0` | a signed integer |
//! | [`Bf16x2`] | `.b32` | `%bb0` | two bf16, the lower half first in memory |
//! | [`F16x2`] | `.b32` | `%hh0` | two f16, the lower half first in memory |
//! | [`B16`] | `.b16` | `%h0` | 16 bits, one bf16 or f16 |
//! | [`U64`] | `.u64` | `%rd0` | an unsigned integer, or an address in any other space |
//! | [`F64`] | `.f64` | `%d0` | a double-precision float |
//! | [`Pred`] | `.pred` | `%p0` | a condition |
//!
//! A kernel may give the registers of a role a name of their own ([`super::Entry::registers`]): `%acc0 .. %acc63`.

use std::{fmt, marker::PhantomData};

mod sealed {
    pub trait Sealed {}
}

/// Type of a register. Sealed: the types of this module implement it.
pub trait Type: sealed::Sealed + Copy + Eq + 'static {
    /// The suffix of instructions on this type: `.f32`.
    const SUFFIX: &'static str;
    /// The type in a `.reg` declaration; differs from the suffix for packed pairs.
    const DECLARED: &'static str;
    /// Prefix of a register's name, without the percent sign.
    const PREFIX: &'static str;
    /// Bytes in memory.
    const BYTES: u32;
    /// Position in the entry's counters of registers.
    const CLASS: usize;
}

/// Number of classes of registers.
pub(super) const CLASSES: usize = 10;

macro_rules! register_types {
    ($($(#[$doc:meta])* $name:ident: $class:literal $suffix:literal $declared:literal $prefix:literal $bytes:literal;)*) => {
        $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name;
        impl sealed::Sealed for $name {}
        impl Type for $name {
            const SUFFIX: &'static str = $suffix;
            const DECLARED: &'static str = $declared;
            const PREFIX: &'static str = $prefix;
            const BYTES: u32 = $bytes;
            const CLASS: usize = $class;
        }
        )*

        /// `(prefix, declared type)` of each class, in the order in which a listing declares them.
        pub(super) const DECLARATIONS: [(&str, &str); CLASSES] = [$(($prefix, $declared)),*];
    };
}

register_types! {
    /// A condition: the result of a comparison, the guard of an instruction.
    Pred: 0 ".pred" ".pred" "p" 0;
    /// 16 untyped bits; one bf16 or f16.
    B16: 1 ".b16" ".b16" "h" 2;
    /// 32 untyped bits.
    B32: 2 ".b32" ".b32" "r" 4;
    /// Two bf16 in one register, the one at the lower address in the lower half.
    Bf16x2: 3 ".b32" ".b32" "bb" 4;
    /// An unsigned 32-bit integer.
    U32: 4 ".u32" ".u32" "u" 4;
    /// A single-precision float.
    F32: 5 ".f32" ".f32" "f" 4;
    /// An unsigned 64-bit integer.
    U64: 6 ".u64" ".u64" "rd" 8;
    /// A signed 32-bit integer.
    S32: 7 ".s32" ".s32" "s" 4;
    /// Two f16 in one register, the one at the lower address in the lower half.
    F16x2: 8 ".b32" ".b32" "hh" 4;
    /// A double-precision float.
    F64: 9 ".f64" ".f64" "d" 8;
}

/// Implements a trait with one constant.
macro_rules! constants {
    ($trait:ident::$name:ident: $($ty:ident $value:literal),*) => {$(
        impl $trait for $ty {
            const $name: &'static str = $value;
        }
    )*};
}

/// Types with addition: floats round to nearest even, integers wrap.
pub trait Number: Type {
    /// Suffix of the mnemonic: `.rn.f32` for floats. The rounding is explicit because the driver may fuse
    /// multiplications and additions without one, so that results would depend on its version.
    const ROUNDED: &'static str;
}
constants!(Number::ROUNDED: F32 ".rn.f32", F64 ".rn.f64", U32 ".u32", S32 ".s32", U64 ".u64");

/// Floating-point types.
pub trait Float: Number {}
impl Float for F32 {}
impl Float for F64 {}

/// Types with bitwise operations.
pub trait Integer: Type {
    /// Suffix of the mnemonic of a bitwise operation: the width.
    const BITS: &'static str;
}
constants!(Integer::BITS: U32 ".b32", S32 ".b32", B32 ".b32", U64 ".b64", Pred ".pred");

/// Pairs of 16-bit floats, the operands of the tensor cores.
pub trait Pair: Type {
    /// Type of one element, as matrix instructions name it.
    const HALF: &'static str;
}
constants!(Pair::HALF: Bf16x2 "bf16", F16x2 "f16");

/// A virtual register of type `T`. Their number is not limited; the driver's assembler allocates hardware registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reg<T: Type> {
    pub(super) index: u32,
    pub(super) name: &'static str,
    kind: PhantomData<T>,
}

impl<T: Type> Reg<T> {
    pub(super) fn new(index: u32) -> Self {
        Self::named(T::PREFIX, index)
    }

    pub(super) fn named(name: &'static str, index: u32) -> Self {
        Self { index, name, kind: PhantomData }
    }
}

impl<T: Type> fmt::Display for Reg<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}{}", self.name, self.index)
    }
}

impl<T: Type> fmt::Debug for Reg<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Operand of an instruction on `T`: a register of that type or a constant.
pub trait Operand<T: Type>: Copy {
    /// The operand as PTX writes it.
    fn text(self) -> String;
}

impl<T: Type> Operand<T> for Reg<T> {
    fn text(self) -> String {
        self.to_string()
    }
}

macro_rules! literals {
    ($($ty:ident $literal:ident $text:expr,)*) => {$(
        impl Operand<$ty> for $literal {
            fn text(self) -> String {
                let text: fn($literal) -> String = $text;
                text(self)
            }
        }
    )*};
}
literals! {
    // The bits of floats in hexadecimal: exact, and the same on every machine.
    F32 f32 |value| format!("0f{:08X}", value.to_bits()),
    F64 f64 |value| format!("0d{:016X}", value.to_bits()),
    U32 u32 |value| value.to_string(),
    S32 i32 |value| value.to_string(),
    U64 u64 |value| value.to_string(),
    B32 u32 |value| format!("0x{value:08X}"),
}

/// An address space.
pub trait Space: sealed::Sealed + Copy + 'static {
    /// Suffix of loads and stores: `.global`, or nothing for a generic address.
    const SUFFIX: &'static str;
    /// Register type of an address of the space.
    type Word: Word;
}

macro_rules! spaces {
    ($($(#[$doc:meta])* $name:ident $suffix:literal $word:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name;
        impl sealed::Sealed for $name {}
        impl Space for $name {
            const SUFFIX: &'static str = $suffix;
            type Word = $word;
        }
    )*};
}
spaces! {
    /// Device memory.
    Global ".global" U64;
    /// A generic address, as in parameters; [`super::Entry::cvta_to_global`] converts it.
    Generic "" U64;
    /// Memory of a block. Its addresses have 32 bits, which halves the registers and the arithmetic that they take.
    Shared ".shared" U32;
}

/// A register type that holds addresses.
pub trait Word: Number {
    /// The multiply-add that gives `base + i · size` for a 32-bit i.
    const INDEX: &'static str;
}
constants!(Word::INDEX: U64 "mad.wide.u32", U32 "mad.lo.u32");

/// A register that holds an address in space `S`.
#[derive(Clone, Copy)]
pub struct Ptr<S: Space> {
    pub(super) register: Reg<S::Word>,
}

impl<S: Space> Ptr<S> {
    pub(super) fn new(register: Reg<S::Word>) -> Self {
        Self { register }
    }
}

impl<S: Space> fmt::Debug for Ptr<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]", self.register)
    }
}
