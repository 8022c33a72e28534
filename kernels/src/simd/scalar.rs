//! One lane of plain Rust: runs on every machine, and defines each operation.

#[cfg(target_arch = "x86_64")]
use super::entry;
use super::{Kernel, Simd, operations};
use half::bf16;

/// Token of plain Rust arithmetic, `FMA`: with the instruction for fused multiply-adds.
///
/// Without it a multiply-add is a library call with the same result: for processors before 2013.
#[derive(Clone, Copy, Debug)]
pub struct Scalar<const FMA: bool>(());

impl Scalar<false> {
    /// Token, available on every machine.
    pub const fn new() -> Self {
        Self(())
    }
}

impl Default for Scalar<false> {
    fn default() -> Self {
        Self::new()
    }
}

impl Scalar<true> {
    /// Token, if this machine has the instruction.
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        let has_fma = is_x86_feature_detected!("fma");
        #[cfg(not(target_arch = "x86_64"))]
        let has_fma = cfg!(target_arch = "aarch64");
        has_fma.then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
entry!(Scalar<true>, "fma");

/// As [`entry`](super::entry), without features.
trait EntryPlain: Kernel + Sized {
    #[inline(never)]
    fn enter_plain<const FMA: bool>(self, simd: Scalar<FMA>) -> Self::Output {
        self.run(simd)
    }
}
impl<K: Kernel> EntryPlain for K {}

// SAFETY: Scalar<false> uses no instruction beyond the target's baseline; the only constructor of Scalar<true> is `detect`.
unsafe impl<const FMA: bool> Simd for Scalar<FMA> {
    const LANES: usize = 1;
    const REGISTERS: usize = 16;
    // A call for each multiply-add leaves nothing to gain from unrolled variants.
    const EMULATED: bool = !FMA;
    type F32 = f32;
    type U32 = u32;
    type Mask = bool;

    #[inline]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg(target_arch = "x86_64")]
        if FMA {
            // SAFETY: FMA is true, so this token proves the instruction.
            return unsafe { kernel.enter(Scalar(())) };
        }
        kernel.enter_plain(self)
    }
    operations! { always
        splat(x: f32) -> f32 = x;
        splat_u32(x: u32) -> u32 = x;
        iota() -> u32 = 0;
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> f32 {
        // SAFETY: the caller guarantees one readable float.
        unsafe { p.read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, x: f32) {
        // SAFETY: the caller guarantees one writable float.
        unsafe { p.write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn load_ptr_partial(self, p: *const f32, n: usize) -> f32 {
        // SAFETY: read only if the caller guarantees one float.
        if n == 0 { 0.0 } else { unsafe { p.read_unaligned() } }
    }
    #[inline(always)]
    unsafe fn store_ptr_partial(self, p: *mut f32, n: usize, x: f32) {
        if n != 0 {
            // SAFETY: the caller guarantees one writable float.
            unsafe { p.write_unaligned(x) }
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_ptr(self, p: *const bf16) -> f32 {
        // SAFETY: the caller guarantees one readable element.
        unsafe { p.read_unaligned() }.to_f32()
    }
    #[inline(always)]
    unsafe fn store_bf16_ptr(self, p: *mut bf16, x: f32) {
        // SAFETY: the caller guarantees one writable element.
        unsafe { p.write_unaligned(bf16::from_f32(x)) }
    }
    operations! { always
        add(a: f32, b: f32) -> f32 = a + b;
        sub(a: f32, b: f32) -> f32 = a - b;
        mul(a: f32, b: f32) -> f32 = a * b;
        div(a: f32, b: f32) -> f32 = a / b;
        mul_add(a: f32, b: f32, c: f32) -> f32 = if FMA { a.mul_add(b, c) } else { libm::fmaf(a, b, c) };
        neg_mul_add(a: f32, b: f32, c: f32) -> f32 = if FMA { (-a).mul_add(b, c) } else { libm::fmaf(-a, b, c) };
        max(a: f32, b: f32) -> f32 = if a > b { a } else { b };
        min(a: f32, b: f32) -> f32 = if a < b { a } else { b };
        sqrt(a: f32) -> f32 = a.sqrt();
        as_bits(a: f32) -> u32 = a.to_bits();
        as_floats(a: u32) -> f32 = f32::from_bits(a);
        round_to_int(a: f32) -> u32 = a.round_ties_even() as i32 as u32;
        int_to_float(a: u32) -> f32 = a as i32 as f32;
        add_u32(a: u32, b: u32) -> u32 = a.wrapping_add(b);
    }
    #[inline(always)]
    fn mul_wide_u32(self, a: u32, b: u32) -> (u32, u32) {
        let product = u64::from(a) * u64::from(b);
        (product as u32, (product >> 32) as u32)
    }
    operations! { always
        xor(a: u32, b: u32) -> u32 = a ^ b;
        and(a: u32, b: u32) -> u32 = a & b;
        or(a: u32, b: u32) -> u32 = a | b;
    }
    #[inline(always)]
    fn shl<const BITS: u32>(self, a: u32) -> u32 {
        a << BITS
    }
    #[inline(always)]
    fn shr<const BITS: u32>(self, a: u32) -> u32 {
        a >> BITS
    }
    operations! { always
        lt(a: f32, b: f32) -> bool = a < b;
        lt_u32(a: u32, b: u32) -> bool = a < b;
        select(mask: bool, a: f32, b: f32) -> f32 = if mask { a } else { b };
        reduce_sum(a: f32) -> f32 = a;
        reduce_max(a: f32) -> f32 = a;
    }
}
