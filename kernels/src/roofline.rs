//! Measured roofline of this machine: FMA peak, and bandwidth of caches and memory.
//!
//! * FMA peak: independent fused multiply-adds on registers, enough in flight to hide their latency.
//! * Bandwidth of memory: a copy of arrays larger than any cache, bytes read plus bytes written (without the read for
//!   ownership of a store, half as much again).
//! * Bandwidth of a cache: each thread reads an array of its own again and again, which fits the cache and not the one
//!   below.
//!
//! Report performance as a ratio to the peak measured right before or after on the same threads: clocks depend on load and
//! vector width, and other virtual machines share the host.

use crate::pool::Cpu;
use crate::simd::{Isa, Kernel, Simd};
use crate::tiles::{TileKind, loop_of_peak};
use std::{hint::black_box, sync::Mutex, time::Instant};

/// Accumulators in flight: two FMA units of four or five cycles of latency need ten.
const CHAINS: usize = 12;

struct FmaLoop {
    rounds: u32,
}

impl Kernel for FmaLoop {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        // Values stay within [0, 1]: subnormal or infinite values could be slower.
        let (factor, offset) = (simd.splat(black_box(0.5)), simd.splat(black_box(0.25)));
        let mut chains = [simd.splat(black_box(0.125)); CHAINS];
        for _ in 0..self.rounds {
            for chain in &mut chains {
                *chain = simd.mul_add(*chain, factor, offset);
            }
        }
        chains.iter().map(|&chain| simd.reduce_sum(chain)).sum()
    }
}

/// FLOPs of `rounds` rounds of the loop on one thread.
fn fma_flops(isa: Isa, rounds: u32) -> f64 {
    2.0 * (CHAINS * isa.lanes()) as f64 * f64::from(rounds)
}

/// FLOP/s of f32 fused multiply-adds on all threads of `cpu` together, over about `seconds`.
///
/// Each thread times its own loop, without the wake-up; returns the best time slice, summed over the threads.
pub fn fma_peak(cpu: &Cpu, seconds: f64) -> f64 {
    const ROUNDS: u32 = 50_000;
    let isa = cpu.isa();
    best_of_slices(cpu, seconds, || {
        black_box(isa.run(FmaLoop { rounds: ROUNDS }));
        fma_flops(isa, ROUNDS)
    })
}

/// FLOP/s of products of bf16 on all threads of `cpu` together, over about `seconds`: of its matrix unit, multiplying normally
/// distributed numbers in L1 (with zeros the clock would be higher), or of f32 multiply-adds if it has none.
pub fn tile_peak(cpu: &Cpu, seconds: f64) -> f64 {
    if cpu.tiles().kind() != TileKind::Amx {
        return fma_peak(cpu, seconds);
    }
    best_of_slices(cpu, seconds, || loop_of_peak(cpu.tiles(), 2000).expect("AMX is a unit"))
}

/// The best time slice, summed over the threads: each runs `work`, which returns its FLOPs, again and again.
fn best_of_slices(cpu: &Cpu, seconds: f64, work: impl Fn() -> f64 + Sync) -> f64 {
    let mut best = 0.0f64;
    let start = Instant::now();
    while best == 0.0 || start.elapsed().as_secs_f64() < seconds {
        let sum = Mutex::new(0.0);
        cpu.on_every_thread(|_| {
            let slice = Instant::now();
            let flops = work();
            *sum.lock().expect("no probe panics") += flops / slice.elapsed().as_secs_f64();
        });
        best = best.max(sum.into_inner().expect("no probe panics"));
    }
    best
}

/// Bytes per second (read + written) of a copy of arrays of `bytes` each on all threads of `cpu`, best of `repeats`.
pub fn copy_bandwidth(cpu: &Cpu, bytes: usize, repeats: usize) -> f64 {
    let source = vec![1.0f32; bytes / 4];
    let mut target = vec![0.0f32; bytes / 4];
    let mut best = 0.0f64;
    for _ in 0..repeats.max(1) {
        let start = Instant::now();
        cpu.for_each_chunk(&mut target, 1 << 18, |i, chunk| {
            chunk.copy_from_slice(&source[i << 18..][..chunk.len()]);
        });
        best = best.max(8.0 * target.len() as f64 / start.elapsed().as_secs_f64());
        black_box(&target);
    }
    best
}

