//! MPI, opened at run time: one program for Open MPI, MPICH and its relatives, and the standard ABI of MPI 5.
//!
//! | ABI | file | handles | `MPI_COMM_WORLD`, `MPI_BYTE`, `MPI_FLOAT`, `MPI_SUM` | `MPI_THREAD_SERIALIZED` |
//! |---|---|---|---|--:|
//! | standard (MPI 5.0, chapter 20) | `libmpi_abi.so.1` | pointers | 0x101, 0x247, 0x210, 0x21 | 2048 |
//! | MPICH | `libmpi.so.12`, Debian: `libmpich.so.12` | `int` | 0x44000000, 0x4c00010d, 0x4c00040a, 0x58000003 | 2 |
//! | Open MPI 3 to 5 | `libmpi.so.40` | pointers | addresses of `ompi_mpi_comm_world`, `_byte`, `_float`, `_op_sum` | 2 |
//!
//! Training moves bytes alone; numbers are added by the library for comparison only. Messages are sent and received without waiting, and tested
//! until they have arrived, so that a rank can give up.
#![allow(unsafe_code)]

use super::environment::Launcher;
use super::{Failure, MESSAGE, Transport};
use crate::error::{EngineError, Result};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::{
    error::Error,
    ffi::{c_int, c_void},
    fmt,
    ptr::null_mut,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Time of testing without a pause; then a rank sleeps between tests, so that it does not disturb others on its core.
const EAGER: Duration = Duration::from_millis(50);
/// Pause between tests.
const PAUSE: Duration = Duration::from_micros(100);
/// Bytes of a status, more than any ABI's.
const STATUS: usize = 128;
/// Tag of all messages: two ranks exchange one message at a time.
const TAG: c_int = 1;

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

/// Buffers of the messages under way. The library may use them until it has said that they are done.
#[derive(Default)]
struct Buffers {
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// True after a message that did not end: nothing can be exchanged any more.
    closed: bool,
    /// True after the end.
    finished: bool,
}

/// An initialized library with handles H.
struct Session<H: Handle> {
    library: String,
    functions: Functions<H>,
    handles: Handles<H>,
    rank: usize,
    size: usize,
    /// Locked during an exchange: threads call the library one at a time.
    buffers: Mutex<Buffers>,
}

/// The dynamic loader's own words.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The function `name` of `library`.
///
/// # Safety
/// F is the type of the function.
unsafe fn function<F: Copy>(library: &Library, file: &str, name: &str) -> Result<F> {
    // SAFETY: the caller's promise.
    let symbol = unsafe { library.get::<F>(name) };
    symbol.map(|symbol| *symbol).map_err(|error| EngineError::Launch(format!("{file}: {}", reason(&error))))
}

/// The address of the object `name`, for libraries whose handles are such addresses.
fn object(library: &Library, file: &str, name: &str) -> Result<Pointer> {
    // SAFETY: only the address is taken.
    let symbol = unsafe { library.get::<*mut c_void>(name) };
    let symbol = symbol.map_err(|error| EngineError::Launch(format!("{file}: {}", reason(&error))))?;
    Ok(Pointer(symbol.into_raw().cast()))
}

/// Ranks of the library of `launcher`, or of that in the variable `ALBERT_MPI`, which is opened and initialized.
pub(super) fn start(launcher: &Launcher) -> Result<Arc<dyn Transport>> {
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
        Arc::new(Session::start(library, file, Handles { world, byte, float, sum }, 2048, launcher)?)
    } else if let Ok(world) = object(library, &file, "ompi_mpi_comm_world") {
        let [byte, float, sum] =
            ["ompi_mpi_byte", "ompi_mpi_float", "ompi_mpi_op_sum"].map(|name| object(library, &file, name));
        let handles = Handles { world, byte: byte?, float: float?, sum: sum? };
        Arc::new(Session::start(library, file, handles, 2, launcher)?)
    } else {
        let handles = Handles { world: 0x4400_0000, byte: 0x4c00_010d, float: 0x4c00_040a, sum: 0x5800_0003 };
        Arc::new(Session::<c_int>::start(library, file, handles, 2, launcher)?)
    })
}

