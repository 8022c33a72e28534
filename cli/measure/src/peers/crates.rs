//! The crates `gemm`, `matrixmultiply`, `faer` and `rten-gemm`.
#![allow(unsafe_code)]

use super::Operands;
use crate::interleaved::Contender;
use faer::{Accum, MatMut, MatRef, Par};
use kernels::Cpu;
use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions};
use rten_tensor::NdTensorView;
use std::sync::OnceLock;

/// Computes C = A·B on a number of threads.
type Multiply = fn(&Operands, usize, &mut [f32]);

const CRATES: [(&str, Multiply); 4] =
    [("gemm", by_gemm), ("matrixmultiply", by_matrixmultiply), ("faer", by_faer), ("rten", by_rten)];

/// Crates that can run on the number of threads of `cpu`.
fn usable(cpu: &Cpu) -> impl Iterator<Item = (&'static str, Multiply)> {
    let threads = cpu.threads();
    CRATES.into_iter().filter(move |(name, _)| *name != "matrixmultiply" || matrixmultiply_runs(threads))
}

pub(super) fn contenders(cpu: &Cpu, operands: &Operands) -> Vec<Contender> {
    let of = |(name, multiply): (&str, Multiply)| {
        let (operands, mut c) = (operands.clone(), operands.room());
        let threads = cpu.threads();
        Contender::new(name, move || multiply(&operands, threads, &mut c)).within_pool(cpu)
    };
    usable(cpu).map(of).collect()
}

/// Product of each crate.
#[cfg(test)]
pub(super) fn products(cpu: &Cpu, operands: &Operands) -> Vec<(String, Vec<f32>)> {
    let of = |(name, multiply): (&str, Multiply)| {
        let mut c = operands.room();
        multiply(operands, cpu.threads(), &mut c);
        (name.to_owned(), c)
    };
    usable(cpu).map(of).collect()
}

fn by_gemm(operands: &Operands, threads: usize, c: &mut [f32]) {
    let ([ar, ac], [br, bc]) = (operands.strides_of_a(), operands.strides_of_b());
    let &Operands { m, n, k, .. } = operands;
    assert_eq!(c.len(), m * n, "C is [m, n]");
    let threads = if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
    // SAFETY: `operands` checked that A and B have m·k and k·n elements, strides stay within them, and C, checked above, is
    // borrowed for the call.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            n as isize,
            false,
            operands.a.as_ptr(),
            ac as isize,
            ar as isize,
            operands.b.as_ptr(),
            bc as isize,
            br as isize,
            0.0,
            1.0,
            false,
            false,
            false,
            threads,
        );
    }
}

/// Returns true if `matrixmultiply` runs on `threads` threads: it reads its variable once, at its first product.
fn matrixmultiply_runs(threads: usize) -> bool {
    static THREADS: OnceLock<usize> = OnceLock::new();
    let set = || {
        // SAFETY: no other thread reads or writes the environment while contenders are created: the workers of our pools
        // wait for kernels.
        unsafe { std::env::set_var("MATMUL_NUM_THREADS", threads.to_string()) };
        threads
    };
    *THREADS.get_or_init(set) == threads
}

fn by_matrixmultiply(operands: &Operands, _threads: usize, c: &mut [f32]) {
    let ([ar, ac], [br, bc]) = (operands.strides_of_a(), operands.strides_of_b());
    let &Operands { m, n, k, .. } = operands;
    assert_eq!(c.len(), m * n, "C is [m, n]");
    let (a, b) = (operands.a.as_ptr(), operands.b.as_ptr());
    let [ar, ac, br, bc] = [ar, ac, br, bc].map(|stride| stride as isize);
    // SAFETY: as for `gemm`.
    unsafe { matrixmultiply::sgemm(m, k, n, 1.0, a, ar, ac, b, br, bc, 0.0, c.as_mut_ptr(), n as isize, 1) };
}

fn by_faer(operands: &Operands, threads: usize, c: &mut [f32]) {
    let &Operands { m, n, k, a_transposed, b_transposed, .. } = operands;
    let matrix = |values, rows, columns, transposed| match transposed {
        false => MatRef::from_row_major_slice(values, rows, columns),
        true => MatRef::from_row_major_slice(values, columns, rows).transpose(),
    };
    let (a, b) = (matrix(&operands.a[..], m, k, a_transposed), matrix(&operands.b[..], k, n, b_transposed));
    let threads = if threads == 1 { Par::Seq } else { Par::rayon(threads) };
    faer::linalg::matmul::matmul(MatMut::from_row_major_slice_mut(c, m, n), Accum::Replace, a, b, 1.0f32, threads);
}

fn by_rten(operands: &Operands, _threads: usize, c: &mut [f32]) {
    let &Operands { m, n, k, a_transposed, b_transposed, .. } = operands;
    let matrix = |values, rows, columns, transposed| match transposed {
        false => NdTensorView::from_data([rows, columns], values),
        true => NdTensorView::from_data([columns, rows], values).transposed(),
    };
    let (a, b) = (matrix(&operands.a[..], m, k, a_transposed), matrix(&operands.b[..], k, n, b_transposed));
    let (a, b) = (GemmInputA::Unpacked(a), GemmInputB::Unpacked(b));
    // The executor chooses its kernel; its threads keep their packing buffers.
    let executor: GemmExecutor = GemmExecutor::new();
    executor.gemm(c, a, b, GemmOptions::default()).expect("shapes fit together");
}
