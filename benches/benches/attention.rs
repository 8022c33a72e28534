//! Attention, forward and backward, as `albert bench attention` runs it.
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
