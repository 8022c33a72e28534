//! Slices of a sweep over the columns of a row, and the columns that a step loads and stores.
//!
//! A step computes [`Four`] vectors. Near the end of a row its inputs are four copies of one vector.
#![allow(unsafe_code)]

use crate::{
    Element,
    simd::{Simd, WIDTH, Wide, prefetch},
};

/// Four vectors of neighboring columns.
pub type Four<S> = [<S as Simd>::F32; WIDTH];

/// Prefetch distance in bytes for rows in L3 or memory: the hardware prefetcher stops at page boundaries.
const AHEAD: usize = 2048;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Columns of a step.
pub trait At: Copy {
    /// Loads the columns.
    ///
    /// # Safety
    /// The columns are within `x`.
    unsafe fn load<S: Simd, X: Element>(self, simd: S, x: &[X]) -> Four<S>;
    /// Stores the columns.
    ///
    /// # Safety
    /// The columns are within `x`.
    unsafe fn store<S: Simd, X: Element>(self, simd: S, x: &mut [X], new: Four<S>);
    /// `new` in the lanes of columns that no earlier step had, else `old`.
    fn first_time<S: Simd>(self, simd: S, new: Four<S>, old: Four<S>) -> Four<S>;
}

/// Four vectors from a column on.
#[derive(Clone, Copy)]
pub(super) struct Whole(pub(super) usize);

/// One vector from a column on.
#[derive(Clone, Copy)]
pub(super) struct One(pub(super) usize);

/// The vector from column `first` on, of which an earlier step had those below `done`. Faster than a [`Partial`] one, which goes
/// through memory in bf16.
#[derive(Clone, Copy)]
pub(super) struct Overlapping {
    pub(super) first: usize,
    pub(super) done: usize,
}

/// Fewer columns than a vector has lanes, `count` from `first` on.
#[derive(Clone, Copy)]
pub(super) struct Partial {
    pub(super) first: usize,
    pub(super) count: usize,
}

