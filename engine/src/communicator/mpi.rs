//! MPI, opened at run time: one program for Open MPI, MPICH and its relatives, and the standard ABI of MPI 5.
//!
//! | ABI | file | handles | `MPI_COMM_WORLD`, `MPI_BYTE`, `MPI_FLOAT`, `MPI_SUM` | `MPI_THREAD_SERIALIZED` |
//! |---|---|---|---|--:|
//! | standard (MPI 5.0, chapter 20) | `libmpi_abi.so.1` | pointers | 0x101, 0x247, 0x210, 0x21 | 2048 |
//! | MPICH | `libmpi.so.12`, Debian: `libmpich.so.12` | `int` | 0x44000000, 0x4c00010d, 0x4c00040a, 0x58000003 | 2 |
//! | Open MPI 3 to 5 | `libmpi.so.40` | pointers | addresses of `ompi_mpi_comm_world`, `_byte`, `_float`, `_op_sum` | 2 |
//!
//! Training moves bytes alone; numbers are added by the library for comparison only. Bytes are cut into messages, which are sent
//! and received without waiting and tested until they have arrived, so that a rank can give up. Two are under way in each
//! direction, so that one is copied while the other moves.
#![allow(unsafe_code)]

use super::environment::Launcher;
use super::{
    Failure, TIMEOUT, Transport,
    library::{function, reason},
    pause,
    watchdog::Watchdog,
};
use crate::error::{EngineError, Result};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::{
    ffi::{c_int, c_void},
    fmt,
    ops::Range,
    ptr::null_mut,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Bytes of a status, more than any ABI's.
const STATUS: usize = 128;
/// Tag of all messages: those of one rank to another arrive in order.
const TAG: c_int = 1;
/// Maximum number of bytes of a message.
const MESSAGE: usize = 1 << 20;
/// Messages under way in each direction.
const SLOTS: usize = 2;

/// Handle of a library: `c_int`, or [`Pointer`].
trait Handle: Copy + Send + Sync + 'static {
    /// A place for a handle that the library fills in.
    const NONE: Self;
}

impl Handle for c_int {
    const NONE: Self = 0;
}

/// Handle that is a pointer; never followed here.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Pointer(*mut c_void);

// SAFETY: a handle is a name that the library reads; it may be used from any thread, one at a time.
unsafe impl Send for Pointer {}
// SAFETY: as above.
unsafe impl Sync for Pointer {}

impl Handle for Pointer {
    const NONE: Self = Self(null_mut());
}

/// Names that the ABI gives the library's objects.
#[derive(Clone, Copy)]
struct Handles<H> {
    world: H,
    byte: H,
    float: H,
    sum: H,
}

/// Functions of a library with handles H; types as in the MPI standard.
struct Functions<H> {
    isend: unsafe extern "C" fn(*const c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int,
    irecv: unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int,
    test: unsafe extern "C" fn(*mut H, *mut c_int, *mut c_void) -> c_int,
    all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, c_int, H, H, H) -> c_int,
    abort: unsafe extern "C" fn(H, c_int) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
}

/// A message under way. The library may use the buffer until it has said that it is done.
struct Slot<H> {
    buffer: Vec<u8>,
    request: H,
    /// Bytes of the slice that it sends or receives; `None` if it is idle.
    part: Option<Range<usize>>,
}

/// Messages of a process.
struct Messages<H> {
    outgoing: [Slot<H>; SLOTS],
    incoming: [Slot<H>; SLOTS],
    /// True after a message that did not end: nothing can be exchanged any more.
    closed: bool,
    /// True after the end.
    finished: bool,
}

impl<H: Handle> Messages<H> {
    fn new() -> Self {
        let idle = || [(); SLOTS].map(|()| Slot { buffer: Vec::new(), request: H::NONE, part: None });
        Self { outgoing: idle(), incoming: idle(), closed: false, finished: false }
    }
}

