//! Allocator that counts allocations while it is armed.
//!
//! A warm training step must not allocate 4 KiB or more on the heap. A test uses [`Counting`] as its global allocator, arms
//! it around a step and reads the counts of all threads.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

/// Minimum size in bytes of an allocation that [`arm`] counts.
pub const LARGE: usize = 4096;

static LEAST: AtomicUsize = AtomicUsize::new(LARGE);
static ARMED: AtomicBool = AtomicBool::new(false);
static TRACED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system allocator with counters.
#[derive(Debug)]
pub struct Counting;

fn note(size: usize) {
    if size >= LEAST.load(SeqCst) && ARMED.load(SeqCst) {
        COUNT.fetch_add(1, SeqCst);
        LARGEST.fetch_max(size, SeqCst);
        if TRACED.load(SeqCst) {
            ARMED.store(false, SeqCst);
            eprintln!("{size} bytes at\n{}", std::backtrace::Backtrace::force_capture());
            ARMED.store(true, SeqCst);
        }
    }
    PEAK.fetch_max(LIVE.fetch_add(size, SeqCst) + size, SeqCst);
}

// SAFETY: every call is passed to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), SeqCst);
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size);
        LIVE.fetch_sub(layout.size(), SeqCst);
        // SAFETY: guaranteed by the caller.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

/// Number of large allocations during `work`, and the largest in bytes. Only one call at a time per process.
pub fn large_requests(work: impl FnOnce()) -> (usize, usize) {
    arm();
    work();
    disarm()
}

/// Resets the counts and starts counting large allocations.
pub fn arm() {
    arm_from(LARGE);
}

/// Resets the counts and starts counting allocations of at least `least` bytes.
pub fn arm_from(least: usize) {
    LEAST.store(least, SeqCst);
    COUNT.store(0, SeqCst);
    LARGEST.store(0, SeqCst);
    // Read here: it allocates.
    TRACED.store(std::env::var_os("ALBERT_TRACE_ALLOCATIONS").is_some(), SeqCst);
    ARMED.store(true, SeqCst);
}

/// Stops counting; returns the number of counted allocations since `arm`, and the largest in bytes.
pub fn disarm() -> (usize, usize) {
    ARMED.store(false, SeqCst);
    (COUNT.load(SeqCst), LARGEST.load(SeqCst))
}

/// Live bytes, and their peak since the start of the process or [`reset_peak`].
pub fn live_and_peak() -> (usize, usize) {
    (LIVE.load(SeqCst), PEAK.load(SeqCst))
}

/// Resets the peak to the live bytes.
pub fn reset_peak() {
    PEAK.store(LIVE.load(SeqCst), SeqCst);
}
