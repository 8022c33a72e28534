use super::reference;
use crate::check::*;
use kernels::layernorm::*;

#[test]
fn saving_the_sum_does_not_change_the_result() {
    let spec = Spec { rows: 5, columns: 37, eps: 1e-12 };
    for cpu in testable_cpus() {
        let [x, r] = [1, 2].map(|seed| uniform::<half::bf16>(seed, spec.rows * spec.columns, 2.0));
        let gain = uniform::<f32>(3, spec.columns, 1.0);
        let run = |kept: Option<&mut [half::bf16]>| {
            let (mut y, mut stats) = (x.clone(), vec![f32::NAN; 2 * spec.rows]);
            forward(
                &cpu,
                &spec,
                kernels::layernorm::Forward {
                    x: &x,
                    residual: Some(&r),
                    gain: &gain,
                    bias: &gain,
                    s: kept,
                    y: &mut y,
                    stats: &mut stats,
                },
            );
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
    let by = |x: &[f64], loss: &dyn Fn(&[f64]) -> f64| slopes(x, 1e-6, loss);
    assert_slopes("ds", &gradients.ds, &by(&s, &|s| loss(s, &gain, &bias)), 1e-7);
    assert_slopes("dgain", &gradients.dgain, &by(&gain, &|gain| loss(&s, gain, &bias)), 1e-7);
    assert_slopes("dbias", &gradients.dbias, &by(&bias, &|bias| loss(&s, &gain, bias)), 1e-7);
}
