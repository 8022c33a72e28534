//! The definition of attention, one number at a time.

use super::{Attention, Ragged};
use crate::check::Real;

/// Numbers of a head: row `token`, column `x` of head `head`, rows `ld` apart.
fn at(spec: &Attention, ld: usize, token: usize, head: usize, x: usize) -> usize {
    token * ld + head * spec.head_size + x
}

/// Factor of the probability of (query, key): 0, or 1 over the probability to be kept.
fn mask<R: Real>(spec: &Attention, token: usize, head: usize, key: usize) -> R {
    match spec.dropout {
        None => R::of(1.0),
        Some(dropout) if dropout.keeps((token * spec.heads + head) as u64, key) => {
            R::of(1.0) / (R::of(1.0) - R::of(f64::from(dropout.rate)))
        }
        Some(_) => R::of(0.0),
    }
}

/// First token, end and end of the keys of every sequence.
fn sequences(batch: Ragged<'_>) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..batch.count()).map(move |b| {
        let (start, end, keys) = batch.sequence(b);
        (start, end, start + keys)
    })
}

/// Σ_x a[ia + x] · b[ib + x] over a head.
fn dot<R: Real>(d: usize, a: &[R], ia: usize, b: &[R], ib: usize) -> R {
    (0..d).fold(R::of(0.0), |sum, x| sum + a[ia + x] * b[ib + x])
}

/// Scores of one query against the keys start..end.
fn scores<R: Real>(
    spec: &Attention,
    (start, end): (usize, usize),
    query: usize,
    head: usize,
    q: &[R],
    k: &[R],
    ld: usize,
) -> Vec<R> {
    let (scale, d) = (R::of(f64::from(spec.scale)), spec.head_size);
    let row = |token| at(spec, ld, token, head, 0);
    (start..end).map(|key| scale * dot(d, q, row(query), k, row(key))).collect()
}

/// out [T, H] and lse [T, A].
pub fn forward<'s, R: Real>(
    spec: &Attention,
    batch: impl Into<Ragged<'s>>,
    q: &[R],
    k: &[R],
    v: &[R],
    ld: usize,
) -> (Vec<R>, Vec<R>) {
    let batch = batch.into();
    let tokens = *batch.cu_seqlens.last().expect("cu_seqlens has T") as usize;
    let mut out = vec![R::of(0.0); tokens * spec.hidden()];
    let mut lse = vec![R::of(0.0); tokens * spec.heads];
    for (start, end, keys) in sequences(batch) {
        for (query, head) in (start..end).flat_map(|query| (0..spec.heads).map(move |head| (query, head))) {
            let s = scores(spec, (start, keys), query, head, q, k, ld);
            let max = s.iter().fold(s[0], |m, &s| m.max(s));
            let exps: Vec<R> = s.iter().map(|&s| (s - max).exp()).collect();
            let total = exps.iter().fold(R::of(0.0), |sum, &e| sum + e);
            lse[query * spec.heads + head] = max + total.ln();
            let factors = exps.iter().enumerate().map(|(i, &e)| e / total * mask(spec, query, head, i));
            let probabilities: Vec<R> = factors.collect();
            for x in 0..spec.head_size {
                let mut sum = R::of(0.0);
                for (i, &p) in probabilities.iter().enumerate() {
                    sum = sum + p * v[at(spec, ld, start + i, head, x)];
                }
                out[at(spec, spec.hidden(), query, head, x)] = sum;
            }
        }
    }
    (out, lse)
}

/// dq, dk and dv [T, H] each.
///
/// `saved` is (out, lse) where they are to be taken from forward as it stored them, as an implementation that keeps no
/// probabilities does; without, everything follows from q, k and v.
pub fn backward<'s, R: Real>(
    spec: &Attention,
    batch: impl Into<Ragged<'s>>,
    q: &[R],
    k: &[R],
    v: &[R],
    ld: usize,
    saved: Option<(&[R], &[R])>,
    dout: &[R],
) -> [Vec<R>; 3] {
    let batch = batch.into();
    let computed = forward(spec, batch, q, k, v, ld);
    let (out, lse) = saved.unwrap_or((&computed.0, &computed.1));
    let (d, scale) = (spec.head_size, R::of(f64::from(spec.scale)));
    let mut gradients = [(); 3].map(|()| vec![R::of(0.0); out.len()]);
    let [dq, dk, dv] = &mut gradients;
    for (start, end, keys) in sequences(batch) {
        for (query, head) in (start..end).flat_map(|query| (0..spec.heads).map(move |head| (query, head))) {
            let row = |token| at(spec, spec.hidden(), token, head, 0);
            let delta = dot(d, out, row(query), dout, row(query));
            let s = scores(spec, (start, keys), query, head, q, k, ld);
            for (i, &s) in s.iter().enumerate() {
                let (key, m) = (start + i, mask(spec, query, head, i));
                let p = (s - lse[query * spec.heads + head]).exp();
                let dp = dot(d, dout, row(query), v, at(spec, ld, key, head, 0)) * m;
                let ds = p * (dp - delta);
                for x in 0..d {
                    dv[row(key) + x] = dv[row(key) + x] + p * m * dout[row(query) + x];
                    dq[row(query) + x] = dq[row(query) + x] + scale * ds * k[at(spec, ld, key, head, x)];
                    dk[row(key) + x] = dk[row(key) + x] + scale * ds * q[at(spec, ld, query, head, x)];
                }
            }
        }
    }
    gradients
}
