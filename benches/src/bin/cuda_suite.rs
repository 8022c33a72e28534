//! Correctness and speed of the CUDA kernels on a GPU; `benches/cuda/first.sh` runs it part by part.
//!
//! 1. Every case of every operation of the table on the device, compared with its f64 reference by the rule for all
//!    targets. A failing case is printed with the ratio of its error to the bound.
//! 2. The speed of products, attention and encoder layers at the sizes of ALBERT, through the engine, as medians of
//!    several rounds. `benches/cuda/peers.py` compares them with cuBLAS, cuDNN and PyTorch.
//!
//! Both append to a journal, and either runs without the other. Cases also run on the simulated GPU, some thousand times
//! slower; speeds are meaningless there and are skipped without `--small`.
//!
//! | exit code | |
//! |---|---|
//! | 0 | everything that ran passed |
//! | 1 | cases failed, or losses differ too much |
//! | 2 | the device does not exist |
//! | 3 | the device was lost: after a fault of a kernel every call fails, and the rest did not run |
//! | 4 | a case did not end within `--patience` |
//! | 64 | wrong usage |
//! | 70 | any other error |

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
    device::{Driver, Gpu, cuda::CudaDriver, simulated::SimulatedDriver},
};
use kernels_proof::{OPERATIONS, operation::Operation};
use std::{path::PathBuf, process::ExitCode, time::Duration};

const FAILED: u8 = 1;
const NO_DEVICE: u8 = 2;
const LOST: u8 = 3;
const USAGE: u8 = 64;
const BROKEN: u8 = 70;

/// Operations with programs for sm_90a, which are most likely to fail on a first run, so they run first.
const FIRST: [&str; 2] = ["gemm", "attention"];

#[derive(Debug, Parser)]
#[command(about = "Checks and times the CUDA kernels on a GPU")]
struct Arguments {
    /// Device: cuda, cuda:N, or cuda-sim or cuda-sim:90 for the simulated GPU
    #[arg(long, default_value = "cuda")]
    device: String,
    /// Run only cases of this operation and speeds of this kind
    #[arg(long)]
    only: Option<String>,
    /// Start with this case, or speed, of --only, counted from 1
    #[arg(long, default_value_t = 1, requires = "only")]
    from: usize,
    /// Run only this many of the cheapest cases of each operation
    #[arg(long, value_name = "N")]
    cheapest: Option<usize>,
    /// Also run the programs for sm_80 on a Hopper GPU
    #[arg(long)]
    ampere: bool,
    /// Skip speeds; with --no-cases only open the device
    #[arg(long)]
    no_speed: bool,
    /// Skip cases
    #[arg(long, visible_alias = "speed-only")]
    no_cases: bool,
    /// Measure speeds at sizes that a simulated GPU can run
    #[arg(long)]
    small: bool,
    /// Append one line per case and speed to this file, started before it runs and completed after it
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Seconds after which a case or a speed counts as hung
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    patience: f64,
    /// Plant a fault in the simulated GPU: hang, crash, fault or wrong, and the case, such as hang=gemm:3 (case 3 of gemm) or
    /// crash=speed-encoder:1
    #[arg(long, value_name = "FAULT=WORK:NUMBER")]
    rehearse: Vec<Planted>,
    /// Print the operations in the order in which they run, and exit
    #[arg(long)]
    list: bool,
    /// Print the names of the speeds and exit
    #[arg(long)]
    list_speeds: bool,
    /// Compare the losses in the metrics.jsonl of three runs from one seed, and exit: f32 on a CPU, bf16 on a CPU, bf16 on
    /// the GPU
    #[arg(long, num_args = 3, value_names = ["EXACT", "CPU", "GPU"])]
    losses: Option<Vec<PathBuf>>,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let code = if error.use_stderr() { USAGE } else { 0 };
            // A closed pipe does not change the exit code.
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

/// Error with its exit code.
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
        return Err(usage(format!(
            "--only {only}: expected an operation: {}, or encoder for speeds",
            names.join(", ")
        )));
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

/// True if there are speeds of this kind.
fn is_kind(name: &str) -> bool {
    Work::all(true).iter().any(|work| work.kind() == name)
}

fn open(name: &str) -> Result<CudaDriver> {
    let ordinal = match name.split_once(':') {
        None if name == "cuda" => 0,
        Some(("cuda", ordinal)) => {
            ordinal.parse().map_err(|_| usage(format!("--device {name}: expected a GPU number, such as cuda:0")))?
        }
        _ => return Err(usage(format!("--device {name}: expected cuda, cuda:N, cuda-sim or cuda-sim:90"))),
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
        let selection = Selection { from: arguments.from, cheapest: arguments.cheapest, ampere: arguments.ampere };
        let mut failed = 0;
        for operation in operations().into_iter().filter(|operation| wanted(operation.name)) {
            let tally = cuda_cases::run(&hardware, operation, selection, &journal, stage)?;
            println!("{}", line(operation, &tally));
            failed += tally.failed;
            if tally.is_lost {
                println!("the device is lost; continue after the last case in a new process");
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

/// Runs one measurement, with its number.
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
            // The device may be lost, so the process ends.
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
