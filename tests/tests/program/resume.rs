//! Same seed, same bits: with any number of threads, and after any number of kills.
#![cfg(unix)]

use albert_tests::{
    program::{albert, finish},
    run_folder::{World, assert_same_run, checkpoints},
};
use engine::philox::Stream;
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Number of kills.
const KILLS: u32 = 20;
/// Seed of their moments, which also depend on the machine's speed, so they are printed.
const SEED: u64 = 20_240_229;

/// A run that has started its steps, and its output from then on.
struct Started {
    child: Child,
    rest: thread::JoinHandle<String>,
}

/// Starts the run and waits for its first step; `Err` has the output if it ended before.
fn start(arguments: &[String]) -> Result<Started, String> {
    let mut child = albert(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    let mut said = String::new();
    while !said.contains("memory at the token budget") {
        if stderr.read_line(&mut said).expect("standard error is UTF-8") == 0 {
            child.wait().expect("it can be waited for");
            return Err(said);
        }
    }
    let rest = thread::spawn(move || {
        // The output may end within a character; the relevant part is before.
        let mut bytes = Vec::new();
        let _ = stderr.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    Ok(Started { child, rest })
}

fn partial_checkpoint(run: &Path) -> bool {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().ends_with(".partial"))
}

#[test]
fn one_thread_and_two_give_the_same_bytes() {
    let world = World::new();
    for threads in ["1", "2"] {
        finish(albert(&world.pretrain(threads, &[])).env("ALBERT_THREADS", threads)).succeeds();
    }
    assert_same_run(&world.path("1"), &world.path("2"), "1 and 2 threads");
    assert_eq!(checkpoints(&world.path("1")).len(), 2, "the last two checkpoints stay");
}

#[test]
fn an_automatic_precision_is_chosen_once() {
    let world = World::new();
    let automatic = ["compute.precision=auto", "schedule.steps=8"];
    finish(&mut albert(&world.pretrain("auto", &automatic))).succeeds().says(&["precision: "]);
    let config = fs::read_to_string(world.path("auto").join("config.toml")).unwrap();
    assert!(config.contains("precision = ") && !config.contains("auto\""), "{config}");
    // A run in bf16 stays in bf16, also where f32 would be chosen.
    finish(&mut albert(&world.pretrain("bf16", &["compute.precision=bf16", "schedule.steps=8"]))).succeeds();
    let resumed = world.pretrain("bf16", &[&automatic[..], &["--resume"]].concat());
    finish(&mut albert(&resumed)).succeeds().says(&["precision: bf16"]);
}

#[test]
fn killed_at_any_moment_and_resumed_ends_with_the_bytes_of_an_uninterrupted_run() {
    let world = World::new();
    let more = ["schedule.steps=400", "run.checkpoint_interval=4", "evaluation.interval=60"];
    let begun = Instant::now();
    let whole = start(&world.pretrain("whole", &more)).unwrap_or_else(|said| panic!("{said}"));
    let (mut child, steps_begun) = (whole.child, Instant::now());
    assert!(child.wait().expect("it can be waited for").success(), "{}", whole.rest.join().unwrap());
    let duration = steps_begun.elapsed();
    println!("seed {SEED}; uninterrupted: {duration:?} of {:?} in steps", begun.elapsed());

    let arguments = world.pretrain("killed", &[&more[..], &["--resume"]].concat());
    let run = world.path("killed");
    let mut moments = Stream::new(SEED, [0; 3]);
    let (mut killed, mut in_writes) = (0, 0);
    while killed < KILLS {
        let Started { mut child, rest } = start(&arguments).unwrap_or_else(|said| panic!("kill {killed}: {said}"));
        let delay = duration.mul_f64(1.5e-3 * f64::from(moments.below(1000)) / f64::from(KILLS));
        thread::sleep(delay);
        // Every other kill waits for a checkpoint that is being written.
        let waits = killed % 2 == 1;
        let deadline = Instant::now() + duration.mul_f64(0.1);
        while waits && !partial_checkpoint(&run) && Instant::now() < deadline {}
        let ended = child.try_wait().expect("it can be asked");
        child.kill().expect("it can be killed");
        child.wait().expect("it can be waited for");
        let said = rest.join().expect("nothing panics there");
        let is_half_written = partial_checkpoint(&run);
        if let Some(status) = ended {
            // The number of kills per run depends on the speed of the machine: the next ones are for a new run.
            assert!(status.success(), "{said}");
            assert_same_run(&world.path("whole"), &run, &format!("over before kill {}", killed + 1));
            fs::remove_dir_all(&run).expect("it is ours");
        } else {
            killed += 1;
            in_writes += u32::from(is_half_written);
            println!("kill {killed} after {delay:?}, a checkpoint half written: {is_half_written}");
        }
    }
    assert!(in_writes > 0, "no kill fell into the writing of a checkpoint");
    let saved = run.join("checkpoints").is_dir() && !checkpoints(&run).is_empty();
    let told = finish(&mut albert(&arguments)).succeeds();
    assert_eq!(told.stderr.contains("resuming from"), saved, "{}", told.stderr);
    assert!(!told.stderr.contains("warning"), "no checkpoint may be damaged: {}", told.stderr);
    assert_same_run(&world.path("whole"), &run, "killed 20 times");
}

#[test]
fn sigterm_saves_ends_with_130_and_resumes_to_the_same_bytes() {
    let world = World::new();
    // No checkpoint but those of the signal and of the end.
    let more = ["schedule.steps=400", "run.checkpoint_interval=0"];
    finish(&mut albert(&world.pretrain("whole", &more))).succeeds();
    let Started { mut child, rest } =
        start(&world.pretrain("stopped", &more)).unwrap_or_else(|said| panic!("it ended at once: {said}"));
    thread::sleep(Duration::from_millis(60));
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill is a program");
    assert!(sent.success());
    let code = child.wait().expect("it can be waited for").code();
    let said = rest.join().expect("nothing panics there");
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("stopped and saved") && said.contains("--resume"), "{said}");
    let saved = checkpoints(&world.path("stopped"));
    assert_eq!(saved.len(), 1, "{saved:?}");
    let run = world.text_path("stopped");
    // As the message says: only the run's own recipe.
    finish(&mut albert(&["pretrain", "--resume", "-o", &run])).succeeds().says(&["resuming from"]);
    for run in ["whole", "stopped"] {
        // The earlier checkpoint is that of the signal in one run and absent in the other.
        checkpoints(&world.path(run)).iter().rev().skip(1).for_each(|path| fs::remove_file(path).expect("it is ours"));
    }
    assert_same_run(&world.path("whole"), &world.path("stopped"), "stopped by SIGTERM");
}

/// Fails unless every command that takes a model folder accepts `run`; `tuned` is an output for fine-tuning.
fn every_command_accepts(world: &World, run: &str) {
    let path = |name: &str| world.text_path(name);
    let (run, task, text) = (path(run), path("task"), path("text.txt"));
    let [tuned, converted, page, tensors] = ["tuned", "converted", "page.html", "out.safetensors"].map(|name| {
        let path = world.path(&format!("of-run/{name}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path.to_str().unwrap().to_owned()
    });
    for arguments in [
        vec!["fill-mask", "--model", &run, "the [MASK] sings"],
        vec!["embed", "--model", &run, &text],
        vec!["convert", "--from", &run, "--to", &converted],
        vec!["info", &run],
        vec!["report", &run, "-o", &page],
        vec!["forward", "--model", &run, "--text", "rain falls", "-o", &tensors],
        vec!["finetune", "classify", "--model", &run, "--data", &task, "-o", &tuned, "--steps", "2"],
    ] {
        finish(&mut albert(&arguments)).succeeds();
    }
    fs::remove_dir_all(world.path("of-run")).unwrap();
}

/// Starts a run, ends it by SIGTERM, and expects that it names its model.
fn stop(arguments: &[String]) {
    let Started { mut child, rest } = start(arguments).unwrap_or_else(|said| panic!("{said}"));
    thread::sleep(Duration::from_millis(60));
    let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(kill.expect("kill is a program").success());
    assert_eq!(child.wait().expect("it can be waited for").code(), Some(130));
    let said = rest.join().expect("nothing panics there");
    assert!(said.contains("the model is in"), "{said}");
}

#[test]
fn a_stopped_or_killed_run_leaves_a_model_that_every_command_accepts() {
    let world = World::new();
    fs::create_dir_all(world.path("task")).unwrap();
    fs::write(world.path("task/train.tsv"), "text\tlabel\nrain falls\twet\nthe sun\tdry\nnight rain\twet\n").unwrap();
    fs::write(world.path("task/dev.tsv"), "text\tlabel\nrain\twet\nsun\tdry\n").unwrap();
    // Before the first evaluation: stopped by a signal, and by its time.
    let more = ["schedule.steps=100000", "evaluation.interval=0", "run.checkpoint_interval=0"];
    stop(&world.pretrain("stopped", &more));
    every_command_accepts(&world, "stopped");
    let told = finish(&mut albert(&world.pretrain("timed", &["--minutes", "0.05"]))).succeeds();
    assert!(told.stderr.contains("done: ") && told.stderr.contains("next: "), "{}", told.stderr);
    every_command_accepts(&world, "timed");
    // Killed: with a checkpoint there is a model, without one there is advice.
    for (name, interval, has_model) in [("killed", "2", true), ("at-once", "0", false)] {
        let more = ["schedule.steps=100000", "evaluation.interval=0", &format!("run.checkpoint_interval={interval}")];
        let Started { mut child, rest } = start(&world.pretrain(name, &more)).unwrap_or_else(|said| panic!("{said}"));
        let run = world.path(name);
        let has_checkpoint = || run.join("checkpoints").is_dir() && checkpoints(&run).len() == 2;
        while if has_model { !has_checkpoint() } else { !run.join("metrics.jsonl").exists() } {
            thread::sleep(Duration::from_millis(2));
        }
        child.kill().expect("it can be killed");
        child.wait().expect("it can be waited for");
        rest.join().expect("nothing panics there");
        if has_model {
            every_command_accepts(&world, name);
        } else {
            let run = world.text_path(name);
            finish(&mut albert(&["fill-mask", "--model", &run, "a [MASK]"]))
                .fails_with(&["killed before it saved a model", &format!("albert pretrain --resume -o '{run}'")]);
        }
    }
}

#[test]
fn a_stopped_fine_tuning_leaves_a_model_that_classifies() {
    let world = World::with_models();
    let [model, run] = ["run", "stopped"].map(|name| world.text_path(name));
    let long = "text\tlabel\nrain falls\twet\nthe sun\tdry\n".to_owned() + &"rain\twet\nsun\tdry\n".repeat(400);
    fs::write(world.path("task/train.tsv"), long).unwrap();
    let task = world.text_path("task");
    let arguments = ["finetune", "classify", "--model", &model, "--data", &task, "-o", &run, "--steps", "100000"];
    let arguments = arguments.iter().map(|&text| text.to_owned()).chain(["evaluation.interval=90000".to_owned()]);
    stop(&arguments.collect::<Vec<_>>());
    let dev = world.text_path("task/dev.tsv");
    for arguments in [
        vec!["classify", "--model", &run, "rain falls"],
        vec!["evaluate", "--model", &run, "--data", &dev],
        vec!["predict", "--model", &run, "--input", &dev],
        vec!["report", &run, "-o", &world.text_path("page.html")],
        vec!["embed", "--model", &run, &world.text_path("text.txt")],
    ] {
        finish(&mut albert(&arguments)).succeeds();
    }
}

#[test]
fn paths_of_any_characters_are_accepted() {
    let world = World::new();
    for name in ["cafe\u{301}", "a\u{a0}b", "it's \"so\"", "back\\slash", "two\nlines", "\u{1f600}"] {
        fs::rename(world.path("data"), world.path(name)).unwrap();
        let (data, tokenizer) = (world.text_path(name), world.text_path("tokenizer.json"));
        let [recipe, run] = ["recipe.toml", &format!("run {name}")].map(|name| world.text_path(name));
        let arguments =
            ["pretrain", &recipe, "-o", &run, "--data", &data, "--tokenizer", &tokenizer, "schedule.steps=4"];
        finish(&mut albert(&arguments)).succeeds();
        let next = world.text_path(&format!("next {name}"));
        finish(&mut albert(&["pretrain", "--from", &run, "--data", &data, "-o", &next, "schedule.steps=1"])).succeeds();
        fs::rename(world.path(name), world.path("data")).unwrap();
    }
    let odd = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"od\xffd");
    let world_path = |name: &str| world.path(name).into_os_string();
    for (command, flag) in
        [("pretrain", "--data"), ("pretrain", "--tokenizer"), ("pretrain", "--from"), ("finetune", "--model")]
    {
        let mut call = albert(&[command, if command == "finetune" { "classify" } else { "tiny" }]);
        call.arg(flag).arg(odd).arg("-o").arg(world_path("odd"));
        if command == "finetune" {
            call.arg("--data").arg(world.path(""));
        }
        finish(&mut call).fails_with(&["the path must be UTF-8"]);
    }
    finish(albert(&["quickstart"]).arg("-o").arg(odd)).fails_with(&["the path must be UTF-8"]);
}
