//! exp, ln, tanh, erf, sigmoid and GELU on vectors of any instruction set.
//!
//! Maximum errors against f64 over all magnitudes, in ulp of the result, asserted by `num::tests`: exp 1, ln 1.5, tanh 1.5,
//! erf 2.5, sigmoid 2.5. GELU and its derivative cross zero, where an ulp is not a useful bound: their errors are at most 4e-7
//! of max(|x|, 1).

use super::poly::*;
use crate::simd::Simd;

/// Σ `c[i]` · xⁱ by Horner's rule.
#[inline(always)]
pub fn polynomial<S: Simd, const N: usize>(simd: S, c: [f32; N], x: S::F32) -> S::F32 {
    let mut sum = simd.splat(c[N - 1]);
    for &ci in c[..N - 1].iter().rev() {
        sum = simd.mul_add(sum, x, simd.splat(ci));
    }
    sum
}

/// e^x. Overflows to +∞ above 88.72; results below 2^-125 (x < -86.64) are 0; NaN stays.
#[inline(always)]
pub fn exp<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    const UNDERFLOW: f32 = -86.643_4; // ln(2^-125)
    let clamped = simd.min(simd.splat(89.0), simd.max(simd.splat(-89.0), x));
    // x = n·ln 2 + r, |r| <= ln 2 / 2
    let n = simd.round_to_int(simd.mul(clamped, simd.splat(LOG2_E)));
    let nf = simd.int_to_float(n);
    let r = simd.neg_mul_add(nf, simd.splat(LN2_HIGH), clamped);
    let r = simd.neg_mul_add(nf, simd.splat(LN2_LOW), r);
    let tail = simd.mul(simd.mul(r, r), polynomial(simd, EXP, r));
    let value = simd.add(simd.add(tail, r), simd.splat(1.0));
    // 2^(n-1) and then 2, because n reaches 128 and an exponent field does not.
    let half_scale = simd.as_floats(simd.shl::<23>(simd.add_u32(n, simd.splat_u32(126))));
    let result = simd.mul(simd.mul(value, half_scale), simd.splat(2.0));
    simd.select(simd.lt(x, simd.splat(UNDERFLOW)), simd.zero(), result)
}

/// ln x. -∞ at 0, NaN below, ∞ at ∞; NaN stays.
#[inline(always)]
pub fn ln<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    const SQRT_HALF_BITS: u32 = 0x3f35_04f3;
    const ONE_BITS: u32 = 0x3f80_0000;
    // Subnormals have no exponent field: scale them by 2^23 first.
    let subnormal = simd.lt(x, simd.splat(f32::MIN_POSITIVE));
    let normal = simd.select(subnormal, simd.mul(x, simd.splat(8_388_608.0)), x);
    let shift = simd.select(subnormal, simd.splat(-23.0), simd.zero());
    // x = 2^n · (1 + f), √½ <= 1 + f < √2; `biased` is n + 127.
    let bits = simd.as_bits(normal);
    let biased = simd.shr::<23>(simd.add_u32(bits, simd.splat_u32(ONE_BITS - SQRT_HALF_BITS)));
    let n = simd.add(simd.int_to_float(biased), simd.add(shift, simd.splat(-127.0)));
    let minus_n = simd.add_u32(simd.xor(biased, simd.splat_u32(u32::MAX)), simd.splat_u32(128));
    let mantissa = simd.as_floats(simd.add_u32(bits, simd.shl::<23>(minus_n)));
    let f = simd.sub(mantissa, simd.splat(1.0));
    let z = simd.mul(f, f);
    // The small terms first: n · LN2_LOW, the cubic tail, -f²/2; then f and n · LN2_HIGH, which is exact.
    let tail = simd.mul_add(n, simd.splat(LN2_LOW), simd.mul(simd.mul(f, z), polynomial(simd, LN, f)));
    let tail = simd.neg_mul_add(z, simd.splat(0.5), tail);
    let value = simd.mul_add(n, simd.splat(LN2_HIGH), simd.add(tail, f));
    let value = simd.select(simd.lt(x, simd.splat(f32::INFINITY)), value, x);
    let below = simd.select(simd.lt(x, simd.zero()), simd.splat(f32::NAN), simd.splat(f32::NEG_INFINITY));
    // Not (0 < x): 0, negative, or a NaN, which `value` already holds.
    let positive = simd.lt(simd.zero(), x);
    let nonpositive = simd.lt(x, simd.splat(f32::from_bits(1)));
    simd.select(positive, value, simd.select(nonpositive, below, x))
}

/// 1 / (1 + e^-x)
#[inline(always)]
pub fn sigmoid<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    let one = simd.splat(1.0);
    simd.div(one, simd.add(one, exp(simd, simd.neg(x))))
}

/// tanh x: a polynomial below 0.625, else 1 - 2 / (e^2|x| + 1) with the sign put back.
#[inline(always)]
pub fn tanh<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    let one = simd.splat(1.0);
    let magnitude = simd.abs(x);
    let e = exp(simd, simd.add(magnitude, magnitude));
    let large = simd.sub(one, simd.div(simd.splat(2.0), simd.add(e, one)));
    let z = simd.mul(x, x);
    let small = simd.mul_add(simd.mul(x, z), polynomial(simd, TANH, z), x);
    simd.select(simd.lt(magnitude, simd.splat(0.625)), small, simd.copy_sign(large, x))
}

/// erf x: a polynomial in x² below 1, else 1 - exp(-P(|x|)) with the sign put back.
#[inline(always)]
pub fn erf<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    let magnitude = simd.abs(x);
    let clamped = simd.min(simd.splat(4.0), magnitude);
    let large = simd.sub(simd.splat(1.0), exp(simd, simd.neg(polynomial(simd, ERF_LARGE, clamped))));
    let small = simd.mul(x, polynomial(simd, ERF_SMALL, simd.mul(x, x)));
    simd.select(simd.lt(magnitude, simd.splat(1.0)), small, simd.copy_sign(large, x))
}

