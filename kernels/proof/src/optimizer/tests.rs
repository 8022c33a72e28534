use crate::check::*;
use kernels::optimizer::*;

/// Gradient of mean((target - w)²).
fn gradient(w: &[f32; 3], target: &[f32; 3]) -> [f32; 3] {
    std::array::from_fn(|i| 2.0 / 3.0 * (w[i] - target[i]))
}

fn one_tensor(len: usize) -> Vec<Segment> {
    vec![Segment { range: 0..len, decay: true, adapt: true }]
}

/// Two steps computed from the released formulas in f64.
#[test]
fn lamb_takes_the_golden_steps() {
    let ratios = [0.044727247, 0.033489418];
    let weights = [[0.11413729, -0.18584873, -0.11413785], [0.12834144, -0.17162775, -0.1283488]];
    for cpu in testable_cpus() {
        let target = [0.4, 0.2, -0.5];
        let (mut w, mut m, mut v) = ([0.1f32, -0.2, -0.1], [0.0; 3], [0.0; 3]);
        let segments = one_tensor(3);
        let mut scratch = vec![f64::NAN; lamb_scratch_len(&segments)];
        for (i, (ratio, golden)) in ratios.into_iter().zip(weights).enumerate() {
            let step = Step { number: i as u64 + 1, learning_rate: 0.1, gradient_scale: 1.0 };
            let g = gradient(&w, &target);
            lamb(
                &cpu,
                &AdamConfig::default(),
                &step,
                &segments,
                Buffers { params: &mut w, grads: &g, m: &mut m, v: &mut v },
                &mut scratch,
            );
            let isa = cpu.isa().kind();
            assert!((scratch[0] - ratio).abs() < 1e-8, "{isa} step {i}: ratio {} for {ratio}", scratch[0]);
            for (w, golden) in w.iter().zip(golden) {
                assert!((w - golden).abs() < 2e-8, "{isa} step {i}: {w} for {golden}");
            }
        }
    }
}

/// The test of the released code: 100 steps at a rate of 0.2 without decay come within 0.01 of the target.
#[test]
fn adamw_reaches_the_target() {
    for cpu in testable_cpus() {
        let target = [0.4, 0.2, -0.5];
        let (mut w, mut m, mut v) = ([0.1f32, -0.2, -0.1], [0.0; 3], [0.0; 3]);
        let hyper = AdamConfig { weight_decay: 0.0, ..AdamConfig::default() };
        for number in 1..=100 {
            let step = Step { number, learning_rate: 0.2, gradient_scale: 1.0 };
            let g = gradient(&w, &target);
            adamw(&cpu, &hyper, &step, &one_tensor(3), Buffers { params: &mut w, grads: &g, m: &mut m, v: &mut v });
        }
        for (w, golden) in w.iter().zip([0.40165, 0.19782, -0.49782]) {
            assert!((w - golden).abs() < 1e-5, "{}: {w} for {golden}", cpu.isa().kind());
        }
    }
}

#[test]
fn a_zero_norm_means_a_ratio_of_one_and_a_nan_shows() {
    for cpu in testable_cpus() {
        let step = Step { number: 1, learning_rate: 0.5, gradient_scale: 1.0 };
        for (start, gradient) in [(0.0, 1.0), (1.0, 0.0), (1.0, f32::NAN)] {
            let hyper = AdamConfig { weight_decay: 0.0, ..AdamConfig::default() };
            let (mut w, mut m, mut v) = ([start; 5], [0.0; 5], [0.0; 5]);
            let mut scratch = [f64::NAN; 3];
            lamb(
                &cpu,
                &hyper,
                &step,
                &one_tensor(5),
                Buffers { params: &mut w, grads: &[gradient; 5], m: &mut m, v: &mut v },
                &mut scratch,
            );
            let isa = cpu.isa().kind();
            if gradient.is_nan() {
                assert!(w.iter().all(|w| w.is_nan()), "{isa}: {w:?}");
            } else {
                assert_eq!(scratch[0], 1.0, "{isa}: w {start}, gradient {gradient}");
            }
        }
    }
}
