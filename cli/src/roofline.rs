//! What this machine can do at most, for commands that print what kernels cost against it (`--profile`).

use engine::{
    Cpu,
    profile::{Peak, Profile},
};

/// Measures both limits; takes about half a second.
pub(crate) fn peak(cpu: &Cpu) -> Peak {
    Peak { flops: engine::roofline::fma_peak(cpu, 0.2), bandwidth: engine::roofline::copy_bandwidth(cpu, 64 << 20, 2) }
}

/// Prints what `profile` collected to standard error, against the limits of `cpu`.
pub(crate) fn print(profile: &Profile, cpu: &Cpu) {
    eprintln!("{}", profile.table(peak(cpu)));
}
