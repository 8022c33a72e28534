//! The ranks of a command that a launcher started (`mpirun -n 4 albert pretrain ..`).

use crate::output::{self, tell};
use albert::train::Worker;
use anyhow::{Context, Result, bail};
use engine::{Communicator, Cpu, Device};
use std::{fs, process::ExitCode, thread, time::Duration};

/// Time that a rank waits for the runs of another: more than any takes.
pub(crate) const LONGEST_RUN: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Runs `command` on this rank with `device`, and leaves the other ranks: together if it ends well, at once if it fails.
pub(crate) fn run(device: &str, command: impl FnOnce(Worker) -> Result<ExitCode>) -> Result<ExitCode> {
    let communicator = Communicator::from_environment()?;
    match worker(device, &communicator).and_then(command) {
        Err(mut error) if communicator.size() > 1 => {
            // An error of all ranks is printed by the first, which then ends the others.
            if !communicator.is_first() {
                thread::sleep(Duration::from_millis(500));
            }
            if !error.to_string().starts_with("rank ") {
                error = error.context(format!("rank {}", communicator.rank()));
            }
            // Before the others are ended, and with them perhaps this rank. Launchers lose what is printed as they end.
            output::print_error(&error);
            thread::sleep(Duration::from_millis(300));
            communicator.abort();
            Ok(ExitCode::FAILURE)
        }
        result => {
            communicator.finish();
            result
        }
    }
}

/// This rank, which shares cores and GPUs with those of the same host.
fn worker(device: &str, communicator: &Communicator) -> Result<Worker> {
    if communicator.size() == 1 {
        return Ok(Worker { device: Device::named(device, Cpu::detect()?)?, communicator: communicator.clone() });
    }
    let host = "/proc/sys/kernel/hostname";
    let host = fs::read(host).with_context(|| format!("{host} cannot be read"))?;
    let hosts = communicator.gather("host names", &host)?;
    let here: Vec<usize> = (0..hosts.len()).filter(|rank| hosts[*rank] == host).collect();
    let name = gpu_of(device, communicator, &here)?;
    let device = Device::named(&name, Cpu::detect_share(here.len())?)?;
    if !communicator.is_first() {
        output::mute();
    } else {
        let mut names: Vec<&Vec<u8>> = hosts.iter().collect();
        names.sort();
        names.dedup();
        tell!("{} ranks on {} host(s), {} thread(s) in rank 0", hosts.len(), names.len(), device.processor().threads());
    }
    Ok(Worker { device, communicator: communicator.clone() })
}

/// Name of this rank's device: the ranks `here`, on this host, take one GPU each. Where the launcher shows a rank a single GPU,
/// it is that one.
fn gpu_of(device: &str, communicator: &Communicator, here: &[usize]) -> Result<String> {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let is_bound = !visible.is_empty() && !visible.contains(',');
    let name = match device {
        "cuda" if !is_bound => {
            let place = here.iter().filter(|rank| **rank < communicator.rank()).count();
            format!("cuda:{place}")
        }
        _ => device.to_owned(),
    };
    let mine = if is_bound { String::new() } else { name.clone() };
    let all = communicator.gather("names of devices", mine.as_bytes())?;
    let is_same = |rank: &&usize| **rank != communicator.rank() && all[**rank] == mine.as_bytes();
    if mine.starts_with("cuda:")
        && let Some(other) = here.iter().find(is_same)
    {
        bail!(
            "ranks {} and {other} of one host would share {mine}; with --device cuda each takes its own",
            communicator.rank()
        );
    }
    Ok(name)
}
