//! Kill campaign: every command that writes is killed with SIGKILL, at random moments and at system calls, and then continued.
//!
//! | command | after a kill | required |
//! |---|---|---|
//! | pretrain, finetune, ablate | started with `--resume` (ablate: without) | ends with the files of an uninterrupted run |
//! | data build, tokenizer train, convert, predict | restarted | the output is absent, the old one or the complete new one |
//!
//! After every kill, each file under a final name is complete: JSON parses, checksums match, outputs that are renamed into
//! place equal those of the reference. After the last start there are no leftovers: the folder contains the same names as
//! the reference. All files are compared byte by byte, except:
//!
//! * timings (`seconds`, `tokens_per_second`, `speed`, `data_share`) in `metrics.jsonl` and JSON files, and `table.md`,
//!   which prints the speeds and metrics of `table.json`;
//! * the header of a checkpoint, which contains the seconds of the run; its tensors are compared;
//! * TensorBoard event files: each start opens a new one, named after the time.
//!
//! A normal test run makes a few kills of each kind. The campaign:
//! `ALBERT_KILLS=1000 cargo test --release -p albert-tests --test program kills -- --nocapture`. Kills at system calls
//! need `strace`; without it they are reported as skipped.
#![cfg(unix)]

use albert_tests::{
    program::{albert, finish, program, words},
    run_folder::{self, World, checkpoints},
};
use engine::{io::Safetensors, philox::Stream};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Seed for moments and system calls.
const SEED: u64 = 20_261_123;
const SIGKILL: i32 = 9;

/// Groups of system calls at which a command is killed. `?`: may be missing on an architecture.
const CALLS: [(&str, &str); 5] = [
    ("write", "write,pwrite64,writev,ftruncate,?fallocate,?copy_file_range"),
    ("rename", "?rename,renameat,?renameat2,?link,linkat"),
    ("sync", "fsync,fdatasync"),
    ("unlink", "?unlink,unlinkat,?rmdir"),
    ("create", "?mkdir,mkdirat,?open,openat"),
];

impl Target {
    fn command_line(&self) -> Vec<String> {
        let resume = if self.output.join("config.toml").exists() { self.resume } else { &[] };
        self.arguments.iter().cloned().chain(resume.iter().map(|&flag| flag.to_owned())).collect()
    }
}

/// Files by name; their bytes without timings.
type Files = BTreeMap<String, Vec<u8>>;

/// A command of the campaign.
struct Target {
    name: &'static str,
    /// Arguments of every start.
    arguments: Vec<String>,
    /// Additional arguments if the run's `config.toml` exists.
    resume: &'static [&'static str],
    /// Output file or folder.
    output: PathBuf,
    /// True if the next start continues the work of a killed one; otherwise the output appears complete or not at all.
    continues: bool,
}

/// All files below `path`, without timings; a single file is its own listing.
fn files(path: &Path) -> Files {
    let mut files = run_folder::files(path);
    files.retain(|name, _| !name.rsplit('/').next().is_some_and(|file| file.starts_with("events.out.tfevents")));
    files.into_iter().map(|(name, bytes)| (name.clone(), comparable(&path.join(name), bytes))).collect()
}

/// Removes timings from JSON.
fn without_clocks(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|key, _| !matches!(key.as_str(), "seconds" | "tokens_per_second" | "speed" | "data_share"));
            object.values_mut().for_each(without_clocks);
        }
        Value::Array(values) => values.iter_mut().for_each(without_clocks),
        _ => {}
    }
}

fn json(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut value = serde_json::from_slice(bytes).ok()?;
    without_clocks(&mut value);
    Some(value.to_string().into_bytes())
}

fn comparable(path: &Path, bytes: Vec<u8>) -> Vec<u8> {
    let in_checkpoints = path.parent().is_some_and(|folder| folder.ends_with("checkpoints"));
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("jsonl") => {
            bytes.split_inclusive(|&byte| byte == b'\n').flat_map(|line| json(line).unwrap_or(line.to_vec())).collect()
        }
        Some("json") => json(&bytes).unwrap_or(bytes),
        Some("md") => Vec::new(),
        Some("safetensors") if in_checkpoints && bytes.len() > 8 => {
            let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
            bytes.get(8 + header..).map_or(bytes.clone(), <[u8]>::to_vec)
        }
        _ => bytes,
    }
}

