use super::dot::DotKind;
use super::*;
use crate::num::philox::Stream;
use crate::simd::Isa;

/// `len` random elements in [-scale, scale).
fn uniform(seed: u64, len: usize, scale: f32) -> Vec<f32> {
    let mut stream = Stream::new(seed, [0; 3]);
    (0..len).map(|_| scale * (2.0 * stream.next_f32() - 1.0)).collect()
}

/// Sizes around tiles, groups of four, and tasks: [m, n, k].
const SIZES: [[usize; 3]; 13] = [
    [0, 8, 8],
    [1, 1, 1],
    [3, 31, 5],
    [14, 32, 64],
    [15, 33, 63],
    [7, 100, 3],
    [29, 5, 129],
    [113, 97, 50],
    [128, 768, 96],
    [5, 40, 3072],
    [2, 3, 0],
    [61, 64, 17],
    // Rows of 4 KiB, which are stored farther apart.
    [16, 33, 4096],
];

/// Every kind of instructions of this machine, on one and two threads.
fn machines() -> Vec<(DotKind, Cpu)> {
    let isa = *Isa::real().last().unwrap();
    let (found, missing): (Vec<_>, Vec<_>) = DotKind::ALL.iter().copied().partition(|kind| kind.detected());
    missing.iter().for_each(|kind| println!("SKIPPED: this machine lacks {kind:?}"));
    found.into_iter().flat_map(|kind| [1, 2].map(|threads| (kind, Cpu::new(isa, threads).unwrap()))).collect()
}

/// Runs the layer on x and w; checks that nothing after y and the scratch is overwritten.
fn run((kind, cpu): &(DotKind, Cpu), [m, n, k]: [usize; 3], x: &[f32], w: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let weight = QuantizedWeight::of_kind(*kind, n, k, w);
    let mut y = vec![f32::NAN; m * n + 64];
    let mut scratch = vec![0xdead_beef; weight.scratch_len(m) + 16];
    let epilogue = bias.map_or(SliceEpilogue::NONE, SliceEpilogue::bias);
    multiply(cpu, x, &weight, &mut y[..m * n], epilogue, &mut scratch);
    assert!(y[m * n..].iter().all(|y| y.is_nan()), "something was written behind y");
    assert!(scratch[weight.scratch_len(m)..].iter().all(|&word| word == 0xdead_beef), "written behind the scratch");
    y.truncate(m * n);
    y
}

#[test]
fn error_is_that_of_quantization() {
    for machine in machines() {
        let size @ [m, n, k] = [33, 70, 256];
        let (x, w) = (uniform(4, m * k, 2.0), uniform(5, n * k, 0.05));
        let y = run(&machine, size, &x, &w, None);
        // Each of the k products has two independent errors: at most half a step of x times |w|, and half a step of w times
        // |x|, both uniformly distributed.
        let step_x = 4.0 / f64::from(LEVELS);
        let (rms_x, rms_w, step_w) = (2.0 / 3f64.sqrt(), 0.05 / 3f64.sqrt(), 0.05 / 127.0);
        let expected = ((k as f64) / 12.0 * ((step_x * rms_w).powi(2) + (step_w * rms_x).powi(2))).sqrt();
        let mut squares = 0.0;
        for (i, x) in x.chunks(k).enumerate() {
            for (j, w) in w.chunks(k).enumerate() {
                let exact: f64 = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                squares += (f64::from(y[i * n + j]) - exact).powi(2);
            }
        }
        let rms = (squares / (m * n) as f64).sqrt();
        assert!((0.8..1.2).contains(&(rms / expected)), "{:?}: {rms}, {expected} was expected", machine.0);
    }
}

#[test]
fn is_bit_identical_for_any_thread_count_and_vector_width() {
    for size in SIZES {
        let [m, n, k] = size;
        let (x, w) = (uniform(6, m * k, 3.0), uniform(7, n * k, 0.1));
        let bias = uniform(8, n, 1.0);
        let mut known: Option<Vec<u32>> = None;
        for machine in machines() {
            let y: Vec<u32> = run(&machine, size, &x, &w, Some(&bias)).iter().map(|y| y.to_bits()).collect();
            assert!(*known.get_or_insert_with(|| y.clone()) == y, "{size:?} {:?}", machine.0);
        }
    }
}

/// All weights are at an end of their range, all activations but one at their maximum: the largest sums of a group and of a
/// row, which instructions that saturate at 16 bits get wrong.
#[test]
fn sums_do_not_saturate() {
    for machine in machines() {
        for k in [64, MAX_K] {
            let n = 16;
            let mut x = vec![1.0; k];
            x[5] = 0.0;
            let w: Vec<f32> = (0..n * k).map(|i| if i / k % 2 == 0 { 1.0 } else { -1.0 }).collect();
            for (j, y) in run(&machine, [1, n, k], &x, &w, None).into_iter().enumerate() {
                let exact = (k - 1) as f32 * if j % 2 == 0 { 1.0 } else { -1.0 };
                assert!((y - exact).abs() < 1e-6 * k as f32, "{:?}: y[{j}] is {y}, {exact} was expected", machine.0);
            }
        }
    }
}

#[test]
fn a_row_that_is_not_finite_affects_only_itself() {
    for machine in machines() {
        let size @ [m, n, k] = [3, 20, 37];
        for (at, bad) in [(0, f32::NAN), (20, f32::INFINITY), (36, f32::NEG_INFINITY), (36, f32::NAN)] {
            let (mut x, w) = (uniform(11, m * k, 3.0), uniform(12, n * k, 0.5));
            let clean = run(&machine, size, &x, &w, None);
            x[k + at] = bad;
            let y = run(&machine, size, &x, &w, None);
            assert!(y[n..2 * n].iter().all(|y| y.is_nan()), "{:?} {bad} at {at}: {:?}", machine.0, &y[n..2 * n]);
            assert_eq!((&y[..n], &y[2 * n..]), (&clean[..n], &clean[2 * n..]));
        }
    }
}

#[test]
fn constant_rows_are_exact() {
    for machine in machines() {
        let (n, k) = (5, 24);
        let w = vec![0.25f32; n * k];
        for value in [0.0, -3.0, 1e-42, 7.5] {
            let y = run(&machine, [1, n, k], &vec![value; k], &w, None);
            let exact = 0.25 * 24.0 * f64::from(value);
            for y in y {
                assert!((f64::from(y) - exact).abs() <= 1e-5 * exact.abs() + 1e-41, "{y}, {exact} was expected");
            }
        }
    }
}

#[test]
#[should_panic(expected = "quantize it on the same Cpu")]
fn weight_for_other_instructions_is_rejected() {
    let cpu = Cpu::new(*Isa::real().last().unwrap(), 1).unwrap();
    let usual = DotKind::of(&cpu);
    let other = DotKind::ALL.iter().copied().find(|kind| kind.columns() != usual.columns()).unwrap();
    let weight = QuantizedWeight::of_kind(other, 8, 8, &[1.0; 64]);
    linear(&cpu, &[1.0; 8], &weight, &mut [0.0; 8], SliceEpilogue::NONE, &mut [0; 16]);
}
