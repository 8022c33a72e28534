//! Third-party GEMM, timed interleaved with ours: compiled-in crates, and BLAS libraries of the machine.
//!
//! All read the same operands, write their own C and pack inside the call. Those that use rayon run in our thread pool, with
//! the same number of threads.

mod blas;
mod crates;

use crate::interleaved::Contender;
use kernels::Cpu;
use std::sync::Arc;

/// Operands of C `[m, n]` = A `[m, k]` · B `[k, n]`, shared by all contenders.
#[derive(Clone, Debug)]
struct Operands {
    m: usize,
    n: usize,
    k: usize,
    /// A is stored as `[k, m]`.
    a_transposed: bool,
    /// B is stored as `[n, k]`.
    b_transposed: bool,
    a: Arc<Vec<f32>>,
    b: Arc<Vec<f32>>,
}

impl Operands {
    fn new([m, n, k]: [usize; 3], [a_transposed, b_transposed]: [bool; 2], [a, b]: [&Arc<Vec<f32>>; 2]) -> Self {
        assert_eq!([a.len(), b.len()], [m * k, k * n], "operands of {m}x{n}x{k} are not contiguous");
        Self { m, n, k, a_transposed, b_transposed, a: Arc::clone(a), b: Arc::clone(b) }
    }

    /// Row and column stride of A.
    fn strides_of_a(&self) -> [usize; 2] {
        if self.a_transposed { [1, self.m] } else { [self.k, 1] }
    }

    /// Row and column stride of B.
    fn strides_of_b(&self) -> [usize; 2] {
        if self.b_transposed { [1, self.k] } else { [self.n, 1] }
    }

    /// Buffer for C `[m, n]`.
    fn room(&self) -> Vec<f32> {
        crate::random(self.m * self.n, 3)
    }
}

/// All libraries that can compute C `[m, n]` = A `[m, k]` · B `[k, n]` on `cpu`. `transposed`: layout of A and of B.
///
/// # Panics
/// If A does not have m·k elements or B k·n.
pub fn contenders(
    cpu: &Cpu,
    sizes: [usize; 3],
    transposed: [bool; 2],
    operands: [&Arc<Vec<f32>>; 2],
) -> Vec<Contender> {
    let operands = Operands::new(sizes, transposed, operands);
    let mut all = crates::contenders(cpu, &operands);
    all.extend(blas::contenders(cpu.threads(), &operands));
    // With one thread, a library has no workers that poll.
    if cpu.threads() == 1 { all } else { all.into_iter().map(Contender::with_spinning_threads).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_peers_compute_the_same_product() {
        let cpu = Cpu::new(kernels::Isa::choose().unwrap(), 1).unwrap();
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            let [a, b] = [(17 * 31, 1), (31 * 23, 2)].map(|(len, name)| Arc::new(crate::random(len, name)));
            let operands = Operands::new([17, 23, 31], transposed, [&a, &b]);
            let ([ar, ac], [br, bc]) = (operands.strides_of_a(), operands.strides_of_b());
            let exact = |i: usize, j: usize| -> f64 {
                (0..31).map(|p| f64::from(a[i * ar + p * ac]) * f64::from(b[p * br + j * bc])).sum()
            };
            let mut names = Vec::new();
            for (name, c) in crates::products(&cpu, &operands).into_iter().chain(blas::products(1, &operands)) {
                for (place, &value) in c.iter().enumerate() {
                    let expected = exact(place / 23, place % 23);
                    assert!(
                        (f64::from(value) - expected).abs() < 1e-5,
                        "{name} {transposed:?} {place}: {value}, {expected}"
                    );
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
