//! Failing standard streams: closed pipes, full devices, streams closed at the start. The rules are in `cli/src/output.rs`.
#![cfg(target_os = "linux")]

use albert_tests::{
    program::{albert, finish, program},
    run_folder::{World, assert_same_run},
};
use std::{
    fs::{self, File, OpenOptions},
    path::Path,
    process::{Command, Output, Stdio},
};

/// A pipe without a reader.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    drop(reader);
    writer.into()
}

fn full_device() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").expect("Linux has /dev/full").into()
}

fn run<A: AsRef<std::ffi::OsStr>>(arguments: &[A], stdout: Stdio, stderr: Stdio) -> Output {
    albert(arguments).stdout(stdout).stderr(stderr).spawn().unwrap().wait_with_output().unwrap()
}

/// Commands whose result is their output.
fn printing(world: &World) -> Vec<Vec<String>> {
    let [text, data, tokenizer, run, tuned, finder, task, ids] =
        ["text.txt", "data", "tokenizer.json", "run", "tuned", "finder", "task", "ids.jsonl"]
            .map(|name| world.text_path(name));
    let [tensors, converted] = ["tensors", "converted"].map(|name| world.text_path(name));
    let _ = fs::remove_dir_all(&converted);
    [
        &["--help"][..],
        &["pretrain", "--help"],
        &["--version"],
        &["info", "base"],
        &["info", "base", "--json"],
        &["doctor", "--seconds", "0"],
        &["kernels", "list", "--arch", "sm_80", "activation"],
        &["kernels", "ptx", "activation.forward-bf16-sm80-128x8-tanh", "--arch", "sm_80"],
        &["data", "inspect", &data, "--tokenizer", &tokenizer, "--seq", "64"],
        &["fill-mask", "--model", &run, "the [MASK]"],
        &["embed", "--model", &run, &text],
        &["forward", "--model", &run, "--ids", &ids, "-o", &tensors, "--compare"],
        &["classify", "--model", &tuned, "rain"],
        &["evaluate", "--model", &tuned, "--data", &task],
        &["evaluate", "--model", &tuned, "--data", &task, "--json", "-"],
        &["answer", "--model", &finder, "--context-file", &text, "where"],
        &["convert", "--from", &run, "--to", &converted],
        &["bench", "gelu", "--m", "3", "--n", "8", "--seconds", "0", "--rounds", "1"],
    ]
    .iter()
    .map(|words| words.iter().map(|&word| word.to_owned()).collect())
    .collect()
}

#[test]
fn a_printing_command_ends_quietly_when_nobody_reads_and_names_a_full_device() {
    let world = World::with_models();
    for arguments in printing(&world) {
        let told = run(&arguments, closed_pipe(), Stdio::piped());
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert_eq!(told.status.code(), Some(0), "{arguments:?}, closed pipe: {said}");
        assert!(!said.contains("error") && !said.contains("panicked"), "{arguments:?}: {said}");
        let _ = fs::remove_dir_all(world.path("converted"));
        let told = run(&arguments, full_device(), Stdio::piped());
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert_eq!(told.status.code(), Some(1), "{arguments:?}, full device: {said}");
        assert!(said.contains("error: cannot write to standard output: No space left"), "{arguments:?}: {said}");
        let _ = fs::remove_dir_all(world.path("converted"));
        for (stderr, name) in [(closed_pipe(), "closed"), (full_device(), "full")] {
            let told = run(&arguments, Stdio::null(), stderr);
            assert_eq!(told.status.code(), Some(0), "{arguments:?}, standard error {name}");
            let _ = fs::remove_dir_all(world.path("converted"));
        }
    }
}

#[test]
fn text_without_a_last_newline_counts_on_a_full_device() {
    let program = program().to_str().expect("the path is UTF-8");
    // One byte of space: the last flush fails although every write before it went into the buffer.
    let shell = Command::new("bash")
        .args([
            "-c",
            &format!("{program} kernels ptx activation.forward-bf16-sm80-128x8-tanh --arch sm_80 > /dev/full"),
        ])
        .output()
        .unwrap();
    assert_eq!(shell.status.code(), Some(1), "{shell:?}");
    let shell = Command::new("bash")
        .args(["-c", &format!("set -o pipefail; {program} kernels list --arch sm_80 activation | head -n 1 | wc -l")])
        .output()
        .unwrap();
    assert_eq!((shell.status.code(), &shell.stdout[..]), (Some(0), &b"1\n"[..]), "{shell:?}");
}

