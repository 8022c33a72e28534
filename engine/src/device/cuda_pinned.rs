//! Page-locked memory, through which copies to and from a GPU go without a wait for it.
//!
//! ```text
//! upload   bytes ──> slot ══> GPU          the slot is used again once its event has passed
//! read     GPU ══> slot ──> bytes          the host waits for the event of this copy alone, perhaps a step later
//! ```
#![allow(unsafe_code)]

use super::{
    cuda_session::failed,
    driver::{Address, DriverError, ReadHandle},
};
use cudarc::driver::{result, sys};
use std::{
    collections::VecDeque,
    ptr::NonNull,
    slice,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Maximum uploads in flight; the next one waits for the first of them.
const MOST_UPLOADS: usize = 8;
/// Largest upload through a slot. Parameters at the start of a run are larger, and may wait.
pub(super) const LARGEST_UPLOAD: usize = 1 << 24;
/// Smallest slot.
const SMALLEST_SLOT: usize = 1 << 16;

/// Page-locked memory for one copy, and the event after it.
#[derive(Debug)]
struct Slot {
    memory: NonNull<u8>,
    bytes: usize,
    event: sys::CUevent,
}

// SAFETY: memory and event belong to the slot alone, and the driver takes both from any thread with the context current.
unsafe impl Send for Slot {}

impl Slot {
    /// A slot for at least `bytes` bytes; the context is current.
    fn new(bytes: usize) -> Result<Self, DriverError> {
        let bytes = bytes.next_power_of_two().max(SMALLEST_SLOT);
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        let event = event.map_err(failed("cuEventCreate"))?;
        // SAFETY: a plain allocation, freed once, when the slot is dropped.
        let memory = unsafe { result::malloc_host(bytes, 0) }.map_err(failed("cuMemHostAlloc"));
        match memory.map(|memory| NonNull::new(memory.cast())) {
            Ok(Some(memory)) => Ok(Self { memory, bytes, event }),
            other => {
                // SAFETY: the event was just made, and nothing knows it.
                let _ = unsafe { result::event::destroy(event) };
                let reason = format!("no memory for {bytes} bytes");
                Err(other.err().unwrap_or(DriverError::Call { call: "cuMemHostAlloc", reason }))
            }
        }
    }

    /// Notes the end of the copy that was just started on `stream`.
    fn recorded(self, stream: sys::CUstream) -> Result<Self, DriverError> {
        // SAFETY: event and stream are alive and of one context.
        match unsafe { result::event::record(self.event, stream) } {
            Ok(()) => Ok(self),
            Err(error) => {
                // Nothing says when the copy is done, so that the memory is never freed.
                std::mem::forget(self);
                Err(failed("cuEventRecord")(error))
            }
        }
    }

    /// True if its copy is done.
    fn is_done(&self) -> Result<bool, DriverError> {
        // SAFETY: the event is alive; the call waits for nothing.
        match unsafe { sys::cuEventQuery(self.event) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => status.result().map(|()| true).map_err(failed("cuEventQuery")),
        }
    }

    /// Waits until its copy is done.
    fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.event) }.map_err(failed("cuEventSynchronize"))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The copy may be under way; an error here has no remedy.
        let _ = self.wait();
        // SAFETY: both were made by `new`; the copy is done, so that nothing uses them any more.
        let _ = unsafe { (result::event::destroy(self.event), result::free_host(self.memory.as_ptr().cast())) };
    }
}

/// Copies to the host.
#[derive(Debug, Default)]
struct Reads {
    free: Vec<Slot>,
    /// Those that were begun, each with its bytes.
    begun: Vec<Option<(Slot, usize)>>,
}

/// Slots of one stream. The context has to be current for every call.
#[derive(Debug, Default)]
pub(super) struct Pinned {
    /// Uploads, the oldest first.
    uploads: Mutex<VecDeque<Slot>>,
    reads: Mutex<Reads>,
}

impl Pinned {
    /// Copies at most [`LARGEST_UPLOAD`] bytes to the device, in order with launches.
    pub(super) fn upload(&self, stream: sys::CUstream, target: Address, source: &[u8]) -> Result<(), DriverError> {
        let mut uploads = lock(&self.uploads);
        let is_full = uploads.len() == MOST_UPLOADS;
        let oldest = match uploads.front() {
            Some(oldest) if is_full || oldest.is_done()? => uploads.pop_front(),
            _ => None,
        };
        let slot = match oldest {
            Some(slot) if slot.bytes >= source.len() => {
                slot.wait()?;
                slot
            }
            _ => Slot::new(source.len())?,
        };
        // SAFETY: the slot has the room, and its last copy is done, so that nothing else reads or writes it.
        unsafe { slot.memory.copy_from_nonoverlapping(NonNull::from(source).cast(), source.len()) };
        // SAFETY: the bytes were just written, and stay as they are until the event has passed; the driver refuses a target
        // outside its allocations.
        unsafe {
            let bytes = slice::from_raw_parts(slot.memory.as_ptr(), source.len());
            result::memcpy_htod_async(target.0, bytes, stream)
        }
        .map_err(failed("cuMemcpyHtoDAsync"))?;
        uploads.push_back(slot.recorded(stream)?);
        Ok(())
    }

    /// Begins to copy `bytes` bytes to the host.
    pub(super) fn begin_read(
        &self,
        stream: sys::CUstream,
        source: Address,
        bytes: usize,
    ) -> Result<ReadHandle, DriverError> {
        let mut reads = lock(&self.reads);
        // A slot whose read was given up may still be written: in order on the stream, before this copy.
        let fitting = reads.free.iter().position(|slot| slot.bytes >= bytes);
        let slot = fitting.map_or_else(|| Slot::new(bytes), |at| Ok(reads.free.swap_remove(at)))?;
        // SAFETY: the slot has the room, and only `end_read` reads it, after the event; the driver refuses a source outside its
        // allocations.
        unsafe { sys::cuMemcpyDtoHAsync_v2(slot.memory.as_ptr().cast(), source.0, bytes, stream) }
            .result()
            .map_err(failed("cuMemcpyDtoHAsync"))?;
        let slot = slot.recorded(stream)?;
        let place = reads.begun.iter().position(Option::is_none).unwrap_or(reads.begun.len());
        if place == reads.begun.len() {
            reads.begun.push(None);
        }
        reads.begun[place] = Some((slot, bytes));
        Ok(ReadHandle(place))
    }

    /// Ends a read: its bytes go to `target`, which is as long, or nowhere.
    pub(super) fn end_read(&self, read: ReadHandle, target: Option<&mut [u8]>) -> Result<(), DriverError> {
        let mut reads = lock(&self.reads);
        let (slot, bytes) = reads.begun.get_mut(read.0).and_then(Option::take).ok_or_else(|| DriverError::Call {
            call: "cuMemcpyDtoHAsync",
            reason: "the copy belongs to another driver".to_owned(),
        })?;
        let done = match target {
            None => Ok(()),
            Some(target) => slot.wait().map(|()| {
                assert_eq!(target.len(), bytes, "bytes of a copy");
                // SAFETY: the copy is done and has written so many bytes of the slot, which only this thread reads.
                target.copy_from_slice(unsafe { slice::from_raw_parts(slot.memory.as_ptr(), bytes) });
            }),
        };
        reads.free.push(slot);
        done
    }

    /// Frees all memory.
    pub(super) fn free(&self) {
        lock(&self.uploads).clear();
        *lock(&self.reads) = Reads::default();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves the lists whole: every change is one insertion or removal.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
