use super::reference;
use crate::check::*;
use half::bf16;
use kernels::Element;
use kernels::activation::{Activation, backward, bias_activation_forward};

const SHAPES: [(usize, usize); 10] =
    [(0, 3), (1, 1), (3, 7), (2, 15), (5, 16), (4, 17), (2, 63), (3, 64), (13, 65), (29, 1021)];

fn inputs<X: Element>(rows: usize, columns: usize) -> (Vec<X>, Vec<X>, Vec<f32>) {
    (uniform(7, rows * columns, 5.0), uniform(9, rows * columns, 2.0), uniform(8, columns, 1.0))
}

/// Errors of the naive implementation on a few thousand elements like those of the cases.
struct NaiveErrors {
    pre: f64,
    y: f64,
    dx: f64,
}

impl NaiveErrors {
    fn of<X: Element>(activation: Activation) -> Self {
        let (x, dy, bias) = inputs::<X>(64, 64);
        let naive = reference::forward::<f32>(activation, &widen(&x), Some(&bias));
        let exact = reference::forward::<f64>(activation, &widen(&x), Some(&widen(&bias)));
        let naive_dx = reference::backward::<f32>(activation, &widen(&x), &widen(&dy));
        let exact_dx = reference::backward::<f64>(activation, &widen(&x), &widen(&dy));
        Self {
            pre: greatest_error(&store::<X>(&naive.0), &exact.0),
            y: greatest_error(&store::<X>(&naive.1), &exact.1),
            dx: greatest_error(&store::<X>(&naive_dx), &exact_dx),
        }
    }
}

fn agrees<X: Element>() {
    for cpu in testable_cpus() {
        for (activation, (rows, columns)) in Activation::ALL.into_iter().flat_map(|a| SHAPES.map(|s| (a, s))) {
            let (isa, name) = (cpu.isa().kind(), activation.name());
            let (x, dy, full_bias) = inputs::<X>(rows, columns);
            let errors = NaiveErrors::of::<X>(activation);
            for (with_bias, with_pre) in [(false, false), (false, true), (true, false), (true, true)] {
                let case = format!("{isa} {name} [{rows}, {columns}] {} bias {with_bias} pre {with_pre}", X::DTYPE);
                let bias = with_bias.then_some(&full_bias[..]);
                let mut y = Guarded::<X>::poisoned(x.len());
                let mut pre = Guarded::<X>::poisoned(x.len());
                bias_activation_forward(&cpu, activation, &x, bias, with_pre.then_some(&mut pre[..]), &mut y);
                y.assert_intact(&case);
                pre.assert_intact(&case);
                let wide_bias = bias.map(widen::<f64, f32>);
                let exact = reference::forward::<f64>(activation, &widen(&x), wide_bias.as_deref());
                within_error("y", &y, errors.y, &exact.1).unwrap_or_else(|message| panic!("{case}: {message}"));
                if with_pre {
                    within_error("pre", &pre, errors.pre, &exact.0)
                        .unwrap_or_else(|message| panic!("{case}: {message}"));
                }
            }
            let case = format!("{isa} {name} backward {} {}", x.len(), X::DTYPE);
            let mut dx = Guarded::<X>::poisoned(x.len());
            backward(&cpu, activation, &x, &dy, &mut dx);
            dx.assert_intact(&case);
            let exact = reference::backward::<f64>(activation, &widen(&x), &widen(&dy));
            within_error("dx", &dx, errors.dx, &exact).unwrap_or_else(|message| panic!("{case}: {message}"));
        }
    }
}

#[test]
fn agrees_with_f64_on_every_isa() {
    agrees::<f32>();
    agrees::<bf16>();
}

#[test]
fn is_bit_identical_for_any_thread_count() {
    let (x, dy) = (uniform::<f32>(3, 301 * 131, 4.0), uniform::<f32>(4, 301 * 131, 1.0));
    let bias = uniform::<f32>(5, 131, 1.0);
    for activation in Activation::ALL {
        assert_same_for_any_thread_count(&activation.name(), |cpu| {
            let mut outputs = [(); 3].map(|()| vec![f32::NAN; x.len()]);
            let [y, pre, dx] = &mut outputs;
            bias_activation_forward(cpu, activation, &x, Some(&bias), Some(pre), y);
            backward(cpu, activation, pre, &dy, dx);
            outputs.concat()
        });
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
