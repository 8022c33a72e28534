//! Arithmetic, bits and conversions between registers.

use super::{
    B16, B32, Bf16x2, Entry, F16x2, F32, F64, Float, Integer, Number, Operand, Pred, Reg, S32, Type, U32, U64,
};

impl Entry {
    /// `mov`: a copy into a fresh register, or a number into a register.
    #[track_caller]
    pub fn mov<T: Type>(&self, source: impl Operand<T>) -> Reg<T> {
        self.define(format_args!("mov{}", T::SUFFIX), &[source.text()])
    }

    /// `mov` into a register that exists: how a value is carried from one turn of a loop to the next.
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

    /// a + b.
    #[track_caller]
    pub fn add<T: Number>(&self, a: Reg<T>, b: impl Operand<T>) -> Reg<T> {
        self.define(format_args!("add{}", T::ROUNDED), &[a.text(), b.text()])
    }

    /// a + b, into a register that exists.
    #[track_caller]
    pub fn add_into<T: Number>(&self, destination: Reg<T>, a: Reg<T>, b: impl Operand<T>) {
        self.write(format!("add{} {destination}, {a}, {}", T::ROUNDED, b.text()));
    }

    /// a - b.
    #[track_caller]
    pub fn sub<T: Number>(&self, a: impl Operand<T>, b: impl Operand<T>) -> Reg<T> {
        self.define(format_args!("sub{}", T::ROUNDED), &[a.text(), b.text()])
    }

    /// a · b of floats.
    #[track_caller]
    pub fn mul<T: Float>(&self, a: Reg<T>, b: impl Operand<T>) -> Reg<T> {
        self.define(format_args!("mul{}", T::ROUNDED), &[a.text(), b.text()])
    }

    /// a · b of floats, into a register that exists.
    #[track_caller]
    pub fn mul_into<T: Float>(&self, destination: Reg<T>, a: Reg<T>, b: impl Operand<T>) {
        self.write(format!("mul{} {destination}, {a}, {}", T::ROUNDED, b.text()));
    }

    /// a · b + c of floats, rounded once.
    #[track_caller]
    pub fn fma<T: Float>(&self, a: Reg<T>, b: impl Operand<T>, c: impl Operand<T>) -> Reg<T> {
        self.define(format_args!("fma{}", T::ROUNDED), &[a.text(), b.text(), c.text()])
    }

    /// a · b + c of floats, rounded once, into a register that exists: how a sum grows.
    #[track_caller]
    pub fn fma_into<T: Float>(&self, destination: Reg<T>, a: Reg<T>, b: impl Operand<T>, c: impl Operand<T>) {
        self.write(format!("fma{} {destination}, {a}, {}, {}", T::ROUNDED, b.text(), c.text()));
    }

    /// -a.
    #[track_caller]
    pub fn neg(&self, a: Reg<F32>) -> Reg<F32> {
        self.define(format_args!("neg.f32"), &[a.text()])
    }

    /// |a|.
    #[track_caller]
    pub fn abs(&self, a: Reg<F32>) -> Reg<F32> {
        self.define(format_args!("abs.f32"), &[a.text()])
    }

    /// The magnitude of `magnitude` with the sign of `sign`.
    #[track_caller]
    pub fn copysign(&self, sign: Reg<F32>, magnitude: Reg<F32>) -> Reg<F32> {
        self.define(format_args!("copysign.f32"), &[sign.text(), magnitude.text()])
    }

    /// The smaller of two floats; the number where one is NaN.
    #[track_caller]
    pub fn min(&self, a: Reg<F32>, b: impl Operand<F32>) -> Reg<F32> {
        self.define(format_args!("min.f32"), &[a.text(), b.text()])
    }

    /// The larger of two floats; the number where one is NaN.
    #[track_caller]
    pub fn max(&self, a: Reg<F32>, b: impl Operand<F32>) -> Reg<F32> {
        self.define(format_args!("max.f32"), &[a.text(), b.text()])
    }

    /// The larger of two floats; NaN where one is NaN.
    #[track_caller]
    pub fn max_nan(&self, a: Reg<F32>, b: impl Operand<F32>) -> Reg<F32> {
        self.define(format_args!("max.NaN.f32"), &[a.text(), b.text()])
    }

    /// a / b, correctly rounded. Costs about eight instructions and a branch on the device.
    #[track_caller]
    pub fn div<T: Float>(&self, a: Reg<T>, b: Reg<T>) -> Reg<T> {
        self.define(format_args!("div{}", T::ROUNDED), &[a.text(), b.text()])
    }

