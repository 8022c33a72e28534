//! NCCL, opened at run time: gradients go from GPU to GPU.
//!
//! NCCL only sends and receives; the sums are computed by this program's kernels, along the tree over lanes
//! ([`all_reduce`](super::all_reduce)).
//!
//! One thread per rank makes the calls that may wait for another rank without limit: the initialization, the first exchange
//! with a rank, which connects, and the end. The rank waits for this thread as long as its timeout allows. The thread polls
//! the stream and NCCL's asynchronous errors until an exchange is done. After a failure nothing is exchanged any more, and
//! [`Link::abort`] ends the work that is left on the GPU.
//!
//! A simulated GPU has its own kind of stream and memory, so it only takes a library that exports [`SIMULATED`], and a real GPU
//! only one that does not.
#![allow(unsafe_code)]

use super::{
    Failure,
    library::{function, reason},
    pause,
};
use crate::device::Gpu;
use kernels_cuda::arguments::Address;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    fmt,
    ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicPtr, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

/// Files that may be the library.
const FILES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// Symbol of a library for simulated GPUs.
const SIMULATED: &str = "albert_simulated_gpu";
/// First version with `ncclSend`: 2.7.0, in NCCL's own encoding.
const OLDEST: c_int = 2700;
/// `ncclInt8`: NCCL moves bytes.
const BYTE: c_int = 0;
/// `ncclInProgress`, which is not an error.
const IN_PROGRESS: c_int = 7;
/// Time for the thread to leave its loop before the abort.
const LEAVE: Duration = Duration::from_secs(1);
/// Time for `ncclCommAbort`, which may wait for a rank that does not abort.
const ABORT: Duration = Duration::from_secs(10);

/// Handle of a communicator.
type Comm = *mut c_void;

/// Name of a group of ranks, which all pass to the initialization.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

/// Functions of the library; types as in `nccl.h`, in which a stream is a pointer.
struct Functions {
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    initialize: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int,
    receive: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    async_error: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    abort: unsafe extern "C" fn(Comm) -> c_int,
    destroy: unsafe extern "C" fn(Comm) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// The opened library.
pub(super) struct Nccl {
    /// In NCCL's own encoding.
    pub(super) version: c_int,
    functions: Functions,
}

/// Version in NCCL's own encoding, as text; a digit was added to the minor number with 2.9.
pub(super) fn version_text(version: c_int) -> String {
    let major = if version < 10_000 { 1000 } else { 10_000 };
    format!("{}.{}.{}", version / major, version % major / 100, version % 100)
}

impl Nccl {
    /// The library for `gpu`: the file `named`, or one of the usual names.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn open(gpu: &Gpu, named: Option<&str>) -> Result<Self, String> {
        let files = named.map_or(FILES.to_vec(), |file| vec![file]);
        let (mut opened, mut reasons) = (None, Vec::new());
        for file in files {
            // SAFETY: opening runs the constructors of the library, which initialize it alone.
            match unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) } {
                Ok(library) => {
                    opened = Some((library, file));
                    break;
                }
                Err(error) => reasons.push(reason(&error)),
            }
        }
        let Some((library, file)) = opened else { return Err(reasons.join("; ")) };
        // A library is never closed: its threads stay.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: only the presence of the symbol matters.
        let is_for_simulated = unsafe { library.get::<*const c_void>(SIMULATED) }.is_ok();
        match (is_for_simulated, gpu.driver().is_simulated()) {
            (false, true) => return Err(format!("{file} is for real GPUs, and this one is simulated")),
            (true, false) => return Err(format!("{file} is for simulated GPUs")),
            _ => {}
        }
        Self::of(library, file)
    }

    fn of(library: &Library, file: &str) -> Result<Self, String> {
        let mut version = 0;
        // SAFETY: the type is that of `nccl.h`.
        let get_version: Result<unsafe extern "C" fn(*mut c_int) -> c_int, _> =
            unsafe { function(library, file, "ncclGetVersion") };
        // SAFETY: writes one integer to a live variable.
        let code = unsafe { get_version.map_err(|error| error.to_string())?(&mut version) };
        if code != 0 || version < OLDEST {
            let [found, oldest] = [version, OLDEST].map(version_text);
            return Err(format!("{file} is NCCL {found}; {oldest} or later is needed, which sends and receives"));
        }
        // SAFETY: the types are those of `nccl.h`, which has not changed them since this version.
        let functions = unsafe {
            (|| {
                Ok(Functions {
                    unique_id: function(library, file, "ncclGetUniqueId")?,
                    initialize: function(library, file, "ncclCommInitRank")?,
                    send: function(library, file, "ncclSend")?,
                    receive: function(library, file, "ncclRecv")?,
                    group_start: function(library, file, "ncclGroupStart")?,
                    group_end: function(library, file, "ncclGroupEnd")?,
                    async_error: function(library, file, "ncclCommGetAsyncError")?,
                    abort: function(library, file, "ncclCommAbort")?,
                    destroy: function(library, file, "ncclCommDestroy")?,
                    error_string: function(library, file, "ncclGetErrorString")?,
                })
            })()
        };
        let functions = functions.map_err(|error: crate::error::EngineError| error.to_string())?;
        Ok(Self { version, functions })
    }

    /// The error `code` of `call`, in NCCL's words.
    fn checked(&self, call: &'static str, code: c_int) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NCCL has a text that is never freed for any number.
        let text = unsafe { CStr::from_ptr((self.functions.error_string)(code)) };
        Err(Failure::Nccl { call, reason: text.to_string_lossy().into_owned() })
    }

    /// A name for a new group of ranks; the one of `NCCL_COMM_ID` if that is set.
    pub(super) fn unique_id(&self) -> Result<UniqueId, Failure> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: writes 128 bytes to a live variable.
        self.checked("ncclGetUniqueId", unsafe { (self.functions.unique_id)(&mut id) })?;
        Ok(id)
    }
}

