//! Optimiser kernels in plain loops, called like those of the `kernels` crate.
use kernels::{Cpu, reduce::sum_of_squares};
use std::ops::Range;

/// A parameter's place and treatment.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) range: Range<usize>,
    pub(super) decay: bool,
    pub(super) adapt: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct AdamStep {
    pub(super) beta1: f32,
    pub(super) beta2: f32,
    pub(super) eps: f32,
    pub(super) weight_decay: f32,
    pub(super) rate: f32,
    pub(super) correction1: f32,
    pub(super) correction2: f32,
}

impl AdamStep {
    fn update(&self, decay: bool, w: f32, g: f32, m: &mut f32, v: &mut f32) -> f32 {
        *m = self.beta1 * *m + (1.0 - self.beta1) * g;
        *v = self.beta2 * *v + (1.0 - self.beta2) * g * g;
        let u = *m / self.correction1 / ((*v / self.correction2).sqrt() + self.eps);
        if decay { u + self.weight_decay * w } else { u }
    }
}

pub(super) fn adamw(
    _cpu: &Cpu,
    step: &AdamStep,
    segments: &[Segment],
    w: &mut [f32],
    g: &[f32],
    m: &mut [f32],
    v: &mut [f32],
) {
    for Segment { range, decay, .. } in segments {
        for i in range.clone() {
            w[i] -= step.rate * step.update(*decay, w[i], g[i], &mut m[i], &mut v[i]);
        }
    }
}

pub(super) fn lamb(
    cpu: &Cpu,
    step: &AdamStep,
    segments: &[Segment],
    w: &mut [f32],
    g: &[f32],
    m: &mut [f32],
    v: &mut [f32],
    u: &mut [f32],
) {
    for Segment { range, decay, adapt } in segments {
        for i in range.clone() {
            u[i] = step.update(*decay, w[i], g[i], &mut m[i], &mut v[i]);
        }
        let (w, u) = (&mut w[range.clone()], &u[range.clone()]);
        let (norm_w, norm_u) = (sum_of_squares(cpu, w).sqrt(), sum_of_squares(cpu, u).sqrt());
        let ratio = if *adapt && norm_w > 0.0 && norm_u > 0.0 { norm_w / norm_u } else { 1.0 };
        let rate = (ratio * f64::from(step.rate)) as f32;
        w.iter_mut().zip(u).for_each(|(w, u)| *w -= rate * u);
    }
}

pub(super) fn scale(cpu: &Cpu, x: &mut [f32], factor: f32) {
    cpu.for_each_chunk(x, 1 << 14, |_, x| x.iter_mut().for_each(|x| *x *= factor));
}
