//! MPI, opened at run time: one program for Open MPI, MPICH and its relatives, and the standard ABI of MPI 5.
//!
//! | ABI | file | handles | `MPI_COMM_WORLD`, `MPI_BYTE` | `MPI_THREAD_SERIALIZED` |
//! |---|---|---|---|--:|
//! | standard (MPI 5.0, chapter 20) | `libmpi_abi.so.1` | pointers | 0x101, 0x247 | 2048 |
//! | MPICH | `libmpi.so.12`, Debian: `libmpich.so.12` | `int` | 0x44000000, 0x4c00010d | 2 |
//! | Open MPI 3 to 5 | `libmpi.so.40` | pointers | `&ompi_mpi_comm_world`, `&ompi_mpi_byte` | 2 |
//!
//! Only bytes move, so no other type and no operation is needed. Messages are sent and received without waiting, and tested
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

/// Functions of a library with handles H; types as in the MPI standard.
struct Functions<H> {
    isend: unsafe extern "C" fn(*const c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int,
    irecv: unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int,
    test: unsafe extern "C" fn(*mut H, *mut c_int, *mut c_void) -> c_int,
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
    world: H,
    byte: H,
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
        Arc::new(Session::start(library, file, [standard(0x101), standard(0x247)], 2048, launcher)?)
    } else if let Ok(world) = object(library, &file, "ompi_mpi_comm_world") {
        let byte = object(library, &file, "ompi_mpi_byte")?;
        Arc::new(Session::start(library, file, [world, byte], 2, launcher)?)
    } else {
        Arc::new(Session::<c_int>::start(library, file, [0x4400_0000, 0x4c00_010d], 2, launcher)?)
    })
}

impl<H: Handle> Session<H> {
    fn start(
        library: &Library,
        file: String,
        [world, byte]: [H; 2],
        serialized: c_int,
        launcher: &Launcher,
    ) -> Result<Self> {
        // SAFETY: the types are those of the MPI standard, with the handles of this ABI.
        let (functions, init, rank_of, size_of) = unsafe {
            let functions = Functions {
                isend: function(library, &file, "MPI_Isend")?,
                irecv: function(library, &file, "MPI_Irecv")?,
                test: function(library, &file, "MPI_Test")?,
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
            checked("MPI_Comm_rank", rank_of(world, &mut rank))?;
            checked("MPI_Comm_size", size_of(world, &mut size))?;
        }
        let session = Self {
            functions,
            world,
            byte,
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
        let (mut sending, mut receiving) = (H::NONE, H::NONE);
        let (mut is_sent, mut is_received) = (sent == 0, received == 0);
        // SAFETY: the buffers hold as many bytes. They are neither moved nor freed while the library uses them: this function
        // returns when both requests are done, and otherwise the caller keeps them for ever.
        let codes = unsafe {
            let receive = match is_received {
                true => 0,
                false => {
                    let start = incoming.as_mut_ptr().cast();
                    (self.functions.irecv)(start, received, self.byte, from_rank, TAG, self.world, &mut receiving)
                }
            };
            let send = match is_sent {
                true => 0,
                false => {
                    let start = outgoing.as_ptr().cast();
                    (self.functions.isend)(start, sent, self.byte, to_rank, TAG, self.world, &mut sending)
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

    fn abort(&self) {
        let is_finished = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).finished;
        if !is_finished {
            // SAFETY: the library is initialized and not finalized.
            unsafe { (self.functions.abort)(self.world, 1) };
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
