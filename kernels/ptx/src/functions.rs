//! Polynomials and elementary functions, from the same coefficient tables that the CPU kernels use (`num::poly`).
//!
//! Each function has two precisions, for the storage of its caller:
//!
//! | | exp | used with |
//! |---|---|---|
//! | [`Precision::Single`] | range reduction and polynomial, 1.5 ulp | f32 storage |
//! | [`Precision::Half`] | `ex2.approx`: (3 + \|x\|)·2⁻²³ relative, the second part being the rounding of x·log₂e | bf16 storage, whose ulp is 2⁻⁸ |

use super::{Compare, Entry, F32, Reg, U32};
use albert_num::poly;

/// Precision of an elementary function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// To the last bits of f32.
    Single,
    /// Well below the rounding of bf16.
    Half,
}

/// σ(x), and the parts of its derivative.
#[derive(Clone, Copy, Debug)]
pub struct Sigmoid {
    /// σ(x)
    pub value: Reg<F32>,
    /// e^-|x| · r
    tail: Reg<F32>,
    /// 1 / (1 + e^-|x|)
    r: Reg<F32>,
}

impl Sigmoid {
    /// Writes σ'(x) = σ(x)·σ(-x): one instruction.
    #[track_caller]
    pub fn derivative(self, k: &Entry) -> Reg<F32> {
        k.mul(self.tail, self.r)
    }
}

impl Entry {
    /// c₀ + c₁x + … + cₙxⁿ for `coefficients` in ascending order: n fused multiply-adds.
    ///
    /// # Panics
    /// If there are fewer than two coefficients.
    #[track_caller]
    pub fn horner(&self, x: Reg<F32>, coefficients: &[f32]) -> Reg<F32> {
        let [rest @ .., next, last] = coefficients else { panic!("polynomial with fewer than two coefficients") };
        let mut sum = self.fma(x, *last, *next);
        for &c in rest.iter().rev() {
            sum = self.fma(sum, x, c);
        }
        sum
    }

    /// e^x; above 88.72 it is +∞, and where it is below 2⁻¹²⁵ it is 0.
    #[track_caller]
    pub fn exp(&self, x: Reg<F32>, precision: Precision) -> Reg<F32> {
        match precision {
            Precision::Single => self.exp_polynomial(x),
            Precision::Half => self.ex2_approx(self.mul(x, poly::LOG2_E)),
        }
    }

    /// e^x = 2ⁿ·eʳ with n = round(x / ln 2) and |r| ≤ ln 2 / 2. Seventeen instructions.
    #[track_caller]
    fn exp_polynomial(&self, x: Reg<F32>) -> Reg<F32> {
        // A float of this size has no bits below one: adding it rounds to an integer and leaves that in the low bits.
        const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23
        const UNDERFLOW: f32 = -87.336_54; // ln 2^-126
        let clamped = self.min(self.max(x, -89.0f32), 89.0f32);
        let shifted = self.fma(clamped, poly::LOG2_E, ROUND);
        let n = self.sub(shifted, ROUND);
        let r = self.fma(n, -poly::LN2_HIGH, clamped);
        let r = self.fma(n, -poly::LN2_LOW, r);
        let tail = self.horner(r, &poly::EXP);
        let value = self.add(self.fma(self.mul(r, r), tail, r), 1.0f32);
        // 2ⁿ as 2^(n-1) · 2, because n reaches 128 and an exponent field does not.
        let bits: Reg<U32> = self.reinterpret(shifted);
        let half: Reg<F32> = self.reinterpret(self.shl(self.add(bits, 126), 23));
        let scaled = self.mul(self.mul(value, half), 2.0f32);
        self.selp(0.0f32, scaled, self.lt_f32(x, UNDERFLOW))
    }

    /// ln x; -∞ at 0, NaN below.
    #[track_caller]
    pub fn ln(&self, x: Reg<F32>, precision: Precision) -> Reg<F32> {
        match precision {
            Precision::Single => self.ln_polynomial(x),
            Precision::Half => self.mul(self.lg2_approx(x), std::f32::consts::LN_2),
        }
    }

