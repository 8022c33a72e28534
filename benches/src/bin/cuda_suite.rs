//! Correctness and speed of the CUDA kernels on a GPU; `benches/cuda/first.sh` runs it part by part.
//!
//! 1. Every case of every operation of the table on the device, compared with its f64 reference by the rule of all
//!    targets. A case that fails is named with the ratio of its error to the bound.
//! 2. The speed of products, attention and encoder layers at the sizes of ALBERT, through the engine, as medians of
//!    several turns. `benches/cuda/peers.py` puts them beside cuBLAS, cuDNN and PyTorch.
//!
//! Both append to a journal as they go, and either runs without the other. On the simulated GPU the cases run too, some
//! thousand times slower; speeds mean nothing there and are left out unless `--small` asks for them.
//!
//! | exit code | |
//! |---|---|
//! | 0 | all that was run passed |
//! | 1 | cases failed, or losses are too far apart |
//! | 2 | there is no such device |
//! | 3 | the device was lost: after a fault of a kernel it answers nothing but errors, and the rest was not run |
//! | 4 | a piece of work did not end within `--patience` |
//! | 64 | the arguments are unusable |
//! | 70 | anything else that went wrong |

use albert_benches::{
    cuda_cases::{self, Selection, Tally},
    cuda_speed::{Effort, Work},
    hardware::OnDriver,
    journal::Journal,
    losses,
    rehearsal::{Planted, Rehearsed, Stage},
};
use anyhow::Result;
use clap::Parser;
use engine::{
    Cpu, Device,
    device::{Driver, Gpu, Graphs, cuda::CudaDriver, simulated::SimulatedDriver},
};
use kernels::{OPERATIONS, operation::Operation};
use std::{path::PathBuf, process::ExitCode, time::Duration};

const FAILED: u8 = 1;
const NO_DEVICE: u8 = 2;
const LOST: u8 = 3;
const USAGE: u8 = 64;
const BROKEN: u8 = 70;

/// Operations with programs of Hopper's own: what is most likely to fail on a first run is run first.
const FIRST: [&str; 2] = ["gemm", "attention"];

#[derive(Debug, Parser)]
#[command(about = "Checks and times the CUDA kernels on a GPU")]
struct Arguments {
    /// cuda, cuda:N, or cuda-sim or cuda-sim:90 for the simulated GPU
    #[arg(long, default_value = "cuda")]
    device: String,
    /// Cases of this operation, and speeds of this kind, only
    #[arg(long)]
    only: Option<String>,
    /// Begin with this case, or speed, of --only, counted from 1
    #[arg(long, default_value_t = 1, requires = "only")]
    from: usize,
    /// The cheapest cases of each operation only, so many of them
    #[arg(long, value_name = "N")]
    cheapest: Option<usize>,
    /// No speeds; with --no-cases the device is opened, and that is all
    #[arg(long)]
    no_speed: bool,
    /// No cases, only speeds
    #[arg(long, visible_alias = "speed-only")]
    no_cases: bool,
    /// Speeds at sizes that a simulated GPU can run
    #[arg(long)]
    small: bool,
    /// Append a line for each case and each speed to this file, begun before the work and ended after it
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Seconds after which a case or a speed has hung
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    patience: f64,
    /// Plant a fault in the simulated GPU: hang, crash, fault or wrong, and where, as in hang=gemm:3 (case 3 of gemm) or
    /// crash=speed-encoder:1
    #[arg(long, value_name = "FAULT=WORK:NUMBER")]
    rehearse: Vec<Planted>,
    /// Print the operations, in the order in which they are run, and end
    #[arg(long)]
    list: bool,
    /// Print the names of the speeds and end
    #[arg(long)]
    list_speeds: bool,
    /// Compare the losses in the metrics.jsonl of three runs from one seed, and end: f32 on a processor, bf16 on a
    /// processor, bf16 on the GPU
    #[arg(long, num_args = 3, value_names = ["EXACT", "CPU", "GPU"])]
    losses: Option<Vec<PathBuf>>,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let code = if error.use_stderr() { USAGE } else { 0 };
            // A closed pipe does not change what the arguments were.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match run(&arguments) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(error.downcast_ref::<Refused>().map_or(BROKEN, |refused| refused.0))
        }
    }
}

/// The exit code of an error whose cause is known.
#[derive(Debug)]
struct Refused(u8, String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.1)
    }
}

impl std::error::Error for Refused {}

fn usage(message: String) -> anyhow::Error {
    Refused(USAGE, message).into()
}

