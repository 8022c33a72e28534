//! Several ranks under the launchers of this machine: the same files as from one process, and errors that name the rank.
//!
//! `mpirun.openmpi` and `mpirun.mpich` are Debian's names. `ALBERT_TEST_MPIEXEC=PLACE/bin/mpiexec` adds another launcher, with
//! its library in `PLACE/lib`, such as that of `pip install mpich`, which has the standard ABI.
#![cfg(unix)]

use crate::{
    nccl::{Fake, short},
    trace::Timeline,
};
use albert_tests::{
    fake::compile,
    program::{Finished, albert, finish, program},
    run_folder::{World, assert_same_run, corpus, files},
};
use engine::philox::Stream;
use std::{
    fs,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

const LANES: [&str; 3] = ["data.batch.sequences_per_step=16", "data.batch.lanes=8", "schedule.steps=15"];

/// A launcher and its arguments before `-n`.
struct Launcher {
    command: String,
    arguments: &'static [&'static str],
}

/// Launchers that run here; prints those that do not.
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
    /// Command for `ranks` processes of `program`, each with one thread.
    fn start(&self, ranks: usize, program: &Path, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.command);
        if let Some(place) = Path::new(&self.command).parent().and_then(Path::parent) {
            command.env("LD_LIBRARY_PATH", place.join("lib"));
        }
        command.args(self.arguments).arg("-n").arg(ranks.to_string()).arg(program).args(arguments);
        command.env("ALBERT_THREADS", "1").env_remove("ALBERT_ISA").stdin(Stdio::null());
        // Otherwise Open MPI does not run as root.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command
    }

    /// As [`start`](Self::start), but rank `rank` runs the shell script `script`: the program is `$0`, its arguments `$@`. No
    /// path of a test has spaces.
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

/// CPUs with different instruction sets also train one model.
#[test]
fn ranks_under_every_launcher_write_the_files_of_one_process() {
    let world = World::new();
    world.run_pretrain("one", &LANES).succeeds();
    for (i, launcher) in launchers().iter().enumerate() {
        let narrow = "ALBERT_ISA=scalar exec \"$0\" \"$@\"";
        for (ranks, script) in [(2, ""), (3, ""), (4, ""), (3, narrow)] {
            let run = format!("{ranks}-{i}-{}", script.len());
            let arguments = arguments(&world, &run, &[]);
            let mut command = match script {
                "" => launcher.start(ranks, program(), &arguments),
                script => launcher.start_with("1", script, ranks, &arguments),
            };
            finish(&mut command).succeeds().says(&[&format!("{ranks} ranks on 1 host")]);
            let what = format!("{ranks} ranks under {}, {script}", launcher.command);
            assert_same_run(&world.path("one"), &world.path(&run), &what);
        }
        let verify = ["verify", "--steps", "0..15", &world.text_path("one")].map(str::to_owned);
        launcher.run(2, &verify).fails_with(&["verify runs in one process, not in 2"]);
    }
}

#[test]
fn every_rank_writes_a_trace_of_its_exchanges() {
    let world = World::new();
    for (i, launcher) in launchers().iter().enumerate() {
        let trace = format!("--trace={}", world.text_path("trace.json"));
        launcher.run(2, &arguments(&world, &format!("traced-{i}"), &[&trace])).succeeds();
        for (rank, name) in ["trace.json", "trace.1.json"].iter().enumerate() {
            let timeline = Timeline::read(&world.path(name), rank);
            let gradients = timeline.spans("main", "exchange: gradients");
            assert!(gradients.iter().any(|span| span["args"]["bytes sent"].as_u64().unwrap() > 1000), "{gradients:?}");
            fs::remove_file(world.path(name)).unwrap();
        }
    }
}

/// Disturbances of a run of several ranks: signals to a rank (if it is stopped, the other ranks wait until their timeout),
/// Ctrl-C at the launcher, and a full disk for the first rank: from then on its files are limited to 64 KiB.
const DISTURBANCES: [&str; 5] = ["KILL", "STOP", "TERM", "INT", "full disk"];

/// Seconds that a rank waits for another.
const TIMEOUT: u64 = 2;

/// Processes of the program in the working folder `folder`, regardless of the launcher's own arguments.
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

/// Name, kernel function it waits in and system call of each thread.
fn state_of(processes: &[u32]) -> String {
    let tasks =
        processes.iter().flat_map(|process| fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten());
    let of = |task: fs::DirEntry| {
        let words =
            ["comm", "wchan", "syscall"].map(|name| fs::read_to_string(task.path().join(name)).unwrap_or_default());
        format!("{} {}\n", task.path().display(), words.join(" ").replace('\n', " "))
    };
    tasks.flatten().map(of).collect()
}

