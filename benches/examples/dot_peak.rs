//! Throughput of dot-product instructions and of fused multiply-adds on one thread, measured interleaved: an upper bound
//! for the speedup of bf16 and 8-bit integers over f32 on this CPU.
//!
//!     cargo run --release -p albert-benches --example dot_peak
//!
//! ```text
//! vfmadd231ps    16 multiply-adds     f32
//! vdpbf16ps      32 multiply-adds     pairs of bf16, f32 accumulators           (AVX512-BF16)
//! vpdpbusd       64 multiply-adds     groups of four int8, int32 accumulators   (AVX512-VNNI)
//! ```
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod dots {
    use std::{arch::x86_64::*, hint::black_box, time::Instant};

    /// Independent accumulators: more than the 10 required by two units with a latency of five cycles.
    const CHAINS: usize = 16;
    const ROUNDS: usize = 100_000;

    /// Defines a function that returns the operations per second of `CHAINS` accumulators, `$multiply_adds` per instruction.
    macro_rules! peak {
        ($name:ident, $features:literal, $multiply_adds:literal, $zero:expr, $operands:expr, $instruction:expr) => {
            /// # Safety
            /// The CPU must have the features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name() -> f64 {
                let (a, b) = black_box($operands);
                let mut sums = [$zero; CHAINS];
                let start = Instant::now();
                for _ in 0..ROUNDS {
                    for sum in &mut sums {
                        *sum = $instruction(*sum, a, b);
                    }
                }
                let seconds = start.elapsed().as_secs_f64();
                black_box(sums);
                (2 * $multiply_adds * CHAINS * ROUNDS) as f64 / seconds
            }
        };
    }
    peak!(f32s, "avx512f", 16, _mm512_setzero_ps(), (_mm512_set1_ps(1.0), _mm512_set1_ps(0.5)), |sum, a, b| {
        _mm512_fmadd_ps(a, b, sum)
    });
    peak!(bf16s, "avx512f,avx512bf16", 32, _mm512_setzero_ps(), (ones(), ones()), _mm512_dpbf16_ps);
    peak!(
        bytes,
        "avx512f,avx512vnni",
        64,
        _mm512_setzero_si512(),
        (_mm512_set1_epi8(1), _mm512_set1_epi8(1)),
        _mm512_dpbusd_epi32
    );

    #[target_feature(enable = "avx512f,avx512bf16")]
    fn ones() -> __m512bh {
        let one = _mm512_set1_ps(1.0);
        _mm512_cvtne2ps_pbh(one, one)
    }
}

#[cfg(target_arch = "x86_64")]
fn main() {
    if !is_x86_feature_detected!("avx512f") {
        println!("SKIPPED: this CPU lacks AVX-512");
        return;
    }
    let has = [true, is_x86_feature_detected!("avx512bf16"), is_x86_feature_detected!("avx512vnni")];
    let mut speeds = [const { Vec::new() }; 3];
    for _ in 0..101 {
        // SAFETY: each function runs only if its features were detected.
        let round = unsafe {
            [dots::f32s(), if has[1] { dots::bf16s() } else { 0.0 }, if has[2] { dots::bytes() } else { 0.0 }]
        };
        for (speeds, speed) in speeds.iter_mut().zip(round) {
            speeds.push(speed);
        }
    }
    let medians = speeds.map(|mut speeds| {
        speeds.sort_by(f64::total_cmp);
        speeds[speeds.len() / 2]
    });
    for ((name, has), speed) in ["f32  vfmadd231ps", "bf16 vdpbf16ps", "int8 vpdpbusd"].iter().zip(has).zip(medians) {
        match has {
            true => println!("{name:18}{:8.0} G/s   {:.2} of f32", speed / 1e9, speed / medians[0]),
            false => println!("{name:18}SKIPPED: this CPU lacks it"),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("SKIPPED: these are instructions of x86-64");
}