impl At for Whole {
    #[inline(always)]
    unsafe fn load<S: Simd, X: Element>(self, simd: S, x: &[X]) -> Four<S> {
        // SAFETY: the caller's promise.
        unsafe { X::load_ptr(Wide(simd), x.as_ptr().add(self.0)) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd, X: Element>(self, simd: S, x: &mut [X], new: Four<S>) {
        // SAFETY: the caller's promise.
        unsafe { X::store_ptr(Wide(simd), x.as_mut_ptr().add(self.0), new) };
    }
    #[inline(always)]
    fn first_time<S: Simd>(self, _: S, new: Four<S>, _: Four<S>) -> Four<S> {
        new
    }
}

impl At for One {
    #[inline(always)]
    unsafe fn load<S: Simd, X: Element>(self, simd: S, x: &[X]) -> Four<S> {
        // SAFETY: the caller's promise.
        [unsafe { X::load_ptr(simd, x.as_ptr().add(self.0)) }; WIDTH]
    }
    #[inline(always)]
    unsafe fn store<S: Simd, X: Element>(self, simd: S, x: &mut [X], new: Four<S>) {
        // SAFETY: the caller's promise.
        unsafe { X::store_ptr(simd, x.as_mut_ptr().add(self.0), new[0]) };
    }
    #[inline(always)]
    fn first_time<S: Simd>(self, _: S, new: Four<S>, _: Four<S>) -> Four<S> {
        new
    }
}

impl At for Overlapping {
    #[inline(always)]
    unsafe fn load<S: Simd, X: Element>(self, simd: S, x: &[X]) -> Four<S> {
        // SAFETY: the caller's promise.
        unsafe { One(self.first).load(simd, x) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd, X: Element>(self, simd: S, x: &mut [X], new: Four<S>) {
        // SAFETY: the caller's promise.
        unsafe { One(self.first).store(simd, x, new) };
    }
    #[inline(always)]
    fn first_time<S: Simd>(self, simd: S, new: Four<S>, old: Four<S>) -> Four<S> {
        [simd.select(simd.first(self.done - self.first), old[0], new[0]); WIDTH]
    }
}

impl At for Partial {
    #[inline(always)]
    unsafe fn load<S: Simd, X: Element>(self, simd: S, x: &[X]) -> Four<S> {
        [X::load_partial(simd, &x[self.first..][..self.count]); WIDTH]
    }
    #[inline(always)]
    unsafe fn store<S: Simd, X: Element>(self, simd: S, x: &mut [X], new: Four<S>) {
        X::store_partial(simd, &mut x[self.first..][..self.count], new[0]);
    }
    #[inline(always)]
    fn first_time<S: Simd>(self, simd: S, new: Four<S>, old: Four<S>) -> Four<S> {
        [simd.select(simd.first(self.count), new[0], old[0]); WIDTH]
    }
}

/// Inputs of a sweep: slices of one type, [`Cached`] slices, a pair of inputs, or none (`()`).
pub trait Read<S: Simd> {
    /// The vectors of a step: an array, or a pair of arrays.
    type Vectors: Copy;
    /// Returns true if every slice has at least `columns` elements.
    fn reaches(&self, columns: usize) -> bool;
    /// Loads the columns of a step.
    ///
    /// # Safety
    /// They are within each slice.
    unsafe fn load(&self, simd: S, at: impl At) -> Self::Vectors;
    /// Prefetches the columns that are read some steps later.
    fn prefetch(&self, first: usize, columns: usize);
}

/// Outputs of a sweep: slices of one type, or none (`()`).
pub trait Write<S: Simd> {
    /// The vectors of a step.
    type Vectors: Copy;
    /// Returns true if every slice has at least `columns` elements.
    fn reaches(&self, columns: usize) -> bool;
    /// Stores the columns of a step.
    ///
    /// # Safety
    /// They are within each slice.
    unsafe fn store(&mut self, simd: S, at: impl At, new: Self::Vectors);
    /// Prefetches the columns that are written some steps later.
    fn prefetch(&self, first: usize, columns: usize);
}

/// Slices of one type that a sweep updates in place, each element once, or none (`()`).
pub trait Update<S: Simd>: Write<S> {
    /// Loads the columns of a step.
    ///
    /// # Safety
    /// They are within each slice.
    unsafe fn load(&self, simd: S, at: impl At) -> Self::Vectors;
    /// `new` in the lanes of columns that no earlier step had, else `old`.
    fn first_time(simd: S, at: impl At, new: Self::Vectors, old: Self::Vectors) -> Self::Vectors;
}

/// Slices that are already cached and are not prefetched.
#[derive(Clone, Copy, Debug)]
pub struct Cached<T>(pub T);

/// Prefetches the cache lines of `columns` elements, some iterations ahead of `p`; also past the end of the row.
#[inline(always)]
fn prefetch_ahead<X>(p: *const X, columns: usize) {
    for line in lines(p, columns) {
        prefetch(line.wrapping_add(AHEAD));
    }
}

/// Cache lines of the columns of one iteration from `p` on.
#[inline(always)]
pub(super) fn lines<X>(p: *const X, columns: usize) -> impl Iterator<Item = *const u8> {
    (0..columns * size_of::<X>()).step_by(LINE).map(move |line| p.cast::<u8>().wrapping_add(line))
}

impl<S: Simd, X: Element, const N: usize> Read<S> for [&[X]; N] {
    type Vectors = [Four<S>; N];
    #[inline(always)]
    fn reaches(&self, columns: usize) -> bool {
        self.iter().all(|x| x.len() >= columns)
    }
    #[inline(always)]
    unsafe fn load(&self, simd: S, at: impl At) -> Self::Vectors {
        // Not `from_fn`: LLVM would then compute the four vectors one after another (GELU: 1.2 times as long).
        let mut vectors = [[simd.zero(); WIDTH]; N];
        for (vector, x) in vectors.iter_mut().zip(self) {
            // SAFETY: the caller's promise.
            *vector = unsafe { at.load(simd, x) };
        }
        vectors
    }
    #[inline(always)]
    fn prefetch(&self, first: usize, columns: usize) {
        for x in self {
            prefetch_ahead(x.as_ptr().wrapping_add(first), columns);
        }
    }
}

impl<S: Simd, R: Read<S>> Read<S> for Cached<R> {
    type Vectors = R::Vectors;
    #[inline(always)]
    fn reaches(&self, columns: usize) -> bool {
        self.0.reaches(columns)
    }
    #[inline(always)]
    unsafe fn load(&self, simd: S, at: impl At) -> Self::Vectors {
        // SAFETY: the caller's promise.
        unsafe { self.0.load(simd, at) }
    }
    #[inline(always)]
    fn prefetch(&self, _: usize, _: usize) {}
}

impl<S: Simd, A: Read<S>, B: Read<S>> Read<S> for (A, B) {
    type Vectors = (A::Vectors, B::Vectors);
    #[inline(always)]
    fn reaches(&self, columns: usize) -> bool {
        self.0.reaches(columns) && self.1.reaches(columns)
    }
    #[inline(always)]
    unsafe fn load(&self, simd: S, at: impl At) -> Self::Vectors {
        // SAFETY: the caller's promise.
        unsafe { (self.0.load(simd, at), self.1.load(simd, at)) }
    }
    #[inline(always)]
    fn prefetch(&self, first: usize, columns: usize) {
        self.0.prefetch(first, columns);
        self.1.prefetch(first, columns);
    }
}

impl<S: Simd> Read<S> for () {
    type Vectors = ();
    #[inline(always)]
    fn reaches(&self, _: usize) -> bool {
        true
    }
    #[inline(always)]
    unsafe fn load(&self, _: S, _: impl At) {}
    #[inline(always)]
    fn prefetch(&self, _: usize, _: usize) {}
}

impl<S: Simd, X: Element, const N: usize> Write<S> for [&mut [X]; N] {
    type Vectors = [Four<S>; N];
    #[inline(always)]
    fn reaches(&self, columns: usize) -> bool {
        self.iter().all(|y| y.len() >= columns)
    }
    #[inline(always)]
    unsafe fn store(&mut self, simd: S, at: impl At, new: Self::Vectors) {
        for (y, &new) in self.iter_mut().zip(&new) {
            // SAFETY: the caller's promise.
            unsafe { at.store(simd, y, new) };
        }
    }
    #[inline(always)]
    fn prefetch(&self, first: usize, columns: usize) {
        for y in self {
            prefetch_ahead(y.as_ptr().wrapping_add(first), columns);
        }
    }
}

impl<S: Simd, X: Element, const N: usize> Update<S> for [&mut [X]; N] {
    #[inline(always)]
    unsafe fn load(&self, simd: S, at: impl At) -> Self::Vectors {
        // Not `from_fn`: LLVM would then compute the four vectors one after another (GELU: 1.2 times as long).
        let mut vectors = [[simd.zero(); WIDTH]; N];
        for (vector, x) in vectors.iter_mut().zip(self) {
            // SAFETY: the caller's promise.
            *vector = unsafe { at.load(simd, x) };
        }
        vectors
    }
    #[inline(always)]
    fn first_time(simd: S, at: impl At, new: Self::Vectors, old: Self::Vectors) -> Self::Vectors {
        // Not `from_fn`: its closure stayed a call, compiled without the instructions.
        let mut kept = new;
        for (i, kept) in kept.iter_mut().enumerate() {
            *kept = at.first_time(simd, new[i], old[i]);
        }
        kept
    }
}

impl<S: Simd> Write<S> for () {
    type Vectors = ();
    #[inline(always)]
    fn reaches(&self, _: usize) -> bool {
        true
    }
    #[inline(always)]
    unsafe fn store(&mut self, _: S, _: impl At, (): ()) {}
    #[inline(always)]
    fn prefetch(&self, _: usize, _: usize) {}
}

impl<S: Simd> Update<S> for () {
    #[inline(always)]
    unsafe fn load(&self, _: S, _: impl At) {}
    #[inline(always)]
    fn first_time(_: S, _: impl At, (): (), (): ()) {}
}
