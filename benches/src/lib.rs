//! What is measured and how: the cases of `albert bench`, timed in turns beside the machine's peak, and what other benches
//! share.
//!
//! ```text
//! plan::Selection ──> [cases::Work] ──prepare──> calls ──measure::Turner──> turns ──> report::Record ──> table, JSON
//! ```
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cases;
pub mod chart;
pub mod clock;
pub mod cuda_cases;
pub mod cuda_speed;
pub mod hardware;
pub mod html;
pub mod journal;
pub mod losses;
pub mod measure;
pub mod memory;
#[cfg(feature = "peers")]
pub mod peers;
pub mod plan;
pub mod rehearsal;
pub mod report;

use kernels::{Cpu, gemm::Gemm, num::philox::Stream, roofline};
use std::time::Instant;

/// (n, k) of the products of ALBERT-base: attention output, joined query-key-value, feed-forward in and out,
/// embedding projection, MLM projection, vocabulary.
pub const BASE_SHAPES: [(usize, usize); 7] =
    [(768, 768), (2304, 768), (3072, 768), (768, 3072), (768, 128), (128, 768), (30_000, 128)];

/// (m, n) of the weight gradients of ALBERT-base: projections, feed-forward in and out, embedding map.
pub const WEIGHT_SHAPES: [(usize, usize); 5] = [(768, 768), (768, 2304), (768, 3072), (3072, 768), (128, 768)];

/// A form of the product by its name: `nn`, `nt`, `tn` or `tt`.
///
/// # Panics
/// If the name is none of these.
pub fn form(name: &str, m: usize, n: usize, k: usize) -> Gemm {
    match name {
        "nn" => Gemm::nn(m, n, k),
        "nt" => Gemm::nt(m, n, k),
        "tn" => Gemm::tn(m, n, k),
        "tt" => Gemm::tt(m, n, k),
        _ => panic!("`{name}` is no form of a product: nn, nt, tn or tt"),
    }
}

/// `len` numbers in [-0.5, 0.5): never zeros, which some hardware multiplies faster.
pub fn random(len: usize, name: u32) -> Vec<f32> {
    let mut stream = Stream::new(1, [name, 0, 0]);
    (0..len).map(|_| stream.next_f32() - 0.5).collect()
}

/// What a call reached beside the machine's peak, in FLOP/s.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// By the clock on the wall, best of all calls.
    pub wall: f64,
    /// By the time that the process was on processors, times the number of threads, best of all calls: on a machine
    /// with neighbors this is what the kernel does, and the wall is what is left of it.
    pub processor: f64,
    /// The machine's fused multiply-adds on as many threads, best of all turns.
    pub peak: f64,
}

/// Times `call` (which does `flops`) and the machine's peak in turns: what disturbs one most likely disturbs the
/// other. Runs for about `seconds`, at least three turns.
pub fn beside_peak(cpu: &Cpu, flops: u64, seconds: f64, mut call: impl FnMut()) -> Speed {
    let (mut wall, mut processor, mut peak) = (f64::INFINITY, f64::INFINITY, 0.0f64);
    let start = Instant::now();
    let mut turns = 0;
    while turns < 3 || start.elapsed().as_secs_f64() < seconds {
        peak = peak.max(roofline::fma_peak(cpu, 0.001));
        for _ in 0..3 {
            let (one, used) = (Instant::now(), clock::processor_time());
            call();
            wall = wall.min(one.elapsed().as_secs_f64());
            processor = processor.min((clock::processor_time() - used).as_secs_f64());
        }
        turns += 1;
    }
    Speed { wall: flops as f64 / wall, processor: flops as f64 * cpu.threads() as f64 / processor, peak }
}
