//! What kernels cost against what this machine can do at most: `--profile`, the same switch for every command.

use crate::output::tell;
use clap::Args;
use engine::{
    Device,
    profile::{Peak, Profile},
};

/// The share of the device's peak that so many operations in so many seconds are, at the end of a line; nothing where the
/// peak is not known.
pub(crate) fn share(peak: Option<Peak>, flops: f64, seconds: f64) -> String {
    peak.map_or(String::new(), |peak| format!(", {:.0} % of peak", 100.0 * flops / seconds / peak.flops))
}

/// The switch, part of a command's arguments.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Profiling {
    /// Print the cost of every kernel, against the roofline of the device
    #[arg(long = "profile")]
    pub(crate) on: bool,
}

impl Profiling {
    /// Prints what `profile` collected to standard error, against the limits of `device`, where that was asked for.
    pub(crate) fn print(self, profile: &Profile, device: &Device) {
        if self.on {
            tell!("{}", profile.table(device.peak()));
        }
    }
}
