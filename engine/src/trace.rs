//! Timeline of a process as Chrome trace events, for Perfetto and chrome://tracing.
//!
//! ```text
//! main       step ── forward ── linear ── backward ── linear.backward ── optimizer       spans: operations, phases, exchanges
//! kernel-1            linear  linear         linear.backward                             tasks of the thread team
//! GPU                    gemm__..              gemm__..                                  kernels, by the events of the driver
//! memory of steps  ▂▄▆█▆▄▂                                                               counter
//! ```
//!
//! Each thread has a buffer of its own, so that threads do not wait for each other. A full buffer drops its oldest event: the
//! last steps are those that a stopped run was in, and the first ones load kernels and touch memory for the first time.
//! Switched off, a span costs one relaxed load of a flag.
use crate::{
    error::{EngineError, Result},
    io::AtomicFile,
};
use serde_json::{Map, Value, json};
use std::{
    borrow::Cow,
    cell::{Cell, OnceCell},
    collections::VecDeque,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Events that a thread keeps. A step of the recipe `tiny` on two threads has 6,600 on the main thread.
const KEPT: usize = 32_768;

static ON: AtomicBool = AtomicBool::new(false);
static START: OnceLock<(Instant, SystemTime)> = OnceLock::new();
static TRACKS: Mutex<Vec<Arc<Track>>> = Mutex::new(Vec::new());
/// Work that completes the tracks at the end.
static ENDS: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: OnceCell<Arc<Track>> = const { OnceCell::new() };
    /// Innermost span of this thread.
    static INNERMOST: Cell<&'static str> = const { Cell::new("other") };
    /// Bytes of the last counter.
    static COUNTED: Cell<usize> = const { Cell::new(0) };
}

#[derive(Debug)]
struct Event {
    name: Cow<'static, str>,
    /// Nanoseconds since the start.
    start: u64,
    /// Nanoseconds; `None` for a counter.
    duration: Option<u64>,
    args: [(&'static str, u64); 2],
    /// Number of the loop that a thread runs tasks of; 0 for other events.
    of_loop: u64,
}

impl Event {
    fn new(name: Cow<'static, str>, start: u64, duration: Option<u64>, given: &[(&'static str, u64)]) -> Self {
        let mut args = [("", 0); 2];
        args[..given.len()].copy_from_slice(given);
        Self { name, start, duration, args, of_loop: 0 }
    }

    /// The event of thread `thread` of rank `rank` in the format's units, microseconds.
    fn to_json(&self, rank: usize, thread: usize) -> Value {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let named = self.args.iter().filter(|(name, _)| !name.is_empty());
        let args: Map<String, Value> = named.map(|&(name, value)| (name.to_owned(), value.into())).collect();
        let mut event = json!({
            "ph": "C", "name": self.name, "ts": micros(self.start), "pid": rank, "tid": thread, "args": args,
        });
        if let Some(duration) = self.duration {
            (event["ph"], event["dur"]) = ("X".into(), micros(duration).into());
        }
        event
    }
}

/// The events of a thread, or of a GPU.
#[derive(Debug)]
pub(crate) struct Track {
    name: String,
    events: Mutex<VecDeque<Event>>,
    dropped: AtomicU64,
}

impl Track {
    /// A new track in the file.
    pub(crate) fn new(name: String) -> Arc<Self> {
        let events = Mutex::new(VecDeque::with_capacity(KEPT));
        let track = Arc::new(Self { name, events, dropped: AtomicU64::new(0) });
        lock(&TRACKS).push(Arc::clone(&track));
        track
    }

    /// Adds a span that began `start` nanoseconds after the trace did.
    pub(crate) fn add(&self, name: String, start: u64, duration: u64) {
        self.push(Event::new(name.into(), start, Some(duration), &[]));
    }

