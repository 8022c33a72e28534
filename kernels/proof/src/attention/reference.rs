//! Definition of attention. Every sum is in the order of its index; the innermost loops run over the other indices, so that
//! they vectorize.

use crate::check::Real;
use kernels::attention::{Attention, Ragged};

/// Index of row `token`, column `x` of head `head`, with rows `ld` apart.
fn at(spec: &Attention, ld: usize, token: usize, head: usize, x: usize) -> usize {
    token * ld + head * spec.head_size + x
}

/// Dropout factor of (query, key): 0 if dropped, else the scale.
fn mask<R: Real>(spec: &Attention, token: usize, head: usize, key: usize) -> R {
    match spec.dropout {
        None => R::of(1.0),
        Some(dropout) if dropout.keeps((token * spec.heads + head) as u64, key) => {
            crate::dropout::reference::scale(&dropout)
        }
        Some(_) => R::of(0.0),
    }
}

/// First token, end, and end of the keys of every sequence that is not empty.
fn sequences(batch: Ragged<'_>) -> impl Iterator<Item = (usize, usize, usize)> {
    let all = (0..batch.count()).map(move |b| {
        let (start, end, keys) = batch.sequence(b);
        (start, end, start + keys)
    });
    all.filter(|(start, end, _)| start < end)
}

/// Columns of a head over the tokens start..end of a matrix whose rows are `ld` apart: [D, end - start].
fn transposed<R: Real>(spec: &Attention, ld: usize, (start, end): (usize, usize), head: usize, matrix: &[R]) -> Vec<R> {
    (0..spec.head_size).flat_map(|x| (start..end).map(move |token| matrix[at(spec, ld, token, head, x)])).collect()
}

/// y += factor · x
fn add_scaled<R: Real>(y: &mut [R], factor: R, x: &[R]) {
    y.iter_mut().zip(x).for_each(|(y, &x)| *y = *y + factor * x);
}

/// Σ_x row[x] · columns[x, i] for each of the `len` columns i.
fn products<R: Real>(row: &[R], columns: &[R], len: usize) -> Vec<R> {
    let mut sums = vec![R::of(0.0); len];
    row.iter().zip(columns.chunks_exact(len)).for_each(|(&factor, column)| add_scaled(&mut sums, factor, column));
    sums
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
    let (d, scale) = (spec.head_size, R::of(f64::from(spec.scale)));
    let tokens = *batch.cu_seqlens.last().expect("cu_seqlens has T") as usize;
    let mut out = vec![R::of(0.0); tokens * spec.hidden()];
    let mut lse = vec![R::of(0.0); tokens * spec.heads];
    for ((start, end, keys), head) in sequences(batch).flat_map(|s| (0..spec.heads).map(move |head| (s, head))) {
        let columns = transposed(spec, ld, (start, keys), head, k);
        for query in start..end {
            let s = products(&q[at(spec, ld, query, head, 0)..][..d], &columns, keys - start);
            let s: Vec<R> = s.into_iter().map(|s| scale * s).collect();
            let max = s.iter().fold(s[0], |m, &s| m.max(s));
            let exps: Vec<R> = s.iter().map(|&s| (s - max).exp()).collect();
            let total = exps.iter().fold(R::of(0.0), |sum, &e| sum + e);
            lse[query * spec.heads + head] = max + total.ln();
            let out = &mut out[at(spec, spec.hidden(), query, head, 0)..][..d];
            for (i, &e) in exps.iter().enumerate() {
                let p = e / total * mask(spec, query, head, i);
                add_scaled(out, p, &v[at(spec, ld, start + i, head, 0)..]);
            }
        }
    }
    (out, lse)
}

/// dq, dk and dv [T, H] each.
///
/// `saved` is (out, lse) as forward stored them, for comparison with implementations that save no probabilities; if `None`,
/// both are computed from q, k and v. `operand` rounds P and dS to what an implementation multiplies.
pub fn backward<'s, R: Real>(
    spec: &Attention,
    batch: impl Into<Ragged<'s>>,
    ([q, k, v], ld): ([&[R]; 3], usize),
    saved: Option<(&[R], &[R])>,
    dout: &[R],
    operand: impl Fn(R) -> R,
) -> [Vec<R>; 3] {
    let batch = batch.into();
    let computed = saved.is_none().then(|| forward(spec, batch, q, k, v, ld));
    let computed = computed.as_ref().map(|(out, lse)| (&out[..], &lse[..]));
    let (out, lse) = saved.or(computed).expect("one of the two");
    let (d, scale) = (spec.head_size, R::of(f64::from(spec.scale)));
    let mut gradients = [(); 3].map(|()| vec![R::of(0.0); out.len()]);
    let [dq, dk, dv] = &mut gradients;
    for ((start, end, keys), head) in sequences(batch).flat_map(|s| (0..spec.heads).map(move |head| (s, head))) {
        let [k_columns, v_columns] = [k, v].map(|matrix| transposed(spec, ld, (start, keys), head, matrix));
        let row = |token| at(spec, spec.hidden(), token, head, 0);
        for query in start..end {
            let q = &q[at(spec, ld, query, head, 0)..][..d];
            let dout = &dout[row(query)..][..d];
            let delta = out[row(query)..][..d].iter().zip(dout).fold(R::of(0.0), |sum, (&o, &d)| sum + o * d);
            let s = products(q, &k_columns, keys - start);
            let dp = products(dout, &v_columns, keys - start);
            for (i, (&s, &dp)) in s.iter().zip(&dp).enumerate() {
                let (key, m) = (start + i, mask(spec, query, head, i));
                let p = (scale * s - lse[query * spec.heads + head]).exp();
                let ds = operand(p * (dp * m - delta));
                add_scaled(&mut dv[row(key)..][..d], operand(p * m), dout);
                add_scaled(&mut dq[row(query)..][..d], scale * ds, &k[at(spec, ld, key, head, 0)..]);
                add_scaled(&mut dk[row(key)..][..d], scale * ds, q);
            }
        }
    }
    gradients
}
