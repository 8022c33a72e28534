//! Library with NCCL's interface for simulated GPUs; messages are files in a folder. Not part of the workspace: tests compile
//! it with `rustc --crate-type cdylib` and the folder in the variable `FAKE_NCCL_FOLDER`.
//!
//! The stream of a simulated GPU is the address of an `AtomicU64` that counts its pending work, and its memory is the host's.
//! As in NCCL, the work of a group is done by another thread after `ncclGroupEnd` has returned.
//!
//! Files in the folder:
//!
//! | file | content |
//! |---|---|
//! | `fault` | a fault from the table below; none if the file is missing |
//! | `same_id` | if it exists, all unique ids are equal, as with `NCCL_COMM_ID` |
//! | `calls` | a line for each rank that is initialized, destroyed or aborted, and for each call that breaks a rule |
//! | `ID.FROM.TO.N` | message N of a rank to another |
//!
//! | fault | |
//! |---|---|
//! | `version V` | version V, in NCCL's encoding |
//! | `refuse R NAME` | the call NAME of rank R fails |
//! | `silent R N` | rank R sends and receives nothing, starting with its group N |
//! | `error R N` | group N of rank R ends in an asynchronous error |
//! | `stuck R N` | the end of group N of rank R waits for the abort |
//! | `corrupt R N` | group N of rank R is received with a wrong byte |
#![allow(nonstandard_style)]

use std::{
    cell::RefCell,
    ffi::{c_char, c_int, c_void},
    fs::{self, OpenOptions},
    io::Write,
    path::PathBuf,
    process,
    ptr::with_exposed_provenance,
    slice,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

const FOLDER: &str = env!("FAKE_NCCL_FOLDER");
/// The default of an error.
const SUCCESS: c_int = 0;
const SYSTEM: c_int = 2;
const ARGUMENT: c_int = 4;
const USAGE: c_int = 5;
const REMOTE: c_int = 6;
/// Pause between two checks for a file or an abort, and before the work of a group.
const PAUSE: Duration = Duration::from_millis(1);

/// Marks the library as usable by simulated GPUs.
#[unsafe(no_mangle)]
pub static albert_simulated_gpu: u8 = 1;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

#[derive(Default)]
struct Rank {
    id: String,
    rank: usize,
    size: usize,
    groups: AtomicU64,
    /// Number of messages to and from each rank.
    sent: Mutex<Vec<u64>>,
    received: Mutex<Vec<u64>>,
    error: AtomicI32,
    aborted: AtomicBool,
    /// Number of groups that are not done.
    running: AtomicU64,
}

#[derive(Clone)]
struct Operation {
    rank: Arc<Rank>,
    is_send: bool,
    address: usize,
    bytes: usize,
    peer: usize,
    stream: usize,
}

/// Communicators by handle, which is a number.
static RANKS: Mutex<Vec<(usize, Arc<Rank>)>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static GROUP: RefCell<Option<Vec<Operation>>> = const { RefCell::new(None) };
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(FOLDER).join(name)
}

fn log(line: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(path("calls")).expect("the folder is writable");
    file.write_all(format!("{line}\n").as_bytes()).expect("the folder is writable");
}

/// Logs a call that breaks a rule.
fn misuse(line: &str) -> c_int {
    log(&format!("misuse: {line}"));
    USAGE
}

