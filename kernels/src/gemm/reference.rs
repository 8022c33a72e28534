//! Reference implementation: the exact result in f64, a naive implementation in f32. Matrices without gaps, except for
//! A and B of [`product`].

use super::{Gemm, Layout};
use crate::check::Real;
use crate::dropout::{self, Dropout};
use crate::gelu::{self, Activation};

/// Σ_p A[i, p]·B[p, j]: [m, n], with `a` and `b` in the layouts of `spec`.
pub fn product<R: Real>(spec: &Gemm, a: &[R], b: &[R]) -> Vec<R> {
    let (a_row, a_step) = if spec.a == Layout::Normal { (spec.lda, 1) } else { (1, spec.lda) };
    let (b_step, b_column) = if spec.b == Layout::Normal { (spec.ldb, 1) } else { (1, spec.ldb) };
    let (n, k) = (spec.n, spec.k);
    let b: Vec<R> = (0..k).flat_map(|p| (0..n).map(move |j| b[p * b_step + j * b_column])).collect();
    let mut c = vec![R::of(0.0); spec.m * n];
    // Every sum is in the order of p; the loop over columns is innermost, so that it vectorizes.
    for (i, row) in c.chunks_exact_mut(n.max(1)).enumerate() {
        for p in 0..k {
            let a = a[i * a_row + p * a_step];
            row.iter_mut().zip(&b[p * n..]).for_each(|(c, &b)| *c = *c + a * b);
        }
    }
    c
}

/// acc + bias[j]: [m, n]
pub fn bias<R: Real>(acc: &[R], bias: &[R]) -> Vec<R> {
    acc.iter().zip(bias.iter().cycle()).map(|(&acc, &bias)| acc + bias).collect()
}

/// x + y, element by element.
pub fn add<R: Real>(x: &[R], y: &[R]) -> Vec<R> {
    x.iter().zip(y).map(|(&x, &y)| x + y).collect()
}

/// act(p), element by element.
pub fn activation<R: Real>(activation: Activation, p: &[R]) -> Vec<R> {
    p.iter().map(|&p| gelu::reference::apply(activation, p)).collect()
}

/// acc · act'(pre), element by element.
pub fn activation_backward<R: Real>(activation: Activation, pre: &[R], acc: &[R]) -> Vec<R> {
    gelu::reference::backward(activation, pre, acc)
}

/// x · mask(row, column) for `x` with `columns` columns.
pub fn dropout<R: Real>(dropout: Option<Dropout>, columns: usize, x: &[R]) -> Vec<R> {
    dropout.map_or_else(|| x.to_vec(), |dropout| dropout::reference::apply(&dropout, columns, x))
}
