//! Ctrl-C and SIGTERM: the first asks the run to stop after the step and to save, the second ends the program at once.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Exit code of a run that was interrupted and saved itself, as shells expect it (128 + SIGINT).
pub(crate) const INTERRUPTED: u8 = 130;

/// A flag that becomes true at the first Ctrl-C or SIGTERM.
///
/// # Errors
/// The handler cannot be installed.
pub(crate) fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let handler = Arc::clone(&flag);
    ctrlc::set_handler(move || {
        if handler.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(INTERRUPTED));
        }
        eprintln!("\nstopping after this step and saving; once more to stop at once without saving");
    })?;
    Ok(flag)
}