fn run(arguments: &Arguments) -> Result<u8> {
    let only = arguments.only.as_deref();
    let operations = operations();
    if let Some(only) = only.filter(|only| operations.iter().all(|operation| operation.name != *only) && !is_kind(only))
    {
        let names: Vec<_> = operations.iter().map(|operation| operation.name).collect();
        return Err(usage(format!("`{only}` is no operation: {}, or encoder for speeds", names.join(", "))));
    }
    if arguments.list {
        operations.iter().for_each(|operation| println!("{}", operation.name));
        return Ok(0);
    }
    if arguments.list_speeds {
        Work::all(arguments.small).iter().for_each(|work| println!("{work}"));
        return Ok(0);
    }
    if let Some([exact, cpu, gpu]) = arguments.losses.as_deref() {
        let comparison = losses::compare(exact, cpu, gpu)?;
        print!("{comparison}");
        return Ok(if comparison.is_explained() { 0 } else { FAILED });
    }
    if !(arguments.patience > 0.0 && arguments.patience <= 86_400.0) {
        return Err(usage(format!(
            "--patience is {}; more than 0 and at most 86400 seconds were expected",
            arguments.patience
        )));
    }
    let stage = Stage::new(arguments.rehearse.clone());
    let simulated = |capability| Rehearsed::new(SimulatedDriver::new(capability), stage.clone());
    match arguments.device.as_str() {
        "cuda-sim" => suite(simulated((8, 0)), arguments, &stage),
        "cuda-sim:90" => suite(simulated((9, 0)), arguments, &stage),
        _ if !arguments.rehearse.is_empty() => {
            Err(usage("--rehearse is for the simulated GPU: --device cuda-sim or cuda-sim:90".to_owned()))
        }
        name => suite(open(name)?, arguments, &stage),
    }
}

/// All operations, those of [`FIRST`] first.
fn operations() -> Vec<&'static Operation> {
    let (first, rest): (Vec<_>, Vec<_>) = OPERATIONS.iter().partition(|operation| FIRST.contains(&operation.name));
    [first, rest].concat()
}

/// Whether there are speeds of this kind.
fn is_kind(name: &str) -> bool {
    Work::all(true).iter().any(|work| work.kind() == name)
}

fn open(name: &str) -> Result<CudaDriver> {
    let ordinal = match name.split_once(':') {
        None if name == "cuda" => 0,
        Some(("cuda", ordinal)) => ordinal.parse().map_err(|_| usage(format!("`{name}` names no GPU")))?,
        _ => return Err(usage(format!("`{name}` is no device: cuda, cuda:N, cuda-sim or cuda-sim:90 was expected"))),
    };
    CudaDriver::open(ordinal).map_err(|error| Refused(NO_DEVICE, error.to_string()).into())
}

fn suite<D: Driver + 'static>(driver: D, arguments: &Arguments, stage: &Stage) -> Result<u8> {
    println!("{}", driver.info());
    let is_simulated = arguments.device.starts_with("cuda-sim");
    let journal = Journal::new(arguments.journal.as_deref(), Duration::from_secs_f64(arguments.patience))?;
    let wanted = |name: &str| arguments.only.as_deref().is_none_or(|only| only == name);
    let hardware = OnDriver::new(driver);
    let mut code = 0;
    if !arguments.no_cases {
        let selection = Selection { from: arguments.from, cheapest: arguments.cheapest };
        let mut failed = 0;
        for operation in operations().into_iter().filter(|operation| wanted(operation.name)) {
            let tally = cuda_cases::run(&hardware, operation, selection, &journal, stage)?;
            println!("{}", line(operation, &tally));
            failed += tally.failed;
            if tally.is_lost {
                println!("the device is lost; a new process may go on behind the last case");
                return Ok(LOST);
            }
        }
        if failed > 0 {
            println!("{failed} cases failed");
            code = FAILED;
        }
    }
    if arguments.no_speed || (is_simulated && !arguments.small) {
        return Ok(code);
    }
    let driver = hardware.into_driver();
    let gpu = Gpu::new(driver, Cpu::detect()?)?;
    gpu.set_graphs(Graphs::from_environment()?);
    let device = Device::Cuda(gpu);
    let mut number_of_kind = std::collections::BTreeMap::new();
    for work in Work::all(arguments.small).into_iter().filter(|work| wanted(work.kind())) {
        let number = number_of_kind.entry(work.kind()).or_insert(0usize);
        *number += 1;
        if *number >= arguments.from {
            let effort = if arguments.small { Effort::LEAST } else { Effort::FULL };
            speed(&device, (work, *number), effort, &journal, stage)?;
        }
    }
    Ok(code)
}

fn line(operation: &Operation, tally: &Tally) -> String {
    let Tally { passed, failed, skipped, worst, .. } = tally;
    format!(
        "{:16} {passed:4} passed, {failed:3} failed, {skipped:3} SKIPPED, largest error {worst:.2} of its bound",
        operation.name
    )
}

/// Times one piece of work, with its number.
fn speed(
    device: &Device,
    (work, number): (Work, usize),
    effort: Effort,
    journal: &Journal,
    stage: &Stage,
) -> Result<()> {
    journal.begin(work.kind(), number, &work.to_string())?;
    stage.enter(&format!("speed-{}", work.kind()), number);
    let times = match work.measure(device, effort) {
        Ok(times) => times,
        Err(error) => {
            journal.end(&["failed".to_owned(), String::new(), String::new(), error.to_string()])?;
            // Whether the device still answers is not known, so the process ends either way.
            return Err(Refused(LOST, format!("{work}: {error}")).into());
        }
    };
    let (teraflops, terabytes) = (work.flops() / times.median / 1e12, work.bytes() / times.median / 1e12);
    println!(
        "{:44} {:10.1} us ({:.1} to {:.1}) {teraflops:8.1} TFLOP/s {terabytes:6.2} TB/s",
        work.to_string(),
        times.median * 1e6,
        times.fastest * 1e6,
        times.slowest * 1e6
    );
    let numbers = [times.median, times.fastest, times.slowest, work.flops(), work.bytes()].map(|x| format!("{x:e}"));
    journal.end(&[&["measured".to_owned()], &numbers[..]].concat())
}
