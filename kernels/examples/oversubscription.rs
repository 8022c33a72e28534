//! Throughput of the thread team with fewer cores than threads, relative to one thread a core.
//!
//! ```text
//! cargo run --release -p albert-kernels --example oversubscription -- [--rounds 7] [--seconds 2] [--against PROGRAM] [--cgroup DIR]
//! ```
//!
//! A pass is 12 layers of two products (16 and 32 rows by 768 x 768, about 100 and 200 us on two cores), a loop over rows
//! and a serial sum. Each case runs in processes of its own for `--seconds`; the cases of a round run one after the other,
//! and a figure is the median over the rounds of the ratio to the baseline of the same round:
//!
//! * `wall`: passes a second, all processes of the case together, over those of the baseline;
//! * `cpu`: passes a second of CPU time, over those of the baseline: what spinning costs when other programs use the cores.
//!
//! `--against` runs each case with another build of this program, too, right after this one. `--cgroup` names a cgroup with
//! a CPU quota of one core; two threads in it are then compared with one thread in it.
#![allow(unsafe_code)]

use kernels::{
    Cpu, Isa,
    gemm::{Epilogue, Gemm, gemm},
};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Rows of K, and columns of C.
const WIDTH: usize = 768;
const LAYERS: usize = 12;

/// One case: `processes` at the same time with `threads` each.
struct Case {
    name: &'static str,
    baseline: &'static str,
    processes: usize,
    threads: usize,
    /// Restricted to core 0.
    one_core: bool,
    /// In the cgroup of `--cgroup`.
    quota: bool,
}

const fn case(name: &'static str, baseline: &'static str, processes: usize, threads: usize) -> Case {
    Case { name, baseline, processes, threads, one_core: false, quota: false }
}

const CASES: &[Case] = &[
    case("2 threads", "2 threads", 1, 2),
    case("2 processes of 2 threads", "2 threads", 2, 2),
    case("8 threads", "2 threads", 1, 8),
    case("64 threads", "2 threads", 1, 64),
    Case { one_core: true, ..case("1 thread, core 0", "1 thread, core 0", 1, 1) },
    Case { one_core: true, ..case("2 threads, core 0", "1 thread, core 0", 1, 2) },
    Case { quota: true, ..case("1 thread, quota of 1", "1 thread, quota of 1", 1, 1) },
    Case { quota: true, ..case("2 threads, quota of 1", "1 thread, quota of 1", 1, 2) },
];

/// Passes a second, by wall time and by CPU time.
#[derive(Clone, Copy)]
struct Rate {
    wall: f64,
    cpu: f64,
}

struct Options {
    rounds: usize,
    seconds: f64,
    against: Option<PathBuf>,
    cgroup: Option<PathBuf>,
    only: Option<String>,
}

fn main() {
    let mut options = Options { rounds: 7, seconds: 2.0, against: None, cgroup: None, only: None };
    let mut arguments = std::env::args().skip(1);
    let mut child = None;
    while let Some(argument) = arguments.next() {
        let value = arguments.next().unwrap_or_else(|| panic!("{argument} has no value"));
        match argument.as_str() {
            "--rounds" => options.rounds = value.parse().expect("--rounds: a number"),
            "--seconds" => options.seconds = value.parse().expect("--seconds: a number"),
            "--against" => options.against = Some(value.into()),
            "--cgroup" => options.cgroup = Some(value.into()),
            "--only" => options.only = Some(value),
            "--passes-with-threads" => child = Some(value.parse().expect("a number of threads")),
            _ => panic!("{argument}: expected --rounds, --seconds, --against, --cgroup or --only"),
        }
    }
    match child {
        Some(threads) => run_passes(threads, options.seconds),
        None => compare(&options),
    }
}

/// Runs passes for `seconds` and prints their number, the wall time and the CPU time.
fn run_passes(threads: usize, seconds: f64) {
    let cpu = Cpu::new(Isa::choose().expect("ALBERT_ISA"), threads).expect("threads");
    let mut pass = Pass::new();
    (0..3).for_each(|_| pass.run(&cpu));
    let (start, used) = (Instant::now(), cpu_time());
    let mut passes = 0;
    while start.elapsed().as_secs_f64() < seconds {
        pass.run(&cpu);
        passes += 1;
    }
    println!("{passes} {} {}", start.elapsed().as_secs_f64(), (cpu_time() - used).as_secs_f64());
}

struct Pass {
    x: Vec<f32>,
    weight: Vec<f32>,
    y: Vec<f32>,
}