    /// x = 2ⁿ·(1 + f) with √½ ≤ 1 + f < √2; ln x = n·ln 2 + f - f²/2 + f³·P(f). About thirty instructions.
    #[track_caller]
    fn ln_polynomial(&self, x: Reg<F32>) -> Reg<F32> {
        const SQRT_HALF_BITS: u32 = 0x3f35_04f3;
        const ONE_BITS: u32 = 0x3f80_0000;
        // Subnormals have no exponent of their own: scale them by 2²³ first.
        let subnormal = self.lt_f32(x, f32::MIN_POSITIVE);
        let normal = self.selp(self.mul(x, 8_388_608.0f32), x, subnormal);
        let shift = self.selp(-150.0f32, -127.0f32, subnormal);
        let bits: Reg<U32> = self.reinterpret(normal);
        let biased = self.shr(self.add(bits, ONE_BITS - SQRT_HALF_BITS), 23);
        let n = self.add(self.cvt_f32_u32(biased), shift);
        let mantissa: Reg<F32> = self.reinterpret(self.sub(self.add(bits, ONE_BITS), self.shl(biased, 23)));
        let f = self.sub(mantissa, 1.0f32);
        let z = self.mul(f, f);
        // The small terms first; f and n · LN2_HIGH, which is exact, last.
        let tail = self.fma(n, poly::LN2_LOW, self.mul(self.mul(f, z), self.horner(f, &poly::LN)));
        let tail = self.fma(z, -0.5f32, tail);
        let value = self.fma(n, poly::LN2_HIGH, self.add(tail, f));
        // ∞ and NaN are their own logarithms.
        let value = self.selp(value, x, self.lt_f32(x, f32::INFINITY));
        let below = self.selp(f32::NEG_INFINITY, f32::NAN, self.setp(Compare::Eq, x, 0.0f32));
        self.selp(below, value, self.setp(Compare::Le, x, 0.0f32))
    }

    /// 1 / x for x well inside the normal range: the device's reciprocal (1 ulp), and for f32 one Newton step on it.
    #[track_caller]
    pub fn reciprocal(&self, x: Reg<F32>, precision: Precision) -> Reg<F32> {
        let r = self.rcp_approx(x);
        match precision {
            Precision::Single => self.fma(r, self.fma(self.neg(x), r, 1.0f32), r),
            Precision::Half => r,
        }
    }

    /// σ(x) = 1 / (1 + e^-x), with what its derivative needs.
    ///
    /// Both are made of e = e^-|x| and r = 1 / (1 + e), so nothing overflows and nothing cancels: σ is r or e·r by the
    /// sign of x, and its derivative e·r², where σ·(1 - σ) would have lost the last bits of a small tail.
    #[track_caller]
    pub fn sigmoid(&self, x: Reg<F32>, precision: Precision) -> Sigmoid {
        let e = self.exp(self.neg(self.abs(x)), precision);
        let r = self.reciprocal(self.add(e, 1.0f32), precision);
        let tail = self.mul(e, r);
        Sigmoid { value: self.selp(tail, r, self.lt_f32(x, 0.0)), tail, r }
    }

    /// erf x: a polynomial in x² below 1, else 1 - exp(-P(|x|)) with the sign put back; both are computed and one is
    /// selected, because a branch within a warp would also run both.
    #[track_caller]
    pub fn erf(&self, x: Reg<F32>, precision: Precision) -> Reg<F32> {
        let magnitude = self.abs(x);
        let exponent = self.horner(self.min(magnitude, 4.0f32), &poly::ERF_LARGE);
        let large = self.sub(1.0f32, self.exp(self.neg(exponent), precision));
        let small = self.mul(x, self.horner(self.mul(x, x), &poly::ERF_SMALL));
        self.selp(small, self.copysign(x, large), self.lt_f32(magnitude, 1.0))
    }
}
