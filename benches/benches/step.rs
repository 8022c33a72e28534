//! Forward pass of ALBERT-base, with the case of `albert bench step`.
//!
//! ```text
//! cargo bench -p albert-benches --bench step
//! ```

mod cases;

use criterion::{Criterion, criterion_group, criterion_main};
use measure::plan::What;

fn all(c: &mut Criterion) {
    cases::run(c, "step", What::Step);
}

criterion_group!(benches, all);
criterion_main!(benches);
