//! Parts of bf16 whose sum is an f32, as far as they reach.

use crate::simd::Simd;

/// Maximum number of parts of an element.
const MOST_PARTS: usize = 3;

/// The `parts` parts of `x`, the largest first: the bf16 nearest to what is left of `x`. A single part is infinite from
/// 3.39e38 on; of several, the first is then the greatest bf16. Other elements of the result are zero.
#[inline(always)]
pub(super) fn split<S: Simd>(simd: S, x: S::F32, parts: usize) -> [S::F32; MOST_PARTS] {
    let (greatest, infinity) = (simd.splat(f32::from_bits(0x7f7f_0000)), simd.splat(f32::INFINITY));
    let mut all = [simd.zero(); MOST_PARTS];
    let mut rest = x;
    for part in &mut all[..parts] {
        let nearest = simd.round_bf16(rest);
        *part = nearest;
        if parts > 1 {
            let bounded = simd.copy_sign(simd.min(simd.abs(nearest), greatest), rest);
            *part = simd.select(simd.lt(simd.abs(rest), infinity), bounded, nearest);
            // Exact: the bits of `rest` that `part` lacks.
            rest = simd.sub(rest, *part);
        }
    }
    all
}

/// Splits the first `count` floats of `x`, a multiple of LANES, into parts of `count` floats each: the first replaces them, the
/// others follow.
#[inline(always)]
pub(super) fn split_in_place<S: Simd>(simd: S, x: &mut [f32], count: usize, parts: usize) {
    assert!(count.is_multiple_of(S::LANES) && count.checked_mul(parts).is_some_and(|all| all <= x.len()));
    for at in (0..count).step_by(S::LANES) {
        // SAFETY: `at` + LANES <= count, and `x` holds `parts` times as many.
        unsafe {
            let whole = simd.load_ptr(x.as_ptr().add(at));
            for (p, &part) in split(simd, whole, parts).iter().enumerate().take(parts) {
                simd.store_ptr(x.as_mut_ptr().add(p * count + at), part);
            }
        }
    }
}
