//! Ends a rank that a library does not give back.
//!
//! Messages are tested without waiting, so that a rank notices by itself that another is late. Yet a library may wait inside a
//! call: `MPI_Finalize` for all ranks, for instance. No test of ours runs then.

use crate::error::EngineError;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// Pause between two looks of the watchdog.
const LOOK: Duration = Duration::from_millis(100);

/// Watches the calls of one thread.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    /// Counts calls of the library that have returned.
    returned: AtomicU64,
    /// Current activity of this rank: the longest time without a return, and the error if that passes.
    watched: Mutex<Option<(Duration, EngineError)>>,
}

impl Watchdog {
    /// Starts a thread that calls `end` for a call that does not return.
    pub(super) fn start(end: impl Fn(&EngineError) + Send + 'static) -> Arc<Self> {
        let watchdog = Arc::new(Self::default());
        let watching = Arc::downgrade(&watchdog);
        thread::spawn(move || {
            // Looks that saw the same number. They are counted, not timed: a process that was stopped itself has had no
            // chance to return.
            let (mut seen, mut looks) = (0, 0);
            while let Some(watchdog) = watching.upgrade() {
                let returned = watchdog.returned.load(Relaxed);
                (seen, looks) = (returned, if returned == seen { looks + 1 } else { 0 });
                if let Some((timeout, error)) = &*watchdog.watched.lock().unwrap_or_else(PoisonError::into_inner)
                    && LOOK * looks > *timeout
                {
                    end(error);
                    return;
                }
                drop(watchdog);
                thread::sleep(LOOK);
            }
        });
        watchdog
    }

    /// Says that the library has given this rank back.
    pub(super) fn returned(&self) {
        self.returned.fetch_add(1, Relaxed);
    }

    /// Runs `work`, which calls [`returned`](Self::returned) at least every `timeout`; otherwise the rank ends with `error`.
    pub(super) fn watch<T>(&self, timeout: Duration, error: EngineError, work: impl FnOnce() -> T) -> T {
        let set = |watched| *self.watched.lock().unwrap_or_else(PoisonError::into_inner) = watched;
        self.returned();
        set(Some((timeout, error)));
        let result = work();
        set(None);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{RecvTimeoutError, channel};

    #[test]
    fn a_call_that_does_not_return_ends_with_its_error() {
        let (sender, ended) = channel();
        let watchdog = Watchdog::start(move |error| sender.send(error.to_string()).expect("the test listens"));
        let timeout = 3 * LOOK;
        let error = |text: &str| EngineError::Launch(text.to_owned());
        // Longer than the timeout, but it returns often.
        watchdog.watch(timeout, error("busy"), || {
            for _ in 0..10 {
                thread::sleep(LOOK);
                watchdog.returned();
            }
        });
        // Nothing is watched.
        assert_eq!(ended.recv_timeout(10 * LOOK), Err(RecvTimeoutError::Timeout));
        let said = watchdog.watch(timeout, error("stuck"), || ended.recv_timeout(50 * LOOK));
        assert_eq!(said, Ok(error("stuck").to_string()));
    }
}
