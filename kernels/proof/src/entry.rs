//! Names and helpers for the entries of the table of operations.

pub(crate) use crate::case::{Case, Outcome};
pub(crate) use crate::check::{Guarded, On, on_runner, store, uniform, widen};
pub(crate) use crate::operation::Operation;
pub(crate) use crate::recorded::{Data, Output};
pub(crate) use crate::runner::{GpuRunner, Runner};
pub(crate) use half::bf16;
pub(crate) use kernels::{Cost, DType, Element};
pub(crate) use kernels_cuda::program::{Pass, Program};
pub(crate) use ptx::{Sm, sim::Approximation};

/// Sizes for kernels of rows: empty, one element, vectors with one lane more and less, primes, several blocks of rows. Short
/// rows are many, because the greatest naive error of few elements is a poor estimate.
pub(crate) const ROWS: [(usize, usize); 11] =
    [(0, 8), (1, 1), (211, 2), (29, 15), (23, 16), (31, 17), (19, 63), (13, 64), (7, 65), (1030, 7), (33, 127)];

/// A case of each size [T, `columns`], storage type and kind, a pass and its variant.
pub(crate) fn cases_of_rows(sizes: &[(usize, usize)], columns: &'static str, kinds: &[(Pass, &str)]) -> Vec<Case> {
    let mut all = Vec::new();
    for (&(rows, width), dtype) in sizes.iter().flat_map(|size| DType::ALL.map(|dtype| (size, dtype))) {
        all.extend(kinds.iter().map(|&(pass, variant)| Case {
            pass,
            dtype,
            variant: variant.to_string(),
            dims: vec![("T", rows), (columns, width)],
        }));
    }
    all
}

/// Programs that are emitted once, for all GPUs.
pub(crate) fn once(sm: Sm, programs: impl FnOnce() -> Vec<Program>) -> Vec<Program> {
    if sm == Sm::Sm80 { programs() } else { Vec::new() }
}
