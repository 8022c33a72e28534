//! A team: the pool's threads while a pass runs, awake between its loops.
//!
//! A step is thousands of loops of a few hundred microseconds. A thread that goes to sleep whenever its half of a loop is
//! done is woken for the next by the operating system, which takes as long as a small loop; so members of a team look for
//! the next loop themselves, and sleep only when there was none for [`STAY`].
//!
//! ```text
//! leader   open(loop 1) ── tasks ── close ─────── open(loop 2) ── tasks ── close ── ... ── over
//! member        └ join ──── tasks ── leave    look   └ join ───── tasks ── leave    look      └ goes
//! ```
//!
//! One word says everything: the number of the loop, how many members are in it, whether it is open, whether all is over.
//! A member that comes too late for a loop does not join it, and the leader waits for those alone that have joined.
//!
//! Each participant has a share of the tasks, neighbours beside each other, the same share of every loop: what it wrote in
//! the last loop is in its cache. Who is done helps the others.

use std::{
    any::Any,
    cell::UnsafeCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Whether members may join the loop.
const OPEN: u64 = 1;
/// Whether there will be no more loops.
const OVER: u64 = 2;
/// A member in the loop.
const MEMBER: u64 = 4;
/// The place of the number of the loop.
const NUMBER: u32 = 32;

/// How long a member looks for work before it lets other threads go first.
const SPIN: Duration = Duration::from_micros(50);
/// How long a member looks for work before it sleeps.
const STAY: Duration = Duration::from_millis(2);

/// The tasks of a loop.
#[derive(Clone, Copy)]
struct Loop {
    task: *const (dyn Fn(usize) + Sync + 'static),
    tasks: usize,
    /// Whether participants keep to their shares.
    own_only: bool,
}

/// The next task of a participant's share; on a cache line of its own.
#[repr(align(128))]
struct Share(AtomicUsize);

pub(super) struct Team {
    state: AtomicU64,
    /// Written by the leader while no loop is open and no member in one, read by members that have joined.
    job: UnsafeCell<Loop>,
    shares: Box<[Share]>,
    /// Participants that are done with the loop, where all have to take part.
    done: AtomicUsize,
    /// Participants that will not come.
    away: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleepers: Mutex<usize>,
    news: Condvar,
    /// As many as `sleepers` says, to be asked without the lock.
    asleep: AtomicUsize,
}

// SAFETY: everything but `job` is shared by its own means. `job` is written by the leader alone, before it opens a loop
// (release) and after all members have left the one before (acquire); members read it after joining (acquire) and before
// leaving (release). The closure behind its pointer is Sync.
unsafe impl Sync for Team {}
// SAFETY: as above; nothing belongs to a thread.
unsafe impl Send for Team {}

fn nothing(_: usize) {}

impl Team {
    /// A team of a leader and `participants - 1` members.
    pub(super) fn new(participants: usize) -> Self {
        Self {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(Loop { task: &nothing, tasks: 0, own_only: false }),
            shares: (0..participants).map(|_| Share(AtomicUsize::new(0))).collect(),
            done: AtomicUsize::new(0),
            away: AtomicUsize::new(0),
            panic: Mutex::new(None),
            sleepers: Mutex::new(0),
            news: Condvar::new(),
            asleep: AtomicUsize::new(0),
        }
    }

    /// Runs `task(0)` ... `task(tasks - 1)`, each once, on whoever is there. The leader alone may call it, and not from a
    /// task.
    pub(super) fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.lead(tasks, task, false);
    }

    /// Runs `work(i)` on every participant i at the same time, and waits until all have come who will.
    pub(super) fn run_on_all(&self, work: &(dyn Fn(usize) + Sync)) {
        self.lead(self.shares.len(), work, true);
    }

    fn lead(&self, tasks: usize, task: &(dyn Fn(usize) + Sync), own_only: bool) {
        // SAFETY: the same fat pointer; the lifetime is over when this function returns or unwinds, which it does after
        // `Close` has waited for everybody who could call it.
        let task: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(task as *const _) };
        let job = Loop { task, tasks, own_only };
        // SAFETY: no loop is open and no member in one: `Close` waited for that, or there was none yet.
        unsafe { *self.job.get() = job };
        for (i, share) in self.shares.iter().enumerate() {
            share.0.store(self.share(tasks, i).start, Ordering::Relaxed);
        }
        self.done.store(0, Ordering::Relaxed);
        let number = (self.state.load(Ordering::Relaxed) >> NUMBER) + 1;
        // Sequentially consistent, like what a member does before it sleeps: either it sees the loop, or it is seen here.
        self.state.store(number << NUMBER | OPEN, Ordering::SeqCst);
        self.wake();
        {
            let _close = Close { team: self, all: own_only };
            self.work(&job, 0);
        }
        let panic = self.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) > 0 {
            let _sleepers = self.sleepers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            self.news.notify_all();
        }
    }

    /// Takes part in the leader's loops until they are over, as participant `me` (not 0, which is the leader).
    pub(super) fn take_part(&self, me: usize) {
        let mut seen = 0;
        loop {
            let state = self.look(seen);
            if state & OVER != 0 {
                return;
            }
            if self.state.compare_exchange(state, state + MEMBER, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            seen = state >> NUMBER;
            // SAFETY: this member has joined, so the leader does not write until it has left.
            let job = unsafe { *self.job.get() };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work(&job, me))) {
                self.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(panic);
            }
            self.state.fetch_sub(MEMBER, Ordering::Release);
        }
    }

    /// Tells that a member will not come.
    pub(super) fn stay_away(&self) {
        self.away.fetch_add(1, Ordering::Release);
    }

    /// Ends the team: members go. The leader alone may call it, and not from a task.
    pub(super) fn end(&self) {
        self.state.store(OVER, Ordering::SeqCst);
        self.wake();
    }

    /// Waits for a loop of another number than `seen` to be open, or for the end.
    fn look(&self, seen: u64) -> u64 {
        let is_news = |state: u64| state & OVER != 0 || (state & OPEN != 0 && state >> NUMBER != seen);
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                let state = self.state.load(Ordering::Acquire);
                if is_news(state) {
                    return state;
                }
                std::hint::spin_loop();
            }
            match start.elapsed() {
                waited if waited > STAY => break,
                waited if waited > SPIN => thread::yield_now(),
                _ => {}
            }
        }
        let mut sleepers = self.sleepers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *sleepers += 1;
        self.asleep.store(*sleepers, Ordering::SeqCst);
        let state = loop {
            let state = self.state.load(Ordering::SeqCst);
            if is_news(state) {
                break state;
            }
            sleepers = self.news.wait(sleepers).unwrap_or_else(|poisoned| poisoned.into_inner());
        };
        *sleepers -= 1;
        self.asleep.store(*sleepers, Ordering::SeqCst);
        state
    }

    /// The tasks of participant `i`.
    fn share(&self, tasks: usize, i: usize) -> std::ops::Range<usize> {
        let participants = self.shares.len();
        tasks * i / participants..tasks * (i + 1) / participants
    }

    /// Does what is left of the loop, participant `me`'s share first.
    fn work(&self, job: &Loop, me: usize) {
        let _done = Done(&self.done);
        // SAFETY: whoever calls this has joined the loop or leads it, and it is not closed until they have left.
        let task = unsafe { &*job.task };
        let participants = self.shares.len();
        let others = if job.own_only { 1 } else { participants };
        for i in (0..others).map(|ahead| (me + ahead) % participants) {
            let end = self.share(job.tasks, i).end;
            loop {
                let next = self.shares[i].0.fetch_add(1, Ordering::Relaxed);
                if next >= end {
                    break;
                }
                task(next);
            }
        }
    }
}

/// Counts a participant as done, also one that panics.
struct Done<'a>(&'a AtomicUsize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Closes the loop and waits for the members that have joined it (all members, if all have to), also if the leader's task
/// panics: nobody may use the closure after this.
struct Close<'a> {
    team: &'a Team,
    all: bool,
}

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let team = self.team;
        if self.all {
            wait_until(|| team.done.load(Ordering::Acquire) + team.away.load(Ordering::Acquire) == team.shares.len());
        }
        team.state.fetch_and(!OPEN, Ordering::AcqRel);
        wait_until(|| team.state.load(Ordering::Acquire) & ((1 << NUMBER) - MEMBER) == 0);
    }
}

/// Looks until `is_so`; others may go first after a while.
fn wait_until(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            if is_so() {
                return;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            thread::yield_now();
        }
    }
}
