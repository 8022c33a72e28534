//! Dot products of bytes: the trait that the register tile uses, and its implementations per instruction set.

#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{IsaKind, Scalar, Simd};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Instructions for which a weight is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotKind {
    /// Plain Rust.
    Scalar,
    /// `vpmaddubsw`, `vpmaddwd` and `vpaddd` on 256 bits.
    Avx2,
    /// `vpdpbusd` on 256 bits, in the encoding of AVX2.
    AvxVnni,
    /// `vpdpbusd` on 512 bits.
    Avx512Vnni,
}

impl DotKind {
    /// All kinds, narrow to wide.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Avx2, Self::AvxVnni, Self::Avx512Vnni];

    /// Widest kind of this machine that is not wider than `isa`.
    pub fn of(isa: IsaKind) -> Self {
        let widest = match isa {
            IsaKind::Avx512 => Self::Avx512Vnni,
            IsaKind::Avx2 => Self::AvxVnni,
            _ => Self::Scalar,
        };
        let mut usable = Self::ALL.into_iter().rev().skip_while(|&kind| kind != widest);
        usable.find(|kind| kind.detected()).unwrap_or(Self::Scalar)
    }

    /// True if this machine has the instructions.
    pub fn detected(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Maddubs::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Vnni256::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => Vnni512::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// L: the maximum quantized activation.
    pub const fn levels(self) -> f32 {
        if matches!(self, Self::Avx2) { 127.0 } else { 255.0 }
    }

    /// Columns of a panel.
    pub(super) const fn columns(self) -> usize {
        match self {
            Self::Scalar => VECTORS,
            Self::Avx2 | Self::AvxVnni => 8 * VECTORS,
            Self::Avx512Vnni => 16 * VECTORS,
        }
    }
}

/// Vectors in a row of the register tile.
pub(super) const VECTORS: usize = 2;

/// Sum of four products of bytes per lane, added to an i32. A value is a token: it proves that the instructions exist.
///
/// # Safety
/// An implementation must only be constructible on machines with its instructions and those of `Float`.
pub(super) unsafe trait Dot: Copy + Send + Sync {
    /// f32 arithmetic of the same width.
    type Float: Simd;
    /// Rows of the register tile.
    const ROWS: usize;
    /// L: activations are quantized to 0 ..= L.
    const LEVELS: f32;

