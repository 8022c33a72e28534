//! Threads: work is cut by its shape into numbered tasks, and a task's result does not depend on the thread that runs it.
//!
//! A [`Cpu`] has a team of threads for the loops of kernels (`team`), which the caller leads, and a rayon pool for
//! everything else ([`Cpu::install`]). Results are equal to the bit for 1 and for 64 threads: work is cut by shape alone,
//! except for products, whose sums do not depend on where C is cut.
#![allow(unsafe_code)]

mod cache;
mod order;
mod sync;
mod team;
#[cfg(test)]
mod tests;

pub use cache::Caches;

use crate::simd::{Isa, IsaKind};
use crate::tiles::{TileKind, Tiles};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{
    cell::RefCell,
    io,
    marker::PhantomData,
    ops::Range,
    sync::{Arc, OnceLock},
    thread::{self, JoinHandle},
};
use team::{MAX_THREADS, Team};

/// An instruction set and a pool of threads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cpu {
    isa: Isa,
    tiles: Tiles,
    caches: Caches,
    pool: Arc<Pool>,
}

/// Instruction set and number of threads, such as `avx2 with 1 thread`.
impl std::fmt::Display for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let threads = self.threads();
        write!(f, "{} with {threads} thread{}", self.isa, if threads == 1 { "" } else { "s" })
    }
}

/// Error of [`Cpu::detect`] and [`Cpu::new`].
#[derive(Debug)]
pub enum CpuError {
    /// `ALBERT_ISA` names an instruction set that this machine lacks.
    Isa(crate::simd::UnknownIsa),
    /// `ALBERT_ISA` is `amx`, and why this process cannot use it.
    Amx(String),
    /// `ALBERT_THREADS`, or the number given to [`Cpu::new`], is not a number from 1 to 1024.
    Threads(String),
    /// `ALBERT_CACHES` is not three sizes from 4K to 1024M that increase.
    Caches(String),
    /// The operating system did not start a thread.
    Spawn(io::Error),
}

impl std::fmt::Display for CpuError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Isa(error) => error.fmt(f),
            Self::Amx(reason) => write!(f, "ALBERT_ISA=amx: {reason}; choose another or unset it"),
            Self::Threads(text) => write!(f, "ALBERT_THREADS={text}: expected a number of threads from 1 to 1024"),
            Self::Caches(text) => {
                write!(
                    f,
                    "ALBERT_CACHES={text}: expected sizes of L1, L2 and L3 from 4K to 1024M, such as 32K,512K,32M"
                )
            }
            Self::Spawn(error) => {
                write!(f, "the worker threads could not be started: {error}; set ALBERT_THREADS to a smaller number")
            }
        }
    }
}

impl std::error::Error for CpuError {}

/// Threads of [`Cpu::detect`], before the variable and the cores; 0 if nobody chose.
static CHOSEN_THREADS: AtomicUsize = AtomicUsize::new(0);

/// Sets the threads of every later [`Cpu::detect`], whatever `ALBERT_THREADS` says: for a flag on the command line.
pub fn choose_threads(threads: usize) {
    CHOSEN_THREADS.store(threads, Ordering::Relaxed);
}

/// Runs a loop: calls its second argument once with a task that calls its first one.
type Watch = fn(&(dyn Fn(usize) + Sync), &dyn Fn(&(dyn Fn(usize) + Sync)));

static WATCH: OnceLock<Watch> = OnceLock::new();

/// Has `watch` run every later loop of several tasks and threads, for a trace. The first call in a process counts.
pub fn watch_loops(watch: Watch) {
    let _ = WATCH.set(watch);
}

