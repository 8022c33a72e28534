//! Everything that a machine with a GPU can say about the CUDA kernels, in one run.
//!
//! 1. Every case of every operation of the table on the device, held against its f64 reference by the rule of all
//!    targets. A case that fails is named; the exit code is 1.
//! 2. The speed of products, attention and an encoder layer at the sizes of ALBERT, through the engine, as medians of
//!    several turns. `benches/cuda/run.sh` puts them beside cuBLAS, cuDNN and PyTorch.
//!
//! On the simulated GPU the cases run too, some thousand times slower; speeds mean nothing there and are left out.

use albert_benches::{cuda_speed, hardware::OnDriver};
use anyhow::{Context, Result, bail};
use clap::Parser;
use engine::{
    Cpu, Device,
    device::{Driver, cuda::CudaDriver, simulated::SimulatedDriver},
};
use kernels::{
    OPERATIONS,
    operation::{Case, Operation, Outcome, Target},
    ptx::Sm,
    simulated::on_hardware,
};
use serde_json::json;
use std::{path::PathBuf, process::ExitCode, rc::Rc, time::Instant};

#[derive(Debug, Parser)]
#[command(about = "Checks and times the CUDA kernels on a GPU")]
struct Arguments {
    /// cuda, cuda:N, or cuda-sim or cuda-sim:90 for the simulated GPU
    #[arg(long, default_value = "cuda")]
    device: String,
    /// Cases of this operation only
    #[arg(long)]
    only: Option<String>,
    /// No speeds
    #[arg(long)]
    no_speed: bool,
    /// Writes speeds to this file
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let only = arguments.only.as_deref();
    if let Some(only) = only.filter(|only| OPERATIONS.iter().all(|operation| operation.name != *only)) {
        let names: Vec<_> = OPERATIONS.iter().map(|operation| operation.name).collect();
        bail!("`{only}` is no operation: {}", names.join(", "));
    }
    let simulated = arguments.device.starts_with("cuda-sim");
    let failures = match arguments.device.as_str() {
        "cuda-sim" => cases(SimulatedDriver::new((8, 0)), only),
        "cuda-sim:90" => cases(SimulatedDriver::new((9, 0)), only),
        name => cases(open(name)?, only),
    };
    if !simulated && !arguments.no_speed {
        speeds(&arguments, failures)?;
    }
    if failures > 0 {
        println!("{failures} cases failed");
    }
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn open(name: &str) -> Result<CudaDriver> {
    let ordinal = match name.split_once(':') {
        None if name == "cuda" => 0,
        Some(("cuda", ordinal)) => ordinal.parse().with_context(|| format!("`{name}` names no GPU"))?,
        _ => bail!("`{name}` is no device: cuda, cuda:N, cuda-sim or cuda-sim:90 was expected"),
    };
    Ok(CudaDriver::open(ordinal)?)
}

/// Runs the cases; gives the number of those that failed.
fn cases<D: Driver + 'static>(driver: D, only: Option<&str>) -> usize {
    println!("{}", driver.info());
    let sm = if driver.info().compute_capability == (9, 0) { Sm::Sm90a } else { Sm::Sm80 };
    let hardware = Rc::new(OnDriver::new(driver));
    // What has no program of Hopper's own is checked with that of sm_80, which serves every GPU.
    let check = |operation: &Operation, case: &Case| {
        let run = |sm| on_hardware(hardware.clone(), || (operation.check)(case, Target::Simulator(sm)));
        match run(sm) {
            Outcome::Skipped { .. } if sm != Sm::Sm80 => run(Sm::Sm80),
            outcome => outcome,
        }
    };
    let mut failures = 0;
    for operation in OPERATIONS.iter().filter(|operation| only.is_none_or(|only| operation.name == only)) {
        let start = Instant::now();
        let (mut passed, mut skipped, mut worst) = (0, 0, 0.0f64);
        for case in (operation.cases)() {
            match check(operation, &case) {
                Outcome::Passed { worst: ratio } => (passed, worst) = (passed + 1, worst.max(ratio)),
                Outcome::Skipped { .. } => skipped += 1,
                Outcome::Failed { message } => {
                    failures += 1;
                    println!("FAILED {}: {message}", operation.name);
                }
            }
        }
        let (name, seconds) = (operation.name, start.elapsed().as_secs_f64());
        println!(
            "{name:16} {passed:4} passed, {skipped:3} SKIPPED, worst error {worst:.2} of its bound, {seconds:.1} s"
        );
    }
    failures
}

fn speeds(arguments: &Arguments, failures: usize) -> Result<()> {
    let device = Device::named(&arguments.device, Cpu::detect()?)?;
    let rows = cuda_speed::measure(&device)?;
    rows.iter().for_each(|row| println!("{row}"));
    let Some(file) = &arguments.json else { return Ok(()) };
    let rows: Vec<_> = rows
        .iter()
        .map(|row| json!({ "name": row.name, "seconds": row.seconds, "flops": row.flops, "bytes": row.bytes }))
        .collect();
    let gpu = device.gpu().map(|gpu| gpu.info().to_string());
    let text = json!({ "gpu": gpu, "failures": failures, "rows": rows }).to_string();
    std::fs::write(file, text + "\n").with_context(|| file.display().to_string())
}
