//! Polynomials and elementary functions, from the same coefficient tables that the CPU kernels use (`num::poly`).
//!
//! Each function comes in the precision that its caller's storage asks for:
//!
//! | | exp | used with |
//! |---|---|---|
//! | [`Precision::Single`] | range reduction and polynomial, 1.5 ulp | f32 storage |
//! | [`Precision::Half`] | `ex2.approx`: (3 + \|x\|)·2⁻²³ relative, the second part being the rounding of x·log₂e | bf16 storage, whose ulp is 2⁻⁸ |

use super::{Entry, F32, Reg, U32};
use crate::num::poly;

/// How exact an elementary function has to be.
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
        let [rest @ .., next, last] = coefficients else { panic!("a polynomial has at least two coefficients") };
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
    /// selected, because a branch within a warp would run both too.
    #[track_caller]
    pub fn erf(&self, x: Reg<F32>, precision: Precision) -> Reg<F32> {
        let magnitude = self.abs(x);
        let exponent = self.horner(self.min(magnitude, 4.0f32), &poly::ERF_LARGE);
        let large = self.sub(1.0f32, self.exp(self.neg(exponent), precision));
        let small = self.mul(x, self.horner(self.mul(x, x), &poly::ERF_SMALL));
        self.selp(small, self.copysign(x, large), self.lt_f32(magnitude, 1.0))
    }
}