impl Cpu {
    /// The widest instruction set and a thread for each core, unless `ALBERT_ISA` and `ALBERT_THREADS`, or [`choose_threads`],
    /// say otherwise. AMX is used with AVX-512 if the machine has it; `ALBERT_ISA=amx` demands it, and `ALBERT_ISA=avx512` excludes it.
    ///
    /// The number of cores is that of the affinity mask, or the CPU quota of the cgroup (v1 and v2) if that is less.
    ///
    /// # Errors
    /// One of the two variables or `ALBERT_CACHES` is unusable, or a thread cannot be started.
    pub fn detect() -> Result<Self, CpuError> {
        Self::detect_share(1)
    }

    /// [`Cpu::detect`] for one of `processes` that share this machine: by default, its share of the cores if it may use all,
    /// else those that it may use.
    ///
    /// # Errors
    /// As [`Cpu::detect`].
    pub fn detect_share(processes: usize) -> Result<Self, CpuError> {
        let wanted = std::env::var("ALBERT_ISA").ok();
        let is_amx = wanted.as_deref() == Some(TileKind::Amx.name());
        let isa = if is_amx {
            Isa::new(IsaKind::Avx512).ok_or_else(|| CpuError::Amx("this machine has no avx512".to_string()))?
        } else {
            Isa::choose().map_err(CpuError::Isa)?
        };
        let chosen = CHOSEN_THREADS.load(Ordering::Relaxed);
        let threads = match std::env::var("ALBERT_THREADS") {
            _ if chosen > 0 => chosen,
            Ok(text) => match text.parse() {
                Ok(n @ 1..=MAX_THREADS) => n,
                _ => return Err(CpuError::Threads(text)),
            },
            Err(_) if processes > 1 && cores() == online_cores() => (cores() / processes).max(1),
            Err(_) => cores(),
        };
        let cpu = Self::new(isa, threads)?;
        match wanted {
            Some(_) if is_amx => cpu.with_tiles(TileKind::Amx).map_err(CpuError::Amx),
            // Named, it is AVX-512 alone.
            Some(_) if isa.kind() == IsaKind::Avx512 => {
                Ok(cpu.with_tiles(TileKind::Fma).expect("beside every AVX-512"))
            }
            _ => Ok(cpu),
        }
    }

    /// `threads` threads (at least 1) that run `isa`: the caller of a loop, and `threads - 1` that are started here. Products are
    /// blocked for the machine's caches, or for those of `ALBERT_CACHES`.
    ///
    /// # Errors
    /// A thread cannot be started, `threads` is greater than 1024, or `ALBERT_CACHES` is unusable.
    pub fn new(isa: Isa, threads: usize) -> Result<Self, CpuError> {
        if threads > MAX_THREADS {
            return Err(CpuError::Threads(threads.to_string()));
        }
        let caches = match std::env::var_os("ALBERT_CACHES").map(|text| text.to_string_lossy().into_owned()) {
            Some(text) => Caches::parse(&text).ok_or(CpuError::Caches(text))?,
            None => Caches::detect(),
        };
        // One more than `cores`, which rounds a quota down.
        let pool = Pool::new(threads.max(1), cores() + 1).map_err(CpuError::Spawn)?;
        Ok(Self { isa, tiles: Tiles::fastest(isa), caches, pool: Arc::new(pool) })
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Unit that computes products in bf16: the fastest tiles of the machine, unless [`with_tiles`](Self::with_tiles) chose others.
    pub fn tiles(&self) -> Tiles {
        self.tiles
    }

    /// The same threads with tiles of another kind.
    ///
    /// # Errors
    /// Why this machine does not have them.
    pub fn with_tiles(self, kind: TileKind) -> Result<Self, String> {
        Ok(Self { tiles: Tiles::new(kind, self.isa)?, ..self })
    }

    /// Caches that products are blocked for.
    pub fn caches(&self) -> Caches {
        self.caches
    }

    /// Bytes of the cache of `level` for data, 1 to 3, as the processor reports; `None` if it reports none.
    pub fn cache_bytes(level: u32) -> Option<usize> {
        cache::reported(level)
    }

    /// The same threads, with products blocked for other caches.
    pub fn with_caches(self, caches: Caches) -> Self {
        Self { caches, ..self }
    }

    /// Number of threads that run a loop.
    pub fn threads(&self) -> usize {
        self.pool.threads
    }

    /// Runs `f`, a pass, on the calling thread. Until it returns, the pool's threads poll for the next loop for up to 2 ms
    /// before they block, instead of 50 us. Nested passes, and passes of several callers at the same time, are allowed.
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        let _pass = self.pool.team.pass();
        f()
    }

