//! Threads: work is cut by its shape into numbered tasks, and a task's result never depends on who runs it.
//!
//! A pass enters the pool once ([`Cpu::enter`]); inside, the pool's threads are a `team` that waits for its loops awake.
//! No number that a kernel computes may depend on the number of threads: results are equal to the bit for 1 and for 64.
//! Work is cut by shape alone, but for products, whose sums do not depend on where C is cut.
#![allow(unsafe_code)]

mod team;

use crate::simd::Isa;
use std::{cell::Cell, marker::PhantomData, ops::Range, sync::Arc};
use team::Team;

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

    /// Runs `f` on a worker thread and waits for it; the other workers stay awake for its loops until it returns. Inside
    /// `f` it is a plain call.
    ///
    /// Rayon's own iterators find no other worker in there; they want [`install`](Self::install).
    pub fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        if self.threads() == 1 || self.role() != Role::Outside {
            return self.pool.install(f);
        }
        self.pool.install(|| {
            let team = Team::new(self.threads());
            // A thread that waits in rayon runs what others have put up, members of teams among it. One that has a loop or
            // a team to finish may not become a member: it would not come back before that team is over. So it has a role
            // until its own members are gone.
            let _busy = InRole::new(Role::Member(self.id()));
            rayon::scope(|scope| {
                for me in 1..self.threads() {
                    let team = &team;
                    scope.spawn(move |_| match ROLE.get() {
                        Role::Outside => {
                            let _role = InRole::new(Role::Member(self.id()));
                            team.take_part(me);
                        }
                        _ => team.stay_away(),
                    });
                }
                let _leads = Leads { team: &team, role: InRole::new(Role::Leader(self.id(), &raw const team)) };
                f()
            })
        })
    }

    /// Runs `f` on a worker thread and waits for it; rayon's iterators inside run on all workers.
    pub fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.pool.install(f)
    }

    /// Runs `task(0)` ... `task(tasks - 1)`, each once, on the pool's threads, and waits for all. Inside a task it is a
    /// plain loop.
    pub fn for_each(&self, tasks: usize, task: impl Fn(usize) + Sync + Send) {
        self.share(tasks, &task);
    }

    /// [`for_each`](Self::for_each), compiled once: what rayon makes of a closure's type is more code than most kernels, and
    /// a task is long enough to hide the call.
    fn share(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        match (tasks, self.role()) {
            (0, _) => {}
            (1, _) => task(0),
            (_, Role::Leader(_, team)) => {
                // Its own task is in the loop like everybody's.
                let _role = InRole::new(Role::Member(self.id()));
                // SAFETY: a thread is leader while the team lives (see `enter`), and only outside of tasks.
                unsafe { &*team }.run(tasks, task);
            }
            (_, Role::Member(_)) => (0..tasks).for_each(task),
            (_, Role::Outside) if self.threads() == 1 => self.pool.install(|| (0..tasks).for_each(task)),
            (_, Role::Outside) => self.enter(|| self.share(tasks, task)),
        }
    }

    /// Runs `work(i)` once on each worker at the same time, i from 0 up: for probes and for warming up, never for results.
    /// Inside [`enter`](Self::enter) a worker that is busy with something of rayon's is left out.
    pub fn on_every_thread(&self, work: impl Fn(usize) + Sync) {
        self.broadcast(&work);
    }

    fn broadcast(&self, work: &(dyn Fn(usize) + Sync)) {
        match self.role() {
            Role::Outside => drop(self.pool.broadcast(|context| work(context.index()))),
            Role::Leader(_, team) => {
                let _role = InRole::new(Role::Member(self.id()));
                // SAFETY: as in `for_each`.
                unsafe { &*team }.run_on_all(work);
            }
            Role::Member(_) => panic!("`on_every_thread` inside a task would wait for the task's own thread"),
        }
    }

    /// What the calling thread is for this pool.
    fn role(&self) -> Role {
        match ROLE.get() {
            role @ (Role::Leader(pool, _) | Role::Member(pool)) if pool == self.id() => role,
            _ => Role::Outside,
        }
    }

    /// The pool, as long as it lives.
    fn id(&self) -> usize {
        Arc::as_ptr(&self.pool).addr()
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

/// What a thread is for a pool.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// Nothing, or it runs what nobody entered the pool for.
    Outside,
    /// It runs what entered the pool, between loops.
    Leader(usize, *const Team),
    /// It runs a task.
    Member(usize),
}

thread_local! {
    static ROLE: Cell<Role> = const { Cell::new(Role::Outside) };
}

/// A role, until it is dropped.
struct InRole(Role);

impl InRole {
    fn new(role: Role) -> Self {
        Self(ROLE.replace(role))
    }
}

