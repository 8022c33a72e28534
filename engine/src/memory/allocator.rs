//! Global allocator of programs: memory that the system refuses ends the process with a sentence and exit code 1.
//!
//! std answers a refused allocation with SIGABRT, a core file and no word on what to do, and its `set_alloc_error_hook` is
//! unstable. Tensors are not concerned, their requests are errors ([`EngineError::Memory`](crate::EngineError::Memory)); this is
//! for the many small requests of strings, lists and libraries, which cannot fail otherwise.
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: engine::memory::ProgramAllocator = engine::memory::ProgramAllocator;
//! ```
//!
//! Files are left as after a kill: outputs are whole or not there (see [`crate::io`]).
#![allow(unsafe_code)]
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    io::Write,
};

thread_local! {
    /// True while this thread is in [`fallible`].
    static FALLIBLE: Cell<bool> = const { Cell::new(false) };
}

/// Calls `allocate`; a refused request is null and does not end the process.
pub(super) fn fallible<R>(allocate: impl FnOnce() -> R) -> R {
    let before = FALLIBLE.replace(true);
    let result = allocate();
    FALLIBLE.set(before);
    result
}

/// The system's allocator, which ends the process if there is no memory. See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgramAllocator;

// SAFETY: every call is passed to `System` unchanged, and what it gives is given back unchanged; the check in between does
// not allocate, does not unwind and touches a thread-local value without a destructor.
unsafe impl GlobalAlloc for ProgramAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the rules of `GlobalAlloc::alloc`, which are those of `System`.
        expect_some(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        expect_some(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as above; `block` came from `System` through this allocator.
        expect_some(unsafe { System.realloc(block, layout, bytes) }, bytes)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

fn expect_some(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() && !FALLIBLE.get() {
        out_of_memory(bytes);
    }
    block
}

#[cold]
fn out_of_memory(bytes: usize) -> ! {
    // Nothing here may allocate: the sentence is put together on the stack.
    let mut text = [0u8; 256];
    let mut rest = &mut text[..];
    let _ = writeln!(
        rest,
        "error: cannot allocate {bytes} bytes; free memory or raise the limit (ulimit -v), give smaller batches, or set \
         ALBERT_THREADS to fewer threads"
    );
    let left = rest.len();
    let length = text.len() - left;
    // SAFETY: `length` bytes of `text` are initialized, and `write` keeps no pointer. `_exit` runs no destructor and no
    // handler, which could allocate.
    unsafe {
        libc::write(2, text.as_ptr().cast(), length);
        libc::_exit(1)
    }
}
