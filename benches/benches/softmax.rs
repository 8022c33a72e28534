//! Softmax, forward and backward, as `albert bench softmax` runs it.
//!
//! ```text
//! cargo bench -p albert-benches --bench softmax
//! ```

mod cases;

use albert_benches::plan::What;
use criterion::{Criterion, criterion_group, criterion_main};

fn all(c: &mut Criterion) {
    cases::run(c, "softmax", What::Softmax);
}

criterion_group!(benches, all);
criterion_main!(benches);
