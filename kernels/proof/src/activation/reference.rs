//! Definitions of the activations, in the form of the papers.

use crate::check::Real;
use kernels::activation::Activation;

/// act(x)
pub fn apply<R: Real>(activation: Activation, x: R) -> R {
    let half = R::of(0.5);
    match activation {
        Activation::GeluTanh => half * x * (R::of(1.0) + tanh_argument(x).tanh()),
        Activation::GeluErf => half * x * (R::of(1.0) + (x / R::of(2.0).sqrt()).erf()),
        Activation::Relu => x.max(R::of(0.0)),
    }
}

/// act'(x)
pub fn derivative<R: Real>(activation: Activation, x: R) -> R {
    let (half, one) = (R::of(0.5), R::of(1.0));
    match activation {
        Activation::GeluTanh => {
            let t = tanh_argument(x).tanh();
            let slope = R::of(2.0 / std::f64::consts::PI).sqrt() * (one + R::of(3.0 * 0.044715) * x * x);
            half * (one + t) + half * x * (one - t * t) * slope
        }
        Activation::GeluErf => {
            let density = (-half * x * x).exp() / R::of(std::f64::consts::TAU).sqrt();
            half * (one + (x / R::of(2.0).sqrt()).erf()) + x * density
        }
        Activation::Relu => R::of(if x > R::of(0.0) { 1.0 } else { 0.0 }),
    }
}

fn tanh_argument<R: Real>(x: R) -> R {
    R::of(2.0 / std::f64::consts::PI).sqrt() * (x + R::of(0.044715) * x * x * x)
}

/// (p, y) of `x [T, F]` and the bias, if there is one.
pub fn forward<R: Real>(activation: Activation, x: &[R], bias: Option<&[R]>) -> (Vec<R>, Vec<R>) {
    let p: Vec<R> = match bias {
        Some(bias) => x.iter().zip(bias.iter().cycle()).map(|(&x, &b)| x + b).collect(),
        None => x.to_vec(),
    };
    let y = p.iter().map(|&p| apply(activation, p)).collect();
    (p, y)
}

/// dx from the stored p and dy.
pub fn backward<R: Real>(activation: Activation, p: &[R], dy: &[R]) -> Vec<R> {
    p.iter().zip(dy).map(|(&p, &dy)| dy * derivative(activation, p)).collect()
}
