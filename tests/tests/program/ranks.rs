//! Several ranks under the launchers of this machine: the files of one process, and errors that name the rank.
//!
//! `mpirun.openmpi` and `mpirun.mpich` are Debian's names. `ALBERT_TEST_MPIEXEC=PLACE/bin/mpiexec` adds another launcher, with
//! its library in `PLACE/lib`: that of `pip install mpich`, which has the standard ABI.
#![cfg(unix)]

use crate::nccl::{Fake, SHORT};
use albert_tests::{
    fake::compile,
    program::{Finished, albert, finish, program},
    run_folder::{World, assert_same_run, corpus},
};
use engine::philox::Stream;
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const LANES: [&str; 3] = ["data.batch.sequences_per_step=16", "data.batch.lanes=8", "schedule.steps=15"];

/// A launcher and its arguments before `-n`.
struct Launcher {
    command: String,
    arguments: &'static [&'static str],
}

/// Launchers that run here; says which do not.
fn launchers() -> Vec<Launcher> {
    let mut all = vec![
        Launcher { command: "mpirun.openmpi".into(), arguments: &["--oversubscribe"] },
        Launcher { command: "mpirun.mpich".into(), arguments: &[] },
    ];
    all.extend(std::env::var("ALBERT_TEST_MPIEXEC").ok().map(|command| Launcher { command, arguments: &[] }));
    all.retain(|launcher| {
        let runs = launcher.start(2, Path::new("true"), &[]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        let runs = runs.is_ok_and(|status| status.success());
        if !runs {
            println!("SKIPPED: several ranks under {}: it does not run here", launcher.command);
        }
        runs
    });
    all
}

impl Launcher {
    /// `ranks` processes of `program`, of one thread.
    fn start(&self, ranks: usize, program: &Path, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.command);
        if let Some(place) = Path::new(&self.command).parent().and_then(Path::parent) {
            command.env("LD_LIBRARY_PATH", place.join("lib"));
        }
        command.args(self.arguments).arg("-n").arg(ranks.to_string()).arg(program).args(arguments);
        command.env("ALBERT_THREADS", "1").env_remove("ALBERT_ISA").stdin(Stdio::null());
        // Open MPI refuses root otherwise.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command
    }

    /// As [`start`](Self::start), but the shell runs `script` for rank `rank`: the program is `$0`, its arguments `$@`. No path
    /// of a test has spaces.
    fn start_with(&self, rank: &str, script: &str, ranks: usize, arguments: &[String]) -> Command {
        let script =
            format!(r#"case "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" in {rank}) {script} ;; *) exec "$0" "$@" ;; esac"#);
        let shell = ["-c", &script, program().to_str().expect("a path of UTF-8")].map(str::to_owned);
        let arguments: Vec<String> = shell.into_iter().chain(arguments.iter().cloned()).collect();
        self.start(ranks, Path::new("bash"), &arguments)
    }

    fn run(&self, ranks: usize, arguments: &[String]) -> Finished {
        finish(&mut self.start(ranks, program(), arguments))
    }
}

fn arguments(world: &World, run: &str, more: &[&str]) -> Vec<String> {
    world.pretrain(run, &[&LANES[..], more].concat())
}

#[test]
fn ranks_under_every_launcher_write_the_files_of_one_process() {
    let world = World::new();
    finish(&mut albert(&arguments(&world, "one", &[]))).succeeds();
    for (i, launcher) in launchers().iter().enumerate() {
        for ranks in [2, 3, 4] {
            let run = format!("{ranks}-{i}");
            launcher.run(ranks, &arguments(&world, &run, &[])).succeeds().says(&[&format!("{ranks} ranks on 1 host")]);
            assert_same_run(
                &world.path("one"),
                &world.path(&run),
                &format!("{ranks} ranks under {}", launcher.command),
            );
        }
    }
}

/// Disturbance of a run of several ranks.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    /// SIGKILL of a rank.
    Kill,
    /// SIGSTOP of a rank, which the others wait for until their timeout.
    Stop,
    /// SIGTERM to a rank.
    Ask,
    /// Ctrl-C at the launcher.
    Interrupt,
    /// A disk that is full for the first rank: from then on no file of its may exceed 64 KiB.
    Fill,
}