/// Bytes of a GPU and the rank that sends or receives them.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) rank: usize,
    pub(super) address: Address,
    pub(super) bytes: usize,
}

/// A message with the address that the library is given.
#[derive(Clone, Copy)]
struct Piece {
    rank: usize,
    address: usize,
    bytes: usize,
}

/// Work for the thread.
enum Job {
    Initialize(UniqueId),
    Exchange { send: Option<Piece>, receive: Option<Piece> },
    Destroy,
}

/// State of a communicator that the thread and the rank share.
#[derive(Default)]
struct Shared {
    /// Null before the initialization and after the end.
    comm: AtomicPtr<c_void>,
    /// The thread must not use the communicator any more.
    stop: AtomicBool,
}

/// The thread that calls NCCL.
struct Caller {
    nccl: Arc<Nccl>,
    /// Keeps the memory that messages are in: the library may use it after a rank has given up.
    gpu: Gpu,
    shared: Arc<Shared>,
    rank: usize,
    size: usize,
}

impl Caller {
    fn run(&self, jobs: &Receiver<Job>, answers: &Sender<Result<(), Failure>>) {
        for job in jobs {
            let answer = self.stream().and_then(|stream| match job {
                Job::Initialize(id) => self.initialize(id),
                Job::Exchange { send, receive } => self.exchange(send, receive, stream),
                Job::Destroy => self.destroy(),
            });
            if answers.send(answer).is_err() {
                return;
            }
        }
    }

    /// The stream, as NCCL takes it; the GPU is current on this thread then.
    fn stream(&self) -> Result<*mut c_void, Failure> {
        let stream = self.gpu.driver().stream().map_err(|error| Failure::Device(error.to_string()))?;
        Ok(with_exposed_provenance_mut(stream))
    }

    fn initialize(&self, id: UniqueId) -> Result<(), Failure> {
        let (mut comm, size, rank) = (null_mut(), self.size as c_int, self.rank as c_int);
        // SAFETY: writes one handle to a live variable; this rank's GPU is current on this thread.
        let code = unsafe { (self.nccl.functions.initialize)(&mut comm, size, id, rank) };
        self.nccl.checked("ncclCommInitRank", code)?;
        self.shared.comm.store(comm, Ordering::SeqCst);
        Ok(())
    }