impl Drop for InRole {
    fn drop(&mut self) {
        ROLE.set(self.0);
    }
}

/// Ends the team before the leader waits for its members to go, also if what it runs panics.
struct Leads<'a> {
    team: &'a Team,
    #[expect(dead_code, reason = "dropped with the team's end")]
    role: InRole,
}

impl Drop for Leads<'_> {
    fn drop(&mut self) {
        self.team.end();
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
    use std::{
        collections::HashSet,
        sync::{
            Mutex,
            atomic::{AtomicUsize, Ordering},
        },
    };

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

    fn pool_of(threads: usize) -> Cpu {
        Cpu::new(Isa::choose().unwrap(), threads).unwrap()
    }

    #[test]
    fn a_loop_sees_what_the_loop_before_it_wrote() {
        for threads in [2, 3, 5] {
            let cpu = pool_of(threads);
            let sum = cpu.enter(|| {
                let (mut from, mut to) = (vec![0u64; 61], vec![0u64; 61]);
                for round in 0..3000 {
                    // Every element depends on two of the last round, which other threads wrote.
                    let len = 2 + round % 60;
                    cpu.for_each_chunk(&mut to[..len], 1 + round % 3, |i, part| {
                        for (j, x) in part.iter_mut().enumerate() {
                            let at = i * (1 + round % 3) + j;
                            *x = (from[at] ^ from[(at + 7) % 61]).wrapping_add((at * round) as u64);
                        }
                    });
                    if round % 500 == 0 {
                        // Longer than members stay awake.
                        std::thread::sleep(std::time::Duration::from_millis(5));
                    }
                    std::mem::swap(&mut from, &mut to);
                }
                from
            });
            let expected = pool_of(1).enter(|| {
                let (mut from, mut to) = (vec![0u64; 61], vec![0u64; 61]);
                for round in 0..3000 {
                    for at in 0..2 + round % 60 {
                        to[at] = (from[at] ^ from[(at + 7) % 61]).wrapping_add((at * round) as u64);
                    }
                    std::mem::swap(&mut from, &mut to);
                }
                from
            });
            assert_eq!(sum, expected, "{threads} threads");
        }
    }

    #[test]
    fn loops_in_tasks_entering_twice_and_other_pools_are_plain_calls() {
        let (cpu, other) = (pool_of(3), pool_of(2));
        let count = AtomicUsize::new(0);
        cpu.enter(|| {
            cpu.for_each(5, |_| {
                cpu.for_each(7, |_| {
                    cpu.enter(|| other.for_each(3, |_| _ = count.fetch_add(1, Ordering::Relaxed)));
                });
            });
            cpu.enter(|| cpu.for_each(2, |_| _ = count.fetch_add(1, Ordering::Relaxed)));
        });
        assert_eq!(count.into_inner(), 5 * 7 * 3 + 2);
    }

    #[test]
    fn every_thread_takes_part_inside_and_outside() {
        let cpu = pool_of(4);
        let threads = || {
            let seen = Mutex::new(HashSet::new());
            cpu.on_every_thread(|i| {
                assert!(i < 4);
                seen.lock().unwrap().insert(std::thread::current().id());
            });
            seen.into_inner().unwrap()
        };
        let outside = threads();
        assert_eq!(outside.len(), 4);
        assert_eq!(cpu.enter(threads), outside);
    }

    #[test]
    fn a_panic_in_any_task_reaches_the_caller_and_the_pool_goes_on() {
        let cpu = pool_of(3);
        for bad in [0, 8, 15] {
            let ran = AtomicUsize::new(0);
            let task = |i: usize| {
                ran.fetch_add(1, Ordering::Relaxed);
                assert_ne!(i, bad, "task {bad}");
                std::thread::sleep(std::time::Duration::from_micros(300));
            };
            let caught =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cpu.enter(|| cpu.for_each(16, task))));
            let message = *caught.unwrap_err().downcast::<String>().unwrap();
            assert!(message.contains(&format!("task {bad}")), "{message}");
            assert!(ran.into_inner() <= 16);
            let after = AtomicUsize::new(0);
            cpu.for_each(16, |_| _ = after.fetch_add(1, Ordering::Relaxed));
            assert_eq!(after.into_inner(), 16);
        }
    }

    #[test]
    fn several_callers_share_a_pool() {
        let cpu = pool_of(2);
        std::thread::scope(|scope| {
            for caller in 0..4usize {
                let cpu = cpu.clone();
                scope.spawn(move || {
                    for round in 0..200 {
                        let mut out = vec![0; 50];
                        cpu.for_each_chunk(&mut out, 3, |i, part| part.fill(caller + round + i));
                        assert!(out.iter().enumerate().all(|(j, &x)| x == caller + round + j / 3));
                    }
                });
            }
        });
    }
}