/// Seconds that ranks wait for another.
const TIMEOUT: u64 = 2;

/// Processes of the program that work in `folder`, whatever the launcher's own arguments say.
fn ranks_in(folder: &str) -> Vec<u32> {
    let is_rank = |pid: &u32| {
        let of = |name: &str| format!("/proc/{pid}/{name}");
        fs::read_link(of("exe")).is_ok_and(|exe| exe == program())
            && fs::read(of("cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(folder))
    };
    let all = fs::read_dir("/proc")
        .expect("/proc can be listed")
        .filter_map(|entry| entry.ok()?.file_name().to_string_lossy().parse::<u32>().ok());
    all.filter(is_rank).collect()
}

/// State of processes and their ancestors (process, parent, name, state), then of each thread (name, state, kernel function it
/// waits in, system call), and stack traces if gdb is installed.
fn state_of(processes: &[u32]) -> String {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    // Behind the name, which may have spaces: state, parent.
    let stat = |path: &str| {
        let stat = read(format!("{path}/stat"));
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().map(str::to_owned);
        (fields.next().unwrap_or_default(), fields.next().unwrap_or_default())
    };
    // At once, so that no process sees another stopped.
    let debugger = |process: &u32| {
        let mut gdb = Command::new("gdb");
        gdb.args(["-p", &process.to_string(), "-batch", "-ex", "thread apply all backtrace"]);
        gdb.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let debuggers: Vec<_> = processes.iter().map(debugger).collect();
    let mut told = String::new();
    for (process, debugger) in processes.iter().zip(debuggers) {
        let mut ancestor = process.to_string();
        while !matches!(&*ancestor, "" | "0" | "1") {
            let folder = format!("/proc/{ancestor}");
            let (state, parent) = stat(&folder);
            told += &format!("{ancestor} of {parent} {} {state}\n", read(format!("{folder}/comm")));
            ancestor = parent;
        }
        for task in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
            let folder = task.path().display().to_string();
            let of = |name: &str| read(format!("{folder}/{name}"));
            let state = stat(&folder).0;
            told += &format!("{folder} {} {state} {} {}\n", of("comm"), of("wchan"), of("syscall"));
        }
        if let Ok(finished) = debugger.and_then(Child::wait_with_output) {
            told += &String::from_utf8_lossy(&finished.stdout);
        }
    }
    told
}

/// True for the first rank.
fn is_first(pid: u32) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|variable| matches!(variable, b"OMPI_COMM_WORLD_RANK=0" | b"PMI_RANK=0"))
}

fn signal(name: &str, process: u32) {
    // A process that has just ended is no failure.
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).stderr(Stdio::null()).status();
    sent.expect("kill runs");
}

