//! Dot products of bytes: the instructions of the microkernels, per instruction set.

#[cfg(target_arch = "x86_64")]
use crate::gemm::{Destination, NextTile, PanelA, PanelB, Part};
use crate::gemm::{Entered, Microkernel, MicrokernelUser, MultiplyAdd, Tile};
use crate::pool::Cpu;
use crate::register_tile::RegisterTile;
#[cfg(target_arch = "aarch64")]
use crate::simd::Neon;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{IsaKind, Scalar, Simd};
#[cfg(target_arch = "x86_64")]
use crate::tiles::Amx;
#[cfg(all(test, target_arch = "x86_64"))]
use crate::tiles::Emulated;
use crate::tiles::{GROUPS, SIDE, TileKind};
#[cfg(target_arch = "x86_64")]
use crate::tiles::{MatrixUnit, Section};
use bytemuck::Pod;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
#[cfg(target_arch = "aarch64")]
use std::arch::{aarch64::*, asm, is_aarch64_feature_detected};

/// Instructions for which a weight is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DotKind {
    /// Plain Rust.
    Scalar,
    /// `smlal` of NEON.
    Neon,
    /// `sdot` of NEON.
    NeonDot,
    /// `vpmaddwd` and `vpaddd` on 256 bits.
    Avx2,
    /// `vpdpbusd` on 256 bits, in the encoding of AVX2.
    AvxVnni,
    /// `vpdpbusd` on 512 bits.
    Avx512Vnni,
    /// `tdpbusd` on tiles of AMX, with AVX-512.
    Amx,
    /// Emulated tiles with AVX-512, for tests.
    #[cfg(test)]
    EmulatedUnit,
}

impl DotKind {
    /// All kinds, narrow to wide.
    pub(crate) const ALL: &[Self] = &[
        Self::Scalar,
        Self::Neon,
        Self::NeonDot,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512Vnni,
        Self::Amx,
        #[cfg(test)]
        Self::EmulatedUnit,
    ];

    /// The tiles of `cpu` if it has AMX, else the widest kind of this machine that is not wider than its instruction set.
    pub(crate) fn of(cpu: &Cpu) -> Self {
        if cpu.tiles().kind() == TileKind::Amx {
            return Self::Amx;
        }
        let widest = match cpu.isa().kind() {
            IsaKind::Avx512 => Self::Avx512Vnni,
            IsaKind::Avx2 => Self::AvxVnni,
            IsaKind::Neon => Self::NeonDot,
            _ => Self::Scalar,
        };
        let mut usable = Self::ALL.iter().copied().rev().skip_while(|&kind| kind != widest);
        usable.find(|kind| kind.detected()).unwrap_or(Self::Scalar)
    }

    /// True if this machine has the instructions.
    pub(crate) fn detected(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => Smlal::detect().is_some(),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => Sdot::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Madd::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Vnni256::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => Vnni512::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Amx => Avx512::detect().is_some() && Amx::detect().is_ok(),
            #[cfg(all(test, target_arch = "x86_64"))]
            Self::EmulatedUnit => Avx512::detect().is_some(),
            _ => false,
        }
    }

    /// Neighboring k in a group of 32 bits.
    pub(super) const fn group(self) -> usize {
        if matches!(self, Self::Avx2 | Self::Neon) { 2 } else { 4 }
    }

    /// True if activations are stored less 128, as signed bytes. Each row of the weight is then balanced: elements past its
    /// end, whose q is 0, make the sum of the row zero, so that 128 times that sum is not missing from a product.
    pub(super) const fn is_balanced(self) -> bool {
        matches!(self, Self::NeonDot)
    }

    /// Groups of `k` elements, padded to whole tiles.
    pub(super) const fn depth(self, k: usize) -> usize {
        k.div_ceil(self.group()).next_multiple_of(self.padding()[1])
    }

    /// Rows and groups of k of a whole tile, to which quantized rows are padded: 1 if tiles are as small as needed.
    pub(super) const fn padding(self) -> [usize; 2] {
        let is_unit = match self {
            Self::Amx => true,
            #[cfg(test)]
            Self::EmulatedUnit => true,
            _ => false,
        };
        if is_unit { [SIDE, GROUPS] } else { [1, 1] }
    }

    /// Columns of a panel.
    pub(super) const fn columns(self) -> usize {
        match self {
            Self::Scalar => ScalarDot::<false>::NR,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => Smlal::NR,
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => Sdot::NR,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Madd::NR,
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Vnni256::NR,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => Vnni512::NR,
            #[cfg(target_arch = "x86_64")]
            Self::Amx => UnitDot::<Amx>::NR,
            #[cfg(all(test, target_arch = "x86_64"))]
            Self::EmulatedUnit => UnitDot::<Emulated>::NR,
            _ => panic!("not detected"),
        }
    }
}

