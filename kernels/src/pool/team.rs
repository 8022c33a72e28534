//! Thread team: one leader at a time opens parallel loops, which the members join.
//!
//! A training step is thousands of loops of some hundred microseconds. Waking a blocked thread takes as long as a small
//! loop, so members poll for the next loop for a while before they block ([`Patience`]).
//!
//! ```text
//! leader   open(loop 1) ── tasks ── close, wait ── open(loop 2) ── tasks ── close, wait ── ...
//! member        └ join ──── tasks ── leave     poll    └ join ───── tasks ── leave     poll, then block
//! ```
//!
//! Any thread may lead: a caller that takes the lock `leader` opens its loop for the members. A caller that finds the lock
//! taken runs its tasks itself, one by one, and tries again before each.
//!
//! Liveness: a leader waits only for members that have joined its loop, and those run nothing but its tasks. No thread
//! waits for another caller, except in [`run_on_all`](Team::run_on_all), which blocks until the current loop is over. So a
//! loop ends if its tasks end.
//!
//! One atomic word holds the loop number, the number of members in the loop, the number of blocked members and the flags.
//! A blocked thread is registered in the same word, so an update of the word either sees it or precedes its last check: no
//! wake-up is lost, with no ordering stronger than acquire and release.
//!
//! Each participant has a contiguous range of the tasks, the same range in every loop of as many tasks: data that it wrote
//! in the last loop is in its cache. A participant that has finished its range takes tasks of the other ranges.

use super::sync::{AtomicU64, AtomicUsize, Cell, Condvar, Mutex, MutexGuard, Patience, catch_unwind, order};
use std::{
    any::Any,
    ops::Range,
    panic::{AssertUnwindSafe, resume_unwind},
    sync::{TryLockError, atomic::Ordering::Relaxed},
};

/// Members may join the loop.
const OPEN: u64 = 1;
/// Every member has to take part in the loop, and is counted in it from the start.
const ALL: u64 = 1 << 1;
/// The leader is blocked until the last member leaves.
const LEADER_BLOCKED: u64 = 1 << 2;
/// A task of a member has panicked.
const PANICKED: u64 = 1 << 3;
/// The team is dissolved.
const OVER: u64 = 1 << 4;
/// One member in the loop.
const MEMBER: u64 = 1 << 5;
const MEMBERS: u64 = FIELD * MEMBER;
/// One blocked member.
const BLOCKED: u64 = 1 << 15;
const ALL_BLOCKED: u64 = FIELD * BLOCKED;
/// One loop. The number has 39 bits; a member would have to stay blocked for exactly 2^39 loops to take one for another.
const LOOP: u64 = 1 << 25;
/// Maximum number of members.
const FIELD: u64 = MAX_THREADS as u64 - 1;

/// Maximum participants of a team.
pub(super) const MAX_THREADS: usize = 1024;

/// Blocked members that one thread wakes for a loop; each that wakes up wakes as many.
const FAN_OUT: u64 = 2;

/// Payload of a panic.
type Payload = Box<dyn Any + Send>;

/// The tasks of a loop.
#[derive(Clone, Copy)]
struct Job {
    task: *const (dyn Fn(usize) + Sync + 'static),
    first: usize,
    tasks: usize,
}

/// Next task of a participant's range; on a cache line of its own, and of the adjacent-line prefetcher's pair.
#[repr(align(128))]
struct Next(AtomicUsize);

pub(super) struct Team {
    state: AtomicU64,
    /// Held by the leader of the current loop.
    leader: Mutex<()>,
    /// Written by the leader while no member is in a loop, read by members in the loop.
    job: Cell<Job>,
    /// By participant; the leader is the first.
    next: Box<[Next]>,
    /// First payload of a member of the current loop.
    panic: Mutex<Option<Payload>>,
    /// Number of awake threads from which on a loop wakes no others.
    most_awake: u64,
    /// Callers inside a pass.
    passes: AtomicUsize,
    /// Held while a thread changes from polling to blocking, and by those that wake it.
    blocking: Mutex<()>,
    /// Blocked members.
    opened: Condvar,
    /// A blocked leader.
    left: Condvar,
}

// SAFETY: all fields but `job` are Sync. `job` is written by the holder of `leader` alone, after all members have left the
// loop before (LEAVE, LEFT) and before it opens the next (OPEN); members read it after joining (JOIN) and before leaving.
// The closure behind its pointer is Sync and outlives the loop (`lead`).
unsafe impl Sync for Team {}
// SAFETY: the pointer in `job` is only used inside a loop (above); nothing else is bound to a thread.
unsafe impl Send for Team {}

fn nothing(_: usize) {}

/// Locks; the data of these locks is valid at every point where a thread could unwind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Team {
    /// A team of a leader and `participants - 1` members, each of which is a thread that calls
    /// [`take_part`](Self::take_part). Where `most_awake` threads are awake, a loop wakes no others, except one of all.
    pub(super) fn new(participants: usize, most_awake: usize) -> Self {
        assert!(participants <= MAX_THREADS, "{participants} threads: expected at most {MAX_THREADS}");
        Self {
            state: AtomicU64::new(0),
            leader: Mutex::new(()),
            job: Cell::new(Job { task: &nothing, first: 0, tasks: 0 }),
            next: (0..participants).map(|_| Next(AtomicUsize::new(0))).collect(),
            panic: Mutex::new(None),
            most_awake: most_awake as u64,
            passes: AtomicUsize::new(0),
            blocking: Mutex::new(()),
            opened: Condvar::new(),
            left: Condvar::new(),
        }
    }

