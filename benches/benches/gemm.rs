//! GEMM at the shapes of ALBERT-base, with the cases of `albert bench gemm`.
//!
//! ```text
//! cargo bench -p albert-benches --bench gemm
//! ```

mod cases;

use criterion::{Criterion, criterion_group, criterion_main};
use measure::plan::What;

fn all(c: &mut Criterion) {
    cases::run(c, "gemm", What::Gemm);
}

criterion_group!(benches, all);
criterion_main!(benches);
