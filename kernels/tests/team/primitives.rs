//! Replacement of `src/pool/sync.rs` with the types of loom.

pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize as AtomicCount, Ordering::Relaxed},
    },
    time::Instant,
};

/// Runs `f` without catching: a panic fails the model.
pub(crate) fn catch_unwind<R>(f: impl FnOnce() -> R) -> std::thread::Result<R> {
    Ok(f())
}

pub(crate) struct Cell<T>(loom::cell::UnsafeCell<T>);

impl<T> Cell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::cell::UnsafeCell::new(value))
    }
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        self.0.with(read)
    }
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(write)
    }
}

/// Behavior of a waiting thread.
#[derive(Clone, Copy)]
pub(crate) enum Wait {
    /// Polls forever.
    Poll,
    /// Blocks at once.
    Block,
}

thread_local! {
    /// Setting of the models that this thread checks: loom runs all threads of a model on one OS thread.
    static WAIT: std::cell::Cell<Wait> = const { std::cell::Cell::new(Wait::Block) };
}

pub(crate) struct Patience;

impl Patience {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn pause(&mut self, _in_pass: bool) -> bool {
        match WAIT.get() {
            Wait::Poll => {
                loom::thread::yield_now();
                true
            }
            Wait::Block => false,
        }
    }
}

/// Runs `model` under all interleavings with at most `preemptions` preemptions, and prints the number of executions.
pub(crate) fn check(name: &str, wait: Wait, preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    WAIT.set(wait);
    let executions = Arc::new(AtomicCount::new(0));
    let (start, count) = (Instant::now(), Arc::clone(&executions));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(move || {
        count.fetch_add(1, Relaxed);
        model();
    });
    println!("{name}: {} executions, {:.1} s", executions.load(Relaxed), start.elapsed().as_secs_f64());
}
