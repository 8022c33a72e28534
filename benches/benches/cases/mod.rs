//! Cases of `albert bench` under criterion: one bench per kernel, with the same operands and calls.

use criterion::{BenchmarkId, Criterion, Throughput};
use kernels::Cpu;
use measure::{
    cases::{Case, Ready},
    plan::{Selection, What},
    report::Bound,
};
use std::time::Instant;

/// Runs every default case of `what`. Before each, prints a line with its share of the machine's peak, measured interleaved.
pub(crate) fn run(c: &mut Criterion, name: &str, what: What) {
    let cpu = Cpu::detect().expect("ALBERT_ISA and ALBERT_THREADS are usable");
    let mut group = c.benchmark_group(name);
    group.sample_size(10);
    for work in Selection::default().works(what).expect("the default sizes are possible") {
        let ready = Ready::new(&cpu, &work).expect("there is enough memory");
        println!("{}", ready.run(3, 0.0));
        let Case { about, contenders } = work.prepare(&cpu).expect("there is enough memory");
        group.throughput(match about.bound {
            Bound::Arithmetic => Throughput::Elements(about.flops),
            Bound::Traffic => Throughput::Bytes(about.bytes),
        });
        for mut contender in contenders {
            let id = BenchmarkId::new(&contender.name, &about.case);
            group.bench_function(id, |bencher| {
                bencher.iter_custom(|count| {
                    contender.with(|call| {
                        let start = Instant::now();
                        (0..count).for_each(|_| call());
                        start.elapsed()
                    })
                });
            });
        }
    }
    group.finish();
}
