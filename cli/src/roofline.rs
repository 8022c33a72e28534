//! `--profile`, the table of kernel costs against the roofline of the device.

use crate::output::tell;
use clap::Args;
use engine::{
    Device,
    profile::{Peak, Profile},
};

/// Share of the device's peak that `flops` in `seconds` reach, as the end of a line; empty if the peak is unknown.
pub(crate) fn share(peak: Option<Peak>, flops: f64, seconds: f64) -> String {
    peak.map_or(String::new(), |peak| format!(", {:.0} % of peak", 100.0 * flops / seconds / peak.flops))
}

/// The option `--profile`.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Profiling {
    /// Print the cost of each kernel and its share of the device's roofline
    #[arg(long = "profile")]
    pub(crate) on: bool,
}

impl Profiling {
    /// If the option is set, prints `profile` with shares of the roofline of `device` to standard error.
    pub(crate) fn print(self, profile: &Profile, device: &Device) {
        if self.on {
            tell!("{}", profile.table(device.peak()));
        }
    }
}
