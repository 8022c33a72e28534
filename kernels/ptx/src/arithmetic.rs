//! Arithmetic, bits and conversions between registers.

use super::{
    B16, B32, Bf16x2, Entry, F16x2, F32, F64, Float, Integer, Number, Operand, Pred, Reg, S32, Type, U32, U64,
};

/// A method for each instruction: its operands, its result, and its mnemonic with the suffixes.
macro_rules! instructions {
    ($($(#[$doc:meta])* $name:ident $(<$T:ident: $bound:ident>)?
        ($($operand:ident: $ty:ty),*) -> $to:ty = $($part:expr),+;)*) => {
        impl Entry {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name $(<$T: $bound>)? (&self, $($operand: $ty),*) -> Reg<$to> {
                self.define(format_args!("{}", [$($part),+].concat()), &[$($operand.text()),*])
            }
        )*}
    };
}

instructions! {
    /// `mov`: a copy of a register or a constant in a fresh register.
    mov<T: Type>(source: impl Operand<T>) -> T = "mov", T::SUFFIX;

    /// a + b.
    add<T: Number>(a: Reg<T>, b: impl Operand<T>) -> T = "add", T::ROUNDED;

    /// a - b.
    sub<T: Number>(a: impl Operand<T>, b: impl Operand<T>) -> T = "sub", T::ROUNDED;

    /// a · b of floats.
    mul<T: Float>(a: Reg<T>, b: impl Operand<T>) -> T = "mul", T::ROUNDED;

    /// a · b + c of floats, rounded once.
    fma<T: Float>(a: Reg<T>, b: impl Operand<T>, c: impl Operand<T>) -> T = "fma", T::ROUNDED;

    /// -a.
    neg(a: Reg<F32>) -> F32 = "neg.f32";

    /// |a|.
    abs(a: Reg<F32>) -> F32 = "abs.f32";

    /// The magnitude of `magnitude` with the sign of `sign`.
    copysign(sign: Reg<F32>, magnitude: Reg<F32>) -> F32 = "copysign.f32";

    /// The smaller of two floats; the other where one is NaN.
    min(a: Reg<F32>, b: impl Operand<F32>) -> F32 = "min.f32";

    /// The larger of two floats; the other where one is NaN.
    max(a: Reg<F32>, b: impl Operand<F32>) -> F32 = "max.f32";

    /// The larger of two floats; NaN where one is NaN.
    max_nan(a: Reg<F32>, b: impl Operand<F32>) -> F32 = "max.NaN.f32";

    /// a / b, correctly rounded. Costs about eight instructions and a branch on the device.
    div<T: Float>(a: Reg<T>, b: Reg<T>) -> T = "div", T::ROUNDED;

    /// 1 / a within 1 ulp, subnormals as zero: one instruction of the special-function unit.
    rcp_approx(a: Reg<F32>) -> F32 = "rcp.approx.ftz.f32";

    /// √a, correctly rounded.
    sqrt<T: Float>(a: Reg<T>) -> T = "sqrt", T::ROUNDED;

    /// 1 / √a within 2 ulp, subnormals as zero: one instruction of the special-function unit.
    rsqrt_approx(a: Reg<F32>) -> F32 = "rsqrt.approx.ftz.f32";

    /// log₂ a within 2⁻²² of itself or of 1, subnormals as zero: one instruction of the special-function unit.
    lg2_approx(a: Reg<F32>) -> F32 = "lg2.approx.ftz.f32";

    /// 2^a within 2 ulp, subnormals as zero: one instruction of the special-function unit.
    ex2_approx(a: Reg<F32>) -> F32 = "ex2.approx.ftz.f32";

    /// tanh a within 2⁻¹¹ relative: one instruction of the special-function unit.
    tanh_approx(a: Reg<F32>) -> F32 = "tanh.approx.f32";

    /// a · b + c of integers, the lower 32 bits.
    mad_lo(a: Reg<U32>, b: impl Operand<U32>, c: impl Operand<U32>) -> U32 = "mad.lo.u32";

    /// a · b + c of integers, all 64 bits.
    mad_wide(a: Reg<U32>, b: impl Operand<U32>, c: impl Operand<U64>) -> U64 = "mad.wide.u32";

    /// a · b of integers, the lower 32 bits.
    mul_lo(a: Reg<U32>, b: impl Operand<U32>) -> U32 = "mul.lo.u32";

    /// a · b of integers, the upper 32 bits.
    mul_hi(a: Reg<U32>, b: impl Operand<U32>) -> U32 = "mul.hi.u32";

    /// a / b of integers, towards zero. Costs about twenty instructions: once a block, never in a loop.
    div_u32(a: Reg<U32>, b: impl Operand<U32>) -> U32 = "div.u32";

    /// The remainder of a / b of integers. Costs as much as the division.
    rem_u32(a: Reg<U32>, b: impl Operand<U32>) -> U32 = "rem.u32";

    /// The smaller of two unsigned integers.
    min_u32(a: Reg<U32>, b: impl Operand<U32>) -> U32 = "min.u32";

    /// The larger of two unsigned integers.
    max_u32(a: Reg<U32>, b: impl Operand<U32>) -> U32 = "max.u32";

    /// The smaller of two signed integers.
    min_s32(a: Reg<S32>, b: impl Operand<S32>) -> S32 = "min.s32";

    /// The larger of two signed integers.
    max_s32(a: Reg<S32>, b: impl Operand<S32>) -> S32 = "max.s32";

    /// a · b of integers, all 64 bits.
    mul_wide(a: Reg<U32>, b: impl Operand<U32>) -> U64 = "mul.wide.u32";

    /// a shifted left by `bits`, filled with zeros.
    shl<T: Integer>(a: Reg<T>, bits: impl Operand<U32>) -> T = "shl", T::BITS;

    /// a shifted right by `bits`, filled with zeros.
    shr(a: Reg<U32>, bits: impl Operand<U32>) -> U32 = "shr.u32";

    /// Bitwise and.
    and<T: Integer>(a: Reg<T>, b: impl Operand<T>) -> T = "and", T::BITS;

    /// Bitwise or.
    or<T: Integer>(a: Reg<T>, b: impl Operand<T>) -> T = "or", T::BITS;

    /// Bitwise exclusive or.
    xor<T: Integer>(a: Reg<T>, b: impl Operand<T>) -> T = "xor", T::BITS;

    /// Bitwise complement; of a condition its negation.
    not<T: Integer>(a: Reg<T>) -> T = "not", T::BITS;

    /// a where the condition holds, else b.
    selp<T: Type>(a: impl Operand<T>, b: impl Operand<T>, condition: Reg<Pred>) -> T = "selp", T::SUFFIX;

    /// 16 bits widened to 32, zeros above.
    cvt_u32_u16(a: Reg<B16>) -> B32 = "cvt.u32.u16";

    /// A float rounded to the nearest bf16, ties to even.
    cvt_bf16(a: Reg<F32>) -> B16 = "cvt.rn.bf16.f32";

    /// A float rounded to the nearest f16, ties to even.
    cvt_f16(a: Reg<F32>) -> B16 = "cvt.rn.f16.f32";

    /// The f32 of an f16: exact.
    cvt_f32_f16(a: Reg<B16>) -> F32 = "cvt.f32.f16";

    /// An unsigned integer as 64 bits.
    cvt_u64(a: Reg<U32>) -> U64 = "cvt.u64.u32";

    /// The lower 32 bits of 64.
    cvt_u32_u64(a: Reg<U64>) -> U32 = "cvt.u32.u64";

    /// The float nearest to an unsigned integer.
    cvt_f32_u32(a: Reg<U32>) -> F32 = "cvt.rn.f32.u32";

    /// A float as a double: exact.
    cvt_f64(a: Reg<F32>) -> F64 = "cvt.f64.f32";

    /// A double rounded to the nearest float.
    cvt_f32_f64(a: Reg<F64>) -> F32 = "cvt.rn.f32.f64";
}

