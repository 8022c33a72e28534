//! `--trace`: Chrome trace events of training and inference, on CPUs and GPUs, even for stopped runs.

use albert_tests::{
    fake::compile,
    program::{albert, finish},
    run_folder::World,
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A file of events.
pub(crate) struct Timeline {
    /// Threads and GPUs by number.
    tracks: BTreeMap<u64, String>,
    events: Vec<Value>,
}

impl Timeline {
    /// Reads the file at `path` of rank `rank`, and checks that all events have the keys that viewers need and that
    /// the spans of a track are nested.
    #[track_caller]
    pub(crate) fn read(path: &Path, rank: usize) -> Self {
        let mut file: Value = serde_json::from_slice(&fs::read(path).expect("the file is there")).expect("it is JSON");
        let Value::Array(events) = file["traceEvents"].take() else { panic!("no events") };
        assert!(file["otherData"]["dropped_events"].is_u64(), "{}", file["otherData"]);
        let mut tracks = BTreeMap::new();
        let mut spans = BTreeMap::<u64, Vec<(i64, i64)>>::new();
        for event in &events {
            let (phase, tid) = (event["ph"].as_str().expect("a phase"), event["tid"].as_u64().expect("a thread"));
            assert!(event["ts"].as_f64().is_some_and(|ts| ts >= 0.0) && event["pid"] == rank, "{event}");
            let nanos = |key: &str| (event[key].as_f64().expect("microseconds") * 1e3).round() as i64;
            match phase {
                "M" if event["name"] == "thread_name" => {
                    drop(tracks.insert(tid, event["args"]["name"].as_str().expect("a name").to_owned()));
                }
                "X" => spans.entry(tid).or_default().push((nanos("ts"), nanos("ts") + nanos("dur"))),
                "M" | "C" => {}
                other => panic!("{other}: {event}"),
            }
        }
        for (tid, mut spans) in spans {
            assert!(tracks.contains_key(&tid), "track {tid} has no name");
            // Of spans with the same start, the longest one encloses the rest.
            spans.sort_by_key(|&(start, end)| (start, -end));
            let mut open = Vec::new();
            for (start, end) in spans {
                open.retain(|&outer| outer > start);
                assert!(open.last().is_none_or(|&outer| end <= outer), "{}: {start} to {end}, {open:?}", tracks[&tid]);
                open.push(end);
            }
        }
        Self { tracks, events }
    }

    /// Spans called `name` on tracks whose names begin with `track`, in the order of the file; an empty name matches any.
    pub(crate) fn spans(&self, track: &str, name: &str) -> Vec<&Value> {
        let is_of = |event: &&Value| {
            event["ph"] == "X"
                && self.tracks[&event["tid"].as_u64().expect("a thread")].starts_with(track)
                && (name.is_empty() || event["name"] == name)
        };
        self.events.iter().filter(is_of).collect()
    }

    /// Values of the memory counter.
    fn memory(&self) -> Vec<u64> {
        let of = self.events.iter().filter(|event| event["ph"] == "C" && event["name"] == "memory of steps");
        of.map(|event| event["args"]["bytes"].as_u64().expect("bytes")).collect()
    }
}

/// True if `inner` begins and ends within `outer`.
fn is_within(inner: &Value, outer: &Value) -> bool {
    let range = |event: &Value| {
        let start = event["ts"].as_f64().unwrap();
        (start, start + event["dur"].as_f64().unwrap())
    };
    let ((start, end), (first, last)) = (range(inner), range(outer));
    inner["tid"] == outer["tid"] && start > first - 1e-3 && end < last + 1e-3
}

const SETTINGS: [&str; 3] = ["schedule.steps=6", "evaluation.interval=0", "data.evaluation.max_sequences=8"];

#[test]
fn training_and_inference_write_events_of_threads_operations_and_memory() {
    let world = World::new();
    let trace = format!("--trace={}", world.text_path("train.json"));
    let mut train = albert(&world.pretrain("model", &[&SETTINGS[..], &[&trace]].concat()));
    let trained = finish(train.env("ALBERT_THREADS", "2")).succeeds();
    trained.says(&["events of this run are in", "train.json"]);
    let timeline = Timeline::read(&world.path("train.json"), 0);
    let steps = timeline.spans("main", "step");
    assert_eq!(steps.iter().map(|step| step["args"]["step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    let evaluation = timeline.spans("main", "evaluation");
    assert!(evaluation.len() == 1 && is_within(evaluation[0], steps[5]), "{evaluation:?}");
    for step in &steps {
        // Two batches, and in the last step the batches of the evaluation.
        for (phase, count) in [("forward", 2), ("backward", 2), ("optimizer", 1)] {
            let phases = timeline.spans("main", phase);
            let in_step = phases.iter().filter(|phase| is_within(phase, step) && !is_within(phase, evaluation[0]));
            assert_eq!(in_step.count(), count, "{phase} in {step}");
        }
    }
    let attention = timeline.spans("main", "attention");
    let forward = timeline.spans("main", "forward");
    assert!(attention.len() >= 2 * 2 * 6);
    for operation in attention {
        assert!(forward.iter().any(|phase| is_within(operation, phase)), "{operation}");
        assert!(["FLOPs", "bytes"].iter().all(|cost| operation["args"][cost].as_u64() > Some(0)), "{operation}");
    }
    let tasks = timeline.spans("kernel-1", "");
    assert!(!tasks.is_empty() && tasks.iter().all(|span| span["args"]["tasks"].as_u64() > Some(0)), "{tasks:?}");
    let memory = timeline.memory();
    assert!(memory.iter().any(|bytes| *bytes > 1000) && memory.iter().min() < memory.iter().max(), "{memory:?}");

    world.write("lines.txt", "a river\nrain falls\n");
    world.run("embed --model model lines.txt --output lines.npy --trace embed.json --quiet").succeeds();
    let timeline = Timeline::read(&world.path("embed.json"), 0);
    let forward = timeline.spans("main", "forward");
    assert!(!forward.is_empty() && timeline.spans("main", "backward").is_empty());
    assert!(timeline.spans("main", "attention").iter().all(|operation| is_within(operation, forward[0])));
    assert!(!timeline.memory().is_empty());
}

#[test]
fn a_path_that_cannot_be_written_is_refused_before_the_work() {
    let world = World::new();
    let path = world.text_path("nowhere/trace.json");
    let expected = ["error: ", &path, "nowhere does not exist; create it or choose another path"];
    world.run_pretrain("model", &["--trace", &path]).fails_with(&expected);
    assert!(!world.path("model").exists());
    world.run_pretrain("model", &SETTINGS).succeeds();
    world.run(&format!("fill-mask --model model rain[MASK] --trace {path}")).fails_with(&expected);
}

/// Sends SIGTERM once `sign` exists; returns the exit code, or `None` if the signal ended the process.
fn stopped(mut child: Child, sign: &Path) -> Option<i32> {
    let start = Instant::now();
    while !sign.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "{} never appeared", sign.display());
        std::thread::sleep(Duration::from_millis(5));
    }
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill can be run");
    assert!(sent.success());
    child.wait().expect("it ends").code()
}

#[cfg(unix)]
#[test]
fn a_command_that_a_signal_stops_writes_its_trace() {
    let world = World::new();
    let trace = format!("--trace={}", world.text_path("train.json"));
    let settings = ["schedule.steps=1000000", "run.log_interval=1", &trace];
    let child = albert(&world.pretrain("model", &settings)).stderr(Stdio::null()).spawn().expect("it starts");
    assert_eq!(stopped(child, &world.path("model/metrics.jsonl")), Some(130));
    assert!(!Timeline::read(&world.path("train.json"), 0).events.is_empty());
    // The command waits for lines.
    let mut embed = world.albert("embed --model model - --trace embed.json");
    let mut child = embed.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let input = child.stdin.take();
    assert_eq!(stopped(child, &world.path(".embed.json.partial")), None);
    drop(input);
    Timeline::read(&world.path("embed.json"), 0);
}

#[test]
fn a_simulated_gpu_has_operations_and_no_time_of_kernels() {
    let world = World::new();
    world.run_pretrain("model", &SETTINGS).succeeds();
    world.write("line.txt", "a river\n");
    world.run("embed --model model line.txt --device cuda-sim --trace trace.json").succeeds();
    let timeline = Timeline::read(&world.path("trace.json"), 0);
    assert_eq!(timeline.spans("main", "attention").len(), 2);
    assert!(timeline.tracks.values().all(|name| !name.starts_with("GPU")), "{:?}", timeline.tracks);
}

/// With a driver that reports 10 microseconds for each launch.
#[cfg(unix)]
#[test]
fn kernels_have_a_track_with_their_time_on_the_gpu() {
    let world = World::new();
    if !compile("cuda.rs", &world.path("libcuda.so"), &["-O"], &[]) {
        return;
    }
    let trace = format!("--trace={}", world.text_path("trace.json"));
    let settings = ["schedule.steps=30", "--device=cuda", "compute.precision=bf16", "evaluation.interval=0", &trace];
    let mut command = albert(&world.pretrain("run", &settings));
    finish(command.env("LD_LIBRARY_PATH", world.path(""))).succeeds();
    let timeline = Timeline::read(&world.path("trace.json"), 0);
    let kernels = timeline.spans("GPU: fake H200", "");
    // More than there are marks for launches that are not read.
    assert!(kernels.len() > 2500, "{}", kernels.len());
    for (kernel, next) in kernels.iter().zip(&kernels[1..]) {
        let [start, then] = [kernel, next].map(|kernel| kernel["ts"].as_f64().unwrap());
        let duration = kernel["dur"].as_f64().unwrap();
        assert!((duration - 10.0).abs() < 0.01 && (then - start - 10.0).abs() < 0.01, "{kernel} {next}");
    }
    assert!(kernels.iter().any(|kernel| kernel["name"].as_str().unwrap().contains("gemm")), "{}", kernels[0]);
    assert!(!timeline.spans("main", "attention").is_empty());
}