/// True for the first rank.
fn is_first(pid: u32) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|variable| matches!(variable, b"OMPI_COMM_WORLD_RANK=0" | b"PMI_RANK=0"))
}

fn signal(name: &str, process: u32) {
    // It is not a failure if a process has just ended.
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).stderr(Stdio::null()).status();
    sent.expect("kill runs");
}

/// Starts `launcher` with `ranks` ranks, disturbs them after `pause`, and returns their output and whether they succeeded.
fn disturbed(
    launcher: &Launcher,
    ranks: usize,
    arguments: &[String],
    folder: &str,
    disturbance: &str,
    (pause, choice): (Duration, usize),
) -> (bool, String) {
    let mut command = match disturbance {
        // Makes a write beyond the limit fail instead.
        "full disk" => launcher.start_with("0", "trap '' XFSZ; exec \"$0\" \"$@\"", ranks, arguments),
        _ => launcher.start(ranks, program(), arguments),
    };
    let said = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let log = || Stdio::from(said.reopen().expect("it can be opened again"));
    let mut running = command.stdout(log()).stderr(log()).spawn().expect("the launcher starts");
    std::thread::sleep(pause);
    let all = ranks_in(folder);
    let victim = all.get(choice % all.len().max(1)).copied();
    match disturbance {
        "full disk" => all.into_iter().filter(|pid| is_first(*pid)).for_each(|first| {
            let limit = ["--pid", &first.to_string(), "--fsize=65536"];
            Command::new("prlimit").args(limit).stderr(Stdio::null()).status().expect("prlimit runs");
        }),
        "INT" => signal("INT", running.id()),
        name => victim.into_iter().for_each(|victim| signal(name, victim)),
    }
    let output = || fs::read_to_string(said.path()).expect("output is UTF-8");
    let status = end_of(&mut running, folder, disturbance, victim, &output);
    // The launcher may leave a stopped process behind.
    loop {
        let left = ranks_in(folder);
        if left.is_empty() {
            break;
        }
        left.into_iter().for_each(|left| signal("KILL", left));
        std::thread::sleep(Duration::from_millis(10));
    }
    (status.success(), output())
}

