//! Products of ALBERT-base's shapes beside the FMA peak measured in the same run.
//!
//! ```text
//! cargo bench -p albert-benches --bench gemm
//! ```

use albert_benches::{BASE_SHAPES, beside_peak, form, random};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernels::{
    Cpu,
    gemm::{Epilogue, gemm},
};

/// Tokens of a small batch.
const TOKENS: usize = 512;

fn products(c: &mut Criterion) {
    let cpu = Cpu::detect().expect("ALBERT_ISA and ALBERT_THREADS are usable");
    let mut group = c.benchmark_group("gemm");
    group.sample_size(10);
    for (n, k) in BASE_SHAPES {
        let (a, b, mut out) = (random(TOKENS * k, 1), random(k * n, 2), vec![1f32; TOKENS * n]);
        for name in ["nt", "nn", "tn"] {
            let spec = form(name, TOKENS, n, k);
            let mut call = || cpu.enter(|| gemm(&cpu, &spec, &a, &b, &mut out, Epilogue::None));
            let speed = beside_peak(&cpu, spec.flops(), 0.1, &mut call);
            let case = format!("{name}-{TOKENS}x{n}x{k}");
            println!("gemm {case}: {:.0} % of the FMA peak", 100.0 * speed.wall / speed.peak);
            group.throughput(Throughput::Elements(spec.flops()));
            group.bench_function(BenchmarkId::from_parameter(case), |bencher| bencher.iter(&mut call));
        }
    }
    group.finish();
}

criterion_group!(benches, products);
criterion_main!(benches);
