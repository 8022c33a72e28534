//! Matrices with their storage type as a value, so that the loop nest is compiled once for all types.

use crate::pool::Disjoint;
use crate::{DType, Element, simd::Simd};
use half::bf16;

/// Matrix that a product reads.
#[derive(Clone, Copy)]
pub(crate) enum Operand<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

impl<'a> Operand<'a> {
    pub(crate) fn new<X: Element>(x: &'a [X]) -> Self {
        match X::DTYPE {
            DType::F32 => Self::F32(bytemuck::cast_slice(x)),
            DType::Bf16 => Self::Bf16(bytemuck::cast_slice(x)),
        }
    }
    /// The first element.
    ///
    /// # Panics
    /// If the elements are not stored as X.
    #[inline(always)]
    pub(super) fn start<X: Element>(self) -> *const X {
        match (self, X::DTYPE) {
            (Self::F32(x), DType::F32) => x.as_ptr().cast(),
            (Self::Bf16(x), DType::Bf16) => x.as_ptr().cast(),
            _ => panic!("a matrix of an epilogue is stored as C is"),
        }
    }
    #[inline(always)]
    pub(super) fn from(self, start: usize) -> Self {
        match self {
            Self::F32(x) => Self::F32(&x[start..]),
            Self::Bf16(x) => Self::Bf16(&x[start..]),
        }
    }
    /// `count` <= LANES elements from `start` on; zeros in the other lanes.
    #[inline(always)]
    pub(super) fn load<S: Simd>(self, simd: S, start: usize, count: usize) -> S::F32 {
        match self {
            Self::F32(x) => load(simd, &x[start..start + count]),
            Self::Bf16(x) => load(simd, &x[start..start + count]),
        }
    }
}

/// Loads all of `x`, at most LANES elements. A whole vector is one load: partial ones of bf16 are copied first.
#[inline(always)]
fn load<S: Simd, X: Element>(simd: S, x: &[X]) -> S::F32 {
    if x.len() == S::LANES { X::load(simd, x) } else { X::load_partial(simd, x) }
}

/// Stores the first lanes to all of `x`, as [`load`].
#[inline(always)]
fn store<S: Simd, X: Element>(simd: S, x: &mut [X], value: S::F32) {
    if x.len() == S::LANES {
        X::store(simd, x, value);
    } else {
        X::store_partial(simd, x, value);
    }
}

/// Matrix that a product writes.
#[derive(Clone, Copy)]
pub(crate) enum Output<'a> {
    F32(Disjoint<'a, f32>),
    Bf16(Disjoint<'a, bf16>),
}

impl<'a> Output<'a> {
    pub(crate) fn new<C: Element>(c: &'a mut [C]) -> Self {
        match C::DTYPE {
            DType::F32 => Self::F32(Disjoint::new(bytemuck::cast_slice_mut(c))),
            DType::Bf16 => Self::Bf16(Disjoint::new(bytemuck::cast_slice_mut(c))),
        }
    }
    /// The first element.
    ///
    /// # Panics
    /// If the elements are not stored as X.
    #[inline(always)]
    pub(super) fn start<X: Element>(self) -> *mut X {
        match (self, X::DTYPE) {
            (Self::F32(c), DType::F32) => c.ptr(0).cast(),
            (Self::Bf16(c), DType::Bf16) => c.ptr(0).cast(),
            _ => panic!("a matrix of an epilogue is stored as C is"),
        }
    }
    /// `count` <= LANES elements from `start` on; zeros in the other lanes.
    ///
    /// # Safety
    /// No other thread writes these `count` elements from `start` on.
    #[inline(always)]
    pub(super) unsafe fn load<S: Simd>(self, simd: S, start: usize, count: usize) -> S::F32 {
        // SAFETY: the caller's promise; no slice outlives this call.
        unsafe {
            match self {
                Self::F32(c) => load(simd, c.slice(start..start + count)),
                Self::Bf16(c) => load(simd, c.slice(start..start + count)),
            }
        }
    }
    /// Stores the first `count` lanes of `value` from `start` on.
    ///
    /// # Safety
    /// No other thread accesses these `count` elements from `start` on.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd>(self, simd: S, start: usize, count: usize, value: S::F32) {
        // SAFETY: the caller's promise; no slice outlives this call.
        unsafe {
            match self {
                Self::F32(c) => store(simd, c.slice(start..start + count), value),
                Self::Bf16(c) => store(simd, c.slice(start..start + count), value),
            }
        }
    }
    /// Stores `value` and returns it as rounded to storage.
    ///
    /// # Safety
    /// As [`store`](Self::store).
    #[inline(always)]
    pub(super) unsafe fn keep<S: Simd>(self, simd: S, start: usize, count: usize, value: S::F32) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe {
            self.store(simd, start, count, value);
            match self {
                Self::F32(_) => value,
                Self::Bf16(_) => self.load(simd, start, count),
            }
        }
    }
}
