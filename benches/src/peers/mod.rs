//! Products by others, to be timed in turns with ours: crates that are compiled in, and BLAS libraries that the machine has.
//!
//! All of them get the same operands, write a C of their own and pack whatever they pack inside the call. Those that know
//! rayon run in the pool that runs ours, with as many threads.

mod blas;
mod crates;

use crate::{cases::Product, measure::Contender};
use kernels::Cpu;
use std::sync::Arc;

/// The operands of a product, as all contenders read them.
#[derive(Clone, Debug)]
struct Operands {
    m: usize,
    n: usize,
    k: usize,
    /// A lies as [k, m].
    a_transposed: bool,
    /// B lies as [n, k].
    b_transposed: bool,
    a: Arc<Vec<f32>>,
    b: Arc<Vec<f32>>,
}

impl Operands {
    /// Distances in A of a row and of a column.
    fn strides_of_a(&self) -> [usize; 2] {
        if self.a_transposed { [1, self.m] } else { [self.k, 1] }
    }

    /// Distances in B of a row and of a column.
    fn strides_of_b(&self) -> [usize; 2] {
        if self.b_transposed { [1, self.k] } else { [self.n, 1] }
    }

    /// Room for C [m, n].
    fn room(&self) -> Vec<f32> {
        crate::random(self.m * self.n, 3)
    }
}

/// Everybody who can compute `product` from `a` and `b`.
pub fn contenders(cpu: &Cpu, product: &Product, a: &Arc<Vec<f32>>, b: &Arc<Vec<f32>>) -> Vec<Contender> {
    let operands = operands(product, a, b);
    let mut all = crates::contenders(cpu, &operands);
    all.extend(blas::contenders(cpu.threads(), &operands));
    all
}

fn operands(product: &Product, a: &Arc<Vec<f32>>, b: &Arc<Vec<f32>>) -> Operands {
    let [a_transposed, b_transposed] = product.form.transposed();
    let &Product { m, n, k, .. } = product;
    assert_eq!([a.len(), b.len()], [m * k, k * n], "{product:?}: operands are not contiguous");
    Operands { m, n, k, a_transposed, b_transposed, a: Arc::clone(a), b: Arc::clone(b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::{Dtype, Form};

    #[test]
    fn everybody_computes_the_same_product() {
        let cpu = Cpu::new(kernels::Isa::choose().unwrap(), 1).unwrap();
        for form in [Form::Nn, Form::Nt, Form::Tn, Form::Tt] {
            let product = Product { m: 17, n: 23, k: 31, form, dtype: Dtype::F32, peers: false };
            let [a, b] = [(17 * 31, 1), (31 * 23, 2)].map(|(len, name)| Arc::new(crate::random(len, name)));
            let operands = operands(&product, &a, &b);
            let ([ar, ac], [br, bc]) = (operands.strides_of_a(), operands.strides_of_b());
            let exact = |i: usize, j: usize| -> f64 {
                (0..31).map(|p| f64::from(a[i * ar + p * ac]) * f64::from(b[p * br + j * bc])).sum()
            };
            let mut names = Vec::new();
            for (name, c) in crates::products(&cpu, &operands).into_iter().chain(blas::products(1, &operands)) {
                for (place, &value) in c.iter().enumerate() {
                    let expected = exact(place / 23, place % 23);
                    assert!((f64::from(value) - expected).abs() < 1e-5, "{name} {form:?} {place}: {value}, {expected}");
                }
                names.push(name);
            }
            assert!(
                ["gemm", "matrixmultiply", "faer", "rten"].iter().all(|name| names.iter().any(|n| n == name)),
                "{names:?}"
            );
        }
    }
}
