//! Reference implementation: the exact result in f64, a naive implementation in f32. Matrices without gaps, except for
//! A and B of [`product`].

use super::{EpilogueKind, Gemm, Layout};
use crate::activation;
use crate::check::Real;
use crate::dropout::{self, Dropout};

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

/// C and the pre-activation (empty if it is not saved) of an epilogue on `acc` [m, n]; `bias` `[n]`, `matrix` [m, n].
pub fn epilogue<R: Real>(
    kind: EpilogueKind,
    acc: &[R],
    bias: &[R],
    matrix: &[R],
    dropout: Option<Dropout>,
) -> (Vec<R>, Vec<R>) {
    let biased = || acc.iter().zip(bias.iter().cycle()).map(|(&acc, &bias)| acc + bias).collect::<Vec<_>>();
    match kind {
        EpilogueKind::None => (acc.to_vec(), vec![]),
        EpilogueKind::Bias => (biased(), vec![]),
        EpilogueKind::BiasActivation { activation, .. } => {
            let p = biased();
            (p.iter().map(|&p| activation::reference::apply(activation, p)).collect(), p)
        }
        EpilogueKind::BiasDropoutResidual { residual, .. } => {
            let mut y = biased();
            if let Some(dropout) = dropout {
                y = dropout::reference::apply(&dropout, bias.len().max(1), &y);
            }
            (if residual { add(&y, matrix) } else { y }, vec![])
        }
        EpilogueKind::ActivationBackward(activation) => {
            (activation::reference::backward(activation, matrix, acc), vec![])
        }
    }
}

/// x + y, element by element.
pub fn add<R: Real>(x: &[R], y: &[R]) -> Vec<R> {
    x.iter().zip(y).map(|(&x, &y)| x + y).collect()
}