    /// 1 / a within 1 ulp, subnormals as zero: one instruction of the special-function unit.
    #[track_caller]
    pub fn rcp_approx(&self, a: Reg<F32>) -> Reg<F32> {
        self.define(format_args!("rcp.approx.ftz.f32"), &[a.text()])
    }

    /// √a, correctly rounded.
    #[track_caller]
    pub fn sqrt<T: Float>(&self, a: Reg<T>) -> Reg<T> {
        self.define(format_args!("sqrt{}", T::ROUNDED), &[a.text()])
    }

    /// 1 / √a within 2 ulp, subnormals as zero: one instruction of the special-function unit.
    #[track_caller]
    pub fn rsqrt_approx(&self, a: Reg<F32>) -> Reg<F32> {
        self.define(format_args!("rsqrt.approx.ftz.f32"), &[a.text()])
    }

    /// log₂ a within 2⁻²² of itself or of 1, subnormals as zero: one instruction of the special-function unit.
    #[track_caller]
    pub fn lg2_approx(&self, a: Reg<F32>) -> Reg<F32> {
        self.define(format_args!("lg2.approx.ftz.f32"), &[a.text()])
    }

    /// 2^a within 2 ulp, subnormals as zero: one instruction of the special-function unit.
    #[track_caller]
    pub fn ex2_approx(&self, a: Reg<F32>) -> Reg<F32> {
        self.define(format_args!("ex2.approx.ftz.f32"), &[a.text()])
    }

    /// tanh a within 2⁻¹¹ relative: one instruction of the special-function unit.
    #[track_caller]
    pub fn tanh_approx(&self, a: Reg<F32>) -> Reg<F32> {
        self.define(format_args!("tanh.approx.f32"), &[a.text()])
    }

    /// a · b + c of integers, the lower 32 bits.
    #[track_caller]
    pub fn mad_lo(&self, a: Reg<U32>, b: impl Operand<U32>, c: impl Operand<U32>) -> Reg<U32> {
        self.define(format_args!("mad.lo.u32"), &[a.text(), b.text(), c.text()])
    }

    /// a · b + c of integers, all 64 bits.
    #[track_caller]
    pub fn mad_wide(&self, a: Reg<U32>, b: impl Operand<U32>, c: impl Operand<U64>) -> Reg<U64> {
        self.define(format_args!("mad.wide.u32"), &[a.text(), b.text(), c.text()])
    }

    /// a · b of integers, the lower 32 bits.
    #[track_caller]
    pub fn mul_lo(&self, a: Reg<U32>, b: impl Operand<U32>) -> Reg<U32> {
        self.define(format_args!("mul.lo.u32"), &[a.text(), b.text()])
    }

    /// a · b of integers, the upper 32 bits.
    #[track_caller]
    pub fn mul_hi(&self, a: Reg<U32>, b: impl Operand<U32>) -> Reg<U32> {
        self.define(format_args!("mul.hi.u32"), &[a.text(), b.text()])
    }

    /// a / b of integers, towards zero. Costs about twenty instructions: once a block, never in a loop.
    #[track_caller]
    pub fn div_u32(&self, a: Reg<U32>, b: impl Operand<U32>) -> Reg<U32> {
        self.define(format_args!("div.u32"), &[a.text(), b.text()])
    }

    /// The remainder of a / b of integers. Costs as much as the division.
    #[track_caller]
    pub fn rem_u32(&self, a: Reg<U32>, b: impl Operand<U32>) -> Reg<U32> {
        self.define(format_args!("rem.u32"), &[a.text(), b.text()])
    }

    /// The smaller of two unsigned integers.
    #[track_caller]
    pub fn min_u32(&self, a: Reg<U32>, b: impl Operand<U32>) -> Reg<U32> {
        self.define(format_args!("min.u32"), &[a.text(), b.text()])
    }

    /// The larger of two unsigned integers.
    #[track_caller]
    pub fn max_u32(&self, a: Reg<U32>, b: impl Operand<U32>) -> Reg<U32> {
        self.define(format_args!("max.u32"), &[a.text(), b.text()])
    }

    /// The smaller of two signed integers.
    #[track_caller]
    pub fn min_s32(&self, a: Reg<S32>, b: impl Operand<S32>) -> Reg<S32> {
        self.define(format_args!("min.s32"), &[a.text(), b.text()])
    }

    /// The larger of two signed integers.
    #[track_caller]
    pub fn max_s32(&self, a: Reg<S32>, b: impl Operand<S32>) -> Reg<S32> {
        self.define(format_args!("max.s32"), &[a.text(), b.text()])
    }