/// The part of `len` bytes that follows those before `start`.
fn next_part(start: usize, len: usize) -> Option<Range<usize>> {
    (start < len).then(|| start..len.min(start + MESSAGE))
}

/// An initialized library with handles H.
struct Session<H: Handle> {
    library: String,
    functions: Functions<H>,
    handles: Handles<H>,
    rank: usize,
    size: usize,
    /// Locked during an exchange: threads call the library one at a time.
    messages: Mutex<Messages<H>>,
    watchdog: Arc<Watchdog>,
}

/// The address of the object `name`, for libraries whose handles are such addresses.
fn object(library: &Library, file: &str, name: &str) -> Result<Pointer> {
    // SAFETY: only the address is taken.
    let symbol = unsafe { library.get::<*mut c_void>(name) };
    let symbol = symbol.map_err(|error| EngineError::Launch(format!("{file}: {}", reason(&error))))?;
    Ok(Pointer(symbol.into_raw().cast()))
}

/// Ends this process from another thread than the one that is inside the library.
pub(super) fn leave() {
    // SAFETY: it ends the process without the library's exit handlers, which might wait for that thread, and does not return.
    unsafe { libc::_exit(1) }
}

/// Ranks of the library of `launcher`, or of that in the variable `ALBERT_MPI`, which is opened and initialized.
pub(super) fn start(launcher: &Launcher, watchdog: &Arc<Watchdog>) -> Result<Arc<dyn Transport>> {
    let named = std::env::var("ALBERT_MPI").ok();
    let files: Vec<&str> = match &named {
        Some(file) => vec![file],
        None => launcher.libraries().to_vec(),
    };
    let (mut opened, mut reasons) = (None, Vec::new());
    for file in files {
        // SAFETY: opening runs the constructors of the library, which initialize it alone. Open MPI's plug-ins look for
        // symbols of the library among the global ones.
        match unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => {
                opened = Some((library, file.to_owned()));
                break;
            }
            Err(error) => reasons.push(reason(&error)),
        }
    }
    let Some((library, file)) = opened else {
        return Err(EngineError::Launch(format!(
            "{} is {}, but no MPI library can be opened ({}); install the one of the launcher, or set ALBERT_MPI to its \
             file",
            launcher.variable,
            launcher.size,
            reasons.join("; ")
        )));
    };
    // A library is never closed: its threads and handlers stay.
    let library: &'static Library = Box::leak(Box::new(library));
    let is_standard = file.rsplit('/').next().is_some_and(|name| name.starts_with("libmpi_abi"));
    let standard = |number: usize| Pointer(std::ptr::without_provenance_mut(number));
    Ok(if is_standard {
        let [world, byte, float, sum] = [0x101, 0x247, 0x210, 0x21].map(standard);
        Arc::new(Session::start(library, file, Handles { world, byte, float, sum }, 2048, launcher, watchdog)?)
    } else if let Ok(world) = object(library, &file, "ompi_mpi_comm_world") {
        let [byte, float, sum] =
            ["ompi_mpi_byte", "ompi_mpi_float", "ompi_mpi_op_sum"].map(|name| object(library, &file, name));
        let handles = Handles { world, byte: byte?, float: float?, sum: sum? };
        Arc::new(Session::start(library, file, handles, 2, launcher, watchdog)?)
    } else {
        let handles = Handles { world: 0x4400_0000, byte: 0x4c00_010d, float: 0x4c00_040a, sum: 0x5800_0003 };
        Arc::new(Session::<c_int>::start(library, file, handles, 2, launcher, watchdog)?)
    })
}

