//! Dot products of bytes: the instructions of the microkernels, per instruction set.

use crate::gemm::{Entered, MicrokernelUser, MultiplyAdd, Tile};
use crate::register_tile::RegisterTile;
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
            Self::Scalar => ScalarDot::<false>::NR,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Maddubs::NR,
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Vnni256::NR,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => Vnni512::NR,
            #[cfg(not(target_arch = "x86_64"))]
            _ => panic!("not detected"),
        }
    }
}

/// Four neighboring activations of a row.
pub(super) type Activations = [u8; 4];
/// Four neighboring weights of an output.
pub(super) type Weights = [i8; 4];

/// Sum of four products of bytes per lane, added to an i32. Activations are at most [`Dot::LEVELS`].
pub(super) trait Dot: MultiplyAdd<A = Activations, B = Weights> {
    /// L: activations are quantized to 0 ..= L.
    const LEVELS: f32;
    /// Stores LANES integers of 0 ..= 255 as bytes.
    ///
    /// # Safety
    /// `p` is valid for writing LANES bytes.
    unsafe fn narrow(self, p: *mut u8, x: <Self::Simd as Simd>::U32);
}

/// Evaluates an expression with the token of a kind, which was detected when a weight was quantized.
macro_rules! with_dot {
    ($kind:expr, $dot:ident => $body:expr) => {{
        const FOUND: &str = "a weight is quantized only for what was detected";
        match $kind {
            $crate::int8::dot::DotKind::Scalar => {
                if let Some(simd) = $crate::simd::Scalar::detect() {
                    let $dot = $crate::int8::dot::ScalarDot(simd);
                    $body
                } else {
                    let $dot = $crate::int8::dot::ScalarDot($crate::simd::Scalar::new());
                    $body
                }
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
pub(super) struct ScalarDot<const FMA: bool>(pub(super) Scalar<FMA>);

impl<const FMA: bool> Tile for ScalarDot<FMA> {
    type Simd = Scalar<FMA>;
    type A = Activations;
    type B = Weights;
    const SIZE: RegisterTile = RegisterTile::new(4, 2);
    const QUANTIZED: bool = true;

    #[inline(always)]
    fn simd(self) -> Scalar<FMA> {
        self.0
    }
    fn vectorize<K: MicrokernelUser<Self>>(self, kernel: K) {
        self.0.vectorize(Entered(self, kernel));
    }
}

// SAFETY: needs no special instructions.
unsafe impl<const FMA: bool> MultiplyAdd for ScalarDot<FMA> {
    type Groups = [u8; 4];
    type Sums = u32;

    #[inline(always)]
    fn zero(self) -> u32 {
        0
    }
    #[inline(always)]
    unsafe fn load(self, b: *const Weights) -> [u8; 4] {
        // SAFETY: the caller's promise.
        unsafe { *b.cast() }
    }
    #[inline(always)]
    unsafe fn broadcast(self, a: *const Activations) -> [u8; 4] {
        // SAFETY: the caller's promise.
        unsafe { *a }
    }
    #[inline(always)]
    fn multiply_add(self, a: [u8; 4], b: [u8; 4], sum: u32) -> u32 {
        let dot: i32 = a.into_iter().zip(b).map(|(q, v)| i32::from(q) * i32::from(v as i8)).sum();
        sum.wrapping_add(dot as u32)
    }
    #[inline(always)]
    fn to_f32(self, sums: u32) -> f32 {
        self.0.int_to_float(sums)
    }
}

impl<const FMA: bool> Dot for ScalarDot<FMA> {
    const LEVELS: f32 = DotKind::Scalar.levels();

    #[inline(always)]
    unsafe fn narrow(self, p: *mut u8, x: u32) {
        // SAFETY: the caller's promise.
        unsafe { p.write(x as u8) };
    }
}

/// Token `$token`, which owns the token `$simd` of the f32 arithmetic: kind, integer and float vectors, features, rows of the
/// tile, a condition beyond `$simd`, and the instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! x86_dot {
    (
        $(#[$doc:meta])*
        $token:ident($simd:ident), $kind:ident, [$ints:ty, $floats:ty], $features:literal, rows $rows:literal, if $condition:expr,
        load = $load:ident,
        broadcast = $broadcast:ident,
        multiply_add($sum:ident, $a:ident, $b:ident) = $product:expr,
        narrow($p:ident, $x:ident) = $narrow:expr
    ) => {
        $(#[$doc])*
        #[cfg(target_arch = "x86_64")]
        #[derive(Clone, Copy)]
        pub(super) struct $token($simd);

        #[cfg(target_arch = "x86_64")]
        impl $token {
            /// Token, if this machine has the instructions.
            pub(super) fn detect() -> Option<Self> {
                if $condition { $simd::detect().map(Self) } else { None }
            }
        }

        #[cfg(target_arch = "x86_64")]
        impl Tile for $token {
            type Simd = $simd;
            type A = Activations;
            type B = Weights;
            const SIZE: RegisterTile = RegisterTile::new($rows, 2);
            const QUANTIZED: bool = true;

            #[inline(always)]
            fn simd(self) -> $simd {
                self.0
            }
            #[inline]
            fn vectorize<K: MicrokernelUser<Self>>(self, kernel: K) {
                #[target_feature(enable = $features)]
                fn inner<K: MicrokernelUser<$token>>(dot: $token, kernel: K) {
                    kernel.run(dot);
                }
                // SAFETY: the token proves that the CPU has the features.
                unsafe { inner(self, kernel) }
            }
        }

        // SAFETY: the only constructor is `detect`.
        #[cfg(target_arch = "x86_64")]
        unsafe impl MultiplyAdd for $token {
            type Groups = $ints;
            type Sums = $ints;

            #[inline(always)]
            fn zero(self) -> $ints {
                self.0.splat_u32(0)
            }
            #[inline(always)]
            unsafe fn load(self, b: *const Weights) -> $ints {
                // SAFETY: the caller's promise; the token proves that the instruction exists.
                unsafe { $load(b.cast()) }
            }
            #[inline(always)]
            unsafe fn broadcast(self, a: *const Activations) -> $ints {
                // SAFETY: the caller's promise; the token proves that the instruction exists.
                unsafe { $broadcast(a.cast::<i32>().read_unaligned()) }
            }
            #[inline(always)]
            fn multiply_add(self, $a: $ints, $b: $ints, $sum: $ints) -> $ints {
                // SAFETY: the token proves that the instructions exist.
                unsafe { $product }
            }
            #[inline(always)]
            fn to_f32(self, sums: $ints) -> $floats {
                self.0.int_to_float(sums)
            }
        }

        #[cfg(target_arch = "x86_64")]
        impl Dot for $token {
            const LEVELS: f32 = DotKind::$kind.levels();

            #[inline(always)]
            unsafe fn narrow(self, $p: *mut u8, $x: $ints) {
                // SAFETY: the caller's promise; the token proves that the instructions exist.
                unsafe { $narrow }
            }
        }
    };
}

/// Stores eight integers of 0 ..= 255 as bytes.
///
/// # Safety
/// `p` is valid for writing eight bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn narrow_256(p: *mut u8, x: __m256i) {
    let halves = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    // SAFETY: the caller's promise.
    unsafe { _mm_storel_epi64(p.cast(), _mm_packus_epi16(halves, halves)) };
}

#[cfg(target_arch = "x86_64")]
x86_dot! {
    /// Token of AVX2 with `vpmaddubsw`. |q·v + q'·v'| <= 2·127·127 = 32,258 fits its 16 bits.
    Maddubs(Avx2), Avx2, [__m256i, __m256], "avx2,fma,f16c", rows 4, if true,
    load = _mm256_loadu_si256,
    broadcast = _mm256_set1_epi32,
    multiply_add(sum, a, b) =
        _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1))),
    narrow(p, x) = narrow_256(p, x)
}

#[cfg(target_arch = "x86_64")]
x86_dot! {
    /// Token of AVX-VNNI.
    Vnni256(Avx2), AvxVnni, [__m256i, __m256], "avx2,fma,f16c,avxvnni", rows 6, if is_x86_feature_detected!("avxvnni"),
    load = _mm256_loadu_si256,
    broadcast = _mm256_set1_epi32,
    multiply_add(sum, a, b) = _mm256_dpbusd_avx_epi32(sum, a, b),
    narrow(p, x) = narrow_256(p, x)
}

#[cfg(target_arch = "x86_64")]
x86_dot! {
    /// Token of AVX-512 with VNNI.
    Vnni512(Avx512), Avx512Vnni, [__m512i, __m512], "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", rows 14,
    if is_x86_feature_detected!("avx512vnni"),
    load = _mm512_loadu_si512,
    broadcast = _mm512_set1_epi32,
    multiply_add(sum, a, b) = _mm512_dpbusd_epi32(sum, a, b),
    narrow(p, x) = _mm_storeu_si128(p.cast(), _mm512_cvtusepi32_epi8(x))
}
