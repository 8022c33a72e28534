//! Definition of LayerNorm.

use crate::check::Real;
use kernels::layernorm::Spec;

/// Outputs of forward.
#[derive(Clone, Debug)]
pub struct Forward<R> {
    /// [T, H]
    pub y: Vec<R>,
    /// mean and rstd of each row, [T, 2]
    pub stats: Vec<R>,
}

/// Outputs of backward.
#[derive(Clone, Debug)]
pub struct Backward<R> {
    /// [T, H]
    pub ds: Vec<R>,
    /// `[H]`
    pub dgain: Vec<R>,
    /// `[H]`
    pub dbias: Vec<R>,
}

fn mean<R: Real>(x: impl Iterator<Item = R>, n: usize) -> R {
    x.fold(R::of(0.0), |sum, x| sum + x) / R::of(n as f64)
}

/// y and statistics of the sums `s` [T, H].
pub fn forward<R: Real>(spec: &Spec, s: &[R], gain: &[R], bias: &[R]) -> Forward<R> {
    let mut out = Forward { y: Vec::new(), stats: Vec::new() };
    for row in s.chunks(spec.columns) {
        let m = mean(row.iter().copied(), row.len());
        let variance = mean(row.iter().map(|&s| (s - m) * (s - m)), row.len());
        let rstd = R::of(1.0) / (variance + R::of(f64::from(spec.eps))).sqrt();
        out.stats.extend([m, rstd]);
        out.y.extend(row.iter().zip(gain).zip(bias).map(|((&s, &gain), &bias)| (s - m) * rstd * gain + bias));
    }
    out
}

/// Gradients of the sums and of the parameters (not added to old values).
pub fn backward<R: Real>(spec: &Spec, s: &[R], stats: &[R], gain: &[R], dy: &[R]) -> Backward<R> {
    let columns = spec.columns;
    let mut out = Backward { ds: Vec::new(), dgain: vec![R::of(0.0); columns], dbias: vec![R::of(0.0); columns] };
    for ((s, dy), stats) in s.chunks(columns).zip(dy.chunks(columns)).zip(stats.chunks(2)) {
        let x: Vec<R> = s.iter().map(|&s| (s - stats[0]) * stats[1]).collect();
        let g: Vec<R> = dy.iter().zip(gain).map(|(&dy, &gain)| dy * gain).collect();
        let mean_g = mean(g.iter().copied(), columns);
        let mean_gx = mean(g.iter().zip(&x).map(|(&g, &x)| g * x), columns);
        for c in 0..columns {
            out.ds.push(stats[1] * (g[c] - mean_g - x[c] * mean_gx));
            out.dgain[c] = out.dgain[c] + dy[c] * x[c];
            out.dbias[c] = out.dbias[c] + dy[c];
        }
    }
    out
}