impl<H: Handle> Session<H> {
    fn start(
        library: &Library,
        file: String,
        handles: Handles<H>,
        serialized: c_int,
        launcher: &Launcher,
        watchdog: &Arc<Watchdog>,
    ) -> Result<Self> {
        // SAFETY: the types are those of the MPI standard, with the handles of this ABI.
        let (functions, init, rank_of, size_of) = unsafe {
            let functions = Functions {
                isend: function(library, &file, "MPI_Isend")?,
                irecv: function(library, &file, "MPI_Irecv")?,
                test: function(library, &file, "MPI_Test")?,
                all_reduce: function(library, &file, "MPI_Allreduce")?,
                abort: function(library, &file, "MPI_Abort")?,
                finalize: function(library, &file, "MPI_Finalize")?,
            };
            type Init = unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, *mut c_int) -> c_int;
            type Count<H> = unsafe extern "C" fn(H, *mut c_int) -> c_int;
            let init: Init = function(library, &file, "MPI_Init_thread")?;
            let rank: Count<H> = function(library, &file, "MPI_Comm_rank")?;
            let size: Count<H> = function(library, &file, "MPI_Comm_size")?;
            (functions, init, rank, size)
        };
        let (mut provided, mut rank, mut size) = (0, 0, 0);
        let checked = |call: &str, code| match code {
            0 => Ok(()),
            code => Err(EngineError::Launch(format!("{file}: {call} returned {code}"))),
        };
        let late =
            format!("{file}: MPI_Init_thread did not return within {} s; is every rank running?", TIMEOUT.as_secs());
        let start = || {
            // SAFETY: null for the arguments is allowed since MPI 2; the numbers outlive the calls, and the library is asked
            // for them once it is initialized.
            unsafe {
                checked("MPI_Init_thread", init(null_mut(), null_mut(), serialized, &mut provided))?;
                checked("MPI_Comm_rank", rank_of(handles.world, &mut rank))?;
                checked("MPI_Comm_size", size_of(handles.world, &mut size))
            }
        };
        watchdog.watch(TIMEOUT, EngineError::Launch(late), start)?;
        let session = Self {
            functions,
            handles,
            rank: rank as usize,
            size: size as usize,
            messages: Mutex::new(Messages::new()),
            watchdog: Arc::clone(watchdog),
            library: file,
        };
        if session.size != launcher.size {
            session.finish();
            return Err(launcher.disagrees(&session.library, session.size));
        }
        if provided < serialized {
            session.finish();
            return Err(EngineError::Launch(format!("{} was built without support for threads", session.library)));
        }
        Ok(session)
    }

    /// True if the request is done.
    fn is_done(&self, request: &mut H) -> Result<bool, Failure> {
        let (mut done, mut status) = (0, [0u64; STATUS / 8]);
        // SAFETY: the request is one of this library, or its handle for none; a status is smaller than its place.
        let code = unsafe { (self.functions.test)(request, &mut done, status.as_mut_ptr().cast()) };
        if code == 0 { Ok(done != 0) } else { Err(Failure::Library { call: "MPI_Test", code }) }
    }

    /// Starts to send `bytes` to a rank. The caller keeps the slot until it is done.
    fn start_sending(&self, slot: &mut Slot<H>, to: usize, bytes: &[u8]) -> Result<(), Failure> {
        slot.buffer.clear();
        slot.buffer.extend_from_slice(bytes);
        let Handles { world, byte, .. } = self.handles;
        let (start, count) = (slot.buffer.as_ptr().cast(), slot.buffer.len() as c_int);
        // SAFETY: the buffer holds `count` bytes, and is neither moved, changed nor freed while the library reads it: a slot
        // is not used before it is done, and its buffer is kept for ever if that never happens.
        let code = unsafe { (self.functions.isend)(start, count, byte, to as c_int, TAG, world, &mut slot.request) };
        if code == 0 { Ok(()) } else { Err(Failure::Library { call: "MPI_Isend", code }) }
    }

    /// Starts to receive `count` bytes from a rank. The caller keeps the slot until it is done.
    fn start_receiving(&self, slot: &mut Slot<H>, from: usize, count: usize) -> Result<(), Failure> {
        slot.buffer.resize(count, 0);
        let Handles { world, byte, .. } = self.handles;
        let (start, count) = (slot.buffer.as_mut_ptr().cast(), count as c_int);
        // SAFETY: as in `start_sending`; nothing reads the buffer while the library writes it.
        let code = unsafe { (self.functions.irecv)(start, count, byte, from as c_int, TAG, world, &mut slot.request) };
        if code == 0 { Ok(()) } else { Err(Failure::Library { call: "MPI_Irecv", code }) }
    }

    /// Sends and receives all bytes.
    fn transfer(
        &self,
        (to, send): (usize, &[u8]),
        (from, receive): (usize, &mut [u8]),
        messages: &mut Messages<H>,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let (mut sending, mut receiving) = (0, 0);
        let mut moved = Instant::now();
        loop {
            self.watchdog.returned();
            let mut has_moved = false;
            for slot in &mut messages.incoming {
                if let Some(part) = slot.part.clone()
                    && self.is_done(&mut slot.request)?
                {
                    receive[part].copy_from_slice(&slot.buffer);
                    (slot.part, has_moved) = (None, true);
                }
                if slot.part.is_none()
                    && let Some(part) = next_part(receiving, receive.len())
                {
                    self.start_receiving(slot, from, part.len())?;
                    receiving = part.end;
                    slot.part = Some(part);
                }
            }
            for slot in &mut messages.outgoing {
                if slot.part.is_some() && self.is_done(&mut slot.request)? {
                    (slot.part, has_moved) = (None, true);
                }
                if slot.part.is_none()
                    && let Some(part) = next_part(sending, send.len())
                {
                    self.start_sending(slot, to, &send[part.clone()])?;
                    sending = part.end;
                    slot.part = Some(part);
                }
            }
            let [is_sent, is_received] =
                [&messages.outgoing, &messages.incoming].map(|slots| slots.iter().all(|slot| slot.part.is_none()));
            if is_sent && is_received {
                return Ok(());
            }
            if has_moved {
                moved = Instant::now();
                continue;
            }
            let waited = moved.elapsed();
            if waited > timeout {
                return Err(Failure::Late { rank: if is_received { to } else { from }, or: None });
            }
            pause(waited);
        }
    }
}