    /// Runs `kernel` with these instructions enabled for everything that is inlined into it.
    fn vectorize<K: DotKernel<Self>>(self, kernel: K);
    /// Token of the f32 arithmetic.
    fn float(self) -> Self::Float;
    /// Loads LANES groups of four weights at `p`.
    ///
    /// # Safety
    /// `p` is valid for reading 4·LANES bytes.
    unsafe fn weights(self, p: *const i8) -> Ints<Self>;
    /// Broadcasts the four activations at `p` to every lane.
    ///
    /// # Safety
    /// `p` is valid for reading four bytes.
    unsafe fn activations(self, p: *const u8) -> Ints<Self>;
    /// sum + Σ of the four products of each lane. Activations are at most [`Dot::LEVELS`].
    fn dot(self, sum: Ints<Self>, activations: Ints<Self>, weights: Ints<Self>) -> Ints<Self>;
    /// Stores LANES integers of 0 ..= 255 as bytes.
    ///
    /// # Safety
    /// `p` is valid for writing LANES bytes.
    unsafe fn narrow(self, p: *mut u8, x: Ints<Self>);
}

/// Vector of LANES 32-bit integers.
pub(super) type Ints<D> = <<D as Dot>::Float as Simd>::U32;

/// Code that is generic over the instructions; `run` and the functions that it calls are `#[inline(always)]`.
pub(super) trait DotKernel<D: Dot> {
    /// Runs the code.
    fn run(self, dot: D);
}

/// Evaluates an expression with the token of a kind, which was detected when a weight was quantized.
macro_rules! with_dot {
    ($kind:expr, $dot:ident => $body:expr) => {{
        const FOUND: &str = "a weight is quantized only for what was detected";
        match $kind {
            $crate::int8::dot::DotKind::Scalar => {
                let $dot = $crate::int8::dot::ScalarDot;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            $crate::int8::dot::DotKind::Avx2 => {
                let $dot = $crate::int8::dot::Maddubs::detect().expect(FOUND);
                $body
            }
            #[cfg(target_arch = "x86_64")]
            $crate::int8::dot::DotKind::AvxVnni => {
                let $dot = $crate::int8::dot::Vnni256::detect().expect(FOUND);
                $body
            }
            #[cfg(target_arch = "x86_64")]
            $crate::int8::dot::DotKind::Avx512Vnni => {
                let $dot = $crate::int8::dot::Vnni512::detect().expect(FOUND);
                $body
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("{FOUND}"),
        }
    }};
}
pub(super) use with_dot;

/// Token of plain Rust: one lane.
#[derive(Clone, Copy)]
pub(super) struct ScalarDot;

// SAFETY: needs no special instructions.
unsafe impl Dot for ScalarDot {
    type Float = Scalar;
    const ROWS: usize = 4;
    const LEVELS: f32 = DotKind::Scalar.levels();

    fn vectorize<K: DotKernel<Self>>(self, kernel: K) {
        kernel.run(self);
    }
    #[inline(always)]
    fn float(self) -> Scalar {
        Scalar
    }
    #[inline(always)]
    unsafe fn weights(self, p: *const i8) -> u32 {
        // SAFETY: the caller's promise.
        u32::from_le_bytes(unsafe { p.cast::<[u8; 4]>().read() })
    }
    #[inline(always)]
    unsafe fn activations(self, p: *const u8) -> u32 {
        // SAFETY: the caller's promise.
        u32::from_le_bytes(unsafe { p.cast::<[u8; 4]>().read() })
    }
    #[inline(always)]
    fn dot(self, sum: u32, activations: u32, weights: u32) -> u32 {
        let pairs = activations.to_le_bytes().into_iter().zip(weights.to_le_bytes());
        let dot: i32 = pairs.map(|(q, v)| i32::from(q) * i32::from(v as i8)).sum();
        sum.wrapping_add(dot as u32)
    }
    #[inline(always)]
    unsafe fn narrow(self, p: *mut u8, x: u32) {
        // SAFETY: the caller's promise.
        unsafe { p.write(x as u8) };
    }
}

/// Token of AVX2 with `vpmaddubsw`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Maddubs(Avx2);

#[cfg(target_arch = "x86_64")]
impl Maddubs {
    /// Token, if this machine has the instructions.
    pub(super) fn detect() -> Option<Self> {
        Avx2::detect().map(Self)
    }
}

/// Methods that both 256-bit implementations share: only the product differs.
#[cfg(target_arch = "x86_64")]
macro_rules! two_hundred_and_fifty_six {
    ($features:literal) => {
        type Float = Avx2;

        #[inline]
        fn vectorize<K: DotKernel<Self>>(self, kernel: K) {
            #[target_feature(enable = $features)]
            fn inner<D: Dot, K: DotKernel<D>>(dot: D, kernel: K) {
                kernel.run(dot);
            }
            // SAFETY: the token proves that the CPU has the features.
            unsafe { inner(self, kernel) }
        }
        #[inline(always)]
        fn float(self) -> Avx2 {
            self.0
        }
        #[inline(always)]
        unsafe fn weights(self, p: *const i8) -> __m256i {
            // SAFETY: the caller's promise; the token proves AVX2.
            unsafe { _mm256_loadu_si256(p.cast()) }
        }
        #[inline(always)]
        unsafe fn activations(self, p: *const u8) -> __m256i {
            // SAFETY: the caller's promise; the token proves AVX2.
            unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
        }
        #[inline(always)]
        unsafe fn narrow(self, p: *mut u8, x: __m256i) {
            // SAFETY: the caller's promise; the token proves AVX2.
            unsafe {
                let halves = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
                _mm_storel_epi64(p.cast(), _mm_packus_epi16(halves, halves));
            }
        }
    };
}

// SAFETY: the only constructor is `detect`.
#[cfg(target_arch = "x86_64")]
unsafe impl Dot for Maddubs {
    const ROWS: usize = 4;
    const LEVELS: f32 = DotKind::Avx2.levels();
    two_hundred_and_fifty_six!("avx2,fma,f16c");

    /// |q·v + q'·v'| <= 2·127·127 = 32,258 fits the 16 bits of the first step.
    #[inline(always)]
    fn dot(self, sum: __m256i, activations: __m256i, weights: __m256i) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe {
            let pairs = _mm256_maddubs_epi16(activations, weights);
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
}

/// Token of AVX-VNNI.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Vnni256(Avx2);

#[cfg(target_arch = "x86_64")]
impl Vnni256 {
    /// Token, if this machine has the instructions.
    pub(super) fn detect() -> Option<Self> {
        if is_x86_feature_detected!("avxvnni") { Avx2::detect().map(Self) } else { None }
    }
}

// SAFETY: the only constructor is `detect`.
#[cfg(target_arch = "x86_64")]
unsafe impl Dot for Vnni256 {
    const ROWS: usize = 6;
    const LEVELS: f32 = DotKind::AvxVnni.levels();
    two_hundred_and_fifty_six!("avx2,fma,f16c,avxvnni");

    #[inline(always)]
    fn dot(self, sum: __m256i, activations: __m256i, weights: __m256i) -> __m256i {
        // SAFETY: the token proves AVX-VNNI.
        unsafe { _mm256_dpbusd_avx_epi32(sum, activations, weights) }
    }
}

/// Token of AVX-512 with VNNI.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Vnni512(Avx512);

#[cfg(target_arch = "x86_64")]
impl Vnni512 {
    /// Token, if this machine has the instructions.
    pub(super) fn detect() -> Option<Self> {
        if is_x86_feature_detected!("avx512vnni") { Avx512::detect().map(Self) } else { None }
    }
}

// SAFETY: the only constructor is `detect`.
#[cfg(target_arch = "x86_64")]
unsafe impl Dot for Vnni512 {
    type Float = Avx512;
    const ROWS: usize = 14;
    const LEVELS: f32 = DotKind::Avx512Vnni.levels();

    #[inline]
    fn vectorize<K: DotKernel<Self>>(self, kernel: K) {
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        fn inner<K: DotKernel<Vnni512>>(dot: Vnni512, kernel: K) {
            kernel.run(dot);
        }
        // SAFETY: the token proves that the CPU has the features.
        unsafe { inner(self, kernel) }
    }
    #[inline(always)]
    fn float(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    unsafe fn weights(self, p: *const i8) -> __m512i {
        // SAFETY: the caller's promise; the token proves AVX-512.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn activations(self, p: *const u8) -> __m512i {
        // SAFETY: the caller's promise; the token proves AVX-512.
        unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    fn dot(self, sum: __m512i, activations: __m512i, weights: __m512i) -> __m512i {
        // SAFETY: the token proves VNNI.
        unsafe { _mm512_dpbusd_epi32(sum, activations, weights) }
    }
    #[inline(always)]
    unsafe fn narrow(self, p: *mut u8, x: __m512i) {
        // SAFETY: the caller's promise; the token proves AVX-512.
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtusepi32_epi8(x)) };
    }
}