    /// Runs `f` on a thread of the rayon pool and waits for it; rayon's iterators inside run on `threads()` threads.
    pub fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.pool.workers.install(f)
    }

    /// Runs `task(0)` ... `task(tasks - 1)`, each once, on the calling thread and those of the pool, and waits for all.
    /// Inside a task of the same pool it is a plain loop.
    ///
    /// While another caller's loop has the pool's threads, the calling thread runs the tasks itself. So a loop waits for
    /// its own tasks alone, and ends if they end.
    ///
    /// # Panics
    /// With the payload of a task that panics, after all running tasks have ended; other tasks may not have run.
    pub fn for_each(&self, tasks: usize, task: impl Fn(usize) + Sync + Send) {
        self.share(tasks, &task);
    }

    /// [`for_each`](Self::for_each) with one instance for all closures: a task is long enough to hide the indirect call.
    fn share(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        match tasks {
            0 => {}
            1 => task(0),
            _ if self.threads() == 1 || in_task_of(self.id()) => (0..tasks).for_each(task),
            _ => {
                inherited(task, |task| {
                    let _task = InTask::new(self.id());
                    match WATCH.get() {
                        None => self.pool.team.run(tasks, task),
                        Some(watch) => watch(task, &|task| self.pool.team.run(tasks, task)),
                    }
                });
            }
        }
    }

    /// Runs `work(i)` once on each thread at the same time, i from 0 (the calling thread) to `threads() - 1`: for probes and
    /// for warming up, never for results.
    ///
    /// # Deadlocks
    /// Waits for the current loop of another caller. A task that waits for such a call on its own pool never ends.
    ///
    /// # Panics
    /// Inside a task of the same pool, also through a loop of another pool: the task's thread could not take part. And with
    /// the payload of a call that panics.
    pub fn on_every_thread(&self, work: impl Fn(usize) + Sync) {
        assert!(!in_task_of(self.id()), "`on_every_thread` inside a task would wait for the task's own thread");
        inherited(&work, |work| {
            let _task = InTask::new(self.id());
            self.pool.team.run_on_all(work);
        });
    }

    /// Address of the team, unique while it exists.
    fn id(&self) -> usize {
        Arc::as_ptr(&self.pool.team).addr()
    }

    /// Cuts `out` into chunks of `chunk` items (the last may be shorter) and runs `task(i, chunk_i)` for each.
    ///
    /// # Panics
    /// If `chunk` is 0, and as [`for_each`](Self::for_each).
    pub fn for_each_chunk<T: Send>(&self, out: &mut [T], chunk: usize, task: impl Fn(usize, &mut [T]) + Sync + Send) {
        assert!(chunk > 0, "for_each_chunk: chunk is 0; expected at least 1 item a chunk");
        let out = Disjoint::new(out);
        self.for_each(out.len().div_ceil(chunk), |i| {
            // i * chunk < len, so it does not overflow; the end may.
            let range = i * chunk..(i * chunk).saturating_add(chunk).min(out.len());
            // SAFETY: chunk ranges of different tasks do not overlap, and every task runs once.
            task(i, unsafe { out.slice(range) });
        });
    }
}

/// Cores that the process may use: the affinity mask and the cgroup's CPU quota, rounded down, at least 1.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Cores of the machine; 0 where the system does not say.
fn online_cores() -> usize {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    count_of_list(&list).unwrap_or(0)
}

