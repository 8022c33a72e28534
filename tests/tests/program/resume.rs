//! Same seed, same bits: for any number of threads, and after a signal (after kills: `kills.rs`); and models of runs that did not
//! finish.
#![cfg(unix)]

use albert_tests::{
    program::{albert, finish, words},
    run_folder::{World, assert_same_run, checkpoints},
};
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// A run that has begun its steps, and its further output.
struct Started {
    child: Child,
    rest: thread::JoinHandle<String>,
}

/// Starts the run and waits for its first step; `Err` contains the output if it ended before.
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
        // The output may end within a character; the relevant part is before it.
        let mut bytes = Vec::new();
        let _ = stderr.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    Ok(Started { child, rest })
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
    world.run_pretrain("auto", &automatic).succeeds().says(&["precision: "]);
    let config = fs::read_to_string(world.path("auto").join("config.toml")).unwrap();
    assert!(config.contains("precision = ") && !config.contains("auto\""), "{config}");
    // A bf16 run is resumed in bf16, even where f32 would be chosen.
    world.run_pretrain("bf16", &["compute.precision=bf16", "schedule.steps=8"]).succeeds();
    world.run_pretrain("bf16", &[&automatic[..], &["--resume"]].concat()).succeeds().says(&["precision: bf16"]);
}

#[test]
fn sigterm_saves_ends_with_130_and_resumes_to_the_same_bytes() {
    let world = World::new();
    // No checkpoints except those of the signal and of the end.
    let more = ["schedule.steps=400", "run.checkpoint_interval=0"];
    world.run_pretrain("whole", &more).succeeds();
    let said = stop(&world.pretrain("stopped", &more));
    assert!(said.contains("stopped and saved") && said.contains("--resume"), "{said}");
    let saved = checkpoints(&world.path("stopped"));
    assert_eq!(saved.len(), 1, "{saved:?}");
    // According to the message: only the run's own recipe.
    world.run("pretrain --resume -o stopped").succeeds().says(&["resuming from"]);
    for run in ["whole", "stopped"] {
        // The earlier checkpoint was written at the signal in one run and is missing in the other.
        checkpoints(&world.path(run)).iter().rev().skip(1).for_each(|path| fs::remove_file(path).expect("it is ours"));
    }
    assert_same_run(&world.path("whole"), &world.path("stopped"), "stopped by SIGTERM");
}

/// Fails unless every command with a model folder as argument accepts `run`.
fn every_command_accepts(world: &World, run: &str) {
    fs::create_dir(world.path("of-run")).unwrap();
    for line in [
        "fill-mask --model RUN 'the [MASK] sings'",
        "embed --model RUN text.txt",
        "convert --from RUN --to of-run/converted",
        "info RUN",
        "report RUN -o of-run/page.html",
        "forward --model RUN --text 'rain falls' -o of-run/out.safetensors",
        "finetune classify --model RUN --data task -o of-run/tuned --steps 2",
    ] {
        world.run(&line.replace("RUN", run)).succeeds();
    }
    fs::remove_dir_all(world.path("of-run")).unwrap();
}

/// Starts a run, ends it by SIGTERM, checks that it names its model, and returns its output.
fn stop(arguments: &[String]) -> String {
    let Started { mut child, rest } = start(arguments).unwrap_or_else(|said| panic!("it ended at once: {said}"));
    thread::sleep(Duration::from_millis(60));
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(sent.expect("kill is a program").success());
    let code = child.wait().expect("it can be waited for").code();
    let said = rest.join().expect("nothing panics there");
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("the model is in"), "{said}");
    said
}

#[test]
fn a_stopped_or_killed_run_leaves_a_model_that_every_command_accepts() {
    let world = World::new();
    world.write("task/train.tsv", "text\tlabel\nrain falls\twet\nthe sun\tdry\nnight rain\twet\n");
    world.write("task/dev.tsv", "text\tlabel\nrain\twet\nsun\tdry\n");
    // Before the first evaluation: stopped by a signal, and by its time limit.
    let more = ["schedule.steps=100000", "evaluation.interval=0", "run.checkpoint_interval=0"];
    stop(&world.pretrain("stopped", &more));
    every_command_accepts(&world, "stopped");
    let told = world.run_pretrain("timed", &["--minutes", "0.05"]).succeeds();
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
    let long = "text\tlabel\nrain falls\twet\nthe sun\tdry\n".to_owned() + &"rain\twet\nsun\tdry\n".repeat(400);
    world.write("task/train.tsv", long);
    let [model, run, task] = ["run", "stopped", "task"].map(|name| world.text_path(name));
    let tune = format!("finetune classify --model {model} --data {task} -o {run} --steps 100000");
    stop(&words(&format!("{tune} evaluation.interval=90000")).into_iter().map(str::to_owned).collect::<Vec<_>>());
    for line in [
        "classify --model stopped 'rain falls'",
        "evaluate --model stopped --data task/dev.tsv",
        "predict --model stopped --input task/dev.tsv",
        "report stopped -o page.html",
        "embed --model stopped text.txt",
    ] {
        world.run(line).succeeds();
    }
}

#[test]
fn paths_of_any_characters_are_accepted() {
    let world = World::new();
    for name in ["cafe\u{301}", "a\u{a0}b", "it's \"so\"", "back\\slash", "two\nlines", "\u{1f600}"] {
        fs::rename(world.path("data"), world.path(name)).unwrap();
        let [run, next] = ["run", "next"].map(|kind| world.text_path(&format!("{kind} {name}")));
        let data = ["--data", &world.text_path(name), "-o"];
        let recipe = ["pretrain", "recipe.toml", "--tokenizer", "tokenizer.json", "schedule.steps=4"];
        for arguments in [
            [&recipe[..], &data, &[&run[..]]].concat(),
            [&["pretrain", "--from", &run, "schedule.steps=1"][..], &data, &[&next[..]]].concat(),
        ] {
            finish(albert(&arguments).current_dir(world.path(""))).succeeds();
        }
        fs::rename(world.path(name), world.path("data")).unwrap();
    }
    let odd = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"od\xffd");
    for (line, flag) in [
        ("pretrain tiny -o odd", "--data"),
        ("pretrain tiny -o odd", "--tokenizer"),
        ("pretrain tiny -o odd", "--from"),
        ("finetune classify -o odd --data .", "--model"),
        ("quickstart", "-o"),
    ] {
        finish(world.albert(line).arg(flag).arg(odd)).fails_with(&["the path must be UTF-8"]);
    }
}
