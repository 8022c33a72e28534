use super::reference;
use crate::check::*;
use kernels::activation::{Activation, bias_activation_forward};

#[test]
fn without_a_bias_the_saved_values_are_the_inputs() {
    for (cpu, activation) in testable_cpus().into_iter().flat_map(|cpu| Activation::ALL.map(|a| (cpu.clone(), a))) {
        let x = uniform::<f32>(7, 1021, 5.0);
        let [mut y, mut pre, mut plain] = [(); 3].map(|()| Guarded::<f32>::poisoned(x.len()));
        bias_activation_forward(&cpu, activation, &x, None, Some(&mut pre), &mut y);
        bias_activation_forward(&cpu, activation, &x, None, None, &mut plain);
        let case = format!("{} on {}", activation.name(), cpu.isa().kind());
        [&y, &pre, &plain].into_iter().for_each(|buffer| buffer.assert_intact(&case));
        assert!(pre[..] == x && y[..] == plain[..], "{case}");
    }
}

#[test]
fn derivative_matches_central_differences() {
    for activation in Activation::ALL {
        for x in uniform::<f32>(1, 1000, 6.0).into_iter().map(f64::from).filter(|x| x.abs() > 1e-4) {
            let h = 1e-5;
            let slope = (reference::apply(activation, x + h) - reference::apply(activation, x - h)) / (2.0 * h);
            let derivative = reference::derivative(activation, x);
            assert!((slope - derivative).abs() < 1e-8, "{} at {x}: {derivative}, slope {slope}", activation.name());
        }
    }
}

/// Values of the released code's activation (tanh form) and of the erf form.
#[test]
fn has_its_golden_values() {
    let x: [f64; 7] = [-3.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0];
    let tanh: [f64; 7] = [-0.003637392, -0.158808009, -0.154285990, 0.345714010, 0.841191991, 1.954597694, 2.996362608];
    let erf: [f64; 7] = [-0.004049694, -0.158655254, -0.154268769, 0.345731231, 0.841344746, 1.954499736, 2.995950306];
    for (activation, golden) in [(Activation::GeluTanh, tanh), (Activation::GeluErf, erf)] {
        for (x, golden) in x.into_iter().zip(golden) {
            let value = reference::apply(activation, x);
            assert!((value - golden).abs() < 6e-10, "{} at {x}: {value} for {golden}", activation.name());
        }
        for cpu in testable_cpus() {
            let x32 = x.map(|x| x as f32);
            let mut y = [f32::NAN; 7];
            bias_activation_forward(&cpu, activation, &x32, None, None, &mut y);
            for (y, golden) in y.into_iter().zip(golden) {
                assert!((f64::from(y) - golden).abs() < 3e-7, "{}: {y} for {golden}", cpu.isa().kind());
            }
        }
    }
}

#[test]
fn nan_is_propagated() {
    for (cpu, activation) in testable_cpus().into_iter().flat_map(|cpu| Activation::ALL.map(|a| (cpu.clone(), a))) {
        let mut y = [0.0f32; 3];
        bias_activation_forward(&cpu, activation, &[1.0, f32::NAN, 2.0], None, None, &mut y);
        assert!(y[1].is_nan() && !y[0].is_nan(), "{} on {}: {y:?}", activation.name(), cpu.isa().kind());
    }
}