/// First name at which two listings differ.
fn difference(expected: &Files, got: &Files) -> Option<String> {
    let missing = expected.keys().find(|name| !got.contains_key(*name)).map(|name| format!("`{name}` is missing"));
    let extra = got.keys().find(|name| !expected.contains_key(*name)).map(|name| format!("`{name}` is left over"));
    let differs = expected.iter().find(|(name, bytes)| got.get(*name).is_some_and(|other| other != *bytes));
    missing.or(extra).or(differs.map(|(name, bytes)| {
        let at = bytes.iter().zip(&got[name]).position(|(a, b)| a != b);
        format!("`{name}` differs from byte {at:?} on; {} and {} bytes", bytes.len(), got[name].len())
    }))
}

/// First incomplete file under a final name after a kill, if any.
fn half_accepted(target: &Target, reference: &Files) -> Option<String> {
    let hidden = |name: &str| name.split('/').any(|part| part.starts_with('.'));
    let found: Files = files(&target.output).into_iter().filter(|(name, _)| !hidden(name)).collect();
    if !target.continues {
        // A data set exists once its index does; a file or a converted folder once its name does.
        let accepted = !found.is_empty() && (target.name != "data build" || found.contains_key("dataset.json"));
        return if accepted { difference(reference, &found) } else { None };
    }
    found.keys().find_map(|name| {
        let path = target.output.join(name);
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("safetensors") => Safetensors::open(&path).err().map(|error| error.to_string()),
            Some("json") => {
                let parsed = serde_json::from_slice::<Value>(&fs::read(&path).expect("it was listed"));
                parsed.err().map(|error| format!("{name}: {error}"))
            }
            _ => None,
        }
    })
}

/// The targets, with the model and the data that they read.
fn targets(world: &World) -> Vec<Target> {
    let folder = world.path("text.txt").parent().expect("it is in the world").display().to_string();
    let line = |line: &str| words(&line.replace("$W", &folder)).into_iter().map(str::to_owned).collect::<Vec<String>>();
    world.run_pretrain("model", &["schedule.steps=8", "run.checkpoint_interval=0"]).succeeds();
    for (name, rows) in [("task/train.tsv", 48), ("task/dev.tsv", 16)] {
        let row =
            |at: usize| format!("{} the hills {at}\t{}\n", ["rain falls on", "a bird sings over"][at % 2], at % 2);
        world.write(name, format!("text\tlabel\n{}", (0..rows).map(row).collect::<String>()));
    }
    let tune = "finetune classify --model $W/model --data $W/task --steps 24 --set run.checkpoint_interval=3 \
                --set batch.examples_per_step=8 --set evaluation.interval=6 -o $W/";
    finish(&mut albert(&line(&format!("{tune}tuned")))).succeeds();
    world.write("plan.toml", world.plan("[1, 2]", 6, "checkpoint_interval = 2"));

    let steps = ["schedule.steps=60", "run.checkpoint_interval=4", "evaluation.interval=15", "--resume"];
    let target = |name, arguments: Vec<String>, output: &str, continues| Target {
        name,
        arguments,
        resume: if name == "finetune" { &["--resume"] } else { &[] },
        output: world.path(output),
        continues,
    };
    let data = "data build $W/text.txt --tokenizer $W/tokenizer.json -o $W/out-data";
    let vocabulary = "tokenizer train $W/text.txt --vocab-size 200 -o $W/out-tokenizer.json";
    let predict = "predict --model $W/tuned --input $W/task/dev.tsv --output $W/out-predict.jsonl";
    vec![
        target("pretrain", world.pretrain("out-pretrain", &steps), "out-pretrain", true),
        target("finetune", line(&format!("{tune}out-finetune")), "out-finetune", true),
        target("ablate", line("ablate $W/plan.toml -o $W/out-ablate"), "out-ablate", true),
        target("data build", line(data), "out-data", false),
        target("tokenizer train", line(vocabulary), "out-tokenizer.json", false),
        target("convert", line("convert --from $W/model --to $W/out-convert"), "out-convert", false),
        target("predict", line(predict), "out-predict.jsonl", false),
    ]
}

