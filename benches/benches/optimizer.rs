//! The optimizers, and sums of gradients over lanes, compared with the bandwidth of y += x, measured in the same run on
//! the same threads.
//!
//! ```text
//! cargo bench -p albert-benches --bench optimizer
//! ```
//!
//! Before criterion's time, each bench prints its share of the bandwidth of y += x on arrays of the same total size. A copy would
//! not be a valid limit: caches read its target before they write it, which is not counted in its bytes, while optimizers write
//! what they have read.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use engine::{Communicator, Device, Init, LaneSums, Lanes, ParamBuilder};
use kernels::optimizer::{self, AdamConfig, Segment, Step};
use kernels::{Cpu, elementwise::add_assign};
use kernels_proof::check::uniform;
use std::time::{Duration, Instant};

/// Approximate number of parameters of ALBERT-base.
const PARAMETERS: usize = 11_700_000;

/// Bytes per second of the best of several runs of `work`, which moves `bytes`.
fn best(bytes: usize, mut work: impl FnMut()) -> f64 {
    let seconds = (0..30).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    });
    bytes as f64 / seconds.fold(f64::INFINITY, f64::min)
}

/// Runs `kernel`, which moves `bytes`, under criterion. Prints its best bandwidth as a share of that of y += x on arrays of
/// `resident` bytes.
fn measure(
    c: &mut Criterion,
    cpu: &Cpu,
    name: &str,
    case: &str,
    (resident, bytes): (usize, usize),
    mut kernel: impl FnMut(),
) {
    let (x, mut y) = (vec![1.0f32; resident / 8], vec![0.0f32; resident / 8]);
    let bound = best(12 * x.len(), || add_assign(cpu, &x, &mut y));
    let reached = best(bytes, &mut kernel);
    println!(
        "{name} {case}: {:.1} GB/s of {:.1} GB/s by y += x, {:.0} %, {} threads, {}",
        reached / 1e9,
        bound / 1e9,
        100.0 * reached / bound,
        cpu.threads(),
        cpu.isa().kind()
    );
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Bytes(bytes as u64));
    group.bench_function(BenchmarkId::from_parameter(case), |b| b.iter(&mut kernel));
    group.finish();
}

fn optimizers(c: &mut Criterion, cpu: &Cpu) {
    let grads = uniform::<f32>(1, PARAMETERS, 1.0);
    let (mut w, mut m, mut v) = (uniform::<f32>(2, PARAMETERS, 1.0), vec![0.0; PARAMETERS], vec![0.0; PARAMETERS]);
    let segments: Vec<Segment> = (0..25)
        .map(|i| Segment { range: i * PARAMETERS / 25..(i + 1) * PARAMETERS / 25, decay: true, adapt: true })
        .collect();
    let mut scratch = vec![0.0; optimizer::lamb_scratch_len(&segments)];
    let (hyper, step) = (AdamConfig::default(), Step { number: 1, learning_rate: 1e-4, gradient_scale: 0.9 });
    let (case, resident) = (format!("f32-P{PARAMETERS}"), 16 * PARAMETERS);
    measure(c, cpu, "optimizer.lamb", &case, (resident, 40 * PARAMETERS), || {
        optimizer::lamb(
            cpu,
            &hyper,
            &step,
            &segments,
            optimizer::Buffers { params: &mut w, grads: &grads, m: &mut m, v: &mut v },
            &mut scratch,
        );
    });
    measure(c, cpu, "optimizer.adamw", &case, (resident, 28 * PARAMETERS), || {
        optimizer::adamw(
            cpu,
            &hyper,
            &step,
            &segments,
            optimizer::Buffers { params: &mut w, grads: &grads, m: &mut m, v: &mut v },
        );
    });
}

/// Cost of eight lanes in a step of one rank: seven sums, and seven buffers that begin at zero.
fn lanes(c: &mut Criterion, cpu: &Cpu) {
    let mut parameters = ParamBuilder::new();
    parameters.add("w", [PARAMETERS], Init::Zeros).expect("one tensor");
    let parameters = parameters.build(cpu, 0).expect("there is memory");
    let mut gradients = parameters.gradients(&Device::Cpu(cpu.clone())).expect("there is memory");
    let alone = Communicator::default();
    let lanes = Lanes::new(&alone, "lanes", 8).expect("a power of two");
    let mut sums = LaneSums::new(alone, lanes.clone(), &gradients).expect("there is memory");
    let case = format!("8-f32-P{PARAMETERS}");
    measure(c, cpu, "lanes", &case, (16 * PARAMETERS, 7 * 16 * PARAMETERS), || {
        sums.begin_step();
        for lane in lanes.own() {
            sums.begin_lane(lane, &mut gradients).expect("on the CPU nothing fails");
        }
        sums.all_reduce("gradients", &mut gradients).expect("there is one rank");
    });
}

fn all(c: &mut Criterion) {
    let cpu = Cpu::detect().expect("ALBERT_ISA and ALBERT_THREADS are usable");
    optimizers(c, &cpu);
    lanes(c, &cpu);
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    targets = all
}
criterion_main!(benches);
