//! An MPI library with MPICH's ABI in which the second of two ranks is a mirror: this rank receives the messages that it
//! sends. Compiled by tests (`rustc --crate-type cdylib`).
//!
//! With `MIRROR_BLOCKS=NAME:N` the N-th call of a function never returns, as in a library that waits for a stopped process.

use std::{
    ffi::{c_int, c_void},
    slice,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

/// Messages that were sent and not yet received, and expected messages: address, length and request.
static STATE: Mutex<(Vec<Vec<u8>>, Vec<(usize, usize, c_int)>)> = Mutex::new((Vec::new(), Vec::new()));

/// Request of a message that is sent.
const SENT: c_int = 1;

/// A rank has only a few messages in transit, so numbers may repeat.
static REQUESTS: AtomicUsize = AtomicUsize::new(2);

fn called(name: &str, calls: &AtomicUsize) {
    let number = calls.fetch_add(1, SeqCst) + 1;
    while std::env::var("MIRROR_BLOCKS").is_ok_and(|blocks| blocks == format!("{name}:{number}")) {
        thread::park();
    }
}

#[unsafe(no_mangle)]
extern "C" fn MPI_Init_thread(_: *mut c_int, _: *mut c_void, wanted: c_int, provided: *mut c_int) -> c_int {
    // SAFETY: the caller's number.
    unsafe { *provided = wanted };
    0
}

#[unsafe(no_mangle)]
extern "C" fn MPI_Comm_rank(_: c_int, rank: *mut c_int) -> c_int {
    // SAFETY: the caller's number.
    unsafe { *rank = 0 };
    0
}

#[unsafe(no_mangle)]
extern "C" fn MPI_Comm_size(_: c_int, size: *mut c_int) -> c_int {
    // SAFETY: the caller's number.
    unsafe { *size = 2 };
    0
}

#[unsafe(no_mangle)]
extern "C" fn MPI_Isend(
    bytes: *const u8,
    count: c_int,
    _: c_int,
    _: c_int,
    _: c_int,
    _: c_int,
    request: *mut c_int,
) -> c_int {
    // SAFETY: the caller's bytes and request.
    unsafe {
        STATE.lock().unwrap().0.push(slice::from_raw_parts(bytes, count as usize).to_vec());
        *request = SENT;
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn MPI_Irecv(
    bytes: *mut u8,
    count: c_int,
    _: c_int,
    _: c_int,
    _: c_int,
    _: c_int,
    request: *mut c_int,
) -> c_int {
    let number = 2 + REQUESTS.fetch_add(1, SeqCst) as c_int % 1000;
    STATE.lock().unwrap().1.push((bytes.addr(), count as usize, number));
    bytes.expose_provenance();
    // SAFETY: the caller's request.
    unsafe { *request = number };
    0
}

#[unsafe(no_mangle)]
extern "C" fn MPI_Test(request: *mut c_int, done: *mut c_int, _: *mut c_void) -> c_int {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    called("MPI_Test", &CALLS);
    let (sent, expected) = &mut *STATE.lock().unwrap();
    // SAFETY: the caller's request and number.
    let (request, done) = unsafe { (&mut *request, &mut *done) };
    *done = 1;
    if *request != SENT {
        // Messages arrive in the order in which they are expected.
        if sent.is_empty() || expected[0].2 != *request {
            *done = 0;
            return 0;
        }
        let ((address, count, _), message) = (expected.remove(0), sent.remove(0));
        assert_eq!(message.len(), count);
        // SAFETY: the caller does not access the buffer of `count` bytes until this call reports completion.
        unsafe { slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), count) }
            .copy_from_slice(&message);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn MPI_Allreduce(_: *const c_void, _: *mut c_void, _: c_int, _: c_int, _: c_int, _: c_int) -> c_int {
    1
}

#[unsafe(no_mangle)]
extern "C" fn MPI_Abort(_: c_int, code: c_int) -> c_int {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    called("MPI_Abort", &CALLS);
    std::process::exit(code)
}

#[unsafe(no_mangle)]
extern "C" fn MPI_Finalize() -> c_int {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    called("MPI_Finalize", &CALLS);
    0
}