    /// Runs `task(0)` ... `task(tasks - 1)`, each once, on the calling thread and the members. Not to be called by a member.
    pub(super) fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        for first in 0..tasks {
            let leader = match self.leader.try_lock() {
                Ok(leader) => leader,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    task(first);
                    continue;
                }
            };
            let result = self.lead(first..tasks, task, OPEN);
            drop(leader);
            return result.unwrap_or_else(|panic| resume_unwind(panic));
        }
    }

    /// Runs `work(i)` on every participant i at the same time. Blocks while another caller leads a loop. Not to be called
    /// by a member, or inside a task.
    pub(super) fn run_on_all(&self, work: &(dyn Fn(usize) + Sync)) {
        let leader = lock(&self.leader);
        let result = self.lead(0..self.next.len(), work, ALL);
        drop(leader);
        result.unwrap_or_else(|panic| resume_unwind(panic));
    }

    /// Leads one loop (OPEN or ALL); the caller holds `leader`. Returns the panic of a task, one if there are several.
    fn lead(&self, tasks: Range<usize>, task: &(dyn Fn(usize) + Sync), kind: u64) -> Result<(), Payload> {
        // SAFETY: only the lifetime changes. The pointer is used inside the loop alone, which is over when `close` returns;
        // nothing between here and there unwinds, because `work` is caught.
        let task: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(task as *const _) };
        let job = Job { task, first: tasks.start, tasks: tasks.len() };
        // SAFETY: this thread holds `leader`, and no member is in a loop: the `close` of the loop before waited for that.
        self.job.with_mut(|slot| unsafe { *slot = job });
        for (i, next) in self.next.iter().enumerate() {
            next.0.store(self.range(&job, i).start, Relaxed);
        }
        let joined = if kind == ALL { (self.next.len() as u64 - 1) * MEMBER } else { 0 };
        // The flags and the number of members are 0: `close` has cleared them.
        let before = self.state.fetch_add(LOOP + kind + joined, order::OPEN);
        if kind == ALL {
            self.wake_all(before);
        } else {
            self.wake_some(before, job.tasks - 1);
        }
        let result = catch_unwind(AssertUnwindSafe(|| self.work(&job, 0, kind)));
        let has_panicked = self.close();
        let panic = if has_panicked { lock(&self.panic).take() } else { None };
        result.and(panic.map_or(Ok(()), Err))
    }

    /// Closes the loop and waits for its members to leave. True if a task of theirs has panicked.
    fn close(&self) -> bool {
        let mut state = self.state.fetch_and(!OPEN, order::LEFT) & !OPEN;
        let mut patience = Patience::new();
        while state & MEMBERS != 0 {
            if !patience.pause(true) {
                self.block_until_left();
            }
            state = self.state.load(order::LEFT);
        }
        // The members are gone, so only numbers of blocked threads change.
        if state & (ALL | LEADER_BLOCKED | PANICKED) != 0 {
            self.state.fetch_and(!(ALL | LEADER_BLOCKED | PANICKED), Relaxed);
        }
        state & PANICKED != 0
    }

    /// Blocks the leader until no member is in the loop.
    fn block_until_left(&self) {
        let mut guard = lock(&self.blocking);
        // The last member to leave after this sees the flag, and takes the lock before it notifies.
        let mut state = self.state.fetch_or(LEADER_BLOCKED, Relaxed);
        while state & MEMBERS != 0 {
            guard = self.left.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
            state = self.state.load(Relaxed);
        }
    }

    /// Participates in loops until the team is dissolved, as participant `me` (from 1; 0 is the leader).
    pub(super) fn take_part(&self, me: usize) {
        let mut seen = 0;
        while let Some(state) = self.next_loop(seen) {
            // A loop of all has counted this member; another has to be joined while it is open.
            if state & OPEN != 0 && self.state.compare_exchange(state, state + MEMBER, order::JOIN, Relaxed).is_err() {
                continue;
            }
            seen = state / LOOP;
            // SAFETY: this member is in the loop, so no leader writes before it has left.
            let job = self.job.with(|job| unsafe { *job });
            if state & OPEN != 0 {
                let participants = (state & MEMBERS) / MEMBER + 2;
                self.wake_some(state, job.tasks.saturating_sub(participants as usize));
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work(&job, me, state & (OPEN | ALL)))) {
                match &mut *lock(&self.panic) {
                    // Dropping a payload runs foreign code, which could panic.
                    Some(_) => std::mem::forget(panic),
                    slot => *slot = Some(panic),
                }
                self.state.fetch_or(PANICKED, Relaxed);
            }
            let before = self.state.fetch_sub(MEMBER, order::LEAVE);
            if before & MEMBERS == MEMBER && before & LEADER_BLOCKED != 0 {
                let _guard = lock(&self.blocking);
                self.left.notify_one();
            }
        }
    }

    /// Waits for a loop other than number `seen`: the state with which it may be joined. None if the team is dissolved.
    fn next_loop(&self, seen: u64) -> Option<u64> {
        let is_next = |state: u64| state & OVER != 0 || state & (OPEN | ALL) != 0 && state / LOOP != seen;
        let mut patience = Patience::new();
        loop {
            let state = self.state.load(order::JOIN);
            if is_next(state) {
                return (state & OVER == 0).then_some(state);
            }
            if patience.pause(self.passes.load(Relaxed) > 0) {
                continue;
            }
            let mut guard = lock(&self.blocking);
            // A leader that opens a loop after this sees a blocked member, and takes the lock before it notifies.
            let mut state = self.state.fetch_add(BLOCKED, Relaxed);
            while !is_next(state) {
                guard = self.opened.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
                state = self.state.load(Relaxed);
            }
            self.state.fetch_sub(BLOCKED, Relaxed);
        }
    }

    /// Wakes some of the members that `state` counts as blocked, if they have tasks and few enough threads are awake.
    fn wake_some(&self, state: u64, tasks: usize) {
        let blocked = (state & ALL_BLOCKED) / BLOCKED;
        if blocked == 0 {
            return;
        }
        let awake = self.next.len() as u64 - blocked;
        let wanted = FAN_OUT.min(blocked).min(self.most_awake.saturating_sub(awake)).min(tasks as u64);
        if wanted > 0 {
            let _guard = lock(&self.blocking);
            (0..wanted).for_each(|_| self.opened.notify_one());
        }
    }

    /// Wakes all members, if `state` counts one as blocked.
    fn wake_all(&self, state: u64) {
        if state & ALL_BLOCKED != 0 {
            let _guard = lock(&self.blocking);
            self.opened.notify_all();
        }
    }

    /// Dissolves the team: its members return. Called outside of loops, and no loop may follow.
    pub(super) fn dissolve(&self) {
        let before = self.state.fetch_or(OVER, Relaxed);
        self.wake_all(before);
    }

    /// Keeps members polling for loops until the guard is dropped.
    pub(super) fn pass(&self) -> Pass<'_> {
        self.passes.fetch_add(1, Relaxed);
        Pass(&self.passes)
    }

    /// Tasks of participant `i`.
    fn range(&self, job: &Job, i: usize) -> Range<usize> {
        let (each, rest) = (job.tasks / self.next.len(), job.tasks % self.next.len());
        let start = |i: usize| job.first + each * i + rest.min(i);
        start(i)..start(i + 1)
    }

    /// Runs tasks of the loop, those of participant `me` first, until all are taken.
    fn work(&self, job: &Job, me: usize, kind: u64) {
        // SAFETY: the caller is in the loop or leads it; the closure lives until `close` returns.
        let task = unsafe { &*job.task };
        if kind == ALL {
            return task(me);
        }
        let participants = self.next.len();
        for i in (0..participants).map(|ahead| (me + ahead) % participants) {
            let end = self.range(job, i).end;
            loop {
                let next = self.next[i].0.fetch_add(1, Relaxed);
                if next >= end {
                    break;
                }
                task(next);
            }
        }
    }
}

/// A caller inside a pass.
pub(super) struct Pass<'a>(&'a AtomicUsize);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