/// 1/d for 1 <= d <= 2^126 without a division, which takes as long as the rest of an activation on most machines: an
/// initial estimate from the bits (error 12 %) and two iterations of third order. Error below 1.5 ulp; NaN stays.
#[inline(always)]
fn reciprocal<S: Simd>(simd: S, d: S::F32) -> S::F32 {
    let one = simd.splat(1.0);
    let minus_d = simd.xor(simd.as_bits(d), simd.splat_u32(u32::MAX));
    let mut r = simd.as_floats(simd.add_u32(minus_d, simd.splat_u32(0x7ef3_11c8)));
    for _ in 0..2 {
        let error = simd.neg_mul_add(d, r, one);
        r = simd.mul_add(simd.mul(r, error), simd.add(error, one), r);
    }
    r
}

/// 2^y for y <= 127, for use as a term of a sum: relative error 1.7e-7, for y < -126 any value below 2^-125; NaN stays.
/// Half the instructions of [`exp`].
#[inline(always)]
pub fn exp2<S: Simd>(simd: S, y: S::F32) -> S::F32 {
    let (n, r) = simd.split_exponent(y);
    simd.scale_by_power(simd.mul_add(polynomial(simd, EXP2, r), r, simd.splat(1.0)), n)
}

/// 2·√(2/π)·(x + 0.044715·x³)·log2 e: twice the argument of tanh in the tanh form of GELU, for powers of two.
#[inline(always)]
fn gelu_tanh_argument<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    const LINEAR: f32 = 2.0 * SQRT_2_OVER_PI * LOG2_E;
    simd.mul(x, simd.mul_add(simd.mul(x, x), simd.splat(LINEAR * GELU_CUBIC), simd.splat(LINEAR)))
}

/// Lower bound of the argument: the tanh form of GELU is 0 in f32 below it, and e^-u is finite above it.
const GELU_TANH_ZERO: f32 = -10.0;

/// GELU in the tanh form, ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), as x · sigmoid of twice that argument: the same
/// function, but without the cancellation of 1 + tanh for negative x.
#[inline(always)]
pub fn gelu_tanh<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    // This operand order propagates NaN.
    let x = simd.max(simd.splat(GELU_TANH_ZERO), x);
    let e = exp2(simd, simd.neg(gelu_tanh_argument(simd, x)));
    simd.mul(x, reciprocal(simd, simd.add(simd.splat(1.0), e)))
}

/// Derivative of [`gelu_tanh`]: s + x·s·(1-s)·u' with s the sigmoid and u its argument.
#[inline(always)]
pub fn gelu_tanh_derivative<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    // With e = exp(-|u|): s is 1/(1+e) or e/(1+e), and s·(1-s) = e/(1+e)² without the cancellation of 1-s.
    let one = simd.splat(1.0);
    // Beyond ±10 the derivative is 0 or 1 in f32. This operand order propagates NaN.
    let x = simd.min(simd.splat(-GELU_TANH_ZERO), simd.max(simd.splat(GELU_TANH_ZERO), x));
    let u = gelu_tanh_argument(simd, x);
    let e = exp2(simd, simd.as_floats(simd.or(simd.as_bits(u), simd.splat_u32(0x8000_0000))));
    let r = reciprocal(simd, simd.add(one, e));
    let er = simd.mul(e, r);
    let s = simd.select(simd.lt(u, simd.zero()), er, r);
    let z = simd.mul(x, x);
    let slope = simd.mul_add(z, simd.splat(6.0 * SQRT_2_OVER_PI * GELU_CUBIC), simd.splat(2.0 * SQRT_2_OVER_PI));
    let bell = simd.mul(er, r);
    simd.mul_add(simd.mul(x, bell), slope, s)
}

/// Φ(x), the standard normal distribution.
#[inline(always)]
fn normal_distribution<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    let half = simd.splat(0.5);
    simd.mul_add(erf(simd, simd.mul(x, simd.splat(FRAC_1_SQRT_2))), half, half)
}

/// GELU in the erf form, x·Φ(x).
#[inline(always)]
pub fn gelu_erf<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    simd.mul(x, normal_distribution(simd, x))
}

/// Derivative of [`gelu_erf`]: Φ(x) + x·φ(x).
#[inline(always)]
pub fn gelu_erf_derivative<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    let bell = exp(simd, simd.mul(simd.mul(x, x), simd.splat(-0.5)));
    simd.mul_add(simd.mul(x, simd.splat(FRAC_1_SQRT_2_PI)), bell, normal_distribution(simd, x))
}

/// Philox4x32-N on LANES counters at once; see [`super::philox`]. Equal to it bit by bit.
#[inline(always)]
pub fn philox4x32<S: Simd, const N: usize>(simd: S, counter: [S::U32; 4], key: [u32; 2]) -> [S::U32; 4] {
    use super::philox::{M0, M1, W0, W1};
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..N {
        let (low0, high0) = simd.mul_wide_u32(simd.splat_u32(M0), c0);
        let (low1, high1) = simd.mul_wide_u32(simd.splat_u32(M1), c2);
        c0 = simd.xor(simd.xor(high1, c1), simd.splat_u32(k0));
        c2 = simd.xor(simd.xor(high0, c3), simd.splat_u32(k1));
        (c1, c3) = (low1, low0);
        k0 = k0.wrapping_add(W0);
        k1 = k1.wrapping_add(W1);
    }
    [c0, c1, c2, c3]
}