impl Entry {
    /// `mov` into an existing register: the update of a loop variable.
    #[track_caller]
    pub fn assign<T: Type>(&self, destination: Reg<T>, source: impl Operand<T>) {
        self.write(format!("mov{} {destination}, {}", T::SUFFIX, source.text()));
    }

    /// `mov.b32` between types of 32 bits: the same bits, read as a `To`.
    #[track_caller]
    pub fn reinterpret<From: Type, To: Type>(&self, source: Reg<From>) -> Reg<To> {
        const { assert!(From::BYTES == 4 && To::BYTES == 4, "both types have 32 bits") };
        self.define(format_args!("mov.b32"), &[source.to_string()])
    }

    /// a + b, into an existing register.
    #[track_caller]
    pub fn add_into<T: Number>(&self, destination: Reg<T>, a: Reg<T>, b: impl Operand<T>) {
        self.write(format!("add{} {destination}, {a}, {}", T::ROUNDED, b.text()));
    }

    /// a · b of floats, into an existing register.
    #[track_caller]
    pub fn mul_into<T: Float>(&self, destination: Reg<T>, a: Reg<T>, b: impl Operand<T>) {
        self.write(format!("mul{} {destination}, {a}, {}", T::ROUNDED, b.text()));
    }

    /// a · b + c of floats, rounded once, into an existing register: an accumulation.
    #[track_caller]
    pub fn fma_into<T: Float>(&self, destination: Reg<T>, a: Reg<T>, b: impl Operand<T>, c: impl Operand<T>) {
        self.write(format!("fma{} {destination}, {a}, {}, {}", T::ROUNDED, b.text(), c.text()));
    }