/// Starts `launcher` with `ranks` ranks, disturbs them after `pause`, and returns what they said and whether they ended well.
fn disturbed(
    launcher: &Launcher,
    ranks: usize,
    arguments: &[String],
    folder: &str,
    disturbance: Disturbance,
    (pause, choice): (Duration, usize),
) -> (bool, String) {
    let mut command = match disturbance {
        Disturbance::Fill => {
            // So that a write beyond the limit fails instead.
            launcher.start_with("0", "trap '' XFSZ; exec \"$0\" \"$@\"", ranks, arguments)
        }
        _ => launcher.start(ranks, program(), arguments),
    };
    let said = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let log = || Stdio::from(said.reopen().expect("it can be opened again"));
    let mut running = command.stdout(log()).stderr(log()).spawn().expect("the launcher starts");
    std::thread::sleep(pause);
    let all = ranks_in(folder);
    let victim = all.get(choice % all.len().max(1)).copied();
    match (disturbance, victim) {
        (Disturbance::Kill | Disturbance::Stop | Disturbance::Ask, None) => {}
        (Disturbance::Fill, _) => all.into_iter().filter(|pid| is_first(*pid)).for_each(|first| {
            let limit = ["--pid", &first.to_string(), "--fsize=65536"];
            Command::new("prlimit").args(limit).stderr(Stdio::null()).status().expect("prlimit runs");
        }),
        (Disturbance::Kill, Some(victim)) => signal("KILL", victim),
        (Disturbance::Stop, Some(victim)) => signal("STOP", victim),
        (Disturbance::Ask, Some(victim)) => signal("TERM", victim),
        (Disturbance::Interrupt, _) => signal("INT", running.id()),
    }
    let started = Instant::now();
    let mut is_continued = false;
    let status = loop {
        if let Some(status) = running.try_wait().expect("it can be waited for") {
            break status;
        }
        let waited = started.elapsed();
        if waited > Duration::from_secs(30) && !is_continued {
            let said = fs::read_to_string(said.path()).expect("output is UTF-8");
            // Until the run begins ranks wait for the timeout that is set in the program; the first may be stopped when it has
            // announced the others and its last message is still in the library's hands. A rank that is stopped after its
            // last call of the library is waited for by the launcher alone.
            let (has_started, is_done) = (said.contains(" parameters; "), said.contains("done: "));
            let left = ranks_in(folder);
            // A process that is stopped while it exits is not among them.
            if left.is_empty() && !matches!(disturbance, Disturbance::Stop) {
                // Open MPI's launcher may lose a rank that is killed while it connects, and wait for it forever.
                running.kill().expect("the launcher is a child");
                break running.wait().expect("it can be waited for");
            }
            let is_alone = left.iter().all(|left| Some(*left) == victim);
            assert!(
                matches!(disturbance, Disturbance::Stop) && (!has_started || is_done && is_alone),
                "{disturbance:?} of {victim:?}: {waited:?}\n{said}\n{}",
                state_of(&left)
            );
            victim.into_iter().for_each(|victim| signal("CONT", victim));
            is_continued = true;
        }
        assert!(waited < Duration::from_secs(60), "{disturbance:?}: still running after {waited:?}");
        std::thread::sleep(Duration::from_millis(10));
    };
    // The launcher may leave a stopped process behind.
    loop {
        let left = ranks_in(folder);
        if left.is_empty() {
            break;
        }
        left.into_iter().for_each(|left| signal("KILL", left));
        std::thread::sleep(Duration::from_millis(10));
    }
    (status.success(), fs::read_to_string(said.path()).expect("output is UTF-8"))
}

