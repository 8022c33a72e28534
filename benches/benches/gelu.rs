//! GELU, forward and backward, with the cases of `albert bench gelu`.
//!
//! ```text
//! cargo bench -p albert-benches --bench gelu
//! ```

mod cases;

use criterion::{Criterion, criterion_group, criterion_main};
use measure::plan::What;

fn all(c: &mut Criterion) {
    cases::run(c, "gelu", What::Gelu);
}

criterion_group!(benches, all);
criterion_main!(benches);