fn fault() -> Vec<String> {
    fs::read_to_string(path("fault")).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

impl Rank {
    /// True if the fault `name` applies to this rank and group `group`.
    fn has(&self, name: &str, group: u64, later: bool) -> bool {
        let fault = fault();
        let number = |i: usize| fault.get(i).and_then(|word| word.parse::<u64>().ok());
        let is_group = number(2).is_some_and(|n| n == group || later && group > n);
        fault.first().is_some_and(|word| word == name) && number(1) == Some(self.rank as u64) && is_group
    }

    fn refuses(&self, call: &str) -> bool {
        fault() == ["refuse", &self.rank.to_string(), call]
    }

    fn message(&self, from: usize, to: usize, number: u64) -> PathBuf {
        path(&format!("{}.{from}.{to}.{number}", self.id))
    }

    fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn rank_of(comm: *mut c_void) -> Option<Arc<Rank>> {
    locked(&RANKS).iter().find(|(handle, _)| *handle == comm.addr()).map(|(_, rank)| Arc::clone(rank))
}

/// Writes a result.
///
/// # Safety
/// `place` is null or points to a value.
unsafe fn put<T>(place: *mut T, value: T) -> c_int {
    // SAFETY: guaranteed by the caller.
    match unsafe { place.as_mut() } {
        Some(place) => *place = value,
        None => return ARGUMENT,
    }
    SUCCESS
}

fn remove(comm: *mut c_void, what: &str) -> Option<Arc<Rank>> {
    let mut ranks = locked(&RANKS);
    let at = ranks.iter().position(|(handle, _)| *handle == comm.addr())?;
    let rank = ranks.remove(at).1;
    log(&format!("{what} {}", rank.rank));
    let _ = fs::remove_file(path(&format!("{}.rank{}", rank.id, rank.rank)));
    Some(rank)
}

/// # Safety
/// `version` is null or points to an integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    let fault = fault();
    let found =
        if fault.first().is_some_and(|word| word == "version") { fault[1].parse().expect("a number") } else { 22_703 };
    // SAFETY: guaranteed by the caller.
    unsafe { put(version, found) }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let text = match code {
        SYSTEM => c"fake system error",
        ARGUMENT => c"fake invalid argument",
        USAGE => c"fake invalid usage",
        REMOTE => c"fake remote error",
        _ => c"fake error",
    };
    text.as_ptr()
}

/// # Safety
/// `id` is null or points to an id.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    // SAFETY: guaranteed by the caller.
    let Some(id) = (unsafe { id.as_mut() }) else { return ARGUMENT };
    let text = match std::env::var("NCCL_COMM_ID") {
        Ok(address) => address.replace([':', '/', '.'], "-"),
        Err(_) if path("same_id").exists() => "same".to_owned(),
        Err(_) => format!("{}-{}", process::id(), NEXT.fetch_add(1, Ordering::SeqCst)),
    };
    id.0.fill(0);
    id.0[..text.len()].copy_from_slice(text.as_bytes());
    SUCCESS
}

/// # Safety
/// `comm` is null or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(comm: *mut *mut c_void, size: c_int, id: UniqueId, rank: c_int) -> c_int {
    if rank < 0 || rank >= size {
        return misuse(&format!("rank {rank} of {size}"));
    }
    let end = id.0.iter().position(|byte| *byte == 0).unwrap_or(128);
    let id = String::from_utf8_lossy(&id.0[..end]).into_owned();
    let (rank, size) = (rank as usize, size as usize);
    let mine = path(&format!("{id}.rank{rank}"));
    if mine.exists() {
        return misuse(&format!("two ranks {rank} of {id}"));
    }
    let counts = || Mutex::new(vec![0; size]);
    let own = Rank { id: id.clone(), rank, size, sent: counts(), received: counts(), ..Rank::default() };
    if own.refuses("ncclCommInitRank") {
        return SYSTEM;
    }
    fs::write(&mine, "").expect("the folder is writable");
    while (0..size).any(|rank| !path(&format!("{id}.rank{rank}")).exists()) {
        thread::sleep(PAUSE);
    }
    log(&format!("init {rank} of {size}"));
    let handle = NEXT.fetch_add(1, Ordering::SeqCst) as usize * 64;
    locked(&RANKS).push((handle, Arc::new(own)));
    // SAFETY: guaranteed by the caller. The handle is a number, which is never dereferenced.
    unsafe { put(comm, std::ptr::without_provenance_mut(handle)) }
}

macro_rules! operation {
    ($call:ident, $pointer:ty, $is_send:expr) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $call(
            address: $pointer,
            bytes: usize,
            kind: c_int,
            peer: c_int,
            comm: *mut c_void,
            stream: *mut c_void,
        ) -> c_int {
            let (call, peer) = (stringify!($call), peer as usize);
            let (address, stream) = (address.expose_provenance(), stream.expose_provenance());
            let Some(rank) = rank_of(comm) else { return misuse(&format!("{call} without a communicator")) };
            if address == 0 || bytes == 0 || kind != 0 || peer >= rank.size || peer == rank.rank || stream == 0 {
                let what = format!("{bytes} elements of kind {kind} at {address:#x} with {peer} on {stream:#x}");
                return misuse(&format!("{call} of {what}"));
            }
            if rank.refuses(call) {
                return ARGUMENT;
            }
            GROUP.with_borrow_mut(|group| match group {
                Some(group) => {
                    group.push(Operation { rank, is_send: $is_send, address, bytes, peer, stream });
                    SUCCESS
                }
                None => misuse(&format!("{call} outside of a group")),
            })
        }
    };
}

