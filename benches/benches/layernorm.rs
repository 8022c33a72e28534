//! LayerNorm, forward and backward, with the cases of `albert bench layernorm`.
//!
//! ```text
//! cargo bench -p albert-benches --bench layernorm
//! ```

mod cases;

use criterion::{Criterion, criterion_group, criterion_main};
use measure::plan::What;

fn all(c: &mut Criterion) {
    cases::run(c, "layernorm", What::LayerNorm);
}

criterion_group!(benches, all);
criterion_main!(benches);
