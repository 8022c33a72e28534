//! Reference implementation: the exact result in f64, a naive implementation in f32. Matrices without gaps, except for
//! A and B of [`product`].

use crate::check::Real;
use kernels::dropout::Dropout;
use kernels::gemm::{EpilogueKind, Gemm, Layout};

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

/// As [`product`] in the arithmetic of tensor cores: 16 products and the sum so far are added exactly and truncated to f32.
/// Rounding to nearest errs either way and mostly cancels, truncation adds up: with k = 328 it errs 2.5 times as much, as
/// `wgmma` did on an H200.
pub fn truncated_product(spec: &Gemm, a: &[f32], b: &[f32]) -> Vec<f32> {
    let (a_row, a_step) = if spec.a == Layout::Normal { (spec.lda, 1) } else { (1, spec.lda) };
    let (b_step, b_column) = if spec.b == Layout::Normal { (spec.ldb, 1) } else { (1, spec.ldb) };
    let of = |i: usize, j: usize| {
        (0..spec.k).step_by(16).fold(0.0f32, |sum, first| {
            let steps = first..spec.k.min(first + 16);
            let products =
                steps.map(|p| f64::from(a[i * a_row + p * a_step]) * f64::from(b[p * b_step + j * b_column]));
            truncated(f64::from(sum) + products.sum::<f64>())
        })
    };
    (0..spec.m).flat_map(|i| (0..spec.n).map(move |j| (i, j))).map(|(i, j)| of(i, j)).collect()
}

/// The nearest f32 towards zero.
fn truncated(x: f64) -> f32 {
    let nearest = x as f32;
    if f64::from(nearest).abs() > x.abs() { f32::from_bits(nearest.to_bits() - 1) } else { nearest }
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
            (p.iter().map(|&p| crate::activation::reference::apply(activation, p)).collect(), p)
        }
        EpilogueKind::BiasDropoutResidual { residual, .. } => {
            let mut y = biased();
            if let Some(dropout) = dropout {
                y = crate::dropout::reference::apply(&dropout, bias.len().max(1), &y);
            }
            (if residual { add(&y, matrix) } else { y }, vec![])
        }
        EpilogueKind::ActivationBackward(activation) => {
            (crate::activation::reference::backward(activation, matrix, acc), vec![])
        }
    }
}

/// x + y, element by element.
pub fn add<R: Real>(x: &[R], y: &[R]) -> Vec<R> {
    x.iter().zip(y).map(|(&x, &y)| x + y).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_truncated_every_sixteen_products() {
        assert_eq!([1.0 + 1e-9, -1.0 - 1e-9, 1.0 - 1e-9].map(truncated), [1.0, -1.0, 1.0 - f32::EPSILON / 2.0]);
        // 2⁻²⁴ is lost when it is added to 1, unless 16 of them are added at once.
        let small = 2.0f32.powi(-24);
        let sum = |k: usize, one: usize| {
            let a: Vec<f32> = (0..k).map(|p| if p == one { 1.0 } else { small }).collect();
            truncated_product(&Gemm::nt(1, 1, k), &a, &vec![1.0; k])[0]
        };
        assert_eq!(sum(17, 0), 1.0 + 7.0 * f32::EPSILON, "15 halves of an ulp and one that is lost");
        assert_eq!(sum(17, 16), 1.0 + 8.0 * f32::EPSILON);
    }
}