/// A few disturbances of each kind; `ALBERT_RANK_DISTURBANCES=100` makes a campaign (.ci/ranks.sh).
#[test]
fn disturbed_ranks_end_in_time_and_resume_to_the_same_bits() {
    let count = std::env::var("ALBERT_RANK_DISTURBANCES").map_or(6, |text| text.parse().expect("a number"));
    let world = World::new();
    let timeout = format!("run.communication_timeout={TIMEOUT}");
    let more = ["schedule.steps=100", &timeout];
    finish(&mut albert(&arguments(&world, "whole", &more))).succeeds();
    for (i, launcher) in launchers().iter().enumerate() {
        let mut stream = Stream::new(20_261_126, [i as u32, 0, 0]);
        let mut random = |below: u32| stream.below(below);
        let started = Instant::now();
        launcher.run(4, &arguments(&world, &format!("undisturbed-{i}"), &more)).succeeds();
        let whole = started.elapsed();
        let (mut runs, mut seen) = (0, [0; 5]);
        let mut disturbances = 0;
        while disturbances < count {
            let run = format!("disturbed-{i}-{runs}");
            let folder = world.text_path(&run);
            runs += 1;
            // Each start goes on where the one before was disturbed, with another number of ranks.
            loop {
                let resume: &[&str] = if world.path(&run).join("config.toml").exists() { &["--resume"] } else { &[] };
                let arguments = arguments(&world, &run, &[&more[..], resume].concat());
                let ranks = 2 + random(3) as usize;
                if disturbances >= count || random(4) == 0 {
                    launcher.run(ranks, &arguments).succeeds();
                    break;
                }
                let kinds =
                    [Disturbance::Kill, Disturbance::Stop, Disturbance::Ask, Disturbance::Interrupt, Disturbance::Fill];
                // All kinds at first, then mostly kills.
                let which = match disturbances {
                    0..5 => disturbances,
                    _ => random(10).saturating_sub(5) as usize,
                };
                disturbances += 1;
                let pause = whole.mul_f64(f64::from(random(1000)) / 1000.0);
                let (ended_well, said) =
                    disturbed(launcher, ranks, &arguments, &folder, kinds[which], (pause, random(8) as usize));
                let what =
                    format!("{:?} of {ranks} ranks after {pause:?} under {}:\n{said}", kinds[which], launcher.command);
                assert!(!said.contains("panicked"), "{what}");
                // Written at the end; the best model so far is there before.
                let has_model = world.path(&run).join("last/model.safetensors").exists();
                // The launcher of MPICH 4.0 often exits with 0 if Ctrl-C reaches it as it starts, whatever its processes do.
                let ended_well = ended_well && (has_model || !matches!(kinds[which], Disturbance::Interrupt));
                seen[which] += usize::from(!ended_well);
                match kinds[which] {
                    _ if ended_well => {
                        assert!(has_model, "the launcher reports success without a model: {what}");
                        break;
                    }
                    Disturbance::Stop => {
                        let sentences = ["answer", "return"].map(|verb| format!("did not {verb} within {TIMEOUT} s"));
                        let is_named = sentences.iter().any(|sentence| said.contains(sentence));
                        assert!(said.contains("error: rank ") && is_named, "{what}");
                    }
                    // Until the ranks are announced it may be the MPI library that writes, and fails in its own words.
                    Disturbance::Fill if !said.contains("ranks on") => {
                        assert!(said.contains("File too large") || said.contains("nit_thread"), "{what}");
                    }
                    Disturbance::Fill => {
                        assert!(said.contains("error: ") && said.contains("File too large"), "{what}");
                    }
                    _ => {}
                }
            }
            assert_same_run(&world.path("whole"), &world.path(&run), &format!("{run} under {}", launcher.command));
        }
        println!(
            "{}: {count} disturbances of {runs} runs; cut short by kill {}, stop {}, SIGTERM {}, Ctrl-C {}, full disk {}",
            launcher.command, seen[0], seen[1], seen[2], seen[3], seen[4]
        );
    }
}