/// Waits for a launcher whose rank `victim` was disturbed: at most 30 s, and twice as long if that rank is stopped where the
/// other ranks cannot detect it.
fn end_of(
    running: &mut Child,
    folder: &str,
    disturbance: &str,
    victim: Option<u32>,
    output: &dyn Fn() -> String,
) -> ExitStatus {
    let started = Instant::now();
    let mut is_continued = false;
    loop {
        if let Some(status) = running.try_wait().expect("it can be waited for") {
            return status;
        }
        let waited = started.elapsed();
        if waited > Duration::from_secs(30) && !is_continued {
            let said = output();
            // Until the run begins, ranks wait for the program's default timeout; the first may be stopped after it has
            // announced the ranks, while its last message is still queued in the library. If a rank is stopped after its last
            // call of the library, only the launcher waits for it.
            let (has_started, is_done) = (said.contains(" parameters; "), said.contains("done: "));
            let left = ranks_in(folder);
            // A process that is stopped during its exit is not among them.
            if left.is_empty() && disturbance != "STOP" {
                // Open MPI's launcher may lose a rank that is killed while it connects, and wait for it forever.
                running.kill().expect("the launcher is a child");
                return running.wait().expect("it can be waited for");
            }
            let is_alone = left.iter().all(|left| Some(*left) == victim);
            assert!(
                disturbance == "STOP" && (!has_started || is_done && is_alone),
                "{disturbance} of {victim:?}: {waited:?}\n{said}\n{}",
                state_of(&left)
            );
            victim.into_iter().for_each(|victim| signal("CONT", victim));
            is_continued = true;
        }
        assert!(waited < Duration::from_secs(60), "{disturbance}: still running after {waited:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Asserts that the output of a run that was cut short by a disturbance names the disturbance.
fn assert_explained(kind: &str, said: &str, what: &str) {
    let in_time = ["answer", "return"].map(|verb| format!("did not {verb} within {TIMEOUT} s"));
    let (must, one_of) = match kind {
        "STOP" => ("error: rank ", in_time.each_ref().map(String::as_str)),
        // Until the ranks are announced, the MPI library may be the one that writes, and fails with its own message.
        "full disk" if !said.contains("ranks on") => ("", ["File too large", "nit_thread"]),
        "full disk" => ("error: ", ["File too large"; 2]),
        _ => return,
    };
    assert!(said.contains(must) && one_of.iter().any(|sentence| said.contains(sentence)), "{what}");
}

/// A few disturbances of each kind; `ALBERT_RANK_DISTURBANCES=100` runs a campaign (.ci/ranks.sh).
#[test]
fn disturbed_ranks_end_in_time_and_resume_to_the_same_bits() {
    let count = std::env::var("ALBERT_RANK_DISTURBANCES").map_or(6, |text| text.parse().expect("a number"));
    let world = World::new();
    let timeout = format!("run.communication_timeout={TIMEOUT}");
    let more = ["schedule.steps=100", &timeout];
    world.run_pretrain("whole", &[&LANES[..], &more].concat()).succeeds();
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
            // Each start continues from the previous disturbance, with another number of ranks.
            loop {
                let resume: &[&str] = if world.path(&run).join("config.toml").exists() { &["--resume"] } else { &[] };
                let arguments = arguments(&world, &run, &[&more[..], resume].concat());
                let ranks = 2 + random(3) as usize;
                if disturbances >= count || random(4) == 0 {
                    launcher.run(ranks, &arguments).succeeds();
                    break;
                }
                // All kinds at first, then mostly kills.
                let which = match disturbances {
                    0..5 => disturbances,
                    _ => random(10).saturating_sub(5) as usize,
                };
                disturbances += 1;
                let kind = DISTURBANCES[which];
                let pause = whole.mul_f64(f64::from(random(1000)) / 1000.0);
                let (ended_well, said) =
                    disturbed(launcher, ranks, &arguments, &folder, kind, (pause, random(8) as usize));
                let what = format!("{kind} to {ranks} ranks after {pause:?} under {}:\n{said}", launcher.command);
                assert!(!said.contains("panicked"), "{what}");
                // Written at the end; the best model so far exists earlier.
                let has_model = world.path(&run).join("last/model.safetensors").exists();
                // The launcher of MPICH 4.0 often exits with 0 if Ctrl-C arrives during its start, even if its processes fail.
                let ended_well = ended_well && (has_model || kind != "INT");
                seen[which] += usize::from(!ended_well);
                if ended_well {
                    assert!(has_model, "the launcher reports success without a model: {what}");
                    break;
                }
                assert_explained(kind, &said, &what);
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
    world.write("data", "");
    world.write("tokenizer.json", "");
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
    let other = world.path("albert");
    world.write("albert", [fs::read(program()).expect("the program can be read"), vec![0]].concat());
    world.write("other.txt", corpus(160));
    world.run("data build other.txt --tokenizer tokenizer.json -o other").succeeds();
    let (copy, data) = (other.display(), world.text_path("data"));
    let changed = |change: &str| format!("exec \"$0\" $(printf '%s ' \"$@\" | sed '{change}')");
    let cases = [
        (format!("chmod +x {copy}; exec {copy} \"$@\""), "program."),
        ("exec \"$0\" \"$@\" compute.precision=bf16".to_owned(), "`config.compute.precision`"),
        ("exec \"$0\" \"$@\" optimizer.learning_rate=0.02".to_owned(), "`config.optimizer.learning_rate`"),
        (changed(&format!("s,{data} ,{} ,", world.text_path("other"))), "`inputs.data`"),
        (changed("s,/tokenizer.json,/missing.json,"), "missing.json"),
        (changed("s,/data ,/nothing ,"), "nothing"),
    ];
    for launcher in launchers() {
        for (script, said) in &cases {
            let finished = finish(&mut launcher.start_with("1", script, 2, &arguments(&world, "run", &[])));
            finished.fails().says(&["error: ", said]);
            assert!(!world.path("run").join("metrics.jsonl").exists(), "nothing is written");
        }
        let finished = launcher.run(2, &arguments(&world, "run", &["--device", "cuda:0"])).fails();
        finished.says(&["of one host would share cuda:0; with --device cuda each uses its own"]);
    }
}

/// With a fake library, named by its path; simulated GPUs have no other.
#[test]
fn gradients_of_gpus_go_over_nccl_or_the_ranks_say_why_not() {
    let Some(fake) = Fake::new() else { return };
    let world = World::new();
    world.run_pretrain("one", &short()).succeeds();
    for (i, launcher) in launchers().iter().enumerate() {
        let start = |run: &str, variable: Option<&str>| {
            let mut command = launcher.start(2, program(), &world.pretrain(run, &short()));
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
        start("refused", Some("libnone.so"))
            .fails()
            .says(&["ALBERT_NCCL = libnone.so: libnone.so: ", "or to off for gradients through the host"]);
        let calls = fake.calls();
        assert_eq!(calls, ["destroy 0", "destroy 1", "init 0 of 2", "init 1 of 2"], "{}", launcher.command);
    }
}

/// Ranks share the work by whole runs.
#[test]
fn ranks_share_the_runs_of_an_ablation() {
    let world = World::with_models();
    world.write("plan.toml", world.plan("[1, 2]", 2, ""));
    let models = |name: &str| {
        let mut found = files(&world.path(name));
        found.retain(|name, _| name.ends_with("model.safetensors"));
        found
    };
    let ablate =
        |name: &str| ["ablate", &world.text_path("plan.toml"), "-o", &world.text_path(name)].map(str::to_owned);
    finish(&mut albert(&ablate("one"))).succeeds();
    let expected = models("one");
    assert!(expected.len() >= 4, "{}", expected.len());
    for (i, launcher) in launchers().iter().enumerate() {
        let folder = format!("shared-{i}");
        let finished = launcher.run(2, &ablate(&folder)).succeeds();
        assert!(finished.stdout.contains('|'), "{}: the table is printed once\n{}", launcher.command, finished.stdout);
        assert!(models(&folder) == expected, "{}", launcher.command);
    }
}

#[test]
fn ranks_share_data_and_vocabulary() {
    let world = World::of_text(&corpus(5000));
    // Files of several parts, with a document that spans several of them, an empty file, and a small one.
    world.write("b.txt", corpus(4000).replace("\n\n", "\n"));
    world.write("c.txt", "");
    world.write("d.txt", corpus(9));
    let texts = ["text.txt", "b.txt", "c.txt", "d.txt"].map(|name| world.text_path(name));
    let sizes: u64 = texts.iter().map(|text| fs::metadata(text).expect("it was written").len()).sum();
    assert!(sizes > 2 << 20, "{sizes} bytes are few parts");
    let words = |command: [&str; 2], rest: [&str; 3], output: &str| {
        let output = world.text_path(output);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        [&command[..], &texts, &rest, &[&output[..]]].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let train = |output: &str| words(["tokenizer", "train"], ["--vocab-size", "200", "-o"], output);
    let tokenizer = world.text_path("1.json");
    let build = |output: &str| words(["data", "build"], ["--tokenizer", &tokenizer, "-o"], output);
    finish(&mut albert(&train("1.json"))).succeeds();
    finish(&mut albert(&build("1"))).succeeds();
    let (vocabulary, data) = (files(&world.path("1.json")), files(&world.path("1")));
    assert!(data.len() >= 3);
    for (i, launcher) in launchers().iter().enumerate() {
        for ranks in [2, 3] {
            let name = format!("{ranks}-{i}");
            let file = format!("{name}.json");
            let announced = format!("{ranks} ranks on 1 host");
            launcher.run(ranks, &train(&file)).succeeds().says(&[&announced, "pieces written"]);
            assert!(files(&world.path(&file)) == vocabulary, "{}, {ranks}", launcher.command);
            launcher.run(ranks, &build(&name)).succeeds().says(&["written to"]);
            assert!(files(&world.path(&name)) == data, "{}, {ranks} ranks", launcher.command);
        }
        let name = format!("2-{i}");
        let failures = [
            ("s,/text.txt,/missing.txt,", "rank 1: ", "/missing.txt: no such file"),
            ("s,/text.txt,/d.txt,", "rank 0 has `text.", "start the same program on all, with the same files"),
            ("s,/1.json,/none.json,", "rank 1: ", "/none.json"),
        ];
        for (change, rank, problem) in failures {
            let script = format!("exec \"$0\" $(printf '%s ' \"$@\" | sed {change})");
            let finished = finish(&mut launcher.start_with("1", &script, 2, &build(&name))).fails();
            finished.says(&[&format!("error: {rank}"), problem]);
            assert!(files(&world.path(&name)) == data, "{}: the data stays", launcher.command);
        }
        for arguments in [build(&name), train("killed.json")] {
            finish(&mut launcher.start_with("1", "kill -KILL $$", 2, &arguments)).fails();
        }
        let is_new = world.path("killed.json").exists();
        assert!(files(&world.path(&name)) == data && !is_new, "{}: nothing changes", launcher.command);
    }
}

/// A library that is not the launcher's detects only one process.
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
        finished.fails().says(&["knows of 1 process(es)", "the launcher belongs to another MPI library"]);
    }
}

/// A library may wait inside a call, where no timeout is checked: a thread ends the rank.
#[test]
fn a_library_that_does_not_return_is_named() {
    let world = World::new();
    let library = world.path("libmirror.so");
    if !compile("mpi.rs", &library, &[], &[]) {
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
    // The program rejects it and exits; the library does not end it.
    run("free", "MPI_Abort:1").fails_with(&["already contains a run", "MPI_Abort did not return within "]);
}
