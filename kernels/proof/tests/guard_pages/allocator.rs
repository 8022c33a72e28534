//! Allocator that, when enabled, places every block on its own pages between pages without access.
//!
//! Freed blocks are filled with NaN and reused for blocks of as many pages: changing their access each time took four fifths
//! of the test's time. AddressSanitizer finds uses after free (`.ci/asan.sh`).

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

const PAGE: usize = 4096;
/// Bytes of address space for guarded blocks; memory is taken page by page.
const ARENA: usize = 1 << 42;

/// Position of a block within its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// The block ends at the end of a page (up to its alignment).
    End,
    /// The block starts at the start of a page.
    Start,
}

impl Placement {
    pub(crate) const BOTH: [Self; 2] = [Self::End, Self::Start];
}

/// Work with guarded blocks: 0, or the address of a leaked [`Work`].
static IN_EVERY_THREAD: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    /// The same for one thread; overrides [`IN_EVERY_THREAD`].
    static IN_THIS_THREAD: Cell<usize> = const { Cell::new(0) };
}

struct Work {
    placement: Placement,
    /// Message printed on a fault.
    message: String,
}

/// Work of the calling thread with guarded blocks, if any.
fn running() -> Option<&'static Work> {
    // A thread that is ending has no thread-local cells.
    let own = IN_THIS_THREAD.try_with(Cell::get).unwrap_or(0);
    let work = if own != 0 { own } else { IN_EVERY_THREAD.load(Ordering::SeqCst) };
    // SAFETY: 0, or the address of a `Work` that is never freed.
    unsafe { (work as *const Work).as_ref() }
}

/// First address of the arena; 0 before it is reserved.
static ARENA_START: AtomicUsize = AtomicUsize::new(0);
/// Allocated pages of the arena.
static USED: AtomicUsize = AtomicUsize::new(1);
/// Free lists of blocks of 1, 2, .. pages: address of the first block, which holds that of the next; 0 is none.
static FREED: Mutex<[usize; 256]> = Mutex::new([0; 256]);
/// Runs `work` with guard pages around every block that the calling thread allocates. A fault prints `case` and ends the
/// process with SIGSEGV.
pub(crate) fn guarded<R>(case: &str, placement: Placement, work: impl FnOnce() -> R) -> R {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            IN_THIS_THREAD.set(0);
        }
    }
    let address = leaked(case, placement);
    IN_THIS_THREAD.set(address);
    let _off = Off;
    work()
}

/// [`guarded`] for the blocks of every thread that does not run its own case. One caller at a time.
pub(crate) fn guarded_in_every_thread<R>(case: &str, placement: Placement, work: impl FnOnce() -> R) -> R {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            IN_EVERY_THREAD.store(0, Ordering::SeqCst);
        }
    }
    let address = leaked(case, placement);
    let before = IN_EVERY_THREAD.swap(address, Ordering::SeqCst);
    let _off = Off;
    assert_eq!(before, 0, "one caller at a time");
    work()
}

/// Address of a case's [`Work`]. The first call reserves the arena and installs the signal handler.
fn leaked(case: &str, placement: Placement) -> usize {
    static READY: Once = Once::new();
    READY.call_once(|| {
        reserve();
        report_faults();
    });
    Box::leak(Box::new(Work { placement, message: format!("guard page touched: {case}\n") })) as *const Work as usize
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

/// Installs a SIGSEGV handler that prints the case to stderr and restores the default action.
fn report_faults() {
    extern "C" fn report(_: libc::c_int) {
        let message = running().map_or("", |work| &work.message);
        // SAFETY: `write` and `signal` are async-signal-safe.
        unsafe {
            libc::write(2, message.as_ptr().cast(), message.len());
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        }
    }
    // SAFETY: the handler calls only async-signal-safe functions.
    unsafe { libc::signal(libc::SIGSEGV, report as extern "C" fn(libc::c_int) as libc::sighandler_t) };
}

/// Locks [`FREED`]. Nothing panics while it is locked.
fn freed() -> MutexGuard<'static, [usize; 256]> {
    FREED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates `bytes` (whole pages) with access, between pages without; 0 if the arena is exhausted.
fn take(bytes: usize) -> usize {
    let pages = bytes / PAGE;
    if let Some(head) = freed().get_mut(pages - 1).filter(|head| **head != 0) {
        let start = *head;
        // SAFETY: a freed block of the arena, whose first word is the address of the next.
        *head = unsafe { *(start as *const usize) };
        return start;
    }
    // A page without access follows each block; the first page of the arena has none either.
    let first = USED.fetch_add(pages + 1, Ordering::Relaxed);
    if (first + 1) * PAGE + bytes > ARENA {
        return 0;
    }
    let start = ARENA_START.load(Ordering::Relaxed) + first * PAGE;
    // SAFETY: these pages belong to the arena and are allocated once.
    let refused = unsafe { libc::mprotect(start as *mut _, bytes, libc::PROT_READ | libc::PROT_WRITE) } != 0;
    if refused { 0 } else { start }
}

/// True if an address is in the arena.
fn is_guarded(p: *mut u8) -> bool {
    let start = ARENA_START.load(Ordering::Relaxed);
    start != 0 && (start..start + ARENA).contains(&(p as usize))
}

pub(crate) struct GuardPages;

// SAFETY: a block of the arena has its own pages, as many as the layout needs, at an address with its alignment; all other
// blocks are the system's. The lock neither allocates nor panics.
unsafe impl GlobalAlloc for GuardPages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(work) = running().filter(|_| layout.align() <= PAGE) else {
            // SAFETY: the caller's promise.
            return unsafe { System.alloc(layout) };
        };
        let bytes = layout.size().next_multiple_of(PAGE);
        let start = take(bytes);
        if start == 0 {
            return std::ptr::null_mut();
        }
        let offset = if work.placement == Placement::Start { 0 } else { bytes - layout.size() };
        (start + offset / layout.align() * layout.align()) as *mut u8
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        if !is_guarded(p) {
            // SAFETY: the caller's promise: the block came from `System`.
            return unsafe { System.dealloc(p, layout) };
        }
        let start = p as usize / PAGE * PAGE;
        let bytes = (p as usize + layout.size()).next_multiple_of(PAGE) - start;
        // SAFETY: the block's own pages, which are no longer in use.
        unsafe {
            match freed().get_mut(bytes / PAGE - 1) {
                Some(head) => {
                    // All bits set: NaN in f32 and bf16.
                    std::ptr::write_bytes(start as *mut u8, 0xFF, bytes);
                    *(start as *mut usize) = *head;
                    *head = start;
                }
                None => {
                    libc::madvise(start as *mut _, bytes, libc::MADV_DONTNEED);
                    libc::mprotect(start as *mut _, bytes, libc::PROT_NONE);
                }
            }
        }
    }
}
