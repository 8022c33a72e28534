//! Standard streams of the program. All output goes through this module; clippy's `print_stdout` and `print_stderr`
//! are denied everywhere else.
//!
//! Standard output carries results, standard error messages and progress.
//!
//! | condition | standard output | standard error |
//! |---|---|---|
//! | closed pipe | the command ends, exit code 0, no message ([`ClosedPipe`]) | text is dropped, the command continues |
//! | full device, failed write | the command ends, exit code 1, one sentence on standard error | text is dropped, the command continues |
//! | closed at the start | `/dev/null`, which Rust's runtime opens in its place | the same |
//! | non-blocking and not ready | the write is repeated until the reader is ready | the same |
//!
//! A closed pipe is exit code 0, because the reader stopped on purpose: `albert kernels list | head -1` does not fail, even
//! with `pipefail`. Commands that also write files write them before they print, or print through [`results_beside_files`],
//! so that a closed pipe never prevents the writing of a file.

use anyhow::Context;
use engine::io::{AtomicFile, check_output};
use std::{
    collections::BTreeSet,
    fmt,
    io::{self, BufWriter, ErrorKind, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// True for ranks whose output would repeat the first rank's: messages and results are dropped, errors are not.
static MUTED: AtomicBool = AtomicBool::new(false);

/// True if messages are dropped.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Pause between two attempts to write to a stream that is not ready.
const RETRY: Duration = Duration::from_millis(2);

/// Writes a line to standard error. Never fails: see the module.
macro_rules! tell {
    ($($argument:tt)*) => { $crate::output::message(format_args!($($argument)*)) };
}
pub(crate) use tell;

/// Drops all messages and results from now on, but not the error that ends the command.
pub(crate) fn mute() {
    MUTED.store(true, Relaxed);
}

/// Drops all messages from now on, but not results and the error that ends the command: `--quiet`.
pub(crate) fn be_quiet() {
    QUIET.store(true, Relaxed);
}

/// True if messages are dropped.
pub(crate) fn is_quiet() -> bool {
    QUIET.load(Relaxed)
}

/// Writes the line of [`tell!`], unless this process is muted or quiet.
pub(crate) fn message(line: fmt::Arguments<'_>) {
    if !MUTED.load(Relaxed) && !is_quiet() {
        print(line);
    }
}

/// Command line name of the program, for commands that a user may copy.
pub(crate) fn program() -> String {
    std::env::args_os().next().map_or_else(|| "albert".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Prints the error that ends the command, unless it is a closed pipe.
pub(crate) fn print_error(error: &anyhow::Error) {
    if is_closed_pipe(error) {
        return;
    }
    print(format_args!("error: {}", sentence(error)));
}

/// Writes a line to standard error in one call, so that lines of two processes do not mix.
fn print(line: fmt::Arguments<'_>) {
    let line = format!("{line}\n");
    // A run continues if a message cannot be written.
    let _ = write_when_ready(line.as_bytes(), |bytes| io::stderr().lock().write(bytes));
}

/// Standard output, line by line. The module describes its errors.
#[derive(Debug)]
pub(crate) struct Stdout {
    goes_on_when_closed: bool,
}

/// Standard output of a command without other results: a closed pipe ends the command.
pub(crate) fn results() -> Stdout {
    Stdout { goes_on_when_closed: false }
}

/// Standard output of a command that also writes files: after a closed pipe, text is dropped.
pub(crate) fn results_beside_files() -> Stdout {
    Stdout { goes_on_when_closed: true }
}

impl Stdout {
    /// Applies the rules of this module to a write that bypassed this type.
    pub(crate) fn check(&self, written: io::Result<()>) -> io::Result<()> {
        self.explain(written, ())
    }

    fn explain<T>(&self, result: io::Result<T>, when_closed: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                if self.goes_on_when_closed {
                    Ok(when_closed)
                } else {
                    Err(io::Error::other(ClosedPipe))
                }
            }
            Err(error) => Err(io::Error::new(error.kind(), Failed(error))),
            Ok(value) => Ok(value),
        }
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if MUTED.load(Relaxed) {
            return Ok(bytes.len());
        }
        let written = write_when_ready(bytes, |bytes| io::stdout().lock().write(bytes));
        self.explain(written.map(|()| bytes.len()), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = loop {
            match io::stdout().lock().flush() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(RETRY),
                other => break other,
            }
        };
        self.explain(flushed, ())
    }
}

/// Output of a command's results: standard output, or a file that appears when all results are written.
#[derive(Debug)]
pub(crate) enum Sink {
    Standard(Stdout),
    File(Box<BufWriter<AtomicFile>>, PathBuf),
}

impl Sink {
    /// Opens `path`, or standard output for `-` and `None`. The name must have a text extension or none.
    pub(crate) fn create(path: Option<&Path>) -> anyhow::Result<Self> {
        match path.filter(|path| *path != Path::new("-")) {
            None => Ok(Self::Standard(results())),
            Some(path) => {
                check_ending(path, TEXT)?;
                check_output(path)?;
                Ok(Self::File(Box::new(BufWriter::new(AtomicFile::create(path)?)), path.to_owned()))
            }
        }
    }

    /// Writes `text`, immediately for standard output.
    pub(crate) fn put(&mut self, text: &str) -> anyhow::Result<()> {
        match self {
            Self::Standard(out) => {
                out.write_all(text.as_bytes())?;
                out.flush()?;
            }
            Self::File(out, path) => {
                out.write_all(text.as_bytes()).with_context(|| format!("{} cannot be written", path.display()))?;
            }
        }
        Ok(())
    }

    /// Completes the file, if it is one.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        if let Self::File(out, path) = self {
            let what = || format!("{} cannot be written", path.display());
            out.into_inner().map_err(std::io::IntoInnerError::into_error).with_context(what)?.commit()?;
        }
        Ok(())
    }
}

