//! Softmax, forward and backward, with the cases of `albert bench softmax`.
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
