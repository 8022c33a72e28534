//! Eight lanes: AVX2 with FMA and F16C (x86 since 2013).
#![allow(clippy::missing_transmute_annotations)]

use super::{Kernel, Simd, entry, intrinsics};
use half::bf16;
use std::arch::x86_64::*;

/// Token of AVX2 + FMA + F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// Token, if this machine has the instructions.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"))
            .then_some(Self(()))
    }
}

/// Mask of the first n of eight lanes for a masked load or store: a window into ones followed by zeros.
static WINDOW: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
fn window(n: usize) -> __m256i {
    assert!(n <= 8);
    // SAFETY: n <= 8, so the eight words from 8 - n on are within the sixteen. Only called by owners of a token.
    unsafe { _mm256_loadu_si256(WINDOW.as_ptr().add(8 - n).cast()) }
}

// SAFETY of the intrinsics in every method below: a token exists only if `detect` found AVX2, FMA and F16C; pointers are
// the caller's promise where the method takes one.

entry!(Avx2, "avx2,fma,f16c");

// SAFETY: the only constructor is `detect`.
unsafe impl Simd for Avx2 {
    const LANES: usize = 8;
    const REGISTERS: usize = 16;
    type F32 = __m256;
    type U32 = __m256i;
    type Mask = __m256;

    #[inline]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: the token proves the features.
        unsafe { kernel.enter(self) }
    }
    intrinsics! {
        splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        splat_u32(x: u32) -> __m256i = _mm256_set1_epi32(x as i32);
        iota() -> __m256i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    }
    intrinsics! { unsafe
        load_ptr(p: *const f32) -> __m256 = _mm256_loadu_ps(p);
        store_ptr(p: *mut f32, x: __m256) -> () = _mm256_storeu_ps(p, x);
        load_ptr_partial(p: *const f32, n: usize) -> __m256 = _mm256_maskload_ps(p, window(n));
        store_ptr_partial(p: *mut f32, n: usize, x: __m256) -> () = _mm256_maskstore_ps(p, window(n), x);
        load_bf16_ptr(p: *const bf16) -> __m256 = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))));
    }
    #[inline(always)]
    unsafe fn store_bf16_ptr(self, p: *mut bf16, x: __m256) {
        // SAFETY: the token proves AVX2 and FMA; the caller guarantees the memory.
        unsafe {
            // Nearest even: add 0x7fff and the lowest bit that is kept, then truncate. NaN becomes quiet NaN.
            let bits = _mm256_castps_si256(x);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            let high = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
            let packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high));
            _mm_storeu_si128(p.cast(), packed);
        }
    }
    intrinsics! {
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        mul_add(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        neg_mul_add(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fnmadd_ps(a, b, c);
        sqrt(a: __m256) -> __m256 = _mm256_sqrt_ps(a);
        as_bits(a: __m256) -> __m256i = _mm256_castps_si256(a);
        as_floats(a: __m256i) -> __m256 = _mm256_castsi256_ps(a);
        round_to_int(a: __m256) -> __m256i = _mm256_cvtps_epi32(a);
        int_to_float(a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);
        add_u32(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
    }
    #[inline(always)]
    fn mul_wide_u32(self, a: __m256i, b: __m256i) -> (__m256i, __m256i) {
        // SAFETY: the token proves AVX2 and FMA.
        unsafe {
            // 64-bit products of the even and of the odd lanes, then their halves in lane order.
            let even = _mm256_mul_epu32(a, b);
            let odd = _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), _mm256_srli_epi64::<32>(b));
            let low = _mm256_blend_epi32::<0b1010_1010>(even, _mm256_slli_epi64::<32>(odd));
            let high = _mm256_blend_epi32::<0b1010_1010>(_mm256_srli_epi64::<32>(even), odd);
            (low, high)
        }
    }
    intrinsics! {
        xor(a: __m256i, b: __m256i) -> __m256i = _mm256_xor_si256(a, b);
        and(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
    }
    #[inline(always)]
    fn shl<const BITS: u32>(self, a: __m256i) -> __m256i {
        // SAFETY: the token proves AVX2 and FMA.
        unsafe { _mm256_sll_epi32(a, _mm_cvtsi32_si128(BITS as i32)) }
    }
    #[inline(always)]
    fn shr<const BITS: u32>(self, a: __m256i) -> __m256i {
        // SAFETY: the token proves AVX2 and FMA.
        unsafe { _mm256_srl_epi32(a, _mm_cvtsi32_si128(BITS as i32)) }
    }
    intrinsics! {
        lt(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
    }
    #[inline(always)]
    fn lt_u32(self, a: __m256i, b: __m256i) -> __m256 {
        // SAFETY: the token proves AVX2 and FMA.
        unsafe {
            // The comparison is signed; an offset of 2^31 on both sides makes it unsigned.
            let bias = _mm256_set1_epi32(i32::MIN);
            _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_xor_si256(b, bias), _mm256_xor_si256(a, bias)))
        }
    }
    intrinsics! {
        select(mask: __m256, a: __m256, b: __m256) -> __m256 = _mm256_blendv_ps(b, a, mask);
    }
    #[inline(always)]
    fn reduce_sum(self, a: __m256) -> f32 {
        // SAFETY: the token proves AVX2 and FMA.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn reduce_max(self, a: __m256) -> f32 {
        // SAFETY: the token proves AVX2 and FMA.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn transpose(self, rows: &mut [__m256; 16]) {
        // SAFETY: the token proves AVX2.
        unsafe {
            // 4x4 transposes of four rows within each 128-bit half, then an exchange of halves.
            for four in rows[..8].chunks_exact_mut(4) {
                let (ab_low, ab_high) = (_mm256_unpacklo_ps(four[0], four[1]), _mm256_unpackhi_ps(four[0], four[1]));
                let (cd_low, cd_high) = (_mm256_unpacklo_ps(four[2], four[3]), _mm256_unpackhi_ps(four[2], four[3]));
                four[0] = _mm256_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low);
                four[1] = _mm256_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low);
                four[2] = _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high);
                four[3] = _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high);
            }
            for j in 0..4 {
                let (a, b) = (rows[j], rows[4 + j]);
                rows[j] = _mm256_permute2f128_ps::<0x20>(a, b);
                rows[4 + j] = _mm256_permute2f128_ps::<0x31>(a, b);
            }
        }
    }
    /// Each vector is loaded from halves of two rows, which leaves only shuffles within halves.
    #[inline(always)]
    unsafe fn load_transposed(self, p: *const f32, leading: usize, rows: usize) -> [__m256; 16] {
        // SAFETY: the token proves AVX2; the caller guarantees the memory of the rows that exist.
        unsafe {
            let half = |row: usize, column: usize| {
                if row < rows { _mm_loadu_ps(p.add(row * leading + column)) } else { _mm_setzero_ps() }
            };
            let mut columns = [_mm256_setzero_ps(); 16];
            for four in 0..2 {
                let mut x = [_mm256_setzero_ps(); 4];
                for (i, x) in x.iter_mut().enumerate() {
                    let low = _mm256_castps128_ps256(half(i, 4 * four));
                    *x = _mm256_insertf128_ps::<1>(low, half(4 + i, 4 * four));
                }
                let (ab_low, ab_high) = (_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
                let (cd_low, cd_high) = (_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
                columns[4 * four] = _mm256_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low);
                columns[4 * four + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low);
                columns[4 * four + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high);
                columns[4 * four + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high);
            }
            columns
        }
    }
}