    /// Adds a task that began at `start` to the span of its loop, if that is the last one.
    fn add_task(&self, of_loop: u64, loop_name: &str, start: u64) {
        let end = now();
        if let Some(last) = lock(&self.events).back_mut().filter(|last| last.of_loop == of_loop) {
            last.duration = Some(end - last.start);
            last.args[0].1 += 1;
            return;
        }
        let name = format!("{loop_name}: tasks").into();
        self.push(Event { of_loop, ..Event::new(name, start, Some(end - start), &[("tasks", 1)]) });
    }

    fn push(&self, event: Event) {
        let mut events = lock(&self.events);
        if events.len() == KEPT {
            events.pop_front();
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        events.push_back(event);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves the lists whole: every change is one insertion or removal.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `add` with the track of this thread.
fn on_own(add: impl FnOnce(&Track)) {
    OWN.with(|own| {
        let name = || std::thread::current().name().unwrap_or("thread").to_owned();
        add(own.get_or_init(|| Track::new(name())));
    });
}

/// True while events are collected.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Nanoseconds since the start of the trace.
pub(crate) fn now() -> u64 {
    START.get().map_or(0, |(start, _)| start.elapsed().as_nanos() as u64)
}

/// Adds a span of this thread that began at `start`, by [`now`], and ends now.
pub(crate) fn record(name: impl Into<Cow<'static, str>>, start: u64, args: &[(&'static str, u64)]) {
    let event = Event::new(name.into(), start, Some(now() - start), args);
    on_own(|track| track.push(event));
}

/// Runs `work` and, in a trace, records it as a span of this thread with at most two `args`.
///
/// # Panics
/// If there are more arguments.
pub fn span<R>(name: &'static str, args: &[(&'static str, u64)], work: impl FnOnce() -> R) -> R {
    let before = is_on().then(|| (INNERMOST.replace(name), now()));
    let result = work();
    if let Some((outer, start)) = before {
        record(name, start, args);
        INNERMOST.set(outer);
    }
    result
}

/// Runs `work`, an exchange of `what` with other ranks, as [`span`] does. The number of a step in `what` is left out, so that viewers
/// add up the exchanges of all steps.
pub(crate) fn exchange<R>(what: &str, [sent, received]: [usize; 2], work: impl FnOnce() -> R) -> R {
    let start = is_on().then(now);
    let result = work();
    if let Some(start) = start {
        let name = what.split_once(" of step ").map_or(what, |(what, _)| what);
        record(format!("exchange: {name}"), start, &[("bytes sent", sent as u64), ("bytes received", received as u64)]);
    }
    result
}

/// Adds a point to the counter of memory, if it changed.
pub(crate) fn memory_of_steps(bytes: impl FnOnce() -> usize) {
    if !is_on() {
        return;
    }
    let bytes = bytes();
    if COUNTED.replace(bytes) != bytes {
        let event = Event::new("memory of steps".into(), now(), None, &[("bytes", bytes as u64)]);
        on_own(|track| track.push(event));
    }
}

/// Has `complete` add the last events of a track before the file is written.
pub(crate) fn at_end(complete: impl FnOnce() + Send + 'static) {
    lock(&ENDS).push(Box::new(complete));
}

/// Runs a loop of the thread team with a task.
type Lead<'a> = dyn Fn(&(dyn Fn(usize) + Sync)) + 'a;

/// Records the tasks of a loop of the thread team by the name of the span that opened it, consecutive ones of a thread as one
/// span: most take a few microseconds.
fn record_tasks(task: &(dyn Fn(usize) + Sync), lead: &Lead<'_>) {
    if !is_on() {
        return lead(task);
    }
    static LOOPS: AtomicU64 = AtomicU64::new(1);
    let (name, of_loop) = (INNERMOST.get(), LOOPS.fetch_add(1, Ordering::Relaxed));
    lead(&|i| {
        let start = now();
        task(i);
        on_own(|track| track.add_task(of_loop, name, start));
    });
}

/// A trace that is being collected. Dropped, it leaves no file.
#[derive(Debug)]
pub struct Trace {
    file: AtomicFile,
    path: PathBuf,
    rank: usize,
}