    /// a · b of integers, all 64 bits.
    #[track_caller]
    pub fn mul_wide(&self, a: Reg<U32>, b: impl Operand<U32>) -> Reg<U64> {
        self.define(format_args!("mul.wide.u32"), &[a.text(), b.text()])
    }

    /// a shifted left by `bits`, zeros behind.
    #[track_caller]
    pub fn shl<T: Integer>(&self, a: Reg<T>, bits: impl Operand<U32>) -> Reg<T> {
        self.define(format_args!("shl{}", T::BITS), &[a.text(), bits.text()])
    }

    /// a shifted right by `bits`, zeros in front.
    #[track_caller]
    pub fn shr(&self, a: Reg<U32>, bits: impl Operand<U32>) -> Reg<U32> {
        self.define(format_args!("shr.u32"), &[a.text(), bits.text()])
    }

    /// Bitwise and.
    #[track_caller]
    pub fn and<T: Integer>(&self, a: Reg<T>, b: impl Operand<T>) -> Reg<T> {
        self.define(format_args!("and{}", T::BITS), &[a.text(), b.text()])
    }

    /// Bitwise or.
    #[track_caller]
    pub fn or<T: Integer>(&self, a: Reg<T>, b: impl Operand<T>) -> Reg<T> {
        self.define(format_args!("or{}", T::BITS), &[a.text(), b.text()])
    }

    /// Bitwise exclusive or.
    #[track_caller]
    pub fn xor<T: Integer>(&self, a: Reg<T>, b: impl Operand<T>) -> Reg<T> {
        self.define(format_args!("xor{}", T::BITS), &[a.text(), b.text()])
    }

    /// Bitwise exclusive or, into a register that exists.
    #[track_caller]
    pub fn xor_into<T: Integer>(&self, destination: Reg<T>, a: Reg<T>, b: impl Operand<T>) {
        self.write(format!("xor{} {destination}, {a}, {}", T::BITS, b.text()));
    }

    /// Every bit flipped; of a condition its opposite.
    #[track_caller]
    pub fn not<T: Integer>(&self, a: Reg<T>) -> Reg<T> {
        self.define(format_args!("not{}", T::BITS), &[a.text()])
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

    /// a where the condition holds, else b.
    #[track_caller]
    pub fn selp<T: Type>(&self, a: impl Operand<T>, b: impl Operand<T>, condition: Reg<Pred>) -> Reg<T> {
        self.define(format_args!("selp{}", T::SUFFIX), &[a.text(), b.text(), condition.text()])
    }

    /// 16 bits widened to 32, zeros above.
    #[track_caller]
    pub fn cvt_u32_u16(&self, a: Reg<B16>) -> Reg<B32> {
        self.define(format_args!("cvt.u32.u16"), &[a.text()])
    }

    /// A float rounded to the nearest bf16, ties to even.
    #[track_caller]
    pub fn cvt_bf16(&self, a: Reg<F32>) -> Reg<B16> {
        self.define(format_args!("cvt.rn.bf16.f32"), &[a.text()])
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

    /// A float rounded to the nearest f16, ties to even.
    #[track_caller]
    pub fn cvt_f16(&self, a: Reg<F32>) -> Reg<B16> {
        self.define(format_args!("cvt.rn.f16.f32"), &[a.text()])
    }

    /// The float that an f16 is.
    #[track_caller]
    pub fn cvt_f32_f16(&self, a: Reg<B16>) -> Reg<F32> {
        self.define(format_args!("cvt.f32.f16"), &[a.text()])
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

    /// An unsigned integer as 64 bits.
    #[track_caller]
    pub fn cvt_u64(&self, a: Reg<U32>) -> Reg<U64> {
        self.define(format_args!("cvt.u64.u32"), &[a.text()])
    }

    /// The lower 32 bits of 64.
    #[track_caller]
    pub fn cvt_u32_u64(&self, a: Reg<U64>) -> Reg<U32> {
        self.define(format_args!("cvt.u32.u64"), &[a.text()])
    }

    /// The float nearest to an unsigned integer.
    #[track_caller]
    pub fn cvt_f32_u32(&self, a: Reg<U32>) -> Reg<F32> {
        self.define(format_args!("cvt.rn.f32.u32"), &[a.text()])
    }

    /// A float as a double: exact.
    #[track_caller]
    pub fn cvt_f64(&self, a: Reg<F32>) -> Reg<F64> {
        self.define(format_args!("cvt.f64.f32"), &[a.text()])
    }

    /// A double rounded to the nearest float.
    #[track_caller]
    pub fn cvt_f32_f64(&self, a: Reg<F64>) -> Reg<F32> {
        self.define(format_args!("cvt.rn.f32.f64"), &[a.text()])
    }
}
