//! Four vectors as one, for instruction-level parallelism in long dependency chains.
//!
//! A polynomial of degree five is a chain of five multiply-adds with a latency of four cycles each, while the core can start
//! two per cycle. The out-of-order window of some hundred instructions covers only two or three successive vectors of an
//! activation. With four vectors in every operation, neighboring instructions are independent.

use super::{Kernel, Simd};
use half::bf16;

/// Vectors per operation.
pub(crate) const WIDTH: usize = 4;

/// Token of vectors with four times the lanes of S. Only for loops over columns: `vectorize` must have been entered with S;
/// partial vectors and transposes are not supported.
#[derive(Clone, Copy, Debug)]
pub struct Wide<S>(pub(crate) S);

/// The array of an expression for $i = 0, 1, 2 and 3. Not a closure, which may stay a call.
macro_rules! four {
    ($i:ident => $x:expr) => {
        [
            {
                const $i: usize = 0;
                $x
            },
            {
                const $i: usize = 1;
                $x
            },
            {
                const $i: usize = 2;
                $x
            },
            {
                const $i: usize = 3;
                $x
            },
        ]
    };
}

/// Methods that apply an operation of S to each of the four vectors.
macro_rules! each {
    ($($name:ident($($x:ident: $t:ident),*) -> $r:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($x: Self::$t),*) -> Self::$r {
            four!(I => self.0.$name($($x[I]),*))
        }
    )*};
}

// SAFETY: it owns a token of S, and executes only instructions of S.
unsafe impl<S: Simd> Simd for Wide<S> {
    const LANES: usize = WIDTH * S::LANES;
    const REGISTERS: usize = S::REGISTERS;
    const EMULATED: bool = S::EMULATED;
    type F32 = [S::F32; WIDTH];
    type U32 = [S::U32; WIDTH];
    type Mask = [S::Mask; WIDTH];

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F32 {
        [self.0.splat(x); WIDTH]
    }
    #[inline(always)]
    fn splat_u32(self, x: u32) -> Self::U32 {
        [self.0.splat_u32(x); WIDTH]
    }
    #[inline(always)]
    fn iota(self) -> Self::U32 {
        four!(I => self.0.add_u32(self.0.iota(), self.0.splat_u32((I * S::LANES) as u32)))
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::F32 {
        // SAFETY: the caller guarantees four vectors.
        four!(I => unsafe { self.0.load_ptr(p.add(I * S::LANES)) })
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, x: Self::F32) {
        // SAFETY: the caller guarantees four vectors. (A loop has LLVM compute them one after another.)
        four!(I => unsafe { self.0.store_ptr(p.add(I * S::LANES), x[I]) });
    }
    unsafe fn load_ptr_partial(self, _: *const f32, _: usize) -> Self::F32 {
        unreachable!("wide vectors are whole")
    }
    unsafe fn store_ptr_partial(self, _: *mut f32, _: usize, _: Self::F32) {
        unreachable!("wide vectors are whole")
    }
    #[inline(always)]
    unsafe fn load_bf16_ptr(self, p: *const bf16) -> Self::F32 {
        // SAFETY: the caller guarantees four vectors.
        four!(I => unsafe { self.0.load_bf16_ptr(p.add(I * S::LANES)) })
    }
    #[inline(always)]
    unsafe fn store_bf16_ptr(self, p: *mut bf16, x: Self::F32) {
        // SAFETY: the caller guarantees four vectors.
        four!(I => unsafe { self.0.store_bf16_ptr(p.add(I * S::LANES), x[I]) });
    }
    each! {
        add(a: F32, b: F32) -> F32;
        sub(a: F32, b: F32) -> F32;
        mul(a: F32, b: F32) -> F32;
        div(a: F32, b: F32) -> F32;
        mul_add(a: F32, b: F32, c: F32) -> F32;
        neg_mul_add(a: F32, b: F32, c: F32) -> F32;
        max(a: F32, b: F32) -> F32;
        min(a: F32, b: F32) -> F32;
        sqrt(a: F32) -> F32;
        as_bits(a: F32) -> U32;
        as_floats(a: U32) -> F32;
        round_to_int(a: F32) -> U32;
        int_to_float(a: U32) -> F32;
        add_u32(a: U32, b: U32) -> U32;
        xor(a: U32, b: U32) -> U32;
        and(a: U32, b: U32) -> U32;
        or(a: U32, b: U32) -> U32;
        lt(a: F32, b: F32) -> Mask;
        lt_u32(a: U32, b: U32) -> Mask;
        select(mask: Mask, a: F32, b: F32) -> F32;
        round_bf16(a: F32) -> F32;
        scale_by_power(a: F32, n: F32) -> F32;
    }
    #[inline(always)]
    fn split_exponent(self, y: Self::F32) -> (Self::F32, Self::F32) {
        let parts = four!(I => self.0.split_exponent(y[I]));
        (four!(I => parts[I].0), four!(I => parts[I].1))
    }
    #[inline(always)]
    fn mul_wide_u32(self, a: Self::U32, b: Self::U32) -> (Self::U32, Self::U32) {
        let halves = four!(I => self.0.mul_wide_u32(a[I], b[I]));
        (four!(I => halves[I].0), four!(I => halves[I].1))
    }
    #[inline(always)]
    fn shl<const BITS: u32>(self, a: Self::U32) -> Self::U32 {
        four!(I => self.0.shl::<BITS>(a[I]))
    }
    #[inline(always)]
    fn shr<const BITS: u32>(self, a: Self::U32) -> Self::U32 {
        four!(I => self.0.shr::<BITS>(a[I]))
    }
    #[inline(always)]
    fn reduce_sum(self, [a, b, c, d]: Self::F32) -> f32 {
        self.0.reduce_sum(self.0.add(self.0.add(a, b), self.0.add(c, d)))
    }
    #[inline(always)]
    fn reduce_max(self, [a, b, c, d]: Self::F32) -> f32 {
        self.0.reduce_max(self.0.max(self.0.max(a, b), self.0.max(c, d)))
    }
}
