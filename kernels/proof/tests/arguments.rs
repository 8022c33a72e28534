//! Rejected arguments: slices that are too short, leading dimensions and strides whose products overflow `usize`,
//! overlapping outputs, counts and ids out of range. Each call must panic before it writes: outputs and the bands of marked
//! elements around them keep their values.
//!
//! Every unsafe block of the kernels relies on these checks, so they are also tested without overflow checks:
//! `cargo test --release -p albert-kernels-proof --test arguments`.

#[path = "arguments/attention.rs"]
mod attention;
#[path = "arguments/gemm.rs"]
mod gemm;
#[path = "arguments/rows.rs"]
mod rows;

use kernels::{Cpu, Isa};
use kernels_proof::check::Guarded;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Value of every output element before a call.
const BEFORE: f32 = 7.5;

/// A pool of two threads for every instruction set of this machine.
fn cpus() -> Vec<Cpu> {
    Isa::real().into_iter().map(|isa| Cpu::new(isa, 2).expect("threads for a test")).collect()
}

/// Asserts that `call` panics with a message that contains `says`, and does not write its outputs, which have these
/// lengths.
#[track_caller]
fn refuses<const N: usize>(case: &str, says: &str, lengths: [usize; N], call: impl FnOnce([&mut [f32]; N])) {
    let mut outputs = lengths.map(|len| Guarded::new(&vec![BEFORE; len]));
    let result = catch_unwind(AssertUnwindSafe(|| call(outputs.each_mut().map(|output| &mut **output))));
    let Err(payload) = result else { panic!("{case}: accepted") };
    let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    let text = text.expect("a panic has a message");
    assert!(text.contains(says), "{case}: message `{text}`, expected `{says}`");
    for (i, output) in outputs.iter().enumerate() {
        output.intact().unwrap_or_else(|message| panic!("{case}: output {i}: {message}"));
        let written = output.iter().position(|x| x.to_bits() != BEFORE.to_bits());
        assert_eq!(written, None, "{case}: output {i} was written before the call panicked");
    }
}

/// `lengths` with one of them one less, and the index of that one.
fn shortened<const N: usize>(lengths: [usize; N]) -> [(usize, [usize; N]); N] {
    std::array::from_fn(|i| (i, std::array::from_fn(|j| lengths[j] - usize::from(i == j))))
}

/// Leading dimension of at least `width` for which the span of 9 rows wraps to 8 · width + width elements: 8 · 2⁶¹ is 0
/// modulo 2⁶⁴.
const fn wraps_nine_rows(width: usize) -> usize {
    (1 << 61) + width
}
