//! Portable SIMD vectors of f32: one kernel source for every instruction set.
//!
//! A kernel is a struct with its arguments that implements [`Kernel`]; [`Isa::run`] hands it a *token* (`Avx2`,
//! `Avx512`, ...). Owning a token proves that the machine has the instructions, because only `detect` makes one, so
//! the operations on it are safe. The token's `vectorize` enters a `#[target_feature]` function once; everything
//! below it is `#[inline(always)]` and becomes plain vector instructions. Enter it once per task, inside the worker
//! thread, never per element.
//!
//! In tests, `Emulated<N>` has N lanes of plain Rust, so that code for lane widths that the machine lacks is tested.
//!
//! Every operation gives the same bits on every instruction set, but for sign and payload of a NaN. A kernel whose results
//! do not depend on LANES also has them: elements are independent, or sums have 16 lanes ([`rows`](crate::rows)).
//!
//! Conventions are those of x86: `max(a, b)` is `a` if `a > b`, else `b` (a NaN in `b` propagates, a NaN in `a` does not);
//! sums over lanes add the upper half to the lower half until one lane is left; float to integer rounds half to even; bf16
//! rounds to nearest even, and NaN becomes quiet NaN. Multiply-adds round once.
//!
//! Limits: f32 arithmetic only, storage in f32 or bf16. NEON is tested under emulation only (`.ci/aarch64.sh`).
//!
//! ```
//! use kernels::simd::{Element, Kernel, Simd};
//!
//! /// y = 2·x
//! struct Double<'a>(&'a [f32], &'a mut [f32]);
//!
//! impl Kernel for Double<'_> {
//!     type Output = ();
//!     #[inline(always)]
//!     fn run<S: Simd>(self, simd: S) {
//!         for (x, y) in self.0.chunks(S::LANES).zip(self.1.chunks_mut(S::LANES)) {
//!             let x = f32::load_partial(simd, x);
//!             f32::store_partial(simd, y, simd.add(x, x));
//!         }
//!     }
//! }
//!
//! let mut y = [0.0; 3];
//! kernels::Isa::choose()?.run(Double(&[1.0, 2.0, 3.0], &mut y));
//! assert_eq!(y, [2.0, 4.0, 6.0]);
//! # Ok::<(), kernels::simd::UnknownIsa>(())
//! ```
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod compiled_here;
mod element;
#[cfg(any(test, emulated_isas))]
mod emulated;
mod isa;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(test)]
mod tests;
mod wide;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub(crate) use compiled_here::compiled_here;
pub use element::{DType, Element};
pub(crate) use element::{Instances, Signature};
#[cfg(any(test, emulated_isas))]
pub use emulated::Emulated;
pub use isa::{Isa, IsaKind, UnknownIsa};
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use scalar::Scalar;
pub(crate) use wide::WIDTH;
pub use wide::Wide;

use half::bf16;
use std::mem::MaybeUninit;

/// Body of a kernel, generic over the instruction set.
///
/// `run` and everything that it calls must be `#[inline(always)]`; otherwise they are compiled without the instruction set.
pub trait Kernel {
    /// Result of the kernel.
    type Output;
    /// Runs the kernel with the vectors of `simd`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// The array [f(0), f(1), ..]. [`std::array::from_fn`] and `map` of arrays are inlined as the compiler sees fit: in a large
/// codegen unit they stay calls, compiled without the instruction set.
#[inline(always)]
pub(crate) fn from_fn<T: Copy, const N: usize>(mut f: impl FnMut(usize) -> T) -> [T; N] {
    let mut all = [MaybeUninit::uninit(); N];
    for (i, x) in all.iter_mut().enumerate() {
        x.write(f(i));
    }
    // SAFETY: the loop has written all elements; an array of MaybeUninit has the layout of the array.
    unsafe { std::ptr::from_ref(&all).cast::<[T; N]>().read() }
}

/// Prefetches the cache line of `p`, which may be any address.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; no address makes it fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint; no address makes it fault.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}

/// Prefetches the cache line of `p`, which may be any address, into L2 only.
#[inline(always)]
pub(crate) fn prefetch_l2<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; no address makes it fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint; no address makes it fault.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}