    /// Bitwise exclusive or, into an existing register.
    #[track_caller]
    pub fn xor_into<T: Integer>(&self, destination: Reg<T>, a: Reg<T>, b: impl Operand<T>) {
        self.write(format!("xor{} {destination}, {a}, {}", T::BITS, b.text()));
    }

    /// Any function of three bits, 32 times: bit i of the result is bit 4a + 2b + c of `table`.
    #[track_caller]
    pub fn lop3<T: Integer>(&self, a: Reg<T>, b: impl Operand<T>, c: impl Operand<T>, table: u8) -> Reg<T> {
        const { assert!(T::BYTES == 4, "lop3 works on 32 bits") };
        self.define(format_args!("lop3.b32"), &[a.text(), b.text(), c.text(), format!("0x{table:02X}")])
    }

    /// Four bytes of the eight of b:a, byte i of the result being the one that nibble i of `selector` names.
    #[track_caller]
    pub fn prmt(&self, a: Reg<B32>, b: impl Operand<B32>, selector: u32) -> Reg<B32> {
        self.define(format_args!("prmt.b32"), &[a.text(), b.text(), format!("0x{selector:04X}")])
    }

    /// [`Entry::prmt`] with the selector in a register.
    #[track_caller]
    pub fn prmt_by<T: Type>(&self, a: Reg<T>, b: impl Operand<T>, selector: Reg<U32>) -> Reg<T> {
        const { assert!(T::BYTES == 4, "prmt works on 32 bits") };
        self.define(format_args!("prmt.b32"), &[a.text(), b.text(), selector.text()])
    }

    /// Two floats rounded to bf16 and packed; `low` is the one at the lower address.
    #[track_caller]
    pub fn cvt_bf16x2(&self, low: Reg<F32>, high: Reg<F32>) -> Reg<Bf16x2> {
        self.define(format_args!("cvt.rn.bf16x2.f32"), &[high.text(), low.text()])
    }

    /// Two floats rounded to f16 and packed; `low` is the one at the lower address.
    #[track_caller]
    pub fn cvt_f16x2(&self, low: Reg<F32>, high: Reg<F32>) -> Reg<F16x2> {
        self.define(format_args!("cvt.rn.f16x2.f32"), &[high.text(), low.text()])
    }

    /// The two halves of 32 bits, the lower first: one `mov`.
    #[track_caller]
    pub fn split<T: Type>(&self, pair: Reg<T>) -> [Reg<B16>; 2] {
        const { assert!(T::BYTES == 4, "halves are taken from 32 bits") };
        let halves = [self.fresh(), self.fresh()];
        self.write(format!("mov.b32 {{{}, {}}}, {pair}", halves[0], halves[1]));
        halves
    }

    /// Two halves joined to 32 bits, `low` below.
    #[track_caller]
    pub fn join<T: Type>(&self, low: Reg<B16>, high: Reg<B16>) -> Reg<T> {
        const { assert!(T::BYTES == 4, "halves are joined to 32 bits") };
        self.define(format_args!("mov.b32"), &[format!("{{{low}, {high}}}")])
    }
}