impl Pass {
    fn new() -> Self {
        let ramp = |len: usize| (0..len).map(|i| (i % 97) as f32 / 970.0).collect::<Vec<f32>>();
        Self { x: ramp(32 * WIDTH), weight: ramp(WIDTH * WIDTH), y: vec![0.0; 32 * WIDTH] }
    }

    fn run(&mut self, cpu: &Cpu) {
        let Self { x, weight, y } = self;
        cpu.enter(|| {
            for _ in 0..LAYERS {
                for rows in [16, 32] {
                    let spec = Gemm::nt(rows, WIDTH, WIDTH);
                    gemm(cpu, &spec, &x[..rows * WIDTH], weight, &mut y[..rows * WIDTH], Epilogue::NONE);
                }
                cpu.for_each_chunk(y, 2 * WIDTH, |_, rows| rows.iter_mut().for_each(|y| *y = y.max(0.0) * 0.5));
                let sum: f32 = y.iter().sum();
                y[0] = std::hint::black_box(sum) * 1e-6;
            }
        });
    }
}

fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that outlives the call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "clock_gettime");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn compare(options: &Options) {
    let own = std::env::current_exe().expect("the path of this program");
    let programs: Vec<_> = std::iter::once(&own).chain(&options.against).collect();
    let chosen = |case: &&Case| match &options.only {
        Some(only) => {
            [case.name, case.baseline].contains(&only.as_str())
                || CASES.iter().any(|c| c.name == only && c.baseline == case.name)
        }
        None => !case.quota || options.cgroup.is_some(),
    };
    let cases: Vec<&Case> = CASES.iter().filter(chosen).collect();
    let mut rates: BTreeMap<(usize, &str), Vec<Rate>> = BTreeMap::new();
    for _ in 0..options.rounds {
        for case in &cases {
            for (i, program) in programs.iter().enumerate() {
                rates.entry((i, case.name)).or_default().push(measure(program, case, options));
            }
        }
    }
    for (i, program) in programs.iter().enumerate() {
        println!("{}", program.display());
        println!("{:<26} {:>9} {:>7} {:>7} {:>7} {:>7}", "case", "passes/s", "wall", "q1", "q3", "cpu");
        for case in &cases {
            let (ours, base) = (&rates[&(i, case.name)], &rates[&(i, case.baseline)]);
            let wall = quartiles(ours.iter().zip(base).map(|(a, b)| a.wall / b.wall));
            let cpu = quartiles(ours.iter().zip(base).map(|(a, b)| a.cpu / b.cpu));
            let speed = quartiles(ours.iter().map(|rate| rate.wall));
            println!(
                "{:<26} {:>9.1} {:>7.3} {:>7.3} {:>7.3} {:>7.3}",
                case.name, speed[1], wall[1], wall[0], wall[2], cpu[1]
            );
        }
    }
    if programs.len() == 2 {
        println!("{} over {}, within a round", own.display(), programs[1].display());
        for case in &cases {
            let pairs = || rates[&(0, case.name)].iter().zip(&rates[&(1, case.name)]);
            let wall = quartiles(pairs().map(|(a, b)| a.wall / b.wall));
            let cpu = quartiles(pairs().map(|(a, b)| a.cpu / b.cpu));
            println!("{:<26} {:>9} {:>7.3} {:>7.3} {:>7.3} {:>7.3}", case.name, "", wall[1], wall[0], wall[2], cpu[1]);
        }
    }
}

fn quartiles(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[quarter * (values.len() - 1) / 4])
}

/// Runs the processes of a case at the same time.
fn measure(program: &PathBuf, case: &Case, options: &Options) -> Rate {
    let children: Vec<Child> = (0..case.processes).map(|_| start(program, case, options)).collect();
    let mut rate = Rate { wall: 0.0, cpu: 0.0 };
    for child in children {
        let output = child.wait_with_output().expect("the process ends");
        assert!(output.status.success(), "{}: {}", program.display(), output.status);
        let text = String::from_utf8(output.stdout).expect("numbers");
        let figures: Vec<f64> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        rate.wall += figures[0] / figures[1];
        rate.cpu += figures[0] / figures[2] / case.processes as f64;
    }
    rate
}

fn start(program: &PathBuf, case: &Case, options: &Options) -> Child {
    let mut command = if case.one_core {
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(program);
        command
    } else if case.quota {
        let cgroup = options.cgroup.as_ref().expect("--cgroup");
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(cgroup).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.args(["--passes-with-threads", &case.threads.to_string(), "--seconds", &options.seconds.to_string()]);
    command.stdout(Stdio::piped()).spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}
