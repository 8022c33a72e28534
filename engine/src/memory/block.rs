//! A block of zeroed bytes, aligned to a cache line.
#![allow(unsafe_code)]
use super::allocator::fallible;
use crate::error::{EngineError, Result};
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ops::Range,
    ptr::NonNull,
};

/// Alignment of every block and of every tensor in it: a cache line, and the widest vector.
pub(crate) const ALIGN: usize = 64;

/// Owned bytes.
#[derive(Debug)]
pub(super) struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a Block owns plain bytes; which thread frees or reads them does not matter. Who may write where is the
// promise of those who call `slice_mut`.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// `bytes` zero bytes.
    pub(super) fn zeroed(bytes: usize) -> Result<Self> {
        let layout = Layout::from_size_align(bytes, ALIGN).map_err(|_| EngineError::Memory { bytes })?;
        if bytes == 0 {
            return Ok(Self { start: NonNull::<u64>::dangling().cast(), layout });
        }
        // SAFETY: the size is not zero.
        let start = fallible(|| unsafe { alloc_zeroed(layout) });
        Ok(Self { start: NonNull::new(start).ok_or(EngineError::Memory { bytes })?, layout })
    }

    pub(super) fn len(&self) -> usize {
        self.layout.size()
    }

    /// The bytes in `range`. Panics beyond the end.
    ///
    /// # Safety
    /// Nobody writes there while the slice is alive.
    pub(super) unsafe fn slice(&self, range: Range<usize>) -> &[u8] {
        let len = self.check(&range);
        // SAFETY: the range lies in the block, which was zeroed, so the bytes are initialized; that nobody writes is
        // the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at(range.start), len) }
    }

    /// The bytes in `range`, to be written. Panics beyond the end.
    ///
    /// # Safety
    /// No other slice that overlaps `range` is alive while this one is.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [u8] {
        let len = self.check(&range);
        // SAFETY: as above; exclusivity is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(range.start), len) }
    }

    fn check(&self, range: &Range<usize>) -> usize {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of a block of {}", self.len());
        range.end - range.start
    }

    fn at(&self, offset: usize) -> *mut u8 {
        if self.len() == 0 {
            // An empty slice needs an aligned address, no memory.
            return std::ptr::without_provenance_mut(ALIGN);
        }
        // SAFETY: `check` has seen that the offset is at most the length.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: allocated by `zeroed` with this layout, freed once.
            unsafe { dealloc(self.start.as_ptr(), self.layout) }
        }
    }
}
