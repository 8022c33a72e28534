//! An allocator that counts large requests while it is armed.
//!
//! A training step must not ask the heap for 4 KiB or more once it is warm. A test makes [`Counting`] its global
//! allocator, arms it around a step and reads what was asked for, on any thread.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

/// Requests of at least this many bytes are counted.
pub const LARGE: usize = 4096;

static ARMED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counting.
#[derive(Debug)]
pub struct Counting;

fn note(size: usize) {
    if size >= LARGE && ARMED.load(SeqCst) {
        COUNT.fetch_add(1, SeqCst);
        LARGEST.fetch_max(size, SeqCst);
        if std::env::var_os("ALBERT_TRACE_ALLOCATIONS").is_some() {
            ARMED.store(false, SeqCst);
            eprintln!("{size} bytes at\n{}", std::backtrace::Backtrace::force_capture());
            ARMED.store(true, SeqCst);
        }
    }
    PEAK.fetch_max(LIVE.fetch_add(size, SeqCst) + size, SeqCst);
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), SeqCst);
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size);
        LIVE.fetch_sub(layout.size(), SeqCst);
        // SAFETY: the caller's promise is the same.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

/// Large requests during `work`: how many, and the largest in bytes. One at a time in a process.
pub fn large_requests(work: impl FnOnce()) -> (usize, usize) {
    arm();
    work();
    disarm()
}

/// Counts large requests anew from now on.
pub fn arm() {
    COUNT.store(0, SeqCst);
    LARGEST.store(0, SeqCst);
    ARMED.store(true, SeqCst);
}

/// Stops counting; large requests since [`arm`]: how many, and the largest in bytes.
pub fn disarm() -> (usize, usize) {
    ARMED.store(false, SeqCst);
    (COUNT.load(SeqCst), LARGEST.load(SeqCst))
}

/// Bytes allocated and not freed now, and the most since the process began or [`reset_peak`].
pub fn live_and_peak() -> (usize, usize) {
    (LIVE.load(SeqCst), PEAK.load(SeqCst))
}

/// Lets the peak begin anew at what is live now.
pub fn reset_peak() {
    PEAK.store(LIVE.load(SeqCst), SeqCst);
}
