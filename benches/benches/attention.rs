//! Attention, forward and backward, with the cases of `albert bench attention`.
//!
//! ```text
//! cargo bench -p albert-benches --bench attention
//! ```

mod cases;

use criterion::{Criterion, criterion_group, criterion_main};
use measure::plan::What;

fn all(c: &mut Criterion) {
    cases::run(c, "attention", What::Attention);
}

criterion_group!(benches, all);
criterion_main!(benches);