#[test]
fn a_launcher_without_its_library_is_named() {
    let world = World::of_text("");
    for name in ["data", "tokenizer.json"] {
        fs::write(world.path(name), "").expect("the folder is writable");
    }
    let arguments = arguments(&world, "run", &[]);
    finish(albert(&arguments).env("PMI_SIZE", "4").env("ALBERT_MPI", "libnone.so"))
        .fails_with(&["PMI_SIZE is 4, but no MPI library can be opened (libnone.so: ", "set ALBERT_MPI to its file"]);
    finish(albert(&arguments).env("WORLD_SIZE", "8")).fails_with(&["WORLD_SIZE is 8, but RANK is not set", "torchrun"]);
    let torchrun = [("WORLD_SIZE", "8"), ("RANK", "3"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")];
    finish(albert(&arguments).envs(torchrun)).fails_with(&[
        "torchrun started 8 processes",
        "pass --device cuda",
        "`mpirun -n 8`",
    ]);
}

#[test]
fn ranks_that_differ_are_refused() {
    let world = World::new();
    let other_program = world.path("albert");
    let mut bytes = fs::read(program()).expect("the program can be read");
    bytes.push(0);
    fs::write(&other_program, bytes).expect("the folder is writable");
    let (other_text, other_data) = (world.text_path("other.txt"), world.text_path("other"));
    fs::write(&other_text, corpus(160)).expect("the folder is writable");
    let tokenizer = world.text_path("tokenizer.json");
    finish(&mut albert(&["data", "build", &other_text, "--tokenizer", &tokenizer, "-o", &other_data])).succeeds();
    let (copy, data) = (other_program.display(), world.text_path("data"));
    let cases = [
        (format!("chmod +x {copy}; exec {copy} \"$@\""), "program."),
        ("exec \"$0\" \"$@\" compute.precision=bf16".to_owned(), "`config.compute.precision`"),
        ("exec \"$0\" \"$@\" optimizer.learning_rate=0.02".to_owned(), "`config.optimizer.learning_rate`"),
        (format!("exec \"$0\" $(printf '%s ' \"$@\" | sed 's,{data} ,{other_data} ,')"), "`inputs.data`"),
        ("exec \"$0\" $(printf '%s ' \"$@\" | sed s,/tokenizer.json,/missing.json,)".to_owned(), "missing.json"),
        ("exec \"$0\" $(printf '%s ' \"$@\" | sed 's,/data ,/nothing ,')".to_owned(), "nothing"),
    ];
    for launcher in launchers() {
        for (script, said) in &cases {
            let finished = finish(&mut launcher.start_with("1", script, 2, &arguments(&world, "run", &[])));
            assert_ne!(finished.code, Some(0), "{}", launcher.command);
            finished.says(&["error: ", said]);
            assert!(!world.path("run").join("metrics.jsonl").exists(), "nothing is written");
        }
        let finished = launcher.run(2, &arguments(&world, "run", &["--device", "cuda:0"]));
        assert_ne!(finished.code, Some(0));
        finished.says(&["of one host would share cuda:0; with --device cuda each takes its own"]);
    }
}

/// Over a fake library, whose path is named; simulated GPUs have no other.
#[test]
fn gradients_of_gpus_go_over_nccl_or_the_ranks_say_why_not() {
    let Some(fake) = Fake::new() else { return };
    let world = World::new();
    finish(&mut albert(&world.pretrain("one", &SHORT))).succeeds();
    for (i, launcher) in launchers().iter().enumerate() {
        let start = |run: &str, variable: Option<&str>| {
            let mut command = launcher.start(2, program(), &world.pretrain(run, &SHORT));
            finish(command.envs(variable.map(|file| ("ALBERT_NCCL", file))))
        };
        let host = "gradients over MPI through the host, not over NCCL: ";
        let [simulated, off] = ["the GPU is simulated", "ALBERT_NCCL is off"].map(|reason| format!("{host}{reason}"));
        for (name, variable, said) in [
            ("nccl", Some(&*fake.file()), "gradients over NCCL 2.27.3"),
            ("host", None, &simulated),
            ("off", Some("off"), &off),
        ] {
            let run = format!("{name}-{i}");
            start(&run, variable).succeeds().says(&[said]);
            assert_same_run(&world.path("one"), &world.path(&run), &format!("{name} under {}", launcher.command));
        }
        let refused = start("refused", Some("libnone.so"));
        assert_ne!(refused.code, Some(0));
        refused.says(&["ALBERT_NCCL = libnone.so: libnone.so: ", "or to off for gradients through the host"]);
        let calls = fake.calls();
        assert_eq!(calls, ["destroy 0", "destroy 1", "init 0 of 2", "init 1 of 2"], "{}", launcher.command);
    }
}

/// Whole runs: ranks take them one by one.
#[test]
fn ranks_share_the_runs_of_an_ablation() {
    let world = World::with_models();
    let plan = world.text_path("plan.toml");
    fs::write(&plan, world.plan("[1, 2]", 2, "")).expect("the world is writable");
    // The models of all runs.
    let models = |name: &str| {
        let mut found: Vec<(String, Vec<u8>)> = Vec::new();
        let mut open = vec![world.path(name)];
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(&folder).expect("a folder can be listed") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    open.push(path);
                } else if path.ends_with("model.safetensors") {
                    let place = path.strip_prefix(world.path(name)).expect("below the folder").display().to_string();
                    found.push((place, fs::read(&path).expect("a file can be read")));
                }
            }
        }
        found.sort();
        found
    };
    finish(&mut albert(&["ablate", &plan, "-o", &world.text_path("one")])).succeeds();
    let expected = models("one");
    assert!(expected.len() >= 4, "{}", expected.len());
    for (i, launcher) in launchers().iter().enumerate() {
        let folder = format!("shared-{i}");
        let arguments = ["ablate", &plan, "-o", &world.text_path(&folder)].map(str::to_owned);
        let finished = launcher.run(2, &arguments).succeeds();
        assert!(finished.stdout.contains('|'), "{}: the table is printed once\n{}", launcher.command, finished.stdout);
        assert!(models(&folder) == expected, "{}", launcher.command);
    }
}

