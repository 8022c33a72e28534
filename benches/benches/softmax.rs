//! Softmax, forward and backward, with the cases of `albert bench softmax`.
//!
//! ```text
//! cargo bench -p albert-benches --bench softmax
//! ```

mod cases;

use criterion::{Criterion, criterion_group, criterion_main};
use measure::plan::What;

fn all(c: &mut Criterion) {
    cases::run(c, "softmax", What::Softmax);
}

criterion_group!(benches, all);
criterion_main!(benches);
