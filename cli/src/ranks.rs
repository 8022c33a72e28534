//! The ranks of a training command that a launcher started (`mpirun -n 4 albert pretrain ..`).

use crate::output::{self, tell};
use albert::train::Worker;
use anyhow::{Context, Result};
use engine::{Communicator, Cpu, Device};
use std::{fs, process::ExitCode};

/// Runs `command` on this rank with `device`, and leaves the other ranks: together if it ends well, at once if it fails.
pub(crate) fn run(device: &str, command: impl FnOnce(Worker) -> Result<ExitCode>) -> Result<ExitCode> {
    let communicator = Communicator::from_environment()?;
    match worker(device, &communicator).and_then(command) {
        Err(error) if communicator.size() > 1 => {
            // Before the others are ended, and with them perhaps this rank.
            output::print_error(&error);
            communicator.abort();
            Ok(ExitCode::FAILURE)
        }
        result => {
            communicator.finish();
            result
        }
    }
}

/// This rank, which shares the cores with those of the same host.
fn worker(device: &str, communicator: &Communicator) -> Result<Worker> {
    if communicator.size() == 1 {
        return Ok(Worker { device: Device::named(device, Cpu::detect()?)?, communicator: communicator.clone() });
    }
    let host = "/proc/sys/kernel/hostname";
    let host = fs::read(host).with_context(|| format!("{host} cannot be read"))?;
    let hosts = communicator.gather("host names", &host)?;
    let here = hosts.iter().filter(|other| **other == host).count();
    let device = Device::named(device, Cpu::detect_share(here)?)?;
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
