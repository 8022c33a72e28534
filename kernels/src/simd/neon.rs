//! Four lanes: NEON, which every aarch64 processor has.

use super::{Kernel, Simd, intrinsics};
use half::bf16;
use std::arch::aarch64::*;

/// Token of NEON.
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

impl Neon {
    /// Token, if this machine has the instructions.
    pub fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

// SAFETY of the intrinsics in every method below: a token exists only if `detect` found NEON; pointers are the caller's
// promise where the method takes one.

// SAFETY: the only constructor is `detect`. `vectorize` enters no function with the feature, because it belongs to the
// baseline of aarch64.
unsafe impl Simd for Neon {
    const LANES: usize = 4;
    const REGISTERS: usize = 32;
    type F32 = float32x4_t;
    type U32 = uint32x4_t;
    type Mask = uint32x4_t;

    #[inline]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    intrinsics! {
        splat(x: f32) -> float32x4_t = vdupq_n_f32(x);
        splat_u32(x: u32) -> uint32x4_t = vdupq_n_u32(x);
        iota() -> uint32x4_t = vld1q_u32([0, 1, 2, 3].as_ptr());
    }
    intrinsics! { unsafe
        load_ptr(p: *const f32) -> float32x4_t = vld1q_f32(p);
        store_ptr(p: *mut f32, x: float32x4_t) -> () = vst1q_f32(p, x);
        load_bf16_ptr(p: *const bf16) -> float32x4_t = vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.cast())));
    }
    #[inline(always)]
    unsafe fn load_ptr_partial(self, p: *const f32, n: usize) -> float32x4_t {
        assert!(n <= 4);
        let mut lanes = [0f32; 4];
        // SAFETY: the caller guarantees n readable floats, and n is at most the length of the array.
        unsafe {
            lanes.as_mut_ptr().copy_from_nonoverlapping(p, n);
            vld1q_f32(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_ptr_partial(self, p: *mut f32, n: usize, x: float32x4_t) {
        assert!(n <= 4);
        let mut lanes = [0f32; 4];
        // SAFETY: the caller guarantees n writable floats, and n is at most the length of the array.
        unsafe {
            vst1q_f32(lanes.as_mut_ptr(), x);
            p.copy_from_nonoverlapping(lanes.as_ptr(), n);
        }
    }
    #[inline(always)]
    unsafe fn store_bf16_ptr(self, p: *mut bf16, x: float32x4_t) {
        // SAFETY: the token proves NEON; the caller guarantees four writable elements.
        unsafe {
            // Nearest even: add 0x7fff and the lowest bit that is kept, then truncate. NaN becomes quiet NaN.
            let bits = vreinterpretq_u32_f32(x);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
            let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
            let high = vbslq_u32(vceqq_f32(x, x), rounded, quiet);
            vst1_u16(p.cast(), vshrn_n_u32::<16>(high));
        }
    }
    intrinsics! {
        add(a: float32x4_t, b: float32x4_t) -> float32x4_t = vaddq_f32(a, b);
        sub(a: float32x4_t, b: float32x4_t) -> float32x4_t = vsubq_f32(a, b);
        mul(a: float32x4_t, b: float32x4_t) -> float32x4_t = vmulq_f32(a, b);
        div(a: float32x4_t, b: float32x4_t) -> float32x4_t = vdivq_f32(a, b);
        max(a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(vcgtq_f32(a, b), a, b);
        min(a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(vcltq_f32(a, b), a, b);
        mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t = vfmaq_f32(c, a, b);
        neg_mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t = vfmsq_f32(c, a, b);
        sqrt(a: float32x4_t) -> float32x4_t = vsqrtq_f32(a);
        as_bits(a: float32x4_t) -> uint32x4_t = vreinterpretq_u32_f32(a);
        as_floats(a: uint32x4_t) -> float32x4_t = vreinterpretq_f32_u32(a);
        round_to_int(a: float32x4_t) -> uint32x4_t = vreinterpretq_u32_s32(vcvtnq_s32_f32(a));
        int_to_float(a: uint32x4_t) -> float32x4_t = vcvtq_f32_s32(vreinterpretq_s32_u32(a));
        add_u32(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vaddq_u32(a, b);
    }
    #[inline(always)]
    fn mul_wide_u32(self, a: uint32x4_t, b: uint32x4_t) -> (uint32x4_t, uint32x4_t) {
        // SAFETY: the token proves NEON.
        unsafe {
            let first = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(a), vget_low_u32(b)));
            let last = vreinterpretq_u32_u64(vmull_high_u32(a, b));
            (vuzp1q_u32(first, last), vuzp2q_u32(first, last))
        }
    }
    intrinsics! {
        xor(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = veorq_u32(a, b);
        and(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vandq_u32(a, b);
        or(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vorrq_u32(a, b);
    }
    #[inline(always)]
    fn shl<const BITS: u32>(self, a: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves NEON. The constant vector becomes an immediate operand.
        unsafe { vshlq_u32(a, vdupq_n_s32(BITS as i32)) }
    }
    #[inline(always)]
    fn shr<const BITS: u32>(self, a: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves NEON. A shift to the left by a negative number is one to the right.
        unsafe { vshlq_u32(a, vdupq_n_s32(-(BITS as i32))) }
    }
    intrinsics! {
        lt(a: float32x4_t, b: float32x4_t) -> uint32x4_t = vcltq_f32(a, b);
        lt_u32(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vcltq_u32(a, b);
        select(mask: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(mask, a, b);
    }
    #[inline(always)]
    fn reduce_sum(self, a: float32x4_t) -> f32 {
        // SAFETY: the token proves NEON.
        unsafe {
            let two = vadd_f32(vget_low_f32(a), vget_high_f32(a));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
    #[inline(always)]
    fn reduce_max(self, a: float32x4_t) -> f32 {
        // SAFETY: the token proves NEON.
        unsafe {
            let (low, high) = (vget_low_f32(a), vget_high_f32(a));
            let two = vbsl_f32(vcgt_f32(low, high), low, high);
            let (a, b) = (vget_lane_f32::<0>(two), vget_lane_f32::<1>(two));
            if a > b { a } else { b }
        }
    }
    #[inline(always)]
    fn transpose(self, rows: &mut [float32x4_t; 16]) {
        let [a, b, c, d, ..] = *rows;
        // SAFETY: the token proves NEON.
        unsafe {
            // Pairs of elements of two rows, then pairs of pairs.
            let pairs = |x: float32x4_t, y: float32x4_t| {
                (vreinterpretq_f64_f32(vtrn1q_f32(x, y)), vreinterpretq_f64_f32(vtrn2q_f32(x, y)))
            };
            let ((ab_even, ab_odd), (cd_even, cd_odd)) = (pairs(a, b), pairs(c, d));
            rows[0] = vreinterpretq_f32_f64(vtrn1q_f64(ab_even, cd_even));
            rows[1] = vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd));
            rows[2] = vreinterpretq_f32_f64(vtrn2q_f64(ab_even, cd_even));
            rows[3] = vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd));
        }
    }
}