#[test]
fn ranks_share_data_and_vocabulary() {
    let world = World::of_text(&corpus(5000));
    // Of several parts, with a document that spans some of them, an empty file, and a small one.
    fs::write(world.path("b.txt"), corpus(4000).replace("\n\n", "\n")).expect("the world is writable");
    fs::write(world.path("c.txt"), "").expect("the world is writable");
    fs::write(world.path("d.txt"), corpus(9)).expect("the world is writable");
    let texts = ["text.txt", "b.txt", "c.txt", "d.txt"].map(|name| world.text_path(name));
    let sizes: u64 = texts.iter().map(|text| fs::metadata(text).expect("it was written").len()).sum();
    assert!(sizes > 2 << 20, "{sizes} bytes are few parts");
    let train = |output: &str| {
        let rest = ["--vocab-size", "200", "-o", &world.text_path(output)].map(str::to_owned);
        [&["tokenizer".to_owned(), "train".to_owned()], &texts[..], &rest].concat()
    };
    let build = |output: &str| {
        let rest = ["--tokenizer", &world.text_path("1.json"), "-o", &world.text_path(output)].map(str::to_owned);
        [&["data".to_owned(), "build".to_owned()], &texts[..], &rest].concat()
    };
    let files = |folder: &str| {
        let entries =
            fs::read_dir(world.path(folder)).expect("a folder can be listed").map(|entry| entry.expect("an entry"));
        let mut files: Vec<_> =
            entries.map(|entry| (entry.file_name(), fs::read(entry.path()).expect("a file can be read"))).collect();
        files.sort();
        files
    };
    finish(&mut albert(&train("1.json"))).succeeds();
    finish(&mut albert(&build("1"))).succeeds();
    let (vocabulary, data) = (fs::read(world.path("1.json")).expect("it was written"), files("1"));
    assert!(data.len() >= 3);
    for (i, launcher) in launchers().iter().enumerate() {
        for ranks in [2, 3] {
            let name = format!("{ranks}-{i}");
            let file = format!("{name}.json");
            launcher
                .run(ranks, &train(&file))
                .succeeds()
                .says(&[&format!("{ranks} ranks on 1 host"), "pieces written"]);
            assert!(
                fs::read(world.path(&file)).expect("it was written") == vocabulary,
                "{}, {ranks}",
                launcher.command
            );
            launcher.run(ranks, &build(&name)).succeeds().says(&["written to"]);
            assert!(files(&name) == data, "{}, {ranks} ranks", launcher.command);
        }
        let name = format!("2-{i}");
        let failures = [
            ("s,/text.txt,/missing.txt,", "rank 1: ", "/missing.txt: no such file"),
            ("s,/text.txt,/d.txt,", "rank 0 has `text.", "start the same program on all, with the same files"),
            ("s,/1.json,/none.json,", "rank 1: ", "/none.json"),
        ];
        for (change, rank, problem) in failures {
            let script = format!("exec \"$0\" $(printf '%s ' \"$@\" | sed {change})");
            let finished = finish(&mut launcher.start_with("1", &script, 2, &build(&name)));
            assert_ne!(finished.code, Some(0), "{}", launcher.command);
            finished.says(&[&format!("error: {rank}"), problem]);
            assert!(files(&name) == data, "{}: the data stays", launcher.command);
        }
        let script = "kill -KILL $$";
        for arguments in [build(&name), train("killed.json")] {
            let finished = finish(&mut launcher.start_with("1", script, 2, &arguments));
            assert_ne!(finished.code, Some(0), "{}", launcher.command);
        }
        assert!(files(&name) == data && !world.path("killed.json").exists(), "{}: nothing changes", launcher.command);
    }
}