operation!(ncclSend, *const c_void, true);
operation!(ncclRecv, *mut c_void, false);

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    GROUP.with_borrow_mut(|group| match group.replace(Vec::new()) {
        None => SUCCESS,
        Some(_) => misuse("a group in a group"),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    let Some(operations) = GROUP.take() else { return misuse("no group to end") };
    let Some(first) = operations.first().cloned() else { return SUCCESS };
    let rank = first.rank;
    let group = rank.groups.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the stream of a simulated GPU is the address of a counter that lives as long as the GPU.
    let work: &'static AtomicU64 = unsafe { &*with_exposed_provenance(first.stream) };
    // Not `running`, which is decremented after the stream has become idle.
    if work.load(Ordering::SeqCst) != 0 {
        return misuse("a group before the one before is done");
    }
    while rank.has("stuck", group, false) && !rank.is_aborted() {
        thread::sleep(PAUSE);
    }
    // Before the abort checks for running groups, or not at all.
    rank.running.fetch_add(1, Ordering::SeqCst);
    if rank.is_aborted() {
        rank.running.fetch_sub(1, Ordering::SeqCst);
        return REMOTE;
    }
    work.fetch_add(1, Ordering::SeqCst);
    thread::spawn(move || {
        thread::sleep(PAUSE);
        for operation in &operations {
            perform(operation, group);
        }
        if rank.has("error", group, false) {
            rank.error.store(REMOTE, Ordering::SeqCst);
            // The GPU never finishes.
            while !rank.is_aborted() {
                thread::sleep(PAUSE);
            }
        }
        work.fetch_sub(1, Ordering::SeqCst);
        rank.running.fetch_sub(1, Ordering::SeqCst);
    });
    SUCCESS
}

/// Sends or receives a message.
fn perform(Operation { rank, is_send, address, bytes, peer, .. }: &Operation, group: u64) {
    while rank.has("silent", group, true) {
        if rank.is_aborted() {
            return;
        }
        thread::sleep(PAUSE);
    }
    let next = |counts: &Mutex<Vec<u64>>| {
        let mut counts = locked(counts);
        counts[*peer] += 1;
        counts[*peer]
    };
    if *is_send {
        // SAFETY: the program does not change the bytes until the stream is idle.
        let content = unsafe { slice::from_raw_parts(with_exposed_provenance::<u8>(*address), *bytes) };
        let target = rank.message(rank.rank, *peer, next(&rank.sent));
        // This rank sends one message at a time to a rank.
        let part = target.with_extension("part");
        fs::write(&part, content).and_then(|()| fs::rename(&part, &target)).expect("the folder is writable");
        return;
    }
    let source = rank.message(*peer, rank.rank, next(&rank.received));
    while !rank.is_aborted() {
        let Ok(mut content) = fs::read(&source) else {
            thread::sleep(PAUSE);
            continue;
        };
        fs::remove_file(&source).expect("the folder is writable");
        if content.len() != *bytes {
            misuse(&format!("{bytes} bytes are received, {} were sent", content.len()));
            rank.error.store(ARGUMENT, Ordering::SeqCst);
            return;
        }
        content[0] ^= u8::from(rank.has("corrupt", group, false));
        // SAFETY: the program does not use the bytes until the stream is idle.
        let target =
            unsafe { slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(*address), *bytes) };
        target.copy_from_slice(&content);
        return;
    }
}

/// # Safety
/// `state` is null or points to an integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: *mut c_void, state: *mut c_int) -> c_int {
    let Some(rank) = rank_of(comm) else { return misuse("ncclCommGetAsyncError without a communicator") };
    // SAFETY: guaranteed by the caller.
    unsafe { put(state, rank.error.load(Ordering::SeqCst)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(comm: *mut c_void) -> c_int {
    let Some(rank) = remove(comm, "abort") else { return misuse("ncclCommAbort without a communicator") };
    rank.aborted.store(true, Ordering::SeqCst);
    while rank.running.load(Ordering::SeqCst) != 0 {
        thread::sleep(PAUSE);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(comm: *mut c_void) -> c_int {
    let Some(rank) = remove(comm, "destroy") else { return misuse("ncclCommDestroy without a communicator") };
    if rank.running.load(Ordering::SeqCst) != 0 {
        return misuse("ncclCommDestroy during an exchange");
    }
    SUCCESS
}
