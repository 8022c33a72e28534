//! N emulated lanes in plain Rust.
//!
//! Runs kernels for AVX2 (N = 8) or AVX-512 (N = 16) on any machine, so that their tails, tiles and tables are tested
//! without the instructions. Operations are calls, which is slow but compiles fast. The tests compare it with the real
//! instructions if the machine has them.

use super::{Kernel, Scalar, Simd, operations};
use half::bf16;
use std::array::from_fn;

/// Definition of an operation on one lane.
const LANE: Scalar<false> = Scalar::new();

/// Token of N emulated lanes; available on every machine. N is a power of two, at most 16.
#[derive(Clone, Copy, Debug, Default)]
pub struct Emulated<const N: usize>;

#[inline(always)]
fn map<A: Copy, B, const N: usize>(a: [A; N], f: impl Fn(A) -> B) -> [B; N] {
    from_fn(|i| f(a[i]))
}

#[inline(always)]
fn zip<A: Copy, B, const N: usize>(a: [A; N], b: [A; N], f: impl Fn(A, A) -> B) -> [B; N] {
    from_fn(|i| f(a[i], b[i]))
}

/// Folds the upper half onto the lower half until one lane is left.
#[inline(always)]
fn fold<const N: usize>(mut a: [f32; N], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = N / 2;
    while half > 0 {
        for i in 0..half {
            a[i] = f(a[i], a[i + half]);
        }
        half /= 2;
    }
    a[0]
}

// SAFETY: no instruction beyond the target's baseline is used.
unsafe impl<const N: usize> Simd for Emulated<N> {
    const LANES: usize = N;
    // As NEON, AVX2 and AVX-512 have.
    const REGISTERS: usize = if N == 8 { 16 } else { 32 };
    // Four lanes take the unrolled paths of a real instruction set.
    const EMULATED: bool = N > 4;
    type F32 = [f32; N];
    type U32 = [u32; N];
    type Mask = [bool; N];

    #[inline]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    operations! { never
        splat(x: f32) -> [f32; N] = [x; N];
        splat_u32(x: u32) -> [u32; N] = [x; N];
        iota() -> [u32; N] = from_fn(|i| i as u32);
    }
    #[inline(never)]
    unsafe fn load_ptr(self, p: *const f32) -> [f32; N] {
        // SAFETY: the caller guarantees N readable floats.
        unsafe { p.cast::<[f32; N]>().read_unaligned() }
    }
    #[inline(never)]
    unsafe fn store_ptr(self, p: *mut f32, x: [f32; N]) {
        // SAFETY: the caller guarantees N writable floats.
        unsafe { p.cast::<[f32; N]>().write_unaligned(x) }
    }
    #[inline(never)]
    unsafe fn load_ptr_partial(self, p: *const f32, n: usize) -> [f32; N] {
        // SAFETY: only the first n <= N floats are read, which the caller guarantees.
        from_fn(|i| if i < n { unsafe { p.add(i).read_unaligned() } } else { 0.0 })
    }
    #[inline(never)]
    unsafe fn store_ptr_partial(self, p: *mut f32, n: usize, x: [f32; N]) {
        for (i, &lane) in x.iter().enumerate().take(n) {
            // SAFETY: only the first n <= N floats are written, which the caller guarantees.
            unsafe { p.add(i).write_unaligned(lane) }
        }
    }
    #[inline(never)]
    unsafe fn load_bf16_ptr(self, p: *const bf16) -> [f32; N] {
        // SAFETY: the caller guarantees N readable elements.
        map(unsafe { p.cast::<[bf16; N]>().read_unaligned() }, bf16::to_f32)
    }
    #[inline(never)]
    unsafe fn store_bf16_ptr(self, p: *mut bf16, x: [f32; N]) {
        // SAFETY: the caller guarantees N writable elements.
        unsafe { p.cast::<[bf16; N]>().write_unaligned(map(x, bf16::from_f32)) }
    }
    operations! { never
        add(a: [f32; N], b: [f32; N]) -> [f32; N] = zip(a, b, |a, b| a + b);
        sub(a: [f32; N], b: [f32; N]) -> [f32; N] = zip(a, b, |a, b| a - b);
        mul(a: [f32; N], b: [f32; N]) -> [f32; N] = zip(a, b, |a, b| a * b);
        div(a: [f32; N], b: [f32; N]) -> [f32; N] = zip(a, b, |a, b| a / b);
        mul_add(a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] = from_fn(|i| a[i].mul_add(b[i], c[i]));
        neg_mul_add(a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] = from_fn(|i| (-a[i]).mul_add(b[i], c[i]));
        max(a: [f32; N], b: [f32; N]) -> [f32; N] = zip(a, b, |a, b| LANE.max(a, b));
        min(a: [f32; N], b: [f32; N]) -> [f32; N] = zip(a, b, |a, b| LANE.min(a, b));
        sqrt(a: [f32; N]) -> [f32; N] = map(a, f32::sqrt);
        as_bits(a: [f32; N]) -> [u32; N] = map(a, f32::to_bits);
        as_floats(a: [u32; N]) -> [f32; N] = map(a, f32::from_bits);
        round_to_int(a: [f32; N]) -> [u32; N] = map(a, |a| LANE.round_to_int(a));
        int_to_float(a: [u32; N]) -> [f32; N] = map(a, |a| LANE.int_to_float(a));
        add_u32(a: [u32; N], b: [u32; N]) -> [u32; N] = zip(a, b, u32::wrapping_add);
        mul_wide_u32(a: [u32; N], b: [u32; N]) -> ([u32; N], [u32; N]) = (zip(a, b, |a, b| LANE.mul_wide_u32(a, b).0), zip(a, b, |a, b| LANE.mul_wide_u32(a, b).1));
        xor(a: [u32; N], b: [u32; N]) -> [u32; N] = zip(a, b, |a, b| a ^ b);
        and(a: [u32; N], b: [u32; N]) -> [u32; N] = zip(a, b, |a, b| a & b);
        or(a: [u32; N], b: [u32; N]) -> [u32; N] = zip(a, b, |a, b| a | b);
    }
    #[inline(never)]
    fn shl<const BITS: u32>(self, a: [u32; N]) -> [u32; N] {
        map(a, |a| a << BITS)
    }
    #[inline(never)]
    fn shr<const BITS: u32>(self, a: [u32; N]) -> [u32; N] {
        map(a, |a| a >> BITS)
    }
    operations! { never
        lt(a: [f32; N], b: [f32; N]) -> [bool; N] = zip(a, b, |a, b| a < b);
        lt_u32(a: [u32; N], b: [u32; N]) -> [bool; N] = zip(a, b, |a, b| a < b);
        select(mask: [bool; N], a: [f32; N], b: [f32; N]) -> [f32; N] = from_fn(|i| if mask[i] { a[i] } else { b[i] });
    }
    operations! { never
        reduce_sum(a: [f32; N]) -> f32 = fold(a, |a, b| a + b);
        reduce_max(a: [f32; N]) -> f32 = fold(a, |a, b| LANE.max(a, b));
    }
}