    fn exchange(&self, send: Option<Piece>, receive: Option<Piece>, stream: *mut c_void) -> Result<(), Failure> {
        let (nccl, comm) = (&self.nccl, self.shared.comm.load(Ordering::SeqCst));
        let Functions { send: send_to, receive: receive_from, group_start, group_end, .. } = nccl.functions;
        // SAFETY: takes nothing; the group is ended below, on this thread.
        nccl.checked("ncclGroupStart", unsafe { group_start() })?;
        let mut started = Ok(());
        if let Some(Piece { rank, address, bytes }) = send {
            let start = with_exposed_provenance(address);
            // SAFETY: the communicator is initialized and not ended: a link that has failed, stopped or finished sends no job.
            // `bytes` bytes of this GPU begin at the address (`library_address`), and nobody writes them before the stream is
            // idle: the rank waits. After a failure the GPU and with it the memory is kept by this thread.
            let code = unsafe { send_to(start, bytes, BYTE, rank as c_int, comm, stream) };
            started = nccl.checked("ncclSend", code);
        }
        if let (Ok(()), Some(Piece { rank, address, bytes })) = (&started, receive) {
            let start = with_exposed_provenance_mut(address);
            // SAFETY: as above, and nobody reads them before the stream is idle.
            let code = unsafe { receive_from(start, bytes, BYTE, rank as c_int, comm, stream) };
            started = nccl.checked("ncclRecv", code);
        }
        // SAFETY: ends the group of this thread.
        let ended = nccl.checked("ncclGroupEnd", unsafe { group_end() });
        started.and(ended)?;
        self.wait(comm)
    }

    /// Waits until the stream is idle.
    fn wait(&self, comm: Comm) -> Result<(), Failure> {
        let start = Instant::now();
        // The answer of a thread that is stopped is not read.
        while !self.shared.stop.load(Ordering::SeqCst) {
            let is_idle = self.gpu.driver().is_idle().map_err(|error| Failure::Device(error.to_string()))?;
            let mut state = 0;
            // SAFETY: writes one integer to a live variable. The communicator is not aborted: `abort` waits for this thread
            // after it has set `stop`.
            let code = unsafe { (self.nccl.functions.async_error)(comm, &mut state) };
            self.nccl.checked("ncclCommGetAsyncError", code)?;
            if state != IN_PROGRESS {
                self.nccl.checked("an exchange", state)?;
            }
            if is_idle {
                break;
            }
            pause(start.elapsed());
        }
        Ok(())
    }

    fn destroy(&self) -> Result<(), Failure> {
        let comm = self.shared.comm.swap(null_mut(), Ordering::SeqCst);
        // SAFETY: the communicator is initialized, its exchanges are done, and no call follows.
        self.nccl.checked("ncclCommDestroy", unsafe { (self.nccl.functions.destroy)(comm) })
    }
}

/// The rank's side of the thread.
struct Calls {
    jobs: Sender<Job>,
    answers: Receiver<Result<(), Failure>>,
    /// True if the thread has not answered in time.
    is_late: bool,
    /// True after a failure or the end.
    is_closed: bool,
}

/// The way of this rank's GPU to those of the others.
pub(super) struct Link {
    nccl: Arc<Nccl>,
    gpu: Gpu,
    pub(super) rank: usize,
    pub(super) size: usize,
    shared: Arc<Shared>,
    calls: Mutex<Calls>,
}

impl Link {
    /// Connects rank `rank` of `size`; all ranks call it with the same name.
    ///
    /// # Errors
    /// The library refuses, or a rank does not come within `timeout`.
    pub(super) fn new(
        nccl: Nccl,
        gpu: &Gpu,
        (rank, size): (usize, usize),
        id: UniqueId,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let (nccl, shared) = (Arc::new(nccl), Arc::new(Shared::default()));
        let (jobs, work) = mpsc::channel();
        let (done, answers) = mpsc::channel();
        let caller = Caller { nccl: Arc::clone(&nccl), gpu: gpu.clone(), shared: Arc::clone(&shared), rank, size };
        let thread = thread::Builder::new().name("nccl".to_owned()).spawn(move || caller.run(&work, &done));
        thread.map_err(|error| Failure::Device(format!("a thread for NCCL cannot be started: {error}")))?;
        let calls = Mutex::new(Calls { jobs, answers, is_late: false, is_closed: false });
        let link = Self { nccl, gpu: gpu.clone(), rank, size, shared, calls };
        // Which rank is missing is not known.
        link.call(Job::Initialize(id), Failure::Late { rank: (rank + 1) % size, or: None }, timeout)?;
        Ok(link)
    }