/// Sums of the products of groups.
pub(super) trait Dot: Microkernel {
    /// Stored activation, 0 ..= 255; those of neighboring k make a group of A.
    type Activation: Pod + From<u8>;
    /// Stores LANES integers of 0 ..= 255.
    ///
    /// # Safety
    /// `p` is valid for writing LANES activations.
    unsafe fn narrow(self, p: *mut Self::Activation, x: <Self::Simd as Simd>::U32);
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
            #[cfg(target_arch = "aarch64")]
            $crate::int8::dot::DotKind::Neon => {
                let $dot = $crate::int8::dot::Smlal::detect().expect(FOUND);
                $body
            }
            #[cfg(target_arch = "aarch64")]
            $crate::int8::dot::DotKind::NeonDot => {
                let $dot = $crate::int8::dot::Sdot::detect().expect(FOUND);
                $body
            }
            #[cfg(target_arch = "x86_64")]
            $crate::int8::dot::DotKind::Avx2 => {
                let $dot = $crate::int8::dot::Madd::detect().expect(FOUND);
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
            #[cfg(target_arch = "x86_64")]
            $crate::int8::dot::DotKind::Amx => {
                let amx = $crate::tiles::Amx::detect().expect(FOUND);
                let $dot = $crate::int8::dot::UnitDot($crate::simd::Avx512::detect().expect(FOUND), amx);
                $body
            }
            #[cfg(all(test, target_arch = "x86_64"))]
            $crate::int8::dot::DotKind::EmulatedUnit => {
                let simd = $crate::simd::Avx512::detect().expect(FOUND);
                let $dot = $crate::int8::dot::UnitDot(simd, $crate::tiles::Emulated);
                $body
            }
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
    type A = [u8; 4];
    type B = [i8; 4];
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
    type Groups = [i32; 4];
    type Sums = u32;

    #[inline(always)]
    fn zero(self) -> u32 {
        0
    }
    #[inline(always)]
    unsafe fn load(self, b: *const [i8; 4], v: usize) -> [i32; 4] {
        // SAFETY: the caller's promise.
        unsafe { *b.add(v) }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn broadcast(self, a: *const [u8; 4]) -> [i32; 4] {
        // SAFETY: the caller's promise.
        unsafe { *a }.map(i32::from)
    }
    #[inline(always)]
    fn multiply_add(self, a: [i32; 4], b: [i32; 4], sum: u32) -> u32 {
        let dot: i32 = a.into_iter().zip(b).map(|(q, v)| q * v).sum();
        sum.wrapping_add(dot as u32)
    }
    #[inline(always)]
    fn to_bits(self, sums: u32) -> f32 {
        f32::from_bits(sums)
    }
    #[inline(always)]
    fn add(self, before: f32, sums: u32) -> u32 {
        before.to_bits().wrapping_add(sums)
    }
    #[inline(always)]
    fn to_f32(self, sums: u32) -> f32 {
        self.0.int_to_float(sums)
    }
}

impl<const FMA: bool> Dot for ScalarDot<FMA> {
    type Activation = u8;

    #[inline(always)]
    unsafe fn narrow(self, p: *mut u8, x: u32) {
        // SAFETY: the caller's promise.
        unsafe { p.write(x as u8) };
    }
}

/// Token `$token`, which owns the token `$simd` of the f32 arithmetic: activations of a group, integer and float vectors,
/// features, rows of the tile, a condition beyond `$simd`, and the instructions.
macro_rules! vector_dot {
    (
        $(#[$doc:meta])*
        $token:ident($simd:ident), [$q:ty; $group:literal], [$ints:ty, $floats:ty], $features:literal, rows $rows:literal,
        if $condition:expr,
        load = $load:ident,
        broadcast = $broadcast:ident,
        multiply_add($sum:ident, $a:ident, $b:ident) = $product:expr,
        narrow($p:ident, $x:ident) = $narrow:expr
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $token($simd);

        impl $token {
            /// Token, if this machine has the instructions.
            pub(super) fn detect() -> Option<Self> {
                if $condition { $simd::detect().map(Self) } else { None }
            }
        }

        impl Tile for $token {
            type Simd = $simd;
            type A = [$q; $group];
            type B = [i8; $group];
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
        unsafe impl MultiplyAdd for $token {
            type Groups = $ints;
            type Sums = $ints;

            #[inline(always)]
            fn zero(self) -> $ints {
                self.0.splat_u32(0)
            }
            #[inline(always)]
            unsafe fn load(self, b: *const [i8; $group], v: usize) -> $ints {
                // SAFETY: the caller's promise; the token proves that the instruction exists.
                unsafe { $load(b.add(v * <$simd as Simd>::LANES).cast()) }
            }
            #[inline(always)]
            unsafe fn broadcast(self, a: *const [$q; $group]) -> $ints {
                // SAFETY: the caller's promise; the token proves that the instruction exists.
                unsafe { $broadcast(a.cast::<i32>().read_unaligned()) }
            }
            #[inline(always)]
            fn multiply_add(self, $a: $ints, $b: $ints, $sum: $ints) -> $ints {
                // SAFETY: the token proves that the instructions exist.
                unsafe { $product }
            }
            #[inline(always)]
            fn to_bits(self, sums: $ints) -> $floats {
                self.0.as_floats(sums)
            }
            #[inline(always)]
            fn add(self, before: $floats, sums: $ints) -> $ints {
                self.0.add_u32(self.0.as_bits(before), sums)
            }
            #[inline(always)]
            fn to_f32(self, sums: $ints) -> $floats {
                self.0.int_to_float(sums)
            }
        }

        impl Dot for $token {
            type Activation = $q;

            #[inline(always)]
            unsafe fn narrow(self, $p: *mut $q, $x: $ints) {
                // SAFETY: the caller's promise; the token proves that the instructions exist.
                unsafe { $narrow }
            }
        }
    };
}

/// q - 128 as a signed byte.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Shifted(u8);

#[cfg(target_arch = "aarch64")]
// SAFETY: a byte; every bit pattern is valid.
unsafe impl bytemuck::Zeroable for Shifted {}
#[cfg(target_arch = "aarch64")]
// SAFETY: as above.
unsafe impl Pod for Shifted {}

#[cfg(target_arch = "aarch64")]
impl From<u8> for Shifted {
    fn from(q: u8) -> Self {
        Self(q ^ 0x80)
    }
}

/// A group in the first lane: the instructions multiply by one lane.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn first_lane(group: i32) -> uint32x4_t {
    // SAFETY: NEON belongs to the baseline of aarch64.
    unsafe { vsetq_lane_u32::<0>(group as u32, vdupq_n_u32(0)) }
}

/// Eight bytes as 16 bits each.
///
/// # Safety
/// `b` is valid for reading 8 bytes.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn widened_neon(b: *const i8) -> uint32x4_t {
    // SAFETY: the caller's promise; NEON belongs to the baseline of aarch64.
    unsafe { vreinterpretq_u32_s16(vmovl_s8(vld1_s8(b))) }
}

#[cfg(target_arch = "aarch64")]
vector_dot! {
    /// Token of NEON with `smlal`, in assembly because LLVM would replace it by multiplications of 32 bits.
    Smlal(Neon), [i16; 2], [uint32x4_t, float32x4_t], "neon", rows 12, if true,
    load = widened_neon,
    broadcast = first_lane,
    multiply_add(sum, a, b) = {
        let (mut sum, even, odd) = (sum, vmovn_u32(b), vshrn_n_u32::<16>(b));
        asm!("smlal {0:v}.4s, {1:v}.4h, {3:v}.h[0]", "smlal {0:v}.4s, {2:v}.4h, {3:v}.h[1]",
            inout(vreg) sum, in(vreg) even, in(vreg) odd, in(vreg_low16) a, options(pure, nomem, nostack, preserves_flags));
        sum
    },
    narrow(p, x) = vst1_u16(p.cast(), vmovn_u32(x))
}

#[cfg(target_arch = "aarch64")]
vector_dot! {
    /// Token of NEON with `sdot`, whose intrinsic is not stable.
    Sdot(Neon), [Shifted; 4], [uint32x4_t, float32x4_t], "neon,dotprod", rows 12,
    if is_aarch64_feature_detected!("dotprod"),
    load = vld1q_u32,
    broadcast = first_lane,
    multiply_add(sum, a, b) = {
        let mut sum = sum;
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[0]", inout(vreg) sum, in(vreg) b, in(vreg) a,
            options(pure, nomem, nostack, preserves_flags));
        sum
    },
    narrow(p, x) = {
        let shorts = vmovn_u32(veorq_u32(x, vdupq_n_u32(0x80)));
        let bytes = vreinterpret_u32_u8(vmovn_u16(vcombine_u16(shorts, shorts)));
        p.cast::<u32>().write_unaligned(vget_lane_u32::<0>(bytes));
    }
}

/// Sixteen bytes as 16 bits each.
///
/// # Safety
/// `b` is valid for reading 16 bytes, and the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn widened(b: *const __m128i) -> __m256i {
    // SAFETY: the caller's promise.
    _mm256_cvtepi8_epi16(unsafe { _mm_loadu_si128(b) })
}

