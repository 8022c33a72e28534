//! Error bounds of the vector functions against f64, over all magnitudes, on every instruction set of this machine.

use super::functions as f;
use crate::simd::{Isa, Kernel, Simd};

/// Applies one vector function to every element.
struct Map<'a, F> {
    x: &'a [f32],
    y: &'a mut [f32],
    function: F,
}

/// A function of one vector, generic over instruction sets (a closure cannot be).
trait VectorFunction: Copy {
    fn call<S: Simd>(self, simd: S, x: S::F32) -> S::F32;
}

macro_rules! vector_function {
    ($name:ident, $path:path) => {
        #[derive(Clone, Copy)]
        struct $name;
        impl VectorFunction for $name {
            #[inline(always)]
            fn call<S: Simd>(self, simd: S, x: S::F32) -> S::F32 {
                $path(simd, x)
            }
        }
    };
}
vector_function!(Exp, f::exp);
vector_function!(Exp2, f::exp2);
vector_function!(Ln, f::ln);
vector_function!(Tanh, f::tanh);
vector_function!(Erf, f::erf);
vector_function!(Sigmoid, f::sigmoid);
vector_function!(GeluTanh, f::gelu_tanh);
vector_function!(GeluTanhDerivative, f::gelu_tanh_derivative);
vector_function!(GeluErf, f::gelu_erf);
vector_function!(GeluErfDerivative, f::gelu_erf_derivative);

impl<F: VectorFunction> Kernel for Map<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (x, y) in self.x.chunks(S::LANES).zip(self.y.chunks_mut(S::LANES)) {
            simd.store_partial(y, self.function.call(simd, simd.load_partial(x)));
        }
    }
}

/// Every 4099th bit pattern of f32 that is not NaN: about a million values of all magnitudes and both signs.
fn all_magnitudes() -> Vec<f32> {
    (0..=u32::MAX).step_by(4099).map(f32::from_bits).filter(|x| !x.is_nan()).collect()
}

fn apply<F: VectorFunction>(isa: Isa, x: &[f32], function: F) -> Vec<f32> {
    let mut y = vec![f32::NAN; x.len()];
    isa.run(Map { x, y: &mut y, function });
    y
}

/// Error in ulp of an f32 of the size of `exact`.
fn ulps(value: f32, exact: f64) -> f64 {
    let rounded = exact as f32;
    if value == rounded || (value.is_infinite() && rounded.is_infinite() && value.signum() == rounded.signum()) {
        return 0.0;
    }
    let exponent = exact.abs().log2().floor().max(-126.0);
    (f64::from(value) - exact).abs() / (exponent - 23.0).exp2()
}

fn worst_ulps<F: VectorFunction>(isa: Isa, x: &[f32], function: F, exact: fn(f64) -> f64) -> (f64, f32) {
    let y = apply(isa, x, function);
    let errors = x.iter().zip(&y).map(|(&x, &y)| (ulps(y, exact(f64::from(x))), x));
    errors.fold((0.0, 0.0), |worst, next| if next.0 > worst.0 || next.0.is_nan() { next } else { worst })
}

#[test]
fn elementary_functions_keep_their_bounds_over_all_magnitudes() {
    let x = all_magnitudes();
    // exp flushes results below 2^-125 to 0; those arguments are checked separately.
    let normal: Vec<f32> = x.iter().copied().filter(|&x| x >= -86.6).collect();
    let flushed: Vec<f32> = x.iter().copied().filter(|&x| x < -86.65).collect();
    let positive: Vec<f32> = x.iter().copied().filter(|&x| x > 0.0).collect();
    for isa in Isa::real() {
        let checks = [
            ("ln", worst_ulps(isa, &positive, Ln, f64::ln), 1.5),
            ("exp", worst_ulps(isa, &normal, Exp, f64::exp), 1.0),
            ("tanh", worst_ulps(isa, &x, Tanh, f64::tanh), 1.5),
            ("erf", worst_ulps(isa, &x, Erf, libm::erf), 2.5),
            ("sigmoid", worst_ulps(isa, &normal, Sigmoid, |x| 1.0 / (1.0 + (-x).exp())), 2.5),
        ];
        for (name, (error, at), bound) in checks {
            assert!(error <= bound, "{name} on {}: {error:.2} ulp at {at:e}, bound {bound}", isa.kind());
        }
        assert!(apply(isa, &flushed, Exp).iter().all(|&y| y == 0.0), "exp below 2^-125 on {}", isa.kind());
        let special = apply(isa, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0], Exp);
        assert!(special[0].is_nan() && special[1..] == [f32::INFINITY, 0.0, 1.0], "{special:?}");
        let special = apply(isa, &[f32::NAN, -1.0, f32::NEG_INFINITY, f32::INFINITY, 0.0, -0.0, 1.0], Ln);
        assert!(special[..3].iter().all(|y| y.is_nan()), "{special:?}");
        assert_eq!(special[3..], [f32::INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0]);
    }
}

#[test]
fn powers_of_two_keep_their_bound_and_vanish_below() {
    let y: Vec<f32> = (0..4096).map(|i| -150.0 + i as f32 * (277.0 / 4096.0)).collect();
    let tiny = 0.0..=f32::MIN_POSITIVE * 2.0;
    for isa in Isa::testable() {
        for (&y, p) in y.iter().zip(apply(isa, &y, Exp2)) {
            let exact = f64::from(y).exp2();
            let error = (f64::from(p) - exact).abs() / exact;
            let right = if y >= -126.0 { error <= 1.8e-7 } else { tiny.contains(&p) };
            assert!(right, "{}: 2^{y} = {p:e}, off by {error:e}", isa.kind());
        }
        let special = apply(isa, &[f32::NAN, f32::NEG_INFINITY, -1e9, 0.0], Exp2);
        let right = special[0].is_nan() && special[1..3].iter().all(|p| tiny.contains(p)) && special[3] == 1.0;
        assert!(right, "{}: {special:?}", isa.kind());
    }
}

fn gelu_erf64(x: f64) -> f64 {
    0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt()))
}
fn gelu_erf_derivative64(x: f64) -> f64 {
    0.5 * (1.0 + libm::erf(x / 2f64.sqrt())) + x * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
}
fn gelu_tanh64(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}
fn gelu_tanh_derivative64(x: f64) -> f64 {
    let c = (2.0 / std::f64::consts::PI).sqrt();
    let t = (c * (x + 0.044715 * x * x * x)).tanh();
    0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * x * x)
}

#[test]
fn gelu_and_its_derivative_keep_their_bounds() {
    let x: Vec<f32> = all_magnitudes().into_iter().filter(|x| x.abs() < 1e4).collect();
    for isa in Isa::real() {
        type Exact = fn(f64) -> f64;
        let checks: [(_, _, Exact); 4] = [
            ("gelu_tanh", apply(isa, &x, GeluTanh), gelu_tanh64),
            ("gelu_tanh'", apply(isa, &x, GeluTanhDerivative), gelu_tanh_derivative64),
            ("gelu_erf", apply(isa, &x, GeluErf), gelu_erf64),
            ("gelu_erf'", apply(isa, &x, GeluErfDerivative), gelu_erf_derivative64),
        ];
        for (name, y, exact) in checks {
            for (&x, &y) in x.iter().zip(&y) {
                let error = (f64::from(y) - exact(f64::from(x))).abs() / f64::from(x.abs().max(1.0));
                assert!(error <= 4.0e-7, "{name} on {} at {x}: {y}, error {error:e}", isa.kind());
            }
        }
    }
}
