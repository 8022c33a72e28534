//! Cases of `albert bench` and their timing, interleaved with the peak of the machine.
//!
//! ```text
//! plan::Selection ──> cases::Work ──prepare──> calls ──interleaved::Interleaved──> rounds ──> report::Record ──> table, JSON
//! ```
//!
//! Used by `albert bench`; the crate `albert-benches` runs the same cases under criterion.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod against;
pub mod busy;
pub mod cases;
pub mod chart;
pub mod clock;
pub mod html;
pub mod interleaved;
pub mod memory;
#[cfg(feature = "peers")]
pub mod peers;
pub mod plan;
pub mod report;

use kernels::num::philox::Stream;

/// `len` elements in `[-0.5, 0.5)`; never zeros, which some hardware multiplies faster. `name` selects the random stream.
pub fn random(len: usize, name: u32) -> Vec<f32> {
    let mut stream = Stream::new(1, [name, 0, 0]);
    (0..len).map(|_| stream.next_f32() - 0.5).collect()
}