/// Methods of [`Simd`] that are one expression each, `#[inline($inline)]`.
macro_rules! operations {
    ($inline:ident $($name:ident($($x:ident: $t:ty),*) -> $r:ty = $body:expr;)*) => {$(
        #[inline($inline)]
        fn $name(self, $($x: $t),*) -> $r {
            $body
        }
    )*};
}
pub(crate) use operations;

/// Methods of [`Simd`] that are one expression of intrinsics each; those that take a pointer are `unsafe`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! intrinsics {
    (unsafe $($name:ident($($x:ident: $t:ty),*) -> $r:ty = $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name(self, $($x: $t),*) -> $r {
            // SAFETY: the token proves that the instructions exist; the caller guarantees the memory.
            unsafe { $body }
        }
    )*};
    ($($name:ident($($x:ident: $t:ty),*) -> $r:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($x: $t),*) -> $r {
            // SAFETY: the token proves that the instructions exist.
            unsafe { $body }
        }
    )*};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use intrinsics;

/// Defines a trait of all kernels whose method `enter` runs one with `$features` of the processor.
///
/// A method that a trait provides is compiled in the codegen unit of the type that it is called on, here the kernel's, so that an
/// edited kernel is compiled alone. Of a generic function, all instances, the kernels of all operations, are one unit.
#[cfg(target_arch = "x86_64")]
macro_rules! entry {
    ($token:ty, $features:literal) => {
        trait Entry: $crate::simd::Kernel + Sized {
            /// # Safety
            /// The machine has the features.
            #[target_feature(enable = $features)]
            unsafe fn enter(self, simd: $token) -> Self::Output {
                self.run(simd)
            }
        }
        impl<K: $crate::simd::Kernel> Entry for K {}
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use entry;

/// Maximum lanes of an instruction set, and lanes of a sum on every instruction set.
pub(crate) const MAX_LANES: usize = 16;

/// Reduces 16 lanes, in order in the first 16 / LANES vectors, to one: the upper half is combined with the lower half until
/// one vector is left, which `last` reduces in the same way.
#[inline(always)]
pub(crate) fn reduce_sixteen<S: Simd>(
    mut lanes: [S::F32; MAX_LANES],
    combine: impl Fn(S::F32, S::F32) -> S::F32,
    last: impl Fn(S::F32) -> f32,
) -> f32 {
    let mut half = MAX_LANES / S::LANES / 2;
    while half > 0 {
        for v in 0..half {
            lanes[v] = combine(lanes[v], lanes[v + half]);
        }
        half /= 2;
    }
    last(lanes[0])
}

/// Vector operations of one instruction set. The value is a token: owning it proves that the machine supports them.
///
/// # Safety
/// An implementation must only be constructible where its instructions exist.
pub unsafe trait Simd: Copy + Send + Sync + std::fmt::Debug + 'static {
    /// f32 lanes of a vector: a power of two, at most 16 (`Wide`, which has no partial vectors, has four times as many).
    const LANES: usize;
    /// Architectural vector registers; register tiles must fit them.
    const REGISTERS: usize;
    /// True for emulated lanes of tests: kernels with many unrolled variants may compile a loop instead.
    const EMULATED: bool = false;
    /// Vector of LANES floats.
    type F32: Copy;
    /// Vector of LANES 32-bit words, unsigned or two's complement depending on the operation.
    type U32: Copy;
    /// One boolean per lane.
    type Mask: Copy;

    /// Runs `kernel` with this instruction set enabled for everything that is inlined into it.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::F32;
    /// `x` in every lane.
    fn splat_u32(self, x: u32) -> Self::U32;
    /// 0, 1, 2, ... LANES-1.
    fn iota(self) -> Self::U32;

    /// Loads LANES floats at `p`.
    /// # Safety
    /// `p` is valid for reading LANES floats. No alignment is needed.
    unsafe fn load_ptr(self, p: *const f32) -> Self::F32;
    /// Stores LANES floats at `p`.
    /// # Safety
    /// `p` is valid for writing LANES floats. No alignment is needed.
    unsafe fn store_ptr(self, p: *mut f32, x: Self::F32);
    /// Loads the first `n` floats at `p`, with zeros in the other lanes; does not access memory past them.
    /// # Safety
    /// `n <= LANES` and `p` is valid for reading `n` floats.
    unsafe fn load_ptr_partial(self, p: *const f32, n: usize) -> Self::F32;
    /// Stores the first `n` lanes at `p`; does not access memory past them.
    /// # Safety
    /// `n <= LANES` and `p` is valid for writing `n` floats.
    unsafe fn store_ptr_partial(self, p: *mut f32, n: usize, x: Self::F32);
    /// Loads LANES bf16 elements at `p`, widened (exact).
    /// # Safety
    /// `p` is valid for reading LANES bf16 elements.
    unsafe fn load_bf16_ptr(self, p: *const bf16) -> Self::F32;
    /// Rounds to bf16 (nearest even) and stores LANES elements at `p`.
    /// # Safety
    /// `p` is valid for writing LANES bf16 elements.
    unsafe fn store_bf16_ptr(self, p: *mut bf16, x: Self::F32);

    /// a + b
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// a - b
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// a · b
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// a / b
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// a · b + c, rounded once.
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// c - a · b, rounded like `mul_add`.
    fn neg_mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// `a` if a > b, else `b`.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a` if a < b, else `b`.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// √a
    fn sqrt(self, a: Self::F32) -> Self::F32;

    /// Bits of the floats.
    fn as_bits(self, a: Self::F32) -> Self::U32;
    /// Floats with these bits.
    fn as_floats(self, a: Self::U32) -> Self::F32;
    /// Rounds to the nearest integer (half to even), two's complement; |a| < 2^31.
    fn round_to_int(self, a: Self::F32) -> Self::U32;
    /// Converts integers (two's complement) to floats.
    fn int_to_float(self, a: Self::U32) -> Self::F32;
    /// a + b modulo 2^32
    fn add_u32(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// Low and high halves of the 64-bit product a · b.
    fn mul_wide_u32(self, a: Self::U32, b: Self::U32) -> (Self::U32, Self::U32);
    /// a ^ b
    fn xor(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// a & b
    fn and(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// a | b
    fn or(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// a << BITS
    fn shl<const BITS: u32>(self, a: Self::U32) -> Self::U32;
    /// a >> BITS, zero-filled
    fn shr<const BITS: u32>(self, a: Self::U32) -> Self::U32;

    /// a < b; false if either is NaN.
    fn lt(self, a: Self::F32, b: Self::F32) -> Self::Mask;
    /// a < b, both unsigned.
    fn lt_u32(self, a: Self::U32, b: Self::U32) -> Self::Mask;
    /// `a` where the mask is true, else `b`.
    fn select(self, mask: Self::Mask, a: Self::F32, b: Self::F32) -> Self::F32;

    /// Sum over the lanes: adds the upper half to the lower half until one lane is left.
    fn reduce_sum(self, a: Self::F32) -> f32;
    /// Maximum over the lanes, folded like `reduce_sum`.
    fn reduce_max(self, a: Self::F32) -> f32;

    /// Transposes the LANES x LANES matrix whose rows are the first LANES vectors; the others are unchanged.
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::F32; 16]) {
        let mut cells = [[0f32; 16]; 16];
        for (cells, &row) in cells.iter_mut().zip(&*rows).take(Self::LANES) {
            self.store(cells, row);
        }
        for (j, row) in rows.iter_mut().enumerate().take(Self::LANES) {
            let column: [f32; 16] = from_fn(|i| cells[i][j]);
            *row = self.load(&column);
        }
    }

    /// Loads columns as vectors: lane i of vector j is `p[i * leading + j]` for the first `rows` lanes, else zero. Only the
    /// first LANES vectors are defined.
    /// # Safety
    /// `rows <= LANES`, and `p` is valid for reading `rows` times LANES floats, `leading` apart.
    #[inline(always)]
    unsafe fn load_transposed(self, p: *const f32, leading: usize, rows: usize) -> [Self::F32; 16] {
        let mut square = [self.zero(); 16];
        for (i, row) in square.iter_mut().enumerate().take(Self::LANES) {
            if i < rows {
                // SAFETY: the caller's promise.
                *row = unsafe { self.load_ptr(p.add(i * leading)) };
            }
        }
        self.transpose(&mut square);
        square
    }

    // ---- derived, the same for every instruction set ----

    /// 0.0 in every lane.
    #[inline(always)]
    fn zero(self) -> Self::F32 {
        self.splat(0.0)
    }
    /// -a
    #[inline(always)]
    fn neg(self, a: Self::F32) -> Self::F32 {
        self.as_floats(self.xor(self.as_bits(a), self.splat_u32(0x8000_0000)))
    }
    /// |a|
    #[inline(always)]
    fn abs(self, a: Self::F32) -> Self::F32 {
        self.as_floats(self.and(self.as_bits(a), self.splat_u32(0x7fff_ffff)))
    }
    /// `magnitude` (not negative) with the sign of `sign`.
    #[inline(always)]
    fn copy_sign(self, magnitude: Self::F32, sign: Self::F32) -> Self::F32 {
        let bit = self.and(self.as_bits(sign), self.splat_u32(0x8000_0000));
        self.as_floats(self.or(self.as_bits(magnitude), bit))
    }
    /// Rounds to bf16 (nearest even), as f32; NaN stays NaN.
    #[inline(always)]
    fn round_bf16(self, a: Self::F32) -> Self::F32 {
        let bits = self.as_bits(a);
        let odd = self.and(self.shr::<16>(bits), self.splat_u32(1));
        let rounded = self.add_u32(bits, self.add_u32(odd, self.splat_u32(0x7fff)));
        let value = self.as_floats(self.and(rounded, self.splat_u32(0xffff_0000)));
        // Rounding could turn a NaN into another value; a + a is a quiet NaN, and infinity for an infinity.
        let number = self.lt(self.abs(a), self.splat(f32::INFINITY));
        self.select(number, value, self.add(a, a))
    }
    /// (n, r) with y = n + r, n an integer and |r| <= ½, for |y| < 2^22. Values below -127 may be replaced by -127.
    #[inline(always)]
    fn split_exponent(self, y: Self::F32) -> (Self::F32, Self::F32) {
        // Floats of this size have no fraction bits: the addition rounds half to even.
        const SHIFT: f32 = 12_582_912.0;
        let y = self.max(self.splat(-127.0), y);
        let n = self.sub(self.add(y, self.splat(SHIFT)), self.splat(SHIFT));
        (n, self.sub(y, n))
    }
    /// a · 2^n for a = 2^r up to rounding, with (n, r) from [`split_exponent`](Self::split_exponent) and n <= 127. Results
    /// below 2^-126 may be any value from 0 to 2^-125.
    #[inline(always)]
    fn scale_by_power(self, a: Self::F32, n: Self::F32) -> Self::F32 {
        self.as_floats(self.add_u32(self.as_bits(a), self.shl::<23>(self.round_to_int(n))))
    }
    /// Loads the first LANES floats of `x`. Panics if there are fewer.
    #[inline(always)]
    fn load(self, x: &[f32]) -> Self::F32 {
        assert!(x.len() >= Self::LANES);
        // SAFETY: the slice holds at least LANES floats.
        unsafe { self.load_ptr(x.as_ptr()) }
    }
    /// Stores the first LANES floats of `x`. Panics if there are fewer.
    #[inline(always)]
    fn store(self, x: &mut [f32], value: Self::F32) {
        assert!(x.len() >= Self::LANES);
        // SAFETY: the slice holds at least LANES floats.
        unsafe { self.store_ptr(x.as_mut_ptr(), value) }
    }
    /// Loads all of `x`, at most LANES floats, with zeros in the other lanes.
    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> Self::F32 {
        assert!(x.len() <= Self::LANES);
        // SAFETY: the length is within LANES and the slice holds that many floats.
        unsafe { self.load_ptr_partial(x.as_ptr(), x.len()) }
    }
    /// Stores the first lanes to all of `x`, at most LANES floats.
    #[inline(always)]
    fn store_partial(self, x: &mut [f32], value: Self::F32) {
        assert!(x.len() <= Self::LANES);
        // SAFETY: the length is within LANES and the slice holds that many floats.
        unsafe { self.store_ptr_partial(x.as_mut_ptr(), x.len(), value) }
    }
    /// Mask of the lanes below n.
    #[inline(always)]
    fn first(self, n: usize) -> Self::Mask {
        self.lt_u32(self.iota(), self.splat_u32(n as u32))
    }
}
