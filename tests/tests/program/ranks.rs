//! Several ranks under the launchers of this machine: the files of one process, and errors that name the rank.
//!
//! `mpirun.openmpi` and `mpirun.mpich` are Debian's names. `ALBERT_TEST_MPIEXEC` adds another launcher, with its library on
//! `LD_LIBRARY_PATH`: that of `pip install mpich`, which has the standard ABI.
#![cfg(unix)]

use albert_tests::{
    program::{Finished, albert, finish, program},
    run_folder::{World, assert_same_run},
};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
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
        command.args(self.arguments).arg("-n").arg(ranks.to_string()).arg(program).args(arguments);
        command.env("ALBERT_THREADS", "1").env_remove("ALBERT_ISA").stdin(Stdio::null());
        // Open MPI refuses root otherwise.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command
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

#[test]
fn a_killed_rank_ends_all_and_fewer_ranks_go_on() {
    let world = World::new();
    finish(&mut albert(&arguments(&world, "whole", &["schedule.steps=200"]))).succeeds();
    for (i, launcher) in launchers().iter().enumerate() {
        let run = format!("killed-{i}");
        let more = ["schedule.steps=200"];
        let mut running = launcher.start(4, program(), &arguments(&world, &run, &more));
        let mut running = running.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the launcher starts");
        let started = Instant::now();
        let checkpoints = world.path(&run).join("checkpoints");
        while fs::read_dir(&checkpoints).map_or(0, Iterator::count) == 0 {
            assert!(started.elapsed() < Duration::from_secs(60), "no checkpoint under {}", launcher.command);
            std::thread::sleep(Duration::from_millis(5));
        }
        let folder = world.text_path(&run);
        let victims =
            Command::new("pgrep").args(["-f", &format!("albert pretrain .*{folder}")]).output().expect("pgrep");
        let victims = String::from_utf8_lossy(&victims.stdout).into_owned();
        let victim = victims.lines().last().expect("ranks are running").to_owned();
        Command::new("kill").args(["-9", &victim]).status().expect("kill runs");
        let ended = running.wait().expect("it can be waited for");
        assert!(!ended.success(), "{}: the launcher must report the killed rank", launcher.command);
        launcher.run(2, &arguments(&world, &run, &["schedule.steps=200", "--resume"])).succeeds();
        assert_same_run(
            &world.path("whole"),
            &world.path(&run),
            &format!("4, then 2 ranks under {}", launcher.command),
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
    finish(albert(&arguments).env("WORLD_SIZE", "8")).fails_with(&["torchrun started 8 processes", "`mpirun -n 8`"]);
}

#[test]
fn a_rank_without_its_tokenizer_is_named() {
    let world = World::new();
    for launcher in launchers() {
        // No path of a test has spaces.
        let script = r#"case "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" in
            1) exec "$0" $(printf '%s ' "$@" | sed s,/tokenizer.json,/missing.json,) ;;
            *) exec "$0" "$@" ;;
        esac"#;
        let shell = ["-c", script, program().to_str().expect("a path of UTF-8")].map(str::to_owned);
        let arguments: Vec<String> = shell.into_iter().chain(arguments(&world, "run", &[])).collect();
        let finished = finish(&mut launcher.start(2, Path::new("sh"), &arguments));
        assert_ne!(finished.code, Some(0), "{}", launcher.command);
        finished.says(&["missing.json"]);
    }
}