    /// True if it is the way of `gpu`.
    pub(super) fn is_of(&self, gpu: &Gpu) -> bool {
        self.gpu.is(gpu)
    }

    /// Sends the thread a job and waits until it is done; fails with `late` if it takes longer.
    fn call(&self, job: Job, late: Failure, timeout: Duration) -> Result<(), Failure> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.is_closed {
            return Err(Failure::Closed);
        }
        calls.jobs.send(job).expect("the thread takes jobs until the end");
        let answer = match calls.answers.recv_timeout(timeout) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                calls.is_late = true;
                Err(late)
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread answers each job"),
        };
        calls.is_closed = answer.is_err();
        answer
    }

    /// Sends bytes of this GPU to a rank's, and fills others with what a rank's sends, after everything launched before.
    /// Nothing is sent or received where there are no bytes.
    ///
    /// # Errors
    /// The library reports an error, or the exchange takes longer than `timeout`.
    pub(super) fn exchange(&self, send: Message, receive: Message, timeout: Duration) -> Result<(), Failure> {
        let piece = |Message { rank, address, bytes }, is_written| {
            let address = self.gpu.driver().library_address(address, bytes, is_written);
            address.map(|address| Piece { rank, address, bytes }).map_err(|error| Failure::Device(error.to_string()))
        };
        let sent = (send.bytes > 0).then(|| piece(send, false)).transpose()?;
        let received = (receive.bytes > 0).then(|| piece(receive, true)).transpose()?;
        let late = match (sent, received) {
            (None, None) => return Ok(()),
            (Some(sent), Some(received)) if sent.rank != received.rank => {
                Failure::Late { rank: received.rank, or: Some(sent.rank) }
            }
            (Some(piece), _) | (_, Some(piece)) => Failure::Late { rank: piece.rank, or: None },
        };
        self.call(Job::Exchange { send: sent, receive: received }, late, timeout)
    }

    /// Ends the work that is left on the GPU; nothing is exchanged any more.
    pub(super) fn abort(&self) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.is_closed = true;
        self.shared.stop.store(true, Ordering::SeqCst);
        if std::mem::take(&mut calls.is_late) {
            // The thread leaves its loop, unless a call of the library holds it, which the abort ends.
            let _ = calls.answers.recv_timeout(LEAVE);
        }
        let comm = AtomicPtr::new(self.shared.comm.swap(null_mut(), Ordering::SeqCst));
        if comm.load(Ordering::Relaxed).is_null() {
            return;
        }
        let (nccl, gpu) = (Arc::clone(&self.nccl), self.gpu.clone());
        let (ended, end) = mpsc::channel();
        let abort = move || {
            if gpu.driver().stream().is_ok() {
                // SAFETY: the communicator is initialized and not destroyed, and the thread of calls does not use it any
                // more, or is in a call that the abort ends.
                unsafe { (nccl.functions.abort)(comm.into_inner()) };
            }
            let _ = ended.send(());
        };
        if thread::Builder::new().name("nccl-abort".to_owned()).spawn(abort).is_ok() {
            let _ = end.recv_timeout(ABORT);
        }
    }

    /// Leaves the other ranks after the last exchange; all ranks call it.
    pub(super) fn finish(&self, timeout: Duration) {
        // A run that has written its files is not failed by its end.
        let _ = self.call(Job::Destroy, Failure::Closed, timeout);
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.abort();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} over NCCL {}", self.rank, self.size, version_text(self.nccl.version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_cannot_be_used_is_named() {
        let gpu = crate::shared_tests::gpu((8, 0));
        let reason = |named| Nccl::open(&gpu, named).err().expect("no library for simulated GPUs");
        assert!(reason(None).contains("libnccl.so"), "{}", reason(None));
        assert!(reason(Some("libnone.so")).starts_with("libnone.so: "), "{}", reason(Some("libnone.so")));
        // Any library without the symbol.
        assert_eq!(reason(Some("libc.so.6")), "libc.so.6 is for real GPUs, and this one is simulated");
    }

    #[test]
    fn versions_of_both_encodings_are_read() {
        assert_eq!([2604, OLDEST, 20_900, 22_703].map(version_text), ["2.6.4", "2.7.0", "2.9.0", "2.27.3"]);
    }
}