#[cfg(target_arch = "x86_64")]
vector_dot! {
    /// Token of AVX2 with `vpmaddwd`.
    Madd(Avx2), [i16; 2], [__m256i, __m256], "avx2,fma,f16c", rows 6, if true,
    load = widened,
    broadcast = _mm256_set1_epi32,
    multiply_add(sum, a, b) = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)),
    narrow(p, x) =
        _mm_storeu_si128(p.cast(), _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x)))
}

#[cfg(target_arch = "x86_64")]
vector_dot! {
    /// Token of AVX-VNNI.
    Vnni256(Avx2), [u8; 4], [__m256i, __m256], "avx2,fma,f16c,avxvnni", rows 6, if is_x86_feature_detected!("avxvnni"),
    load = _mm256_loadu_si256,
    broadcast = _mm256_set1_epi32,
    multiply_add(sum, a, b) = _mm256_dpbusd_avx_epi32(sum, a, b),
    narrow(p, x) = {
        let halves = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
        _mm_storel_epi64(p.cast(), _mm_packus_epi16(halves, halves))
    }
}

#[cfg(target_arch = "x86_64")]
vector_dot! {
    /// Token of AVX-512 with VNNI.
    Vnni512(Avx512), [u8; 4], [__m512i, __m512], "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", rows 14,
    if is_x86_feature_detected!("avx512vnni"),
    load = _mm512_loadu_si512,
    broadcast = _mm512_set1_epi32,
    multiply_add(sum, a, b) = _mm512_dpbusd_epi32(sum, a, b),
    narrow(p, x) = _mm_storeu_si128(p.cast(), _mm512_cvtusepi32_epi8(x))
}