/// Numbers in a list such as `0-3,8,10-11`.
fn count_of_list(list: &str) -> Option<usize> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    list.trim().split(',').map(count).sum()
}

/// The threads of a [`Cpu`].
struct Pool {
    threads: usize,
    team: Arc<Team>,
    members: Vec<JoinHandle<()>>,
    workers: rayon::ThreadPool,
}

impl Pool {
    /// Starts the threads. Where `most_awake` of them are awake, loops that these can run wake no others.
    fn new(threads: usize, most_awake: usize) -> io::Result<Self> {
        let workers = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("rayon-{i}"));
        let workers = workers.build().map_err(io::Error::other)?;
        let team = Arc::new(Team::new(threads, most_awake));
        // Where a thread cannot be started, dropping the pool ends those before it.
        let mut pool = Self { threads, team, members: Vec::new(), workers };
        for me in 1..threads {
            let team = Arc::clone(&pool.team);
            let member = thread::Builder::new().name(format!("kernel-{me}"));
            let take_part = move || {
                let _task = InTask::new(Arc::as_ptr(&team).addr());
                team.take_part(me);
            };
            pool.members.push(member.spawn(take_part)?);
        }
        Ok(pool)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.team.dissolve();
        for member in self.members.drain(..) {
            // A member catches the panics of tasks, so there is no result to look at.
            let _ = member.join();
        }
    }
}

thread_local! {
    /// Pools of the loops that the current thread is in, the innermost last.
    static TASKS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// True if the current thread runs a task of this pool.
fn in_task_of(pool: usize) -> bool {
    TASKS.with_borrow(|pools| pools.contains(&pool))
}

/// Marks the current thread as running tasks of a pool, until dropped.
struct InTask;

impl InTask {
    fn new(pool: usize) -> Self {
        TASKS.with_borrow_mut(|pools| pools.push(pool));
        Self
    }
}

impl Drop for InTask {
    fn drop(&mut self) {
        TASKS.with_borrow_mut(|pools| pools.pop());
    }
}

/// Calls `lead` with `task`. On other threads `task` runs with the `TASKS` of this thread: a task reached through a second
/// pool also blocks the loop of the first.
fn inherited(task: &(dyn Fn(usize) + Sync), lead: impl FnOnce(&(dyn Fn(usize) + Sync))) {
    let pools = TASKS.with_borrow(Vec::clone);
    if pools.is_empty() {
        return lead(task);
    }
    lead(&|i| {
        let _tasks: Vec<InTask> = pools.iter().map(|&pool| InTask::new(pool)).collect();
        task(i);
    });
}

/// Part `i` of `parts` equal parts of `len` units of `unit` items; the last unit may be short.
#[inline(always)]
pub(crate) fn part(len: usize, unit: usize, parts: usize, i: usize) -> Range<usize> {
    let units = len.div_ceil(unit);
    let bound = |i: usize| (units * i / parts * unit).min(len);
    bound(i)..bound(i + 1)
}

/// Mutable slice that tasks write in parallel in disjoint parts, such as the tiles of an output.
///
/// The borrow excludes all other access; callers of the unsafe methods guarantee that the parts are disjoint.
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

// SAFETY: it is a &mut [T], which may be sent if T may.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}
// SAFETY: safe methods read only `start` and `len`. `slice` returns a &mut [T] on another thread, which needs T: Send,
// and its caller guarantees that no two overlap.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Borrows the slice.
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
    /// The items in `range`. Panics if it is not within the slice.
    ///
    /// # Safety
    /// No other reference to an item in `range` is alive while the result is.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range is within the slice; the caller guarantees that it is not aliased.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
    /// Address of item `index`, or of the end, for kernels that write tiles with a leading dimension. Panics beyond the end.
    #[inline(always)]
    pub fn ptr(&self, index: usize) -> *mut T {
        assert!(index <= self.len);
        // SAFETY: at most one past the end of the slice.
        unsafe { self.start.add(index) }
    }
}