#[test]
fn a_run_that_nobody_listens_to_ends_with_the_same_bytes() {
    let world = World::new();
    finish(&mut albert(&world.pretrain("heard", &[]))).succeeds();
    for (name, [stdout, stderr]) in
        [("closed", [closed_pipe(), closed_pipe()]), ("full", [full_device(), full_device()])]
    {
        let code = run(&world.pretrain(name, &[]), stdout, stderr).status.code();
        assert_eq!(code, Some(0), "pretrain, {name}");
        assert_same_run(&world.path("heard"), &world.path(name), name);
    }
}

#[test]
fn long_commands_keep_their_files_when_both_streams_are_gone() {
    let world = World::with_models();
    let [text, tokenizer, data, run_folder, task] =
        ["text.txt", "tokenizer.json", "data", "run", "task"].map(|name| world.text_path(name));
    let same = |a: &Path, b: &Path| assert_eq!(fs::read(a).unwrap(), fs::read(b).unwrap(), "{}", b.display());
    for streams in ["closed", "full"] {
        let stream = || if streams == "closed" { closed_pipe() } else { full_device() };
        let path = |name: &str| world.text_path(&format!("{streams}-{name}"));
        let code = |arguments: &[&str]| run(arguments, stream(), stream()).status.code();
        assert_eq!(code(&["tokenizer", "train", &text, "--vocab-size", "200", "-o", &path("t.json")]), Some(0));
        same(&world.path("tokenizer.json"), Path::new(&path("t.json")));
        assert_eq!(code(&["data", "build", &text, "--tokenizer", &tokenizer, "-o", &path("data")]), Some(0));
        for entry in fs::read_dir(&data).unwrap() {
            let name = entry.unwrap().file_name();
            same(&Path::new(&data).join(&name), &Path::new(&path("data")).join(&name));
        }
        let fixed = ["finetune", "classify", "--model", &run_folder, "--data", &task, "--steps", "1"];
        // The best model is printed to standard output after everything is saved.
        let ends = code(&[&fixed[..], &["-o", &path("tuned")]].concat());
        assert_eq!(ends, Some(if streams == "closed" { 0 } else { 1 }));
        same(&world.path("tuned/model.safetensors"), &Path::new(&path("tuned")).join("model.safetensors"));
        let figures = path("figures.json");
        let evaluate = ["evaluate", "--model", &path("tuned"), "--data", &task, "--json", &figures];
        assert_eq!(code(&evaluate), Some(if streams == "closed" { 0 } else { 1 }));
        assert!(Path::new(&figures).is_file(), "figures are saved before they are printed");
    }
}

#[test]
fn streams_that_are_closed_at_the_start_swallow_no_file() {
    let world = World::new();
    let program = program().to_str().expect("the path is UTF-8").to_owned();
    let (text, tokenizer) = (world.text_path("text.txt"), world.text_path("again.json"));
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let script = format!("'{program}' tokenizer train '{text}' --vocab-size 200 -o '{tokenizer}' {closed}");
        let told = Command::new("bash").args(["-c", &script]).output().unwrap();
        assert_eq!(told.status.code(), Some(0), "{closed}: {told:?}");
        let files = [world.path("tokenizer.json"), world.path("again.json")].map(|path| fs::read(path).unwrap());
        assert_eq!(files[0], files[1], "{closed}");
        fs::remove_file(&tokenizer).unwrap();
    }
}

#[test]
fn a_hangup_that_is_ignored_does_not_stop_a_run() {
    let world = World::new();
    let log = world.path("log");
    let arguments = world.pretrain("run", &["schedule.steps=400"]);
    let mut child = Command::new("bash")
        .args(["-c", "trap '' HUP; exec \"$0\" \"$@\""])
        .arg(program())
        .args(&arguments)
        .env("ALBERT_THREADS", "2")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    while !fs::read_to_string(&log).unwrap().contains("memory at the token budget") {
        assert!(child.try_wait().unwrap().is_none(), "{}", fs::read_to_string(&log).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap().success());
    let code = child.wait().unwrap().code();
    assert_eq!(code, Some(0), "{}", fs::read_to_string(&log).unwrap());
}
