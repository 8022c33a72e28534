//! SIGINT (Ctrl-C), SIGTERM and SIGHUP: the first stops the run after the current step and saves, the second ends the program
//! immediately.
//!
//! A signal that was ignored at the start remains ignored: `nohup albert pretrain ..` continues when its terminal closes,
//! and a Ctrl-C in a script does not stop the script's background jobs.

use crate::output::tell;
use anyhow::Context;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// Exit code of an interrupted and saved run: 128 + SIGINT, by the convention of shells.
pub(crate) const INTERRUPTED: u8 = 130;

/// Returns a flag that the first signal sets.
///
/// # Errors
/// The handler or its thread cannot be installed.
pub(crate) fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&flag);
    handle(move |signals| {
        for _ in signals.forever() {
            if stop.swap(true, Ordering::SeqCst) {
                std::process::exit(i32::from(INTERRUPTED));
            }
            tell!("\nstopping after this step and saving; press again to stop immediately without saving");
        }
    })?;
    Ok(flag)
}

/// Runs `work` when a signal ends the program.
///
/// # Errors
/// As for [`stop_flag`].
pub(crate) fn before_end(work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    handle(|signals| {
        if let Some(signal) = signals.forever().next() {
            work();
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    })
}

/// Runs `wait` with the signals on a separate thread.
fn handle(wait: impl FnOnce(&mut Signals) + Send + 'static) -> anyhow::Result<()> {
    let ignored = ignored_at_start();
    let heeded = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(heeded).context("cannot install signal handlers")?;
    let thread = thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || wait(&mut signals)).context("cannot start the signal thread")?;
    Ok(())
}

/// Signals that this process ignores, bit `n - 1` for signal `n`; none if /proc does not report them.
fn ignored_at_start() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