/// Token of a matrix unit, with the vectors of AVX-512.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct UnitDot<U>(pub(super) Avx512, pub(super) U);

#[cfg(target_arch = "x86_64")]
impl<U: MatrixUnit + 'static> Tile for UnitDot<U> {
    type Simd = Avx512;
    type A = [u8; 4];
    type B = [i8; 4];
    const SIZE: RegisterTile = RegisterTile::of_unit(SIDE, SIDE / Avx512::LANES);
    const QUANTIZED: bool = true;
    const WHOLE: bool = true;
    const DEFERS: bool = true;
    const STORES_INTEGERS: bool = true;

    #[inline(always)]
    fn simd(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn vectorize<K: MicrokernelUser<Self>>(self, kernel: K) {
        let _configured = self.1.configure();
        self.0.vectorize(Entered(self, kernel));
    }
}

#[cfg(target_arch = "x86_64")]
impl<U: MatrixUnit + 'static> Microkernel for UnitDot<U> {
    #[inline(always)]
    unsafe fn tile<const H: usize>(
        self,
        height: usize,
        Part { depth, .. }: Part,
        a: PanelA<'_, [u8; 4]>,
        b: PanelB<'_, [i8; 4]>,
        _: NextTile,
        to: Destination<'_>,
    ) {
        assert!(height == SIDE && b.k_stride == SIDE && depth.is_multiple_of(GROUPS) && !to.add);
        let section = Section { a: a.a.as_ptr().cast(), b: b.b.as_ptr().cast() };
        // SAFETY: the caller's promise; the macrokernel runs inside `vectorize`, which configures the unit. Sums take the
        // place of floats.
        unsafe { self.1.multiply_bytes(section, depth / GROUPS, a.row_stride, to.c.cast(), to.ldc) };
    }
}

#[cfg(target_arch = "x86_64")]
impl<U: MatrixUnit + 'static> Dot for UnitDot<U> {
    type Activation = u8;

    #[inline(always)]
    unsafe fn narrow(self, p: *mut u8, x: __m512i) {
        // SAFETY: the caller's promise; the token proves that the instructions exist.
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtusepi32_epi8(x)) }
    }
}
