//! The CUDA suite for a machine with a GPU, and the timing that the examples share.
//!
//! The cases of the criterion benches are those of `albert bench`: crate `measure`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cuda_cases;
pub mod cuda_speed;
pub mod hardware;
pub mod journal;
pub mod losses;
pub mod rehearsal;

use kernels::{Cpu, roofline};
use measure::clock::processor_time;
use std::time::Instant;

/// Speed of a call and of the machine, in FLOP/s.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// By wall time, best of all calls.
    pub wall: f64,
    /// By CPU time over the number of threads, best of all calls: other processes on the machine disturb it less.
    pub processor: f64,
    /// FMA peak of the machine on as many threads, best of all rounds.
    pub peak: f64,
}

/// Times `call` (which does `flops`) interleaved with the machine's peak, so that a disturbance most likely affects both.
/// Runs for about `seconds`, at least three rounds.
pub fn beside_peak(cpu: &Cpu, flops: u64, seconds: f64, mut call: impl FnMut()) -> Speed {
    let (mut wall, mut processor, mut peak) = (f64::INFINITY, f64::INFINITY, 0.0f64);
    let start = Instant::now();
    let mut rounds = 0;
    while rounds < 3 || start.elapsed().as_secs_f64() < seconds {
        peak = peak.max(roofline::fma_peak(cpu, 0.001));
        for _ in 0..3 {
            let (one, used) = (Instant::now(), processor_time());
            call();
            wall = wall.min(one.elapsed().as_secs_f64());
            processor = processor.min((processor_time() - used).as_secs_f64());
        }
        rounds += 1;
    }
    Speed { wall: flops as f64 / wall, processor: flops as f64 * cpu.threads() as f64 / processor, peak }
}