fn remove(path: &Path) {
    for path in leftovers(path).into_iter().chain([path.to_owned()]) {
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        assert!(removed.is_ok() || !path.exists(), "{}: {removed:?}", path.display());
    }
}

/// Hidden files in the folder of an output, left by killed writers.
fn leftovers(path: &Path) -> Vec<PathBuf> {
    let name = format!(".{}", path.file_name().expect("outputs have names").display());
    let entries = fs::read_dir(path.parent().expect("outputs are in the world")).expect("the world can be listed");
    entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&name)).map(|e| e.path()).collect()
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// True if SIGKILL ended it; a command that had already finished does not count.
fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(SIGKILL) || status.code() == Some(128 + SIGKILL)
}

/// Kills the command after `delay`.
fn kill_after(target: &Target, delay: Duration) -> bool {
    let mut child = quiet(&mut albert(&target.command_line())).spawn().expect("the program starts");
    thread::sleep(delay);
    // Fails if the command has ended; then its status shows it.
    let _ = child.kill();
    was_killed(child.wait().expect("it can be waited for"))
}

/// Runs the program under `strace` with these options.
fn traced(target: &Target, options: &[&str]) -> Command {
    let mut command = Command::new("strace");
    // Not `--seccomp-bpf`: with it, strace 6.1 does not inject signals.
    command.args(["-f", "-qq"]).args(options).arg("--").arg(program()).args(target.command_line());
    command.env_remove("ALBERT_ISA").env("ALBERT_THREADS", "2");
    command
}

/// Maximum calls of a group by one thread, per group.
fn count_calls(target: &Target, log: &Path) -> [u32; CALLS.len()] {
    CALLS.map(|(_, calls)| {
        remove(&target.output);
        let log_path = log.display().to_string();
        let status = quiet(&mut traced(target, &["-o", &log_path, "-e", &format!("trace={calls}")])).status();
        assert!(status.expect("strace starts").success(), "{}: not under strace", target.name);
        let mut by_thread = BTreeMap::<String, u32>::new();
        for line in fs::read_to_string(log).expect("strace writes its log").lines() {
            let thread = line.split(' ').next().unwrap_or_default().to_owned();
            *by_thread.entry(thread).or_default() += u32::from(line.contains('('));
        }
        by_thread.into_values().max().unwrap_or(0)
    })
}

/// Kills the command at the `number`-th call of a group in a thread.
fn kill_at_call(target: &Target, calls: &str, number: u32) -> bool {
    let inject = format!("inject={calls}:signal=SIGKILL:when={number}");
    let options = ["-o", "/dev/null", "-e", &format!("trace={calls}"), "-e", &inject];
    was_killed(quiet(&mut traced(target, &options)).status().expect("strace starts"))
}

/// Results of one command.
#[derive(Default)]
struct Tally {
    at_random: u32,
    at_calls: [u32; CALLS.len()],
    finished: u32,
    longest_chain: u32,
    failures: Vec<String>,
}

