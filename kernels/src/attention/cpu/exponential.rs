//! e^x and ln x for the softmax, with fewer instructions than the general functions, because the arguments are bounded
//! on one side.

use crate::num::functions::polynomial;
use crate::num::poly::{EXP2, LOG2_E};
use crate::simd::Simd;
use std::f32::consts::LN_2;

/// ln(1 + f) = f · P(f) for √½ - 1 <= f <= √2 - 1; relative error 2.6e-8 (minimax).
const LN: [f32; 9] = [
    1.0,
    -0.499_999_8,
    0.333_341_6,
    -0.250_029_46,
    0.199_584_17,
    -0.165_437_37,
    0.149_173_76,
    -0.144_821_91,
    0.089_599_23,
];

/// e^x for x <= 1 (a difference to a maximum, up to rounding). Results below 2^-126 are replaced by a value near 0
/// (less than 2^-125), so that few products with them are subnormal and slow; NaN stays NaN.
#[inline(always)]
pub(super) fn exp<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    let (whole, rest) = simd.split_exponent(simd.mul(x, simd.splat(LOG2_E)));
    let mantissa = simd.mul_add(polynomial(simd, EXP2, rest), rest, simd.splat(1.0));
    simd.scale_by_power(mantissa, whole)
}

/// ln x for x >= 0.75; infinity and NaN give NaN.
#[inline(always)]
pub(super) fn ln<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    const SQRT_HALF: u32 = 0x3f35_04f3;
    let offset = simd.add_u32(simd.as_bits(x), simd.splat_u32(SQRT_HALF.wrapping_neg()));
    let exponent = simd.shr::<23>(offset);
    // x = 2^exponent · (1 + f), the mantissa between √½ and √2
    let mantissa = simd.add_u32(simd.and(offset, simd.splat_u32(0x007f_ffff)), simd.splat_u32(SQRT_HALF));
    let f = simd.sub(simd.as_floats(mantissa), simd.splat(1.0));
    let p = polynomial(simd, LN, f);
    // x · 0 propagates infinity and NaN to the result.
    let special = simd.mul(x, simd.zero());
    simd.add(simd.mul_add(simd.int_to_float(exponent), simd.splat(LN_2), simd.mul(p, f)), special)
}