impl<H: Handle> fmt::Debug for Session<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} through {}", self.rank, self.size, self.library)
    }
}

impl<H: Handle> Transport for Session<H> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(
        &self,
        (to, send): (usize, &[u8]),
        (from, receive): (usize, &mut [u8]),
        timeout: Duration,
    ) -> Result<(), Failure> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if messages.closed {
            return Err(Failure::Gone { rank: from });
        }
        let result = self.transfer((to, send), (from, receive), &mut messages, timeout);
        if result.is_err() {
            // The library may still read and write the buffers.
            std::mem::forget(std::mem::replace(&mut *messages, Messages { closed: true, ..Messages::new() }));
        }
        result
    }

    fn library_sum(&self, x: &[f32], sum: &mut [f32]) -> Option<Result<(), Failure>> {
        let Handles { world, float, sum: add, .. } = self.handles;
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if messages.closed {
            return None;
        }
        let count = c_int::try_from(x.len()).ok()?;
        // SAFETY: both hold `count` elements, as the caller checked, and the library returns when it is done with them.
        let code = unsafe {
            (self.functions.all_reduce)(x.as_ptr().cast(), sum.as_mut_ptr().cast(), count, float, add, world)
        };
        Some(if code == 0 { Ok(()) } else { Err(Failure::Library { call: "MPI_Allreduce", code }) })
    }

    fn abort(&self) {
        let is_finished = self.messages.lock().unwrap_or_else(PoisonError::into_inner).finished;
        if !is_finished {
            // SAFETY: the library is initialized and not finalized.
            unsafe { (self.functions.abort)(self.handles.world, 1) };
        }
    }

    fn finish(&self) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        // With a message under way, finalizing would wait for it.
        if !messages.closed {
            (messages.closed, messages.finished) = (true, true);
            // SAFETY: the library is initialized and not finalized, and no other call follows.
            unsafe { (self.functions.finalize)() };
        }
    }
}