/// CPUs of different instruction sets train one model.
#[test]
fn ranks_may_run_different_instruction_sets() {
    let world = World::new();
    finish(&mut albert(&arguments(&world, "one", &[]))).succeeds();
    for (i, launcher) in launchers().iter().enumerate() {
        let run = format!("mixed-{i}");
        let narrow = "ALBERT_ISA=scalar exec \"$0\" \"$@\"";
        finish(&mut launcher.start_with("1", narrow, 3, &arguments(&world, &run, &[]))).succeeds();
        assert_same_run(&world.path("one"), &world.path(&run), &format!("mixed ranks under {}", launcher.command));
    }
}

/// A library that is not the launcher's knows of one process.
#[test]
fn a_library_of_another_launcher_is_named() {
    let world = World::of_text("");
    let arguments = arguments(&world, "run", &[]);
    for (command, library) in [("mpirun.openmpi", "libmpich.so.12"), ("mpirun.mpich", "libmpi.so.40")] {
        let Some(launcher) = launchers().into_iter().find(|launcher| launcher.command == command) else { continue };
        let finished = finish(launcher.start(2, program(), &arguments).env("ALBERT_MPI", library));
        if finished.stderr.contains("no MPI library can be opened") {
            println!("SKIPPED: {library} under {command}: it is not installed");
            continue;
        }
        assert_ne!(finished.code, Some(0));
        finished.says(&["knows of 1 process(es)", "the launcher belongs to another MPI library"]);
    }
}

/// A library may wait inside a call, where no timeout is tested: a thread ends the rank.
#[test]
fn a_library_that_does_not_return_is_named() {
    let world = World::new();
    let library = world.path("libmirror.so");
    if !compile("mpi.rs", &library, &[]) {
        return;
    }
    let run = |name: &str, blocks: &str| {
        let timeout = ["run.communication_timeout=1", "schedule.steps=8"];
        let mut command = albert(&arguments(&world, name, &timeout));
        command.env("PMI_SIZE", "2").env("ALBERT_MPI", &library).env("ALBERT_THREADS", "1");
        finish(command.env("MIRROR_BLOCKS", blocks))
    };
    run("free", "").succeeds().says(&["2 ranks on 1 host", "done: "]);
    run("test", "MPI_Test:60").fails_with(&["error: rank 0, ", ": rank 1 did not answer within 1 s"]);
    run("end", "MPI_Finalize:1")
        .fails_with(&["done: ", "error: rank 0, the end: MPI_Finalize did not return within 1 s"]);
    // Refused by itself, and then not ended by the library.
    run("free", "MPI_Abort:1").fails_with(&["already holds a run", "MPI_Abort did not return within "]);
}
