//! An allocator that, while it is told to, gives every block pages of its own between pages without access.
//!
//! Addresses are never used twice, so a block that was freed is without access, too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

const PAGE: usize = 4096;
/// Bytes of address space for guarded blocks; memory is taken page by page.
const ARENA: usize = 1 << 42;

/// Where a block is within its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Its last byte is the last of a page (up to its alignment).
    End = 1,
    /// Its first byte is the first of a page.
    Start = 2,
}

impl Placement {
    pub(crate) const BOTH: [Self; 2] = [Self::End, Self::Start];
}

/// 0, or the placement of new blocks.
static PLACEMENT: AtomicUsize = AtomicUsize::new(0);
/// First address of the arena; 0 before there is one.
static ARENA_START: AtomicUsize = AtomicUsize::new(0);
/// Pages of the arena that were given out.
static USED: AtomicUsize = AtomicUsize::new(1);
/// What runs, for the message of a fault: start and length of a leaked string.
static CASE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static CASE_LEN: AtomicUsize = AtomicUsize::new(0);

/// Runs `work` with every block that it allocates, in any thread, beside pages without access. A fault ends the process with
/// SIGSEGV, after a line with `case`.
pub(crate) fn guarded<R>(case: &str, placement: Placement, work: impl FnOnce() -> R) -> R {
    static READY: Once = Once::new();
    READY.call_once(|| {
        reserve();
        report_faults();
    });
    let case = Box::leak(format!("guard page touched: {case}\n").into_boxed_str());
    CASE_LEN.store(0, Ordering::SeqCst);
    CASE.store(case.as_mut_ptr(), Ordering::SeqCst);
    CASE_LEN.store(case.len(), Ordering::SeqCst);
    PLACEMENT.store(placement as usize, Ordering::SeqCst);
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            PLACEMENT.store(0, Ordering::SeqCst);
        }
    }
    let _off = Off;
    work()
}

fn reserve() {
    // SAFETY: a new mapping at an address of the system's choice.
    let start = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(std::ptr::null_mut(), ARENA, libc::PROT_NONE, flags, -1, 0)
    };
    assert_ne!(start, libc::MAP_FAILED, "{ARENA} bytes of address space");
    ARENA_START.store(start as usize, Ordering::SeqCst);
}

/// On SIGSEGV: the case to stderr, then what would have happened without a handler.
fn report_faults() {
    extern "C" fn report(_: libc::c_int) {
        // SAFETY: `write` and `signal` may be called in a handler; CASE points to CASE_LEN bytes that are never freed.
        unsafe {
            libc::write(2, CASE.load(Ordering::SeqCst).cast(), CASE_LEN.load(Ordering::SeqCst));
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        }
    }
    // SAFETY: the handler does what handlers may do.
    unsafe { libc::signal(libc::SIGSEGV, report as extern "C" fn(libc::c_int) as libc::sighandler_t) };
}

/// Whether an address is in the arena.
fn is_guarded(p: *mut u8) -> bool {
    let start = ARENA_START.load(Ordering::Relaxed);
    start != 0 && (start..start + ARENA).contains(&(p as usize))
}

pub(crate) struct GuardPages;

// SAFETY: blocks of the arena are pages of their own, as many as the layout needs, at an address with its alignment; all
// others are the system's.
unsafe impl GlobalAlloc for GuardPages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let placement = PLACEMENT.load(Ordering::Relaxed);
        if placement == 0 || layout.align() > PAGE {
            // SAFETY: the caller's promise.
            return unsafe { System.alloc(layout) };
        }
        let bytes = layout.size().next_multiple_of(PAGE);
        // A page without access is left behind each block; the first page of the arena is one, too.
        let first = USED.fetch_add(bytes / PAGE + 1, Ordering::Relaxed);
        if (first + 1) * PAGE + bytes > ARENA {
            return std::ptr::null_mut();
        }
        let start = ARENA_START.load(Ordering::Relaxed) + first * PAGE;
        // SAFETY: these pages are of the arena, and nobody else was given them.
        if unsafe { libc::mprotect(start as *mut _, bytes, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return std::ptr::null_mut();
        }
        let offset = if placement == Placement::Start as usize { 0 } else { bytes - layout.size() };
        (start + offset / layout.align() * layout.align()) as *mut u8
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        if !is_guarded(p) {
            // SAFETY: the caller's promise: it came from `System`.
            return unsafe { System.dealloc(p, layout) };
        }
        let start = p as usize / PAGE * PAGE;
        let bytes = (p as usize + layout.size()).next_multiple_of(PAGE) - start;
        // SAFETY: the block's own pages, which nobody uses any more.
        unsafe {
            libc::madvise(start as *mut _, bytes, libc::MADV_DONTNEED);
            libc::mprotect(start as *mut _, bytes, libc::PROT_NONE);
        }
    }
}