impl<H: Handle> Session<H> {
    fn start(
        library: &Library,
        file: String,
        handles: Handles<H>,
        serialized: c_int,
        launcher: &Launcher,
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
        // SAFETY: null for the arguments is allowed since MPI 2; the numbers outlive the calls, and the library is asked for
        // them once it is initialized.
        unsafe {
            checked("MPI_Init_thread", init(null_mut(), null_mut(), serialized, &mut provided))?;
            checked("MPI_Comm_rank", rank_of(handles.world, &mut rank))?;
            checked("MPI_Comm_size", size_of(handles.world, &mut size))?;
        }
        let session = Self {
            functions,
            handles,
            rank: rank as usize,
            size: size as usize,
            buffers: Mutex::default(),
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

    /// Starts both messages in `buffers` and waits for them.
    fn transfer(&self, to: usize, from: usize, buffers: &mut Buffers, timeout: Duration) -> Result<(), Failure> {
        let Buffers { outgoing, incoming, .. } = buffers;
        let [sent, received] = [outgoing.len(), incoming.len()].map(|len| len as c_int);
        let (to_rank, from_rank) = (to as c_int, from as c_int);
        let Handles { world, byte, .. } = self.handles;
        let (mut sending, mut receiving) = (H::NONE, H::NONE);
        let (mut is_sent, mut is_received) = (sent == 0, received == 0);
        // SAFETY: the buffers hold as many bytes. They are neither moved nor freed while the library uses them: this function
        // returns when both requests are done, and otherwise the caller keeps them for ever.
        let codes = unsafe {
            let receive = match is_received {
                true => 0,
                false => {
                    let start = incoming.as_mut_ptr().cast();
                    (self.functions.irecv)(start, received, byte, from_rank, TAG, world, &mut receiving)
                }
            };
            let send = match is_sent {
                true => 0,
                false => {
                    let start = outgoing.as_ptr().cast();
                    (self.functions.isend)(start, sent, byte, to_rank, TAG, world, &mut sending)
                }
            };
            [receive, send]
        };
        for (call, code) in ["MPI_Irecv", "MPI_Isend"].into_iter().zip(codes) {
            if code != 0 {
                return Err(Failure::Library { call, code });
            }
        }
        let start = Instant::now();
        loop {
            is_received = is_received || self.is_done(&mut receiving)?;
            is_sent = is_sent || self.is_done(&mut sending)?;
            if is_sent && is_received {
                return Ok(());
            }
            let waited = start.elapsed();
            if waited > timeout {
                return Err(Failure::Late { rank: if is_received { to } else { from } });
            }
            if waited < EAGER { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
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
        debug_assert!(send.len() <= MESSAGE && receive.len() <= MESSAGE);
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.closed {
            return Err(Failure::Gone { rank: from });
        }
        buffers.outgoing.clear();
        buffers.outgoing.extend_from_slice(send);
        buffers.incoming.resize(receive.len(), 0);
        let result = self.transfer(to, from, &mut buffers, timeout);
        match result {
            Ok(()) => receive.copy_from_slice(&buffers.incoming),
            Err(_) => {
                // The library may still read and write them.
                std::mem::forget(std::mem::take(&mut buffers.outgoing));
                std::mem::forget(std::mem::take(&mut buffers.incoming));
                buffers.closed = true;
            }
        }
        result
    }

    fn library_sum(&self, x: &[f32], sum: &mut [f32]) -> Option<Result<(), Failure>> {
        let Handles { world, float, sum: add, .. } = self.handles;
        let buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.closed {
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
        let is_finished = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).finished;
        if !is_finished {
            // SAFETY: the library is initialized and not finalized.
            unsafe { (self.functions.abort)(self.handles.world, 1) };
        }
    }

    fn finish(&self) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        // With a message under way, finalizing would wait for it.
        if !buffers.closed {
            (buffers.closed, buffers.finished) = (true, true);
            // SAFETY: the library is initialized and not finalized, and no other call follows.
            unsafe { (self.functions.finalize)() };
        }
    }
}
