//! LayerNorm, GELU and the optimizers against the bandwidth of a copy, measured in the same run on the same threads.
//!
//! ```text
//! cargo bench -p albert-benches --bench layernorm
//! ```
//!
//! Each line gives the time by criterion and, printed before it, the share of the bandwidth of a plain copy of arrays of
//! the same total size: what a kernel that only moved its bytes would reach.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use kernels::check::uniform;
use kernels::gelu::{self, Activation};
use kernels::layernorm::{self, Spec};
use kernels::optimizer::{self, Hyper, Segment, Step};
use kernels::{Cpu, Element, roofline};
use std::time::{Duration, Instant};

/// Tokens of a step of ALBERT-base on a laptop.
const TOKENS: usize = 4096;
/// ALBERT-base's hidden size, and that of a small model whose rows are no multiple of 64.
const WIDTHS: [usize; 2] = [768, 312];
/// ALBERT-base's feed-forward size.
const FEED_FORWARD: usize = 3072;
/// Parameters of ALBERT-base, about.
const PARAMETERS: usize = 11_700_000;

/// Runs `kernel`, which moves `bytes`, under criterion and prints its best share of what a copy within as many
/// `resident` bytes reaches.
fn measure(
    c: &mut Criterion,
    cpu: &Cpu,
    name: &str,
    case: &str,
    (resident, bytes): (usize, usize),
    mut kernel: impl FnMut(),
) {
    let copy = roofline::copy_bandwidth(cpu, resident / 2, 15);
    let best = (0..30).map(|_| {
        let start = Instant::now();
        kernel();
        start.elapsed().as_secs_f64()
    });
    let reached = bytes as f64 / best.fold(f64::INFINITY, f64::min);
    let share = 100.0 * reached / copy;
    println!(
        "{name} {case}: {:.1} GB/s of {:.1} GB/s by a copy, {share:.0} %, {} threads, {}",
        reached / 1e9,
        copy / 1e9,
        cpu.threads(),
        cpu.isa().kind()
    );
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Bytes(bytes as u64));
    group.bench_function(BenchmarkId::from_parameter(case), |b| b.iter(&mut kernel));
    group.finish();
}

fn layernorm_of<X: Element>(c: &mut Criterion, cpu: &Cpu, columns: usize) {
    let spec = Spec { rows: TOKENS, columns, eps: 1e-12 };
    let n = TOKENS * columns;
    let case = format!("{}-T{TOKENS}xH{columns}", X::DTYPE);
    let (x, r, dy) = (uniform::<X>(1, n, 2.0), uniform::<X>(2, n, 2.0), uniform::<X>(3, n, 1.0));
    let (gain, bias) = (uniform::<f32>(4, columns, 1.0), uniform::<f32>(5, columns, 1.0));
    let (mut s, mut y, mut ds) = (x.clone(), x.clone(), x.clone());
    let mut stats = vec![0.0; 2 * TOKENS];
    let (mut dgain, mut dbias) = (vec![0.0; columns], vec![0.0; columns]);
    let mut scratch = vec![0.0; layernorm::backward_scratch_len(&spec)];
    let matrix = n * X::DTYPE.bytes();
    measure(c, cpu, "layernorm.forward-residual_sum", &case, (4 * matrix, 4 * matrix), || {
        layernorm::forward(cpu, &spec, &x, Some(&r), &gain, &bias, Some(&mut s), &mut y, &mut stats);
    });
    measure(c, cpu, "layernorm.backward", &case, (3 * matrix, 3 * matrix), || {
        layernorm::backward(cpu, &spec, &s, &stats, &gain, &dy, &mut ds, &mut dgain, &mut dbias, &mut scratch);
    });
}

fn gelu_of<X: Element>(c: &mut Criterion, cpu: &Cpu) {
    let n = TOKENS * FEED_FORWARD;
    let (x, dy, bias) = (uniform::<X>(1, n, 4.0), uniform::<X>(2, n, 1.0), uniform::<f32>(3, FEED_FORWARD, 1.0));
    let (mut pre, mut y) = (x.clone(), x.clone());
    let bytes = 3 * n * X::DTYPE.bytes();
    for activation in Activation::ALL {
        let case = format!("{}-T{TOKENS}xF{FEED_FORWARD}-{}", X::DTYPE, activation.name());
        measure(c, cpu, "gelu.forward-pre", &case, (bytes, bytes), || {
            gelu::bias_activation_forward(cpu, activation, &x, Some(&bias), Some(&mut pre), &mut y);
        });
        measure(c, cpu, "gelu.backward", &case, (bytes, bytes), || {
            gelu::backward(cpu, activation, &pre, &dy, &mut y);
        });
    }
}

fn optimizers(c: &mut Criterion, cpu: &Cpu) {
    let grads = uniform::<f32>(1, PARAMETERS, 1.0);
    let (mut w, mut m, mut v) = (uniform::<f32>(2, PARAMETERS, 1.0), vec![0.0; PARAMETERS], vec![0.0; PARAMETERS]);
    let segments: Vec<Segment> = (0..25)
        .map(|i| Segment { range: i * PARAMETERS / 25..(i + 1) * PARAMETERS / 25, decay: true, adapt: true })
        .collect();
    let mut scratch = vec![0.0; optimizer::lamb_scratch_len(&segments)];
    let (hyper, step) = (Hyper::default(), Step { number: 1, learning_rate: 1e-4, gradient_scale: 0.9 });
    let (case, resident) = (format!("f32-P{PARAMETERS}"), 16 * PARAMETERS);
    measure(c, cpu, "optimizer.lamb", &case, (resident, 40 * PARAMETERS), || {
        optimizer::lamb(cpu, &hyper, &step, &segments, &mut w, &grads, &mut m, &mut v, &mut scratch);
    });
    measure(c, cpu, "optimizer.adamw", &case, (resident, 28 * PARAMETERS), || {
        optimizer::adamw(cpu, &hyper, &step, &segments, &mut w, &grads, &mut m, &mut v);
    });
}

fn all(c: &mut Criterion) {
    let cpu = Cpu::detect().expect("a processor");
    for columns in WIDTHS {
        layernorm_of::<f32>(c, &cpu, columns);
        layernorm_of::<bf16>(c, &cpu, columns);
    }
    gelu_of::<f32>(c, &cpu);
    gelu_of::<bf16>(c, &cpu);
    optimizers(c, &cpu);
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    targets = all
}
criterion_main!(benches);
