//! Attention, forward and backward, with the cases of `albert bench attention`.
//!
//! ```text
//! cargo bench -p albert-benches --bench attention
//! ```

mod cases;

use albert_benches::plan::What;
use criterion::{Criterion, criterion_group, criterion_main};

fn all(c: &mut Criterion) {
    cases::run(c, "attention", What::Attention);
}

criterion_group!(benches, all);
criterion_main!(benches);
