//! What kernels cost against what this machine can do at most: `--profile`, the same switch for every command.

use clap::Args;
use engine::{
    Cpu,
    profile::{Peak, Profile},
};

/// Measures both limits; takes about half a second.
pub(crate) fn peak(cpu: &Cpu) -> Peak {
    Peak { flops: engine::roofline::fma_peak(cpu, 0.2), bandwidth: engine::roofline::copy_bandwidth(cpu, 64 << 20, 2) }
}

/// The switch, part of a command's arguments.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Profiling {
    /// Print what every kernel cost, against the roofline of this machine
    #[arg(long = "profile")]
    pub(crate) on: bool,
}

impl Profiling {
    /// Prints what `profile` collected to standard error, against the limits of `cpu`, where that was asked for.
    pub(crate) fn print(self, profile: &Profile, cpu: &Cpu) {
        if self.on {
            eprintln!("{}", profile.table(peak(cpu)));
        }
    }
}
