//! Arithmetic, bits and conversions between registers.

use super::{B16, B32, Bf16x2, Entry, F32, Integer, Number, Operand, Pred, Reg, Type, U32, U64};

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
    pub fn mul(&self, a: Reg<F32>, b: impl Operand<F32>) -> Reg<F32> {
        self.define(format_args!("mul.rn.f32"), &[a.text(), b.text()])
    }

    /// a · b + c of floats, rounded once.
    #[track_caller]
    pub fn fma(&self, a: Reg<F32>, b: impl Operand<F32>, c: impl Operand<F32>) -> Reg<F32> {
        self.define(format_args!("fma.rn.f32"), &[a.text(), b.text(), c.text()])
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
    pub fn div(&self, a: Reg<F32>, b: Reg<F32>) -> Reg<F32> {
        self.define(format_args!("div.rn.f32"), &[a.text(), b.text()])
    }

    /// 1 / a within 1 ulp, subnormals as zero: one instruction of the special-function unit.
    #[track_caller]
    pub fn rcp_approx(&self, a: Reg<F32>) -> Reg<F32> {
        self.define(format_args!("rcp.approx.ftz.f32"), &[a.text()])
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

    /// a · b of integers, all 64 bits.
    #[track_caller]
    pub fn mul_wide(&self, a: Reg<U32>, b: impl Operand<U32>) -> Reg<U64> {
        self.define(format_args!("mul.wide.u32"), &[a.text(), b.text()])
    }

    /// a shifted left by `bits`, zeros behind.
    #[track_caller]
    pub fn shl<T: Integer>(&self, a: Reg<T>, bits: u32) -> Reg<T> {
        self.define(format_args!("shl.b32"), &[a.text(), bits.to_string()])
    }

    /// Bitwise and.
    #[track_caller]
    pub fn and<T: Integer>(&self, a: Reg<T>, b: impl Operand<T>) -> Reg<T> {
        self.define(format_args!("and.b32"), &[a.text(), b.text()])
    }

    /// Bitwise or.
    #[track_caller]
    pub fn or<T: Integer>(&self, a: Reg<T>, b: impl Operand<T>) -> Reg<T> {
        self.define(format_args!("or.b32"), &[a.text(), b.text()])
    }

    /// a where the condition holds, else b.
    #[track_caller]
    pub fn selp(&self, a: impl Operand<F32>, b: impl Operand<F32>, condition: Reg<Pred>) -> Reg<F32> {
        self.define(format_args!("selp.f32"), &[a.text(), b.text(), condition.text()])
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
}