/// Extensions of text files.
const TEXT: &[&str] = &["txt", "text", "tsv", "jsonl", "ndjson", "json", "conll", "out", "log", "ids"];

/// Rejects a name whose extension is not one of `known`; a name without an extension is accepted.
pub(crate) fn check_ending(path: &Path, known: &[&str]) -> anyhow::Result<()> {
    let Some(ending) = path.extension() else { return Ok(()) };
    let ending = ending.to_string_lossy().to_lowercase();
    anyhow::ensure!(
        known.contains(&&*ending),
        "{}: a .{ending} file is not written; expected a name that ends in .{}",
        path.display(),
        known.join(", .")
    );
    Ok(())
}

/// Writes all of `bytes` through `write`, even to a non-blocking stream.
fn write_when_ready(mut bytes: &[u8], mut write: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<()> {
    while !bytes.is_empty() {
        match write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(RETRY),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Error of a write to a closed pipe.
#[derive(Debug)]
pub(crate) struct ClosedPipe;

impl fmt::Display for ClosedPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output is a closed pipe")
    }
}

impl std::error::Error for ClosedPipe {}

/// Any other failed write to standard output.
#[derive(Debug)]
struct Failed(io::Error);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for Failed {}

/// Exit code of a command that ended with `result`; prints its error. `failure` is the code of errors.
pub(crate) fn exit_code(result: anyhow::Result<ExitCode>, failure: u8) -> ExitCode {
    let result = match result {
        // A full device may fail only at the flush.
        Ok(code) => results().flush().map(|()| code).map_err(anyhow::Error::from),
        Err(error) => {
            // Only the first error is reported.
            let _ = results().flush();
            Err(error)
        }
    };
    match result {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::from(failure)
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let is_ours = |cause: &io::Error| cause.get_ref().is_some_and(|inner| inner.is::<ClosedPipe>());
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_ours))
}

/// The error and its causes. A cause that the error already ends with is not repeated.
fn sentence(error: &anyhow::Error) -> String {
    let mut whole = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !whole.ends_with(&cause) {
            whole = format!("{whole}: {cause}");
        }
    }
    whole
}

/// Prints a remark about a third-party folder, once.
pub(crate) fn note_remark(path: &Path, text: &str) -> Result<(), String> {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let note = format!("note: {}: {text}", path.display());
    if SAID.lock().is_ok_and(|mut said| said.insert(note.clone())) {
        tell!("{note}");
    }
    Ok(())
}

/// Rejects the folder for a remark (`--strict`).
pub(crate) fn refuse_remark(_: &Path, text: &str) -> Result<(), String> {
    Err(format!("{text} (--strict)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_stream_that_is_not_ready_gets_every_byte_in_order() {
        let mut got = Vec::new();
        let mut calls = 0;
        let write = |bytes: &[u8]| {
            calls += 1;
            match calls % 3 {
                0 => Err(ErrorKind::WouldBlock.into()),
                1 => Err(ErrorKind::Interrupted.into()),
                _ => {
                    got.extend_from_slice(&bytes[..bytes.len().min(3)]);
                    Ok(bytes.len().min(3))
                }
            }
        };
        write_when_ready(b"ten letters", write).unwrap();
        assert_eq!(got, b"ten letters");
    }

    #[test]
    fn only_standard_output_may_be_closed_without_an_error() {
        let closed = |goes_on_when_closed| {
            let out = Stdout { goes_on_when_closed };
            out.explain::<()>(Err(ErrorKind::BrokenPipe.into()), ())
        };
        assert!(closed(true).is_ok());
        let error = Err::<(), _>(closed(false).unwrap_err()).context("while printing").unwrap_err();
        assert!(is_closed_pipe(&error), "{error:?}");
        let file = anyhow::Error::from(io::Error::from(ErrorKind::BrokenPipe)).context("a FIFO given as output");
        assert!(!is_closed_pipe(&file), "a closed FIFO is an error");
        let full = results().explain::<()>(Err(ErrorKind::StorageFull.into()), ()).unwrap_err();
        assert!(full.to_string().starts_with("cannot write to standard output: "), "{full}");
    }
}
