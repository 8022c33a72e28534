//! A kernel in its own crate: y = Σ x² of each row, compared with the peak of the machine.

use kernels::{
    Isa,
    simd::{Kernel, Simd},
};
use std::{hint::black_box, time::Instant};

const WIDTH: usize = 1024;

/// One row of WIDTH elements.
struct SumOfSquares<'a> {
    x: &'a [f32],
}

impl Kernel for SumOfSquares<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [simd.zero(); 8];
        for block in 0..self.x.len() / (8 * S::LANES) {
            let x = &self.x[block * 8 * S::LANES..][..8 * S::LANES];
            let mut vectors = [simd.zero(); 8];
            for i in 0..8 {
                vectors[i] = simd.load(&x[i * S::LANES..]);
            }
            #[cfg(not(feature = "planted"))]
            for i in 0..8 {
                sums[i] = simd.mul_add(vectors[i], vectors[i], sums[i]);
            }
            #[cfg(feature = "planted")]
            let mut old = sums.into_iter();
            #[cfg(feature = "planted")]
            (sums = vectors.map(|x| simd.mul_add(x, x, old.next().unwrap())));
        }
        let mut sum = simd.zero();
        for one in sums {
            sum = simd.add(sum, one);
        }
        simd.reduce_sum(sum)
    }
}

fn main() {
    let x: Vec<f32> = (0..WIDTH).map(|i| (i % 7) as f32 - 3.0).collect();
    let exact: f32 = x.iter().map(|x| x * x).sum();
    for isa in Isa::real() {
        let mut best = f64::INFINITY;
        for _ in 0..2000 {
            let start = Instant::now();
            for _ in 0..100 {
                assert_eq!(isa.run(SumOfSquares { x: black_box(&x) }), exact);
            }
            best = best.min(start.elapsed().as_secs_f64() / 100.0);
        }
        println!("{:<8} {:.1} GFLOP/s", isa.kind().name(), 2.0 * WIDTH as f64 / best / 1e9);
    }
}
