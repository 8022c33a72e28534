//! The tasks of `tests/everyday/tasks.md`, each in a separate folder.
#![cfg(target_os = "linux")]

use albert_tests::{
    program::{finish, program},
    run_folder::{World, copy},
};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::{fs, path::Path, process::Command};

const TASKS: &str = include_str!("../../everyday/tasks.md");

/// Tasks that do not work yet; a working task must leave the list.
const OPEN: &[usize] = &[];

/// A task: its heading, the shell block and the expected lines.
struct Task {
    title: &'static str,
    script: String,
    expected: Vec<&'static str>,
}

fn tasks() -> Vec<Task> {
    let mut tasks: Vec<Task> = vec![];
    let mut lines = TASKS.lines();
    while let Some(line) = lines.next() {
        let block = |lines: &mut std::str::Lines<'static>| -> Vec<&'static str> {
            lines.take_while(|&line| line != "```").collect()
        };
        match (line, tasks.last_mut()) {
            (line, _) if line.starts_with("### ") => {
                let title = line.trim_start_matches("### ");
                tasks.push(Task { title, script: String::new(), expected: vec![] });
            }
            ("```sh", Some(task)) => task.script = block(&mut lines).join("\n"),
            ("```text", Some(task)) => task.expected = block(&mut lines),
            _ => {}
        }
    }
    tasks
}

/// True if `text` matches `pattern`, in which `…` matches anything.
fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

/// True if the lines match the expected ones; `⋮` matches any number of lines.
fn all_fit(expected: &[&str], lines: &[&str]) -> bool {
    match expected {
        [] => lines.is_empty(),
        ["⋮", more @ ..] => (0..=lines.len()).any(|skipped| all_fit(more, &lines[skipped..])),
        [pattern, more @ ..] => {
            lines.split_first().is_some_and(|(line, rest)| fits(pattern, line) && all_fit(more, rest))
        }
    }
}

/// Runs a task; returns its output if it differs from the expected one.
fn run(task: &Task, world: &Path) -> Result<(), String> {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    copy(world, folder.path());
    let path =
        format!("{}:{}", program().parent().expect("a folder").display(), std::env::var("PATH").unwrap_or_default());
    let script = format!("set -euo pipefail\n{}\n", task.script);
    let mut command = Command::new("timeout");
    command.args(["120", "bash", "-c", &script]).current_dir(folder.path()).env("PATH", path);
    command.env_remove("ALBERT_ISA").env("ALBERT_THREADS", "2");
    let done = finish(&mut command);
    let lines: Vec<&str> = done.stdout.lines().chain(done.stderr.lines()).collect();
    if done.code == Some(0) && all_fit(&task.expected, &lines) {
        return Ok(());
    }
    Err(format!("{}\n{}\nexit code {:?}, and it printed\n{}\n", task.title, task.script, done.code, lines.join("\n")))
}

#[test]
fn lines_fit_patterns() {
    assert!(fits("a…c…", "abcd") && fits("…", "") && fits("a", "a") && fits("…b", "ab") && fits("x…y…x", "xyx"));
    assert!(!fits("a", "ab") && !fits("…b", "abc") && !fits("a…a", "a") && !fits("a…b…c", "acb"));
    assert!(all_fit(&["⋮", "b", "⋮"], &["a", "b"]) && all_fit(&[], &[]) && all_fit(&["⋮"], &[]));
    assert!(!all_fit(&["a"], &[]) && !all_fit(&[], &["a"]) && !all_fit(&["⋮", "b"], &["b", "a"]));
}

#[test]
fn there_are_sixty_tasks() {
    let tasks = tasks();
    assert_eq!(tasks.len(), 60);
    for (number, task) in (1..).zip(&tasks) {
        assert!(task.title.starts_with(&format!("{number}. ")) && !task.script.is_empty(), "{}", task.title);
    }
}

#[test]
fn everyday_tasks_pass() {
    let world = World::with_models();
    world.write("lines.txt", "rain falls on the hills\nthe sun\na bird sings over the sea\n");
    world.write(
        "articles.jsonl",
        concat!(
            "{\"title\":\"Rain\",\"body\":\"Rain falls on the hills. The river flows to the sea.\"}\n",
            "{\"title\":\"Night\",\"body\":\"Night hides the garden. A bird sings over the hills.\"}\n",
            "{\"title\":\"Rain again\",\"body\":\"Rain falls on the hills. The river flows to the sea.\"}\n",
        ),
    );
    for name in ["tags/train.tsv", "tags/dev.tsv"] {
        world.write(name, "rain\tB-W\nfalls\tO\n");
    }
    for name in ["lines.txt", "text.txt"] {
        let text = fs::read(world.path(name)).expect("it was written");
        world.write(&format!("{name}.zst"), compress_to_vec(&text[..], CompressionLevel::Fastest));
    }
    world.run("finetune tag --model run --data tags -o tagger --steps 1").succeeds();

    // ALBERT_TASK=17 runs only task 17.
    let only: Option<usize> =
        std::env::var("ALBERT_TASK").ok().map(|number| number.parse().expect("ALBERT_TASK is a number"));
    let (mut wrong, mut passed) = (vec![], vec![]);
    for (number, task) in (1..).zip(&tasks()).filter(|&(number, _)| only.is_none_or(|only| only == number)) {
        match run(task, &world.path("")) {
            Ok(()) if OPEN.contains(&number) => wrong.push(format!("{} passes: take it off OPEN", task.title)),
            Ok(()) => passed.push(number),
            Err(_) if only.is_none() && OPEN.contains(&number) => {}
            Err(problem) => wrong.push(problem),
        }
    }
    assert!(wrong.is_empty(), "{} tasks passed: {passed:?}\n\n{}", passed.len(), wrong.join("\n"));
}
