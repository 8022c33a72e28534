//! Journal of cases, written while they run.
//!
//! ```text
//! gemm  17  forward bf16 nt M=128 N=768 K=768        at the start: operation, number, name
//!                                             passed  0.52  0.031      at the end, on the same line
//! ```
//!
//! Fields are separated by tabs. A killed process leaves an incomplete last line, which names the case that ran;
//! `benches/cuda/first.sh` completes the line and continues after it.

#![allow(unsafe_code)]

use anyhow::{Context, Result};
use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Exit code if a case takes longer than the patience.
pub const HUNG: i32 = 4;

/// Journal with a time limit per case; the file is optional. Clones share the state.
#[derive(Clone, Debug)]
pub struct Journal(Arc<State>);

#[derive(Debug)]
struct State {
    file: Option<(PathBuf, Mutex<File>)>,
    /// Deadline and name of the current case.
    deadline: Mutex<Option<(Instant, String)>>,
    patience: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// Appends to `path`, if given. A case that takes longer than `patience` ends the process with [`HUNG`], which is the only
    /// way to stop a kernel that never ends.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn new(path: Option<&Path>, patience: Duration) -> Result<Self> {
        let open = |path: &Path| -> Result<_> {
            let file = OpenOptions::new().create(true).append(true).open(path);
            Ok((path.to_owned(), Mutex::new(file.with_context(|| path.display().to_string())?)))
        };
        let file = path.map(open).transpose()?;
        let journal = Self(Arc::new(State { file, deadline: Mutex::default(), patience }));
        let watched = journal.clone();
        std::thread::spawn(move || watched.watch());
        Ok(journal)
    }

    fn watch(&self) {
        loop {
            std::thread::sleep(Duration::from_millis(100));
            // Locked until the process exits, so that a case that ends now writes nothing more.
            let deadline = lock(&self.0.deadline);
            if let Some((_, what)) = deadline.as_ref().filter(|(end, _)| Instant::now() > *end) {
                let seconds = self.0.patience.as_secs_f64();
                let message = format!("no end after {seconds:.0} s");
                // The process exits even if the lines cannot be written.
                let _ = writeln!(std::io::stdout(), "HUNG {what}: {message}");
                let _ = self.write(&format!("\thung\t\t{seconds:.3}\t{message}\n"));
                // SAFETY: ends the process. The handlers of `exit` are skipped on purpose: the driver's would wait for the kernel.
                unsafe { libc::_exit(HUNG) };
            }
        }
    }

    fn write(&self, text: &str) -> Result<()> {
        let Some((path, file)) = &self.0.file else { return Ok(()) };
        lock(file).write_all(text.as_bytes()).with_context(|| path.display().to_string())
    }

    /// Starts case `number` of `work`, called `name`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin(&self, work: &str, number: usize, name: &str) -> Result<()> {
        self.write(&format!("{work}\t{number}\t{}", field(name)))?;
        *lock(&self.0.deadline) = Some((Instant::now() + self.0.patience, format!("{work} {number}, {name}")));
        Ok(())
    }

    /// Ends the case with these result fields.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end(&self, fields: &[String]) -> Result<()> {
        *lock(&self.0.deadline) = None;
        let fields: Vec<_> = fields.iter().map(|text| field(text)).collect();
        self.write(&format!("\t{}\n", fields.join("\t")))
    }
}

/// Replaces tabs and line breaks.
fn field(text: &str) -> String {
    text.replace(['\t', '\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_what_runs_before_it_ends() {
        let path = std::env::temp_dir().join(format!("albert-journal-{}", std::process::id()));
        let journal = Journal::new(Some(&path), Duration::from_secs(60)).unwrap();
        journal.begin("gemm", 1, "nt M=1").unwrap();
        journal.end(&["passed".into(), "two\nlines".into()]).unwrap();
        journal.begin("gemm", 2, "nt M=2").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "gemm\t1\tnt M=1\tpassed\ttwo lines\ngemm\t2\tnt M=2");
    }
}
