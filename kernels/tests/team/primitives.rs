//! The names of `src/pool/sync.rs`, from loom.

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

/// Runs `f`: a panic in a model is its result.
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

/// What a thread does that has to wait.
#[derive(Clone, Copy)]
pub(crate) enum Wait {
    /// Polls for ever.
    Poll,
    /// Blocks at once.
    Block,
}

thread_local! {
    /// For the models that this thread checks: loom runs all threads of a model on one.
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

/// Runs `model` under all interleavings with at most so many preemptions, and prints how many executions that took.
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