impl Trace {
    /// Opens `path` and collects events of all threads, as process `rank`. Once in a process; workspaces that exist already are
    /// not traced.
    ///
    /// # Errors
    /// The file cannot be written, or there has been a trace before.
    pub fn start(path: &Path, rank: usize) -> Result<Self> {
        let file = AtomicFile::create(path)?;
        if START.set((Instant::now(), SystemTime::now())).is_err() {
            return Err(EngineError::file(path, "this process was traced before; expected one trace"));
        }
        kernels::pool::watch_loops(record_tasks);
        ON.store(true, Ordering::Relaxed);
        Ok(Self { file, path: path.to_owned(), rank })
    }

    /// Ends the trace and writes the file; a message says how many events it has, and how many older ones were dropped.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> Result<String> {
        ON.store(false, Ordering::Relaxed);
        let ends = std::mem::take(&mut *lock(&ENDS));
        ends.into_iter().for_each(|end| end());
        let message = self.write().map_err(|error| EngineError::io(&self.path, "write the file", error))?;
        self.file.commit()?;
        Ok(message)
    }

    fn write(&mut self) -> io::Result<String> {
        let (out, rank) = (&mut self.file, self.rank);
        let named = |what: &str, thread: usize, name: &str| json!({ "ph": "M", "name": what, "ts": 0, "pid": rank, "tid": thread, "args": { "name": name } });
        write!(out, "{{\"traceEvents\":[\n{}", named("process_name", 0, &format!("albert, rank {rank}")))?;
        let [mut count, mut dropped] = [0, 0];
        for (thread, track) in (1..).zip(&*lock(&TRACKS)) {
            write!(out, ",\n{}", named("thread_name", thread, &track.name))?;
            for event in &*lock(&track.events) {
                write!(out, ",\n{}", event.to_json(rank, thread))?;
                count += 1;
            }
            dropped += track.dropped.load(Ordering::Relaxed);
        }
        let since = START.get().and_then(|(_, start)| start.duration_since(UNIX_EPOCH).ok());
        let about = json!({
            "rank": rank,
            "unix_time_of_0": since.map(|since| since.as_secs_f64()),
            "events_kept_per_thread": KEPT,
            "dropped_events": dropped,
        });
        writeln!(out, "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{about}}}")?;
        let older = if dropped == 0 { String::new() } else { format!("; {dropped} older ones were dropped") };
        let path = self.path.display();
        Ok(format!("{count} events of this run are in {path}{older}; open it in https://ui.perfetto.dev"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one test with a trace in this process. Other tests may run meanwhile, on threads of other names.
    #[test]
    fn the_last_events_of_a_thread_are_kept_and_names_are_escaped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        assert!(Trace::start(&folder.path().join("none/trace.json"), 0).is_err());
        let trace = Trace::start(&path, 3).unwrap();
        assert!(Trace::start(&path, 3).is_err());
        let name = "thread \"of\" \\ the test\n";
        let work = || {
            exchange("losses of step 7", [8, 16], || ());
            span("outer", &[("step", 7)], || (0..KEPT - 1).for_each(|_| span("inner", &[], || ())));
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(work).unwrap().join().unwrap();
        assert!(trace.finish().unwrap().contains("older ones were dropped"), "one event too many");
        span("after the end", &[], || ());
        let file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let events = file["traceEvents"].as_array().unwrap();
        let of_name = events.iter().find(|event| event["args"]["name"] == name).expect("a name of the thread");
        let own: Vec<&Value> =
            events.iter().filter(|event| event["ph"] == "X" && event["tid"] == of_name["tid"]).collect();
        assert_eq!(own.len(), KEPT);
        assert!(own.iter().all(|event| event["pid"] == 3 && event["name"] != "after the end"));
        let outer = own.last().unwrap();
        assert_eq!((&outer["name"], &outer["args"]), (&json!("outer"), &json!({ "step": 7 })));
        // The oldest is the one that had no place.
        assert!(own.iter().all(|event| event["name"] != "exchange: losses"));
        assert!(file["otherData"]["dropped_events"].as_u64().unwrap() >= 1);
    }
}
