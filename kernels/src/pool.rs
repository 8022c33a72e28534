//! Threads: work is cut by its shape into numbered tasks, and a task's result never depends on who runs it.
//!
//! Entering a rayon pool from outside costs a lock and a wake-up, so a training step enters it once
//! ([`Cpu::enter`]) and every kernel below finds itself inside. No number that a kernel computes may depend on the
//! number of threads: results are equal to the bit for 1 and for 64. Work is cut by shape alone, but for products, whose
//! sums do not depend on where C is cut.
#![allow(unsafe_code)]

use crate::simd::Isa;
use rayon::prelude::*;
use std::{marker::PhantomData, ops::Range, sync::Arc};

/// The processor as a kernel sees it: an instruction set and threads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cpu {
    isa: Isa,
    pool: Arc<rayon::ThreadPool>,
}

/// Why a [`Cpu`] cannot be had.
#[derive(Debug)]
pub enum CpuError {
    /// `ALBERT_ISA` names an instruction set that this machine lacks.
    Isa(crate::simd::UnknownIsa),
    /// `ALBERT_THREADS` is not a number from 1 to 1024.
    Threads(String),
    /// The operating system gave no threads.
    Spawn(rayon::ThreadPoolBuildError),
}

impl std::fmt::Display for CpuError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Isa(error) => error.fmt(f),
            Self::Threads(text) => write!(f, "ALBERT_THREADS={text}: expected a number of threads from 1 to 1024"),
            Self::Spawn(error) => write!(f, "the worker threads could not be started: {error}"),
        }
    }
}

impl std::error::Error for CpuError {}

impl Cpu {
    /// The widest instruction set and all cores, or what `ALBERT_ISA` and `ALBERT_THREADS` say.
    ///
    /// # Errors
    /// One of the two variables is unusable, or no thread can be started.
    pub fn detect() -> Result<Self, CpuError> {
        let isa = Isa::choose().map_err(CpuError::Isa)?;
        let threads = match std::env::var("ALBERT_THREADS") {
            Ok(text) => match text.parse() {
                Ok(n @ 1..=1024) => n,
                _ => return Err(CpuError::Threads(text)),
            },
            Err(_) => std::thread::available_parallelism().map_or(1, usize::from),
        };
        Self::new(isa, threads)
    }

    /// `threads` workers (at least 1) that run `isa`.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(isa: Isa, threads: usize) -> Result<Self, CpuError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .thread_name(|i| format!("kernel-{i}"))
            .build()
            .map_err(CpuError::Spawn)?;
        Ok(Self { isa, pool: Arc::new(pool) })
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Number of worker threads.
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Runs `f` on a worker thread and waits for it. Inside a worker of this pool it is a plain call.
    pub fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.pool.install(f)
    }

    /// Runs `task(0)` ... `task(tasks - 1)`, each once, on the pool's threads, and waits for all.
    pub fn for_each(&self, tasks: usize, task: impl Fn(usize) + Sync + Send) {
        match tasks {
            0 => {}
            1 => task(0),
            _ => self.enter(|| (0..tasks).into_par_iter().with_max_len(1).for_each(&task)),
        }
    }

    /// Runs `work(i)` once on each worker i at the same time: for probes and for warming up, never for results.
    pub fn on_every_thread(&self, work: impl Fn(usize) + Sync) {
        self.pool.broadcast(|context| work(context.index()));
    }

    /// Cuts `out` into chunks of `chunk` items (the last may be shorter) and runs `task(i, chunk_i)` for each.
    pub fn for_each_chunk<T: Send>(&self, out: &mut [T], chunk: usize, task: impl Fn(usize, &mut [T]) + Sync + Send) {
        let out = Disjoint::new(out);
        self.for_each(out.len().div_ceil(chunk.max(1)), |i| {
            let range = i * chunk..((i + 1) * chunk).min(out.len());
            // SAFETY: chunk ranges of different tasks do not overlap, and every task runs once.
            task(i, unsafe { out.slice(range) });
        });
    }
}

/// A mutable slice that tasks write in parallel, each a part of its own: the tiles of one output.
///
/// The borrow keeps everybody else away; that the parts are disjoint is the promise of whoever calls the unsafe
/// methods.
#[derive(Debug)]
pub struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Disjoint<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Disjoint<'_, T> {}

// SAFETY: it is a &mut [T] whose disjoint parts go to different threads; parts of a T: Send slice may be sent.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}
// SAFETY: as above; every access through a shared reference is an unsafe call that promises disjointness.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Takes the slice over.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }
    /// Number of items.
    pub fn len(&self) -> usize {
        self.len
    }
    /// True if there are no items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The items in `range`. Panics if it reaches beyond the end.
    ///
    /// # Safety
    /// No other reference to an item in `range` is alive while the result is.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range is within the slice; that it is not aliased is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
    /// The address of item `index`, for kernels that write tiles with a leading dimension. Panics beyond the end.
    pub fn ptr(&self, index: usize) -> *mut T {
        assert!(index <= self.len);
        // SAFETY: at most one past the end of the slice.
        unsafe { self.start.add(index) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_for_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let cpu = Cpu::new(Isa::choose().unwrap(), threads).unwrap();
            for (len, chunk) in [(0, 3), (1, 3), (10, 3), (1000, 1), (1000, 1001)] {
                let mut out = vec![0u32; len];
                cpu.for_each_chunk(&mut out, chunk, |i, part| part.iter_mut().for_each(|x| *x += i as u32 + 1));
                let expected: Vec<u32> = (0..len).map(|j| (j / chunk) as u32 + 1).collect();
                assert_eq!(out, expected, "{threads} threads, {len} items in chunks of {chunk}");
            }
        }
    }
}
