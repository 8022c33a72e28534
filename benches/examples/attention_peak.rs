//! Share of the FMA peak that attention reaches; peak and attention are measured interleaved.
//!
//!     cargo run --release -p albert-benches --example attention_peak -- [threads 1,2] [lengths 64,128,512] [seconds]
//!
//! A batch of 4,096 tokens, 12 heads of 64 (ALBERT-base). FLOPs count only the matrix products: 4·S·D per query and head
//! forward, 10·S·D backward.

use albert_benches::beside_peak;
use kernels::{
    Cpu, Isa,
    attention::{Attention, Gradients, backward, backward_scratch_len, forward},
};
use measure::random;

const TOKENS: usize = 4096;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let list = |i: usize, default: &str| -> Vec<usize> {
        let text = arguments.get(i).map_or(default, String::as_str);
        text.split(',').map(|number| number.parse().expect("a number")).collect()
    };
    let seconds: f64 = arguments.get(2).map_or(0.5, |text| text.parse().expect("seconds"));
    let isa = Isa::choose().expect("ALBERT_ISA");
    let spec = Attention::new(12, 64);
    let (h, ld) = (spec.hidden(), 3 * spec.hidden());
    let (qkv, dout) = (random(TOKENS * ld, 1), random(TOKENS * h, 2));
    let [q, k, v] = [0, h, 2 * h].map(|start| &qkv[start..]);
    for threads in list(0, "1,2") {
        let cpu = Cpu::new(isa, threads).expect("threads");
        for length in list(1, "64,128,512") {
            let cu_seqlens: Vec<u32> = (0..=TOKENS / length).map(|i| (i * length) as u32).collect();
            let (mut out, mut lse) = (vec![0f32; TOKENS * h], vec![0f32; TOKENS * spec.heads]);
            let products = (TOKENS * length * h) as u64;
            let ahead = beside_peak(&cpu, 4 * products, seconds, || {
                cpu.enter(|| forward(&cpu, &spec, &cu_seqlens, q, k, v, ld, &mut out, &mut lse));
            });
            let mut gradient = vec![0f32; TOKENS * ld];
            let mut scratch = vec![0f32; backward_scratch_len(&spec, TOKENS, length)];
            let back = beside_peak(&cpu, 10 * products, seconds, || {
                let gradients = Gradients::fused(&mut gradient, h, ld);
                cpu.enter(|| {
                    backward(&cpu, &spec, &cu_seqlens, q, k, v, ld, &out, &lse, &dout, gradients, &mut scratch);
                });
            });
            for (name, speed) in [("forward", ahead), ("backward", back)] {
                println!(
                    "{} {threads} threads, S {length:>3}, {name:>8}: {:>6.1} GFLOP/s, {:>5.1} % of the peak by wall time, {:>5.1} % by CPU time",
                    isa.kind(),
                    speed.wall / 1e9,
                    100.0 * speed.wall / speed.peak,
                    100.0 * speed.processor / speed.peak
                );
            }
        }
    }
}