/// A cache of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cache {
    /// L2 or L3.
    pub name: &'static str,
    /// Bytes that it holds for all threads together.
    pub bytes: usize,
    /// Bytes per second that all threads together read from it.
    pub bandwidth: f64,
}

/// L2, one for each thread, and L3, shared by all; `None` where the machine reports no such cache, or an L3 that is too
/// small to tell from the L2s. Each is measured for about `seconds`.
pub fn caches(cpu: &Cpu, seconds: f64) -> [Option<Cache>; 2] {
    let [l2, l3] = [2, 3].map(Cpu::cache_bytes);
    let threads = cpu.threads();
    let measured =
        |name, bytes: usize, array: usize| Cache { name, bytes, bandwidth: read_bandwidth(cpu, array, seconds) };
    let l3 = l3.filter(|l3| l3 / threads >= 4 * l2.unwrap_or(0));
    [
        l2.map(|l2| measured("L2", l2 * threads, l2 / 2)),
        // Half of a thread's share; a virtual machine may have less of the L3 than it reports.
        l3.map(|l3| measured("L3", l3, (l3 / threads / 2).min(8 * l2.unwrap_or(1 << 20)))),
    ]
}

struct ReadLoop<'a> {
    data: &'a [f32],
    rounds: usize,
}

impl Kernel for ReadLoop<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut maxima = [simd.zero(); 8];
        for _ in 0..self.rounds {
            for block in black_box(self.data).chunks_exact(8 * S::LANES) {
                for (maximum, vector) in maxima.iter_mut().zip(block.chunks_exact(S::LANES)) {
                    *maximum = simd.max(*maximum, simd.load(vector));
                }
            }
        }
        maxima.iter().map(|&maximum| simd.reduce_max(maximum)).sum()
    }
}

/// Bytes per second that all threads of `cpu` together read, each from its own array of `bytes`, over about `seconds`: the
/// best time slice, summed over the threads.
pub(crate) fn read_bandwidth(cpu: &Cpu, bytes: usize, seconds: f64) -> f64 {
    /// Bytes of a time slice, about a millisecond.
    const SLICE: usize = 64 << 20;
    let isa = cpu.isa();
    let rounds = (SLICE / bytes).max(1);
    let best = Mutex::new(0.0f64);
    cpu.on_every_thread(|_| {
        let data = vec![1.0f32; bytes / 4];
        let (mut fastest, start) = (0.0f64, Instant::now());
        while fastest == 0.0 || start.elapsed().as_secs_f64() < seconds {
            let slice = Instant::now();
            black_box(isa.run(ReadLoop { data: &data, rounds }));
            fastest = fastest.max((4 * data.len() * rounds) as f64 / slice.elapsed().as_secs_f64());
        }
        *best.lock().expect("no probe panics") += fastest;
    });
    best.into_inner().expect("no probe panics")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_vectors_do_not_lower_the_peak() {
        let peak = |isa| fma_peak(&Cpu::new(isa, 1).unwrap(), 0.05);
        let peaks: Vec<_> = Isa::real().into_iter().map(|isa| (isa.kind(), peak(isa))).collect();
        println!("{peaks:?}");
        // Scalar is several times slower than any vector, whatever else the machine does.
        assert!(peaks.iter().all(|&(_, flops)| flops > 1e8), "{peaks:?}");
        if let [(_, scalar), .., (_, widest)] = peaks[..] {
            assert!(widest > scalar, "{peaks:?}");
        }
    }

    #[test]
    fn caches_are_faster_than_memory() {
        let cpu = Cpu::new(Isa::choose().unwrap(), 1).unwrap();
        let memory = read_bandwidth(&cpu, 256 << 20, 0.1);
        let caches = caches(&cpu, 0.1);
        println!("{caches:?}, memory {memory:.3e}");
        // The L3 may be in use by others.
        assert!(caches[0].is_none_or(|l2| l2.bandwidth > memory), "{caches:?}, memory {memory:e}");
    }

    #[test]
    fn copying_moves_bytes() {
        let cpu = Cpu::new(Isa::choose().unwrap(), 1).unwrap();
        assert!(copy_bandwidth(&cpu, 1 << 22, 3) > 1e8);
    }
}
