//! Rounding of sums: chains of bounded length whose bounds depend on k only.

use crate::check::testable_cpus;
use kernels::Cpu;
use kernels::gemm::{Epilogue, Gemm, gemm};
use kernels::num::philox::Stream;

fn normal(seed: u64, len: usize) -> Vec<f32> {
    let mut stream = Stream::new(seed, [0x6163_6375, 0, 0]);
    (0..len).map(|_| stream.normal() as f32).collect()
}

/// C = A·Bᵀ for A [m, k] and B [n, k].
fn product(cpu: &Cpu, [m, n, k]: [usize; 3], a: &[f32], b: &[f32]) -> Vec<f32> {
    let mut c = vec![f32::NAN; m * n];
    gemm(cpu, &Gemm::nt(m, n, k), a, b, &mut c, Epilogue::NONE);
    c
}

/// Σ x·y in blocks of 384 terms, each a chain of fused multiply-adds, like common BLAS libraries.
fn in_blocks_of_384(x: &[f32], y: &[f32]) -> f32 {
    let blocks = x.chunks(384).zip(y.chunks(384));
    let sums = blocks.map(|(x, y)| x.iter().zip(y).fold(0f32, |sum, (&x, &y)| x.mul_add(y, sum)));
    sums.reduce(|total, sum| total + sum).unwrap_or(0.0)
}

#[test]
fn the_error_of_long_sums_is_that_of_blocks_of_384_terms() {
    let (m, n) = (32, 32);
    for k in [385, 512, 768, 1024, 1025, 3072] {
        // Sums of squared errors: of each instruction set, and of the sum in blocks.
        let cpus = testable_cpus();
        let (mut ours, mut blocks) = (vec![0f64; cpus.len()], 0f64);
        for draw in 0..3 {
            let (a, b) = (normal(2 * draw, m * k), normal(2 * draw + 1, n * k));
            let rows = || (0..m * n).map(|i| (&a[i / n * k..][..k], &b[i % n * k..][..k]));
            let exact: Vec<f64> =
                rows().map(|(x, y)| x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()).collect();
            blocks +=
                rows().zip(&exact).map(|((x, y), e)| (f64::from(in_blocks_of_384(x, y)) - e).powi(2)).sum::<f64>();
            for (cpu, squares) in cpus.iter().zip(&mut ours) {
                let c = product(cpu, [m, n, k], &a, &b);
                *squares += c.iter().zip(&exact).map(|(&c, e)| (f64::from(c) - e).powi(2)).sum::<f64>();
            }
        }
        for (cpu, squares) in cpus.iter().zip(&ours) {
            let ratio = (squares / blocks).sqrt();
            assert!(ratio <= 1.05, "{} k={k}: rms error is {ratio:.3} times that of blocks of 384", cpu.isa().kind());
        }
    }
}
