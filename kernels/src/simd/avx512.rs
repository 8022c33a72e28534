//! Sixteen lanes: AVX-512 F, BW, DQ and VL (Skylake-X, Ice Lake, Sapphire Rapids, Zen 4 and later).

use super::{Kernel, Simd, entry, intrinsics};
use half::bf16;
use std::arch::x86_64::*;

/// Token of AVX-512 F + BW + DQ + VL, with AVX2 and FMA.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// Token, if this machine has the instructions.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && super::Avx2::detect().is_some())
        .then_some(Self(()))
    }
}

#[inline(always)]
fn first_lanes(n: usize) -> __mmask16 {
    assert!(n <= 16);
    ((1u32 << n) - 1) as __mmask16
}

// SAFETY of the intrinsics in every method below: a token exists only if `detect` found the features; pointers are the
// caller's promise where the method takes one.

entry!(Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c");

// SAFETY: the only constructor is `detect`.
unsafe impl Simd for Avx512 {
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    type F32 = __m512;
    type U32 = __m512i;
    type Mask = __mmask16;

    #[inline]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: the token proves the features.
        unsafe { kernel.enter(self) }
    }
    intrinsics! {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        splat_u32(x: u32) -> __m512i = _mm512_set1_epi32(x as i32);
        iota() -> __m512i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    }
    intrinsics! { unsafe
        load_ptr(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        store_ptr(p: *mut f32, x: __m512) -> () = _mm512_storeu_ps(p, x);
        load_ptr_partial(p: *const f32, n: usize) -> __m512 = _mm512_maskz_loadu_ps(first_lanes(n), p);
        store_ptr_partial(p: *mut f32, n: usize, x: __m512) -> () = _mm512_mask_storeu_ps(p, first_lanes(n), x);
        load_bf16_ptr(p: *const bf16) -> __m512 = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))));
    }
    #[inline(always)]
    unsafe fn store_bf16_ptr(self, p: *mut bf16, x: __m512) {
        // SAFETY: the token proves AVX-512 F, BW, DQ and VL; the caller guarantees the memory.
        unsafe {
            // Nearest even: add 0x7fff and the lowest bit that is kept, then truncate. NaN becomes quiet NaN.
            let bits = _mm512_castps_si512(x);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            let value = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x0040_0000));
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(value)));
        }
    }
    intrinsics! {
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        mul_add(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        neg_mul_add(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fnmadd_ps(a, b, c);
        sqrt(a: __m512) -> __m512 = _mm512_sqrt_ps(a);
        as_bits(a: __m512) -> __m512i = _mm512_castps_si512(a);
        as_floats(a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
        round_to_int(a: __m512) -> __m512i = _mm512_cvtps_epi32(a);
        int_to_float(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        add_u32(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
    }
    #[inline(always)]
    fn mul_wide_u32(self, a: __m512i, b: __m512i) -> (__m512i, __m512i) {
        // SAFETY: the token proves AVX-512 F, BW, DQ and VL.
        unsafe {
            // 64-bit products of the even and of the odd lanes, then their halves in lane order.
            const ODD: __mmask16 = 0b1010_1010_1010_1010;
            let even = _mm512_mul_epu32(a, b);
            let odd = _mm512_mul_epu32(_mm512_srli_epi64::<32>(a), _mm512_srli_epi64::<32>(b));
            let low = _mm512_mask_blend_epi32(ODD, even, _mm512_slli_epi64::<32>(odd));
            let high = _mm512_mask_blend_epi32(ODD, _mm512_srli_epi64::<32>(even), odd);
            (low, high)
        }
    }
    intrinsics! {
        xor(a: __m512i, b: __m512i) -> __m512i = _mm512_xor_si512(a, b);
        and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
    }
    #[inline(always)]
    fn shl<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512 F, BW, DQ and VL.
        unsafe { _mm512_sllv_epi32(a, _mm512_set1_epi32(BITS as i32)) }
    }
    #[inline(always)]
    fn shr<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512 F, BW, DQ and VL.
        unsafe { _mm512_srlv_epi32(a, _mm512_set1_epi32(BITS as i32)) }
    }
    intrinsics! {
        lt(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        lt_u32(a: __m512i, b: __m512i) -> __mmask16 = _mm512_cmplt_epu32_mask(a, b);
        select(mask: __mmask16, a: __m512, b: __m512) -> __m512 = _mm512_mask_blend_ps(mask, b, a);
    }
    #[inline(always)]
    fn reduce_sum(self, a: __m512) -> f32 {
        // SAFETY: the token proves AVX-512 F, BW, DQ and VL.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn reduce_max(self, a: __m512) -> f32 {
        // SAFETY: the token proves AVX-512 F, BW, DQ and VL.
        unsafe {
            let eight = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn transpose(self, rows: &mut [__m512; 16]) {
        // SAFETY: the token proves AVX-512 F, BW, DQ and VL.
        unsafe {
            // 4x4 transposes of four rows within each 128-bit quarter, then an exchange of quarters.
            for four in rows.chunks_exact_mut(4) {
                let (ab_low, ab_high) = (_mm512_unpacklo_ps(four[0], four[1]), _mm512_unpackhi_ps(four[0], four[1]));
                let (cd_low, cd_high) = (_mm512_unpacklo_ps(four[2], four[3]), _mm512_unpackhi_ps(four[2], four[3]));
                four[0] = _mm512_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low);
                four[1] = _mm512_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low);
                four[2] = _mm512_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high);
                four[3] = _mm512_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high);
            }
            for j in 0..4 {
                let (a, b, c, d) = (rows[j], rows[4 + j], rows[8 + j], rows[12 + j]);
                let ab_even = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
                let ab_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
                let cd_even = _mm512_shuffle_f32x4::<0b10_00_10_00>(c, d);
                let cd_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(c, d);
                rows[j] = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_even, cd_even);
                rows[4 + j] = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_odd, cd_odd);
                rows[8 + j] = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_even, cd_even);
                rows[12 + j] = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_odd, cd_odd);
            }
        }
    }
    /// Each vector is loaded from quarters of four rows, which leaves only shuffles within quarters.
    #[inline(always)]
    unsafe fn load_transposed(self, p: *const f32, leading: usize, rows: usize) -> [__m512; 16] {
        // SAFETY: the token proves AVX-512 F, BW, DQ and VL; the caller guarantees the memory of the rows that exist.
        unsafe {
            let quarter = |row: usize, column: usize| {
                if row < rows { _mm_loadu_ps(p.add(row * leading + column)) } else { _mm_setzero_ps() }
            };
            let mut columns = [_mm512_setzero_ps(); 16];
            for four in 0..4 {
                let mut x = [_mm512_setzero_ps(); 4];
                for (i, x) in x.iter_mut().enumerate() {
                    *x = _mm512_castps128_ps512(quarter(i, 4 * four));
                    *x = _mm512_mask_broadcast_f32x4(*x, 0x00f0, quarter(4 + i, 4 * four));
                    *x = _mm512_mask_broadcast_f32x4(*x, 0x0f00, quarter(8 + i, 4 * four));
                    *x = _mm512_mask_broadcast_f32x4(*x, 0xf000, quarter(12 + i, 4 * four));
                }
                let (ab_low, ab_high) = (_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
                let (cd_low, cd_high) = (_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
                columns[4 * four] = _mm512_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low);
                columns[4 * four + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low);
                columns[4 * four + 2] = _mm512_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high);
                columns[4 * four + 3] = _mm512_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high);
            }
            columns
        }
    }
}
