//! `--trace`: writes the events of a command to a file.

use crate::{
    output::{print_error, tell},
    signals,
};
use anyhow::Result;
use clap::Args;
use engine::trace::Trace;
use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// The trace of this process, until it is written.
static TRACE: Mutex<Option<Trace>> = Mutex::new(None);

/// The option `--trace`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Tracing {
    /// Write a timeline of operations, threads, GPU kernels, memory and exchanges for Perfetto or chrome://tracing (Chrome trace
    /// events): the last 32,768 events of each thread. Rank N writes FILE.N.json, the first FILE.json
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
}

impl Tracing {
    /// Starts the trace of rank `rank`, if the option is set. Must be called before a device is opened; [`finish`] ends it.
    pub(crate) fn start(&self, rank: usize) -> Result<()> {
        let Some(path) = &self.trace else { return Ok(()) };
        let trace = Trace::start(&of_rank(path, rank), rank)?;
        *TRACE.lock().unwrap_or_else(PoisonError::into_inner) = Some(trace);
        Ok(())
    }

    /// As [`start`](Self::start), for a command that ends immediately on a signal: the trace is written before.
    pub(crate) fn start_until_signal(&self) -> Result<()> {
        if self.trace.is_some() {
            signals::before_end(|| drop(finish().inspect_err(print_error)))?;
        }
        self.start(0)
    }
}

/// Name of the file of rank `rank`.
fn of_rank(path: &Path, rank: usize) -> PathBuf {
    let ending = path.extension().map_or(String::new(), |ending| format!(".{}", ending.display()));
    if rank == 0 { path.to_owned() } else { path.with_extension(format!("{rank}{ending}")) }
}

/// Writes the trace, unless there is none or it is already written.
pub(crate) fn finish() -> Result<()> {
    // Locked until the end: a second caller waits for the file.
    let mut trace = TRACE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(trace) = trace.take() {
        tell!("{}", trace.finish()?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_files_of_their_own() {
        for (path, expected) in [("a/b.json", "a/b.2.json"), ("a.b/c", "a.b/c.2"), ("x.y.json", "x.y.2.json")] {
            assert_eq!(of_rank(Path::new(path), 0), Path::new(path));
            assert_eq!(of_rank(Path::new(path), 2), Path::new(expected));
        }
    }
}