/// Kills `target` until `kills` kills were effective, half of them at system calls.
fn campaign(target: &Target, kills: u32, has_strace: bool, log: &Path) -> Tally {
    remove(&target.output);
    let start = Instant::now();
    finish(&mut albert(&target.command_line())).succeeds();
    let duration = start.elapsed();
    let reference = files(&target.output);
    let counts = if has_strace { count_calls(target, log) } else { [0; CALLS.len()] };
    let groups: Vec<usize> = (0..CALLS.len()).filter(|&group| counts[group] > 0).collect();
    remove(&target.output);

    let mut tally = Tally::default();
    let mut draw = Stream::new(SEED, [target.name.len() as u32, u32::from(target.name.as_bytes()[0]), 0]);
    let (mut done, mut chain, mut misses) = (0, 0, 0);
    while done < kills && misses < 50 + kills {
        let with_call = !groups.is_empty() && draw.below(2) == 0;
        let (hit, what) = if with_call {
            let group = groups[draw.below(groups.len() as u32) as usize];
            let number = 1 + draw.below(counts[group]);
            let hit = kill_at_call(target, CALLS[group].1, number);
            tally.at_calls[group] += u32::from(hit);
            (hit, format!("{} number {number}", CALLS[group].0))
        } else {
            let delay = duration.mul_f64(f64::from(draw.below(1000)) / 950.0);
            let hit = kill_after(target, delay);
            tally.at_random += u32::from(hit);
            (hit, format!("{delay:?}"))
        };
        done += u32::from(hit);
        chain += u32::from(hit);
        misses += u32::from(!hit);
        let tell = |problem: String| format!("{}: kill {done} at {what}, {chain} in a row: {problem}", target.name);
        if let Some(problem) = half_accepted(target, &reference) {
            tally.failures.push(tell(problem));
        }
        // A series of kills ends with an uninterrupted start.
        if !hit || draw.below(4) == 0 {
            tally.longest_chain = tally.longest_chain.max(chain);
            let has_state = target.output.join("checkpoints").is_dir() && !checkpoints(&target.output).is_empty();
            let last = finish(&mut albert(&target.command_line()));
            // `convert` rejects an existing folder: the kill came after the last rename.
            let is_complete = difference(&reference, &files(&target.output)).is_none();
            if last.code != Some(0) && !(target.name == "convert" && is_complete) {
                tally.failures.push(tell(format!("the next start fails: {}", last.stderr)));
            }
            let problem = difference(&reference, &files(&target.output));
            tally.failures.extend(problem.map(tell));
            if last.stderr.contains("using the previous checkpoint") {
                tally.failures.push(tell(format!("a checkpoint is damaged: {}", last.stderr)));
            }
            if hit && target.name == "pretrain" && last.stderr.contains("resuming from") != has_state {
                tally.failures.push(tell(format!("a checkpoint is there: {has_state}, but: {}", last.stderr)));
            }
            let left = leftovers(&target.output);
            if !left.is_empty() {
                tally.failures.push(tell(format!("left over: {left:?}")));
            }
            tally.finished += 1;
            chain = 0;
            remove(&target.output);
        }
    }
    tally
}

#[test]
fn killed_commands_lose_nothing_and_leave_nothing_half_accepted() {
    let kills: u32 = std::env::var("ALBERT_KILLS").map_or(21, |text| text.parse().expect("ALBERT_KILLS is a number"));
    let chosen = std::env::var("ALBERT_KILLS_OF").ok();
    let has_strace = Command::new("strace").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !has_strace {
        println!("SKIPPED: kills at system calls: strace is not installed");
    }
    let world = World::new();
    let targets: Vec<Target> = targets(&world)
        .into_iter()
        .filter(|target| chosen.as_ref().is_none_or(|names| names.split(',').any(|name| name == target.name)))
        .collect();
    let share = kills.div_ceil(targets.len() as u32);
    println!(
        "seed {SEED}\n| command | kills | at random | write | rename | sync | unlink | create | longest chain | compared |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let mut failures = Vec::new();
    for target in &targets {
        // In a normal test run, one command is killed often enough that some kills hit the writing of a checkpoint.
        let share = if target.name == "pretrain" { share.max(12) } else { share };
        let tally = campaign(target, share, has_strace, &world.path("strace.log"));
        let calls = tally.at_calls.map(|count| count.to_string()).join(" | ");
        let all = tally.at_random + tally.at_calls.iter().sum::<u32>();
        let (name, chain, finished) = (target.name, tally.longest_chain, tally.finished);
        println!("| {name} | {all} | {} | {calls} | {chain} | {finished} |", tally.at_random);
        assert!(all >= share, "{name}: only {all} of {share} kills hit the command while it ran");
        let expects_calls = has_strace && share >= 10;
        assert!(!expects_calls || all > tally.at_random, "{name}: no kill at a system call, in spite of strace");
        failures.extend(tally.failures);
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
