//! Definition of LAMB and AdamW, one tensor at a time.

use crate::check::Real;
use kernels::optimizer::{AdamConfig, Segment, Step};

/// Buffers of all tensors.
#[derive(Clone, Debug)]
pub struct State<R> {
    /// w
    pub params: Vec<R>,
    /// m
    pub m: Vec<R>,
    /// v
    pub v: Vec<R>,
}

/// Runs one step and returns the trust ratios: LAMB if `adaptive`, else AdamW.
///
/// # Panics
/// If a segment is outside the buffers or the step's number exceeds `i32`.
pub fn step<R: Real>(
    hyper: &AdamConfig,
    step: &Step,
    adaptive: bool,
    segments: &[Segment],
    state: &mut State<R>,
    grads: &[R],
) -> Vec<R> {
    let of = |x: f32| R::of(f64::from(x));
    let (zero, one) = (R::of(0.0), R::of(1.0));
    let correction = |beta: f64| {
        let power = (0..step.number).fold(1.0, |power, _| power * beta);
        if hyper.bias_correction { R::of(1.0 / (1.0 - power)) } else { one }
    };
    let (correct_m, correct_v) = (correction(hyper.beta1), correction(hyper.beta2));
    let norm = |x: &[R]| x.iter().fold(zero, |sum, &x| sum + x * x).sqrt();
    let mut ratios = Vec::new();
    for segment in segments {
        let mut updates = Vec::new();
        for i in segment.range.clone() {
            let g = grads[i] * of(step.gradient_scale);
            state.m[i] = R::of(hyper.beta1) * state.m[i] + R::of(1.0 - hyper.beta1) * g;
            state.v[i] = R::of(hyper.beta2) * state.v[i] + R::of(1.0 - hyper.beta2) * g * g;
            let mut u = state.m[i] * correct_m / ((state.v[i] * correct_v).sqrt() + R::of(hyper.eps));
            if segment.decay {
                u = u + R::of(hyper.weight_decay) * state.params[i];
            }
            updates.push(u);
        }
        let params = &mut state.params[segment.range.clone()];
        let (w, u) = (norm(params), norm(&updates));
        let ratio = if adaptive && segment.adapt && w > zero && u > zero { w / u } else { one };
        for (w, u) in params.iter_mut().zip(updates) {
            *w = *w - ratio * of(step.learning_rate) * u;
        }
        ratios.push(ratio);
    }
    ratios
}
