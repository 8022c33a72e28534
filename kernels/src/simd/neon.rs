//! Four lanes: NEON, which every aarch64 processor has.

use super::{Kernel, Simd, operations};
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

/// Shift to the left by `BITS`, to the right if negative; a constant vector becomes an immediate operand.
#[inline(always)]
fn shift(a: uint32x4_t, bits: i32) -> uint32x4_t {
    vshlq_u32(a, vdupq_n_s32(bits))
}

// SAFETY: NEON belongs to the baseline of every aarch64 target that this crate is compiled for, as the safe intrinsics show:
// they may only be called where the feature is enabled.
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
    operations! { always
        splat(x: f32) -> float32x4_t = vdupq_n_f32(x);
        splat_u32(x: u32) -> uint32x4_t = vdupq_n_u32(x);
    }
    #[inline(always)]
    fn iota(self) -> uint32x4_t {
        // SAFETY: the array has four words.
        unsafe { vld1q_u32([0, 1, 2, 3].as_ptr()) }
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> float32x4_t {
        // SAFETY: the caller guarantees four readable floats.
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, x: float32x4_t) {
        // SAFETY: the caller guarantees four writable floats.
        unsafe { vst1q_f32(p, x) }
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
    unsafe fn load_bf16_ptr(self, p: *const bf16) -> float32x4_t {
        // SAFETY: the caller guarantees four readable elements.
        let halves = unsafe { vld1_u16(p.cast()) };
        vreinterpretq_f32_u32(vshll_n_u16::<16>(halves))
    }
    #[inline(always)]
    unsafe fn store_bf16_ptr(self, p: *mut bf16, x: float32x4_t) {
        // Nearest even: add 0x7fff and the lowest bit that is kept, then truncate. NaN becomes quiet NaN.
        let bits = vreinterpretq_u32_f32(x);
        let odd = vandq_u32(shift(bits, -16), vdupq_n_u32(1));
        let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
        let high = vbslq_u32(vceqq_f32(x, x), rounded, quiet);
        // SAFETY: the caller guarantees four writable elements.
        unsafe { vst1_u16(p.cast(), vshrn_n_u32::<16>(high)) }
    }
    operations! { always
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
        let first = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(a), vget_low_u32(b)));
        let last = vreinterpretq_u32_u64(vmull_high_u32(a, b));
        (vuzp1q_u32(first, last), vuzp2q_u32(first, last))
    }
    operations! { always
        xor(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = veorq_u32(a, b);
        and(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vandq_u32(a, b);
        or(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vorrq_u32(a, b);
    }
    #[inline(always)]
    fn shl<const BITS: u32>(self, a: uint32x4_t) -> uint32x4_t {
        shift(a, BITS as i32)
    }
    #[inline(always)]
    fn shr<const BITS: u32>(self, a: uint32x4_t) -> uint32x4_t {
        shift(a, -(BITS as i32))
    }
    operations! { always
        lt(a: float32x4_t, b: float32x4_t) -> uint32x4_t = vcltq_f32(a, b);
        lt_u32(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vcltq_u32(a, b);
        select(mask: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(mask, a, b);
    }
    #[inline(always)]
    fn reduce_sum(self, a: float32x4_t) -> f32 {
        let two = vadd_f32(vget_low_f32(a), vget_high_f32(a));
        vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
    }
    #[inline(always)]
    fn reduce_max(self, a: float32x4_t) -> f32 {
        let (low, high) = (vget_low_f32(a), vget_high_f32(a));
        let two = vbsl_f32(vcgt_f32(low, high), low, high);
        let (a, b) = (vget_lane_f32::<0>(two), vget_lane_f32::<1>(two));
        if a > b { a } else { b }
    }
    #[inline(always)]
    fn transpose(self, rows: &mut [float32x4_t; 16]) {
        let [a, b, c, d, ..] = *rows;
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
