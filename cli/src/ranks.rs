//! Ranks of a command started by a launcher (`mpirun -n 4 albert pretrain ..`).

use crate::{
    output::{self, tell},
    tracing::{self, Tracing},
};
use albert::train::Worker;
use anyhow::{Context, Result, anyhow, bail};
use engine::{Communicator, Cpu, Device, GradientPath, Start};
use std::{fs, process::ExitCode, thread, time::Duration};

/// Maximum time that a rank waits for the runs of another: longer than any run.
pub(crate) const LONGEST_RUN: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Runs `command` on this rank with `device`, then leaves the other ranks: together if it succeeds, immediately if it fails.
pub(crate) fn run(device: &str, command: impl FnOnce(Worker) -> Result<ExitCode>) -> Result<ExitCode> {
    run_traced(device, &Tracing::default(), command)
}

/// As [`run`], with a `trace` of this rank.
pub(crate) fn run_traced(
    device: &str,
    trace: &Tracing,
    command: impl FnOnce(Worker) -> Result<ExitCode>,
) -> Result<ExitCode> {
    let nccl = std::env::var("ALBERT_NCCL").ok();
    match Start::from_environment(|error| output::print_error(&anyhow!("{error}")))? {
        Start::Connected(communicator) if communicator.size() == 1 => {
            let worker = || -> Result<Worker> {
                trace.start(0)?;
                Ok(Worker { device: Device::named(device, Cpu::detect()?)?, communicator: communicator.clone() })
            };
            let result = worker().and_then(command);
            communicator.finish();
            result
        }
        Start::Connected(mut communicator) => {
            let traced = trace.start(communicator.rank());
            let worker = traced.and_then(|()| worker(device, &mut communicator, nccl.as_deref()));
            leave(&communicator, worker.and_then(command))
        }
        Start::OnGpus(ranks) => {
            trace.start(ranks.rank)?;
            let device = Device::named(&own_gpu(device, ranks.local_rank), Cpu::detect_share(ranks.local_size)?)?;
            let (communicator, path) = ranks.connect(&device, nccl.as_deref())?;
            let announced = host_names(&communicator).map(|hosts| announce(&communicator, &hosts, &device, &path));
            let worker = Worker { device, communicator: communicator.clone() };
            leave(&communicator, announced.and_then(|()| command(worker)))
        }
    }
}

/// Leaves the other ranks with the result of this one.
fn leave(communicator: &Communicator, result: Result<ExitCode>) -> Result<ExitCode> {
    // The trace is written before the ranks are ended.
    let traced = tracing::finish();
    let result = result.and_then(|code| traced.map(|()| code));
    let Err(mut error) = result else {
        communicator.finish();
        return result;
    };
    // An error common to all ranks is printed by the first, which then ends the rest.
    if !communicator.is_first() {
        thread::sleep(Duration::from_millis(500));
    }
    if !error.to_string().starts_with("rank ") {
        error = error.context(format!("rank {}", communicator.rank()));
    }
    // Printed before ending the other ranks, and perhaps this one with them: launchers lose output printed at the end.
    output::print_error(&error);
    thread::sleep(Duration::from_millis(300));
    communicator.abort();
    Ok(ExitCode::FAILURE)
}

/// Worker of this rank, which shares cores and GPUs with the ranks of the same host.
fn worker(device: &str, communicator: &mut Communicator, nccl: Option<&str>) -> Result<Worker> {
    let hosts = host_names(communicator)?;
    let here: Vec<usize> = (0..hosts.len()).filter(|rank| hosts[*rank] == hosts[communicator.rank()]).collect();
    let name = gpu_of(device, communicator, &here)?;
    let device = Device::named(&name, Cpu::detect_share(here.len())?)?;
    let path = communicator.connect_gpus(&device, nccl)?;
    announce(communicator, &hosts, &device, &path);
    Ok(Worker { device, communicator: communicator.clone() })
}

/// Host name of every rank.
fn host_names(communicator: &Communicator) -> Result<Vec<Vec<u8>>> {
    let host = "/proc/sys/kernel/hostname";
    let host = fs::read(host).with_context(|| format!("{host} cannot be read"))?;
    Ok(communicator.gather("host names", &host)?)
}

/// Prints the participants on the first rank; all other ranks are silent from now on.
fn announce(communicator: &Communicator, hosts: &[Vec<u8>], device: &Device, path: &GradientPath) {
    if !communicator.is_first() {
        return output::mute();
    }
    let mut names: Vec<&Vec<u8>> = hosts.iter().collect();
    names.sort();
    names.dedup();
    let threads = device.processor().threads();
    // Not all commands sum gradients.
    let path = if device.gpu().is_some() { format!("; {path}") } else { String::new() };
    tell!("{} ranks on {} host(s), {threads} thread(s) in rank 0{path}", hosts.len(), names.len());
}

/// Name of the GPU of rank `place` of a host: each uses a different one, unless the launcher makes only one visible.
fn own_gpu(device: &str, place: usize) -> String {
    if device == "cuda" && !shows_one_gpu() { format!("cuda:{place}") } else { device.to_owned() }
}

/// True if the launcher makes a single GPU visible to this rank.
fn shows_one_gpu() -> bool {
    std::env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|visible| !visible.is_empty() && !visible.contains(','))
}

/// Name of this rank's device: the ranks `here`, on this host, use one GPU each.
fn gpu_of(device: &str, communicator: &Communicator, here: &[usize]) -> Result<String> {
    let name = own_gpu(device, here.iter().filter(|rank| **rank < communicator.rank()).count());
    let mine = if shows_one_gpu() { String::new() } else { name.clone() };
    let all = communicator.gather("names of devices", mine.as_bytes())?;
    let is_same = |rank: &&usize| **rank != communicator.rank() && all[**rank] == mine.as_bytes();
    if mine.starts_with("cuda:")
        && let Some(other) = here.iter().find(is_same)
    {
        bail!(
            "ranks {} and {other} of one host would share {mine}; with --device cuda each uses its own",
            communicator.rank()
        );
    }
    Ok(name)
}
