use super::reference;
use crate::check::*;
use kernels::layernorm::*;

#[test]
fn is_bit_identical_for_any_thread_count() {
    let spec = Spec { rows: 1531, columns: 131, eps: 1e-12 };
    let [x, r, dy] = [1, 2, 3].map(|seed| uniform::<f32>(seed, spec.rows * spec.columns, 2.0));
    let (gain, bias) = (uniform::<f32>(4, spec.columns, 1.0), uniform::<f32>(5, spec.columns, 1.0));
    assert_same_for_any_thread_count(&"[1531, 131]", |cpu| {
        let mut matrices = [(); 3].map(|()| vec![f32::NAN; x.len()]);
        let mut stats = vec![f32::NAN; 2 * spec.rows];
        let mut sums = [vec![0.0; spec.columns], vec![0.0; spec.columns]];
        let mut scratch = vec![f32::NAN; backward_scratch_len(&spec)];
        let [s, y, ds] = &mut matrices;
        let [dgain, dbias] = &mut sums;
        forward(cpu, &spec, &x, Some(&r), &gain, &bias, Some(s), y, &mut stats);
        backward(cpu, &spec, s, &stats, &gain, &dy, ds, dgain, dbias, &mut scratch);
        [matrices.concat(), stats, sums.concat()].concat()
    });
}

#[test]
fn saving_the_sum_does_not_change_the_result() {
    let spec = Spec { rows: 5, columns: 37, eps: 1e-12 };
    for cpu in testable_cpus() {
        let [x, r] = [1, 2].map(|seed| uniform::<half::bf16>(seed, spec.rows * spec.columns, 2.0));
        let gain = uniform::<f32>(3, spec.columns, 1.0);
        let run = |kept: Option<&mut [half::bf16]>| {
            let (mut y, mut stats) = (x.clone(), vec![f32::NAN; 2 * spec.rows]);
            forward(&cpu, &spec, &x, Some(&r), &gain, &gain, kept, &mut y, &mut stats);
            (y, stats)
        };
        assert_eq!(run(None), run(Some(&mut x.clone())), "{}", cpu.isa().kind());
    }
}

/// Central differences of Σ y·dy in f64 against the definition of backward.
#[test]
fn gradients_match_central_differences() {
    let spec = Spec { rows: 3, columns: 11, eps: 1e-12 };
    let wide = |seed, len| widen::<f64, f32>(&uniform::<f32>(seed, len, 1.5));
    let (s, dy) = (wide(1, 33), wide(2, 33));
    let (gain, bias) = (wide(3, 11), wide(4, 11));
    let loss = |s: &[f64], gain: &[f64], bias: &[f64]| -> f64 {
        reference::forward(&spec, s, gain, bias).y.iter().zip(&dy).map(|(y, dy)| y * dy).sum()
    };
    let stats = reference::forward(&spec, &s, &gain, &bias).stats;
    let gradients = reference::backward(&spec, &s, &stats, &gain, &dy);
    let h = 1e-6;
    let slope = |x: &[f64], i: usize, loss: &dyn Fn(&[f64]) -> f64| {
        let (mut up, mut down) = (x.to_vec(), x.to_vec());
        up[i] += h;
        down[i] -= h;
        (loss(&up) - loss(&down)) / (2.0 * h)
    };
    for i in 0..33 {
        let slope = slope(&s, i, &|s| loss(s, &gain, &bias));
        assert!((slope - gradients.ds[i]).abs() < 1e-7, "ds[{i}]: {} for {slope}", gradients.ds[i]);
    }
    for i in 0..11 {
        let by_gain = slope(&gain, i, &|gain| loss(&s, gain, &bias));
        let by_bias = slope(&bias, i, &|bias| loss(&s, &gain, bias));
        assert!((by_gain - gradients.dgain[i]).abs() < 1e-7, "dgain[{i}]: {} for {by_gain}", gradients.dgain[i]);
        assert!((by_bias - gradients.dbias[i]).abs() < 1e-7, "dbias[{i}]: {} for {by_bias}", gradients.dbias[i]);
    }
}
